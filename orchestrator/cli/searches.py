"""The commands for existing searches: status, stop, pause, list, sync."""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from orchestrator.cli.options import DEFAULT_STORAGE, Json, SearchName, Storage, TrackingUri, benchmark_of, places_of
from orchestrator.cli.output import print_json, tell_notes
from orchestrator.cli.terminal import Terminal, echo
from orchestrator.errors import InputError, redact
from orchestrator.problems import suggestion
from orchestrator.storage import paths
from orchestrator.storage.outputs import Output

if TYPE_CHECKING:
    from orchestrator.report.status import Status
    from orchestrator.search.benchmark import Benchmark
    from orchestrator.storage.ledger import Ledger
    from orchestrator.storage.presence import Request
    from orchestrator.tracking.trackers import SyncReport

STOP_SECONDS = 120.0
"""How long `stop` waits for a search to end cleanly."""


WIDE = 500
"""The width of tables that another program reads: no name is broken."""
WATCH_SECONDS = 2.0
"""How often `status --watch` looks."""


def status(
    name: SearchName,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look every two seconds, until it ends; Ctrl-C ends the looking only.")
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
    json_: Json = False,
) -> None:
    """Show the progress of a search, wherever it runs, with an estimate of the time left.

    - `orchestrator status my-search`

    - `orchestrator status my-search --watch`
    """
    if watch:
        _watch(name, storage, as_json=json_)
        return
    if (benchmark := benchmark_of(name, storage)) is not None:
        _show_benchmark(benchmark, storage, as_json=json_)
        return
    _show_status(_state(name, storage, notes=True), storage, as_json=json_)


def _state(name: str, storage: Path, *, notes: bool = False) -> "Status":
    """The state of a search, also of one that has recorded nothing yet."""
    from orchestrator.search.control import status as state_of
    from orchestrator.search.models import read_search
    from orchestrator.storage.journal import refresh
    from orchestrator.storage.ledger import Ledger
    from orchestrator.storage.places import JOURNAL
    from orchestrator.storage.presence import driver

    folder = places_of(storage).search(name)
    refresh(folder / JOURNAL)
    if driver(folder) and not (folder / JOURNAL).exists():
        return state_of(Ledger(name=name), folder, "starting")
    ledger, journal = read_search(name, storage)
    if notes:
        tell_notes(ledger)
    return state_of(ledger, journal.parent)


def _watch(name: str, storage: Path, *, as_json: bool) -> None:
    """Show the state of a search whenever it changes, until nobody drives it."""
    from rich.live import Live

    from orchestrator.cli.states import status_text

    if (benchmark := benchmark_of(name, storage)) is not None:
        members = ", ".join(map(benchmark.member, benchmark.labels))
        raise InputError(f"--watch: {name} is a benchmark: watch one of its searches ({members})")
    state = _state(name, storage, notes=True)
    if as_json or not (console := Terminal()).is_terminal:
        last = None
        while True:
            if (now := state.model_copy(update={"seconds": None, "seconds_left": None})) != last:
                last = now
                _show_status(state, storage, as_json=as_json)
                sys.stdout.flush()
            if state.driver is None:
                return
            time.sleep(WATCH_SECONDS)
            state = _state(name, storage)
    with Live(status_text(state, storage), console=console, auto_refresh=False) as live:
        while state.driver is not None:
            time.sleep(WATCH_SECONDS)
            state = _state(name, storage)
            live.update(status_text(state, storage), refresh=True)


def stop(name: SearchName, storage: Storage = DEFAULT_STORAGE, json_: Json = False) -> None:
    """Stop a running search, here or elsewhere; `resume` continues from each trial's last validation.

    - `orchestrator stop my-search`
    """
    _steer(name, storage, "stop", as_json=json_)


def pause(name: SearchName, storage: Storage = DEFAULT_STORAGE, json_: Json = False) -> None:
    """Pause a search: its running trials finish and no new ones start; `resume` starts the next.

    - `orchestrator pause my-search`
    """
    _steer(name, storage, "pause", as_json=json_)


