"""A study that is driven without Ray."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.recorded import begin, events_of

from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.execution.protocol import Validated, Work
from orchestrator.search.conductor import Conductor
from orchestrator.storage.journal import Journal

TPE: dict[str, Any] = {
    "method": "pfml",
    "dataset": "glyphs-small",
    "settings": {"epochs": 6},
    "space": {"delta": {"low": 0.1, "high": 0.35}, "alpha": {"low": 0, "high": 6}},
    "num_trials": 9,
    "scheduler": {"name": "asha", "grace_validations": 1, "reduction_factor": 2},
}


EPOCHS = 6


def search_of(raw: dict[str, Any], **changes: Any) -> Search:
    return resolve_search(raw | changes, name="s", source="s.yaml")


def curve(params: Mapping[str, Any]) -> list[float]:
    """A made learning curve: best near delta 0.2, alpha 4; the last value is not the best. With another seed than 0 a
    point may be much better or worse."""
    top = 0.9 - 2 * abs(params.get("delta", 0.2) - 0.2) - 0.05 * abs(params.get("alpha", 4) - 4)
    top += 0.2 * math.sin(1e4 * params.get("seed", 0) * params.get("delta", 0.2))
    return [top * (1 - 0.5**n) - (0.1 if n == EPOCHS else 0) for n in range(1, EPOCHS + 1)]


def start(search: Search, folder: Path, slots: int = 1) -> Conductor:
    path = folder / "journal.jsonl"
    journal = Journal(path)
    events = events_of(path)
    if not events:
        events = [begin(journal, search)]
    return Conductor(search, folder, data=folder, journal=journal, events=events, slots=slots)


def result(work: Work, number: int, value: float | None, last: int) -> Validated:
    metrics = {} if value is None else {"val/map_at_r": value}
    return Validated(
        work.trial_id,
        number,
        metrics | {"train/loss": 1.0, "epoch": float(number)},
        seconds=0.5 + 0.1 * (work.experiment.flat().get("alpha") or 0),
        finished=number == last,
        test={"map_at_r": 0.5, "recall_at_1": 0.7} if work.test and number == last else {},
    )


def drive(conductor: Conductor, die_after: float = math.inf) -> int:
    """Run everything, one trial at a time; stop dead after so many reports."""
    reports = 0
    while not conductor.is_finished:
        work = conductor.next()
        assert work is not None
        values = curve(work.experiment.flat())
        last = work.stop_after or EPOCHS
        for number in range(1, last + 1):
            if reports >= die_after:
                conductor.journal.close()
                return reports
            reports += 1
            if conductor.report(result(work, number, None if work.test else values[number - 1], last)):
                break
    conductor.end()
    conductor.journal.close()
    return reports


def play(conductor: Conductor) -> None:
    """Run everything, as many trials at a time as there are slots, one report each in turn."""
    running: list[tuple[Work, int]] = []
    while not conductor.is_finished:
        while (work := conductor.next()) is not None:
            running.append((work, 0))
        work, done = running.pop(0)
        last = work.stop_after or EPOCHS
        value = None if work.test else curve(work.experiment.flat())[done]
        if not conductor.report(result(work, done + 1, value, last)):
            running.append((work, done + 1))
    conductor.end()
    conductor.journal.close()
