"""The figures that stand for themselves, recomputed from made searches whose truth is known."""

import statistics
from pathlib import Path
from typing import Any

import pytest
from support.driven_studies import TPE, play, search_of
from support.driven_studies import start as begin
from support.made_pages import bowl, made, spread

from orchestrator.report.findings import Findings
from orchestrator.report.html.figures import log_ticks, value_axis
from orchestrator.report.html.plots import PLOTS, plots_of
from orchestrator.report.html.plots.distribution import distribution
from orchestrator.report.html.plots.ranks import rank_map
from orchestrator.report.html.plots.thresholds import thresholds
from orchestrator.report.html.plots.timeline import timeline
from orchestrator.report.stopping import stops
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Thirty trials; two thirds of them were stopped after three validations, so that all are compared there."""
    return Findings.of(made(tmp_path_factory.mktemp("stopped"), spread(30), pruned=lambda number: number % 3 > 0))


def test_the_distribution_is_of_one_age(stopped: Findings) -> None:
    plot = distribution(stopped)
    assert plot is not None
    values = sorted(max(trial.curve[:3]) for trial in stopped.ledger.trials.values())
    line = plot.data[0]
    assert line["x"] == pytest.approx([values[0], *values])
    for at in (values[4], values[17]):
        share = max(y for x, y in zip(line["x"], line["y"], strict=True) if x <= at)
        assert share == pytest.approx(sum(value <= at for value in values) / 30)
    assert "after 3 validations, which 30 trials reached" in plot.said


def test_ranks_are_of_one_age(stopped: Findings) -> None:
    plot = rank_map(stopped)
    assert plot is not None
    trials = stopped.ledger.trials
    value = {name: max(trial.curve[:3]) for name, trial in trials.items()}
    points = plot.data[0]
    assert len(points["x"]) == 30
    assert plot.title == "Ranks over delta and " + ("alpha" if "alpha" in plot.title else "proxies_per_class")
    for name, x, rank in zip(points["customdata"], points["x"], points["marker"]["color"], strict=True):
        assert x == trials[name].params["delta"]
        assert rank == 1 + sum(other > value[name] for other in value.values())


def test_what_it_took_to_go_on(stopped: Findings) -> None:
    plot = thresholds(stopped)
    assert plot is not None and plot.table is not None
    early = [trial.curve for trial in stopped.ledger.trials.values() if trial.state == "pruned"]
    later = [trial.curve for trial in stopped.ledger.trials.values() if trial.state == "done"]
    ((age, count, went, best, worst, *_),) = plot.table.rows
    assert (age, count, went) == (3, 20, 10)
    assert best.text == f"{max(max(curve) for curve in early):.4f}"
    assert worst.text == f"{min(max(curve[:3]) for curve in later):.4f}"
    assert {x for trace in plot.data for x in trace["x"]} == {3}
    none = made_with_all_done(stopped)
    assert thresholds(none) is None


@pytest.mark.parametrize(
    "scheduler",
    [
        {"name": "asha", "grace_validations": 1, "reduction_factor": 2},
        {"name": "asha", "grace_validations": 2, "reduction_factor": 3},
        {"name": "median", "grace_validations": 2, "startup_trials": 3},
    ],
)
def test_what_a_stopped_trial_was_asked_for(tmp_path: Path, scheduler: dict[str, Any]) -> None:
    """What is drawn tells apart whom a real study stopped, with three trials at a time: each stopped trial was worse
    than what was asked, as a slow replay of the journal says too; and nobody who went on was, at that moment."""
    conductor = begin(search_of(TPE, num_trials=30, algorithm="random", scheduler=scheduler), tmp_path, slots=3)
    play(conductor)
    ledger = conductor.ledger
    found = {stop.trial_id: stop for stop in stops(ledger)}
    assert len(found) > 5 and set(found) == {t.trial_id for t in ledger.trials.values() if t.state == "pruned"}
    best: dict[str, list[float]] = {}
    done: list[str] = []
    for event in Journal.read(tmp_path / "journal.jsonl"):
        if event["event"] == "trial_ended" and event["state"] == "done":
            done.append(event["trial_id"])
        if event["event"] != "validation" or event["trial_id"] not in ledger.trials:
            continue
        name = event["trial_id"]
        course = best.setdefault(name, [])
        course.append(max([event["metrics"]["val/map_at_r"], *course]))
        age = len(course)
        if scheduler["name"] == "median":
            others = [best[other][age - 1] for other in done]
            decided = age >= 2 and len(done) >= 3
            asked = statistics.median(others) if others else 0.0
        else:
            at = sorted((other[age - 1] for other in best.values() if len(other) >= age), reverse=True)
            decided = age in {scheduler["grace_validations"] * scheduler["reduction_factor"] ** n for n in range(6)}
            asked = at[max(1, len(at) // scheduler["reduction_factor"]) - 1]
        if name in found and age == found[name].age:
            assert decided and found[name].asked == pytest.approx(asked) and found[name].value == course[-1] < asked
        elif decided and not event.get("finished"):
            assert course[-1] >= asked
    plot = thresholds(Findings.of(ledger))
    assert plot is not None
    (ticks,) = [trace for trace in plot.data if trace["name"] == "asked of a stopped one"]
    assert ticks["y"] == [found[name].asked for name in ticks["customdata"]] and len(ticks["y"]) == len(found)


def test_nothing_is_invented_of_brackets(tmp_path: Path) -> None:
    scheduler = {"name": "hyperband", "grace_validations": 1, "reduction_factor": 2}
    conductor = begin(search_of(TPE, num_trials=20, algorithm="random", scheduler=scheduler), tmp_path)
    play(conductor)
    assert any(trial.state == "pruned" for trial in conductor.ledger.trials.values())
    assert stops(conductor.ledger) == []


def made_with_all_done(found: Findings) -> Findings:
    ledger = Ledger(**vars(found.ledger))
    ledger.trials = {name: trial for name, trial in found.ledger.trials.items() if trial.state == "done"}
    ledger._ranked = [entry for entry in found.ledger._ranked if entry[2] in ledger.trials]
    return Findings.of(ledger)


def test_the_clock_shows_slots_idle_time_and_restarts(tmp_path: Path) -> None:
    """Two trials at a time for 100 s, then one alone for 60 s: two slots, 60 s of one of them idle."""
    ledger = made(tmp_path, spread(3))
    for name, began, ended in (("0000", 0, 100), ("0001", 0, 100), ("0002", 100, 160)):
        trial = ledger.trials[name]
        trial.started, trial.ended = began * 1000, ended * 1000
    ledger.trials["0002"].restarted.append(130_000)
    ledger.started, ledger.ended = 0, 160_000
    plot = timeline(Findings.of(ledger))
    assert plot is not None and plot.table is not None
    assert plot.said.startswith("2 slots over 2 min 40 s: taken 81% of the time, 1 min idle in all; 1 restart.")
    drawn = {
        name: (slot, base, base + length)
        for trace in plot.data
        if trace["type"] == "bar"
        for name, slot, base, length in zip(trace["customdata"], trace["y"], trace["base"], trace["x"], strict=True)
    }
    minutes = {name: (slot, round(begin * 60), round(end * 60)) for name, (slot, begin, end) in drawn.items()}
    assert minutes == {"0000": ("slot 1", 0, 100), "0001": ("slot 2", 0, 100), "0002": ("slot 1", 100, 160)}
    assert [row[3].text for row in plot.table.rows] == ["0.0 s", "1 min"]
    mark = next(trace for trace in plot.data if trace["name"] == "began again")
    assert mark["x"] == pytest.approx([130 / 60]) and mark["y"] == ["slot 1"]


def test_slots_without_use_in_final_runs_are_not_idle(tmp_path: Path) -> None:
    """Two slots of trials for 100 s, 20 s in which nothing runs, and one final run of 80 s: 40 s idle."""
    ledger = made(tmp_path, spread(2), finals={"0000": [0.5]})
    times = {"0000": (0, 100), "0001": (0, 100), "final-0000-seed-0": (120, 200)}
    for trial in ledger.everyone():
        trial.started, trial.ended = (1000 * at for at in times[trial.trial_id])
    ledger.started, ledger.ended = 0, 200_000
    plot = timeline(Findings.of(ledger))
    assert plot is not None and plot.table is not None
    assert plot.said.startswith("2 slots over 3 min 20 s: taken 88% of the time, 40 s idle in all.")
    assert "While only final runs train, the other slots do not count as idle." in plot.said
    assert [row[3].text for row in plot.table.rows] == ["20 s", "20 s"]


def test_a_logarithmic_axis_has_whole_numbers() -> None:
    assert log_ticks([11.9, 81.0]) == [10, 20, 50, 100, 200, 500]
    assert log_ticks([1e-5, 0.02]) == [1e-5, 1e-4, 1e-3, 0.01, 0.1]
    assert log_ticks([]) == []


def test_a_restart_is_told_by_the_journal(tmp_path: Path) -> None:
    made(tmp_path, spread(2), end=None)
    events = Journal.read(tmp_path / "journal.jsonl")
    begun = next(event for event in events if event["event"] == "trial_started" and event["trial_id"] == "0001")
    again = {key: value for key, value in begun.items() if key not in ("seq", "sum", "time")}
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(again.pop("event"), **again)
    ledger = Ledger.of(Journal.read(tmp_path / "journal.jsonl"))
    assert [len(trial.restarted) for trial in ledger.trials.values()] == [0, 1]


def test_every_figure_has_its_section_and_a_table(stopped: Findings) -> None:
    found = [plot for section in ("progress", "settings", "curves") for plot in plots_of(stopped, section)]
    assert {plot.name for plot in found} == set(PLOTS) and all(plot.table is not None for plot in found)
    assert plots_of(Findings.of(made_with_all_done(stopped).ledger), "curves") == []


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    empty = Findings.of(made(tmp_path, [], end=None))
    assert [draw(empty) for _, draw in PLOTS.values()] == [None] * len(PLOTS)
    assert bowl(spread(1)[0]) > 0


def test_an_axis_of_values_is_around_them() -> None:
    """Of one value too, where plotly's own would reach from -1 to 1; of none nothing is said."""
    assert value_axis("v", [0.002, 0.002]) == {"title": {"text": "v"}, "range": pytest.approx([0.0019, 0.0021])}
    assert value_axis("v", [0.0, 1.0])["range"] == pytest.approx([-0.05, 1.05])
    assert value_axis("v", []) == {"title": {"text": "v"}}
