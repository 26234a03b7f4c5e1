"""Searches in this process: one whose trainings are made, and one that is trained here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.recorded import begin

from orchestrator.config.resolve import resolve_search
from orchestrator.execution.inline import InlineRunner
from orchestrator.search.conductor import Conductor
from orchestrator.storage.journal import Journal
from orchestrator.storage.leaderboard import leaderboard_rows

SETTINGS = {"method": "proxy_anchor", "dataset": "glyphs-small", "epochs": 1, "device": "cpu", "embedding_dim": 8}


def conductor(folder: Path) -> Conductor:
    """Of a search of two points, one at a time."""
    raw = {"method": "proxy_anchor", "settings": {"device": "cpu"}, "space": {"lr": [1e-3, 1e-2]}, "algorithm": "grid"}
    search = resolve_search(raw, name="s", source="test.yaml")
    journal = Journal(folder / "journal.jsonl")
    first = begin(journal, search)
    return Conductor(search, folder, data=folder, journal=journal, events=[first], slots=1)


def leaderboard_here(space: Mapping[str, Any], folder: Path, data: Path) -> list[dict[str, Any]]:
    """The leaderboard of a search that this process trains, without pages and tracker, and without the seconds."""
    search = resolve_search(dict(space), name="here", source="test.yaml")
    folder.mkdir(parents=True)
    with Journal(folder / "journal.jsonl") as journal:
        alone = Conductor(search, folder, data=data, journal=journal, events=[begin(journal, search)], slots=1)
        InlineRunner().run(alone)
    rows: list[dict[str, Any]] = leaderboard_rows(alone.ledger)
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
