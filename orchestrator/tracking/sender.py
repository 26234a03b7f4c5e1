"""Journal -> store: remembers what was sent, and retries what failed."""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import redact
from orchestrator.storage.cursors import Cursor
from orchestrator.storage.journal import JournalError, read_records
from orchestrator.storage.opening import check_tree, open_file
from orchestrator.storage.paths import NAME
from orchestrator.storage.records import Position
from orchestrator.tracking.address import error_line
from orchestrator.tracking.origin import ORIGIN, Origin
from orchestrator.tracking.projection import NOTE, TAG_CHARACTERS, Projection, Update
from orchestrator.tracking.store import Lost, Refused, RunStore, TrackingError

EVENTS_PER_ROUND = 1000
NOTE_LINK = re.compile(r"\]\((trial|search|benchmark):([\w.-]+)\)")
"""A link in a note: of what, and its name; its run's address is known once the run exists."""


def cursor_name(address: str) -> str:
    """The file that records what was sent to an address, beside a journal or a benchmark's page."""
    return f"tracking-{hashlib.sha256(redact(address).encode()).hexdigest()[:8]}.json"


def link_runs(note: str, experiment_id: str, runs: Mapping[tuple[str, str], str]) -> str:
    """A note with links to `runs`, by kind and name; what has no run stays plain text."""

    def address(link: re.Match[str]) -> str:
        run_id = runs.get((link[1], link[2]))
        return f"](#/experiments/{experiment_id}/runs/{run_id})" if run_id else "]"

    return NOTE_LINK.sub(address, note)


def experiment_note(name: str, what: str, experiment_id: str, run_id: str, note: str) -> str:
    """What MLflow shows above the runs of an experiment: the verdict of the search or benchmark that was described
    last, without the sections of its note, which would push the runs away."""
    head = f"**[{name}](#/experiments/{experiment_id}/runs/{run_id})**, the {what} described last"
    verdict, _, _ = note.partition("\n\n**")
    return f"{head}\n\n{verdict}"[:TAG_CHARACTERS]


def lines_after(journal: Path, offset: int) -> int:
    """The events of a journal after `offset` bytes; 0 if it cannot be read."""
    try:
        with open_file(journal) as file:
            file.seek(offset)
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except OSError:
        return 0


