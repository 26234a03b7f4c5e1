"""What any method is trained with: schedules of the learning rate and when a training ends, beside slow references."""

import io
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from support.driven_studies import TPE, result, search_of, start
from support.rate_schedules import after_patience, plateau
from support.training_loops import SETTINGS, train

from orchestrator.check.subject import CPU, TRAIN_ROWS, TRAINING, Run, Subject
from orchestrator.config.search import Objective
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.data.splits import class_split
from orchestrator.data.store import Store
from orchestrator.errors import InputError
from orchestrator.execution.protocol import Validated, Work
from orchestrator.execution.worker import results
from orchestrator.method import registry
from orchestrator.search.conductor import Conductor
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_folder import BEST, CHECKPOINT
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.embed import evaluate_model
from orchestrator.training.engine import Engine
from orchestrator.training.loop import out_of_patience
from orchestrator.training.optimizer import LearningRates

STEPS, EPOCHS = 5, 4


def optimizer_of(*base: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.zeros(1)], "lr": lr, "base_lr": lr} for lr in base])


def by_torch(base: float, schedule: str, warmup: int) -> list[float]:
    """The learning rate of each step by torch's own schedulers, one after the other."""
    optimizer, of = torch.optim.SGD([torch.zeros(1)], lr=base), torch.optim.lr_scheduler
    after: torch.optim.lr_scheduler.LRScheduler
    if schedule == "cosine":
        after = of.CosineAnnealingLR(optimizer, STEPS * EPOCHS - warmup)
    else:
        milestones = [2, 3] if schedule == "milestones" else [2]
        after = of.MultiStepLR(optimizer, [milestone * STEPS - warmup for milestone in milestones], 0.3)
    scheduler: torch.optim.lr_scheduler.LRScheduler = after
    if warmup:
        rising = of.LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1)
        scheduler = of.SequentialLR(optimizer, [rising, after], [warmup])
    found = []
    for _ in range(STEPS * EPOCHS):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("schedule", ["step", "milestones", "cosine"])
