"""What the outputs of a search import is imported while the final run trains in other processes."""

import gc
import importlib
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.execution.protocol import Failed, Work
from orchestrator.execution.worker import results
from orchestrator.imports import SELDOM, USUAL, seldom_collected
from orchestrator.search import finish


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


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds")
def test_garbage_is_seldom_looked_for_in_a_block_of_imports_only() -> None:
    """What trains afterwards may hold a GPU's memory in it; a user's own thresholds come back as they were."""
    for before, after in ((USUAL, USUAL), (SELDOM, USUAL), ((9, 9, 9), (9, 9, 9))):
        gc.set_threshold(*before)
        with seldom_collected():
            assert gc.get_threshold() == SELDOM
        assert gc.get_threshold() == after


@pytest.mark.usefixtures("thresholds")
def test_a_training_in_the_program_looks_for_garbage_as_usual(tmp_path: Path) -> None:
    gc.set_threshold(*SELDOM)  # as the program does
    work = Work("0000", {"method": "nope"}, str(tmp_path), str(tmp_path / "trial"))
    assert [type(result) for result in results(work)] == [Failed]
    assert gc.get_threshold() == USUAL