class Sender:
    """Sends the events of a journal after the cursor. Use it from one thread at a time."""

    def __init__(self, journal: Path, store: RunStore, cursor_path: Path | None, address: str) -> None:
        self.journal, self.store, self.cursor_path, self.address = journal, store, cursor_path, address
        self.cursor = Cursor.load(cursor_path)
        self.refused: list[str] = []
        self.no_views: str | None = None
        self.sent = 0  # events acknowledged by this sender
        self.runs_written = 0  # of all rounds: how far it got, also where a round was cut short
        self._projection: Projection | None = None
        self._updates: dict[str | None, Update] = {}  # folded, not acknowledged
        self._end = self._ahead = Position()  # the cursor's place, and its place once the updates are acknowledged
        self._before = journal.stat().st_size if journal.exists() else 0  # bytes that another process may have sent
        self._new: set[str | None] = set()  # trials that began after that: their runs do not exist
        self._all_new = False  # the search's own run did not exist
        self._begun: set[str | None] = set()  # runs whose creation was tried

    def backlog(self) -> int:
        """Events in the journal that were not sent yet."""
        return lines_after(self.journal, self.cursor.offset)

    def send(self) -> None:
        """Send all new events.

        Raises:
            TrackingError, JournalError: what was not acknowledged is sent by the next call.
        """
        try:
            while self.backlog():
                self.store.connect()
                self._projection = self._projection or self._replay()
                if not self._updates and not self._fold(self._projection):
                    return
                self._write(self._projection)
        except Lost as error:
            self._forget()
            raise TrackingError(f"{self.address} lost runs of this search, sending them again: {error}") from None
        except Refused as error:  # creating a run was refused, and everything else needs the run
            raise TrackingError(f"{self.address}: {error}") from None
        except OSError as error:
            where = error.filename or self.journal.parent
            raise TrackingError(f"{where}: {error.strerror or error_line(error)}") from None

    def _forget(self) -> None:
        self.cursor, self._projection, self._updates, self._all_new = Cursor(), None, {}, False

    def _replay(self) -> Projection:
        """The projection of all acknowledged events; a cursor of another journal or store is dropped."""
        projection = Projection()
        with open_file(self.journal) as file:
            records, self._end = read_records(file, self.journal, Position(), self.cursor.events)
        stands = self._end.number, self._end.offset, records[0].get("search_id") if records else None
        if stands != (self.cursor.events, self.cursor.offset, self.cursor.search_id):
            self._forget()
            self._end = Position()
            return projection
        for record in records:
            projection.take(record, {})
        if None in self.cursor.runs:
            self.store.check(self.cursor.runs[None])
        return projection

    def _fold(self, projection: Projection) -> bool:
        """Fold the next events of the journal into updates; False if there is no complete one."""
        with open_file(self.journal) as file:
            os.fsync(file.fileno())  # only send what survives a machine failure
            records, ahead = read_records(file, self.journal, self._end, EVENTS_PER_ROUND)
        updates: dict[str | None, Update] = {}
        try:
            for record in records:
                trial_id = record.get("trial_id")
                if self.cursor.offset >= self._before and trial_id not in projection.identities:
                    self._new.add(trial_id)
                projection.take(record, updates)
        except JournalError:
            self._projection = None  # partially folded: start over at the next call
            raise
        self._updates, self._ahead = updates, ahead
        return bool(records)

    def _write(self, projection: Projection) -> None:
        """Write the updates and advance the cursor; after any failure those that are left are written again."""
        cursor = self.cursor
        cursor.search_id = projection.search_id
        if cursor.experiment_id is None:
            cursor.experiment_id = self.store.experiment(str(projection.experiment))
        # Trials first, so that the search's run ends last; `_run` creates it when its first child needs it.
        for trial_id in sorted(self._updates, key=lambda trial: trial is None):
            self._write_run(trial_id, self._updates[trial_id], projection)
            del self._updates[trial_id]
            self.runs_written += 1
        self.sent += self._ahead.number - cursor.events
        cursor.events, cursor.offset = self._ahead.number, self._ahead.offset
        self._updates, self._end = {}, self._ahead
        self._save()

    def _save(self) -> None:
        if self.cursor_path:
            self.cursor.save(self.cursor_path, self.address)

    def _write_run(self, trial_id: str | None, update: Update, projection: Projection) -> None:
        run_id = self._run(trial_id, projection)
        if NOTE in update.tags:
            update.tags[NOTE] = self._link_runs(update.tags[NOTE], projection)
        try:
            self.store.log(run_id, update.points, update.params, update.tags)
        except Refused:  # part of it was refused: the rest must not be lost
            with self._noting():
                self.store.log(run_id, [], update.params, {})
            with self._noting():
                self.store.log(run_id, update.points, {}, update.tags)
        if update.config is not None:
            with self._noting():
                self.store.log_config(run_id, update.config)
        if update.dataset is not None:
            with self._noting():
                self.store.log_dataset(run_id, *update.dataset)
        for path, folder in update.artifacts:
            with self._noting():
                self.store.log_artifact(run_id, self._place(path), folder)
        for path in update.models:
            with self._noting():
                self.store.log_model(str(self.cursor.experiment_id), run_id, self._place(path))
        if update.status:
            with self._noting():
                self.store.set_status(run_id, *update.status)
        if NOTE in update.tags and trial_id is None:
            with self._noting():
                name, experiment = projection.identities[None].name, str(self.cursor.experiment_id)
                note = experiment_note(name, "search", experiment, run_id, update.tags[NOTE])
                self.store.describe(experiment, note)
        if update.views:
            try:
                self.store.set_views(str(self.cursor.experiment_id), update.views)
            except Refused as error:  # the search's data are complete without them
                self.no_views = str(error)

    def _place(self, path: str) -> Path:
        """The path of an artifact of the journal; checked, because others may write to the storage."""
        folder = self.journal.parent.absolute()
        try:
            check_tree(folder / path, folder)
        except (OSError, ValueError) as error:  # also a name that no file can have
            raise Refused(f"artifact {path}: {error}") from None
        return folder / path

    def _link_runs(self, note: str, projection: Projection) -> str:
        """A note with links to the runs of trials, and of the benchmark that the search is part of."""
        runs = {("trial", trial): run for trial, run in self.cursor.runs.items() if trial is not None}
        name = projection.benchmark
        if self.cursor_path is not None and name is not None and NAME.fullmatch(name):
            storage = self.journal.parent.parent.parent
            above = Cursor.load(storage / "benchmarks" / name / self.cursor_path.name).runs.get(None)
            runs |= {("benchmark", name): above} if above is not None else {}
        return link_runs(note, str(self.cursor.experiment_id), runs)

    def _run(self, trial_id: str | None, projection: Projection) -> str:
        """The trial's run (None: the search's own), found by its tags or created."""
        runs, experiment_id = self.cursor.runs, str(self.cursor.experiment_id)
        if trial_id not in runs:
            parent = self._run(None, projection) if trial_id is not None else None
            identity = projection.identities[trial_id]
            # look it up if it may exist: from an earlier process, or from a creation that failed midway
            is_new = trial_id in self._new or (trial_id is not None and self._all_new)
            is_new = is_new and trial_id not in self._begun
            existing = None if is_new else self.store.find(experiment_id, identity.key)
            self._begun.add(trial_id)
            if trial_id is None:
                self._all_new = existing is None  # no trial's run is older than the search's own
            if existing is None:
                new = replace(identity, tags={ORIGIN: Origin.of(self.journal.parent).tag})
                existing = self.store.create(experiment_id, new, parent)
            runs[trial_id] = existing
        return runs[trial_id]

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """A write that will never be accepted must not block all others."""
        try:
            yield
        except Refused as error:
            if (line := f"not recorded in {self.address}: {error}") not in self.refused:
                self.refused.append(line)
