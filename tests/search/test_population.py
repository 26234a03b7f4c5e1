"""Population-based training: who is replaced, by a copy of whom, with which settings, files, and after a death."""

import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_model import JournalModel
from support.driven_studies import result, search_of, start
from support.recorded import begin

from orchestrator.benchmarking.replaying import MEMORY
from orchestrator.config.resolve import with_more_budget
from orchestrator.config.schedule import parse_schedule
from orchestrator.config.schedulers.population import Population, PopulationBracket
from orchestrator.config.space import Parameter
from orchestrator.config.training import Experiment, resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.errors import InputError
from orchestrator.execution.inline import InlineRunner
from orchestrator.execution.protocol import Failed, Work
from orchestrator.report.findings import Findings
from orchestrator.report.html.search_page import page
from orchestrator.report.next_steps import next_steps
from orchestrator.search import population
from orchestrator.search.conductor import Conductor
from orchestrator.search.kept_files import KeptFiles
from orchestrator.search.population import copy_of
from orchestrator.search.start_from import best_settings
from orchestrator.storage import trial_files
from orchestrator.storage.events import Copied
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_folder import CHECKPOINT
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.training.loop import fit
from orchestrator.training.splits import data_splits

EPOCHS = 6
SEARCH: dict[str, Any] = {
    "method": "pfml",
    "dataset": "glyphs-small",
    "settings": {"epochs": EPOCHS},
    "space": {
        "lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "delta": {"low": 0.1, "high": 0.35},
        "alpha": [2, 3, 4],
        "proxies_per_class": [1, 5],
    },
    "num_trials": 8,
    "algorithm": "random",
    "scheduler": {"name": "population", "every": 2, "factor": 4.0},
}


def course(experiment: Experiment, until: int) -> float:
    """A made value after so many validations, to which each step adds by its settings: the best lr falls, and lies near
    0.01 at first."""
    stages = experiment.stages()
    total = 0.0
    for step in range(until):
        stage = stages[max(start for start in stages if start <= step)]
        best = 1e-2 / 2**step
        total += 0.1 - 0.02 * np.log(stage.training.lr / best) ** 2 - abs(stage.flat()["delta"] - 0.2) / 10
    return float(total)


def report(conductor: Conductor, work: Work, number: int) -> bool:
    """A validation of a trial, of whose course the last value counts."""
    value = None if work.test else course(work.experiment, number)
    return conductor.report(result(work, number, value, work.stop_after or EPOCHS))


def drive(
    conductor: Conductor, *, slots: int = 1, fails: Callable[[Work, int], bool] = lambda work, age: False
) -> None:
    """Run everything, `slots` trials at a time; a training reports what it has from its checkpoint first, as `fit`."""
    running: list[tuple[Work, int]] = []
    while not conductor.is_finished:
        while len(running) < slots and (work := conductor.next()) is not None:
            running.append((work, 0))
        if not running:
            break
        work, age = running.pop(0)
        if fails(work, age + 1):
            conductor.report(Failed(work.trial_id, "the loss is nan", failure="training"))
        elif not report(conductor, work, age + 1):
            running.append((work, age + 1))
    conductor.end()
    conductor.journal.close()


def board(conductor: Conductor) -> list[tuple[Any, ...]]:
    trials = [*conductor.ledger.trials.values(), *conductor.ledger.finals.values()]
    return [(t.trial_id, t.state, t.reason, t.best, t.curve, t.params, t.copied) for t in trials]


EVERY_SECOND = Population(every=2, share=0.25)


# Who is replaced -----------------------------------------------------------------------------------------


