"""A storage with a finished search."""

from pathlib import Path
from typing import Any

import pytest
from support.recorded import PLAIN, record

from orchestrator.storage.journal import Journal
from orchestrator.storage.places import JOURNAL, Places


def search(places: Places, name: str, best: float | None = 0.5, ended: bool = True, **more: Any) -> Path:
    """A search of one trial, in its folder."""
    folder = places.search(name)
    metric = more.get("objective", PLAIN["search_started"]["objective"])["metric"]
    with Journal(folder / JOURNAL) as journal:
        record(
            journal,
            "search_started",
            name=name,
            search_id=f"id-{name}",
            **{"config": {"num_trials": 4, "budget": {}, "raw_space": {}}} | more,
        )
        if best is not None:
            record(journal, "trial_started", trial_id="0000")
            record(
                journal, "validation", trial_id="0000", validation=1, seconds=60.0, metrics={metric: best}, elapsed=60.0
            )
            record(journal, "trial_ended", trial_id="0000")
        if ended:
            record(journal, "search_ended")
    (folder / "trials" / "0000").mkdir(parents=True)
    (folder / "trials" / "0000" / "best.pt").write_bytes(b"weights")
    return folder


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)
