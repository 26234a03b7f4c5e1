"""fit(): the whole training loop in one explicit function, no callbacks.

It is a generator that yields once per validation, and so needs to know nothing of who runs it: a plain process
drains it, a Tune trial takes one validation per step, a Ray Train worker reports each. To stop is to close it.
"""

import contextlib
import csv
import gc
import io
import math
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Generator, Tensor, nn

from orchestrator.checkpoint import (
    BEST,
    CHECKPOINT,
    DIAGNOSTICS,
    INSIGHT,
    MODEL,
    SAMPLE,
    load_checkpoint,
    save_checkpoint,
    write_atomically,
)
from orchestrator.data.pipeline import Reader, Request, check_images, describe_unreadable, find_unreadable, without
from orchestrator.data.samplers import ClassBalancedSampler, UniformSampler, rank_block
from orchestrator.data.splits import Split, class_folds, class_split, noisy_labels, rows_for_testing, train_labels
from orchestrator.data.store import Store
from orchestrator.data.transforms import Degradation
from orchestrator.distributed import broadcast_object, data_parallel, gather, rank, world_size
from orchestrator.errors import InputError, OutOfMemory, TrainingFailed
from orchestrator.evaluation import (
    DEFAULT_RECALL_AT,
    RECALL_AT,
    Evaluation,
    auroc,
    evaluate_queries,
)
from orchestrator.insight import Insight, insight
from orchestrator.intervals import Ends, Over, of_auroc
from orchestrator.learner import Learner
from orchestrator.method import Batch, Diagnostics, Embedded, Method, Outputs, Scope, find_method
from orchestrator.spec import VALIDATE_EVERY, Experiment, Objective, Training, chosen_by, resolve_experiment

EVALUATION_BATCH = 256
NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"
"""What torch says in a RuntimeError where others raise MemoryError."""
SMALLEST_SCALE = 2.0**-64
"""Of fp16's loss, which is halved wherever a gradient overflows: below it gradients are infinite or not numbers."""
UNREADABLE = "unreadable.csv"
"""The images of a data set that a training or a test went without."""


@dataclass(frozen=True)
class Validation:
    """What is known after one validation. `metrics` holds finite numbers only and is repeatable bit for bit;
    `seconds` is the wall time since the last one."""

    number: int
    epoch: float
    step: int
    metrics: dict[str, float]
    seconds: float
    finished: bool


