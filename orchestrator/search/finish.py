"""The outputs of an ended search: its report, its models, its last records in the tracker."""

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.training import Training
from orchestrator.errors import TrainingFailed, visible
from orchestrator.report.leading import final_of
from orchestrator.storage import paths, trial_files
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.events import Artifact, Event, ModelWritten, Note, SearchEnded, SearchResumed
from orchestrator.storage.folder import Folder, faults_as_input_errors
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.opening import open_file
from orchestrator.storage.places import MODEL_PAGE, PAGE, Places
from orchestrator.storage.reading import read_journal
from orchestrator.storage.trial_folder import IMAGES, INSIGHT, TrialPaths
from orchestrator.tracking.mlflow_store import quiet_mlflow
from orchestrator.tracking.trackers import Tracker
from orchestrator.tracking.views import MAX_COMPARED

TRACKER_SECONDS = 60.0
"""How long the end of a search waits for the tracker to take the remaining events."""

IMPORTED = (
    "orchestrator.report.html.search_page",
    "orchestrator.report.html.model_page",
    "orchestrator.report.html.gallery",
    "orchestrator.report.note",
    "sklearn.cluster",
    "matplotlib.figure",
    "orchestrator.search.export",
    "mlflow.pytorch",
    "torch.export._trace",
)
"""What the outputs of a search with a final model import: 8 to 10 s of a processor."""

IMPORTS = "imports of the outputs"
"""The thread that imports them."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a search."""

    ledger: Ledger
    state: str
    journal: Path
    tracking_uri: str
    experiment_id: str | None
    parent_run_id: str | None
    problem: str | None
    """What the tracker still lacks, in one line; `sync` sends it."""
    no_views: str | None = None
    """Why the tracker's pages have no views of this search, if they have none."""
    fault: str | None = None
    """The fault of the disk or the machine, if it stopped the search."""
    refused: str | None = None
    """What the tracker will never take, where all else is there: its server may lack an endpoint."""
    stopping: bool = False
    """Whether a stop was asked for, even if it came too late for this search."""


def raise_failure(outcome: Outcome) -> None:
    """TrainingFailed for a search in which every trial failed, or which a fault stopped."""
    from orchestrator.search.beginning import why_failed

    if outcome.state == "failed":
        reasons = [trial.reason for trial in outcome.ledger.trials.values() if trial.reason]
        raise TrainingFailed(why_failed(reasons, len(outcome.ledger.trials)))
    if outcome.fault:
        raise TrainingFailed(outcome.fault)


@contextlib.contextmanager
def imports_beside() -> Iterator[Callable[[], None]]:
    """Gives a function that begins to import, in a thread, what the outputs of a search need, and to read the published
    results: the process that drives trials in other processes has little to do meanwhile. After the block no further
    module is begun."""
    over, started = threading.Event(), threading.Event()

    def work() -> None:
        quiet_mlflow()
        for name in IMPORTED:
            if over.is_set():
                return
            with contextlib.suppress(Exception):  # whoever needs it reports why it cannot be imported
                importlib.import_module(name)
        with contextlib.suppress(Exception):  # so does whoever needs the rows
            from orchestrator.report.published import every_row

            every_row()

    def begin() -> None:
        if not started.is_set():
            started.set()
            threading.Thread(target=work, name=IMPORTS).start()  # not a daemon: Python must not end within an import

    try:
        yield begin
    finally:
        over.set()


def fetch_artifacts(path: Path, events: list[Event], ledger: Ledger) -> None:
    """Fetch a search's files for the tracker from the object store into the working copy; on a disk do nothing."""
    sent = [event for event in events if isinstance(event, Artifact | ModelWritten)]
    with faults_as_input_errors():
        trial_ids = {event.trial_id for event in sent}
        for trial in ledger.everyone():
            if trial.trial_id in trial_ids:
                trial_files.fetch_trial(path.parent / "trials" / trial.trial_id)
        for name in {event.path for event in sent}:
            Folder(path.parent).fetch(name)


def has_report(events: Sequence[Event]) -> bool:
    """Whether the pages of an ended search were all written: its note comes last."""
    last = next((event for event in reversed(events) if isinstance(event, Note | SearchEnded | SearchResumed)), None)
    return isinstance(last, Note)


def write_report(ledger: Ledger, journal: Journal, places: Places) -> None:
    """Write the search's page, those of its best models, and its note for the tracker. An error here must not lose
    trained models: it is reported, and the command line can retry; so is Ctrl-C, after which `resume` does."""
    try:
        _write_report(ledger, journal, places)
    except KeyboardInterrupt:
        again = places.resume_command(ledger.name)
        print(f"all results are kept; the pages were not all written: write them with: {again}", file=sys.stderr)
        raise