def list_(
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Only those on this data set.")] = None,
    method: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this method.")] = None,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="Only those that are done, running, ...")] = None,
    tag: Annotated[list[str], typer.Option("--tag", metavar="TAG", help="Only those with this tag; repeatable.")] = [],  # noqa: B006 (typer reads the default)
    sort: Annotated[
        Literal["began", "name", "dataset", "method", "state", "best"],
        typer.Option(help="Order; best compares within a data set and a metric only."),
    ] = "began",
    claims: Annotated[bool, typer.Option("--claims", help="Also those that belong to claims.")] = False,
    storage: Storage = DEFAULT_STORAGE,
    json_: Json = False,
) -> None:
    """The searches and trainings of a storage folder, the newest first.

    Scores of different data sets or metrics cannot be compared: with several of them, each has a table of its own.

    - `orchestrator list`

    - `orchestrator list --dataset cub200 --state done --sort best`

    - `orchestrator list --tag paper`
    """
    from orchestrator.search.control import status as state_of
    from orchestrator.storage.reading import read_journal
    from orchestrator.text import pluralize

    places = places_of(storage)
    if storage != DEFAULT_STORAGE:
        places.check_exists()
    states = []
    names = places.names()
    shown = names if claims else places.without_claims(names)
    for journal in places.journals(shown):
        try:
            states.append(state_of(read_journal(journal)[1], journal.parent))
        except InputError as error:
            echo(f"warning: {error}", err=True)
    filters = {"dataset": dataset, "method": method, "state": state}
    matching = [
        one
        for one in states
        if all(value is None or getattr(one, key) == value for key, value in filters.items())
        and set(tag) <= set(one.tags)
    ]
    filters_set = {f"--{key}": (key, value) for key, value in filters.items() if value is not None}
    for option, (key, value) in filters_set.items():
        if states and value not in (values := {getattr(one, key) for one in states}):
            raise InputError(f"{option}: no search with {key} '{value}'{suggestion(value, values)}")
    if json_ or matching:
        _show_list(matching, sort, as_json=json_)
    elif states:
        echo(f"no match among {pluralize(len(states), 'search', 'searches')}")
    elif len(shown) == len(names):
        echo(f"no search under {paths.display_path(storage)} yet; start with: orchestrator search demo")
    if of_claims := len(names) - len(shown):
        echo(f"without {of_claims} of claims: orchestrator list --claims{paths.in_command(storage)}", err=True)


def sync(
    name: SearchName,
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    to: Annotated[
        Literal["mlflow", "tensorboard", "wandb"],  # and the names of LOGGERS
        typer.Option("--to", help="The program to write for.", show_choices=True),
    ] = "mlflow",
    json_: Json = False,
) -> None:
    """Send MLflow the events of a search that it missed while it could not be reached; or write for another program.

    For TensorBoard and Weights & Biases, what is new is written into a folder of the storage, also while it runs.
    Weights & Biases stays on this machine unless the variable WANDB_MODE is `online`.

    - `orchestrator sync my-search --tracking-uri http://mlflow.example:5000`

    - `orchestrator sync my-search --to tensorboard`: then `tensorboard --logdir runs/tensorboard`

    - `orchestrator sync my-search --to wandb`
    """
    from orchestrator.search.finish import fetch_artifacts
    from orchestrator.storage.presence import driver
    from orchestrator.storage.reading import read_journal
    from orchestrator.text import pluralize
    from orchestrator.tracking.address import tracking_address
    from orchestrator.tracking.loggers import LOGGERS
    from orchestrator.tracking.trackers import sync, write_log

    places = places_of(storage)
    journal = places.journal(name)
    if to in LOGGERS:
        logger, folder = LOGGERS[to], places.storage / to
        logger.check()
        read_journal(journal)
        report = write_log(journal, logger, folder)
        look = logger.look.format(folder=shlex.quote(str(folder)))
        if json_:
            print_json(_sync_report(name, to, str(folder), report))
            return
        echo(f"{pluralize(report.events, 'event')} written to {folder}: {look}")
        return
    uri = tracking_address(tracking_uri, places, journal)
    if paths.address_of(journal) is not None:  # an object store has no locks
        if driver(journal.parent):
            raise InputError(f"{paths.display_path(journal)}: the search is running and sends its events itself")
        fetch_artifacts(journal, *read_journal(journal))
    report = sync(journal, uri, places.artifacts)
    if json_:
        print_json(_sync_report(name, to, redact(uri), report))
        return
    sent, runs = pluralize(report.events, "event"), pluralize(report.runs, "run")
    echo(f"{sent} sent to {redact(uri)}; the search has {runs} there")
    for refused in report.refused:
        echo(f"refused by the server: {refused}", err=True)


class Synced(Output):
    search: str
    to: str
    address: str
    events: int
    runs: int
    refused: list[str]


def _sync_report(name: str, to: str, address: str, report: "SyncReport") -> Synced:
    return Synced(search=name, to=to, address=address, events=report.events, runs=report.runs, refused=report.refused)


def _steer(name: str, storage: Path, request: "Request", *, as_json: bool) -> None:
    """Send the request to the driver of a search, and wait until it has stopped or taken the request."""
    from orchestrator.search.control import status as state_of
    from orchestrator.search.models import read_search
    from orchestrator.storage.presence import driver, pending_request

    again = places_of(storage).resume_command(name)
    if (found_ := benchmark_of(name, storage)) is not None:
        _steer_benchmark(found_, storage, request, again, as_json=as_json)
        return
    ledger, journal = read_search(name, storage)
    before = state_of(ledger, journal.parent)
    if before.driver is None:
        then = "" if before.state in ("done", "failed") else f"; continue with: {again}"
        raise InputError(f"{request}: {ledger.kind} '{name}' is not running (it is {before.state}){then}")
    _ask(journal.parent, request)
    end = time.monotonic() + STOP_SECONDS
    with Terminal(stderr=True).status(f"asking {before.driver} to {request}"):
        while (
            driver(journal.parent) and time.monotonic() < end and (request == "stop" or pending_request(journal.parent))
        ):
            time.sleep(0.2)
    state = state_of(read_search(name, storage)[0], journal.parent)
    _show_status(state, storage, as_json=as_json)
    if state.driver and request == "pause" and not state.asked_to and not as_json:
        echo(f"  pausing: it ends when these have ended. Then continue with:  {again}")
    elif state.driver:
        echo(f"it has not ended yet; check again with: orchestrator status {name}", err=True)


