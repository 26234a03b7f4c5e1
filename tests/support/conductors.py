"""A search in this process whose trainings are made."""

from pathlib import Path

from support.recorded import begin

from orchestrator.config.resolve import resolve_search
from orchestrator.search.conductor import Conductor
from orchestrator.storage.journal import Journal

SETTINGS = {"method": "proxy_anchor", "dataset": "glyphs-small", "epochs": 1, "device": "cpu", "embedding_dim": 8}


def conductor(folder: Path) -> Conductor:
    """Of a search of two points, one at a time."""
    raw = {"method": "proxy_anchor", "settings": {"device": "cpu"}, "space": {"lr": [1e-3, 1e-2]}, "algorithm": "grid"}
    search = resolve_search(raw, name="s", source="test.yaml")
    journal = Journal(folder / "journal.jsonl")
    first = begin(journal, search)
    return Conductor(search, folder, data=folder, journal=journal, events=[first], slots=1)