def fit(
    experiment: Experiment,
    store: Store,
    split: Split,
    *,
    folder: Path | None = None,
    objective: Objective | None = None,
    stop_after: int | None = None,
) -> Iterator[Validation]:
    """Train, and yield at every validation.

    With a `folder` the state is saved there at each validation, and a training found there goes on: its past
    validations are yielded again first, then the new ones, the same bit for bit as without the interruption.
    `stop_after` ends the training at that validation. Without held-out classes (`split.validation` empty) the
    clock ticks the same, and `metrics` hold the training's terms only.

    Raises TrainingFailed if the loss is not finite, InputError if the batch does not fit the data.
    """
    training, objective = experiment.training, objective or chosen_by(experiment.training)
    torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    device = choose_device(training.device)
    unreadable = leave_out(store, training, folder)
    split = without(split, unreadable) if unreadable else split
    labels = noisy_labels(train_labels(store, split.train), share=training.label_noise, seed=training.label_noise_seed)
    reader = new_reader(store, training)
    learner = new_learner(experiment, store, split).to(device)
    if training.precision == "float64":
        learner.double()
    if training.channels_last:
        learner.network.to(memory_format=torch.channels_last)
    if training.compile:
        learner.network.compile()
    if training.freeze_batch_norm:
        learner.freeze_batch_norm()
    elif world_size() > 1 and device.type == "cuda":
        learner.network = nn.SyncBatchNorm.convert_sync_batchnorm(learner.network)  # type: ignore[no-untyped-call]
    module = data_parallel(learner, unsynchronised=learner.state_outside_synchronisation())
    optimizer = build_optimizer(learner, training)
    scaler = torch.amp.GradScaler(device.type, enabled=training.precision == "fp16")
    rng = Generator().manual_seed(training.seed)
    sampler = build_sampler(learner.method, labels, training)
    clock = Clock(training.validate_every, sampler.steps_per_epoch, training.epochs, stop_after)
    window = Window(keep_outputs=type(learner.method).diagnostics is not Method.diagnostics)
    history: list[Validation] = []
    best: float | None = None
    stopped = False
    stops: list[bool] = []
    scope = build_scope(learner, optimizer, store, split, labels, rng, device, stops, reader)
    step = 0

    def state() -> dict[str, Any]:
        return {
            "model": model_state(experiment, store, learner),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "rng": rng.get_state(),
            "global_rng": random_state(device),
            "step": step,
            "best": best,
            "history": [asdict(validation) for validation in history],
        }

    if folder is not None and (folder / CHECKPOINT).exists():
        saved = load_checkpoint(folder / CHECKPOINT)
        learner.load_state_dict(saved["model"]["learner"])
        optimizer.load_state_dict(saved["optimizer"])
        if saved["scaler"]:  # none where it was not needed
            scaler.load_state_dict(saved["scaler"])
        rng.set_state(saved["rng"])
        set_random_state(saved["global_rng"], device)
        step, best = saved["step"], saved["best"]
        history = [Validation(**validation) for validation in saved["history"]]
        yield from history
        set_random_state(saved["global_rng"], device)
        stopped = bool(history) and history[-1].finished
    else:
        learner.method.begin(scope)

    started = time.monotonic()
    with reader:
        last = step if stopped else clock.total_steps
        for (_, epoch, positions), images in reader.read(requests(sampler, split, step, last)):
            # one step: this rank's block of images, the whole batch's labels
            set_learning_rates(optimizer, training, epoch)
            module.train()
            if training.freeze_batch_norm:
                learner.freeze_batch_norm()
            batch = Batch(
                to_device(images, training, device),
                torch.from_numpy(labels[positions]).unsqueeze(1).to(device),
                torch.from_numpy(split.train[positions]).to(device),
            )
            with memory_faults(training), autocast(training, device):
                terms, seen = module(batch, rng)
            loss = torch.stack([term.double() for term in terms.values()]).sum()
            if not torch.isfinite(loss):
                values = ", ".join(f"{name} {float(term.detach()):g}" for name, term in terms.items())
                raise TrainingFailed(f"the loss is not finite at step {step + 1}, epoch {epoch + 1} ({values})")
            optimizer.zero_grad(set_to_none=True)
            with memory_faults(training):
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            if epoch < training.warmup_epochs:
                for parameter in learner.network.backbone.parameters():
                    parameter.grad = None
            scaler.unscale_(optimizer)
            clip_gradients(learner, training)
            with memory_faults(training):  # its first step makes its state
                scaler.step(optimizer)
            scaler.update()
            step += 1
            window.add(terms, seen, batch)

            if not clock.ticks(step):
                continue
            if scaler.get_scale() < SMALLEST_SCALE:  # each further step would be left out too, and nobody told
                raise TrainingFailed(f"the gradients do not fit into fp16 at step {step}: set precision=bf16")
            metrics = {"epoch": step / sampler.steps_per_epoch, **window.means()}
            held_out, evaluation = None, None
            if len(split.validation):
                with memory_faults(training, validating=True):
                    held_out = embed_split(learner, store, split.validation, device, reader)
                    scores, evaluation = validate(held_out, store)
                    metrics |= scores
            seen_of_method = learner.method.diagnostics(window.embedded(), held_out)
            metrics |= {f"diagnostics/{name}": value for name, value in seen_of_method.scalars.items()}
            window.clear()
            for name, value in metrics.items():
                if not math.isfinite(value):
                    raise TrainingFailed(f"{name} is {value} at validation {len(history) + 1}")
            score = metrics.get(objective.metric)
            if score is not None and (best is None or (score > best if objective.mode == "max" else score < best)):
                best = score
                if folder is not None and rank() == 0:
                    save_checkpoint(folder / BEST, model_state(experiment, store, learner))
                    save_diagnostics(folder / DIAGNOSTICS, seen_of_method)
                    if held_out is not None and evaluation is not None:
                        keep_insight(folder, evaluation, held_out, store)
            if len(split.validation):
                learner.method.after_validation(metrics["val/map_at_r"], replace(scope, metrics=dict(metrics)))
            stopped = bool(stops) or step == clock.total_steps
            seconds, started = time.monotonic() - started, time.monotonic()
            history.append(Validation(len(history) + 1, metrics["epoch"], step, metrics, seconds, stopped))
            if folder is not None and rank() == 0:
                if stopped and not len(split.validation):
                    save_checkpoint(folder / MODEL, model_state(experiment, store, learner))
                    save_diagnostics(folder / DIAGNOSTICS, seen_of_method)
                save_checkpoint(folder / CHECKPOINT, state())
            before = random_state(device)
            yield history[-1]
            # whoever runs the loop may draw random numbers of its own in between
            set_random_state(before, device)
            torch.set_num_threads(training.threads)
            if stopped:
                return


