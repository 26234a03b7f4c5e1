"""Repair of a damaged journal: it is cut to its intact part; the rest is moved, not deleted."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO

from orchestrator.errors import InputError
from orchestrator.storage.folder import Folder, faults_as_input_errors
from orchestrator.storage.journal import TAKEN, lock, lock_copy, refresh
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.opening import TRIALS, check_no_link, open_file
from orchestrator.storage.paths import display_path
from orchestrator.storage.reading import read_journal
from orchestrator.storage.records import Position, decode
from orchestrator.storage.segments import Segments
from orchestrator.storage.trial_files import MANIFEST
from orchestrator.storage.trial_record import ENDED
from orchestrator.text import pluralize

ASIDE = "damaged"


def cut(journal: Path) -> str | None:
    """Cut an unreadable journal at its first damaged line, and return what was done; None if it can be read.

    The original journal is moved to a folder `damaged-1` (2, ...) beside it, and so are the folders of the trials whose
    end is not in the intact part: their models may be of other points. Everything is sent to the trackers again.

    Raises:
        InputError: no line is intact, or another process is writing the journal.
    """
    with contextlib.suppress(InputError):
        refresh(journal)
    if not journal.is_file():
        return None
    with faults_as_input_errors(), lock_copy(journal), open_file(journal, "r+b") as file:
        if not lock(file):
            raise InputError(f"{display_path(journal)}: {TAKEN}")
        segments = Segments.of(journal)
        try:
            if segments is not None:
                segments.extend(file)
            read_journal(journal)
            return None
        except InputError as error:
            ledger, end = _whole(file)
            if not end.number:
                raise InputError(str(error)) from None
        check_no_link(journal.parent / TRIALS)
        aside = _unused_folder(journal.parent)
        aside.mkdir()
        file.seek(0)
        with open_file(aside / journal.name, "wb") as copy:
            shutil.copyfileobj(file, copy)
        if segments is not None:
            segments.cut(end.number, aside.name)
        ended = {trial.trial_id for trial in ledger.everyone() if trial.state in ENDED}
        _set_aside(journal.parent, aside, ended)
        file.truncate(end.offset)
        os.fsync(file.fileno())
    kept = pluralize(end.number, "record")
    return f"{kept} kept; the journal as it was, and what belongs to the rest: {display_path(aside)}"


def _whole(file: BinaryIO) -> tuple[Ledger, Position]:
    """The ledger of the intact lines of a journal, and the position after them."""
    ledger, end = Ledger(), Position()
    file.seek(0)
    for line in file:
        try:
            event, behind = decode(line, end)
            ledger.take(event, "journal")
        except ValueError:
            break
        end = behind
    return ledger, end


def _unused_folder(folder: Path) -> Path:
    number = 1
    while (folder_aside := folder / f"{ASIDE}-{number}").exists():
        number += 1
    return folder_aside


def _set_aside(folder: Path, aside: Path, ended: set[str]) -> None:
    """Move the trackers' cursors, and the folders of all trials except these."""
    for cursor in folder.glob("tracking-*.json"):
        cursor.rename(aside / cursor.name)
    for trial in sorted((folder / TRIALS).glob("*")):
        if trial.name not in ended:
            (aside / TRIALS).mkdir(exist_ok=True)
            trial.rename(aside / TRIALS / trial.name)
    for name in Folder(folder / TRIALS).folders():
        stored_folder = Folder(folder / TRIALS / name)
        if name not in ended and (content := stored_folder.read(MANIFEST)) is not None:
            Folder(aside / TRIALS / name).write(MANIFEST, content)
            stored_folder.remove(MANIFEST)  # its files are no longer valid
