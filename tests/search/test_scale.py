"""What a search's driver does for one more trial must not grow with the trials before it. Counted in bytecodes of this
package and in files that are looked at: seconds would depend on the machine."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.driven_studies import EPOCHS, result, search_of, start
from support.memory_tracking import MemoryStore, MemoryTracker

import orchestrator
from orchestrator.execution.protocol import Work
from orchestrator.search.control import status
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.tracking.projection import TRIAL, MetricPoint

HERE = str(Path(orchestrator.__file__).parent)
LR = {"lr": {"low": 1e-5, "high": 1e-1, "log": True}}
SEARCHES: dict[str, dict[str, Any]] = {
    "random": {"algorithm": "random", "space": LR, "scheduler": "none"},
    "asha": {"algorithm": "random", "space": LR},
    "grid": {"algorithm": "grid", "space": {"delta": [n / 1000 for n in range(100, 340)]}, "scheduler": "none"},
    "epochs": {"algorithm": "random", "space": LR, "scheduler": "none", "budget": {"epochs": 240 * EPOCHS}},
    "two": {
        "algorithm": "random",
        "space": LR,
        "scheduler": "none",
        "objectives": ["val/map_at_r", {"metric": "train/loss", "mode": "min"}],
    },
}


def bytecodes(work: Callable[[], object]) -> int:
    """How many instructions of this package's own files run."""
    counted = 0

    def instruction(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal counted
        counted += event == "opcode"
        return instruction

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return instruction

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted


@pytest.mark.parametrize("name", SEARCHES)
def test_a_trial_costs_the_same_after_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    trials = 240
    end = {} if name in ("grid", "epochs") else {"num_trials": trials}
    fixed = {"method": "pfml", "dataset": "glyphs-small", "settings": {"epochs": EPOCHS}, "final": False}
    conductor = start(search_of(fixed | end, **SEARCHES[name]), tmp_path, slots=2)
    touched: Counter[str] = Counter()
    for call in ("unlink", "stat", "scandir"):
        real = getattr(os, call)

        def counting(*args: Any, call: str = call, real: Callable[..., Any] = real, **kwargs: Any) -> Any:
            touched[call] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(os, call, counting)

    def one_trial(number: int) -> None:
        assert not conductor.is_finished
        work = conductor.next()
        assert work is not None
        for validation in range(1, EPOCHS + 1):
            value = 0.5 - 0.4 * ((number * 37) % 101) / 101 + 0.01 * validation
            if conductor.report(result(work, validation, value, EPOCHS)):
                break

    costs = []
    for number in range(trials - 1):  # of the last, what follows the search is a part
        files = sum(touched.values())
        if number % 12 == 3:
            costs.append((bytecodes(partial(one_trial, number)), sum(touched.values()) - files))
        else:
            one_trial(number)
    early, late = costs[1:6], costs[-5:]
    for kind in (0, 1):
        first, last = (sorted(cost[kind] for cost in some)[2] for some in (early, late))
        assert last <= 1.25 * first, (kind, first, last)
    conductor.journal.close()


def test_the_tracker_looks_up_only_what_others_may_have_sent(tmp_path: Path) -> None:
    looked: list[str] = []

    class Store(MemoryStore):
        def find(self, experiment_id: str, key: Any) -> str | None:
            looked.append(key.get("orchestrator.trial_id", "the search"))
            return super().find(experiment_id, key)

    search = search_of({"method": "pfml", "dataset": "glyphs-small", "space": LR, "num_trials": 9})
    conductor = start(search, tmp_path)
    path = conductor.journal.path

    def trials(count: int) -> None:
        for _ in range(count):
            work = conductor.next()
            assert work is not None
            conductor.report(result(work, 1, 0.5, 1))

    trials(2)
    store = Store()

    def another() -> MemoryTracker:
        tracker = MemoryTracker(path)
        tracker._sender.store = tracker.store = store
        tracker.notify()
        return tracker

    another()
    assert looked == ["the search"]  # whose run was not there, and so none of a trial
    looked.clear()
    tracker = another()
    assert looked == ["the search", "0000", "0001"]
    looked.clear()
    trials(3)
    tracker.notify()
    assert tracker.problem is None and len(tracker.runs) == 6
    assert looked == []
    conductor.journal.close()


def test_a_run_whose_creation_failed_is_looked_up(tmp_path: Path) -> None:
    class Store(MemoryStore):
        def create(self, *args: Any) -> str:
            run_id = super().create(*args)
            if len(self.runs) == 3:
                raise OSError("the answer was lost")
            return run_id

    conductor = start(search_of({"method": "pfml", "dataset": "glyphs-small", "space": LR, "num_trials": 4}), tmp_path)
    tracker = MemoryTracker(conductor.journal.path)
    tracker._sender.store = tracker.store = Store()
    tracker.notify()
    for _ in range(3):
        work = conductor.next()
        assert work is not None
        conductor.report(result(work, 1, 0.5, 1))
        tracker.notify()
    tracker.notify()
    assert tracker.problem is None and tracker.backlog == 0
    assert sorted(run["tags"].get(TRIAL, run["name"]) for run in tracker.runs.values()) == ["0000", "0001", "0002", "s"]
    conductor.journal.close()


def test_what_is_refused_of_a_write_costs_only_itself(tmp_path: Path) -> None:
    from orchestrator.tracking.store import Refused

    class Store(MemoryStore):
        def log(self, run_id: str, points: list[MetricPoint], params: dict[str, str], tags: dict[str, str]) -> None:
            if "lr" in params:
                raise Refused("a param that changed")
            super().log(run_id, points, params, tags)

    conductor = start(search_of({"method": "pfml", "dataset": "glyphs-small", "space": LR, "num_trials": 4}), tmp_path)
    tracker = MemoryTracker(conductor.journal.path)
    tracker._sender.store = tracker.store = Store()
    work = conductor.next()
    assert work is not None
    conductor.report(result(work, 1, 0.5, 1))
    tracker.notify()
    run = next(run for run in tracker.runs.values() if run["tags"].get(TRIAL) == "0000")
    assert run["params"] == {} and run["metrics"]["val/map_at_r"] and run["tags"]["orchestrator.state"] == "done"
    assert "changed" in (tracker.problem or "")
    conductor.journal.close()


def test_a_trial_waits_for_the_disk_at_its_start_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Counter[str]()
    real = os.fsync

    def counting(descriptor: int) -> None:
        waits["fsync"] += 1
        real(descriptor)

    search = search_of({"method": "pfml", "dataset": "glyphs-small", "space": LR, "num_trials": 4, "scheduler": "none"})
    conductor = start(search, tmp_path)
    monkeypatch.setattr(os, "fsync", counting)
    work = conductor.next()
    assert work is not None
    for validation in (1, 2, 3):
        conductor.report(result(work, validation, 0.5, 3))
    assert waits["fsync"] == 2
    events = [event["event"] for event in Journal.read(conductor.journal.path)]
    assert events[-3:] == ["validation", "result", "trial_ended"]
    conductor.journal.close()


def test_what_never_reached_the_disk_is_not_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append("note", text="first")
        journal.append("note", text="waits", sync=False)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            with pytest.raises(OSError, match="Input/output"):
                journal.append("note", text="second")
        journal.append("note", text="third")
    events = Journal.read(tmp_path / "journal.jsonl")
    assert [(event["text"], event["seq"]) for event in events] == [("first", 0), ("third", 1)]


def test_the_kept_order_is_that_of_all_trials(tmp_path: Path) -> None:
    """At every moment the ledger's order is the sorted one, and a fold of the journal gives the same."""
    search = search_of({"method": "pfml", "dataset": "glyphs-small"}, **SEARCHES["two"], num_trials=12)
    conductor = start(search, tmp_path, slots=3)
    ledger = conductor.ledger
    running: list[tuple[Work, int]] = []
    for turn in range(40):
        if len(running) < 3 and (work := conductor.next()) is not None and not work.test:
            running.append((work, 0))
        if not running:
            break
        work, done = running.pop(0)
        report = result(work, done + 1, (turn * 7 % 11) / 11, 4)
        report = replace(report, metrics={**report.metrics, "train/loss": (turn * 5 % 13) / 13})
        if not conductor.report(report):
            running.append((work, done + 1))
        ranked = [trial for trial in ledger.trials.values() if trial.best is not None]
        front = set(ledger.front)
        ranked.sort(key=lambda t: (t.trial_id not in front, -(t.best or 0), t.second, t.number))
        assert [trial.trial_id for trial in ledger.leaders()] == [trial.trial_id for trial in ranked]
        assert Ledger.of(Journal.read(conductor.journal.path)).ranking() == ledger.ranking()
        assert ledger.running() == [trial for trial in ledger.everyone() if trial.state == "running"]
    assert len(ranked) > 6 and status(ledger, tmp_path).counts["done"] > 5
    conductor.journal.close()
