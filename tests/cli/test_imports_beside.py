"""What the outputs of a search import is imported beside the last trainings, which run in other processes."""

import contextlib
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.search import finish
from orchestrator.tracking import mlflow_store, models
from orchestrator.tracking.store import TrackingError


def ended() -> None:
    for thread in threading.enumerate():
        if thread.name == finish.IMPORTS:
            thread.join(30)


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the modules that are asked for, in order."""
    names: list[str] = []

    def note(name: str) -> None:
        names.append(name)
        if name == "missing":
            raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", note)
    return names


def test_every_module_once_and_a_missing_one_is_left_to_its_user(
    imported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "IMPORTED", ("missing", "second"))
    with finish.imports_beside() as begin:
        begin()
        begin()
        ended()
    assert imported == ["missing", "second"]


def test_mlflow_tells_its_makers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever import of it comes first: it begins to send when it is imported."""
    asked: list[str | None] = []

    def note(*_: object) -> None:
        asked.append(os.environ.get("MLFLOW_DISABLE_TELEMETRY"))

    monkeypatch.setattr(finish, "IMPORTED", ("mlflow.pytorch",))
    monkeypatch.setattr(importlib, "import_module", note)
    for name in ("mlflow", "mlflow.pytorch", "mlflow.pyfunc", "mlflow.tracking", "mlflow.utils"):
        monkeypatch.setitem(sys.modules, name, None)
    first: dict[str, Callable[[], object]] = {
        "a final run": begun,
        "a model is saved": lambda: models.save_mlflow_model(None, None, None, Path(), {}, []),
        "a model is loaded": lambda: models.load_mlflow_model(Path()),
        "a name is checked": lambda: models.check_model_names("sqlite:///nowhere.db", "name", "alias"),
        "the tracker": lambda: mlflow_store._open_client("sqlite:///nowhere.db"),
    }
    for use in first.values():
        monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
        with contextlib.suppress(ImportError, TrackingError):
            use()
        note()
    assert asked == ["true"] * 6


def begun() -> None:
    with finish.imports_beside() as begin:
        begin()
        ended()


def test_nothing_is_imported_unasked_and_nothing_further_after_the_end(
    imported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with finish.imports_beside():
        pass
    reached, let = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        imported.append(name)
        reached.set()
        let.wait(30)

    monkeypatch.setattr(importlib, "import_module", wait)
    with finish.imports_beside() as begin:
        begin()
        assert reached.wait(30)
    let.set()
    ended()
    assert imported == [finish.IMPORTED[0]]


def test_the_modules_exist() -> None:
    for name in finish.IMPORTED:
        assert importlib.util.find_spec(name) is not None, name
