"""What breaks a limit costs no epoch, never wins, and is told with its excess; a search that dies goes on exactly."""

import csv
import io
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.driven_studies import TPE, curve, result, search_of, start

from orchestrator.benchmarking.replaying import MEMORY
from orchestrator.errors import InputError
from orchestrator.execution.protocol import Validated, Work
from orchestrator.report.findings import Findings
from orchestrator.report.limits import constraint_lines
from orchestrator.report.next_steps import next_steps
from orchestrator.search import constraints, study
from orchestrator.search.conductor import Conductor
from orchestrator.search.constraints import Constraints
from orchestrator.search.study import Study
from orchestrator.storage.costs import COSTS
from orchestrator.storage.leaderboard import write_csv
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord

EPOCHS = 2
SMALL, LARGE = (8, 16), (32, 64)
RAW: dict[str, Any] = TPE | {
    "settings": {"epochs": EPOCHS, "seed": 0},
    "space": {"delta": {"low": 0.1, "high": 0.35}, "embedding_dim": [*SMALL, *LARGE]},
    "algorithm": "random",
    "scheduler": "none",
    "num_trials": 8,
    "constraints": {"cost/megabytes": 3, "cost/milliseconds": 5},
}


def megabytes(dimension: int) -> float:
    return 1 + dimension / 10


def run(search: Any, folder: Path, peaks: dict[str, list[float]] | None = None) -> tuple[Conductor, list[Work]]:
    """Run everything; a network of D dimensions has 1 + D / 10 MB, a larger one better values."""
    conductor, given = start(search, folder), []
    while not conductor.is_finished:
        work = conductor.next()
        if work is None:
            break
        given.append(work)
        dimension = work.experiment.training.embedding_dim
        costs = {"cost/megabytes": megabytes(dimension), "cost/milliseconds": 2.0}
        if work.costs and conductor.report(Validated(work.trial_id, 0, costs=costs)):
            continue
        values, last = curve(work.experiment.flat()), work.stop_after or EPOCHS
        for number in range(1, last + 1):
            made = result(work, number, None if work.test else values[number - 1] + dimension / 1000, last)
            peak = (peaks or {}).get(work.trial_id, [1.0] * last)[number - 1]
            if conductor.report(Validated(**{**made.__dict__, "system": {"gpu_memory_peak_megabytes": peak}})):
                break
    conductor.end()
    conductor.journal.close()
    return conductor, given


def large(conductor: Conductor) -> list[TrialRecord]:
    return [t for t in conductor.ledger.trials.values() if t.params["embedding_dim"] in LARGE]


def train_nothing_that_is_too_large(folder: Path, **changes: Any) -> Ledger:
    conductor, given = run(search_of(RAW | changes), folder)
    refused = large(conductor)
    assert refused and all(t.state == "pruned" and t.epochs == 0 and t.best is None for t in refused)
    winner = conductor.ledger.winner()
    assert winner is not None and winner.params["embedding_dim"] in SMALL
    assert set(conductor.ledger.front).isdisjoint(trial.trial_id for trial in refused)
    shapes = [work.experiment.training.embedding_dim for work in given if work.costs]
    assert len(shapes) == len(set(shapes)), "each network is measured once"
    assert len(refused) <= len(LARGE), "a network that is known to be too large is not suggested again"
    assert len(conductor.ledger.trials) == RAW["num_trials"]
    return conductor.ledger


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "tpe", "scheduler": "asha"},
        {"algorithm": "tpe", "scheduler": "promotion"},
        {"algorithm": "nsga2", "objectives": ["val/map_at_r", "cost/megabytes"]},
    ],
    ids=["random", "tpe", "promotion", "nsga2"],
)
def test_what_breaks_a_limit_is_not_trained_and_does_not_win(tmp_path: Path, changes: dict[str, Any]) -> None:
    ledger = train_nothing_that_is_too_large(tmp_path, **changes)
    trial = next(t for t in ledger.trials.values() if t.params["embedding_dim"] == 64)
    assert trial.violations == {"cost/megabytes": pytest.approx(7.4 / 3 - 1)}
    assert trial.reason == "cost/megabytes 7.4 is above 3, by 4.4 MB (147%)"
    number = sum(bool(t.violations) for t in ledger.trials.values())
    assert constraint_lines(ledger)[0] == f"cost/megabytes at most 3 MB: {number} of 8 trials above it, by 1.2 to 4.4"
    table = io.StringIO()
    write_csv(ledger, table)
    row = next(r for r in csv.DictReader(io.StringIO(table.getvalue())) if r["trial_id"] == trial.trial_id)
    assert (row["rank"], row["feasible"], row["cost/megabytes"]) == ("", "False", "7.4")


