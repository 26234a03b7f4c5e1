"""Trackers of a running search, and the sync of one that has ended."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import orchestrator
from orchestrator.errors import InputError, redact
from orchestrator.storage.cursors import Cursor
from orchestrator.storage.journal import JournalError, lock
from orchestrator.storage.opening import open_file, remove_file
from orchestrator.storage.paths import display_path
from orchestrator.storage.places import Places
from orchestrator.text import pluralize
from orchestrator.tracking.address import (
    SQLITE,
    check_tracking_uri,
    database_path,
    default_tracking_uri,
    error_line,
    is_trusted,
)
from orchestrator.tracking.loggers.base import Logger
from orchestrator.tracking.mlflow_store import MLflowStore
from orchestrator.tracking.origin import ORIGIN, Origin
from orchestrator.tracking.sender import Sender, cursor_name, lines_after
from orchestrator.tracking.store import Lost, Refused, TrackingError

LONGEST_BACKOFF_SECONDS = 30.0
ATTEMPTS = 4
"""Of `sync`, without any progress between them."""
START_SECONDS = 5.0
"""How long MLflow's import waits for those of the first trials."""


class Tracker(Protocol):
    """Keeps a tracking store in sync with a journal. `problem` is one line, None if there is no problem."""

    @property
    def experiment_id(self) -> str | None: ...
    @property
    def parent_run_id(self) -> str | None: ...
    @property
    def problem(self) -> str | None: ...
    @property
    def backlog(self) -> int: ...
    @property
    def no_views(self) -> str | None: ...
    def run_id(self, trial_id: str) -> str | None: ...
    def notify(self) -> None: ...
    def close(self, timeout: float) -> bool: ...


