"""The search's decisions without Ray: suggestions, early stops, journal, and going on after a death."""

import io
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from scipy import stats
from support.driven_studies import EPOCHS, TPE, curve, drive, play, result, search_of, start
from support.memory_tracking import MemoryTracker
from support.recorded import events_of, record

from orchestrator.cli.live import Display
from orchestrator.config.algorithms.base import Draw
from orchestrator.config.algorithms.nsga2 import Nsga2
from orchestrator.config.resolve import single_training, with_other_workers
from orchestrator.config.search import Search
from orchestrator.errors import InputError
from orchestrator.execution.protocol import Failed, Validated
from orchestrator.search.conductor import Conductor
from orchestrator.search.driver import run
from orchestrator.search.study import Study
from orchestrator.storage.events import TrialStarted
from orchestrator.storage.journal import Journal
from orchestrator.storage.leaderboard import Interval, leaderboard_rows, repeated_tests
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import Places
from orchestrator.storage.trial_folder import BEST, CHECKPOINT


def board(conductor: Conductor) -> list[tuple[Any, ...]]:
    return [(t.trial_id, t.state, t.best, t.validations, t.params) for t in conductor.ledger.ranking()]


def test_same_seed_same_search(tmp_path: Path) -> None:
    boards = []
    for name in ("a", "b"):
        conductor = start(search_of(TPE), tmp_path / name)
        drive(conductor)
        boards.append(board(conductor))
    other = start(search_of(TPE, seed=1), tmp_path / "c")
    drive(other)
    assert boards[0] == boards[1]
    assert boards[0] != board(other)
    assert len({str(row[4]) for row in boards[0]}) == 9


def test_a_trial_that_begins_again_is_told_and_counts_once(tmp_path: Path) -> None:
    conductor = start(search_of(TPE | {"scheduler": "none"}), tmp_path)
    told: list[str] = []
    conductor.listener = lambda event, trial: told.append(event)
    work = conductor.next()
    assert work is not None
    for number in (1, 2, 1, 2, 3):
        if told == ["started", "validated", "validated"]:
            conductor.report_restart(work.trial_id, "killed")
        conductor.report(result(work, number, 0.1 * number, EPOCHS))
    assert conductor.lost_workers == {work.trial_id: ("killed",)}
    assert told == ["started", "validated", "validated", "restarted", "validated"]
    for number in (4, 5):  # of a group of processes, which was lost between two validations
        conductor.report(replace(result(work, number, 0.1, EPOCHS), lost_workers=("ValueError: x",)))
    assert told[5:] == ["restarted", "validated", "validated"]
    assert conductor.lost_workers == {work.trial_id: ("ValueError: x",)}
    assert conductor.ledger.find(work.trial_id).curve == pytest.approx([0.1, 0.2, 0.3, 0.1, 0.1])
    conductor.interrupt()
    conductor.journal.close()

    conductor = start(search_of(TPE | {"scheduler": "none"}), tmp_path)
    conductor.listener = lambda event, trial: told.append(event)
    told.clear()
    work = conductor.next()
    assert work is not None
    for number in (1, 2, 3, 4, 5, 6):  # a resume says that it goes on; its repetitions are no restart
        conductor.report(result(work, number, 0.1 * number, EPOCHS))
    assert told == ["started", "validated", "ended"]
    conductor.journal.close()


def test_early_stops_and_the_best_epoch_counts(tmp_path: Path) -> None:
    conductor = start(search_of(TPE), tmp_path)
    drive(conductor)
    counts = conductor.ledger.counts()
    assert counts["pruned"] >= 1
    assert counts["done"] >= 1
    winner = conductor.ledger.winner()
    assert winner is not None
    assert winner.best == max(curve(winner.params))
    assert winner.best_validation == EPOCHS - 1
    (final,) = conductor.ledger.tests_of(winner)
    assert final.validations == EPOCHS - 1
    assert final.test == {"map_at_r": 0.5, "recall_at_1": 0.7}


SEVERAL = {"final_trials": 2, "final_seeds": 3}


def test_the_best_few_are_trained_again_with_several_seeds(tmp_path: Path) -> None:
    conductor = start(search_of(TPE, **SEVERAL), tmp_path)
    drive(conductor)
    ledger = conductor.ledger
    best = ledger.candidates()[:2]
    expected = [(t.trial_id, t.params | {"seed": seed}, t.best_validation) for t in best for seed in range(3)]
    assert [(run.source, run.params, run.validations) for run in ledger.finals.values()] == expected
    assert next(iter(ledger.finals)) == f"final-{best[0].trial_id}-seed-0"
    assert [group.params for group in repeated_tests(ledger)] == [trial.params for trial in best]
    assert ledger.state == "done"


