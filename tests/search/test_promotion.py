"""Trials that wait after an early stop and go on: who does when, with which files, and after a death of the driver."""

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from journal_model import JournalModel
from optuna.trial import TrialState
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from support.driven_studies import EPOCHS, TPE, curve, drive, play, result, search_of, start

from orchestrator.benchmarking.replaying import MEMORY
from orchestrator.config.schedulers import forecast
from orchestrator.config.schedulers.base import Bracket
from orchestrator.config.schedulers.forecast import Forecast, ForecastBracket
from orchestrator.config.schedulers.promotion import Promotion
from orchestrator.errors import InputError
from orchestrator.search.conductor import Conductor
from orchestrator.storage.events import Event
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_folder import CHECKPOINT

PROMOTING = TPE | {
    "settings": {"epochs": 6, "seed": 0},  # the made curves are those of one seed
    "algorithm": "random",
    "scheduler": {"name": "promotion", "reduction_factor": 2},
    "num_trials": 12,
}
MANY = PROMOTING | {"algorithm": "tpe", "seed": 1}
"""With three at a time many go on."""
FORECAST: dict[str, Any] = {
    "scheduler": {"name": "forecast", "reduction_factor": 2, "startup_trials": 3},
    "num_trials": 9,
    "seed": 10,
}
FACTOR = 3


def board(conductor: Conductor) -> list[tuple[Any, ...]]:
    return [(t.trial_id, t.state, t.best, t.validations, t.params) for t in conductor.ledger.ranking()]


# Who goes on ---------------------------------------------------------------------------------------------


def promote_at_equal_age(promotion: Callable[[Bracket], str | None]) -> None:
    """Trials that come to two rungs in some order; who goes on is the best of those that wait among the best third."""
    draw, scheduler = random.Random(0), Promotion(reduction_factor=FACTOR)
    bracket = Bracket(scheduler.requirement)
    losses: dict[int, dict[str, float]] = {1: {}, 3: {}}
    waiting: dict[int, set[str]] = {1: set(), 3: set()}
    promoted = 0
    for number in range(200):
        name = f"{number:04d}"
        age = 1
        while True:
            loss = losses[age][name] = draw.random()
            stops = bracket.validate(age, loss) is not None
            best = sorted(losses[age].values())[: max(1, len(losses[age]) // FACTOR)]
            assert stops == (loss > best[-1])
            if stops:
                waiting[age].add(name)
                assert bracket.wait(name, age, loss, lambda place: True) == []
            expected = None
            for rung in (3, 1):
                best = sorted(losses[rung].values())[: max(1, len(losses[rung]) // FACTOR)]
                may = [one for one in waiting[rung] if losses[rung][one] <= best[-1]]
                if expected is None and may:
                    expected = rung, min(may, key=losses[rung].__getitem__)
            chosen = promotion(bracket)
            assert chosen == (None if expected is None else expected[1])
            if not stops and age == 1:
                age = 3
            elif expected is None:
                break
            else:
                promoted += 1
                age, name = expected
                waiting[age].remove(name)
                bracket.resume(name)
                if age == 3:
                    break
                age = 3
    assert promoted > 5


def test_the_best_third_at_an_age_goes_on() -> None:
    promote_at_equal_age(Bracket.promotion)


def first_come(bracket: Bracket) -> str | None:
    names = [name for waiting in bracket.waiting.values() for _, name in waiting]
    return min(names) if bracket.promotion() is not None else None


def whoever_is_best(bracket: Bracket) -> str | None:
    return min((one for waiting in bracket.waiting.values() for one in waiting), default=(0.0, None))[1]


@pytest.mark.parametrize("planted", [first_come, whoever_is_best])
def test_another_order_is_noticed(planted: Callable[[Bracket], str | None]) -> None:
    with pytest.raises(AssertionError):
        promote_at_equal_age(planted)


def forecast_slow_starters() -> None:
    """The more of x, the slower a curve begins, and the higher it ends: forecasts learn it from ended trials."""

    def loss(x: float, age: int) -> float:
        return -(1 + x) if age == 9 else -(1.5 - x) * age / 9

    bracket = ForecastBracket(Forecast(startup_trials=8))
    draw = random.Random(0)
    for number in range(12):
        name, x = f"{number:04d}", draw.random()
        bracket.enter(name, [x, draw.random()])
        for age in (1, 3, 9) if number < 8 else (1,):
            stops = bracket.validate(age, loss(x, age), name) is not None
        if number < 8:
            bracket.finish({age: loss(x, age) for age in (1, 3, 9)}, name)
        elif stops:
            assert bracket.wait(name, 1, loss(x, 1), lambda place: True) == []
    places = {name: place[0] for name, place in bracket.places.items()}
    best = sorted(places, key=places.__getitem__, reverse=True)[: 12 // FACTOR]
    assert bracket.passing(1) == best
    waiting = [trial_id for _, trial_id in bracket.waiting[1]]
    expected = [trial_id for trial_id in best if trial_id in waiting]
    assert bracket.promotion() == (expected[0] if expected else None)


def test_slow_starters_go_on_by_their_forecasts() -> None:
    forecast_slow_starters()


def test_comparing_slow_starters_as_they_stand_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ForecastBracket, "forecasts", lambda self, age: self.losses[age])
    with pytest.raises(AssertionError):
        forecast_slow_starters()


# After a death of the driver -----------------------------------------------------------------------------


def kill_after_every_event(step: int = 1, **changes: Any) -> None:
    """A search, cut after each line of its journal and resumed, ends as if nothing had happened."""
    search = search_of(PROMOTING | {"num_trials": 5, "seed": 2} | changes)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        whole = start(search, Path(name, "whole"))
        drive(whole)
        lines = Path(name, "whole", "journal.jsonl").read_text().splitlines(keepends=True)
        ends = [event["trial_id"] for event in map(json.loads, lines) if event["event"] == "trial_ended"]
        assert len(ends) >= len(set(ends)) + 1, "trials go on"
        for count in range(1, len(lines), step):
            folder = Path(name, str(count))
            folder.mkdir()
            (folder / "journal.jsonl").write_text("".join(lines[:count]))
            resumed = start(search, folder)
            drive(resumed)
            assert board(resumed) == board(whole)


def test_kill_and_resume_at_every_event() -> None:
    kill_after_every_event()


def fixed_kernel(dimensions: int) -> Any:
    """Without scales that are fitted, which takes long."""
    return RBF([0.5] * dimensions, "fixed") + WhiteKernel(0.01, "fixed")


def test_kill_and_resume_at_many_events_of_forecasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "new_kernel", fixed_kernel)
    kill_after_every_event(step=4, **FORECAST)


def forgets_who_waits(self: Conductor, events: list[Event]) -> None:
    replay(self, events)
    for bracket in self.study.brackets:
        bracket.waiting.clear()


replay = Conductor._replay


def test_a_driver_that_forgets_who_waits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conductor, "_replay", forgets_who_waits)
    with pytest.raises(AssertionError):
        kill_after_every_event()


# Files ---------------------------------------------------------------------------------------------------


def keep_checkpoints(folder: Path) -> None:
    """Each trial goes on from the checkpoint of its last validation; one that cannot go on has none."""
    conductor = start(search_of(PROMOTING), folder)
    went_on = 0
    while (work := conductor.next()) is not None and not work.test:
        checkpoint = conductor.trial_folder(conductor.ledger.trials[work.trial_id]) / CHECKPOINT
        known = conductor.ledger.trials[work.trial_id].validations
        assert (checkpoint.read_text() if known else "0") == str(known)
        went_on += known > 0
        for number in range(known + 1, EPOCHS + 1):
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.write_text(str(number))
            if conductor.report(result(work, number, curve(work.experiment.flat())[number - 1], EPOCHS)):
                break
        kept = {path.parent.name for path in folder.glob(f"trials/*/{CHECKPOINT}")}
        assert kept == set(conductor.study.waiting) and len(kept) <= 7, "no more than may still be the best third"
    assert went_on >= 3
    assert work is not None
    conductor.report(result(work, 1, None, 1))
    assert conductor.end() == "done"
    conductor.journal.close()
    assert not list(folder.glob(f"trials/*/{CHECKPOINT}"))


def test_who_waits_keeps_the_checkpoint_and_nobody_else(tmp_path: Path) -> None:
    keep_checkpoints(tmp_path)


@pytest.mark.parametrize("may", [True, False])
def test_checkpoints_that_are_kept_for_ever_or_not_at_all_are_noticed(
    may: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Promotion, "may_pass", lambda self, place, trials: may)
    with pytest.raises(AssertionError):
        keep_checkpoints(tmp_path)


# What a sampler learns -----------------------------------------------------------------------------------


def test_a_sampler_and_the_stored_study_have_each_trial_once(tmp_path: Path) -> None:
    conductor = start(search_of(MANY), tmp_path, slots=3)
    play(conductor)
    records = conductor.ledger.trials
    assert sum(bool(trial.restarted) for trial in records.values()) >= 3
    conductor.study._renew(0, thin=False)
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal"))
    stored = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend))
    for study in (conductor.study.studies[0], stored):
        assert sorted(trial.user_attrs["trial_id"] for trial in study.trials) == sorted(records)
        for trial in study.trials:
            record = records[trial.user_attrs["trial_id"]]
            assert trial.state == {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED}[record.state]
            assert trial.value == record.best and len(trial.intermediate_values) == record.validations


