"""A search from its first event to its last, and taken up again after anything."""

import contextlib
import io
import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from pydantic import ValidationError

from orchestrator.checkpoint import write_atomically
from orchestrator.conductor import Conductor
from orchestrator.errors import InputError, storage_fault, suggestion
from orchestrator.journal import Journal, JournalError, lock
from orchestrator.ledger import Ledger, TrialRecord, write_csv
from orchestrator.provenance import provenance
from orchestrator.spec import Search, check_name, describe
from orchestrator.tracking import (
    MLflowTracker,
    Tracker,
    check_tracking_uri,
    default_tracking_uri,
    redact,
)

JOURNAL = "journal.jsonl"
LEADERBOARD = "leaderboard.csv"
TRACKER_SECONDS = 60.0
"""How long the end of a search waits for the tracker to take what it has not yet taken."""


@dataclass(frozen=True)
class Places:
    """Where things lie under a storage folder."""

    storage: Path

    @property
    def data(self) -> Path:
        """The data sets."""
        return self.storage / "data"

    @property
    def artifacts(self) -> Path:
        """MLflow's artifacts, for the default tracker."""
        return self.storage / "mlartifacts"

    def search(self, name: str) -> Path:
        """The folder of one search."""
        return self.storage / "searches" / check_name(name, "NAME")

    def journal(self, name: str) -> Path:
        """The journal of a search that exists; InputError with a suggestion otherwise."""
        path = self.search(name) / JOURNAL
        if not self.storage.is_dir():
            raise InputError(f"{STORAGE}: no folder {self.storage}, so no search '{name}' in it")
        if not path.exists():
            known = [other.parent.name for other in (self.storage / "searches").glob(f"*/{JOURNAL}")]
            hint = suggestion(name, known) if known else " (none yet)"
            raise InputError(f"no search '{name}' under {self.storage}{hint}")
        return path

    def new_journal(self, name: str) -> Path:
        """Where the journal of a new search goes; InputError if the name was used before."""
        path = self.search(name) / JOURNAL
        if path.exists():
            raise InputError(
                f"--name: a search '{name}' exists in {path.parent}: go on with it "
                f"(orchestrator resume {name} --storage {self.storage}) or choose another name"
            )
        return path


@dataclass(frozen=True)
class Outcome:
    """What a search came to."""

    ledger: Ledger
    state: str
    journal: Path
    tracking_uri: str
    experiment_id: str | None
    parent_run_id: str | None
    problem: str | None
    """What the tracker still misses, in one line; `sync` sends it."""
    fault: str | None = None
    """What was wrong with the disk or the machine, if that stopped the search."""


class Watcher:
    """Sees a search: the display is one."""

    def begin(self, conductor: Conductor, tracker: Tracker) -> None:
        """Before the first trial."""

    def __call__(self, event: str, trial: TrialRecord) -> None:
        """`started`, `restarted`, `validated` or `ended`."""

    def end(self) -> None:
        """After the last event."""


class Runner(Protocol):
    """Where trials run."""

    def ready(self, search: Search, storage: Path) -> contextlib.AbstractContextManager[int]:
        """Get hold of the machines; gives how many trials run at once, InputError if not even one can, or if one of
        them does not see the storage."""

    def run(self, conductor: Conductor) -> None:
        """Run the conductor's trials until it has no more or is stopping."""


class InlineRunner:
    """The `process` backend: one trial after the other in this process. For one training, and to debug."""

    @contextlib.contextmanager
    def ready(self, search: Search, storage: Path) -> Iterator[int]:
        from orchestrator.loop import choose_device

        training = search.example().training
        choose_device(training.device)
        if training.threads > (cpus := os.cpu_count() or 1):
            raise InputError(f"threads: {training.threads}: this machine has {cpus} CPUs; ask for so many or fewer")
        yield 1

    def run(self, conductor: Conductor) -> None:
        from orchestrator.trial import results

        while not conductor.finished:
            work = conductor.next()
            if work is None:
                return
            for result in results(work):
                if conductor.report(result) or conductor.stopping:
                    break


