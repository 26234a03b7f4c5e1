"""A search from its first event to its last, and its resume after any interruption."""

import contextlib
import io
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.config.resolve import with_final_runs, with_more_budget, with_other_workers
from orchestrator.config.rules import check_search
from orchestrator.config.search import Search, recorded_search
from orchestrator.errors import AlgorithmFailed, InputError, storage_fault, visible
from orchestrator.execution.protocol import Runner
from orchestrator.problems import Option, Problem, describe
from orchestrator.search.beginning import first_fields
from orchestrator.search.conductor import Conductor
from orchestrator.search.control import driver_lease, starting
from orchestrator.search.finish import (
    Outcome,
    fetch_artifacts,
    finish_search,
    has_report,
    imports_beside,
    write_report,
)
from orchestrator.search.lab import in_force
from orchestrator.search.preflight import check_algorithm, check_data, check_equal, check_hours, check_room, warn
from orchestrator.search.signals import continued_by, interrupts, kept_together
from orchestrator.search.watcher import Watcher
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.events import Event
from orchestrator.storage.folder import Folder
from orchestrator.storage.journal import Journal
from orchestrator.storage.leaderboard import write_csv
from orchestrator.storage.opening import remove_file
from orchestrator.storage.places import LEADERBOARD, SEARCH_FILE, Places, writable
from orchestrator.storage.presence import DRIVER, show_driver
from orchestrator.storage.provenance import provenance
from orchestrator.storage.reading import open_journal, read_journal
from orchestrator.storage.scratch import scratch
from orchestrator.storage.trial_folder import remove_unfinished
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.tracking.address import check_tracking_uri, note_tracking, recorded_address, tracking_address
from orchestrator.tracking.projection import EXPERIMENT
from orchestrator.tracking.trackers import MLflowTracker, ended_on_failure


def start(
    search: Search,
    runner: Runner,
    *,
    storage: Path,
    tracking_uri: str | None = None,
    watcher: Watcher | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    say: Callable[[str], None] = warn,
) -> Outcome:
    """Run a new search to its end (or to Ctrl-C). InputError if its name is already used. `tags` are sent to
    the tracker, whose runs are in `experiment` (by default the lab's, else the data set's name); `say`
    receives each line about the data."""
    if tracking_uri:
        check_tracking_uri(tracking_uri)  # before any file is written
    watcher = watcher or Watcher()
    watcher.stage("reading the data set")
    places = Places(writable(storage))
    path = places.new_journal(search.name)
    uri = tracking_address(tracking_uri, places)
    note_tracking(uri, places)
    search, defaults = suited_to_data(search, places, say)
    for key, because in defaults.items():
        say(f"note: {key}={search.settings[key]}: {because}")
    if experiment := in_force("experiment", experiment):
        tags = {EXPERIMENT: experiment, **(tags or {})}
    digest, sizes = check_data(search, places, say)
    algorithm = check_algorithm(search)
    watcher.stage(runner.stage)
    with contextlib.ExitStack() as stack:
        with starting(path.parent):
            stack.enter_context(scratch())
            slots = stack.enter_context(runner.ready(search, places.storage))
            check_hours(search, runner)
        with open_journal(path) as journal:
            first = begin_search(
                journal,
                **first_fields(search),
                first_stop=search.scheduler.first_stop,
                params={"algorithm": search.algorithm, "scheduler": search.scheduler.name, "seed": search.seed},
                tags=provenance()
                | algorithm
                | {"dataset.digest": digest, "selection": search.example().training.selection, **(tags or {})},
                tracking_uri=recorded_address(uri, places),
                sizes=sizes,
            )
            _write_file(search, path.parent)
            return run(search, runner, slots, places, journal, [first], uri, watcher)


def _write_file(search: Search, folder: Path) -> None:
    """Write the search file, from which others can be made; where that fails the journal has its content."""
    if not search.test_trials:
        with contextlib.suppress(OSError), Folder(folder).output(SEARCH_FILE) as path:
            write_whole(path, search.file().encode())


