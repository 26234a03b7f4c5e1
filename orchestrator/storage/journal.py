"""The record of a search: an append-only file of events, each on disk before it takes effect.

With a storage on an object store the file is a copy: each record is first an object there, then in the file.
"""

import contextlib
import errno
import fcntl
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.errors import InputError
from orchestrator.storage.events import Event, parse
from orchestrator.storage.folder import faults_as_input_errors
from orchestrator.storage.opening import Mode, make_folder, open_file
from orchestrator.storage.paths import display_path
from orchestrator.storage.records import KEPT, Position, Record, decode, encode_record, how_to_repair
from orchestrator.storage.segments import Segments

TAKEN = "the search is running: another process is writing its journal"


class JournalError(Exception):
    """The journal cannot be read or written; one line with the file and, if known, the line number."""


class OvertakenError(OSError, JournalError):
    """Another process has written to the journal of a search on an object store; this one must stop writing."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class Journal:
    """Append-only record of one search: one JSON object per line, with a checksum.

    A record holds `event`, `seq` (0, 1, 2, ...) and `time` (milliseconds since the epoch) beside its fields,
    and is on disk when `append` returns (without `sync`, when the next one that has it returns). Opening
    removes an incomplete last line left by a crash, and continues from there. Two processes never write one journal: on
    a disk a lock excludes the second, on an object store each number is used once, and a process that comes too late
    has lost the journal for good.

    Raises:
        JournalError: another process holds the journal, or a line is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        make_folder(path.parent)
        self._guard = threading.Lock()
        self._segments = Segments.of(path)
        self._fault: OSError | None = None
        self._file = _open(path, "a+b")
        try:
            with lock_copy(path):
                if not lock(self._file):
                    raise JournalError(f"{display_path(path)}: {TAKEN}")
                if self._segments is not None:
                    self._segments.extend(self._file)
            _, self._end = read_records(self._file, path, Position())
            self._file.truncate(self._end.offset)
        except BaseException:
            self._file.close()
            raise
        self._synced = self._end

    def append(self, event: str, *, sync: bool = True, **fields: Any) -> Event:
        """Write one record and return it as an event. Waiting for the disk is the costly part: a record that could be
        recovered otherwise, or that belongs to the next one, need not wait.

        Raises:
            ValueError: a field is not finite, not JSON, or named `event`, `seq`, `time` or `sum`; or the event does not
                match `storage/events.py`: then no process could read the journal again.
            OSError: the disk or the object store is full or gone; the journal stays intact.
        """
        if reserved := fields.keys() & KEPT:
            raise ValueError(f"journal event {event!r}: the field {min(reserved)!r} is set by the journal")
        if name := _non_finite(fields):
            raise ValueError(f"journal event {event!r}: {name} is not finite; a number must be finite")
        with self._guard:
            record = {"event": event, "seq": self._end.number, "time": time.time_ns() // 1_000_000, **fields}
            try:
                data, parsed_record, end = encode_record(record, self._end, _plain)
                parsed = parse(parsed_record)
            except (TypeError, ValueError, RecursionError, InputError) as error:
                raise ValueError(f"journal event {event!r}: {error}") from None
            if self._segments is not None:
                self._publish(self._segments, data)
            start = self._file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                # A partial line in the middle would damage everything after it.
                with contextlib.suppress(OSError):
                    self._file.truncate(start)
                if self._segments is not None:
                    self._fault = error  # the record is in the object store, and is valid
                raise
            self._end = end
            if sync:
                try:
                    os.fsync(self._file.fileno())
                except OSError as error:  # none of the unsynced records is reliable
                    with contextlib.suppress(OSError):
                        self._file.truncate(self._synced.offset)
                    self._end = self._synced
                    if self._segments is not None:
                        self._fault = error
                    raise
                self._synced = end
        return parsed

    def _publish(self, segments: Segments, data: bytes) -> None:
        """After a failure it is unknown whether the record was stored: a resume must read the records first."""
        if self._fault is not None:
            raise self._fault
        try:
            if not segments.publish(self._end.number, data):
                raise OvertakenError(errno.EIO, TAKEN, str(segments))
        except OSError as error:
            self._fault = error
            raise

    def close(self) -> None:
        """Release the file, so that another process may write it."""
        self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def read(path: Path) -> list[Record]:
        """All complete records of the journal at `path`; an incomplete last line is skipped.

        Raises:
            JournalError: the file cannot be read, or a line is damaged.
        """
        return read_noted(path)[0]


def read_noted(path: Path) -> tuple[list[Record], list[str]]:
    """The result of `Journal.read`, and notes of one line each on what could not be checked or was skipped."""
    try:
        with _open(path) as file:
            records, end = read_records(file, path, Position())
            notes = []
            if end.number and not end.summed:
                old = "is of an earlier version, without checksums: changes in it are not detected"
                notes.append(f"{display_path(path)}: {old}")
            if os.fstat(file.fileno()).st_size > end.offset:
                torn = "is incomplete and was left out (the process that wrote it was killed, or its machine stopped)"
                notes.append(f"{display_path(path)}:{end.number + 1}: the last line {torn}")
    except OSError as error:
        raise JournalError(f"{path}: cannot read the journal: {error.strerror}") from None
    return records, notes


def _open(path: Path, mode: Mode = "rb") -> BinaryIO:
    try:
        return open_file(path, mode)
    except InputError as error:
        raise JournalError(str(error)) from None


def refresh(path: Path) -> None:
    """Update the copy of a journal on an object store, or remove it if there is no journal; does nothing for a disk.

    Raises InputError if the store does not answer, or a record is missing or damaged.
    """
    if (segments := Segments.of(path)) is None:
        return
    with faults_as_input_errors(), lock_copy(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_file(path, "a+b") as file:
            if not lock(file):  # held by the search's driver on this machine, which writes the file
                return
            try:
                segments.extend(file)
            finally:
                if not os.fstat(file.fileno()).st_size:
                    shutil.rmtree(path.parent)


@contextlib.contextmanager
def lock_copy(path: Path) -> Iterator[None]:
    """Only one process on this machine at a time may update the copy of a journal; does nothing for a disk."""
    if Segments.of(path) is None:
        yield
        return
    name = path.parent.with_name(f".{path.parent.name}.lock")
    name.parent.mkdir(parents=True, exist_ok=True)
    with open_file(name, "wb") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield


def lock(file: BinaryIO) -> bool:
    """Whether `file` is now locked for this process alone, until it is closed or the process dies."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: assume it is free
    return True


@contextlib.contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Whether no process of this machine writes the journal at `path`; in this block none begins to. True if there is
    no journal."""
    try:
        file = open_file(path, "r+b")
    except (OSError, InputError):
        yield True
        return
    with file:
        yield lock(file)


def read_records(file: BinaryIO, path: Path, start: Position, limit: float = math.inf) -> tuple[list[Record], Position]:
    """Complete records from a place on, at most `limit`, and the place after the last. JournalError names the first
    damaged line; an incomplete last line, or one of zeros left by a crash, does not count as damaged."""
    file.seek(start.offset)
    records: list[Record] = []
    while len(records) < limit:
        line = file.readline()
        if not line.endswith(b"\n"):
            break
        try:
            record, start = decode(line, start)
        except ValueError as error:
            if not line.strip(b"\0\n") and not file.read(1):
                break
            where, how = f"{path}:{start.number + 1}", how_to_repair(path.parent.name, start.number)
            raise JournalError(f"{where}: corrupt journal line: {error}{how}") from None
        records.append(record)
    return records, start


def _non_finite(value: Any, name: str = "") -> str | None:
    """The dotted name and value of the first number that is not finite."""
    if isinstance(value, Mapping):
        items = [(f"{name}.{key}" if name else str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    else:
        number = value if isinstance(value, float) else _plain_or_none(value)
        return f"{name} = {number}" if isinstance(number, float) and not math.isfinite(number) else None
    return next((message for key, item in items if (message := _non_finite(item, key))), None)


def _plain(value: Any) -> Any:
    """A path or a numpy scalar as a JSON value."""
    if isinstance(value, Path):
        return str(value)
    if (plain := _plain_or_none(value)) is not None:
        return plain
    raise TypeError(f"{value!r} ({type(value).__name__}) is not JSON")


def _plain_or_none(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else None
