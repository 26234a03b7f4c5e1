"""Shared code of the commands that train: resolving the options, notes before the start, the summary at the end."""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.status import Status
from rich.text import Text

from orchestrator.cli.options import PORT, assignments, benchmark_of, places_of
from orchestrator.cli.output import plain, print_json, show_comparison, warn_of_plugins
from orchestrator.cli.terminal import Terminal, echo
from orchestrator.errors import ClusterFailed, InputError, Problems
from orchestrator.problems import RANGE, SET, Operand, Option, Problem
from orchestrator.search.beginning import check_dataset, fresh_name, resolve_request, runner_at, why_failed
from orchestrator.storage import paths

if TYPE_CHECKING:
    from orchestrator.config.files import Document
    from orchestrator.config.search import Search
    from orchestrator.search.benchmark import Benchmark
    from orchestrator.search.finish import Outcome
    from orchestrator.search.notify import Notification
    from orchestrator.search.plan_output import Plan
    from orchestrator.storage.ledger import Ledger

Found = TypeVar("Found")


def read_request(
    space: str | None,
    name: str | None,
    preset: str | None,
    epochs: int | None,
    words: list[str],
    changes: dict[str, Any],
    storage: Path,
    *,
    like: str | None = None,
    ranges: list[str] = [],  # noqa: B006 (never changed)
    prepared: bool = True,
) -> "Search":
    """The search that the options describe; `prepared`: its data set must be there."""
    from orchestrator.config.files import find_search, parse_assignments, read_yaml
    from orchestrator.storage.places import check_name

    if name is not None and benchmark_of(check_name(name), storage) is not None:
        raise InputError(f"--name: '{name}' is a benchmark's; choose another name for the search")
    if (space is None) == (like is None):
        wrong = "missing, or --like" if space is None else f"{space}: is given beside --like {like}; keep one"
        raise InputError(f"SPACE: {wrong} (see orchestrator search --help)")
    if space is not None:
        path = find_search(space)
        raw, stem, source = read_yaml(path), path.stem, path.name
    else:
        raw, stem, source = earlier_file(str(like), storage), re.sub(r"-\d{8}-\d{6}$", "", str(like)), str(like)
    problems, parsed_ranges = Problems(), {}
    overrides = fixed_settings(words, changes, epochs, problems)
    with problems.collect():
        parsed_ranges = parse_assignments(ranges, RANGE, "alpha=[1, 2, 4]")
    return resolve_request(
        raw,
        places_of(storage),
        source=source,
        name=name or fresh_name(stem),
        preset=preset,
        overrides=overrides,
        changes=changes,
        ranges=parsed_ranges,
        prepared=prepared,
        problems=problems,
    )


def earlier_file(name: str, storage: Path) -> "Document":
    """What the file of an earlier search would hold, without the points that it tried first."""
    from pydantic import ValidationError

    from orchestrator.config.files import Document
    from orchestrator.config.limits import AUTO
    from orchestrator.config.schedulers.none import NoStops
    from orchestrator.config.search import recorded_search
    from orchestrator.storage.reading import read_journal

    ledger = read_journal(places_of(storage).journal(name))[1]
    try:
        earlier = recorded_search(ledger.config)
    except ValidationError:
        raise InputError(f"--like {name}: is not a search of this version") from None
    if earlier.test_trials:
        raise InputError(f"--like {name}: is a training, which searches nothing; name a search")
    # of `auto`, as the new search may differ in what the rule asks
    content = earlier.content() | ({"algorithm": AUTO} if earlier.auto else {})
    if earlier.auto:  # a file that names no scheduler would ask the rule
        content.setdefault("scheduler", NoStops.name)
    return Document(content | ({"scheduler": AUTO} if earlier.auto_stops else {}), {}).without(("start_from",))


@contextlib.contextmanager
def beside_ray(
    resolve: Callable[[], Found], address: str | None, ray_output: bool, needed: Callable[[], bool] | None = None
) -> Iterator[Found]:
    """What `resolve` gives. Where Ray is to start on this machine, it starts meanwhile: it mostly waits, and `resolve`
    and the imports of a search take seconds.

    `needed`: whether Ray will be needed, as far as is known; by default, whether the search is accepted without these
    imports. It is then not resolved again, unless its method has checks of its own.
    """
    given = None
    if address is None and not _ray_runs():
        given = first_look(resolve) if needed is None else resolve if needed() else None
    if given is None:
        yield resolve()
        return
    from orchestrator.execution.ray_start import own_cluster

    with ThreadPoolExecutor(1) as beside:
        future = beside.submit(_with_imports, given)
        try:
            with own_cluster(ray_output):
                yield future.result()
        except ClusterFailed:
            future.result()  # what is wrong with the search is told first
            raise


