"""Trackers of a running search, and the sync of one that has ended."""

import contextlib
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import InputError
from orchestrator.storage.cursors import Cursor
from orchestrator.storage.journal import JournalError, lock
from orchestrator.storage.paths import shown
from orchestrator.storage.places import Places
from orchestrator.tracking.address import check_tracking_uri, default_tracking_uri, one_line, redact
from orchestrator.tracking.loggers.base import Logger
from orchestrator.tracking.mlflow_store import MLflowStore
from orchestrator.tracking.sender import Sender, cursor_name
from orchestrator.tracking.store import Lost, MemoryStore, Refused, TrackingError

LONGEST_BACKOFF_SECONDS = 30.0
GATHER_SECONDS = 3.0


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


class _SenderTracker:
    """What both trackers share: the ids, the backlog and the last problem of their sender."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._problem: str | None = None

    @property
    def experiment_id(self) -> str | None:
        """The experiment's id, None until it is sent."""
        return self._sender.cursor.experiment_id

    @property
    def parent_run_id(self) -> str | None:
        """The search's own run, None until it is sent."""
        return self._sender.cursor.runs.get(None)

    @property
    def problem(self) -> str | None:
        """Why events are waiting, or which were refused for good."""
        return self._problem or next(iter(self._sender.refused), None)

    @property
    def backlog(self) -> int:
        """How many journaled events were not sent yet."""
        return self._sender.backlog()

    @property
    def no_views(self) -> str | None:
        """Why the server has no saved views, if it has none."""
        return self._sender.no_views

    def run_id(self, trial_id: str) -> str | None:
        """The trial's run, None until it is sent."""
        return self._sender.cursor.runs.get(trial_id)

    def _try(self) -> bool:
        try:
            self._sender.send()
        except Exception as error:  # tracking never ends a search
            self._problem = one_line(error)
            return False
        self._problem = None
        return True


class MemoryTracker(_SenderTracker):
    """The same projection into plain dicts (`runs`, see MemoryStore), immediately and in the caller's thread."""

    def __init__(self, journal_path: Path) -> None:
        self.store = MemoryStore()
        super().__init__(Sender(journal_path, self.store, None, "memory"))

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """Run id -> run."""
        return self.store.runs

    def notify(self) -> None:
        """Project the new events of the journal."""
        self._try()

    def close(self, timeout: float) -> bool:
        """Whether everything is projected."""
        return self._try() and self.backlog == 0


class MLflowTracker(_SenderTracker):
    """Sends a journal to MLflow from a daemon thread that never raises and never prints.

    A failure is kept as `problem` and tried again after 1, 2, 4, ... 30 seconds. Create the tracker after
    the heavy imports of the process, since the thread imports mlflow.

    Raises:
        TrackingError: `tracking_uri` is not valid for sending; only the constructor raises.
    """

    def __init__(self, journal_path: Path, tracking_uri: str, artifact_root: Path | None) -> None:
        super().__init__(_mlflow_sender(journal_path, tracking_uri, artifact_root))
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        delay = 1.0
        while True:
            last = self._closing.is_set()
            self._wake.clear()
            sent = self._try()
            if last:
                return
            if sent:
                delay = 1.0
                self._wake.wait()
                self._closing.wait(GATHER_SECONDS)  # one write for the events of some seconds slows a trial less
            else:
                self._closing.wait(delay)
                delay = min(2 * delay, LONGEST_BACKOFF_SECONDS)

    def notify(self) -> None:
        """New events were journaled. Returns at once and never raises."""
        self._wake.set()

    def close(self, timeout: float) -> bool:
        """Send the rest, trying once more if the server did not answer; True if everything was sent.

        Waits at most `timeout` seconds. The first send of a process spends some of them on importing mlflow.
        """
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)
        return not self._thread.is_alive() and self.backlog == 0


@dataclass(frozen=True)
class Deletion:
    """What became of a search's runs at one tracker: how many are deleted now, and why others are not."""

    address: str
    runs: int
    problem: str | None = None


def delete_runs(journal_path: Path, places: Places, tracking_uri: str | None = None) -> list[Deletion]:
    """Delete the runs of a search, at each tracker that it was sent to; `tracking_uri` is needed for one with a
    password. Never raises: a tracker that does not answer is a `problem`."""
    found = []
    for path in sorted(journal_path.parent.glob("tracking-*.json")):
        cursor = Cursor.load(path)
        if not cursor.runs or cursor.address is None:
            continue
        try:
            store = MLflowStore(_address_now(cursor.address, places, tracking_uri), places.artifacts)
            store.connect()
            deleted = 0
            for run_id in cursor.runs.values():
                with contextlib.suppress(Lost, Refused):  # it is gone
                    store.delete(run_id)
                    deleted += 1
            found.append(Deletion(cursor.address, deleted))
        except (TrackingError, InputError) as error:
            found.append(Deletion(cursor.address, 0, one_line(error)))
    return found


def _address_now(recorded: str, places: Places, given: str | None) -> str:
    """The address of a tracker that is recorded without its password, or from before the storage was moved."""
    if given and redact(given) == recorded:
        return given
    if "***" in recorded:
        raise TrackingError("its password is not recorded: give --tracking-uri")
    if recorded.startswith("sqlite:///") and not Path(recorded.removeprefix("sqlite:///")).exists():
        own = places.storage / "mlflow.db"
        if not own.exists():
            raise TrackingError("there is no such database any more")
        return default_tracking_uri(places.storage)
    return recorded


def _mlflow_sender(journal_path: Path, tracking_uri: str, artifact_root: Path | None) -> Sender:
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
            f"{shown(journal.parent)}: cannot be written ({error.strerror}), and what was sent is recorded there: "
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
        journal = open(journal_path, "r+b")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise JournalError(f"{journal_path}: cannot read the journal: {error.strerror}") from None
    with journal:
        if not lock(journal):
            raise TrackingError(f"{journal_path}: the search is running and sends its events itself")
        sender = _mlflow_sender(journal_path, tracking_uri, artifact_root)
        try:
            sender.send()
        except TrackingError:
            sender.send()  # retry: the database may have been replaced, or the connection stale
    cursor = sender.cursor
    return SyncReport(sender.sent, len(cursor.runs), cursor.experiment_id, cursor.runs.get(None), sender.refused)


def write_log(journal_path: Path, logger: Logger, folder: Path) -> SyncReport:
    """Write the events of a journal that another program's `folder` lacks; a search that runs may be written too.

    Raises:
        TrackingError: it cannot be written.
        JournalError: the journal is corrupt.
    """
    _check_record(journal_path)
    cursor = journal_path.parent / f"logger-{logger.name}.json"
    if not folder.exists():  # deleted: everything is written again
        cursor.unlink(missing_ok=True)
    try:
        sender = Sender(journal_path, logger.store(folder), cursor, str(folder))
    except OSError as error:
        raise TrackingError(f"{error.filename or folder}: cannot be written ({error.strerror})") from None
    try:
        sender.send()
    except TrackingError:
        sender.send()  # a part of the folder was deleted: everything is written again
    return SyncReport(sender.sent, len(sender.cursor.runs), sender.cursor.experiment_id, None, sender.refused)