def begin_search(journal: Journal, **fields: Any) -> Event:
    """Write the first event of a search; InputError, and no journal, if it is refused or cannot be written."""
    try:
        return driven(journal, "search_started", **fields)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            remove_file(journal.path)
            Folder(journal.path.parent, patient=False).remove(DRIVER)
            journal.path.parent.rmdir()
        if not isinstance(error, OSError):
            raise InputError(str(error)) from None
        where = error.filename or journal.path
        raise InputError(f"{where}: cannot be written ({error.strerror}): fix that and start again") from None


def driven(journal: Journal, event: str, **fields: Any) -> Event:
    """Write the event from which on a search runs; its driver is visible before it, else it would count as lost."""
    with contextlib.suppress(OSError):  # then the event is refused too
        show_driver(journal.path.parent)
    return journal.append(event, **fields)


def resume(
    name: str,
    runner: Runner,
    *,
    storage: Path,
    tracking_uri: str | None = None,
    watcher: Watcher | None = None,
    num_trials: int | None = None,
    budget: Mapping[str, Any] | None = None,
    workers: int | None = None,
    max_concurrent: int | None = None,
    final_trials: int | None = None,
    final_seeds: int | None = None,
    for_benchmark: bool = False,
    say: Callable[[str], None] = warn,
) -> Outcome:
    """Resume a search: finished trials stay, interrupted ones continue from their last validation, and so do those that
    failed only because their GPU could no longer be used. An ended search without such trials does not change, and the
    tracker gets what it missed, unless the search is given more trials (`num_trials`), another `budget`, or more final
    runs (`final_trials`, `final_seeds`). From now on each trial has `workers` workers, and at most `max_concurrent`
    trials run at once. Only its benchmark (`for_benchmark`) gives a search of a benchmark another budget."""
    watcher = watcher or Watcher()
    watcher.stage("reading the journal and the data set")
    places = Places(storage.expanduser().resolve())
    path = places.journal(name)
    writable(storage, remedy="fix that, then resume again")
    uri = tracking_address(tracking_uri, places, path)
    with open_journal(path) as journal:
        events, ledger = read_journal(path)
        for note in ledger.notes:
            print(visible(f"note: {note}"), file=sys.stderr)
        raised = num_trials is not None or bool(budget)
        confirmed = final_trials is not None or final_seeds is not None
        fetch_artifacts(path, events, ledger)
        if ledger.is_complete and not (raised or confirmed):
            for option, value in (("workers", workers), ("max_concurrent", max_concurrent)):
                if value is not None:
                    rule = f"search '{name}' is {ledger.state}, nothing is left to train"
                    more = ("; give it more trials (", Option("num_trials"), ") or another ", Option("budget"), " too")
                    raise InputError(Problem((Option(option),), value, rule, advice=more))
            if ledger.state == "done" and not has_report(events):  # it was interrupted while they were written
                watcher.stage("writing the pages and the model")
                write_report(ledger, journal, places)
            with ended_on_failure(MLflowTracker(path, uri, places.artifacts)) as tracker:
                return finish_search(ledger, path, tracker, uri)
        try:
            search = recorded_search(ledger.config)
        except ValidationError as error:
            raise InputError(f"{path}:1: not a search of this version: {describe(error)}") from None
        if not for_benchmark:
            check_equal(search, ledger, places, num_trials, budget, final_seeds)
        if raised:
            search = with_more_budget(search, num_trials, budget or {})
            check_room(search, ledger)
        if confirmed:
            search = with_final_runs(search, final_trials, final_seeds)
            if ledger.has_ended and not raised and ledger.winner() is None:
                raise InputError(
                    Problem(
                        (Option("final_seeds"),),
                        rule=f"no trial of '{name}' has a result that final runs could confirm",
                    )
                )
        if resized := workers is not None or max_concurrent is not None:
            search = with_other_workers(search, workers, max_concurrent)
        (digest, _), recorded = check_data(search, places, say), ledger.tags.get("dataset.digest")
        if digest != recorded:
            raise InputError(
                f"{path}: the data set '{search.dataset}' is not the one this search began with "
                f"(digest {digest[:12]}, then {str(recorded)[:12]}): its trials could not be compared"
            )
        check_algorithm(search, ledger.tags.get("algorithm.digest"))
        note_tracking(uri, places)
        watcher.stage(runner.stage)
        with scratch(), runner.ready(search, places.storage) as slots:
            check_hours(search, runner)
            changed = raised or resized or confirmed
            config: dict[str, Any] = {"config": search.model_dump()} if changed else {}
            address = recorded_address(uri, places)
            events.append(driven(journal, "search_resumed", tags=provenance(), tracking_uri=address, **config))
            return run(search, runner, slots, places, journal, events, uri, watcher)