@pytest.mark.parametrize("died_in_final", range(6))
def test_final_runs_survive_the_driver(tmp_path: Path, died_in_final: int) -> None:
    whole = start(search_of(TPE, **SEVERAL), tmp_path / "whole")
    reports = drive(whole)
    tail = sum(run.validations for run in list(whole.ledger.finals.values())[died_in_final:])
    broken = start(search_of(TPE, **SEVERAL), tmp_path / "broken")
    drive(broken, die_after=reports - tail + 1)
    resumed = start(search_of(TPE, **SEVERAL), tmp_path / "broken")
    drive(resumed)
    assert list(resumed.ledger.finals) == list(whole.ledger.finals)
    assert [run.state for run in resumed.ledger.finals.values()] == ["done"] * 6
    assert board(resumed) == board(whole)


def test_a_training_without_held_out_classes_is_done(tmp_path: Path) -> None:
    whole = {"method": "pfml", "dataset": "glyphs-small", "epochs": 3, "validation_share": 0.0}
    for die_after in (2, math.inf):  # and is taken up again
        conductor = start(single_training("s", whole), tmp_path)
        work = conductor.next()
        assert work is not None
        for number in (1, 2, 3):
            if number > die_after:
                break
            conductor.report(result(work, number, None, 3))
        if die_after == math.inf:
            assert conductor.end() == "done"
        conductor.journal.close()
    trial = conductor.ledger.find("0000")
    assert (trial.state, trial.best, trial.test["map_at_r"]) == ("done", None, 0.5)


def test_final_runs_share_the_slots(tmp_path: Path) -> None:
    workers = {"workers": 1, "final_workers": 2, "final_trials": 2}
    conductor = start(search_of(TPE, **workers), tmp_path, slots=4)
    assert conductor.final_slots == 2
    conductor.journal.close()


def test_the_interval_is_student_s() -> None:
    values = [0.51, 0.49, 0.55, 0.5, 0.47]
    found = Interval.of(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(0.504)
    assert found.standard_deviation == pytest.approx(math.sqrt(sum((v - 0.504) ** 2 for v in values) / 4))


def test_equal_counts_over_seeds_are_not_certain() -> None:
    """A recall is a count: the deviation that other seeds may have is at least one query."""
    interval = Interval.of([1.0, 1.0, 1.0], 0.002)
    assert (interval.mean, interval.standard_deviation) == (1.0, 0.0)
    assert 1.0 - interval.low == pytest.approx(stats.t.ppf(0.975, 2) * 0.002 / math.sqrt(3))
    assert Interval.of([0.9, 1.0], 0.002) == Interval.of([0.9, 1.0])


def test_the_stored_study_says_the_same(tmp_path: Path) -> None:
    conductor = start(search_of(TPE), tmp_path)
    drive(conductor)
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal"))
    study = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend))
    states = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
    assert len(study.trials) == 9
    for trial in study.trials:
        record = conductor.ledger.trials[trial.user_attrs["trial_id"]]
        assert trial.state == states[record.state]
        assert trial.params == record.params
        assert len(trial.intermediate_values) == record.validations
        assert max(trial.intermediate_values.values()) == record.best
        assert trial.value == record.best


