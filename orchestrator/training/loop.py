"""fit(): the whole training loop in one explicit function, no callbacks.

It is a generator that yields once per validation, so it need not know what runs it: a plain process exhausts it, a Tune
trial takes one validation per step, a Ray Train worker reports each. Closing the generator stops the training.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from orchestrator.config.intervals import CHECKPOINT_EVERY, parse_seconds, parse_steps
from orchestrator.config.search import Objective, chosen_by
from orchestrator.config.training import Experiment, Training
from orchestrator.data.pipeline import without
from orchestrator.data.splits import Split
from orchestrator.data.store import Store
from orchestrator.errors import TrainingFailed
from orchestrator.evaluation.measures import DEFAULT_OBJECTIVE
from orchestrator.method import Method
from orchestrator.storage.trial_folder import TrialPaths
from orchestrator.text import join_names, pluralize
from orchestrator.training.averaging import Average
from orchestrator.training.batch_norm import synchronise
from orchestrator.training.batches import Batches
from orchestrator.training.checkpoint import load_checkpoint, save_checkpoint
from orchestrator.training.device import (
    choose_device,
    memory_faults,
    random_state,
    set_random_state,
)
from orchestrator.training.distributed import note_dependence, rank, world_size
from orchestrator.training.embed import embed_split, keep_insight, validate
from orchestrator.training.engine import Engine
from orchestrator.training.features import keep_features
from orchestrator.training.learner import layers_that_draw
from orchestrator.training.model_file import model_state, new_learner, save_diagnostics
from orchestrator.training.model_schema import blame_file, check_checkpoint
from orchestrator.training.optimizer import LearningRates, build_optimizer
from orchestrator.training.pauses import Pauses
from orchestrator.training.scope import build_scope
from orchestrator.training.splits import leave_out, new_reader, training_images
from orchestrator.training.stages import Stages
from orchestrator.training.trained_on import trained_on
from orchestrator.training.window import Window

SMALLEST_SCALE = 2.0**-64
"""Of fp16's loss, which is halved whenever a gradient overflows: below it gradients are infinite or not numbers."""


@dataclass(frozen=True)
class ValidationResult:
    """The results known after one validation. `metrics` holds finite numbers only and is reproducible bit for bit;
    `seconds` is the wall time since the previous one."""

    number: int
    epoch: float
    step: int
    metrics: dict[str, float]
    seconds: float
    finished: bool
    reason: str | None = None
    """Why it is the last one, if the training ended before all its epochs for want of better scores."""