def test_a_search_that_forgets_what_was_measured_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Constraints, "may_hold", lambda self, params: True)
    with pytest.raises(AssertionError, match="not suggested again"):
        train_nothing_that_is_too_large(tmp_path)


def test_a_ledger_without_limits_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "constraints", {})
    with pytest.raises(AssertionError):
        train_nothing_that_is_too_large(tmp_path)


def test_the_embedding_size_is_known_before_any_process(tmp_path: Path) -> None:
    limits = {"cost/index_bytes": 64}
    conductor, given = run(search_of(RAW | {"constraints": limits}), tmp_path / "random")
    assert not large(conductor) and not any(work.costs for work in given)
    grid = {"algorithm": "grid", "space": {"embedding_dim": [*LARGE, *SMALL]}, "constraints": limits}
    whole = {key: value for key, value in RAW.items() if key != "num_trials"}
    conductor, given = run(search_of(whole | grid), tmp_path / "grid")
    assert [t.state for t in conductor.ledger.trials.values()] == ["pruned", "pruned", "done", "done"]
    assert [w.experiment.training.embedding_dim for w in given] == [8, 16, 16]  # the last is the final run


def test_the_peak_of_memory_stops_a_trial_that_led(tmp_path: Path) -> None:
    limits = {"cost/gpu_memory_megabytes": 100}
    peaks = {"0001": [130.0, 1.0]}
    search = search_of(RAW | {"constraints": limits, "num_trials": 3, "space": {"delta": [0.1, 0.2, 0.35]}})
    search = search.model_copy(update={"start_from": [{"delta": 0.1}, {"delta": 0.2}]})
    conductor, _ = run(search, tmp_path, peaks)
    first = conductor.ledger.trials["0001"]
    assert (first.state, first.validations) == ("pruned", 1)
    assert first.violations == {"cost/gpu_memory_megabytes": pytest.approx(0.3)}
    assert first.best is not None and first.reason is not None
    assert conductor.ledger.ranking()[-1] is first and conductor.ledger.winner() is not first
    assert conductor.ledger.equal_age() is None and first.trial_id not in conductor.ledger.front


def kill_at_every_event(folder: Path, step: int = 1, **changes: Any) -> None:
    """The journal is cut after each of its events, the search goes on from there, and ends the same."""
    search = search_of(RAW | {"num_trials": 5, "final": False} | changes)

    def board(conductor: Conductor) -> list[Any]:
        return [
            (t.trial_id, t.params, t.state, t.best, t.costs, t.violations, t.reason) for t in conductor.ledger.ranking()
        ]

    whole, _ = run(search, folder / "whole")
    lines = (folder / "whole" / "journal.jsonl").read_text().splitlines(keepends=True)
    assert sum(json.loads(line)["event"] == "result" and "cost/megabytes" in line for line in lines) >= 4
    assert any(trial.violations for trial in whole.ledger.trials.values())
    for count in range(1, len(lines), step):
        place = folder / f"{count}"
        place.mkdir()
        (place / "journal.jsonl").write_text("".join(lines[:count]))
        again, _ = run(search, place)
        assert board(again) == board(whole), lines[count]


