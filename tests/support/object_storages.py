"""What holds of a storage in any object store."""

from pathlib import Path

import pytest

from orchestrator.storage.journal import Journal, JournalError, OvertakenError
from orchestrator.storage.paths import working_copy


def elsewhere(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """From here on we are the machine with this cache."""
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(cache))


def journal_of(storage: str, name: str = "x") -> Path:
    return working_copy(storage) / "searches" / name / "journal.jsonl"


def check_two_drivers(storage: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two drivers never write one number."""
    running = "the search is running: another process"
    with Journal(journal_of(storage)) as first:
        first.append("note", text="begin")
        elsewhere(monkeypatch, folder / "there")
        with Journal(journal_of(storage)) as second:
            first.append("note", text="mine")
            for _ in range(2):
                with pytest.raises(OvertakenError, match=rf"^{storage}/.*/journal/: {running}"):
                    second.append("note", text="mine")
            assert len(Journal.read(second.path)) == 1
        assert first.append("note", text="mine").seq == 2
        elsewhere(monkeypatch, folder / "here")
        with pytest.raises(JournalError, match=f"^{storage}.*: {running} is writing its"):
            Journal(first.path)