def refuse_start(storage: Path, tracking_uri: str | None, name: str | None = None, address: str | None = None) -> None:
    """InputError for what is refused before Ray starts or anything is written: a name that is used, a tracker's or a
    cluster's address that is none, a storage that cannot be written."""
    from orchestrator.execution.ray_address import reachable_address
    from orchestrator.storage.places import writable
    from orchestrator.tracking.address import check_tracking_uri

    if name is not None:
        places_of(storage).new_journal(name)
    if tracking_uri:
        check_tracking_uri(tracking_uri)
    reachable_address(address)
    writable(storage)


def check_addresses(tracking_uri: str | None, address: str | None) -> None:
    """InputError for a tracker's or a cluster's address of a wrong form; nothing is asked there, as for a dry run."""
    from orchestrator.tracking.address import check_tracking_uri

    if tracking_uri:
        check_tracking_uri(tracking_uri)
    if address is not None:
        from orchestrator.execution.ray_address import WORDS, check_address

        if address not in WORDS:
            check_address(address)


def goes_on(journal: Path) -> bool:
    """Whether a search that nobody drives has trials or final runs to train, by its journal."""
    from orchestrator.storage.presence import driver
    from orchestrator.storage.reading import read_journal

    try:
        return driver(journal.parent) is None and not read_journal(journal)[1].is_complete
    except (InputError, OSError):  # told by the resume itself
        return False


def _ray_runs() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def first_look(resolve: Callable[[], Found]) -> Callable[[], Found] | None:
    """What gives the search after a look without the imports of its method: `resolve`, where a method has checks of its
    own; None where it has a fault that shows already."""
    from orchestrator.plugins import fields_alone

    with fields_alone() as unchecked:
        try:
            result = resolve()
        except InputError:
            return None
    return resolve if unchecked else lambda: result


def _with_imports(resolve: Callable[[], Found]) -> Found:
    """What `resolve` gives, after importing what the start of a search needs besides."""
    result = resolve()
    from orchestrator.execution import ray_tune  # noqa: F401
    from orchestrator.search import defaults, driver  # noqa: F401

    return result


def fixed_settings(
    words: list[str], changes: Mapping[str, object], epochs: int | None, problems: Problems | None = None
) -> dict[str, object]:
    """The settings fixed by `--set` and `--epochs`; none may be given twice, or by another option too."""
    from orchestrator.config.search import FILE_KEYS
    from orchestrator.config.training import Training

    collected = Problems() if problems is None else problems
    overrides = assignments(words, {**changes, "epochs": epochs}, collected)
    for key in [key for key in overrides if key in FILE_KEYS.keys() & changes.keys() - Training.model_fields.keys()]:
        rule = ("belongs to the search, not to its trainings; write ", Option(key), f" {overrides.pop(key)}")
        collected.found.append(Problem((SET, Operand(key)), rule=rule))
    if problems is None:
        collected.tell()
    return overrides if epochs is None else overrides | {"epochs": epochs}


def given_keys(ctx: typer.Context) -> dict[str, Any]:
    """The keys of a search file that a command has options for, each with the value given, None where there is none."""
    from orchestrator.config.files import parse_assignments
    from orchestrator.config.search import FILE_KEYS

    options = [parameter for parameter in ctx.command.params if parameter.opts[0].startswith("-")]
    keys = [key for option in options if (key := option.name) in FILE_KEYS]
    values = {key: ctx.params[key] for key in keys}
    values |= {key: list(value) or None for key, value in values.items() if isinstance(value, list | tuple)}
    if constraints := values.get("constraints"):
        values["constraints"] = parse_assignments(constraints, Option("constraints"), "cost/megabytes=50")
    return values | {"budget": parse_limits(values["budget"] or []) or None}


def parse_limits(words: list[str]) -> dict[str, Any]:
    """The limits of `--budget`; `none` removes a limit."""
    from orchestrator.config.files import parse_assignments

    words = [f"hours={word}" if re.fullmatch(r"[0-9.]+", word) else word for word in words]
    limits = parse_assignments(words, Option("budget"), "hours=8")
    return {key: None if value == "none" else value for key, value in limits.items()}