# Parts of the loop -----------------------------------------------------------------------------------------


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
        match = VALIDATE_EVERY.fullmatch(self.every)
        assert match is not None
        return int(match[1]) * (self.steps_per_epoch if match[2] == "epoch" else 1)

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


class Window:
    """What the training did since the last validation: mean loss terms, outputs for the diagnostics."""

    def __init__(self, keep_outputs: bool) -> None:
        self.keep_outputs = keep_outputs
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.steps = 0
        self.sums: dict[str, Tensor] = {}
        self.batches: list[Embedded] = []

    def add(self, terms: dict[str, Tensor], seen: list[Outputs], batch: Batch) -> None:
        """One step. Only the first run of the network belongs to the batch's own images."""
        self.steps += 1
        for name, term in terms.items():
            value = term.detach().double()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        if self.keep_outputs and seen:
            outputs = {name: output.float().cpu() for name, output in seen[0].items()}
            self.batches.append(Embedded(outputs, batch.labels[:, 0].cpu(), batch.samples.cpu()))

    def means(self) -> dict[str, float]:
        """`train/loss` and `train/<term>`."""
        means = {name: float(total) / self.steps for name, total in self.sums.items()}
        metrics = {"train/loss": sum(means.values())}
        if len(means) > 1 or "loss" not in means:
            metrics |= {f"train/{name}": value for name, value in means.items()}
        return metrics

    def embedded(self) -> Embedded | None:
        """All batches together, None if they are not kept."""
        if not self.batches:
            return None
        names = self.batches[0].outputs
        return Embedded(
            {name: torch.cat([batch.outputs[name] for batch in self.batches]) for name in names},
            torch.cat([batch.labels for batch in self.batches]),
            torch.cat([batch.samples for batch in self.batches]),
        )


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is a GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device: 'cuda' is not available here: use 'cpu' or 'auto'")
    return torch.device(name)


def random_state(device: torch.device) -> list[Tensor]:
    """The state of torch's global generators: of the CPU, and of the GPU that trains."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_random_state(state: list[Tensor], device: torch.device) -> None:
    """Take a `random_state` up again."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


def to_device(images: Tensor, training: Training, device: torch.device) -> Tensor:
    """Images as the network takes them; pinned on their way to a GPU, so that the copy overlaps with its work."""
    layout = torch.channels_last if training.channels_last else torch.contiguous_format
    dtype = torch.float64 if training.precision == "float64" else torch.float32
    images = images.to(dtype=dtype, memory_format=layout)
    return images.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else images


def autocast(training: Training, device: torch.device) -> torch.autocast:
    """Half precision for the network where asked."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(training.precision)
    return torch.autocast(device.type, dtype=half or torch.bfloat16, enabled=half is not None)


@contextlib.contextmanager
def memory_faults(training: Training, *, validating: bool = False) -> Iterator[None]:
    """Out of memory, of the GPU or of the machine, said as such: OutOfMemory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        if not on_gpu and not isinstance(error, MemoryError) and NO_MEMORY not in str(error):
            raise
        found = "out of GPU memory" if on_gpu else "out of memory"
        found += " in a validation" if validating else f" with a batch of {training.batch_size} images"
        if on_gpu and torch.cuda.is_available():
            free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
            found += f" ({free:.1f} of {total:.1f} GiB are free)"
        raise OutOfMemory(found, of_batch=not validating) from error