def suited_to_data(search: Search, places: Places, say: Callable[[str], None] = warn) -> tuple[Search, dict[str, str]]:
    """The search with the defaults for its data set, and the reasons; see `orchestrator.search.defaults`."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.search.defaults import suit_defaults

    suited_search, defaults = suit_defaults(search, open_dataset(search.dataset, places.data, say=say))
    if defaults and not suited_search.test_trials:
        check_search(suited_search)
    return suited_search, defaults


def run(
    search: Search,
    runner: Runner,
    slots: int,
    places: Places,
    journal: Journal,
    events: list[Event],
    tracking_uri: str,
    watcher: Watcher,
) -> Outcome:
    """Run everything from the first event to the last."""
    with ended_on_failure(MLflowTracker(journal.path, tracking_uri, places.artifacts)) as tracker:
        tracker.notify()

        def tell(event: str, trial: TrialRecord) -> None:
            tracker.notify()
            watcher(event, trial)
            if runner.own_processes and (trial.kind == "final" or (event == "ended" and conductor.all_begun)):
                begin_imports()

        conductor = Conductor(
            search,
            journal.path.parent,
            data=places.data,
            journal=journal,
            events=events,
            slots=slots,
            resources=runner.resources(search),
        )
        remove_unfinished(conductor.folder, (LEADERBOARD, DRIVER))
        again = places.resume_command(search.name)
        whole = kept_together(conductor)
        with continued_by(again), driver_lease(conductor), imports_beside() as begin_imports, whole:
            conductor.listener = tell  # not before: reading the journal may end a trial, and nobody looks on yet
            try:
                with interrupts(conductor):
                    watcher.begin(conductor, tracker)  # it prints: if nobody reads the output, the search ends cleanly
                    if not conductor.stopping:
                        runner.run(conductor)
            except KeyboardInterrupt:  # the second one: the runner stopped at once; still complete its records
                conductor.stopping = True
            except AlgorithmFailed as error:
                conductor.stopping, conductor.fault = True, str(error)
            except OSError as error:
                if not (fault := storage_fault(error, conductor.folder)):
                    raise
                conductor.stopping, conductor.fault = True, conductor.fault or fault
            finally:
                watcher.end()
                if conductor.ledger.running() or conductor.stopping:
                    conductor.interrupt()
            table = io.StringIO()
            write_csv(conductor.ledger, table)
            with Folder(conductor.folder).output(LEADERBOARD) as path:
                write_whole(path, table.getvalue().encode())
            journal.append("artifact", trial_id=None, path=LEADERBOARD, folder="")
            conductor.end()
        with continued_by(again):
            watcher.results(conductor.ledger)
            watcher.stage("writing the pages and the model")
            write_report(conductor.ledger, journal, places)
            watcher.stage("sending the rest to MLflow")
            outcome = finish_search(conductor.ledger, journal.path, tracker, tracking_uri, conductor.fault)
            return replace(outcome, stopping=conductor.stopping)