def replace_the_worst(bracket: PopulationBracket, losses: Mapping[str, list[float]], failing: set[str]) -> int:
    """Generations of a population, each compared slowly: the worst quarter is replaced by copies of the best."""
    names = [name for name in losses if len(name) == 1]
    for name in names:
        bracket.enter(name, [])
    alive, age, copied = list(names), 0, 0
    while age < 4:
        age += 2
        gone: list[str] = []
        for name in alive:
            assert not gone and bracket.copy_due() is None and bracket.promotion() is None
            assert bracket.validate(age - 1, 99.0, name) is None
            if name in failing and age == 2:
                gone = bracket.leave(name)
            else:
                assert bracket.validate(age, losses[name][age // 2 - 1], name) is not None
                gone = bracket.wait(name, age, -99.0, lambda place: False)
        waiting = sorted(
            set(alive) - (failing if age == 2 else set()), key=lambda one: (losses[one][age // 2 - 1], one)
        )
        failed = [name for name in alive if name not in waiting]
        number = max(len(alive) // 4, 1) if len(alive) > 1 else 0
        worst = waiting[len(waiting) - max(0, number - len(failed)) :][::-1]
        assert gone == worst
        replaced, sources = [*failed, *worst] if waiting else [], waiting[: max(number, 1)]
        for place, name in enumerate(replaced):
            due = bracket.copy_due()
            assert due == Copied(trial_id=sources[place % len(sources)], validation=age, replaces=name)
            assert bracket.promotion() is None, "who is copied waits for it"
            bracket.enter_copy(f"{name}{age}")
            copied += 1
        assert bracket.copy_due() is None
        going_on = [name for name in alive if name in waiting and name not in worst]
        for name in going_on:
            assert bracket.promotion() == name
            bracket.resume(name)
        alive = [*going_on, *(f"{name}{age}" for name in replaced)]
    return copied


POPULATIONS = st.integers(1, 9).flatmap(
    lambda size: st.tuples(
        st.lists(st.lists(st.integers(0, 5).map(float), min_size=2, max_size=2), min_size=3 * size, max_size=3 * size),
        st.sets(st.integers(0, size - 1)),
        st.just(size),
    )
)


def losses_of(drawn: list[list[float]], size: int) -> dict[str, list[float]]:
    names = "abcdefghi"[:size]
    every = [*names, *(f"{name}2" for name in names), *(f"{name}4" for name in names)]
    return dict(zip(every, drawn, strict=True))


@given(POPULATIONS)
@settings(max_examples=200, deadline=None)
def test_the_worst_are_replaced_by_copies_of_the_best(drawn: tuple[list[list[float]], set[int], int]) -> None:
    losses, failing, size = drawn
    bracket = PopulationBracket(EVERY_SECOND, size)
    replace_the_worst(bracket, losses_of(losses, size), {"abcdefghi"[place] for place in failing})


class BestAreReplaced(PopulationBracket):
    def _compare(self) -> list[str]:
        for member in self.members.values():
            member.loss = -member.loss
        return super()._compare()


class NobodyWaits(PopulationBracket):
    def promotion(self) -> str | None:
        return next((name for name, one in self.members.items() if one.waits), None)


class FailedAreForgotten(PopulationBracket):
    def leave(self, trial_id: str) -> list[str]:
        self.members.pop(trial_id, None)
        return self._compare()


@pytest.mark.parametrize("planted", [BestAreReplaced, NobodyWaits, FailedAreForgotten])
def test_another_choice_is_noticed(planted: type[PopulationBracket]) -> None:
    losses = {name: [float(place), float(-place)] for place, name in enumerate(losses_of([[0.0]] * 24, 8))}
    assert replace_the_worst(PopulationBracket(EVERY_SECOND, 8), losses, {"c"}) == 4
    with pytest.raises(AssertionError):
        replace_the_worst(planted(EVERY_SECOND, 8), losses, {"c"})


# What a copy changes -------------------------------------------------------------------------------------


def changed(search_changes: dict[str, Any], params: dict[str, Any], number: int) -> dict[str, Any]:
    search = search_of(SEARCH | search_changes)
    trials = {f"{place:04d}": TrialRecord(f"{place:04d}", place, "trial", params, 0) for place in range(number + 4)}
    trial = copy_of(search, trials, Copied(trial_id="0003", validation=2, replaces="0001"))
    assert {key: value for key, value in trial.params.items() if key != "schedule"} == {
        key: value for key, value in params.items() if key != "schedule"
    }
    search.experiment(trial.params)  # it is valid
    *_, last = parse_schedule(trial.params["schedule"])
    assert last.start == 2
    return dict(last.values)


POINT = {"lr": 0.01, "delta": 0.2, "alpha": 3, "proxies_per_class": 5}


def test_settings_are_multiplied_or_divided() -> None:
    scheduler = {"name": "population", "resample": 0.0, "factor": 1.5}
    seen = [changed({"scheduler": scheduler}, POINT, number) for number in range(40)]
    assert {one["lr"] for one in seen} == {0.015, 0.006667}
    assert {one["delta"] for one in seen} == {0.3, 0.1333}
    assert {one["alpha"] for one in seen} == {2, 4}, "the choices beside it"
    assert all(set(one) == {"lr", "delta", "alpha"} for one in seen), "the number of proxies shapes the training"


def test_settings_stay_in_their_ranges() -> None:
    scheduler = {"name": "population", "resample": 0.0, "factor": 50.0}
    seen = [changed({"scheduler": scheduler}, POINT, number) for number in range(40)]
    assert {one["lr"] for one in seen} == {0.1, 0.0002} and {one["delta"] for one in seen} == {0.35, 0.1}
    at_the_end = POINT | {"alpha": 4, "lr": 0.1}
    assert {changed({"scheduler": scheduler}, at_the_end, n)["alpha"] for n in range(9)} == {3}
    assert {changed({"scheduler": scheduler}, at_the_end, n)["lr"] for n in range(9)} == {0.002}, (
        "a copy is another one"
    )


def test_a_copy_of_a_copy_changes_what_it_had_then() -> None:
    scheduler = {"name": "population", "resample": 0.0, "factor": 2.0}
    point = POINT | {"schedule": "from 1 lr=0.04 delta=0.2 alpha=2"}
    assert {changed({"scheduler": scheduler}, point, n)["lr"] for n in range(20)} == {0.08, 0.02}


def test_random_values_come_from_the_whole_range() -> None:
    scheduler = {"name": "population", "resample": 1.0}
    seen = [changed({"scheduler": scheduler}, POINT, number) for number in range(200)]
    logs = np.log10([one["lr"] for one in seen])
    assert logs.min() >= -4 and logs.max() <= -1 and abs(np.median(logs) + 2.5) < 0.3, "even on the scale of the range"
    assert {one["alpha"] for one in seen} == {2, 4}


def test_steps_and_zero() -> None:
    whole = Parameter("n", "n", "int", 0, 10)
    stepped = Parameter("x", "x", "float", 0.0, 1.0, step=0.25)
    scheduler = Population(resample=0.0)
    draws = [np.random.default_rng(number) for number in range(40)]
    assert {population._vary(whole, 2.0, scheduler, draw) for draw in draws} == {1, 3}, "at least a step"
    assert {population._vary(stepped, 0.5, scheduler, draw) for draw in draws} == {0.25, 0.75}
    assert len({population._vary(whole, 0.0, scheduler, draw) for draw in draws}) > 4, "0 times anything is 0"


# A search ------------------------------------------------------------------------------------------------


def test_a_population_comes_further_than_its_members_alone(tmp_path: Path) -> None:
    conductor = start(search_of(SEARCH), tmp_path / "population")
    drive(conductor)
    alone = start(search_of(SEARCH | {"scheduler": "none"}), tmp_path / "alone")
    drive(alone)
    ledger = conductor.ledger
    assert ledger.epochs == alone.ledger.epochs == 8 * EPOCHS, "copies take the epochs that others leave"
    assert ledger.copies == 4 and len(ledger.trials) == 12
    assert Population(every=2).count_copies(8, EPOCHS) == 4, "as a dry run says"
    assert sum(trial.state == "done" for trial in ledger.trials.values()) == 8
    winner, other = ledger.winner(), alone.ledger.winner()
    assert winner is not None and other is not None and winner.best is not None and other.best is not None
    assert winner.copied is not None and winner.best > other.best
    assert len(winner.curve) == EPOCHS and winner.validations == EPOCHS
    (final,) = ledger.finals.values()
    assert final.params == winner.params and final.settings["schedule"] == winner.params["schedule"]
    assert JournalModel.of(Journal.read(tmp_path / "population" / "journal.jsonl"), slots=1).broken == []


def test_its_report_takes_evidence_on_settings_from_points_only(tmp_path: Path) -> None:
    conductor = start(search_of(SEARCH), tmp_path)
    drive(conductor)
    findings = Findings.of(conductor.ledger)
    assert findings.winner is not None and findings.winner.copied is not None
    assert {setting.key for setting in findings.searched} == set(SEARCH["space"])
    assert not {name for name in findings.comparable.values if conductor.ledger.trials[name].copied}
    assert findings.winner.params["schedule"] in re.sub("<[^>]*>", "", page(findings))
    assert findings.command is not None and findings.winner.params["schedule"] in findings.command
    commands = [step.command for step in next_steps(findings) if step.command]
    assert commands and not [one for one in commands if "resume" in one and "--num-trials" in one]
    assert all(step.seconds is None or step.seconds < 100 for step in next_steps(findings))
    assert f"{8 * EPOCHS} epochs of training together" in page(findings)
    assert "timeline" not in page(findings) and "What it took to go on" not in page(findings)
    assert all(not settings.get("schedule") for settings in best_settings(conductor.ledger, 3))


def test_a_copy_is_ranked_once_it_has_something_better_of_its_own(tmp_path: Path) -> None:
    """Else it would stand beside the trial that it is a copy of with the same number, and win a final run."""
    conductor = start(search_of(SEARCH | {"final": False}), tmp_path)
    drive(conductor)
    copies = [trial for trial in conductor.ledger.trials.values() if trial.copied]
    for trial in copies:
        own = trial.curve[trial.copied.validation if trial.copied else 0 :]
        better = bool(own) and max(own) > max(trial.curve[: len(trial.curve) - len(own)])
        assert trial.is_ranked == better == (trial in conductor.ledger.candidates())
    assert 0 < sum(trial.is_ranked for trial in copies) < len(copies)
    counted = sum(trial.own_epochs for trial in conductor.ledger.trials.values())
    assert counted == conductor.ledger.epochs == 8 * EPOCHS
    assert all(f"after validation {t.copied.validation} with lr=" in (t.note or "") for t in copies if t.copied)


def test_the_rest_of_an_interrupted_population_is_foreseen(tmp_path: Path) -> None:
    conductor = start(search_of(SEARCH | {"final": False}), tmp_path)
    for _ in range(3):
        work = conductor.next()
        assert work is not None
        assert not report(conductor, work, 1) and report(conductor, work, 2)
    conductor.interrupt()
    conductor.end()
    (step,) = next_steps(Findings.of(conductor.ledger))
    spent = sum(trial.seconds for trial in conductor.ledger.trials.values())
    assert step.seconds == pytest.approx(spent * (8 * EPOCHS - 6) / 6), "six epochs of all were trained"


def test_it_does_not_depend_on_the_number_of_slots(tmp_path: Path) -> None:
    boards = []
    for slots in (1, 3, 8):
        conductor = start(search_of(SEARCH), tmp_path / str(slots), slots=slots)
        drive(conductor, slots=slots)
        boards.append(board(conductor))
    assert boards[0] == boards[1] == boards[2]


def test_a_trial_that_fails_is_replaced(tmp_path: Path) -> None:
    conductor = start(search_of(SEARCH), tmp_path)
    drive(conductor, fails=lambda work, age: work.trial_id in ("0002", "0005") and age == 2)
    trials = conductor.ledger.trials
    assert [trials[name].state for name in ("0002", "0005")] == ["failed", "failed"]
    assert {"0002", "0005"} <= {trial.copied.replaces for trial in trials.values() if trial.copied}
    assert sum(trial.state == "done" for trial in trials.values()) == 8
    assert trials["0002"].reason == "the loss is nan"


def kill_after_every_event(slots: int) -> None:
    """A search, cut after each line of its journal and resumed, ends as if nothing had happened."""
    search = search_of(SEARCH | {"num_trials": 4, "final": False})
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        whole = start(search, Path(name, "whole"), slots=slots)
        drive(whole, slots=slots)
        assert whole.ledger.copies == 2
        lines = Path(name, "whole", "journal.jsonl").read_text().splitlines(keepends=True)
        for count in range(1, len(lines)):
            folder = Path(name, str(count))
            folder.mkdir()
            (folder / "journal.jsonl").write_text("".join(lines[:count]))
            resumed = start(search, folder, slots=slots)
            drive(resumed, slots=slots)
            assert board(resumed) == board(whole), json.loads(lines[count - 1])


@pytest.mark.parametrize("slots", [1, 3])
def test_kill_and_resume_at_every_event(slots: int) -> None:
    kill_after_every_event(slots)


def test_a_copy_that_a_resumed_driver_takes_for_a_new_point_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = Conductor._replay
    monkeypatch.setattr(
        Conductor,
        "_replay",
        lambda self, events: replayed(self, [e.model_copy(update={"copied": None}) for e in events]),
    )
    with pytest.raises((AssertionError, KeyError, ValueError, InputError)):
        kill_after_every_event(1)


# Files ---------------------------------------------------------------------------------------------------


def train_on_files(folder: Path) -> None:
    """Every training goes on from a checkpoint of its own settings, and of as many validations as it has."""
    conductor = start(search_of(SEARCH), folder)
    copies = 0
    while not conductor.is_finished:
        work = conductor.next()
        assert work is not None
        if work.test:
            break
        trial = conductor.ledger.trials[work.trial_id]
        place = Path(work.folder)
        checkpoint = place / CHECKPOINT
        age = int(checkpoint.read_text().split()[0]) if checkpoint.exists() else 0
        assert age == trial.validations
        copies += trial.copied is not None and age == trial.copied.validation
        for number in range(age + 1, EPOCHS + 1):
            place.mkdir(parents=True, exist_ok=True)
            (temporary := place / ".new").write_text(f"{number} {work.trial_id}")
            temporary.replace(checkpoint)
            if report(conductor, work, number):
                break
    assert copies == 4


def test_copies_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    train_on_files(tmp_path)


def test_copies_that_begin_anew_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeptFiles, "copy", lambda *_: None)
    with pytest.raises(AssertionError):
        train_on_files(tmp_path)


@pytest.fixture(scope="module")
def trained(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A population that this process trains."""
    folder = tmp_path_factory.mktemp("trained")
    return train_here(TRAINED, folder, data_folder)


TRAINED: dict[str, Any] = {
    "method": "proxy_anchor",
    "dataset": "glyphs-small",
    "settings": {"epochs": 4, "device": "cpu", "embedding_dim": 8, "validate_every": "1 epoch"},
    "space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "alpha": {"low": 8, "high": 64}},
    "num_trials": 3,
    "algorithm": "random",
    "scheduler": {"name": "population"},
    "final": False,
    "seed": 4,  # copies of copies too
}


def train_here(raw: dict[str, Any], folder: Path, data: Path) -> Ledger:
    search = search_of(raw)
    with Journal(folder / "journal.jsonl") as journal:
        conductor = Conductor(search, folder, data=data, journal=journal, events=[begin(journal, search)], slots=1)
        InlineRunner().run(conductor)
    return conductor.ledger


def as_trained_from_the_beginning(ledger: Ledger, data: Path) -> None:
    """Each trial that ended as planned, copies too, has the values of one training with its settings."""
    copies = [trial for trial in ledger.trials.values() if trial.copied and trial.state == "done"]
    assert copies and any(trial.params["schedule"].count("from") == 2 for trial in copies), "a copy of a copy too"
    store = open_dataset("glyphs-small", data)
    for trial in [*copies, *(t for t in ledger.trials.values() if t.state == "done" and not t.copied)]:
        experiment = resolve_experiment(trial.settings, "trial")
        (split,) = data_splits(experiment.training, store)
        values = [one.metrics["val/map_at_r"] for one in fit(experiment, store, split)]
        assert values == trial.curve, trial.trial_id


def test_a_copy_is_the_training_that_its_schedule_says(trained: Ledger, data_folder: Path) -> None:
    as_trained_from_the_beginning(trained, data_folder)


def test_a_copy_of_another_checkpoint_is_noticed(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_files_of_another(folder: Path, new: Path) -> None:
        others = [path.parent for path in sorted(folder.parent.glob(f"*/{CHECKPOINT}")) if path.parent != folder]
        copied(others[0], new)

    copied = trial_files.copy_files
    monkeypatch.setattr(trial_files, "copy_files", copy_files_of_another)
    with pytest.raises(AssertionError, match="00"):
        as_trained_from_the_beginning(train_here(TRAINED, tmp_path, data_folder), data_folder)


# Refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"space": {"proxies_per_class": {"low": 1, "high": 9}}},
            "needs a range of alpha, .* may change while a training runs",
        ),
        ({"num_trials": 1}, "num_trials is the size of the population: give at least 2"),
        ({"num_trials": None, "budget": {"epochs": 60}}, "num_trials is the size of the population"),
        ({"budget": {"epochs": 40}}, "8 trials train to their end: give at least 48, or fewer trials"),
        (
            {"settings": {"epochs": 1}, "scheduler": "population"},
            "every: 1: a trial has 1 validation, so nothing would be",
        ),
        ({"space": {"lr": [1e-3, 1e-2]}}, "is the size of the population, and the space has 2 points: give fewer"),
        ({"budget": {"hours": 1}}, "would end a population between two comparisons: leave it out, or give epochs"),
        ({"settings": {"epochs": 6, "stop_patience": 2}}, "would leave the population smaller: leave it out"),
        ({"seeds": 2}, "copies are compared with one seed: leave it out"),
        ({"settings": {"epochs": 6, "schedule": "from 1 lr=0.1"}}, "is what scheduler: population finds: leave it out"),
        ({"workers": 2}, "trials that train on several workers cannot wait"),
        ({"objectives": ["val/map_at_r", "cost/seconds"], "algorithm": "random"}, "compares trials by one objective"),
        ({"scheduler": {"name": "population", "share": 0.7}}, "share"),
    ],
)
def test_what_makes_no_population_is_refused(changes: dict[str, Any], message: str) -> None:
    raw = {key: value for key, value in (SEARCH | changes).items() if value is not None}
    with pytest.raises(InputError, match=message):
        search_of(raw)


def test_a_population_keeps_its_size() -> None:
    with pytest.raises(InputError, match="a population keeps its size, here 8: begin another search"):
        with_more_budget(search_of(SEARCH), 9, {})