@pytest.mark.parametrize(("warmup", "steps"), [(None, 0), ("3 steps", 3), ("1 epoch", STEPS)])
def test_learning_rates_are_those_of_torch(schedule: Any, warmup: str | None, steps: int) -> None:
    own: dict[str, dict[str, Any]] = {
        "step": {"lr_step_epochs": 2, "lr_gamma": 0.3},
        "milestones": {"lr_milestones": "2,3", "lr_gamma": 0.3},
    }
    every = own.get(schedule, {})
    training = Training(epochs=EPOCHS, lr_schedule=schedule, lr_warmup=warmup, **every)
    optimizer = optimizer_of(0.8, 0.4)
    rates, seen = LearningRates(optimizer, training, STEPS), []
    for step in range(STEPS * EPOCHS):
        rates.set(step, step // STEPS)
        seen.append([group["lr"] for group in optimizer.param_groups])
    expected = by_torch(0.8, schedule, steps)
    assert seen == [[pytest.approx(lr, abs=1e-12), pytest.approx(lr / 2, abs=1e-12)] for lr in expected]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_scores_lower_the_learning_rate_and_end_a_training(mode: Literal["max", "min"]) -> None:
    """A saved state goes on as if it had not been interrupted."""
    draw, objective = random.Random(0), Objective(metric="val/map_at_r", mode=mode)
    ended = set()
    for turn in range(40):
        patience, stop, scores = turn % 4, 1 + turn % 9, [draw.randrange(6) / 8 for _ in range(12)]
        training = Training(lr_schedule="plateau", lr_patience=patience, stop_patience=stop)
        optimizer = optimizer_of(0.8)
        rates, seen = LearningRates(optimizer, training, STEPS, mode), []
        for number, score in enumerate(scores):
            if number == turn % 12:
                torch.save(rates.state(), file := io.BytesIO())
                file.seek(0)
                rates = LearningRates(optimizer, training, STEPS, mode)
                rates.load(torch.load(file, weights_only=True))
            rates.take_score(score)
            rates.set(0, 0)
            seen.append(optimizer.param_groups[0]["lr"] / 0.8)
        assert seen == pytest.approx(plateau(scores, mode == "max", patience))
        ends = [
            number
            for number in range(1, 13)
            if out_of_patience(training, objective, [{objective.metric: score} for score in scores[:number]])
        ]
        assert (ends[0] if ends else None) == after_patience(scores, mode == "max", stop)
        ended.add(bool(ends))
    assert ended == {True, False}
    assert out_of_patience(Training(stop_patience=1), objective, [{"train/loss": 1.0}] * 9) is None


def test_patience_ends_a_trial_and_its_journal_says_why(data_folder: Path, tmp_path: Path) -> None:
    """Interrupted or not, as one model or over folds."""
    settings = SETTINGS | {"method": "triplet", "lr": 1e-30, "validate_every": "1 step", "stop_patience": 2}
    reason = "stop_patience: no better val/map_at_r in 2 validations"
    work = Work("0000", resolve_experiment(settings, "trial"), str(data_folder), str(tmp_path / "0"))
    broken = next(iter(results(work)))
    (*_, last) = again = list(results(work))
    assert isinstance(broken, Validated) and broken.number == 1
    assert [(found.number, found.finished) for found in again] == [(1, False), (2, False), (3, True)]  # type: ignore[union-attr]
    assert isinstance(last, Validated) and last.reason == reason
    assert list(results(work)) == again
    folds = settings | {"protocol": "mlrc", "class_subset": 16}
    (*_, last) = results(Work("0001", resolve_experiment(folds, "trial"), str(data_folder), str(tmp_path / "1")))
    assert isinstance(last, Validated) and last.number == 3 and last.reason == f"4 of 4 folds: {reason}"

    conductor = start(search_of(TPE, scheduler={"name": "asha", "grace_validations": 4}), tmp_path)
    trial = conductor.next()
    assert trial is not None
    assert not conductor.report(result(trial, 1, 0.5, 9))
    assert conductor.report(replace(result(trial, 2, 0.4, 2), reason=reason))
    ended = Journal.read(tmp_path / "journal.jsonl")[-1]
    assert (ended["event"], ended["state"], ended["reason"]) == ("trial_ended", "done", reason)
    conductor.journal.close()
    resumed = start(search_of(TPE, scheduler={"name": "asha", "grace_validations": 4}), tmp_path)
    assert resumed.ledger.trials[trial.trial_id].reason == reason and not resumed.waiting


def test_averaged_weights_are_what_is_judged_and_saved(glyphs: Store, data_folder: Path, tmp_path: Path) -> None:
    """The optimiser makes a step, and the average with it, after two batches each."""
    settings = {"method": "proxy_anchor", "ema_decay": 0.75, "accumulate_batches": 2, "validate_every": "1 step"}
    settings |= {"lr": 1e-2}
    rows = class_split(glyphs, validation_share=0.3, seed=0).validation[:64]
    expected: dict[str, torch.Tensor] = {}
    scores = []
    for steps in range(1, 5):
        scores += train(tmp_path, data_folder, settings, stop_after=4, take=steps)[-1:]
        saved = load_checkpoint(tmp_path / CHECKPOINT)
        raw, mean = saved["averaged"], saved["model"]["learner"]
        for name in raw:
            assert name.startswith("network."), "what belongs to the method is not averaged"
            if steps == 1:
                expected[name] = raw[name]
            if steps % 2 == 0:
                expected[name] = 0.75 * expected[name] + 0.25 * raw[name]
            assert torch.allclose(mean[name], expected[name], rtol=0, atol=1e-12), name
            assert torch.equal(mean[name], raw[name]) == (steps == 1)
        assert evaluate_model(tmp_path / CHECKPOINT, glyphs, rows)["map_at_r"] == scores[-1][3]["val/map_at_r"]
    best = max(score[3]["val/map_at_r"] for score in scores)
    assert evaluate_model(tmp_path / BEST, glyphs, rows)["map_at_r"] == best
    plain = train(None, data_folder, {**settings, "ema_decay": None}, stop_after=4)
    assert plain[-1][3]["train/loss"] == scores[-1][3]["train/loss"], "training goes on with the weights themselves"
    assert plain[-1][3]["val/map_at_r"] != scores[-1][3]["val/map_at_r"]


def test_the_mean_gradient_of_several_batches_is_applied_once() -> None:
    run = Run(Subject(registry()["multi_similarity"], {}))
    batches = [run.subject.batch(TRAIN_ROWS[start : start + 12]) for start in (0, 8, 16)]
    before = {name: value.detach().clone() for name, value in run.learner.named_parameters()}
    mean = {name: torch.zeros_like(value) for name, value in before.items()}
    run.learner.train().freeze_batch_norm()
    for batch in batches:
        run.learner.zero_grad()
        sum(run.learner(batch, run.rng)[0].values()).backward()
        for name, value in run.learner.named_parameters():
            mean[name] += torch.zeros_like(value) if value.grad is None else value.grad / 3
    optimizer = torch.optim.SGD([value for value in run.learner.parameters() if value.requires_grad], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    training = TRAINING.model_copy(update={"accumulate_batches": 3, "clip_norm": None, "clip_value": None})
    engine = Engine(run.learner, training, optimizer, scaler, run.rng, CPU)
    for number, batch in enumerate(batches):
        unmoved = all(torch.equal(value, before[name]) for name, value in run.learner.named_parameters())
        assert unmoved and engine.has_stepped == (number == 0)
        engine.step(batch, 0)
    for name, value in run.learner.named_parameters():
        assert torch.allclose(value, before[name] - mean[name], rtol=0, atol=1e-12), name
    own = Run(Subject(registry()["sharpness_aware"], {})).learner
    with pytest.raises(InputError, match="accumulate_batches: 3: method 'sharpness_aware' has a training step of its"):
        Engine(own, training, optimizer, scaler, run.rng, CPU)


def carried_out(conductor: Conductor, die_after: float = math.inf) -> Ledger:
    """The trials trained in this process, one at a time, without the final run; dead after so many reports."""
    reports = 0
    while (work := conductor.next()) is not None and not work.test:
        for found in results(work):
            if reports == die_after:
                conductor.journal.close()
                return conductor.ledger
            reports += 1
            if conductor.report(found):
                break
    conductor.journal.close()
    return conductor.ledger


def test_early_stops_plateaus_and_patience_over_folds(data_folder: Path, tmp_path: Path) -> None:
    """A trial ends by whichever comes first, as the same training alone; a search that died goes on to the same end."""
    settings = {key: value for key, value in SETTINGS.items() if key != "lr"} | {"protocol": "mlrc", "class_subset": 8}
    settings |= {"classes_per_batch": 4, "validate_every": "1 step", "stop_patience": 2}
    settings |= {"lr_schedule": "plateau", "lr_patience": 0, "lr_gamma": 0.1}
    raw = {"method": "triplet", "dataset": "glyphs-small", "settings": settings, "space": {"lr": [0.1, 1e-30]}}
    asha = {"name": "asha", "grace_validations": 2, "reduction_factor": 2}
    search = search_of(raw | {"algorithm": "grid", "scheduler": asha})

    def folder(name: str) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "glyphs-small").symlink_to(data_folder / "glyphs-small")
        return tmp_path / name

    def told(ledger: Ledger) -> list[Any]:
        return [(one.trial_id, one.state, one.reason, one.curve, one.params) for one in ledger.trials.values()]

    reason = "4 of 4 folds: stop_patience: no better val/map_at_r in 2 validations"
    whole = carried_out(start(search, folder("whole")))
    first, second = whole.trials.values()
    assert (first.state, first.reason) == ("done", reason) and first.validations > 3
    assert (second.state, second.reason, second.validations) == ("pruned", None, 2)
    for trial in (first, second):
        alone = list(
            results(
                Work(
                    "x",
                    resolve_experiment(trial.settings, "trial"),
                    str(data_folder),
                    str(tmp_path / "alone" / trial.trial_id),
                )
            )
        )
        assert [found.metrics["val/map_at_r"] for found in alone][: trial.validations] == trial.curve  # type: ignore[union-attr]
        assert isinstance(alone[-1], Validated) and alone[-1].reason == reason
        assert len(alone) == trial.validations + (trial is second), "the scheduler was sooner than patience"
    for reports in (first.validations - 2, first.validations + 1):
        died = folder(f"died after {reports}")
        carried_out(start(search, died), reports)
        assert told(carried_out(start(search, died))) == told(whole)


def test_patience_at_the_validation_of_an_early_stop_ends_the_trial(tmp_path: Path) -> None:
    conductor = start(
        search_of(TPE, scheduler={"name": "asha", "grace_validations": 2, "reduction_factor": 2}), tmp_path
    )
    states: list[str] = []
    for reason in (None, "stop_patience: no better", None):
        trial = conductor.next()
        assert trial is not None
        assert not conductor.report(result(trial, 1, 0.9 if not states else 0.1, 9))
        last = 2 if reason else 9
        assert conductor.report(replace(result(trial, 2, 0.9 if not states else 0.1, last), reason=reason)) == bool(
            states
        )
        states.append(conductor.ledger.trials[trial.trial_id].state)
        if not states[1:]:
            assert conductor.report(result(trial, 3, 0.9, 3))
    assert states == ["running", "done", "pruned"]