def batch_that_fits(experiment: Experiment, store: Store, split: Split) -> tuple[int, int] | None:
    """Of a batch that did not fit into memory: half of its classes, a quarter, ..., the most with which two steps went
    well when tried here and now, as (classes_per_batch, images). None if none did. For one process."""
    training = experiment.training
    classes = training.classes_per_batch
    while (classes := classes // 2) >= 2:
        tried = {"classes_per_batch": classes, "validate_every": "2 steps", "epochs": 2}
        try:
            smaller = replace(experiment, training=training.model_copy(update=tried))
            next(fit(smaller, store, replace(split, validation=split.validation[:0])))
        except OutOfMemory as error:
            free_memory(error)
            continue
        except (InputError, TrainingFailed):  # the method cannot do with so few
            return None
        finally:
            free_memory()
        return classes, classes * training.images_per_class
    return None


def free_memory(error: BaseException | None = None) -> None:
    """Give back what nobody holds any more, or only the calls that ended in this error."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def data_splits(training: Training, store: Store, *, hold_out: bool = True) -> list[Split]:
    """The split that a training asks for, or the folds of MLRC. Without `hold_out` the whole training half trains
    (folds hold out in any case). With `selection: test` it does too, and validations are of the test classes."""
    if training.protocol == "mlrc":
        return class_folds(store, class_subset=training.class_subset)
    on_test = training.selection == "test"
    share = training.validation_share if hold_out and not on_test else 0.0
    cut = image_split if training.protocol == "classification" else class_split
    split = cut(store, validation_share=share, seed=training.seed, class_subset=training.class_subset)
    return [replace(split, validation=split.test, validation_classes=split.test_classes) if on_test else split]


def image_split(store: Store, *, validation_share: float, seed: int, class_subset: int | None = None) -> Split:
    """All classes train, on the data set's own training images; its other images test. Of each class, a share of the
    training images drawn by `seed`, two at least, is held out; with a share of 0 there are none.

    Raises InputError where a class has no image on either side, or the share leaves one none to train on.
    """
    own = store.splits == "train"
    classes = np.unique(store.labels[own])
    if not len(classes) or not np.array_equal(classes, np.unique(store.labels[~own])):
        raise InputError(
            f"protocol: 'classification': the data set {store.name} has no training and test images of every class: "
            "take protocol: conventional"
        )
    if class_subset is not None and class_subset > len(classes):
        raise InputError(f"class_subset: {class_subset}: {store.name} has {len(classes)} classes; give fewer")
    classes = classes[:class_subset]
    rng = np.random.default_rng(seed)
    held_out: list[np.ndarray[Any, Any]] = [np.empty(0, np.int64)]
    for label in classes if validation_share else ():
        members = rng.permutation(np.flatnonzero(own & (store.labels == label)))
        count = max(2, round(validation_share * len(members)))
        if count >= len(members):
            raise InputError(
                f"validation_share: {validation_share:g} holds out {count} of the {len(members)} training images of "
                f"class {store.class_names[label]!r} (at least 2, unless it is 0); take a smaller share or 0"
            )
        held_out.append(members[:count])
    chosen, validation = np.isin(store.labels, classes), np.sort(np.concatenate(held_out))
    return Split(
        train=np.setdiff1d(np.flatnonzero(own & chosen), validation),
        validation=validation,
        test=np.flatnonzero(~own & chosen),
        train_classes=classes,
        validation_classes=classes if validation_share else classes[:0],
        test_classes=classes,
    )


def rows_to_test(training: Training, store: Store) -> np.ndarray[Any, Any]:
    """The images of any data set that a model so trained is tested on: all of its test classes, or, of a model for
    classification, its test images."""
    if training.protocol == "classification":
        return image_split(store, validation_share=0.0, seed=0).test
    return rows_for_testing(store)


def new_reader(store: Store, training: Training, degradation: Degradation | None = None) -> Reader:
    """Reads images as this training and its evaluations see them; with a `degradation`, as tests on images that are
    degraded see them."""
    return Reader(
        store,
        augmentation=training.augmentation,
        seed=training.seed,
        degradation=degradation or training.degraded,
        degrade_tests=degradation is not None,
        threads=training.loader_threads,
    )


def requests(sampler: ClassBalancedSampler | UniformSampler, split: Split, step: int, total: int) -> Iterator[Request]:
    """This rank's blocks of the batches from a step on, which may be in the middle of an epoch."""
    while step < total:
        epoch, first = divmod(step, sampler.steps_per_epoch)
        for positions in sampler.batches(epoch)[first : first + total - step]:
            yield Request(split.train[rank_block(positions, rank(), world_size())], epoch, positions)
            step += 1


def leave_out(store: Store, training: Training, folder: Path | None = None) -> dict[int, str]:
    """The rows that cannot be decoded, with the reasons: the same on all ranks, told once, listed in the `folder`.

    Raises DataError if they are too many, or the images are not of the kind that the augmentation is for.
    """
    found = find_unreadable(store, training.augmentation, threads=training.loader_threads) if rank() == 0 else None
    unreadable: dict[int, str] = broadcast_object(found)
    check_images(store, training.augmentation, unreadable)
    if unreadable and rank() == 0:
        warnings.warn(describe_unreadable(store, unreadable), stacklevel=2)
        if folder is not None:
            rows = list(unreadable)
            names = [store.class_names[label] for label in store.labels[rows]]
            table = {
                "image": rows,
                "class": names,
                "split": store.splits[rows].tolist(),
                "reason": list(unreadable.values()),
            }
            save_table(folder / UNREADABLE, table)
    return unreadable


def check_image_size(learner: Learner, store: Store, split: Split, training: Training) -> None:
    """InputError if the network cannot take images of the size that the training's augmentation makes."""
    with new_reader(store, training) as reader:
        ((_, images),) = reader.read([Request(split.train[:1])])
    try:
        with torch.no_grad():
            learner.eval().network(images)
    except RuntimeError as error:
        size = " x ".join(map(str, images.shape[2:]))
        raise InputError(
            f"backbone: {training.backbone} cannot take images of {size} pixels, which augmentation "
            f"'{training.augmentation}' makes of {store.name} ({' '.join(str(error).split())[:100]})"
        ) from None


def new_learner(experiment: Experiment, store: Store, split: Split) -> Learner:
    """The learner of a new training; InputError if its weights, or what its method reads, cannot be had."""
    names = tuple(store.class_names[label] for label in np.unique(store.labels[split.train]))
    return build_learner(experiment, store, num_classes=len(names), class_names=names)


def build_learner(
    experiment: Experiment, store: Store, *, num_classes: int, class_names: tuple[str, ...] = ()
) -> Learner:
    """The module that is trained, for a data set's images. Only training needs the names of its classes."""
    training = experiment.training
    return Learner(
        find_method(experiment.method),
        experiment.config,
        num_classes=num_classes,
        class_names=class_names,
        batch_size=training.batch_size,
        channels=store.channels,
        backbone=training.backbone,
        weights=training.weights,
        weights_sha256=training.weights_sha256,
        embedding_dim=training.embedding_dim,
        pooling=training.pooling,
        input_convention=training.input_convention,
    )


def build_sampler(
    method: Method, labels: np.ndarray[Any, Any], training: Training
) -> ClassBalancedSampler | UniformSampler:
    """Batches of P classes x K images, or plain ones for a method that must not see classes."""
    if training.batch_size % world_size():
        raise InputError(
            f"the global batch of {training.batch_size} images ({training.classes_per_batch} classes x "
            f"{training.images_per_class}) cannot be shared by {world_size()} workers: make it a multiple"
        )
    if method.sampler == "uniform":
        return UniformSampler(len(labels), batch_size=training.batch_size, seed=training.seed)
    if method.sampler != "class_balanced":  # a label-free method must not be given classes for a misspelling
        raise InputError(f"method '{method.name}': sampler {method.sampler!r} must be 'class_balanced' or 'uniform'")
    return ClassBalancedSampler(
        labels,
        classes_per_batch=training.classes_per_batch,
        images_per_class=training.images_per_class,
        seed=training.seed,
    )


def build_optimizer(learner: Learner, training: Training) -> torch.optim.Optimizer:
    """Adam or AdamW over the network and the method's own groups; every parameter in exactly one."""
    groups = network_groups(learner, training)
    fused = groups[0]["params"][0].is_cuda  # one kernel for all parameters, on a GPU
    groups += learner.method.parameter_groups(training.lr)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    for name, parameter in learner.named_parameters():
        trained = parameter.requires_grad and parameter.numel()  # no proxies: nothing to optimise
        if trained and grouped.count(id(parameter)) != 1:
            raise InputError(
                f"method '{learner.method.name}': parameter {name} is in {grouped.count(id(parameter))} "
                "optimiser groups, it should be in one: see parameter_groups"
            )
    kind = torch.optim.AdamW if training.optimizer == "adamw" else torch.optim.Adam
    optimizer = kind(groups, betas=(0.9, training.beta2), weight_decay=training.weight_decay, fused=fused)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    return optimizer


def network_groups(learner: Learner, training: Training) -> list[dict[str, Any]]:
    """The network's trained parameters by their learning rate.

    Heads have `lr`; layer i of the backbone, counted from 0 at its top, lr * backbone_lr_multiplier * layer_decay**i.
    """
    backbone = learner.network.backbone
    depths = backbone.depths() if training.layer_decay != 1 else dict.fromkeys(backbone.parameters(), 0)
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in learner.network.parameters():
        factor = 1.0
        if parameter in depths:
            factor = training.backbone_lr_multiplier * training.layer_decay ** depths[parameter]
        if parameter.requires_grad:
            groups.setdefault(training.lr * factor, []).append(parameter)
    return [{"params": parameters, "lr": lr} for lr, parameters in groups.items()]


def set_learning_rates(optimizer: torch.optim.Optimizer, training: Training, epoch: int) -> None:
    """The step schedule: a function of the epoch alone, so nothing of it needs saving."""
    factor = training.lr_gamma ** (epoch // training.lr_step_epochs) if training.lr_step_epochs else 1.0
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def clip_gradients(learner: Learner, training: Training) -> None:
    """By value, then by norm, as far as asked."""
    if training.clip_value is not None:
        nn.utils.clip_grad_value_(learner.parameters(), training.clip_value)
    if training.clip_norm is not None:
        nn.utils.clip_grad_norm_(learner.parameters(), training.clip_norm)


def build_scope(
    learner: Learner,
    optimizer: torch.optim.Optimizer,
    store: Store,
    split: Split,
    labels: np.ndarray[Any, Any],
    rng: Generator,
    device: torch.device,
    stops: list[bool],
    reader: Reader | None = None,
) -> Scope:
    """What a method's `begin` and `after_validation` may do."""

    def class_embeddings(n: int, rng: Generator) -> Tensor:
        rows = []
        for label in range(int(labels.max()) + 1):
            members = split.train[labels == label]
            # a class with fewer images than asked gives some of them more than once
            order = [torch.randperm(len(members), generator=rng) for _ in range(math.ceil(n / len(members)))]
            rows.append(members[torch.cat(order)[:n].numpy()])
        raw = run_network(learner, store, np.concatenate(rows), device, reader, normalized=False)["embedding"]
        return raw.view(len(rows), n, -1)

    def reset_moments(parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            optimizer.state.pop(parameter, None)

    def moments(parameters: list[nn.Parameter]) -> list[Tensor]:
        found = []
        for parameter in parameters:
            state, zeros = optimizer.state.get(parameter, {}), torch.zeros_like(parameter)
            found += [state.get("step", torch.zeros(())), state.get("exp_avg", zeros), state.get("exp_avg_sq", zeros)]
        return [moment.detach().clone() for moment in found]

    def set_moments(parameters: list[nn.Parameter], moments: list[Tensor]) -> None:
        optimised = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for index, parameter in enumerate(parameters):
            if id(parameter) not in optimised:  # a frozen one
                continue
            step, mean, square = moments[3 * index : 3 * index + 3]
            optimizer.state[parameter] = {
                "step": step.detach().to(parameter.device, torch.float32, copy=True),
                # in the parameter's memory layout, which a fused optimiser takes for granted
                "exp_avg": torch.empty_like(parameter.detach()).copy_(mean),
                "exp_avg_sq": torch.empty_like(parameter.detach()).copy_(square),
            }

    return Scope(rng, class_embeddings, reset_moments, moments, set_moments, lambda: stops.append(True))


# Evaluation of a learner -----------------------------------------------------------------------------------


@torch.no_grad()
def run_network(
    learner: Learner,
    store: Store,
    rows: np.ndarray[Any, Any],
    device: torch.device,
    reader: Reader | None = None,
    *,
    normalized: bool = True,
) -> Outputs:
    """The outputs (len(rows), ...) of these images in eval mode, shared out over the ranks.

    Without a `reader` the images are taken as they are in the store.
    """
    was_training = learner.training
    learner.eval()
    size = math.ceil(len(rows) / world_size())
    padded = np.resize(rows, size * world_size())
    mine = padded[rank() * size : (rank() + 1) * size]
    dtype = next(learner.parameters()).dtype
    blocks: list[Outputs] = []
    wanted = (Request(mine[start : start + EVALUATION_BATCH]) for start in range(0, size, EVALUATION_BATCH))
    for _, block in (reader or Reader(store)).read(wanted):
        images = block.to(device, dtype)
        blocks.append(learner.outputs(images) if normalized else learner.network(images))
    learner.train(was_training)
    return {name: gather(torch.cat([block[name] for block in blocks]))[: len(rows)] for name in blocks[0]}


def embed_split(
    learner: Learner, store: Store, rows: np.ndarray[Any, Any], device: torch.device, reader: Reader | None = None
) -> Embedded:
    """These images as the network sees them; their labels are the data set's own."""
    outputs = {name: output.cpu() for name, output in run_network(learner, store, rows, device, reader).items()}
    return Embedded(outputs, torch.from_numpy(store.labels[rows].astype(np.int64)), torch.from_numpy(rows))


def validate(held_out: Embedded, store: Store) -> tuple[dict[str, float], Evaluation | None]:
    """`val/...`: the retrieval metrics on the classes that the training selects on, queries among the gallery where
    they have both; and on rank 0 what they are means of."""
    if not torch.isfinite(held_out.outputs["embedding"]).all():
        raise TrainingFailed("the embeddings are not finite")
    found = None
    if rank() == 0:
        rows, parts = queries_and_gallery(held_out, store)
        found = evaluate_queries(**parts, clustering=False)
        found = replace(found, queries=found.queries.set_column(0, "query", [rows]))
    metrics = broadcast_object(found.metrics if found is not None else None)
    return {f"val/{name}": value for name, value in metrics.items() if name != "queries_left_out"}, found


def evaluate_model(
    model: Path, store: Store, rows: np.ndarray[Any, Any], device: str = "auto", *, folder: Path | None = None
) -> dict[str, float]:
    """The metrics of `evaluate_model_by_query` alone; arguments and errors are its own."""
    return evaluate_model_by_query(model, store, rows, device, folder=folder).metrics


def evaluate_model_by_query(
    model: Path,
    store: Store,
    rows: np.ndarray[Any, Any],
    device: str = "auto",
    *,
    folder: Path | None = None,
    approximate: bool = False,
) -> Evaluation:
    """All metrics of a saved model on these images; the method's arrays and tables go to `folder` as `test_...`.

    Rows of the data set's split `query` are searched for among the others, where it has one; otherwise each row among
    all. In the table of queries, `query` is the image's row in the data set. `images_left_out` counts photographs that
    cannot be decoded, if there are any. Raises InputError if none can be evaluated or the embeddings are not finite.
    """
    return evaluate_and_embed(model, store, rows, device, folder=folder, approximate=approximate)[0]


def evaluate_and_embed(
    model: Path,
    store: Store,
    rows: np.ndarray[Any, Any],
    device: str = "auto",
    *,
    folder: Path | None = None,
    approximate: bool = False,
    degradation: Degradation | None = None,
) -> tuple[Evaluation, Embedded]:
    """`evaluate_model_by_query`, and the images as the model sees them: degraded where asked."""
    learner, embedded = embed_model(model, store, rows, device, degradation)
    result = retrieve(embedded, store, device, what=str(model), approximate=approximate)
    seen_of_method = learner.method.diagnostics(None, embedded)
    if folder is not None and rank() == 0:
        save_diagnostics(folder, seen_of_method, prefix="test_")
    scalars = {f"diagnostics/{name}": value for name, value in seen_of_method.scalars.items()}
    if left_out := len(rows) - len(embedded.samples):
        scalars["images_left_out"] = float(left_out)
    return replace(result, metrics=result.metrics | scalars), embedded


def detect_outside(
    model: Path, inside: Store, outside: Store, device: str = "auto"
) -> tuple[dict[str, float], dict[Over, Ends | None]]:
    """`out_of_distribution/auroc`: how well the uncertainty ||u|| tells the images of another data set (they should
    have more) from those of its own; of both data sets, the images that `rows_to_test` gives. And its intervals over
    the classes of both (None if one has too few) and over their images; see `intervals.of_auroc`.

    Raises InputError if the model has no uncertainty embedding: one is the output `uncertainty` (N, D) of the network,
    a head of the method's. Source: IDML's Table 4.
    """
    sides = []
    for store in (inside, outside):  # whatever is wrong is found before anything is computed
        learner, experiment = load_learner(model, store)
        if "uncertainty" not in learner.network.heads:
            raise InputError(
                f"{model}: trained by '{experiment.method}' it has no uncertainty embedding to detect images with; "
                "idml learns one"
            )
        sides.append((store, rows_to_test(experiment.training, store)))
    levels, labels = [], []
    for store, rows in sides:
        _, embedded = embed_model(model, store, rows, device)
        levels.append(torch.linalg.vector_norm(embedded.outputs["uncertainty"].double(), dim=1))
        labels.append(embedded.labels)
    try:
        metrics = {"out_of_distribution/auroc": auroc(*levels)}
    except ValueError as error:
        raise InputError(f"{model} on {inside.name} and {outside.name}: {error}") from None
    classes = (labels[0].numpy(), labels[1].numpy())
    return metrics, {"classes": of_auroc(levels[0], levels[1], classes), "queries": of_auroc(levels[0], levels[1])}


def embed_model(
    model: Path,
    store: Store,
    rows: np.ndarray[Any, Any],
    device: str = "auto",
    degradation: Degradation | None = None,
) -> tuple[Learner, Embedded]:
    """A saved model's learner, and these images as it sees them; photographs that cannot be decoded are left out."""
    learner, experiment = load_learner(model, store)
    chosen = choose_device(device)
    readable = rows[~np.isin(rows, list(leave_out(store, experiment.training)))]
    with new_reader(store, experiment.training, degradation) as reader:
        return learner, embed_split(learner.to(chosen), store, readable, chosen, reader)


def retrieve(
    embedded: Embedded, store: Store, device: str = "auto", *, what: str, approximate: bool = False
) -> Evaluation:
    """All metrics of these embeddings, as `evaluate_model_by_query` says. `what` is named in errors."""
    rows, parts = queries_and_gallery(embedded, store, choose_device(device))
    try:
        result = evaluate_queries(
            **parts,
            recall_at=RECALL_AT.get(store.name, DEFAULT_RECALL_AT),
            approximate=approximate,
        )
    except ValueError as error:
        raise InputError(f"{what} on {store.name}: {error}") from None
    return replace(result, queries=result.queries.set_column(0, "query", [rows]))


def queries_and_gallery(
    embedded: Embedded, store: Store, device: torch.device | None = None
) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """The queries' rows in the data set, and what `evaluate_queries` is given: rows of the split `query` are searched
    for among the others; where there are not both, each row among all."""
    embeddings, labels, rows = embedded.outputs["embedding"].to(device), embedded.labels, embedded.samples.numpy()
    queries = torch.from_numpy(store.splits[rows] == "query")
    if not queries.any() or queries.all():
        return rows, {"embeddings": embeddings, "labels": labels}
    gallery = {"gallery": embeddings[~queries], "gallery_labels": labels[~queries]}
    return rows[queries.numpy()], {"embeddings": embeddings[queries], "labels": labels[queries]} | gallery


def look(evaluation: Evaluation, embedded: Embedded, store: Store) -> Insight:
    """What there is to see of an evaluation of these images, whose `query` column holds rows of the data set."""
    queries = store.splits[embedded.samples.numpy()] == "query"
    apart = queries.any() and not queries.all()
    return insight(evaluation, embedded, store.class_names, np.flatnonzero(~queries) if apart else None)


def keep_insight(folder: Path, evaluation: Evaluation, embedded: Embedded, store: Store) -> None:
    """Save what there is to see; what goes wrong in looking is told, and costs no training."""
    try:
        found = look(evaluation, embedded, store)
    except Exception as error:
        warnings.warn(f"what the model confuses is not kept ({type(error).__name__}: {error})", stacklevel=2)
        return
    save_insight(folder, found)


def save_insight(folder: Path, found: Insight) -> None:
    """Its tables as `insight/<name>.csv`, the rest as one file beside the model."""
    for name, table in found.tables.items():
        save_table(folder / INSIGHT / f"{name}.csv", table)
    arrays: dict[str, Any] = found.arrays
    write_atomically(folder / SAMPLE, lambda file: np.savez(file, **arrays))


def save_diagnostics(folder: Path, diagnostics: Diagnostics, prefix: str = "") -> None:
    """A method's arrays as `<prefix><name>.npy`, its tables as `<prefix><name>.csv`."""
    for name, array in diagnostics.arrays.items():
        write_atomically(folder / f"{prefix}{name}.npy", partial(np.save, arr=array))
    for name, table in diagnostics.tables.items():
        save_table(folder / f"{prefix}{name}.csv", table)


def save_table(path: Path, table: Mapping[str, Sequence[Any]]) -> None:
    """Columns of equal length, by name, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    write_atomically(path, partial(_write, text.getvalue().encode()))


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def model_state(experiment: Experiment, store: Store, learner: Learner) -> dict[str, Any]:
    """What is needed to build the learner again and use it."""
    return {
        "format": 1,
        "experiment": experiment.flat(),
        "dataset_digest": store.manifest["digest"],
        "channels": store.channels,
        "num_classes": learner.method.task.num_classes,
        "learner": learner.state_dict(),
    }


def saved_model(path: Path) -> dict[str, Any]:
    """The `model_state` of a model file or of a checkpoint."""
    saved: dict[str, Any] = load_checkpoint(path, mapped=True)
    saved = saved.get("model", saved)
    if "learner" not in saved or "experiment" not in saved:
        raise InputError(f"{path}: holds no model of this tool")
    return saved


def load_learner(path: Path, store: Store) -> tuple[Learner, Experiment]:
    """The learner of a model file or of a checkpoint, on the CPU."""
    saved = saved_model(path)
    settings = saved["experiment"]
    settings = settings | {"weights": "random", "weights_sha256": None}  # the weights come from this file
    experiment = resolve_experiment(settings, str(path))
    if saved["channels"] != store.channels:
        raise InputError(
            f"{path}: trained on images of {saved['channels']} channels, the data set has {store.channels}"
        )
    learner = build_learner(experiment, store, num_classes=saved["num_classes"])
    if experiment.training.precision == "float64":
        learner.double()
    learner.load_state_dict(saved["learner"])
    return learner, experiment
