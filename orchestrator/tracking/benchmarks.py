"""A benchmark's own run in the tracker: its page, and a note whose links lead to the runs of its searches and back.

MLflow shows a page in a frame that opens no links, so they stand in notes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.storage.cursors import Cursor
from orchestrator.storage.events import Note
from orchestrator.storage.ledger import BENCHMARK
from orchestrator.storage.reading import read_journal
from orchestrator.tracking.address import error_line
from orchestrator.tracking.mlflow_store import MLflowStore
from orchestrator.tracking.origin import ORIGIN, Origin
from orchestrator.tracking.projection import NOTE, TAG_CHARACTERS, Identity
from orchestrator.tracking.sender import cursor_name, experiment_note, link_runs
from orchestrator.tracking.store import Lost, Refused, RunStore, TrackingError


@dataclass(frozen=True)
class Described:
    """What is told of a benchmark; the note's links read `search:LABEL`."""

    name: str
    started: int
    note: str
    page: Path
    ended: int | None
    """None while it runs, or was stopped."""


def publish_benchmark(
    benchmark: Described, folder: Path, journals: Mapping[str, Path], uri: str, artifact_root: Path | None
) -> str | None:
    """Write a benchmark's run, once; searches that were not sent have no link. Returns what went wrong, in one line.

    `folder` is the benchmark's own, `journals` are those of its searches, by label.
    """
    store = MLflowStore(uri, artifact_root)
    return publish_to(store, store.uri, benchmark, folder, journals)


def publish_to(
    store: RunStore, uri: str, benchmark: Described, folder: Path, journals: Mapping[str, Path]
) -> str | None:
    """The same, in any store."""
    cursor_file = cursor_name(uri)
    sent = {label: Cursor.load(path.parent / cursor_file) for label, path in journals.items()}
    sent = {label: cursor for label, cursor in sent.items() if cursor.experiment_id and None in cursor.runs}
    if not sent:
        return None
    experiment = str(next(iter(sent.values())).experiment_id)
    try:
        store.connect()
        run_id = _run(store, experiment, benchmark, folder / cursor_file, uri)
        runs = {("search", label): cursor.runs[None] for label, cursor in sent.items()}
        note = link_runs(benchmark.note[:TAG_CHARACTERS], experiment, runs)
        state = "running" if benchmark.ended is None else "done"
        store.log(run_id, [], {}, {NOTE: note, "orchestrator.state": state})
        store.log_artifact(run_id, benchmark.page, "report")
        if benchmark.ended is not None:
            store.set_status(run_id, "FINISHED", benchmark.ended)
        store.describe(experiment, experiment_note(benchmark.name, "benchmark", experiment, run_id, note))
        for label, cursor in sent.items():
            _link_back(store, experiment, cursor, journals[label], run_id)
    except (TrackingError, Refused, Lost, OSError) as error:
        return error_line(error)
    return None


def _run(store: RunStore, experiment: str, benchmark: Described, cursor_path: Path, uri: str) -> str:
    """The benchmark's run, created once and again where it was deleted."""
    run_id_before = Cursor.load(cursor_path).runs.get(None)
    if run_id_before is not None:
        try:
            store.check(run_id_before)
            return run_id_before
        except Lost:
            pass
    key = {"orchestrator.kind": "benchmark", BENCHMARK: benchmark.name}
    tags = {ORIGIN: Origin.of(cursor_path.parent).tag}
    run_id = store.create(experiment, Identity(benchmark.name, benchmark.started, key, tags), None)
    Cursor(experiment_id=experiment, runs={None: run_id}).save(cursor_path, uri)
    return run_id


def _link_back(store: RunStore, experiment: str, cursor: Cursor, journal: Path, run_id: str) -> None:
    """The note of a search again, with a link to the benchmark's run, which did not exist when it was sent."""
    events, ledger = read_journal(journal)
    note = next((event for event in reversed(events) if isinstance(event, Note)), None)
    if note is not None:
        trials = {("trial", trial): run for trial, run in cursor.runs.items() if trial is not None}
        name = ledger.tags.get(BENCHMARK, "")
        text = link_runs(note.text[:TAG_CHARACTERS], experiment, {**trials, ("benchmark", str(name)): run_id})
        store.log(str(cursor.runs[None]), [], {}, {NOTE: text})