def fit(
    experiment: Experiment,
    store: Store,
    split: Split,
    *,
    folder: Path | None = None,
    objective: Objective | None = None,
    stop_after: int | None = None,
    keep: Callable[[], None] = lambda: None,
) -> Iterator[ValidationResult]:
    """Train, and yield at every validation.

    With a `folder` the state is saved there at each validation, by time between them (`checkpoint_every`, after which
    `keep` is called), and before the end of the process if that is announced. A training found there is resumed: its
    past validations are yielded again first, then the new ones, bit for bit the same as without the interruption.
    `stop_after` ends the training at that validation. Without held-out classes (`split.validation` empty) the
    validations come at the same steps, and `metrics` holds the training's terms only.

    Raises TrainingFailed if the loss is not finite, InputError if the batch does not fit the data, Preempted if the
    process is to end.
    """
    training, objective = experiment.training, objective or chosen_by(experiment.training)
    torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    device = choose_device(training.device)
    unreadable = leave_out(store, training, folder)
    split = without(split, unreadable) if unreadable else split
    split, images, meta = training_images(experiment, store, split)
    learner = new_learner(experiment, store, split).to(device)
    if training.precision == "float64":
        learner.double()
    if training.channels_last:
        learner.network.to(memory_format=torch.channels_last)
    if training.compile:
        learner.network.compile()
    if training.freeze_batch_norm:
        learner.freeze_batch_norm()
    else:
        learner.network = synchronise(learner.network, device)
    if layers := layers_that_draw(learner.network):
        note_dependence(
            f"{training.backbone} draws other numbers ({join_names(layers)}) with another number of workers"
        )
    optimizer = build_optimizer(learner, training)
    stages = Stages(experiment, learner, optimizer)
    if training.warmup_epochs >= training.epochs:  # the backbone is never trained: no gradient is computed for it
        learner.network.backbone.requires_grad_(False)
    scaler = torch.amp.GradScaler(device.type, enabled=training.precision == "fp16")
    rng = Generator().manual_seed(training.seed)
    engine = Engine(learner, training, optimizer, scaler, rng, device)
    reader = new_reader(store, training, device=device)
    keep_features(learner, training, store, reader, device, trains=True)
    stops: list[bool] = []
    scope = build_scope(learner, optimizer, store, images, rng, device, stops, reader)
    batches = Batches(learner.method, training, images, meta, reader, device, scope.class_embeddings)
    clock = Clock(training.validate_every, batches.steps_per_epoch, training.epochs, stop_after)
    rates = LearningRates(optimizer, training, batches.steps_per_epoch, objective.mode)
    window = Window(keep_outputs=type(learner.method).diagnostics is not Method.diagnostics)
    history: list[ValidationResult] = []
    best: float | None = None
    stopped = False
    average = Average(learner, training.ema_decay)
    step = 0
    started = time.monotonic()
    pauses = Pauses(parse_seconds(training.checkpoint_every or CHECKPOINT_EVERY), world_size())

    chosen_on = split.validation if training.selection != "test" else split.validation[:0]
    trained = trained_on(store, [images.samples, meta.samples, chosen_on])

    def model() -> dict[str, Any]:
        return model_state(experiment, store, learner, trained) | {"learner": average.weights()}

    def state() -> dict[str, Any]:
        return {
            "model": model(),
            "averaged": average.state(),
            "engine": engine.state(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "rng": rng.get_state(),
            "global_rng": random_state(device),
            "batches": batches.state(),
            "rates": rates.state(),
            "window": window.state(),
            "step": step,
            "best": best,
            "seconds": time.monotonic() - started,
            "history": [asdict(validation) for validation in history],
        }

    files = None if folder is None else TrialPaths(folder)
    if files is not None and files.checkpoint.exists():
        saved = check_checkpoint(load_checkpoint(files.checkpoint), str(files.checkpoint))
        with blame_file(files.checkpoint, "not a checkpoint of this training"):
            learner.load_state_dict(saved["model"]["learner"])
            average.load(saved.get("averaged"))
            engine.load(saved.get("engine", {}))
            optimizer.load_state_dict(saved["optimizer"])
            if saved["scaler"]:  # none where it was not needed
                scaler.load_state_dict(saved["scaler"])
            rng.set_state(saved["rng"])
            set_random_state(saved["global_rng"], device)
            batches.load(saved.get("batches", {}))
            rates.load(saved.get("rates", {}))
            window.load(saved.get("window", {}), device)
            step, best, before_now = saved["step"], saved["best"], saved.get("seconds", 0.0)
            history = [ValidationResult(**validation) for validation in saved["history"]]
        yield from history
        set_random_state(saved["global_rng"], device)
        stopped = bool(history) and history[-1].finished
    else:
        learner.method.begin(scope)
        average.begin()
        before_now = 0.0

    started = time.monotonic() - before_now
    pauses.note_checkpoint()
    if not stopped:
        pauses.check()
    with reader:
        first, last = step, step if stopped else clock.total_steps
        for epoch, batch in batches.read(step, last):
            # one step: this rank's block of images, the whole batch's labels
            stages.enter(step // clock.interval, engine)
            rates.set(step, epoch)
            with memory_faults(training), window.first_cause(step + 1, epoch + 1, engine):
                terms = engine.step(batch, epoch)
                if engine.has_stepped:
                    average.update()
            window.add(step + 1, epoch + 1, terms, engine.seen, batch)
            step += 1

            if not clock.ticks(step):
                if pauses.take_step() and files is not None:
                    save_checkpoint(files.checkpoint, state())
                    keep()
                    pauses.note_checkpoint()
                pauses.check()
                continue
            if step - first >= batches.steps_per_epoch:  # an own step may gather gradients over several batches
                engine.require_applied()
            metrics = {"epoch": step / batches.steps_per_epoch, **window.means()}
            if scaler.get_scale() < SMALLEST_SCALE:  # all further steps would be skipped too, without notice
                raise TrainingFailed(f"the gradients do not fit into fp16 at step {step}: set precision=bf16")
            held_out, evaluation = None, None
            if len(split.validation):
                with memory_faults(training, validating=True), average.in_place():
                    held_out = embed_split(learner, store, split.validation, device, reader)
                    scores, evaluation = validate(held_out, store, device)
                    metrics |= scores
            seen_of_method = learner.method.diagnostics(window.collect(), held_out)
            metrics |= {f"diagnostics/{name}": float(value) for name, value in seen_of_method.scalars.items()}
            window.clear()
            for name, value in metrics.items():
                if not math.isfinite(value):
                    raise TrainingFailed(f"{name} is {value} at validation {len(history) + 1}")
            score = metrics.get(objective.metric)
            if score is not None:
                rates.take_score(score)
            if score is not None and (best is None or (score > best if objective.mode == "max" else score < best)):
                best = score
                if files is not None and rank() == 0:
                    save_checkpoint(files.best, model())
                    save_diagnostics(files.diagnostics, seen_of_method)
                    if held_out is not None and evaluation is not None:
                        keep_insight(files.folder, evaluation, held_out, store)
            if len(split.validation):
                learner.method.after_validation(metrics[DEFAULT_OBJECTIVE], replace(scope, metrics=dict(metrics)))
            reason = out_of_patience(training, objective, [*(past.metrics for past in history), metrics])
            stopped = bool(stops) or step == clock.total_steps or reason is not None
            seconds, started = time.monotonic() - started, time.monotonic()
            history.append(
                ValidationResult(len(history) + 1, metrics["epoch"], step, metrics, seconds, stopped, reason)
            )
            if files is not None and rank() == 0:
                if stopped and not len(split.validation):
                    save_checkpoint(files.model, model())
                    save_diagnostics(files.diagnostics, seen_of_method)
                save_checkpoint(files.checkpoint, state())
                pauses.note_checkpoint()
            before = random_state(device)
            yield history[-1]
            # the caller may draw random numbers of its own in between
            set_random_state(before, device)
            torch.set_num_threads(training.threads)
            if stopped:
                return
            pauses.check()


def out_of_patience(training: Training, objective: Objective, metrics: Sequence[Mapping[str, float]]) -> str | None:
    """Why a training ends after these validations, if `stop_patience` of them came after the best."""
    scores = [validation[objective.metric] for validation in metrics if objective.metric in validation]
    if training.stop_patience is None or not scores:
        return None
    best = max(scores) if objective.mode == "max" else min(scores)
    if len(scores) - 1 - scores.index(best) < training.stop_patience:
        return None
    return f"stop_patience: no better {objective.metric} in {pluralize(training.stop_patience, 'validation')}"


@dataclass(frozen=True)
class Clock:
    """When to validate: every so many epochs or steps, and at the end."""

    every: str
    steps_per_epoch: int
    epochs: int
    stop_after: int | None = None

    @property
    def interval(self) -> int:
        """Steps between validations."""
        return parse_steps(self.every, self.steps_per_epoch)

    @property
    def total_steps(self) -> int:
        """Steps of the whole training."""
        steps = self.epochs * self.steps_per_epoch
        return steps if self.stop_after is None else min(steps, self.stop_after * self.interval)

    @property
    def total_validations(self) -> int:
        """Validations of the whole training."""
        return math.ceil(self.total_steps / self.interval)

    def ticks(self, step: int) -> bool:
        """Whether a validation follows the step with this number (from 1)."""
        return step % self.interval == 0 or step == self.total_steps
