"""How far a journal was sent to each tracker, and its runs there; files beside the journal."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.storage.atomic import write_whole
from orchestrator.storage.files import read_json


@dataclass
class Cursor:
    """How far a journal has been sent to one address, and its runs there; a file beside the journal."""

    search_id: str | None = None
    events: int = 0  # acknowledged
    offset: int = 0  # bytes acknowledged
    experiment_id: str | None = None
    runs: dict[str | None, str] = field(default_factory=dict)
    address: str | None = None

    @classmethod
    def load(cls, path: Path | None) -> "Cursor":
        """The stored cursor; if it cannot be read, one at the start: then everything is sent again."""
        try:
            fields = read_json(path) if path else {}
            runs: dict[str | None, Any] = {**fields["trials"]}
            if fields["parent_run_id"]:
                runs[None] = fields["parent_run_id"]
            events, offset, address = int(fields["events"]), int(fields["offset"]), fields.get("tracking_uri")
            texts = [fields["search_id"], fields["experiment_id"], address]
            if min(events, offset) < 0 or not all(isinstance(text, str | None) for text in [*texts, *runs.values()]):
                return cls()
            return cls(fields["search_id"], events, offset, fields["experiment_id"], runs, address)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return cls()

    def save(self, path: Path, address: str) -> None:
        """Replace the file at `path` atomically; `address` is for human readers."""
        content = {
            "tracking_uri": address,
            "search_id": self.search_id,
            "events": self.events,
            "offset": self.offset,
            "experiment_id": self.experiment_id,
            "parent_run_id": self.runs.get(None),
            "trials": {trial: run for trial, run in self.runs.items() if trial is not None},
        }
        write_whole(path, json.dumps(content).encode(), sync=False)  # what is lost is sent again


@dataclass(frozen=True)
class RecordedRuns:
    """The address to which a journal was last sent, without credentials, and the ids of its runs there."""

    tracking_uri: str | None = None
    experiment_id: str | None = None
    parent_run_id: str | None = None
    trials: Mapping[str, str] = field(default_factory=dict)


def events_sent(journal_path: Path) -> dict[str | None, int]:
    """How many events were sent to any tracker, by search, according to the cursors beside a journal."""
    sent: dict[str | None, int] = {}
    for path in journal_path.parent.glob("tracking-*.json"):
        cursor = Cursor.load(path)
        sent[cursor.search_id] = max(cursor.events, sent.get(cursor.search_id, 0))
    return sent


def recorded_runs(journal_path: Path) -> RecordedRuns:
    """The content of the newest cursor beside a journal, without a request; empty if no tracker was ever reached."""
    cursors = sorted(journal_path.parent.glob("tracking-*.json"), key=lambda path: path.lstat().st_mtime)
    if not cursors:
        return RecordedRuns()
    cursor = Cursor.load(cursors[-1])
    trials = {trial: run for trial, run in cursor.runs.items() if trial is not None}
    if not cursor.search_id:
        return RecordedRuns()  # damaged: sending again will find the runs
    return RecordedRuns(cursor.address, cursor.experiment_id, cursor.runs.get(None), trials)