STORAGE = "--storage (or ORCHESTRATOR_STORAGE)"
SCRATCH = "orchestrator-"
LONGEST_TEMPORARY = 16
"""Ray's sockets lie beneath the temporary folder, and a socket's path has 107 characters at most."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for all that is temporary here and in the processes begun from here; at the end it is removed.

    What a killed process left goes with the next one: the lock of its folder is free.
    """
    base = Path(tempfile.gettempdir())
    if len(str(base)) > LONGEST_TEMPORARY:
        base = Path("/tmp")
    for left in base.glob(f"{SCRATCH}*/lock"):
        with contextlib.suppress(OSError), open(left, "r+b") as file:  # others' folders are closed to us
            if lock(file):
                shutil.rmtree(left.parent, ignore_errors=True)
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=base, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with open(folder / "new-lock", "w+b") as held:
            lock(held)
            (folder / "new-lock").rename(folder / "lock")  # from here on others see it, locked
            tempfile.tempdir = os.environ["TMPDIR"] = name
            try:
                yield folder
            finally:
                tempfile.tempdir = before[0]
                os.environ.pop("TMPDIR")
                if before[1] is not None:
                    os.environ["TMPDIR"] = before[1]


def writable(folder: Path, option: str = STORAGE) -> Path:
    """The absolute folder, made if need be; InputError if nothing can be written there."""
    folder = folder.expanduser().resolve()
    probe = folder / f".write-test-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{option}: {folder} cannot be written ({error.strerror}): name another folder") from None
    return folder


def start(
    search: Search,
    runner: Runner,
    *,
    storage: Path,
    tracking_uri: str | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """Run a new search to its end (or to Ctrl-C). InputError if its name was used before."""
    if tracking_uri:
        check_tracking_uri(tracking_uri)  # before anything is written
    places = Places(writable(storage))
    path = places.new_journal(search.name)
    uri = tracking_address(tracking_uri, places)
    digest = check_data(search, places)
    with scratch(), runner.ready(search, places.storage) as slots, opened(path) as journal:
        first = journal.append(
            "search_started",
            name=search.name,
            search_id=uuid.uuid4().hex,
            dataset=search.dataset,
            method=search.settings.get("method", "several"),
            objective=search.objective.model_dump(),
            config=search.model_dump(),
            params={"algorithm": search.algorithm, "scheduler": search.scheduler.name, "seed": search.seed},
            tags=provenance() | {"dataset.digest": digest, "selection": search.example().training.selection},
            tracking_uri=recorded_address(uri, places),
        )
        return run(search, runner, slots, places, journal, [first], uri, watcher or Watcher())


def resume(
    name: str,
    runner: Runner,
    *,
    storage: Path,
    tracking_uri: str | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """Go on with a search: finished trials stay, interrupted ones go on from their last validation. Of a search
    that has come to its end nothing changes; the tracker gets what it missed."""
    places = Places(storage.expanduser().resolve())
    path = places.journal(name)
    writable(storage)
    uri = tracking_address(tracking_uri, places, path)
    with opened(path) as journal:
        events, ledger = read_journal(path)
        if ledger.state in ("done", "failed"):
            return conclude(ledger, path, MLflowTracker(path, uri, places.artifacts), uri)
        try:
            search = Search.model_validate(ledger.config)
        except ValidationError as error:
            raise InputError(f"{path}:1: not a search of this version: {describe(error)}") from None
        digest, recorded = check_data(search, places), events[0]["tags"].get("dataset.digest")
        if digest != recorded:
            raise InputError(
                f"{path}: the data set '{search.dataset}' is not the one this search began with "
                f"(digest {digest[:12]}, then {str(recorded)[:12]}): its trials could not be compared"
            )
        with scratch(), runner.ready(search, places.storage) as slots:
            events.append(
                journal.append("search_resumed", tags=provenance(), tracking_uri=recorded_address(uri, places))
            )
            return run(search, runner, slots, places, journal, events, uri, watcher or Watcher())


def tracking_address(given: str | None, places: Places, journal: Path | None = None) -> str:
    """The tracker to use: the one given, else the one that the search ran with last, else the default."""
    if given:
        uri = check_tracking_uri(given)
        if uri.startswith("sqlite:"):
            writable(Path(uri.removeprefix("sqlite:///")).parent, "--tracking-uri (or MLFLOW_TRACKING_URI)")
        return uri
    before = None
    if journal is not None:
        begun = [event for event in read_journal(journal)[0] if event["event"] in ("search_started", "search_resumed")]
        before = begun[-1].get("tracking_uri") if begun else None
    if before and "***" in before:
        raise InputError(
            f"--tracking-uri: the search was tracked at {before}, whose password is not recorded: give the address"
        )
    return before or default_tracking_uri(places.storage)


def recorded_address(uri: str, places: Places) -> str | None:
    """The tracker's address as the journal keeps it: no password, and None for the storage's own database, which
    may move together with it."""
    return None if uri == default_tracking_uri(places.storage) else redact(uri)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Journal]:
    """The journal, held by this process alone."""
    try:
        journal = Journal(path)
    except JournalError as error:
        raise InputError(str(error)) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}): name another storage folder") from None
    with journal:
        yield journal