class MLflowTracker:
    """Has a process of its own send a journal to MLflow; nothing here raises, prints or waits.

    A failure is kept as `problem` and tried again after 1, 2, 4, ... 30 seconds. A process that was killed is
    started again. See `orchestrator.tracking.tracker_process` for what is said to it.

    Raises:
        TrackingError: `tracking_uri` is not valid for sending; only the constructor raises.
    """

    def __init__(self, journal_path: Path, tracking_uri: str, artifact_root: Path | None) -> None:
        self._journal = journal_path
        uri = check_tracking_uri(tracking_uri)
        self._cursor_path = journal_path.parent / cursor_name(redact(uri))
        request = {
            "journal": str(journal_path),
            "tracking_uri": uri,
            "artifact_root": str(artifact_root) if artifact_root is not None else None,
            "longest_backoff": LONGEST_BACKOFF_SECONDS,
        }
        self._asked = json.dumps(request).encode() + b"\n"
        search_path = [part or "." for part in sys.path if isinstance(part, str)]
        places = [*search_path, str(Path(orchestrator.__file__).parent.parent)]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
        self.no_views: str | None = None
        self._problem: str | None = None
        self._refused: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._told, self._closing, self._over = threading.Lock(), threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        """Keep a process until it has ended as it was told to."""
        delay = 1.0
        self._closing.wait(START_SECONDS)
        while not self._over:
            last = self._closing.is_set()
            try:
                code = self._attend(self._start())
            except Exception as error:  # tracking never ends a search
                self._problem = f"the process that sends to MLflow does not start: {error_line(error)}"
            else:
                if self._over or (code == 0 and self._closing.is_set()):
                    return
                self._problem = f"the process that sends to MLflow ended with code {code}"
            if last:
                return
            self._closing.wait(delay)
            delay = min(2 * delay, LONGEST_BACKOFF_SECONDS)

    def _start(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.tracking.tracker_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            process_group=0,  # Ctrl-C is for the search; in a session of its own niceness would not count
            env=self._environment,
        )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)  # nothing waits for a process that does not read
        with self._told:
            self._process = process
            self._tell(self._asked)
            if self._closing.is_set():
                self._tell(b"close\n")
            if self._over:
                process.kill()
        return process

    def _attend(self, process: "subprocess.Popen[bytes]") -> int:
        """Read what a process says until it ends; its exit code."""
        assert process.stdout is not None
        for line in io.BufferedReader(cast(io.RawIOBase, process.stdout)):
            with contextlib.suppress(ValueError, TypeError, KeyError):  # half a line, or what another wrote
                answer = json.loads(line)
                self._problem = answer["problem"]
                self._refused = answer["refused"] or self._refused
                self.no_views = answer["no_views"] or self.no_views
        with self._told:  # nobody writes to it any more
            self._process = None
            if process.stdin is not None:
                process.stdin.close()
        process.stdout.close()
        return process.wait()

    def _tell(self, line: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended
                self._process.stdin.write(line)

    @property
    def problem(self) -> str | None:
        """Why events are waiting, or which were refused for good."""
        return self._problem or self._refused

    @property
    def _cursor(self) -> Cursor:
        return Cursor.load(self._cursor_path)

    @property
    def experiment_id(self) -> str | None:
        """The experiment's id, None until it is sent."""
        return self._cursor.experiment_id

    @property
    def parent_run_id(self) -> str | None:
        """The search's own run, None until it is sent."""
        return self._cursor.runs.get(None)

    @property
    def backlog(self) -> int:
        """How many journaled events were not sent yet."""
        return lines_after(self._journal, self._cursor.offset)

    def run_id(self, trial_id: str) -> str | None:
        """The trial's run, None until it is sent."""
        return self._cursor.runs.get(trial_id)

    def notify(self) -> None:
        """New events were journaled. Returns at once and never raises."""
        with self._told:
            self._tell(b"\n")

    def close(self, timeout: float) -> bool:
        """Send the rest, trying once more if the server did not answer; True if everything was sent.

        Waits at most `timeout` seconds; after them nothing is sent any more, so that `sync` may. With 0 seconds nothing
        more is begun.
        """
        with self._told:
            self._over = timeout <= 0
            self._closing.set()
            self._tell(b"close\n")
        self._thread.join(timeout)
        with self._told:
            self._over = True
            if self._process is not None:
                self._process.kill()
        self._thread.join(min(timeout, 1.0))
        return self._problem is None and self.backlog == 0


@contextlib.contextmanager
def ended_on_failure(tracker: Tracker) -> Iterator[Tracker]:
    """Have a tracker begin nothing more if the block raises: its process would live, and send, as long as this one."""
    try:
        yield tracker
    except BaseException:
        tracker.close(0)
        raise


@dataclass(frozen=True)
class Deletion:
    """What became of a search's runs at one tracker: how many are deleted now, and why others, if any, are not."""

    address: str
    runs: int
    problem: str | None = None


def delete_runs(journal_path: Path, places: Places, tracking_uri: str | None = None) -> list[Deletion]:
    """Delete the runs that a search sent, at each tracker; `tracking_uri` is needed for one with a password, and for
    one that the user has never given here. Never raises: a tracker that does not answer is a `problem`, and so are
    runs that another folder sent, of which this one is a copy."""
    deletions = []
    gone: set[tuple[str, str]] = set()  # a storage that was copied may have two records of its own database
    for path in sorted(journal_path.parent.glob("tracking-*.json")):
        cursor = Cursor.load(path)
        if not cursor.runs or cursor.address is None:
            continue
        deleted, kept = 0, Counter[str]()
        try:
            address = _address_now(cursor.address, places, tracking_uri)
            store = MLflowStore(address, places.artifacts)
            store.connect()
            for run_id in cursor.runs.values():
                if (address, run_id) in gone:
                    continue
                with contextlib.suppress(Lost, Refused):  # it is gone
                    origin = Origin.read(store.tag(run_id, ORIGIN))
                    other = None
                    if origin is not None:
                        other = origin.other_than(path.parent, cursor_name(address), run_id)
                    if other is not None:
                        kept[other] += 1
                        continue
                    store.delete(run_id)
                    gone.add((address, run_id))
                    deleted += 1
            deletions.append(Deletion(cursor.address, deleted, _copied_text(kept)))
        except (TrackingError, InputError) as error:
            deletions.append(Deletion(cursor.address, deleted, error_line(error)))
    return deletions


def _copied_text(kept: Mapping[str, int]) -> str | None:
    """Why runs are kept, by the other folders that sent them."""
    if not kept:
        return None
    senders = [f"{pluralize(count, 'of them was', 'of them were')} sent by {of}" for of, count in kept.items()]
    return f"{' and '.join(senders)}, of which this is a copy: they are deleted with that, or in MLflow"


def _address_now(recorded: str, places: Places, given: str | None) -> str:
    """The address of a tracker that is recorded without its secret parts, or from before the storage was moved or
    copied: a database that the user has never given is the storage's own."""
    if given and redact(given) == recorded:
        return given
    if "***" in recorded:
        raise TrackingError("its secret parts are not recorded: give --tracking-uri")
    if is_trusted(recorded):
        return recorded
    default = default_tracking_uri(places.storage)
    if not recorded.startswith(SQLITE):
        raise TrackingError("only this storage names that address, so nothing is sent there; delete its runs in MLflow")
    if not database_path(default).exists():
        raise TrackingError("there is no such database in this storage")
    return default


def mlflow_sender(journal_path: Path, tracking_uri: str, artifact_root: Path | None) -> Sender:
    """What sends a journal to MLflow."""
    store = MLflowStore(tracking_uri, artifact_root)
    address = redact(store.uri)
    return Sender(journal_path, store, journal_path.parent / cursor_name(address), address)


@dataclass(frozen=True)
class SyncReport:
    """The result of `sync`: events sent now, runs in MLflow, ids, and writes that MLflow refused for good."""

    events: int
    runs: int
    experiment_id: str | None
    parent_run_id: str | None
    refused: list[str]


def _check_record(journal: Path) -> None:
    """TrackingError if the record of what was sent could not be kept beside the journal."""
    if not journal.parent.is_dir():
        return
    try:
        tempfile.TemporaryFile(dir=journal.parent).close()
    except OSError as error:
        raise TrackingError(
            f"{display_path(journal.parent)}: cannot be written ({error.strerror}), and what was sent is recorded "
            "there: "
            "make it writable, or copy the storage and name the copy with --storage"
        ) from None


def sync(journal_path: Path, tracking_uri: str, artifact_root: Path | None) -> SyncReport:
    """Send the events of a journal that MLflow lacks, in the foreground.

    Raises:
        TrackingError: the address is wrong, does not answer, or the search is running and sends its events itself.
        JournalError: there is no such journal, or it is corrupt.
    """
    check_tracking_uri(tracking_uri)
    _check_record(journal_path)
    try:
        journal = open_file(journal_path, "r+b")
    except OSError as error:
        raise JournalError(f"{journal_path}: cannot read the journal: {error.strerror}") from None
    with journal:
        if not lock(journal):
            raise TrackingError(f"{journal_path}: the search is running and sends its events itself")
        sender = mlflow_sender(journal_path, tracking_uri, artifact_root)
        _send_patiently(sender)
    cursor = sender.cursor
    return SyncReport(sender.sent, len(cursor.runs), cursor.experiment_id, cursor.runs.get(None), sender.refused)


def _send_patiently(sender: Sender) -> None:
    """Send all, going on where a fault of the server cut it short: after 1, 2, 4 and 8 seconds without progress it is
    given up, and at once where nothing was ever written (but once: the database may have been replaced)."""
    runs, failures = 0, 0
    while True:
        try:
            return sender.send()
        except TrackingError:
            failures = 1 if sender.runs_written > runs else failures + 1
            runs = sender.runs_written
            if failures > (ATTEMPTS if runs else 1):
                raise
        if runs:
            time.sleep(2.0 ** (failures - 1))


def write_log(journal_path: Path, logger: Logger, folder: Path) -> SyncReport:
    """Write the events of a journal that another program's `folder` lacks; a search that runs may be written too.

    Raises:
        TrackingError: it cannot be written.
        JournalError: the journal is corrupt.
    """
    _check_record(journal_path)
    cursor = journal_path.parent / f"logger-{logger.name}.json"
    if not folder.exists():  # deleted: everything is written again
        remove_file(cursor)
    try:
        sender = Sender(journal_path, logger.store(folder), cursor, str(folder))
    except OSError as error:
        raise TrackingError(f"{error.filename or folder}: cannot be written ({error.strerror})") from None
    try:
        sender.send()
    except TrackingError:
        sender.send()  # a part of the folder was deleted: everything is written again
    return SyncReport(sender.sent, len(sender.cursor.runs), sender.cursor.experiment_id, None, sender.refused)
