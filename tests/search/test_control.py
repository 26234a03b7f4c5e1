"""A search is seen and steered from elsewhere, by files in its folder."""

import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.states import status_text
from orchestrator.cli.terminal import Terminal
from orchestrator.report.status import Used
from orchestrator.search import control
from orchestrator.search.control import driver_lease, status
from orchestrator.storage import presence
from orchestrator.storage.events import parse
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.presence import DRIVER, REQUEST, driver, pending_request, send_request

STARTED: dict[str, Any] = {
    "event": "search_started",
    "name": "s",
    "search_id": "id",
    "time": 1,
    "dataset": "glyphs-small",
    "method": "pfml",
    "params": {},
    "tags": {},
    "objective": {"metric": "val/map_at_r", "mode": "max"},
    "config": {"num_trials": 9, "budget": {"hours": 2.0}},
}


@pytest.fixture
def conductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """All of a conductor that its driver's control sees."""
    monkeypatch.setattr(control, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(presence, "LOOK_SECONDS", 0.02)
    return SimpleNamespace(folder=tmp_path, stopping=False, pausing=False, stopped_by=None)


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_a_driver_shows_itself_and_obeys(conductor: Any) -> None:
    folder = conductor.folder
    send_request(folder, "stop")  # meant for a driver that has died
    with driver_lease(conductor):
        wait(lambda: driver(folder))
        found = driver(folder)
        assert found is not None and found["pid"] == os.getpid()
        assert pending_request(folder) is None and not conductor.stopping
        send_request(folder, "pause")
        wait(lambda: conductor.pausing)
        wait(lambda: pending_request(folder) is None)
        assert not conductor.stopping
        assert conductor.stopped_by == f"paused by {presence.myself()}"
        (folder / REQUEST).write_text("{not JSON")
        send_request(folder, "stop")
        wait(lambda: conductor.stopping)
        assert conductor.stopped_by == f"stopped by {presence.myself()}"
    assert list(folder.iterdir()) == []


def test_what_is_no_request_changes_nothing(conductor: Any) -> None:
    with driver_lease(conductor):
        for content in ("{not JSON", "[]", '{"wish": "dance"}'):
            (conductor.folder / REQUEST).write_text(content)
            time.sleep(0.1)
    assert (conductor.stopping, conductor.pausing) == (False, False)


def test_a_dead_driver_is_none(tmp_path: Path) -> None:
    assert driver(tmp_path) is None
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    now = time.time() * 1000
    beats = [
        ({"host": socket.gethostname(), "pid": os.getpid(), "time": now}, True),
        ({"host": socket.gethostname(), "pid": int(gone.stdout), "time": now}, False),
        ({"host": "another", "pid": 1, "time": now - 5_000}, True),
        ({"host": "another", "pid": 1, "time": now - 120_000}, False),
    ]
    for beat, alive in beats:
        (tmp_path / DRIVER).write_text(json.dumps({"by": "me"} | beat))
        assert (driver(tmp_path) is not None) is alive


@pytest.mark.parametrize("mode", ["max", "min"])
def test_of_equal_validations_the_first_is_the_best(mode: str) -> None:
    trial = {"event": "trial_started", "time": 3, "kind": "trial", "trial_id": "0000", "params": {}, "config": {}}
    goal = STARTED["objective"] | {"mode": mode}
    events: list[dict[str, Any]] = [STARTED | {"objective": goal}, trial | {"tags": {}}]
    for number in (1, 2):
        validated = {"event": "validation", "trial_id": "0000", "validation": number, "seconds": 1.0, "time": 4}
        events.append(validated | {"metrics": {goal["metric"]: 0.5}})
    assert Ledger.of(events).trials["0000"].best_validation == 1


def test_a_status_counts_one_as_one(tmp_path: Path) -> None:
    budget = {"trials": Used(used=2.0, of=9), "epochs": Used(used=1.0, of=None)}
    found = status(Ledger.of([STARTED]), tmp_path).model_copy(update={"budget": budget})
    said = io.StringIO()
    Terminal(file=said, width=200).print(status_text(found, tmp_path))
    assert "used     2 of 9 trials, 1 epoch\n" in said.getvalue()


def test_a_status_tells_the_best_validation_before_any_trial_has_ended(tmp_path: Path) -> None:
    """Named as what it is so far; once a trial has won, that is the best."""
    trial = {"event": "trial_started", "time": 3, "kind": "trial", "params": {}, "config": {}, "tags": {}}
    events: list[dict[str, Any]] = [STARTED, trial | {"trial_id": "0000"}, trial | {"trial_id": "0001"}]
    metric = STARTED["objective"]["metric"]
    for trial_id, values in (("0000", [0.1, 0.4, 0.3]), ("0001", [0.2])):
        for number, value in enumerate(values, start=1):
            validated = {"event": "validation", "trial_id": trial_id, "validation": number, "seconds": 1.0, "time": 4}
            events.append(validated | {"metrics": {metric: value}})
    found = status(Ledger.of(events), tmp_path)
    assert found.best is None
    assert found.plain["so_far"] == {"trial_id": "0000", "validations": 3, "best": 0.4}
    said = io.StringIO()
    Terminal(file=said, width=200).print(status_text(found, tmp_path))
    assert f"so far   {metric} 0.4000 by 0000 after 3 validations; no trial has won yet\n" in said.getvalue()
    events.append({"event": "trial_ended", "trial_id": "0001", "state": "done", "reason": None, "time": 5})
    found = status(Ledger.of(events), tmp_path)
    assert found.plain["best"]["trial_id"] == "0001"
    assert found.plain["so_far"] == {"trial_id": "0000", "validations": 3, "best": 0.4}, (
        "a running trial is above the best"
    )
    events.append({"event": "trial_ended", "trial_id": "0000", "state": "done", "reason": None, "time": 6})
    found = status(Ledger.of(events), tmp_path)
    assert found.so_far is None and found.plain["best"]["trial_id"] == "0000"
    assert status(Ledger.of([STARTED]), tmp_path).so_far is None


def test_a_status_tells_a_lost_search_from_a_running_one(tmp_path: Path) -> None:
    ledger = Ledger.of([STARTED, STARTED | {"event": "search_resumed", "elapsed": 3600.0}])
    found = status(ledger, tmp_path).plain
    assert (found["state"], found["driver"]) == ("lost", None)
    assert found["budget"]["hours"] == {"used": 1.0, "of": 2.0}
    assert found["budget"]["trials"] == {"used": 0, "of": 9}
    beat = {"by": "me@here", "host": "another", "pid": 7, "time": time.time() * 1000}
    (tmp_path / DRIVER).write_text(json.dumps(beat))
    send_request(tmp_path, "stop")
    found = status(ledger, tmp_path).plain
    assert (found["state"], found["driver"], found["asked_to"]) == ("running", "me@here", "stop")
    ledger.apply(
        parse({"event": "search_ended", "state": "interrupted", "time": 2, "best": None, "reason": "stopped by me"})
    )
    assert status(ledger, tmp_path).reason == "stopped by me"
    assert status(ledger, tmp_path).driver is None