WITHOUT_NUMBER = {key: value for key, value in TPE.items() if key != "num_trials"}
NONE: dict[str, Any] = TPE | {"scheduler": "none"}
PROMOTION = {"name": "promotion", "reduction_factor": 2}
FORECAST = {"name": "forecast", "reduction_factor": 2, "startup_trials": 4}
MEDIAN = {"name": "median", "startup_trials": 2}
HYPERBAND = {"name": "hyperband", "reduction_factor": 2}
TWO = NONE | {"objectives": ["val/map_at_r", "cost/seconds"], "num_trials": 20}
WHOLE = {"alpha": {"low": 0, "high": 4, "step": 1}, "proxies_per_class": {"low": 1, "high": 5}}
VARIANTS: dict[str, dict[str, Any]] = {
    "tpe, asha": TPE,
    "tpe, promotion": TPE | {"scheduler": PROMOTION, "num_trials": 14},
    "tpe, forecast": TPE | {"scheduler": FORECAST, "num_trials": 14},
    "gp, promotion": TPE | {"algorithm": "gp", "scheduler": PROMOTION, "num_trials": 12},
    "promotion, epochs": TPE | {"algorithm": "random", "scheduler": PROMOTION, "budget": {"epochs": 40}},
    "tpe, median": TPE | {"scheduler": MEDIAN, "num_trials": 14},
    "tpe, hyperband": TPE | {"scheduler": HYPERBAND, "num_trials": 20},
    "gp": NONE | {"algorithm": "gp"},
    "gp, hyperband": TPE | {"algorithm": "gp", "scheduler": HYPERBAND, "num_trials": 14},
    "cmaes": NONE | {"algorithm": "cmaes", "num_trials": 20},
    "cmaes, asha": TPE | {"algorithm": "cmaes", "num_trials": 20},
    "cmaes, hyperband": TPE | {"algorithm": "cmaes", "scheduler": HYPERBAND, "num_trials": 30},
    "cmaes of whole numbers": NONE | {"algorithm": "cmaes", "space": WHOLE, "num_trials": 24},
    "qmc, asha": TPE | {"algorithm": "qmc"},
    "qmc of whole numbers": NONE | {"algorithm": "qmc", "space": WHOLE, "num_trials": 25},
    "random, median": TPE | {"algorithm": "random", "scheduler": MEDIAN, "num_trials": 14},
    "nsga2": TWO | {"algorithm": "nsga2"},
    "nsga2 of whole numbers": TWO | {"algorithm": "nsga2", "space": WHOLE, "num_trials": 24},
    "tpe, two objectives": TWO,
    "tpe, two objectives, asha": TWO | {"scheduler": TPE["scheduler"]},
    "nsga2, two objectives, asha": TWO | {"algorithm": "nsga2", "scheduler": TPE["scheduler"]},
    "gp, two objectives, asha": TWO | {"algorithm": "gp", "num_trials": 6, "scheduler": TPE["scheduler"]},
    "gp, two objectives": TWO | {"algorithm": "gp", "num_trials": 6},
    "qmc, two objectives": TWO | {"algorithm": "qmc", "num_trials": 8},
    "given points": TPE | {"start_from": [{"delta": 0.2, "alpha": 4}, {"delta": 0.3, "alpha": 1}]},
    "given points, cmaes": NONE | {"algorithm": "cmaes", "num_trials": 16, "start_from": [{"delta": 0.2, "alpha": 4}]},
    "epochs": WITHOUT_NUMBER | {"budget": {"epochs": 40}},
    "leading points over seeds": NONE | {"num_trials": 22, "seeds": 4},
    "leading points over seeds, asha": TPE | {"num_trials": 40, "seeds": 3},
    "leading points over seeds, epochs": WITHOUT_NUMBER | {"seeds": 3, "budget": {"epochs": 84}},
    "no improvement": TPE | {"num_trials": 30, "budget": {"trials_without_improvement": 4}},
}


@pytest.mark.parametrize("trials, population", [(5, 4), (20, 4), (100, 20), (1000, 50)])
def test_a_generation_is_a_fifth_of_the_trials_from_4_to_50(trials: int, population: int) -> None:
    draw = Draw(seed=0, search_seed=0, trials=trials, conditional=False, comparable=True)
    assert Nsga2().sampler(optuna.samplers, draw)._population_size == population