def _write_report(ledger: Ledger, journal: Journal, places: Places) -> None:
    from orchestrator.report.confused import confused_classes
    from orchestrator.report.findings import Findings
    from orchestrator.report.html.search_page import write_page
    from orchestrator.report.note import search_note

    if ledger.state == "done":
        dataset = ledger.config["settings"].get("dataset", Training.model_fields["dataset"].default)
        place = paths.in_command(places.storage)
        evaluate = f"orchestrator evaluate {ledger.name} --dataset {dataset} --gallery FILE{place}"
        export = f"orchestrator export {ledger.name} --to mlflow{place}"
        for write, what, again in (
            (write_models, "page of the model", evaluate),
            (write_mlflow_model, "MLflow model", export),
        ):
            try:
                write(ledger, journal, places)
            except Exception as error:
                print(visible(f"warning: no {what} was made ({error}); try again with: {again}"), file=sys.stderr)
    try:
        findings = Findings.of(ledger, confused_classes(ledger, journal.path.parent), paths.option(places.storage))
        with Folder(journal.path.parent).output(PAGE) as page:
            write_page(findings, page)
        journal.append("artifact", trial_id=None, path=PAGE, folder=str(Path(PAGE).parent))
        best = [] if ledger.second is not None else ledger.candidates()[:MAX_COMPARED]
        least = best[-1].best if best else None
        journal.append("note", text=search_note(findings), important=list(findings.importances.shares), least=least)
    except Exception as error:
        again = f"orchestrator report {ledger.name} --html FILE{paths.in_command(places.storage)}"
        print(visible(f"warning: no report was made ({error}); try again with: {again}"), file=sys.stderr)


def write_models(ledger: Ledger, journal: Journal, places: Places) -> None:
    """Write a page and a table with images for the final model and each of the best few trials, beside their models
    and in the tracker; the page of the first of them is the search's. Its t-SNE is computed in a thread, mostly outside
    Python, while the tables are written."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.report.confused import shown_models
    from orchestrator.report.html.gallery import write_gallery
    from orchestrator.report.html.model_page import write_model_page
    from orchestrator.report.model_view import model_view

    folder = journal.path.parent
    events, _ = read_journal(journal.path)
    store: Any = None
    views = {}
    for place, trial in enumerate(shown_models(ledger)):
        store = store or open_dataset(str(trial.settings["dataset"]), places.data)
        view = model_view(ledger, trial, folder, store, events, neighbour_map=place == 0)
        if view is not None:
            views[f"trials/{trial.trial_id}/{INSIGHT}"] = view
    with ThreadPoolExecutor(1) as beside:
        futures = [beside.submit(getattr, view, "near") for view in views.values() if view.neighbour_map]
        tables = {name: write_gallery(view, folder / name, INSIGHT) for name, view in views.items()}
    for near in futures:
        near.result()
    for name, view in views.items():
        with Folder(folder).output(name) as output:
            write_model_page(view, output / IMAGES)
        trial_id = Path(name).parent.name
        journal.append("artifact", trial_id=trial_id, path=name, folder=INSIGHT, tables=[tables[name]])
        if view.neighbour_map:
            with Folder(folder).output(MODEL_PAGE) as page, open_file(output / IMAGES) as model_page:
                write_whole(page, model_page.read())
            journal.append("artifact", trial_id=None, path=MODEL_PAGE, folder=str(Path(MODEL_PAGE).parent))


def write_mlflow_model(ledger: Ledger, journal: Journal, places: Places) -> None:
    """Write the final model in MLflow's format, to be logged with its run; not for folds, which have several models."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.search.export import MLFLOW_MODEL, export, facts
    from orchestrator.search.source import ModelSource

    final, folder = final_of(ledger), journal.path.parent
    trial = None if final is None else TrialPaths(folder / "trials" / final.trial_id)
    if final is None or trial is None or final.state != "done" or len(trial.models) > 1:
        return
    store = open_dataset(str(final.settings["dataset"]), places.data)
    name = f"trials/{final.trial_id}/{MLFLOW_MODEL}"
    with Folder(folder).output(name) as target:
        export(ModelSource.of(trial.trained_model, store, facts(ledger, final)), "mlflow", target)
    journal.append("model", trial_id=final.trial_id, path=name)


def finish_search(
    ledger: Ledger, journal: Path, tracker: Tracker, tracking_uri: str, fault: str | None = None
) -> Outcome:
    """The outcome of the search, once the tracker has taken the rest."""
    complete = tracker.close(TRACKER_SECONDS)
    return Outcome(
        ledger=ledger,
        state=ledger.state,
        journal=journal,
        tracking_uri=tracking_uri,
        experiment_id=tracker.experiment_id,
        parent_run_id=tracker.parent_run_id,
        fault=fault,
        no_views=tracker.no_views,
        refused=tracker.problem if complete else None,
        problem=None if complete else (tracker.problem or f"{tracker.backlog} events were not sent in time"),
    )
