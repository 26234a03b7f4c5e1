"""The events of searches that never ran, by one builder: each has the fields that a search's own events have."""

from pathlib import Path
from typing import Any

from orchestrator.config.search import Search
from orchestrator.storage.events import FORMAT, Event, parse
from orchestrator.storage.journal import Journal, read_records
from orchestrator.storage.records import Position, encode_record

PLAIN: dict[str, dict[str, Any]] = {
    "search_started": {
        "format": FORMAT,
        "name": "s",
        "search_id": "id",
        "dataset": "glyphs",
        "method": "pfml",
        "objective": {"metric": "val/map_at_r", "mode": "max"},
        "config": {"raw_space": {}},
        "params": {},
        "tags": {},
    },
    "search_resumed": {"tags": {}},
    "search_ended": {"state": "done", "best": None, "reason": None},
    "trial_started": {"kind": "trial", "params": {}, "config": {}, "tags": {}, "note": None, "source": None},
    "validation": {"metrics": {}, "seconds": 1.0, "finished": False},
    "result": {},
    "trial_ended": {"state": "done", "reason": None},
    "artifact": {"folder": ""},
    "model": {},
    "note": {"important": [], "least": None},
}


def record(journal: Journal, event: str, **fields: Any) -> Event:
    """Write an event; a field that is not given has a plain value."""
    return journal.append(event, **PLAIN[event] | fields)


def events_of(path: Path) -> list[Event]:
    """What a journal holds."""
    return [parse(written) for written in Journal.read(path)]


def forge(path: Path, event: str, **fields: Any) -> None:
    """Add a record with a right checksum to a journal, whatever it says."""
    with path.open("r+b") as file:
        _, end = read_records(file, path, Position())
        line, _, _ = encode_record({"event": event, "seq": end.number, "time": 1, **fields}, end)
        file.seek(end.offset)
        file.write(line)


def begin(journal: Journal, search: Search, **fields: Any) -> Event:
    """Write the first event of this search."""
    known: dict[str, Any] = {"name": search.name, "dataset": search.dataset, "config": search.model_dump()}
    known |= {"method": search.settings.get("method", "several"), "objective": search.objective.model_dump()}
    return record(journal, "search_started", **known | fields)