def _steer_benchmark(benchmark: "Benchmark", storage: Path, request: "Request", again: str, *, as_json: bool) -> None:
    """Send the request to its driver and that of its current search; wait for its end, or for its search to react."""
    from orchestrator.storage.presence import driver, pending_request

    home, *searches = folders = _folders(benchmark, storage)
    if not any(map(driver, folders)):
        members = _members(benchmark, storage)
        done = len(members) == len(benchmark.labels) and all(ledger.state == "done" for ledger, _ in members)
        raise InputError(
            f"{request}: benchmark '{benchmark.name}' is not running"
            f"{' (it is done)' if done else f'; continue with: {again}'}"
        )
    folders_asked: set[Path] = set()
    end = time.monotonic() + STOP_SECONDS
    with Terminal(stderr=True).status(f"asking it to {request}"):
        while (driven := {folder for folder in folders if driver(folder)}) and time.monotonic() < end:
            for folder in driven - folders_asked:
                _ask(folder, request)
            folders_asked |= driven
            if (
                request == "pause"
                and folders_asked - {home}
                and not any(pending_request(folder) for folder in searches)
            ):
                break
            time.sleep(0.2)
    _show_benchmark(benchmark, storage, as_json=as_json)
    if any(map(driver, folders)) and not as_json:
        echo(
            f"{'pausing' if request == 'pause' else 'stopping'}: it has not ended yet. Once it has, continue with:  "
            f"{again}"
        )


def _ask(folder: Path, request: "Request") -> None:
    from orchestrator.storage.presence import send_request

    try:
        send_request(folder, request)
    except OSError as error:
        raise InputError(f"--storage: {paths.display_path(folder)} cannot be written ({error.strerror})") from None


def _folders(benchmark: "Benchmark", storage: Path) -> list[Path]:
    """The folders with driver records: the benchmark's own folder, then those of its searches."""
    places = places_of(storage)
    return [places.benchmark(benchmark.name), *(places.search(benchmark.member(label)) for label in benchmark.labels)]


def _members(benchmark: "Benchmark", storage: Path) -> "list[tuple[Ledger, Path]]":
    """The started searches of a benchmark, and their folders."""
    from orchestrator.search.benchmark import members

    places = places_of(storage)
    return [(ledger, places.search(ledger.name)) for ledger in members(benchmark, places).values()]


def _show_benchmark(benchmark: "Benchmark", storage: Path, *, as_json: bool) -> None:
    """Show its searches, including those still to come, and what to do next."""
    from orchestrator.search.control import status as state_of
    from orchestrator.storage.ledger import BENCHMARK, Ledger
    from orchestrator.storage.presence import driver
    from orchestrator.text import pluralize

    states_by_name = {ledger.name: state_of(ledger, folder) for ledger, folder in _members(benchmark, storage)}
    states = []
    for label in benchmark.labels:
        name = benchmark.member(label)
        waiting = Ledger(name=name, tags={BENCHMARK: benchmark.name})
        states.append(states_by_name.get(name) or state_of(waiting, places_of(storage).search(name), "to come"))
    _show_statuses(states, as_json=as_json)
    if as_json:
        return
    done = sum(one.state == "done" for one in states)
    place = paths.in_command(storage)
    echo(f"{done} of {pluralize(len(states), 'search', 'searches')} done")
    if states_by_name:
        echo(f"the verdict{'' if done == len(states) else ' so far'}:  orchestrator report {benchmark.name}{place}")
    if done < len(states) and not any(map(driver, _folders(benchmark, storage))):
        echo(f"continue with:  orchestrator resume {benchmark.name}{place}")


def _show_status(state: "Status", storage: Path, *, as_json: bool) -> None:
    from orchestrator.cli.states import status_text

    if as_json:
        print_json(state)
    else:
        Terminal().print(status_text(state, storage), soft_wrap=True)


def _width() -> int | None:
    """The width of a table: that of the terminal; as wide as it is where another program reads it."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE


def _show_list(states: "list[Status]", sort: str, *, as_json: bool) -> None:
    from orchestrator.cli.states import by_comparability, sorted_states, status_table

    ordered = sorted_states(states, sort)
    if as_json:
        print_json(ordered)
        return
    groups = by_comparability(ordered)
    for (dataset, metric), group in groups.items():
        Terminal().print(Text(f"{dataset}, {metric}" if dataset else "not begun", style="bold"))
        Terminal().print(status_table(group, listed=True), width=_width())


def _show_statuses(states: "Sequence[Status]", *, as_json: bool) -> None:
    from orchestrator.cli.states import status_table

    if as_json:
        print_json(states)
    else:
        Terminal().print(status_table(states), width=_width())
