"""A search's journal, opened to continue it or read for display."""

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.storage import paths
from orchestrator.storage.cursors import events_sent
from orchestrator.storage.events import Event
from orchestrator.storage.files import what_is
from orchestrator.storage.folder import faults_as_input_errors
from orchestrator.storage.journal import TAKEN, Journal, JournalError, read_noted
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import LEADERBOARD, PAGE
from orchestrator.storage.presence import DRIVER, REQUEST, living_driver
from orchestrator.storage.records import how_to_repair
from orchestrator.text import pluralize


@contextlib.contextmanager
def open_journal(path: Path) -> Iterator[Journal]:
    """The journal, held by this process alone."""
    with faults_as_input_errors():
        alive = living_driver(path.parent)
    if alive is not None:
        raise InputError(f"{paths.display_path(path)}: {TAKEN} ({alive['by']})")
    for file in (path.parent / name for name in (LEADERBOARD, DRIVER, REQUEST, PAGE, "study.journal")):
        if (what := what_is(file)) is not None:
            raise InputError(f"{paths.display_path(file)}: is {what}, where the search writes a file: move it away")
    try:
        journal = Journal(path)
    except JournalError as error:
        raise InputError(str(error)) from None
    except OSError as error:
        where = error.filename or path
        raise InputError(f"{where}: cannot be written ({error.strerror}): fix that and try again") from None
    with journal:
        yield journal


@contextlib.contextmanager
def _collecting_later() -> Iterator[None]:
    """Without Python's search for cycles, of which events have none: it would go through all that are read again and
    again, a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_journal(path: Path) -> tuple[list[Event], Ledger]:
    """The events of a search and their ledger; InputError naming the line if the journal is damaged."""
    with _collecting_later():
        try:
            sent = events_sent(path)  # first of all: a running search may send more in the meantime
            records, notes = read_noted(path)
        except JournalError as error:
            raise InputError(str(error)) from None
        ledger = Ledger()
        events = ledger.take_all(records, paths.display_path(path))
    if (lost := sent.get(ledger.search_id, 0) - len(events)) > 0:
        where = f"{paths.display_path(path)}:{len(events) + 1}"
        how = how_to_repair(path.parent.name, len(events))
        raise InputError(f"{where}: {pluralize(lost, 'line')} missing, that were sent to MLflow{how}")
    ledger.notes, ledger.folder = notes, path.parent
    ledger.rename(path.parent.name)
    return events, ledger
