"""Locks of the folders of data sets: of one that is being made, for one process; of one that is in use, shared."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from orchestrator.storage.opening import open_file

LOCK = "lock"
"""The file that is locked in the folder of a store that is being made."""


@contextlib.contextmanager
def only_one(folder: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Lock a folder, created if necessary, against other processes. At the end it is removed if it is empty.

    `busy` is called if another process holds it; unless that raises, this process waits. Raises OSError if the folder
    cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
            lock = (folder / LOCK).open("w")
        except FileNotFoundError:
            continue  # the process that held it has just removed it
        with lock:
            _lock(lock, busy)
            try:
                is_same_file = os.fstat(lock.fileno()).st_ino == (folder / LOCK).stat().st_ino
            except FileNotFoundError:
                is_same_file = False
            if not is_same_file:
                continue
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    if [child.name for child in folder.iterdir()] == [LOCK]:
                        (folder / LOCK).unlink()
                        folder.rmdir()
            return


def hold_manifest(manifest: Path) -> int:
    """A descriptor of a store's manifest with a lock that it shares with others, until it is closed: what is locked is
    deleted by no process (see `orchestrator.data.copies`). FileNotFoundError if there is none; InputError if it is no
    regular file."""
    while True:
        with open_file(manifest) as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(file.fileno()), manifest.stat()):  # else it was deleted and made again
                return os.dup(file.fileno())


def _lock(lock: TextIO, busy: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):  # a file system without locks: all processes write the same
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            busy()
        fcntl.flock(lock, fcntl.LOCK_EX)