def test_killed_at_every_event_it_ends_the_same(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as folder:
        kill_at_every_event(Path(folder), algorithm="tpe")


def test_a_sampler_that_is_not_told_again_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Conductor, events: list[Any]) -> None:
        tell, Study.tell = Study.tell, lambda *arguments: None  # type: ignore[method-assign]
        try:
            replay(self, events)
        finally:
            Study.tell = tell  # type: ignore[method-assign]

    replay = Conductor._replay
    monkeypatch.setattr(Conductor, "_replay", forget)
    with pytest.raises((AssertionError, KeyError)):
        kill_at_every_event(tmp_path, algorithm="tpe", step=3)


def test_where_no_trial_holds_the_nearest_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "MAX_REFUSED", 12)
    monkeypatch.setattr(study, "DRAWS", 3)
    search = search_of(RAW | {"constraints": {"cost/megabytes": 1}, "num_trials": 20})
    conductor, given = run(search, tmp_path)
    ledger = conductor.ledger
    assert ledger.state == "failed" and ledger.winner() is None and len(ledger.trials) == 12
    assert len(given) == 4, "one for each network"
    (step,) = next_steps(Findings.of(ledger, storage="", folder=tmp_path))
    assert step.command is not None and step.command.endswith("search --like s --constraints cost/megabytes=1.98")
    nearest = next(t.trial_id for t in ledger.trials.values() if t.params["embedding_dim"] == 8)
    assert ledger.reason == (
        f"no trial holds to its constraints; the nearest, {nearest}: cost/megabytes 1.8 is above 1, by 0.8 MB (80%)"
    )


def test_a_sampler_without_stopped_trials_learns_from_the_worst_value(tmp_path: Path) -> None:
    """The Gaussian process has a constraint of every trial, and the stored study no value that none has measured."""
    gp = Study(search_of(RAW | {"algorithm": "gp"}), tmp_path / "study")
    for number, (value, excess) in enumerate([(0.5, -0.1), (0.3, -0.2), (None, 0.7)]):
        gp.enter(f"{number}", number, {"delta": 0.1 + number / 10, "embedding_dim": 8})
        if value is not None:
            gp.report(f"{number}", 1, value)
        gp.tell(f"{number}", "pruned" if value is None else "done", None, {"cost/megabytes": excess})
    trials = gp.studies[0].trials
    assert [trial.value for trial in trials] == [0.5, 0.3, 0.3]
    assert gp.stored is not None
    assert [trial.state.name for trial in gp.stored.trials] == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert gp.stored.trials[-1].value is None


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"cost/megabyte": 5}, "cost/megabyte: no cost that can be limited (did you mean 'cost/megabytes'?)"),
        ({"cost/seconds": 5}, "make it the second of two objectives, or give trial_timeout"),
        ({"val/map_at_r": 0.5}, "no cost that can be limited"),
        ({"cost/megabytes": 0}, "s.yaml: constraints: cost/megabytes: 0: should be a number above 0"),
        ({"cost/megabytes": "5"}, "should be a number above 0"),
        ({"cost/milliseconds": math.inf}, "should be a number above 0"),
        ({"cost/embedding_dim": 4}, "no point can hold to it: cost/embedding_dim 8 is above 4"),
    ],
)
def test_what_cannot_be_limited_is_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        search_of(RAW | {"constraints": limits})
    assert message in str(error.value)


def test_the_page_has_each_cost_that_can_be_limited() -> None:
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    rows = [f"| `{name}` | {cost.unit} | {cost.meaning} |" for name, cost in COSTS.items() if cost.limited]
    assert "\n".join(["| --- | --- | --- |", *rows, ""]) in page


def test_a_search_writes_its_limits_into_its_file() -> None:
    search = search_of(RAW)
    assert search.content()["constraints"] == {"cost/megabytes": 3, "cost/milliseconds": 5}
    assert "constraints" not in search_of(TPE).content()
