"""The record of a search: an append-only file of events, on disk before anything they tell of takes effect.

Of a storage on an object store the file is a copy: each record is an object there, before it is in the file.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.objects import Segments, refused_in_one_line, shown

Event = dict[str, Any]

TAKEN = "the search is running: another process is writing its journal"


class JournalError(Exception):
    """The journal cannot be read or written; one line with the file and, where known, the line number."""


class OvertakenError(OSError, JournalError):
    """Another process has written to the journal of a search on an object store; this one must not any more."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class Journal:
    """Append-only record of one search: one JSON object per line.

    A record holds `event`, `seq` (0, 1, 2, ...) and `time` (milliseconds since the epoch) beside its fields,
    and is on disk when `append` returns (without `sync`, when the next one that has it returns). Opening cuts a
    last line that a crash left torn, and goes on from there. Two processes never write one journal: on a disk a lock
    keeps the second out, on an object store each number is taken once, and whoever comes too late has lost the journal
    for good.

    Raises:
        JournalError: another process holds the journal, or a line in the middle is corrupt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._guard = threading.Lock()
        self._segments = Segments.of(path)
        self._fault: OSError | None = None
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (held for the journal's life)
        try:
            with alone(path):
                if not lock(self._file):
                    raise JournalError(f"{shown(path)}: {TAKEN}")
                if self._segments is not None:
                    self._segments.extend(self._file)
            events, end = read_events(self._file, path, 0)
            self._file.truncate(end)
        except BaseException:
            self._file.close()
            raise
        self._seq = len(events)
        self._synced = end, self._seq

    def append(self, event: str, *, sync: bool = True, **fields: Any) -> Event:
        """Write one record and return it as stored. Waiting for the disk is what costs: what could be known again
        without its record need not wait, nor does what belongs to the next.

        Raises:
            ValueError: a field is not finite, not JSON, or named `event`, `seq` or `time`.
            OSError: the disk is full or gone, or the object store; the journal stays whole.
        """
        if taken := {"seq", "time"} & fields.keys():
            raise ValueError(f"journal event {event!r}: the field {min(taken)!r} is set by the journal")
        if name := _non_finite(fields):
            raise ValueError(f"journal event {event!r}: {name} is not finite; a number must be finite")
        with self._guard:
            record = {"event": event, "seq": self._seq, "time": time.time_ns() // 1_000_000, **fields}
            try:
                line = json.dumps(record, default=_plain, allow_nan=False, ensure_ascii=False)
            except (TypeError, ValueError) as error:
                raise ValueError(f"journal event {event!r}: {error}") from None
            data = line.encode() + b"\n"
            if self._segments is not None:
                self._publish(self._segments, data)
            start = self._file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                # Half a line in the middle would spoil everything after it.
                with contextlib.suppress(OSError):
                    self._file.truncate(start)
                if self._segments is not None:
                    self._fault = error  # the record is there, and counts
                raise
            self._seq += 1
            if sync:
                try:
                    os.fsync(self._file.fileno())
                except OSError as error:  # none of what waited can be relied upon
                    with contextlib.suppress(OSError):
                        self._file.truncate(self._synced[0])
                    self._seq = self._synced[1]
                    if self._segments is not None:
                        self._fault = error
                    raise
                self._synced = self._file.seek(0, os.SEEK_END), self._seq
        stored: Event = json.loads(line)
        return stored

    def _publish(self, segments: Segments, data: bytes) -> None:
        """After a failure nobody knows whether the record is there: whoever goes on must begin by reading them."""
        if self._fault is not None:
            raise self._fault
        try:
            if not segments.publish(self._seq, data):
                raise OvertakenError(errno.EIO, TAKEN, str(segments))
        except OSError as error:
            self._fault = error
            raise

    def close(self) -> None:
        """Let go of the file, so that another process may write it."""
        self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def read(path: Path) -> list[Event]:
        """All whole records of the journal at `path`; a torn last line is left out.

        Raises:
            JournalError: the file cannot be read, or a line that is not the last is corrupt.
        """
        try:
            with open(path, "rb") as file:
                return read_events(file, path, 0)[0]
        except OSError as error:
            raise JournalError(f"{path}: cannot read the journal: {error.strerror}") from None


def refresh(path: Path) -> None:
    """Bring the copy of a journal on an object store up to date, or remove it if there is none; nothing on a disk.

    Raises InputError if the store cannot be asked, or a record is missing or damaged.
    """
    if (segments := Segments.of(path)) is None:
        return
    with refused_in_one_line(), alone(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b") as file:
            if not lock(file):  # by the search's driver on this machine, which writes it
                return
            try:
                segments.extend(file)
            finally:
                if not os.fstat(file.fileno()).st_size:
                    shutil.rmtree(path.parent)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Of the processes on this machine, one at a time brings the copy of a journal up to date; nothing on a disk."""
    if Segments.of(path) is None:
        yield
        return
    name = path.parent.with_name(f".{path.parent.name}.lock")
    name.parent.mkdir(parents=True, exist_ok=True)
    with name.open("wb") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield


def lock(file: BinaryIO) -> bool:
    """Whether `file` is now locked for this process alone, until it is closed or the process dies."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: nothing can be said
    return True


def read_events(file: BinaryIO, path: Path, offset: int, limit: float = math.inf) -> tuple[list[Event], int]:
    """Whole records from the byte `offset` on, at most `limit` of them, and the offset behind the last."""
    file.seek(offset)
    events: list[Event] = []
    while len(events) < limit:
        line = file.readline()
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not {"event", "seq", "time"} <= record.keys():
                raise ValueError("not a record with event, seq and time")
        except ValueError as error:
            if not file.read(1):
                break
            file.seek(0)
            number = file.read(offset).count(b"\n") + 1
            raise JournalError(f"{path}:{number}: corrupt journal line: {error}") from None
        events.append(record)
        offset += len(line)
    return events, offset


def _non_finite(value: Any, name: str = "") -> str | None:
    """The dotted name and value of the first number that is not finite."""
    if isinstance(value, Mapping):
        items = [(f"{name}.{key}" if name else str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    else:
        number = value if isinstance(value, float) else _plain_or_none(value)
        return f"{name} = {number}" if isinstance(number, float) and not math.isfinite(number) else None
    return next((found for key, item in items if (found := _non_finite(item, key))), None)


def _plain(value: Any) -> Any:
    """A path or a numpy scalar as JSON knows it."""
    if isinstance(value, Path):
        return str(value)
    if (plain := _plain_or_none(value)) is not None:
        return plain
    raise TypeError(f"{value!r} ({type(value).__name__}) is not JSON")


def _plain_or_none(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else None