@pytest.mark.parametrize("name", VARIANTS)
def test_death_and_resume_give_the_same_leaderboard(tmp_path: Path, name: str) -> None:
    """Killed at a few moments of its life, or at many; and once more while it goes on."""
    search = search_of(VARIANTS[name])
    whole = start(search, tmp_path / "whole")
    reports = drive(whole)
    few = [reports // 3, reports - 2]
    for die_after in [0, 1, 5, 6, 7, 11, 17, 23] if name == "tpe, asha" else few:
        folder = tmp_path / str(die_after)
        done = drive(start(search, folder), die_after)
        drive(start(search, folder), (reports - done) // 2)
        resumed = start(search, folder)
        drive(resumed)
        assert board(resumed) == board(whole)
        assert resumed.ledger.reason == whole.ledger.reason
        events = Journal.read(folder / "journal.jsonl")
        points = [(e["trial_id"], e["validation"]) for e in events if e["event"] == "validation"]
        assert len(points) == len(set(points))
        ends = [e["trial_id"] for e in events if e["event"] == "trial_ended"]
        assert len(ends) == len(set(ends)) or search.scheduler.promotes


@pytest.mark.parametrize("name", VARIANTS)
def test_a_folded_journal_suggests_what_was_suggested(tmp_path: Path, name: str) -> None:
    """Three trials at a time: at every suggestion the samplers know what they knew, whatever they remember."""
    search = search_of(VARIANTS[name])
    play(start(search, tmp_path / "live", slots=3))
    events = events_of(tmp_path / "live" / "journal.jsonl")
    starts = [(at, e) for at, e in enumerate(events) if isinstance(e, TrialStarted) and e.kind == "trial"]
    starts = list({e.trial_id: (at, e) for at, e in reversed(starts)}.values())[::-1]  # those that go on, once
    starts = [(at, e) for at, e in starts if "seed" not in e.params]
    assert len(starts) >= 6
    for at, event in starts[:: 1 + len(starts) // 12]:
        number = int(event.trial_id)
        with Journal(tmp_path / "folded" / event.trial_id / "journal.jsonl") as journal:
            folded = Conductor(search, tmp_path, data=tmp_path, journal=journal, events=events[:at], slots=3)
        assert folded.study.ask(event.trial_id, number) == event.params
        assert folded.study.attempts[event.trial_id] == event.attempts


def test_a_decision_that_was_not_recorded_is_taken_again(tmp_path: Path) -> None:
    conductor = start(search_of(TPE), tmp_path)
    drive(conductor)
    path = tmp_path / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"pruned"' in line)
    at -= '"result"' in lines[at - 1]  # its best value is recorded just before
    path.write_text("".join(lines[:at]))
    pruned = Journal.read(path)[-1]["trial_id"]
    again = start(search_of(TPE), tmp_path)
    assert again.ledger.trials[pruned].state == "pruned"
    drive(again)
    assert board(again) == board(conductor)


def test_a_search_that_ends_a_trial_while_its_journal_is_read_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between a decision to stop a trial and its end: the display has not begun when the end is recorded."""
    folder = tmp_path / "searches" / "s"
    conductor = start(search_of(TPE), folder)
    drive(conductor)
    path = folder / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"pruned"' in line)
    path.write_text("".join(lines[: at - ('"result"' in lines[at - 1])]))

    class Runner:
        own_processes = True
        stage = "starting"

        def resources(self, search: Any) -> dict[str, float]:
            return {}

        def run(self, conductor: Conductor) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(conductor.journal, "close", lambda: None)
                drive(conductor)

    monkeypatch.setattr("orchestrator.search.driver.MLflowTracker", lambda path, uri, artifacts: MemoryTracker(path))
    monkeypatch.setattr("orchestrator.search.driver.write_report", lambda *_: None)
    monkeypatch.setattr("orchestrator.search.finish.IMPORTED", ())
    places, shown = Places(tmp_path), Display(io.StringIO())
    with Journal(path) as journal:
        runner: Any = Runner()
        outcome = run(search_of(TPE), runner, 1, places, journal, events_of(path), "memory", shown)
    again = [(t.trial_id, t.state, t.best, t.validations, t.params) for t in outcome.ledger.ranking()]
    assert outcome.state == "done" and again == board(conductor)


def test_a_group_of_workers_has_started_when_it_trains(tmp_path: Path) -> None:
    """It is placed long before; an attempt after the first is told as a restart."""
    lines = {1: ["trial 0000 started: "], 2: ["trial 0000 starting: ", "trial 0000 started"]}
    for workers, expected in lines.items():
        conductor, shown = start(search_of(TPE, workers=workers), tmp_path / str(workers)), io.StringIO()
        display = Display(shown)
        display.begin(conductor, MemoryTracker(tmp_path))
        conductor.listener = display
        work = conductor.next()
        assert work is not None
        at_first = shown.getvalue().splitlines()
        assert at_first[-1].startswith(expected[0])
        if workers > 1:
            assert not conductor.report(Validated(work.trial_id, 0))
        assert shown.getvalue().splitlines()[len(at_first) :] == expected[1:]
        conductor.report(result(work, 1, 0.5, EPOCHS))
        assert work.trial_id in shown.getvalue().splitlines()[-1]
        assert conductor.ledger.find(work.trial_id).validations == 1
        conductor.journal.close()


@pytest.mark.parametrize(("slots", "line"), [(0, "search s: 9 trials"), (2, "search s: 9 trials, 2 at a time")])
def test_how_many_train_at_a_time_is_said_where_it_is_known(tmp_path: Path, slots: int, line: str) -> None:
    """Not before processes have joined."""
    shown = io.StringIO()
    conductor = start(search_of(TPE), tmp_path, slots)
    Display(shown).begin(conductor, MemoryTracker(tmp_path))
    assert line in shown.getvalue().splitlines()
    conductor.journal.close()


# Early stops -----------------------------------------------------------------------------------------------


def test_hyperband_has_the_paper_s_brackets_and_each_samples_by_itself() -> None:
    search = search_of(TPE, scheduler={"name": "hyperband", "max_validations": 9}, num_trials=51)
    study = Study(search)
    assert search.brackets == len(study.studies) == 3
    assert [[study.bracket(n) for n in range(17)].count(bracket) for bracket in range(3)] == [9, 5, 3]
    assert [study.bracket(n) for n in range(17)] == [study.bracket(n) for n in range(17, 34)]
    for number in range(34):
        study.ask(str(number), number)
        stopped = next((v for v in range(1, 10) if study.report(str(number), v, 1 / (1 + number))), None)
        assert stopped in {0: (None, 1, 3, 9), 1: (None, 3, 9), 2: (None, 9)}[study.bracket(number)]
        study.tell(str(number), "pruned" if stopped else "done")
    two = Study(search_of(TPE, scheduler={"name": "hyperband", "max_validations": 3}, num_trials=51))
    assert [[two.bracket(n) for n in range(5)].count(bracket) for bracket in range(2)] == [3, 2]
    for bracket, inner in enumerate(study.studies):
        told = {trial.user_attrs["trial_id"] for trial in inner.trials}
        assert told == {str(number) for number in range(34) if study.bracket(number) == bracket}


def test_the_median_stops_who_is_below_it_after_its_grace() -> None:
    scheduler = {"name": "median", "grace_validations": 3, "startup_trials": 2}
    study = Study(search_of(TPE, scheduler=scheduler))
    for number, value in enumerate([0.5, 0.7]):
        study.ask(str(number), number)
        assert not any(study.report(str(number), v, value) for v in range(1, 7))
        study.tell(str(number), "done")
    study.ask("2", 2)
    assert [study.report("2", v, 0.55) for v in (1, 2, 3)] == [False, False, True]
    study.ask("3", 3)
    assert [study.report("3", v, 0.65) for v in (1, 2, 3, 4)] == [False] * 4


def test_no_value_that_is_not_finite_reaches_the_study(tmp_path: Path) -> None:
    conductor = start(search_of(TPE, num_trials=2), tmp_path)
    work = conductor.next()
    assert work is not None
    assert not conductor.report(result(work, 1, 0.4, EPOCHS))
    assert conductor.report(result(work, 2, math.nan, EPOCHS))
    trial = conductor.ledger.find(work.trial_id)
    assert (trial.state, trial.reason) == ("failed", "val/map_at_r is nan at validation 2")
    assert conductor.study.studies[0].trials[0].state == TrialState.FAIL
    conductor.next()
    with pytest.raises(ValueError, match="inf is not finite"):
        conductor.study.report("0001", 1, math.inf)
    conductor.journal.close()


# Two objectives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["nsga2", "tpe", "random"])
def test_the_front_is_of_those_that_none_beats(tmp_path: Path, algorithm: str) -> None:
    conductor = start(search_of(TWO, algorithm=algorithm, final_trials=2), tmp_path)
    drive(conductor)
    ledger = conductor.ledger
    points = {t.trial_id: (t.best or 0, t.second or 0) for t in ledger.trials.values()}
    expected = {
        key
        for key, (quality, cost) in points.items()
        if not any(q >= quality and c <= cost and (q, c) != (quality, cost) for q, c in points.values())
    }
    assert set(ledger.front) == expected
    assert 1 < len(expected) < len(points)
    ranked = [trial.trial_id for trial in ledger.ranking()]
    assert set(ranked[: len(expected)]) == expected
    assert ranked[0] == max(points, key=lambda key: points[key][0])
    assert [run.source for run in ledger.finals.values()] == ranked[:2]
    for trial in ledger.trials.values():
        assert trial.second == pytest.approx(trial.best_validation * (0.5 + 0.1 * trial.params["alpha"]))
    rows = leaderboard_rows(ledger)
    assert [row["on_front"] for row in rows[: len(points)]] == [key in expected for key in ranked]
    assert rows[0]["cost/seconds"] == points[ranked[0]][1]
    stored = conductor.study.studies[0]
    assert {t.user_attrs["trial_id"] for t in stored.best_trials} == expected


# Budgets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3])
def test_epochs_are_never_exceeded(tmp_path: Path, slots: int) -> None:
    conductor = start(search_of(TPE, num_trials=50, budget={"epochs": 33}), tmp_path, slots=slots)
    play(conductor)
    ledger = conductor.ledger
    assert 33 - EPOCHS < ledger.epochs <= 33
    assert (ledger.state, ledger.reason) == ("done", "budget: 33 epochs")
    assert [run.state for run in ledger.final_runs_of(ledger.winner())] == ["done"]
    assert sum(trial.validations for trial in ledger.trials.values()) == ledger.epochs


def test_hours_are_of_the_search_s_own_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("orchestrator.search.conductor.time.monotonic", lambda: now[0])
    search = search_of(NONE, num_trials=50, budget={"hours": 0.5})

    def run(conductor: Conductor, trials: int) -> None:
        for _ in range(trials):
            work = conductor.next()
            assert work is not None
            for number in range(1, EPOCHS + 1):
                now[0] += 60  # six minutes a trial
                conductor.report(result(work, number, 0.5, EPOCHS))

    conductor = start(search, tmp_path)
    run(conductor, 3)
    conductor.journal.close()  # it dies, and rests for a day
    now[0] += 86400
    conductor = start(search, tmp_path)
    assert conductor.elapsed_seconds == pytest.approx(3 * 360)
    run(conductor, 2)
    assert conductor.spent_budget() == "budget: 0.5 hours"
    work = conductor.next()
    assert work is not None and work.trial_id == "final"
    conductor.journal.close()


@pytest.mark.parametrize(("key", "kind"), [("gpu_hours", "GPU"), ("cpu_hours", "CPU")])
def test_hours_of_machines_are_what_trials_hold(tmp_path: Path, key: str, kind: str) -> None:
    search = search_of(NONE, num_trials=50, space={"delta": {"low": 0.1, "high": 0.3}}, budget={key: 0.01})
    path = tmp_path / "journal.jsonl"
    start(search, tmp_path).journal.close()
    journal = Journal(path)
    events = events_of(path)
    held = {"CPU": 1.0} | {kind: 3.0}
    conductor = Conductor(search, tmp_path, data=tmp_path, journal=journal, events=events, slots=1, resources=held)
    drive(conductor)
    spent = sum(trial.seconds for trial in conductor.ledger.trials.values()) * 3 / 3600
    assert conductor.ledger.hours[kind] == pytest.approx(spent)
    a_trial = EPOCHS * 0.9 * 3 / 3600  # alpha is 4 unless it is searched
    assert 0.01 <= spent < 0.01 + a_trial
    assert conductor.ledger.reason == f"budget: 0.01 {key.replace('_', ' ')}"


def test_a_search_ends_when_nothing_improves(tmp_path: Path) -> None:
    conductor = start(search_of(NONE, num_trials=60, budget={"trials_without_improvement": 5}), tmp_path)
    drive(conductor)
    trials = list(conductor.ledger.trials.values())
    best = max(trials, key=lambda trial: (trial.best or 0, -trial.number))
    assert len(trials) - 1 - best.number == 5
    assert conductor.ledger.reason == "budget: 5 trials without improvement"


def test_a_finished_search_is_given_more_trials(tmp_path: Path) -> None:
    small, large = search_of(TPE, num_trials=5, final_seeds=1), search_of(TPE, num_trials=20, final_seeds=1)

    def more(folder: Path, die_after: float = math.inf) -> Conductor:
        with Journal(folder / "journal.jsonl") as journal:
            record(journal, "search_resumed", config=large.model_dump())
        conductor = start(large, folder)
        drive(conductor, die_after)
        return conductor

    for name in ("whole", "broken"):
        first = start(small, tmp_path / name)
        drive(first)
    (before,) = [run.source for run in first.ledger.finals.values()]
    more(tmp_path / "broken", 20)
    whole, broken = more(tmp_path / "whole"), more(tmp_path / "broken")
    assert board(whole) == board(broken)
    assert len(whole.ledger.trials) == 20
    winner = whole.ledger.winner()
    assert winner is not None and winner.trial_id != before, "or the test shows nothing"
    assert list(whole.ledger.finals) == ["final", f"final-{winner.trial_id}-seed-0"]
    assert [run.source for run in whole.ledger.tests_of(winner)] == [winner.trial_id]
    assert whole.ledger.config["num_trials"] == 20


def test_a_paused_search_ends_what_it_began(tmp_path: Path) -> None:
    conductor = start(search_of(NONE), tmp_path, slots=2)
    works = [conductor.next(), conductor.next()]
    conductor.pausing, conductor.stopped_by = True, "paused by me"
    for work in works:
        assert work is not None and not conductor.is_finished
        for number in range(1, EPOCHS + 1):
            conductor.report(result(work, number, 0.5, EPOCHS))
        assert conductor.next() is None
    assert conductor.is_finished
    assert conductor.end() == "interrupted"
    assert conductor.ledger.reason == "paused by me"
    assert conductor.ledger.counts()["done"] == 2
    conductor.journal.close()
    resumed = start(search_of(NONE), tmp_path, slots=2)
    drive(resumed)
    assert len(resumed.ledger.trials) == 9
    assert resumed.ledger.state == "done"


def test_interrupted_trials_come_first(tmp_path: Path) -> None:
    conductor = start(search_of(TPE), tmp_path, slots=2)
    first, second = conductor.next(), conductor.next()
    assert first is not None
    assert second is not None
    assert conductor.next() is None
    conductor.report(result(first, 1, 0.5, EPOCHS))
    conductor.interrupt()
    assert conductor.end() == "interrupted"
    assert conductor.is_finished
    conductor.journal.close()
    resumed = start(search_of(TPE), tmp_path, slots=2)
    again = resumed.next()
    assert again is not None
    assert again == first
    assert not resumed.report(result(again, 1, 0.5, EPOCHS))
    assert resumed.ledger.trials["0000"].validations == 1


def test_failures_are_told_and_passed_over(tmp_path: Path) -> None:
    conductor = start(search_of(TPE, num_trials=3), tmp_path)
    work = conductor.next()
    assert work is not None
    folder = conductor.trial_folder(conductor.ledger.trials[work.trial_id])
    folder.mkdir(parents=True)
    for name in (CHECKPOINT, BEST, "error.txt"):
        (folder / name).touch()
    assert conductor.report(Failed(work.trial_id, "the loss is not finite"))
    assert [path.name for path in folder.iterdir()] == ["error.txt"]
    work = conductor.next()
    assert work is not None
    conductor.lost(Failed(work.trial_id, "killed"))
    drive(conductor)
    assert [t.state for t in conductor.ledger.trials.values()] == ["failed", "failed", "done"]
    assert conductor.ledger.trials["0000"].reason == "the loss is not finite"
    states = [trial.state for trial in conductor.study.studies[0].trials]
    assert states == [TrialState.FAIL, TrialState.FAIL, TrialState.COMPLETE]


def test_all_failed_is_a_failed_search(tmp_path: Path) -> None:
    conductor = start(search_of(TPE, num_trials=2), tmp_path)
    while not conductor.is_finished:
        work = conductor.next()
        assert work is not None
        conductor.report(Failed(work.trial_id, "nan"))
    assert conductor.end() == "failed"
    assert not conductor.ledger.finals


def grid_search(**changes: Any) -> Search:
    space = [{"delta": [0.1, 0.2, 0.3]}, {"alpha": {"low": 2, "high": 4, "step": 1}}]
    return search_of(TPE | {"algorithm": "grid", "space": space, "scheduler": "none"} | changes)


def test_a_grid_is_exact_and_ends(tmp_path: Path) -> None:
    conductor = start(grid_search(), tmp_path)
    drive(conductor)
    points = [trial.params for trial in conductor.ledger.trials.values()]
    assert points == [{"delta": 0.1}, {"delta": 0.2}, {"delta": 0.3}, {"alpha": 2.0}, {"alpha": 3.0}, {"alpha": 4.0}]


def test_a_grid_goes_on_where_it_died(tmp_path: Path) -> None:
    broken = start(grid_search(), tmp_path)
    drive(broken, 8)
    resumed = start(grid_search(), tmp_path)
    drive(resumed)
    assert len(resumed.ledger.trials) == 6
    assert resumed.ledger.counts()["done"] == 6


@pytest.mark.parametrize("algorithm", ["tpe", "gp", "qmc", "random"])
def test_a_finite_space_is_never_repeated(algorithm: str) -> None:
    search = search_of(
        TPE, space={"delta": [0.1, 0.2], "proxies_per_class": {"low": 1, "high": 2}}, algorithm=algorithm
    )
    study = Study(search)
    assert study.budget == 4
    points = []
    for number in range(4):
        params = study.ask(str(number), number)
        assert params is not None
        points.append(str(params))
        study.report(str(number), 1, 0.1 * number)
        study.tell(str(number), "done")
    assert len(set(points)) == 4
    assert study.ask("4", 4) is None


def test_conditional_points_hold_their_branch_only() -> None:
    space = {
        "method": {
            "choices": {
                "pfml": {"delta": {"low": 0.1, "high": 0.3}},
                "proxy_anchor": {"margin": {"low": 0, "high": 0.4}},
            }
        }
    }
    raw = {"dataset": "glyphs-small", "space": space, "num_trials": 12}
    study = Study(search_of(raw))
    seen: dict[str, set[str]] = {}
    for number in range(12):
        params = study.ask(str(number), number)
        assert params is not None
        seen.setdefault(params["method"], set()).update(params)
        study.search.experiment(params)
        study.report(str(number), 1, 0.5)
        study.tell(str(number), "done")
    assert seen == {"pfml": {"method", "delta"}, "proxy_anchor": {"method", "margin"}}


def test_no_validation_is_reported_twice() -> None:
    study = Study(search_of(TPE))
    study.ask("0", 0)
    study.report("0", 1, 0.5)
    study.report("0", 2, 0.4)
    study.report("0", 2, 0.9)
    study.tell("0", "done")
    assert study.studies[0].trials[0].intermediate_values == {1: 0.5, 2: 0.5}
    assert study.studies[0].trials[0].value == 0.5


@pytest.mark.parametrize(("mode", "best"), [("max", 0.8), ("min", 0.2)])
def test_the_direction_is_the_objective_s(mode: str, best: float) -> None:
    study = Study(search_of(TPE, objective={"metric": "val/map_at_r", "mode": mode}, scheduler="none"))
    study.ask("0", 0)
    for number, value in enumerate([0.5, 0.8, 0.2, 0.4], start=1):
        study.report("0", number, value)
    study.tell("0", "done")
    assert study.studies[0].trials[0].value == best


def test_a_ledger_is_a_fold_of_the_journal(tmp_path: Path) -> None:
    conductor = start(search_of(TPE), tmp_path)
    drive(conductor)
    again = Ledger.of(Journal.read(tmp_path / "journal.jsonl"))
    assert again == conductor.ledger
    make: Callable[[], Ledger] = lambda: Ledger.of([])  # noqa: E731
    with pytest.raises(ValueError, match="no search"):
        make()


def test_a_search_goes_on_with_other_workers(tmp_path: Path) -> None:
    search = search_of(TPE | {"settings": {"epochs": 6, "classes_per_batch": 8, "images_per_class": 4}})
    first = start(search, tmp_path)
    work = first.next()
    assert work is not None and work.workers == 1
    first.journal.close()
    changed = with_other_workers(search, 2, 3)
    assert changed == search.model_copy(update={"workers": 2, "max_concurrent": 3})
    assert with_other_workers(changed, None, 1).workers == 2
    second = start(changed, tmp_path)
    work = second.next()
    assert work is not None and (work.trial_id, work.workers) == ("0000", 2)
    with pytest.raises(InputError, match="s.yaml: workers: 33 workers cannot share the global batch of 32 images"):
        with_other_workers(search, 33, None)


def test_a_clock_that_jumps_moves_neither_budget_nor_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole machine's clock: by days to and fro, and back behind the search's start after a death."""
    calm = start(search_of(TPE), tmp_path / "calm")
    drive(calm)
    hours = itertools.cycle([100, -70, 0, 3, -1])
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + next(hours) * 3_600_000_000_000)
    search = search_of(TPE, budget={"hours": 1.0})
    first = start(search, tmp_path / "s")
    drive(first, die_after=20)
    second = start(search, tmp_path / "s")
    assert 0 <= second.elapsed_seconds < 3600 and second.spent_budget() is None
    drive(second)
    assert second.ledger.state == "done" and second.ledger.reason is None
    assert leaderboard_rows(second.ledger) == leaderboard_rows(calm.ledger)
    events = Journal.read(tmp_path / "s" / "journal.jsonl")
    times = [event["time"] for event in events]
    assert times != sorted(times)
    assert [event["seq"] for event in events] == list(range(len(events)))
    tracker = MemoryTracker(tmp_path / "s" / "journal.jsonl")
    assert tracker.close(1)
    curves = [run["metrics"]["val/map_at_r"] for run in tracker.runs.values() if "val/map_at_r" in run["metrics"]]
    assert sorted(len(curve) for curve in curves) == sorted(len(t.curve) for t in second.ledger.everyone() if t.curve)
    for run_curve in curves:
        assert [step for step, _, _ in run_curve] == list(range(1, len(run_curve) + 1))