def read_journal(path: Path) -> tuple[list[dict[str, Any]], Ledger]:
    """The events of a search and what they come to; InputError naming the line if the journal is damaged."""
    try:
        events = Journal.read(path)
    except JournalError as error:
        raise InputError(str(error)) from None
    try:
        return events, Ledger.of(events)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def check_data(search: Search, places: Places) -> str:
    """The data set's digest; prepares it if need be, and refuses batches that its classes cannot fill, weights that
    the backbone cannot take, and settings that the method cannot do with."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.data.pipeline import check_images, describe_unreadable, find_unreadable, without
    from orchestrator.data.samplers import ClassBalancedSampler
    from orchestrator.data.splits import noisy_labels, train_labels, unused_split
    from orchestrator.loop import data_splits, new_learner

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    experiment = search.example()
    training = experiment.training
    if training.selection == "test":
        say("note: selection=test: the best validation is chosen on the TEST classes, and all numbers are on these")
    store = open_dataset(training.dataset, places.data, say=say)
    split = data_splits(training, store)[0]
    if note := unused_split(store):
        say(f"note: {note}")
    unreadable = find_unreadable(store, training.augmentation, threads=training.loader_threads, say=say)
    check_images(store, training.augmentation, unreadable)
    if unreadable:
        say(f"warning: {describe_unreadable(store, unreadable)}")
    split = without(split, unreadable)
    ClassBalancedSampler(
        noisy_labels(train_labels(store, split.train), share=training.label_noise, seed=training.label_noise_seed),
        classes_per_batch=training.classes_per_batch,
        images_per_class=training.images_per_class,
        seed=training.seed,
    )
    new_learner(experiment, store, split)
    return str(store.manifest["digest"])


def run(
    search: Search,
    runner: Runner,
    slots: int,
    places: Places,
    journal: Journal,
    events: list[dict[str, Any]],
    tracking_uri: str,
    watcher: Watcher,
) -> Outcome:
    """Everything from the first event to the last."""
    tracker = MLflowTracker(journal.path, tracking_uri, places.artifacts)
    tracker.notify()

    def tell(event: str, trial: TrialRecord) -> None:
        tracker.notify()
        watcher(event, trial)

    conductor = Conductor(
        search,
        journal.path.parent,
        data=places.data,
        journal=journal,
        events=events,
        slots=slots,
        listener=tell,
    )
    watcher.begin(conductor, tracker)
    try:
        with interrupts(conductor):
            runner.run(conductor)
    except KeyboardInterrupt:  # the second one: the runner has stopped at once, its records are still put in order
        conductor.stopping = True
    except OSError as error:
        if not (fault := storage_fault(error)):
            raise
        conductor.stopping, conductor.fault = True, conductor.fault or fault
    finally:
        watcher.end()
        if conductor.ledger.running() or conductor.stopping:
            conductor.interrupt()
    table = io.StringIO()
    write_csv(conductor.ledger, table)
    write_atomically(conductor.folder / LEADERBOARD, lambda file: file.writelines([table.getvalue().encode()]))
    journal.append("artifact", trial_id=None, path=LEADERBOARD, folder="")
    conductor.end()
    return conclude(conductor.ledger, journal.path, tracker, tracking_uri, conductor.fault)


def conclude(ledger: Ledger, journal: Path, tracker: Tracker, tracking_uri: str, fault: str | None = None) -> Outcome:
    """What the search came to, once the tracker has taken the rest."""
    tracker.notify()
    complete = tracker.close(TRACKER_SECONDS)
    return Outcome(
        ledger=ledger,
        state=ledger.state,
        journal=journal,
        tracking_uri=tracking_uri,
        experiment_id=tracker.experiment_id,
        parent_run_id=tracker.parent_run_id,
        fault=fault,
        problem=None if complete else (tracker.problem or f"{tracker.backlog} events were not sent in time"),
    )


@contextlib.contextmanager
def interrupts(conductor: Conductor) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) lets the search end in order, the second ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if conductor.stopping:
            raise KeyboardInterrupt
        conductor.stopping = True
        if not sys.stderr.isatty():  # the live display says it by itself
            os.write(2, b"stopping in order; once more to stop at once\n")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
