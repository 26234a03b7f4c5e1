"""Whether a replay repeats the search that its table was recorded from."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.benchmarking.collecting import LEFT_OUT
from orchestrator.storage.events import Event, TrialEnded, TrialStarted, Validation
from orchestrator.storage.reading import read_journal


def find_difference(real: Path, replayed: Path) -> str | None:
    """Where a replay's journal first departs from that of a real search, in words; None if it is equal trial by trial:
    the same points in the same order, the same values at the same validations, the same ends."""
    steps = (list(_steps(read_journal(path)[0])) for path in (real, replayed))
    for number, (one, other) in enumerate(itertools.zip_longest(*steps), start=1):
        if one != other:
            return f"step {number}: {real}: {one}; {replayed}: {other}"
    return None


def _steps(events: Sequence[Event]) -> Iterator[tuple[Any, ...]]:
    """What happened, without times and what is not in a table."""
    for event in events:
        match event:
            case TrialStarted():
                yield "started", event.trial_id, event.params, event.attempts, event.config
            case Validation():
                metrics = {key: value for key, value in event.metrics.items() if not key.startswith(LEFT_OUT)}
                yield "validation", event.trial_id, event.validation, metrics, event.finished
            case TrialEnded():
                yield "ended", event.trial_id, event.state