def test_only_where_the_scheduler_promotes_a_stopped_trial_may_start_again(tmp_path: Path) -> None:
    drive(start(search_of(PROMOTING | {"num_trials": 5, "seed": 2}), tmp_path))
    first, *others = Journal.read(tmp_path / "journal.jsonl")
    assert JournalModel.of([first, *others]).broken == []
    stopping = first | {"config": first["config"] | {"scheduler": {"name": "asha"}}}
    (broken,) = JournalModel.of([stopping, *others]).broken
    assert broken.endswith("it is pruned")


def test_a_trial_that_ends_twice_counts_once_without_improvement(tmp_path: Path) -> None:
    conductor = start(search_of(PROMOTING), tmp_path)
    drive(conductor)
    counts = [trial.trial_id for trial in conductor.ledger.trials.values() if trial.restarted]
    assert counts and 0 <= conductor.ledger.trials_without_improvement < len(conductor.ledger.trials)


# Budgets and refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3])
def test_epochs_are_never_exceeded(tmp_path: Path, slots: int) -> None:
    search = search_of({k: v for k, v in PROMOTING.items() if k != "num_trials"} | {"budget": {"epochs": 40}})
    conductor = start(search, tmp_path, slots=slots)
    play(conductor)
    assert any(trial.restarted for trial in conductor.ledger.trials.values())
    assert 30 < conductor.ledger.epochs <= 40
    assert Ledger.of(conductor.journal.read(tmp_path / "journal.jsonl")).state == "done"


def test_trials_on_several_workers_are_refused() -> None:
    with pytest.raises(
        InputError, match="trials that train on several workers cannot wait; give workers: 1, or take asha"
    ):
        search_of(PROMOTING | {"workers": 2})