def run_benchmark(
    chosen: "Benchmark",
    storage: Path,
    tracking_uri: str | None,
    address: str | None,
    status: Status,
    *,
    dry_run: bool = False,
    as_json: bool,
    ray_output: bool,
    notification: "Notification",
) -> None:
    from orchestrator.cli.live import Display
    from orchestrator.search.benchmark import members, to_do

    searches = to_do(chosen, places_of(storage))
    warn_of_plugins()
    if dry_run:
        from orchestrator.cli.plans import show_plans
        from orchestrator.search.plan import plan
        from orchestrator.search.preflight import warn_once

        check_addresses(tracking_uri, address)
        members_begun, say = members(chosen, places_of(storage)), warn_once()
        plans = {
            label: plan(search, storage, new=label not in members_begun, say=say) for label, search in searches.items()
        }
        status.stop()
        if as_json:
            print(json.dumps({label: one.plain for label, one in plans.items()}))
        elif not plans:
            echo(f"benchmark '{chosen.name}' is done: nothing would run")
        else:
            show_plans(chosen.name, plans, {label: len(ledger.trials) for label, ledger in members_begun.items()})
        return
    refuse_start(storage, tracking_uri, address=address)
    for search in searches.values():
        check_dataset(search.dataset, storage)
        note_idle(search)
    from orchestrator.search.notify import end_of_benchmark

    runner = runner_at(address, ray_output)

    def watcher(label: str, place: int) -> Display:
        if place > 1:
            status.stop()
            echo(f"== {label}: {place} of {len(searches)}", err=True)
        return Display(status=status)

    with beside_ray(lambda: None, address, ray_output, lambda: bool(searches)):
        from orchestrator.search.benchmark_searches import run_methods
        from orchestrator.search.signals import continued_by

        again = f"orchestrator resume {chosen.name}{paths.in_command(storage)}"
        with continued_by(again):
            result = run_methods(chosen, runner, storage=storage, tracking_uri=tracking_uri, watcher=watcher)
    status.stop()
    show_comparison(result.comparison, as_json=as_json)
    console = Terminal(stderr=as_json)
    console.print(Text(f"on a page:  {result.page}"), soft_wrap=True)
    _notify(notification, end_of_benchmark(chosen.name, result.stopped))
    if result.stopped is not None:
        console.print(Text(f"{result.stopped}; continue with:  {again}"), soft_wrap=True)
        raise typer.Exit(1 if result.fault else 130)


def note_idle(search: "Search") -> None:
    """Report settings that have no effect, so that the user does not expect one."""
    from orchestrator.config.resolve import idle_settings

    for line in idle_settings(search):
        echo(f"note: {line}", err=True)


def show_plan(planned: "Plan", *, as_json: bool) -> None:
    if as_json:
        print_json(planned)
        return
    console = Terminal(soft_wrap=True)
    for key, value in planned.plain.items():
        if isinstance(value, dict):
            console.print(Text(f"{key}:", style="bold"))
            for inner, number in value.items():
                hours = f" ({number / 3600:.1f} hours)" if inner.startswith("seconds") and _is_long(number) else ""
                console.print(Text(f"  {inner}: {plain(number)}{hours}"))
        elif isinstance(value, list):
            console.print(Text(f"{key}:", style="bold"))
            for item in value:
                console.print(Text(f"  {plain(item)}"))
        else:
            console.print(Text.assemble((f"{key}: ", "bold"), str(value)))


def _is_long(seconds: object) -> bool:
    return isinstance(seconds, float) and seconds >= 600


def _notify(notification: "Notification", message: Mapping[str, Any]) -> None:
    for problem in notification.send(message):
        echo(f"warning: {problem}", err=True)


class Results:
    """Shows the leaderboard and what to run next, once: as soon as all is tested, or where nothing ran, at the end."""

    def __init__(self, storage: Path, as_json: bool) -> None:
        """Before Ray starts: standard output is hidden then, with all that Ray writes to it."""
        self.storage, self.as_json = storage, as_json
        self.stream = sys.stderr if as_json else sys.stdout
        self.shown = False
        self.fault: Exception | None = None

    def __call__(self, ledger: "Ledger") -> None:
        """Show them; output that cannot be written ends the command when the pages are (`ensure`)."""
        try:
            self._show(ledger)
        except Exception as fault:
            self.fault = fault

    def ensure(self, ledger: "Ledger") -> None:
        """Show them if they were not shown."""
        if self.fault is not None:
            raise self.fault
        if not self.shown:
            self._show(ledger)

    def _show(self, ledger: "Ledger") -> None:
        from orchestrator.cli.tables import first_and_last, leaderboard

        console = Terminal(file=self.stream)
        first, last = first_and_last(ledger, self.storage, console.width)
        console.print(first, soft_wrap=True)
        console.print(leaderboard(ledger))
        console.print(last, soft_wrap=True)
        self.shown = True


def conclude(outcome: "Outcome", results: Results, notification: "Notification", *, summarise: bool = True) -> None:
    """Print the results, if they are not yet, and where to look, and send the notification; the exit code says how the
    search ended. `summarise`: print the summary, where results are JSON."""
    from orchestrator.cli.tables import closing
    from orchestrator.report.summary import summary
    from orchestrator.search.notify import end_of_search

    console = Terminal(stderr=results.as_json)
    results.ensure(outcome.ledger)
    for line in closing(outcome, results.storage, PORT):
        console.print(Text(line), soft_wrap=True)
    if results.as_json and summarise:
        print_json(summary(outcome.ledger, outcome.journal))
    _notify(notification, end_of_search(outcome.ledger, outcome.state))
    if outcome.state == "failed":
        reasons = [trial.reason for trial in outcome.ledger.trials.values() if trial.reason]
        echo(f"error: {why_failed(reasons, len(outcome.ledger.trials))}", err=True)
        raise typer.Exit(1)
    if outcome.fault:
        echo(f"error: {outcome.fault}; fix this and continue with the command above", err=True)
        raise typer.Exit(1)
    if outcome.state == "interrupted":
        raise typer.Exit(130)
