"""The command line."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
import webbrowser
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn
from urllib.parse import urlsplit

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.status import Status
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from orchestrator import objects
from orchestrator.errors import ClusterFailed, InputError, TrainingFailed, suggestion

if TYPE_CHECKING:
    from orchestrator.benchmark import Benchmark
    from orchestrator.comparison import Comparison
    from orchestrator.evaluation import Evaluation
    from orchestrator.ledger import Ledger
    from orchestrator.search import Outcome
    from orchestrator.spec import Search

app = typer.Typer(
    help="""Find out which deep-metric-learning method, with which hyperparameters, really works.

- `orchestrator search demo`: a first search, in minutes, on images that come with the package

- `orchestrator report NAME`: its leaderboard, also while it runs

- `orchestrator benchmark --methods a,b,c`: which of some methods is best, at an equal budget

- `orchestrator list`, `status NAME`, `stop NAME`: searches that run, here or elsewhere

- `orchestrator ui`: every trial's curves, in MLflow

- `orchestrator methods pfml`: what there is to search over

- `orchestrator new-method NAME`: a method of your own
""",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _not_empty(value: str | None) -> str | None:
    """An empty word is an unset shell variable, not a wish for the default."""
    if value is not None and not value.strip():
        raise typer.BadParameter("empty; give a value or leave the option out")
    return value


def _path(given: str | Path) -> Path:
    """A path; typer hands the default over as one already."""
    if isinstance(given, str) and "://" in given:
        raise typer.BadParameter("an address cannot be taken here; give a path")
    return Path(_not_empty(str(given)) or ".")


def _disk(given: str | Path) -> Path:
    """A folder where data sets are prepared."""
    if isinstance(given, str) and "://" in given:
        raise typer.BadParameter("data sets are prepared on a disk; orchestrator datasets publish copies them to S3")
    return _path(given)


def _storage(given: str | Path) -> Path:
    """A folder, or the one that stands for an address."""
    if isinstance(given, str) and "://" in given:
        try:
            return objects.working_copy(given)
        except InputError as error:
            raise typer.BadParameter(str(error)) from None
    return _path(given)


Storage = Annotated[
    Path,
    typer.Option(
        help="Folder of data sets, searches and runs, or s3://bucket/prefix.",
        envvar="ORCHESTRATOR_STORAGE",
        parser=_storage,
        metavar="DIR",
    ),
]
DiskStorage = Annotated[
    Path,
    typer.Option(
        help="Folder of data sets, searches and runs.", envvar="ORCHESTRATOR_STORAGE", parser=_disk, metavar="DIR"
    ),
]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        help="MLflow address; a database in the storage folder by default.",
        envvar="MLFLOW_TRACKING_URI",
        metavar="URI",
        callback=_not_empty,
    ),
]
Dataset = Annotated[
    str,
    typer.Option(
        help="Name of the data set (see `orchestrator datasets`), or s3://bucket/prefix.",
        metavar="NAME",
        callback=_not_empty,
    ),
]
SearchName = Annotated[str, typer.Argument(help="Name of the search.", metavar="NAME")]
PresetName = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="A paper's settings, METHOD/DATASET/BACKBONE; see `orchestrator presets`.",
        metavar="NAME",
        callback=_not_empty,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Fix a setting; repeat as needed.")]
BudgetWords = Annotated[
    list[str],
    typer.Option(
        "--budget",
        metavar="KEY=LIMIT",
        help="epochs, hours, gpu_hours, cpu_hours or trials_without_improvement, at most; repeat as needed.",
    ),
]
EachBudget = Annotated[
    list[str],
    typer.Option(
        "--budget",
        metavar="KEY=LIMIT",
        help="What each method may spend: epochs, hours, gpu_hours or cpu_hours; hours, if a number alone.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(metavar="RAY", help="A running Ray cluster, e.g. auto.", envvar="RAY_ADDRESS", callback=_not_empty),
]
RayOutput = Annotated[bool, typer.Option("--ray-output", help="Show Ray's own messages.")]
DEFAULT_STORAGE = Path("runs")
PORT = 5000
STOP_SECONDS = 120.0
"""How long `stop` waits for a search to end in order."""
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty SETTINGS


@app.command()
def search(
    space: Annotated[str, typer.Argument(help="A search file, or the name of a shipped one.", metavar="SPACE")],
    name: Annotated[
        str | None, typer.Option(help="Name of this search; a new one by default.", metavar="NAME", callback=_not_empty)
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Data set, in place of the file's.", metavar="NAME", callback=_not_empty)
    ] = None,
    preset: PresetName = None,
    num_trials: Annotated[int | None, typer.Option(min=1, help="How many points to try.")] = None,
    budget: BudgetWords = [],  # noqa: B006 (typer reads the default)
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="tpe, gp, cmaes, nsga2, qmc, random or grid, in place of the file's.",
            metavar="NAME",
            callback=_not_empty,
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="asha, median, hyperband or none, in place of the file's.", metavar="NAME", callback=_not_empty
        ),
    ] = None,
    start_from: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Try first: a preset, or SEARCH:K, the best K of an earlier search; repeat as needed.",
        ),
    ] = [],  # noqa: B006 (typer reads the default)
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Trials at a time, at most.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that train a trial together.")] = None,
    final_workers: Annotated[int | None, typer.Option(min=1, help="The same, for the winner's final run.")] = None,
    final_trials: Annotated[
        int | None, typer.Option(min=1, help="So many of the best trials have final runs; 1 by default.")
    ] = None,
    final_seeds: Annotated[
        int | None, typer.Option(min=1, help="Final runs of each of them, over so many seeds; 1 by default.")
    ] = None,
    final_protocol: Annotated[
        Literal["same", "conventional"] | None,
        typer.Option(help="Protocol of the final runs of a search over folds (protocol=mlrc); same by default."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs per trial.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the search and of its trainings.")] = None,
    set_: Set = [],  # noqa: B006 (typer reads the default)
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the resolved search and its cost.")] = False,
    json_: Json = False,
    ray_output: RayOutput = False,
) -> None:
    """Search for the best hyperparameters of a method.

    - `orchestrator search demo`

    - `orchestrator search pfml --dataset glyphs --num-trials 40 --set epochs=20`

    - `orchestrator search my_space.yaml --set delta=0.2 --dry-run`

    - `orchestrator search pfml --preset pfml/cub200/resnet50`

    - `orchestrator search pfml --budget hours=8 --start-from my-search:3`

    - `orchestrator search pfml --set protocol=mlrc --final-trials 3 --final-seeds 5 --final-protocol conventional`
    """
    changes = {
        "dataset": dataset,
        "num_trials": num_trials,
        "budget": _limits(budget) or None,
        "algorithm": algorithm,
        "scheduler": scheduler,
        "start_from": start_from or None,
        "max_concurrent": max_concurrent,
        "workers": workers,
        "final_workers": final_workers,
        "final_trials": final_trials,
        "final_seeds": final_seeds,
        "final_protocol": final_protocol,
        "seed": seed,
    }
    if dry_run:
        with _status("timing a few steps"):
            resolved = _resolve(space, name, preset, epochs, set_, changes, storage)
            planned = _plan(resolved, storage)
        _warn_of_plugins()
        _note_idle(resolved)
        _warn_of_hours(resolved)
        _show_plan(planned, as_json=json_)
        return
    with _status("starting: the data set, then Ray") as status:
        resolved = _resolve(space, name, preset, epochs, set_, changes, storage)
        _warn_of_plugins()
        _note_idle(resolved)
        from orchestrator.cluster import RayRunner
        from orchestrator.display import Display
        from orchestrator.search import start

        _refuse_shadows()
        runner = RayRunner(_reachable(address), ray_output)
        outcome = start(resolved, runner, storage=storage, tracking_uri=tracking_uri, watcher=Display(status=status))
    _conclude(outcome, storage, as_json=json_)


@app.command()
def benchmark(
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, shipped searches, or search files.", metavar="A,B,...", callback=_not_empty),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Data set, in place of the files'.", metavar="NAME", callback=_not_empty)
    ] = None,
    budget: EachBudget = [],  # noqa: B006 (typer reads the default)
    num_trials: Annotated[int | None, typer.Option(min=1, help="How many points each method may try.")] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of this benchmark; one that has begun goes on.", metavar="NAME", callback=_not_empty),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(help="tpe, gp, cmaes, qmc, random or grid, for all.", metavar="NAME", callback=_not_empty),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="asha, median, hyperband or none, for all.", metavar="NAME", callback=_not_empty)
    ] = None,
    final_seeds: Annotated[
        int | None, typer.Option(min=1, help="Final runs of each method's winner, over so many seeds; 5 by default.")
    ] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Trials at a time, at most.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that train a trial together.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs per trial.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the searches and of their trainings.")] = None,
    set_: Set = [],  # noqa: B006 (typer reads the default)
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run and its cost.")] = False,
    json_: Json = False,
    ray_output: RayOutput = False,
) -> None:
    """Which method is best? An equal budget for each, over its own space, and its winner tested over seeds.

    The same command again goes on where it was. More methods (`--methods`) run only what is missing; more budget
    (`--budget`, `--num-trials`) goes to all of them.

    - `orchestrator benchmark --methods pfml,proxy_anchor,multi_similarity --dataset glyphs --budget epochs=200`

    - `orchestrator benchmark --name my-benchmark --methods my_loss/my_loss.yaml`

    - `orchestrator benchmark --name my-benchmark --budget epochs=400`
    """
    changes = {
        "dataset": dataset,
        "num_trials": num_trials,
        "budget": _limits(budget) or None,
        "algorithm": algorithm,
        "scheduler": scheduler,
        "final_seeds": final_seeds,
        "max_concurrent": max_concurrent,
        "workers": workers,
        "seed": seed,
    }
    with _status("starting: the data set, then Ray") as status:
        from orchestrator.benchmark import Benchmark, asked, known
        from orchestrator.spec import find_search

        overrides = _assignments(set_, changes | {"epochs": epochs}) | ({} if epochs is None else {"epochs": epochs})
        named = [word.strip() for word in (methods or "").split(",") if word.strip()]
        named = [str(find_search(word)) if "/" in word or Path(word).suffix else word for word in named]
        before = None if name is None else known(storage.expanduser().resolve(), name)
        wanted = {key: value for key, value in changes.items() if value is not None}
        if before is None and named and not ({"budget", "num_trials"} & wanted.keys()):
            raise InputError("--budget: missing; give each method the same, such as epochs=200 (or --num-trials)")
        given = None
        if before is not None or named:
            methods_ = named or (before.methods if before is not None else [])
            name = name or _fresh_name("benchmark")
            given = Benchmark(name=name, methods=methods_, overrides=overrides, changes=wanted)
        chosen = asked(given, before)
        _run_benchmark(
            chosen, storage, tracking_uri, address, status, dry_run=dry_run, as_json=json_, ray_output=ray_output
        )


def _run_benchmark(
    chosen: "Benchmark",
    storage: Path,
    tracking_uri: str | None,
    address: str | None,
    status: Status,
    *,
    dry_run: bool = False,
    as_json: bool,
    ray_output: bool,
) -> None:
    from orchestrator.benchmark import run, to_do
    from orchestrator.cluster import RayRunner
    from orchestrator.display import Display
    from orchestrator.search import Places

    searches = to_do(chosen, Places(storage.expanduser().resolve()))
    _warn_of_plugins()
    if dry_run:
        plans = {label: _plan(search, storage) for label, search in searches.items()}
        status.stop()
        if as_json:
            print(json.dumps(plans))
        for label, planned in plans.items() if not as_json else ():
            typer.echo(f"== {label}")
            _show_plan(planned, as_json=False)
        return
    for search in searches.values():
        _note_idle(search)
    _refuse_shadows()

    def watcher(label: str, place: int) -> Display:
        if place == 1:
            return Display(status=status)
        typer.echo(f"== {label}: {place} of {len(searches)}", err=True)
        return Display()

    runner = RayRunner(_reachable(address), ray_output)
    result = run(chosen, runner, storage=storage, tracking_uri=tracking_uri, watcher=watcher)
    status.stop()
    _show_comparison(result.comparison, as_json=as_json)
    console = Console(stderr=as_json)
    console.print(Text(f"on a page:  {result.page}"), soft_wrap=True)
    if result.outcome is not None:
        place = shlex.quote(objects.shown(storage))
        again = f"orchestrator benchmark --name {chosen.name} --storage {place}"
        why = result.outcome.fault or result.outcome.ledger.reason or "interrupted"
        console.print(Text(f"{why}; go on with:  {again}"), soft_wrap=True)
        raise typer.Exit(1 if result.outcome.fault else 130)


@app.command()
def compare(
    names: Annotated[list[str], typer.Argument(help="Searches, or one benchmark.", metavar="NAME...")],
    storage: Storage = DEFAULT_STORAGE,
    format_: Annotated[
        Literal["table", "markdown", "csv", "latex"],
        typer.Option("--format", help="How to print it; > FILE keeps it."),
    ] = "table",
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the comparison as one page that needs no network.", parser=_path),
    ] = None,
    json_: Json = False,
) -> None:
    """Compare searches by the tests of their winners: which is better, by how much, and how sure that is.

    Searches whose numbers are not of the same thing (other data, protocol or selection) are refused.

    - `orchestrator compare pfml-a proxy_anchor-b`

    - `orchestrator compare my-benchmark --html comparison.html`
    """
    from orchestrator.benchmark import compared, known
    from orchestrator.comparison import Comparison
    from orchestrator.report import comparison_exported, read_search
    from orchestrator.search import Places

    if json_ and format_ != "table":
        raise InputError(f"--format {format_}: --json prints to stdout too; keep one")
    places = Places(storage.expanduser().resolve())
    found = known(places.storage, names[0]) if len(names) == 1 else None
    if found is not None:
        comparison = compared(found, places)
    else:
        if len(set(names)) < 2:
            raise InputError(f"NAME: {names[0]}: give two searches or more, or a benchmark, to compare")
        comparison = Comparison.of(" and ".join(names), {name: read_search(name, storage)[0] for name in names})
    if html is not None:
        from orchestrator.comparison_page import write_comparison

        _write_html("--html", html, lambda path: write_comparison(comparison, path), "comparison")
    if format_ != "table":
        print(comparison_exported(comparison, format_), end="")
    elif json_ or html is None:
        _show_comparison(comparison, as_json=json_)


@app.command()
def resume(
    name: SearchName,
    num_trials: Annotated[int | None, typer.Option(min=1, help="Try so many points in all, from now on.")] = None,
    budget: BudgetWords = [],  # noqa: B006 (typer reads the default)
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Trials at a time, at most, from now on.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that train a trial together, from now on.")
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    address: Address = None,
    json_: Json = False,
    ray_output: RayOutput = False,
) -> None:
    """Go on with a search after a stop, a pause, a crash or a reboot; no finished trial runs again.

    A search that has come to its end goes on if it is given more trials, or another budget.

    - `orchestrator resume my-search`

    - `orchestrator resume my-search --num-trials 80 --budget hours=none`

    - `orchestrator resume my-search --workers 4 --max-concurrent 2`
    """
    with _status("taking the search up again") as status:
        if (found := _benchmark(name, storage)) is not None:
            if num_trials or budget or workers or max_concurrent:
                raise InputError(f"{name}: is a benchmark: give it more by orchestrator benchmark --name {name} ...")
            _run_benchmark(found, storage, tracking_uri, address, status, as_json=json_, ray_output=ray_output)
            return
        from orchestrator.cluster import RayRunner
        from orchestrator.display import Display
        from orchestrator.search import resume as go_on

        _refuse_shadows()
        runner = RayRunner(_reachable(address), ray_output)
        outcome = go_on(
            name,
            runner,
            storage=storage,
            tracking_uri=tracking_uri,
            watcher=Display(status=status),
            num_trials=num_trials,
            budget=_limits(budget),
            workers=workers,
            max_concurrent=max_concurrent,
        )
    _conclude(outcome, storage, as_json=json_)


@app.command()
def status(name: SearchName, storage: Storage = DEFAULT_STORAGE, json_: Json = False) -> None:
    """How far a search is, wherever it runs.

    - `orchestrator status my-search`
    """
    from orchestrator.control import driver
    from orchestrator.control import status as state_of
    from orchestrator.journal import refresh
    from orchestrator.ledger import Ledger
    from orchestrator.report import read_search
    from orchestrator.search import JOURNAL, Places

    if (found := _benchmark(name, storage)) is not None:
        _show_statuses([state_of(*begun) for begun in _members(found, storage)], as_json=json_)
        return
    folder = Places(storage.expanduser().resolve()).search(name)
    refresh(folder / JOURNAL)
    if driver(folder) and not (folder / JOURNAL).exists():
        _show_status(state_of(Ledger(name=name), folder) | {"state": "starting"}, storage, as_json=json_)
        return
    ledger, journal = read_search(name, storage)
    _show_status(state_of(ledger, journal.parent), storage, as_json=json_)


@app.command()
def stop(name: SearchName, storage: Storage = DEFAULT_STORAGE, json_: Json = False) -> None:
    """Stop a search that runs, here or elsewhere, in order; `resume` goes on from each trial's last validation.

    - `orchestrator stop my-search`
    """
    _steer(name, storage, "stop", as_json=json_)


@app.command()
def pause(name: SearchName, storage: Storage = DEFAULT_STORAGE, json_: Json = False) -> None:
    """Let a search end once the trials that run now have; `resume` goes on with the next.

    - `orchestrator pause my-search`
    """
    _steer(name, storage, "pause", as_json=json_)


@app.command("list")
def list_(storage: Storage = DEFAULT_STORAGE, json_: Json = False) -> None:
    """The searches and trainings of a storage folder, the newest first.

    - `orchestrator list`
    """
    from orchestrator.control import status as state_of
    from orchestrator.search import Places, read_journal

    found = []
    for journal in Places(storage.expanduser().resolve()).journals():
        try:
            found.append(state_of(read_journal(journal)[1], journal.parent))
        except InputError as error:
            typer.echo(f"warning: {error}", err=True)
    if found or json_:
        _show_statuses(found, as_json=json_)
    else:
        typer.echo(f"no search under {objects.shown(storage)} yet; begin with: orchestrator search demo")


@app.command()
def sync(
    name: SearchName,
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
) -> None:
    """Send what MLflow missed of a search while it was away.

    - `orchestrator sync my-search --tracking-uri http://mlflow.example:5000`
    """
    from orchestrator.control import driver
    from orchestrator.ledger import counted
    from orchestrator.search import Places, bring_artifacts, read_journal, tracking_address
    from orchestrator.tracking import redact, sync

    places = Places(storage.expanduser().resolve())
    journal = places.journal(name)
    uri = tracking_address(tracking_uri, places, journal)
    if objects.address_of(journal) is not None:  # there, no lock tells
        if driver(journal.parent):
            raise InputError(f"{objects.shown(journal)}: the search is running and sends its events itself")
        bring_artifacts(journal, *read_journal(journal))
    report = sync(journal, uri, places.artifacts)
    sent, runs = counted(report.events, "event"), counted(report.runs, "run")
    typer.echo(f"{sent} sent to {redact(uri)}; the search has {runs} there")
    for refused in report.refused:
        typer.echo(f"refused by the server: {refused}", err=True)


@app.command()
def train(
    method: Annotated[
        str | None,
        typer.Option(help="Name of the method; see `orchestrator methods`.", metavar="NAME", callback=_not_empty),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Name of the data set; see `orchestrator datasets`.", metavar="NAME", callback=_not_empty),
    ] = None,
    preset: PresetName = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of training.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the training.")] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of this training; a new one by default.", metavar="NAME", callback=_not_empty),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Train so often, with consecutive seeds, in parallel under Ray.")
    ] = 1,
    set_: Set = [],  # noqa: B006 (typer reads the default)
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the resolved training and its cost.")] = False,
    json_: Json = False,
) -> None:
    """Train one method once, in this process, and test it; or several times, for mean, deviation and interval.

    - `orchestrator train --method pfml --dataset glyphs-small --epochs 5 --set delta=0.25`

    - `orchestrator train --method pfml --dataset glyphs-small --epochs 5 --repeats 5`

    - `orchestrator train --preset pfml/cub200/resnet50`
    """
    with _status("starting") as status:
        from orchestrator.display import Display
        from orchestrator.presets import find_preset
        from orchestrator.search import InlineRunner, Runner, start
        from orchestrator.spec import beneath, single_training

        chosen = None if preset is None else find_preset(preset)
        for option, value in (("method", method), ("dataset", dataset)):
            if value is None and chosen is None:
                raise InputError(f"--{option}: missing, or --preset (see orchestrator train --help)")
        if chosen is not None and method not in (None, chosen.settings["method"]):
            raise InputError(f"--method {method}: --preset {preset} is of '{chosen.settings['method']}'; keep one")
        given = {"method": method, "dataset": dataset, "epochs": epochs, "seed": seed}
        overrides = _assignments(set_, given)
        fixed = {} if chosen is None else beneath(chosen.settings, overrides)
        fixed |= {key: value for key, value in given.items() if value is not None}
        _warn_of_plugins()
        training = single_training(
            name or _fresh_name(f"train-{fixed['method']}"), fixed | overrides, repeats=repeats, preset=chosen
        )
        if dry_run:
            planned = _plan(training, storage)
            status.stop()
            _note_idle(training)
            _show_plan(planned, as_json=json_)
            return
        runner: Runner = InlineRunner()
        if repeats > 1:
            from orchestrator.cluster import RayRunner

            _refuse_shadows()
            runner = RayRunner()
        _note_idle(training)
        watcher = Display(status=status)
        outcome = start(training, runner, storage=storage, tracking_uri=tracking_uri, watcher=watcher)
    _conclude(outcome, storage, as_json=json_)


@app.command()
def evaluate(
    checkpoint_or_run: Annotated[
        str,
        typer.Argument(
            help="A model file, a search (its final model, or its folds' models), SEARCH/TRIAL, or an MLflow run id.",
            metavar="CHECKPOINT_OR_RUN",
        ),
    ],
    dataset: Dataset,
    storage: Storage = DEFAULT_STORAGE,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute; auto takes a GPU if there is one.")
    ] = "auto",
    per_query: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a row per query to a .csv or .parquet file.", parser=_path),
    ] = None,
    per_class: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a row per class to a .csv or .parquet file.", parser=_path),
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Search a share of the gallery only, for a million images.")
    ] = False,
    class_groups: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="All images, in consecutive groups of so many classes, each by itself.",
            callback=_not_empty,
        ),
    ] = None,
    out_of_distribution: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Another data set: how well uncertainty tells its images from those of the first.",
            callback=_not_empty,
        ),
    ] = None,
    gallery: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write what it finds, confuses and embeds as one page with images.", parser=_path
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """All retrieval metrics of a trained model on the test classes of a data set.

    Of a training over folds: the mean of its models' metrics, and those of their embeddings side by side (concatenated;
    the tables and intervals are of these).

    Intervals are of 95%, by bootstrap over the queries: they cover neither the drawing of classes nor training seeds.

    - `orchestrator evaluate my-search --dataset glyphs`

    - `orchestrator evaluate my-search --dataset glyphs --per-class classes.csv`

    - `orchestrator evaluate my-search --dataset glyphs --gallery model.html`

    - `orchestrator evaluate runs/searches/my-search/trials/0003/best.pt --dataset glyphs`

    - `orchestrator evaluate my-search --dataset nabirds --class-groups 200,200,155`

    - `orchestrator evaluate my-search --dataset cifar10 --out-of-distribution cifar100`
    """
    from orchestrator.data.catalog import open_dataset
    from orchestrator.folds import evaluate_folds
    from orchestrator.loop import detect_outside, evaluate_and_embed, look, rows_to_test, saved_model
    from orchestrator.report import find_models
    from orchestrator.search import Places
    from orchestrator.spec import resolve_experiment

    for option, path in (("--per-query", per_query), ("--per-class", per_class)):
        _refuse_table(option, path)
    if per_query is not None and per_query == per_class:
        raise InputError(f"--per-class: {per_class}: --per-query names it too; name another file")
    _refuse_page("--gallery", gallery)
    tables: dict[str, object] = {"--per-query": per_query, "--per-class": per_class, "--gallery": gallery}
    if class_groups is not None:
        _refuse_together("--class-groups", tables)
    if out_of_distribution is not None:
        others = tables | {"--class-groups": class_groups, "--approximate": approximate}
        _refuse_together("--out-of-distribution", others)
        if out_of_distribution == dataset:
            raise InputError(f"--out-of-distribution: {dataset}: is the data set itself; name another")
    places = Places(storage.expanduser().resolve())
    models = find_models(checkpoint_or_run, places)
    if gallery is not None and len(models) > 1:
        raise InputError(f"--gallery: {checkpoint_or_run} has a model per fold; name one, say {models[0]}")
    store = open_dataset(dataset, places.data, say=_say)
    saved = saved_model(models[0])
    training = resolve_experiment(saved["experiment"], str(models[0])).training
    same_data = saved.get("dataset_digest") == store.manifest["digest"]
    on_test = same_data and training.selection == "test"
    tested = "test images" if training.protocol == "classification" else "test classes"
    model = models[0] if len(models) == 1 else models[0].parent.parent
    done: dict[str, Any] = {"model": str(model), "dataset": dataset, "selection": "test" if on_test else "validation"}
    how = ", approximate search" if approximate else ""
    word = " (selection: test)" if on_test else ""
    if out_of_distribution is not None:
        if len(models) > 1:
            raise InputError(f"--out-of-distribution: {model} has a model per fold; name one, say {models[0]}")
        other = open_dataset(out_of_distribution, places.data, say=_say)
        metrics = detect_outside(models[0], store, other, device)
        title = f"{model}, uncertainty of images of {out_of_distribution} against {dataset}, {tested}{word}"
        done |= {"out_of_distribution": out_of_distribution, "split": "test", "metrics": metrics}
        _show_metrics(title, {"value": metrics}, done if json_ else None)
        return

    seen: list[Any] = []

    def evaluated(rows: Any) -> "tuple[Evaluation, dict[str, Any], dict[str, Any]]":
        """Of a single model, or of the folds' embeddings side by side; what it says in JSON, and as columns."""
        if len(models) == 1:
            found, embedded = evaluate_and_embed(models[0], store, rows, device, approximate=approximate)
            seen[:] = [embedded]
            metrics, columns, prefix = found.metrics, {"value": found.metrics}, ""
        else:
            metrics, found = evaluate_folds(models, store, rows, device, approximate=approximate)
            separated = {name: value for name, value in metrics.items() if not name.startswith("concatenated_")}
            columns, prefix = {"separated": separated, "concatenated": found.metrics}, "concatenated_"
        intervals = {f"{prefix}{name}": ends for name, ends in found.intervals().items()}
        return found, {"queries": len(found.queries), "metrics": metrics, "intervals": intervals}, columns

    if class_groups is not None:
        groups = _class_groups(store, class_groups)
        if same_data:
            typer.echo("note: the model was trained on classes of this data set: these are not new to it", err=True)
        parts = {name: evaluated(rows) for name, rows in groups.items()}
        done["groups"] = [{"classes": name, **said} for name, (_, said, _) in parts.items()]
        columns = {
            f"classes {name}" + (f", {column}" if len(models) > 1 else ""): values
            for name, (_, _, cells) in parts.items()
            for column, values in cells.items()
        }
        _show_metrics(f"{model} on {dataset}, all images of each group{how}{word}", columns, done if json_ else None)
        return
    found, said, columns = evaluated(rows_to_test(training, store))
    if per_query is not None:
        _write_table("--per-query", per_query, found.queries)
    if per_class is not None:
        classes = found.classes()
        names = [store.class_names[label] for label in classes["label"].to_pylist()]
        _write_table("--per-class", per_class, classes.add_column(1, "class", [names]))
    if gallery is not None:
        from orchestrator.model_page import View, write_model_page

        scores = ", ".join(f"{name} {found.metrics[name]:.4f}" for name in ("recall_at_1", "map_at_r"))
        shown = View(
            title=f"{checkpoint_or_run} on {dataset}",
            facts=[saved["experiment"]["method"], dataset, training.backbone, f"{len(found.queries)} queries", tested],
            told=[f"{tested.capitalize()}{word}: {scores}."],
            insight=look(found, seen[0], store),
            names=store.class_names,
            image=store.image,
        )
        _write_html("--gallery", gallery, lambda path: write_model_page(shown, path), "page of the model")
    done |= {"split": "test"} | said
    title = f"{model} on {dataset}, {tested}{word}, {len(found.queries)} queries{how}"
    between = {key: " to ".join(f"{end:.4f}" for end in ends) for key, ends in found.intervals().items()}
    _show_metrics(title, columns | {"95% interval": between}, done if json_ else None)


@app.command()
def report(
    name: SearchName,
    storage: Storage = DEFAULT_STORAGE,
    format_: Annotated[
        Literal["table", "markdown", "csv", "latex"],
        typer.Option("--format", help="How to print it; > FILE keeps it."),
    ] = "table",
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the whole report as one page that needs no network.", parser=_path),
    ] = None,
    json_: Json = False,
) -> None:
    """What a search found out, also while it runs.

    - `orchestrator report my-search`

    - `orchestrator report my-search --html report.html`

    - `orchestrator report my-search --format csv > leaderboard.csv`
    """
    from orchestrator.display import leaderboard
    from orchestrator.report import exported, read_search, summary

    if json_ and format_ != "table":
        raise InputError(f"--format {format_}: --json prints to stdout too; keep one")
    if _benchmark(name, storage) is not None:
        compare([name], storage, format_, html, json_)
        return
    ledger, journal = read_search(name, storage)
    if html is not None:
        from orchestrator.findings import Findings
        from orchestrator.model_page import confused_classes
        from orchestrator.page import write_page

        findings = Findings.of(ledger, confused_classes(ledger, journal.parent))
        _write_html("--html", html, lambda path: write_page(findings, path), f"report of {name}")
    if json_:
        print(json.dumps(summary(ledger, journal)))
    elif format_ != "table":
        print(exported(ledger, format_), end="")
    elif html is None:
        Console().print(leaderboard(ledger))


@app.command()
def export(
    run: Annotated[
        str,
        typer.Argument(
            help="A search (its final model), SEARCH/TRIAL, an MLflow run id, or a model file.", metavar="RUN"
        ),
    ],
    to: Annotated[
        Literal["onnx", "torchscript", "pt2", "mlflow"] | None, typer.Option("--to", help="The form to write.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where to; a name like RUN.onnx here by default.", parser=_path),
    ] = None,
    register: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Register it in MLflow under this name.", callback=_not_empty),
    ] = None,
    alias: Annotated[
        str, typer.Option(metavar="NAME", help="The alias of the version registered.", callback=_not_empty)
    ] = "champion",
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Try it on images of this data set; the training's by default.",
            callback=_not_empty,
        ),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    json_: Json = False,
) -> None:
    """A trained model for other programs, once it has given the same embeddings there.

    It takes uint8 images (batch, H, W, channels) of the size that the evaluation sees, and gives float32 embeddings.

    - `orchestrator export my-search --to onnx`

    - `orchestrator export my-search/0003 --to pt2 --output encoder.pt2`

    - `orchestrator export my-search --register birds`: in MLflow, as `models:/birds@champion`
    """
    if to is None and register is None:
        raise InputError("--to: missing, or --register; the forms are onnx, torchscript, pt2 and mlflow")
    if to is None and output is not None:
        raise InputError(f"--output: {output}: needs --to, the form to write")
    with _status("reading the model"):
        from orchestrator.data.catalog import open_dataset
        from orchestrator.export import SUFFIXES, Source, check_packages, description, facts, mlflow_form
        from orchestrator.export import export as write
        from orchestrator.loop import saved_model
        from orchestrator.report import find_models, owner_of
        from orchestrator.search import Places, tracking_address
        from orchestrator.tracking import reach, redact, register_model

        places = Places(storage.expanduser().resolve())
        models = find_models(run, places)
        if len(models) > 1:
            raise InputError(f"RUN: {run} has a model per fold; name one, say {models[0]}")
        path = None
        if to is not None:
            check_packages(to)
            path = output or Path(f"{Path(run).stem if Path(run).exists() else run.replace('/', '-')}{SUFFIXES[to]}")
            if to == "mlflow" and path.exists():
                raise InputError(f"--output: {path} exists; name another folder")
            _refuse_page("--output", path)
        owner = owner_of(models[0])
        if register is not None and owner is None:
            raise InputError(f"--register: {run} has no run in MLflow; name a search or SEARCH/TRIAL")
        uri = None
        if register is not None and owner is not None:
            uri = tracking_address(tracking_uri, places, owner.journal)
            if owner.run_id is None:
                again = f"orchestrator sync {owner.ledger.name}"
                raise InputError(f"--register: {run} is not recorded in {redact(uri)} yet: {again}")
            reach(uri)  # before anything is written
        store = open_dataset(dataset or saved_model(models[0])["experiment"]["dataset"], places.data, say=_say)
        source = Source.of(models[0], store, facts(owner.ledger, owner.trial) if owner is not None else None)
    done: dict[str, Any] = {"model": str(models[0]), "input": source.about["input"], "output": source.about["output"]}
    if to is not None and path is not None:
        with _status(f"exporting to {to}"):
            exported = write(source, to, path)
        done |= {"to": to, "path": str(exported.path), "difference": exported.difference}
        if not json_:
            same = f"its embeddings differ by {exported.difference:.2g} at most from the trained model's"
            for line in (f"{exported.path}: {same}", f"  {done['input']}", f"  {done['output']}"):
                Console().print(Text(line), soft_wrap=True)
    if register is not None and owner is not None and owner.run_id is not None and uri is not None:
        with _status("registering"), mlflow_form(source, models[0].parent) as folder:
            about = description(source)
            version = register_model(uri, places.artifacts, owner.run_id, folder, register, alias, about)
        done |= {"registered": register, "version": version, "alias": alias}
        if not json_:
            address = f"models:/{register}@{alias}"
            Console().print(Text(f"registered {register}, version {version}: {address}"), soft_wrap=True)
    if json_:
        print(json.dumps(done))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method's hyperparameters.")] = None,
    json_: Json = False,
) -> None:
    """The installed methods, or one method's formula and hyperparameters.

    - `orchestrator methods`

    - `orchestrator methods pfml`
    """
    from orchestrator.method import find_method, registry
    from orchestrator.report import describe_method

    if name is None:
        described = [describe_method(method) for _, method in sorted(registry().items())]
        if json_:
            print(json.dumps(described))
        else:
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            table.add_column("name", no_wrap=True)
            table.add_column("what")
            table.add_column("paper")
            for method in described:
                table.add_row(method["name"], method["summary"], method["paper"])
            Console().print(table)
            typer.echo("more of one: orchestrator methods NAME")
        _warn_of_plugins()
        return
    method = describe_method(find_method(name))
    if json_:
        print(json.dumps(method))
        return
    console = Console()
    console.print(Text(method["name"], style="bold"), Text(method["paper"]))
    for paragraph in method["documentation"].split("\n\n"):
        console.print(Text("\n" + (" ".join(paragraph.split()) if "\n  " not in paragraph else paragraph)))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("hyperparameter", no_wrap=True)
    for column in ("type", "default", "range", "meaning"):
        table.add_column(column, overflow="fold")
    for row in method["hyperparameters"]:
        table.add_row(row["name"], row["type"], _plain(row["default"]), row["range"], row["description"])
    console.print(table)
    if method["presets"]:
        typer.echo("presets: " + ", ".join(method["presets"]))


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="Show this preset, or a method's names.")] = None,
    json_: Json = False,
) -> None:
    """The papers' own settings for their data sets and backbones.

    - `orchestrator presets`

    - `orchestrator presets pfml`

    - `orchestrator presets pfml/cub200/resnet50`
    """
    from orchestrator.presets import describe_preset, find_preset, preset_text, presets_of
    from orchestrator.presets import presets as shipped

    names = list(shipped()) if name is None else presets_of(name)
    if names:
        listed = [{"name": known, "source": shipped()[known].source} for known in names]
        if json_:
            typer.echo(json.dumps(listed))
            return
        typer.echo("\n".join(names))
        typer.echo("METHOD/DATASET/BACKBONE[/VARIANT]; one with its settings: orchestrator presets NAME", err=True)
        return
    preset = find_preset(str(name), "NAME")
    typer.echo(json.dumps(describe_preset(preset)) if json_ else preset_text(preset).rstrip())


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="Name of the method.", metavar="NAME")],
    set_: Set = [],  # noqa: B006 (typer reads the default)
    json_: Json = False,
) -> None:
    """Check that a method holds what every method must hold.

    Exit code 0 if each check passed or was expected to fail, 1 otherwise.

    - `orchestrator check my_loss`

    - `orchestrator check contrastive --set references=memory`
    """
    with _status("loading"):
        from orchestrator.check import config_of, verdicts
        from orchestrator.method import find_method

        method = find_method(name)
        hyperparameters = _assignments(set_, {})
        config_of(method, hyperparameters)
    found = []
    for verdict in verdicts(method, **hyperparameters):
        found.append(verdict)
        if not json_:
            state = "FAILED" if verdict.state == "failed" else verdict.state
            typer.echo(f"{verdict.name}: {state}" + (f": {verdict.reason}" if verdict.reason else ""))
    failed = sum(verdict.state == "failed" for verdict in found)
    if json_:
        checks = [{"name": v.name, "state": v.state, "reason": v.reason} for v in found]
        print(json.dumps({"name": name, "conforms": not failed, "checks": checks}))
    else:
        counts = Counter(verdict.state for verdict in found)
        typer.echo(f"{name}: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
    raise typer.Exit(1 if failed else 0)


@app.command("new-method")
def new_method(
    name: Annotated[str, typer.Argument(help="Name of the method, in snake_case.", metavar="NAME")],
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder to make, or an empty one; NAME in this one by default.", metavar="DIR", parser=_path),
    ] = None,
) -> None:
    """Write a plugin project to begin with: a loss that works, its search space, its tests.

    - `orchestrator new-method my_loss`
    """
    from orchestrator.scaffold import new_method as write

    made = write(name, folder or Path(name))
    typer.echo(f"{made} is a method that works; now:")
    fetched = Path(sys.prefix).parent / ".uv" / "bin" / "uv"
    uv = "uv" if shutil.which("uv") or not fetched.exists() else shlex.quote(str(fetched))
    typer.echo(f"  {uv} pip install --python {shlex.quote(sys.executable)} -e {shlex.quote(str(made))}")
    typer.echo(f"  orchestrator check {name}")
    typer.echo(f"  orchestrator search {shlex.quote(str(made / name))}.yaml")


class _DatasetsGroup(TyperGroup):
    """`orchestrator datasets [NAME]` is short for `orchestrator datasets show [NAME]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What typer calls first."""
        short = not args or args[0] not in {*self.commands, "--help"}
        return super().parse_args(ctx, ["show", *args] if short else args)


datasets_app = typer.Typer(cls=_DatasetsGroup, rich_markup_mode="markdown")
app.add_typer(
    datasets_app,
    name="datasets",
    help="""The known data sets, and those of your own: `orchestrator datasets`, `orchestrator datasets NAME`.""",
)


@datasets_app.command("show")
def show_datasets(
    name: Annotated[str | None, typer.Argument(help="Show this data set, also one at s3://bucket/prefix.")] = None,
    storage: DiskStorage = DEFAULT_STORAGE,
    json_: Json = False,
) -> None:
    """What is known, what is prepared, and how to get the rest.

    - `orchestrator datasets`

    - `orchestrator datasets cub200`

    - `orchestrator datasets s3://bucket/cub200`
    """
    from orchestrator.data.catalog import describe_remote, overview
    from orchestrator.data.remote import Address, is_address
    from orchestrator.search import Places

    shown = overview(Places(storage.expanduser().resolve()).data)
    if name is not None:
        if is_address(name):
            name = str(Address.parse(name))
            shown |= {} if name in shown else {name: describe_remote(name)}
        if name not in shown:
            raise InputError(f"unknown data set '{name}'{suggestion(name, [*shown, 'prepare', 'publish'])}")
        shown = {name: shown[name]}
    if json_:
        print(json.dumps(shown[name] if name is not None else list(shown.values())))
        return
    if name is not None:
        for key, value in shown[name].items():
            Console().print(Text.assemble((f"{key.replace('_', ' ')}: ", "bold"), _plain(value)), soft_wrap=True)
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what")
    for column in ("images", "classes"):
        table.add_column(column, justify="right")
    table.add_column("state", no_wrap=True)
    for info in shown.values():
        state = Text(info["state"], style="green" if info["state"] == "prepared" else "")
        table.add_row(Text(info["name"]), Text(info["summary"]), str(info["images"]), str(info["classes"]), state)
    console = Console()
    console.print(table)
    for line in (
        "from an unpacked archive:  orchestrator datasets prepare NAME --source DIR",
        "from images of your own:   orchestrator datasets prepare folder --source DIR --name NAME  (or csv)",
        "where to get an archive:   orchestrator datasets NAME",
    ):
        console.print(Text(line), soft_wrap=True)


@datasets_app.command("prepare")
def prepare_dataset(
    importer: Annotated[
        str, typer.Argument(help="A known data set; folder or csv for images of your own.", metavar="NAME")
    ],
    source: Annotated[
        Path, typer.Option(help="Folder that its archive unpacks to, or with your images.", metavar="DIR", parser=_path)
    ],
    name: Annotated[
        str | None, typer.Option(help="What to call the data set made.", metavar="NAME", callback=_not_empty)
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Shorter side of the images kept, in pixels; 256 by default.")
    ] = None,
    original: Annotated[bool, typer.Option("--original", help="Keep the images as they are.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core by default.")] = None,
    storage: DiskStorage = DEFAULT_STORAGE,
) -> None:
    """Make a data set ready for training, from its unpacked archive or from images of your own.

    After Ctrl-C the same command goes on where it was.

    - `orchestrator datasets prepare cub200 --source downloads/CUB_200_2011`

    - `orchestrator datasets prepare folder --source my_images --name mine`

    - `orchestrator datasets prepare csv --source my_images/list.csv --name mine`
    """
    with _status("reading the annotations") as status:
        from orchestrator.data.importers import prepare
        from orchestrator.data.splits import too_few_classes, unused_split
        from orchestrator.search import Places
        from orchestrator.spec import check_name

        notes: list[str | None] = []

        if name is not None:
            check_name(name)
        columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn())
        bar = Progress(*columns, _Rate(), TimeRemainingColumn(), console=status.console)

        def show(done: int, total: int) -> None:
            if not bar.tasks:
                status.stop()
                bar.add_task("images", completed=done, total=total)
                if status.console.is_terminal:
                    bar.start()
            bar.update(bar.task_ids[0], completed=done)

        def stop() -> None:
            if bar.live.is_started:  # otherwise rich prints an empty line
                bar.stop()

        try:
            store = prepare(
                importer,
                source,
                Places(storage.expanduser().resolve()).data,
                name=name,
                size=size,
                original=original,
                workers=workers or os.cpu_count() or 1,
                progress=show,
                say=notes.append,
            )
        except KeyboardInterrupt as interrupt:
            stop()
            typer.echo(": ".join(filter(None, ("interrupted", str(interrupt)))), err=True)
            raise typer.Exit(130) from None
        finally:
            stop()
    for note in filter(None, [*notes, unused_split(store), too_few_classes(store)]):
        typer.echo(f"note: {note}", err=True)
    made = "" if bar.tasks else "is there already: "
    splits = ", ".join(f"{count:,} {split}" for split, count in store.manifest["splits"].items())
    typer.echo(f"{store.name}: {made}{len(store):,} images of {store.num_classes:,} classes ({splits}) in {store.path}")


@datasets_app.command("publish")
def publish_dataset(
    name: Annotated[str, typer.Argument(help="A data set that is prepared.", metavar="NAME")],
    address: Annotated[str, typer.Argument(help="Where to: s3://bucket/prefix.", metavar="ADDRESS")],
    storage: DiskStorage = DEFAULT_STORAGE,
) -> None:
    """Copy a data set to S3, where it can be used by its address in place of a name.

    Endpoint, region and credentials come from AWS's usual variables.

    - `orchestrator datasets publish cub200 s3://bucket/cub200`
    """
    with _status("looking there"):
        from orchestrator.data.catalog import open_dataset
        from orchestrator.data.remote import Address, publish
        from orchestrator.search import Places

        store = open_dataset(name, Places(storage.expanduser().resolve()).data, say=_say)
        where = Address.parse(address)
        new = publish(store, address, say=_say)
    state = "published" if new else "is there already"
    typer.echo(f"{store.name}: {state}: orchestrator train --dataset {where} ...")


class _Rate(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:.0f}/s", style="progress.data.speed")


@app.command()
def ui(
    name: Annotated[str | None, typer.Argument(help="Open on this search.", metavar="NAME")] = None,
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = PORT,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser, where there is one.")] = True,
) -> None:
    """Look at the searches in MLflow, on this machine only; of NAME, at its leaderboard.

    - `orchestrator ui`

    - `orchestrator ui my-search`
    """
    from orchestrator.display import landing
    from orchestrator.search import Places
    from orchestrator.tracking import (
        check_tracking_uri,
        default_tracking_uri,
        redact,
        ui_command,
        ui_environment,
    )

    places = Places(storage.expanduser().resolve())
    uri = check_tracking_uri(tracking_uri) if tracking_uri else default_tracking_uri(places.storage)
    if tracking_uri is None and not (places.storage / "mlflow.db").exists():
        raise InputError(_no_runs(places.storage))
    command = ui_command(uri, places.artifacts, port)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(
                f"--port: {port} cannot be used ({error.strerror}): name another, say {port + 1}"
            ) from None
    address = f"http://127.0.0.1:{port}"
    if name is not None:
        address = landing(places.journal(name), uri, port)
    typer.echo(f"MLflow on {redact(uri)}: {address} (takes some seconds; Ctrl-C ends it)", err=True)
    try:
        with subprocess.Popen(command, env=os.environ | ui_environment(uri)) as server:
            if browser:
                threading.Thread(target=_open_browser, args=(address, port, server), daemon=True).start()
            code = server.wait()
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    raise typer.Exit(code)


def _open_browser(address: str, port: int, server: "subprocess.Popen[bytes]") -> None:
    """Once the server answers, and where there is a screen: a browser in the terminal would take its place."""
    if sys.platform not in ("darwin", "win32") and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        return
    while server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            webbrowser.open(address)
            return
        time.sleep(0.5)


# What the commands share -----------------------------------------------------------------------------------


def _resolve(
    space: str,
    name: str | None,
    preset: str | None,
    epochs: int | None,
    assignments: list[str],
    changes: dict[str, Any],
    storage: Path,
) -> "Search":
    from orchestrator.presets import find_preset
    from orchestrator.search import Places, starting_settings
    from orchestrator.spec import find_search, read_yaml, resolve_search

    path = find_search(space)
    overrides = _assignments(assignments, changes | {"epochs": epochs})
    if epochs is not None:
        overrides["epochs"] = epochs
    return resolve_search(
        read_yaml(path),
        name=name or _fresh_name(path.stem),
        source=path.name,
        preset=None if preset is None else find_preset(preset),
        overrides=overrides,
        find_settings=lambda name: starting_settings(name, Places(storage.expanduser().resolve())),
        **changes,
    )


def _limits(words: list[str]) -> dict[str, Any]:
    """The limits of `--budget`; `none` lifts one."""
    from orchestrator.spec import parse_assignments

    words = [f"hours={word}" if re.fullmatch(r"[0-9.]+", word) else word for word in words]
    given = parse_assignments(words, "--budget", "hours=8")
    return {key: None if value == "none" else value for key, value in given.items()}


def _assignments(words: list[str], options: Mapping[str, object]) -> dict[str, object]:
    """The values of `--set`; one that an option of its own gives too is refused."""
    from orchestrator.spec import parse_assignments

    overrides = parse_assignments(words)
    for key, value in options.items():
        if value is not None and key in overrides:
            raise InputError(f"--{key} {value}: --set {key}={overrides[key]} says it too; keep one")
    return overrides


def _refuse_together(option: str, others: Mapping[str, object]) -> None:
    for other, value in others.items():
        if value:
            raise InputError(f"{option}: not together with {other}; leave one out")


def _show_status(found: Mapping[str, Any], storage: Path, *, as_json: bool) -> None:
    from orchestrator.display import status_text

    if as_json:
        print(json.dumps(found))
    else:
        Console().print(status_text(found, objects.shown(storage)), soft_wrap=True)


def _show_statuses(found: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    from orchestrator.display import status_table

    if as_json:
        print(json.dumps(found))
    else:
        Console().print(status_table(found))


def _benchmark(name: str, storage: Path) -> "Benchmark | None":
    """The benchmark of this name, unless a search has it."""
    from orchestrator.benchmark import known
    from orchestrator.search import JOURNAL, Places

    places = Places(storage.expanduser().resolve())
    return None if (places.search(name) / JOURNAL).exists() else known(places.storage, name)


def _members(found: "Benchmark", storage: Path) -> "list[tuple[Ledger, Path]]":
    """The searches of a benchmark that have begun, and their folders."""
    from orchestrator.benchmark import members
    from orchestrator.search import Places

    places = Places(storage.expanduser().resolve())
    return [(ledger, places.search(ledger.name)) for ledger in members(found, places).values()]


def _show_comparison(comparison: "Comparison", *, as_json: bool) -> None:
    from orchestrator.display import comparison_table

    if as_json:
        print(json.dumps(comparison.plain))
    else:
        Console().print(comparison_table(comparison))


def _write_html(option: str, path: Path, write: Callable[[Path], None], what: str) -> None:
    _refuse_page(option, path)
    try:
        write(path.absolute())
    except OSError as error:
        raise InputError(f"{option}: {path} cannot be written ({error.strerror}): name another file") from None
    typer.echo(f"{what} written to {path}", err=True)


def _steer(name: str, storage: Path, wish: Literal["stop", "pause"], *, as_json: bool) -> None:
    """Ask the driver of a search, and wait until it has stopped or has noticed."""
    from orchestrator.control import driver, pending, request
    from orchestrator.control import status as state_of
    from orchestrator.report import read_search

    again = f"orchestrator resume {name} --storage {shlex.quote(objects.shown(storage))}"
    if (found_ := _benchmark(name, storage)) is not None:
        driven = [ledger.name for ledger, folder in _members(found_, storage) if driver(folder)]
        if not driven:
            raise InputError(f"{wish}: benchmark '{name}' does not run; go on with: {again}")
        name = driven[0]
    ledger, journal = read_search(name, storage)
    before = state_of(ledger, journal.parent)
    if before["driver"] is None:
        then = "" if before["state"] in ("done", "failed") else f"; go on with: {again}"
        raise InputError(f"{wish}: {ledger.noun} '{name}' does not run (it is {before['state']}){then}")
    try:
        request(journal.parent, wish)
    except OSError as error:
        raise InputError(f"--storage: {objects.shown(journal.parent)} cannot be written ({error.strerror})") from None
    end = time.monotonic() + STOP_SECONDS
    with Console(stderr=True).status(f"asking {before['driver']} to {wish}"):
        while driver(journal.parent) and time.monotonic() < end and (wish == "stop" or pending(journal.parent)):
            time.sleep(0.2)
    found = state_of(read_search(name, storage)[0], journal.parent)
    _show_status(found, storage, as_json=as_json)
    if found["driver"] and wish == "pause" and not found["asked_to"] and not as_json:
        typer.echo(f"  pausing: it ends once these have; go on then with:  {again}")
    elif found["driver"]:
        typer.echo(f"it has not ended yet; look again with: orchestrator status {name}", err=True)


def _no_runs(storage: Path) -> str:
    if objects.address_of(storage) is None:
        return f"--storage: {storage} holds no runs yet; begin with: orchestrator search demo"
    return f"--storage: this machine tracked no search of {objects.shown(storage)}: orchestrator sync NAME does it"


def _class_groups(store: Any, sizes: str) -> dict[str, Any]:
    """The rows of consecutive groups of classes, named by their first and last index."""
    from orchestrator.data.splits import class_groups

    try:
        numbers = [int(size) for size in sizes.split(",")]
    except ValueError:
        raise InputError(f"--class-groups: '{sizes}' should be numbers of classes such as 200,200,155") from None
    try:
        rows = class_groups(store, numbers)
    except InputError as error:
        raise InputError(f"--class-groups: {sizes}: {error}") from None
    ends = [sum(numbers[: place + 1]) for place in range(len(numbers))]
    return {f"{end - size}-{end - 1}": part for end, size, part in zip(ends, numbers, rows, strict=True)}


def _show_metrics(title: str, columns: Mapping[str, Mapping[str, float | str]], as_json: Any) -> None:
    """A row per metric, with what each column says of it; or the JSON object given."""
    if as_json is not None:
        print(json.dumps(as_json))
        return
    Console().print(Text(title), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("metric")
    for name in columns:
        table.add_column(name, justify="right")
    for key in dict.fromkeys(key for cells in columns.values() for key in cells):
        cells = [column.get(key, "") for column in columns.values()]
        table.add_row(key, *(cell if isinstance(cell, str) else f"{cell:.4f}" for cell in cells))
    Console().print(table)


def _refuse_table(option: str, path: Path | None) -> None:
    """Before anything is computed: a table that could not be written at the end."""
    if path is None:
        return
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{option}: {path}: need a file name that ends in .csv or .parquet")
    if path.is_dir() or not path.absolute().parent.is_dir():
        reason = "is a folder" if path.is_dir() else f"the folder {path.absolute().parent} does not exist"
        raise InputError(f"{option}: {path}: {reason}; name another file")


def _refuse_page(option: str, path: Path | None) -> None:
    """Before anything is computed: a page that could not be written at the end."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        reason = "is a folder" if path.is_dir() else f"the folder {path.absolute().parent} does not exist"
        raise InputError(f"{option}: {path}: {reason}; name another file")


def _write_table(option: str, path: Path, table: Any) -> None:
    """A table as CSV or Parquet, whole or not at all."""
    from pyarrow import csv, parquet

    from orchestrator.checkpoint import write_atomically

    write = csv.write_csv if path.suffix.lower() == ".csv" else parquet.write_table
    try:
        write_atomically(path.absolute(), lambda file: write(table, file))
    except OSError as error:
        raise InputError(f"{option}: {path} cannot be written ({error.strerror or error}): name another file") from None
    typer.echo(f"{len(table)} rows written to {path}", err=True)


def _warn_of_plugins() -> None:
    """Plugins that were left out, each with its reason."""
    from orchestrator.method import plugin_problems

    for problem in plugin_problems():
        typer.echo(f"warning: {problem}", err=True)


def _note_idle(search: "Search") -> None:
    """Settings that change nothing, so that nobody waits for what they do."""
    from orchestrator.spec import idle_settings

    for line in idle_settings(search):
        typer.echo(f"note: {line}", err=True)


def _warn_of_hours(search: "Search") -> None:
    """GPU-hours that this machine cannot count; the search would be refused here."""
    from orchestrator.search import InlineRunner, check_hours

    try:
        check_hours(search, InlineRunner())
    except InputError as error:
        device = search.example().training.device
        typer.echo(f"warning: {error}" + ("" if device == "cpu" else ", or a cluster with GPUs"), err=True)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _status(doing: str) -> Status:
    """Something moves in the terminal while heavy libraries load."""
    return Console(stderr=True).status(f"{doing} ...")


def _refuse_shadows() -> None:
    """Ray's workers look into the working directory first: a package of the same name there would be taken for ours."""
    here, ours = Path.cwd(), Path(__file__).resolve().parent.parent
    for package in ("orchestrator", "methods"):
        for found in (here / package / "__init__.py", here / f"{package}.py"):
            if found.exists() and found.resolve() != ours / package / "__init__.py":
                raise InputError(
                    f"{found} would be imported by Ray's workers in place of this tool's own '{package}': "
                    "rename it or start from another directory"
                )


def _reachable(address: str | None) -> str | None:
    """A cluster's address at which something answers: Ray itself would wait for minutes."""
    if address is None or address in ("auto", "local"):
        return address
    advice = "give host:port of a Ray head node, or auto"
    if address.startswith(("http://", "https://")):
        raise InputError(f"--address (or RAY_ADDRESS): {address} is a dashboard's, for ray job submit; {advice}")
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"--address: {address}: {error}; {advice}") from None
    if not host or not port:
        raise InputError(f"--address: {address}: {advice}")
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            if os.environ.get("RAY_USE_TLS") == "1":
                return address  # it understands nothing before a handshake, which is Ray's own
            # Ray speaks gRPC: its first word, as of all HTTP/2, is a SETTINGS frame (type 4)
            connection.sendall(HTTP2_PREFACE)
            speaks = connection.recv(9)[3:4] == b"\x04"
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"--address: no Ray cluster answers at {address} ({reason}); {advice}") from None
    if not speaks:
        raise InputError(f"--address: what answers at {address} is no Ray cluster; {advice}")
    return address


def _fresh_name(stem: str) -> str:
    return f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"


def _plan(search: "Search", storage: Path) -> dict[str, Any]:
    from orchestrator.plan import plan

    return plan(search, storage)


def _show_plan(resolved: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(resolved))
        return
    console = Console(soft_wrap=True)
    for key, value in resolved.items():
        if isinstance(value, dict):
            console.print(Text(f"{key}:", style="bold"))
            for inner, shown in value.items():
                console.print(Text(f"  {inner}: {_plain(shown)}"))
        else:
            console.print(Text.assemble((f"{key}: ", "bold"), str(value)))


def _plain(value: object) -> str:
    """A value as a search file would have it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)


def _conclude(outcome: "Outcome", storage: Path, *, as_json: bool) -> None:
    """The leaderboard and where to look; the exit code says how the search ended."""
    from orchestrator.display import closing, leaderboard
    from orchestrator.report import summary

    console = Console(stderr=as_json)
    console.print(leaderboard(outcome.ledger))
    for line in closing(outcome, storage, PORT):
        console.print(Text(line), soft_wrap=True)
    if as_json:
        print(json.dumps(summary(outcome.ledger, outcome.journal)), flush=True)
    if outcome.state == "failed":
        reasons = [trial.reason for trial in outcome.ledger.trials.values() if trial.reason]
        first = reasons[0] if reasons else "no trial gave a value"
        count = len(outcome.ledger.trials)
        what = f"all {count} trials failed; the first" if count > 1 else "the training failed"
        typer.echo(f"error: {what}: {first}", err=True)
        raise typer.Exit(1)
    if outcome.fault:
        typer.echo(f"error: {outcome.fault}; mend it and go on with the command above", err=True)
        raise typer.Exit(1)
    if outcome.state == "interrupted":
        raise typer.Exit(130)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script (`arguments`: in place of the command line's). Bad input is one line and exit code 2."""
    from orchestrator.journal import JournalError
    from orchestrator.tracking import TrackingError

    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"  # a user has no use for our line numbers
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that what is half-written is removed
    try:
        # typer gives the code of an Exit back as the command's value
        code = app(arguments, prog_name="orchestrator", standalone_mode=False) or 0
    except Exception as error:
        code = _explain(error, (InputError, JournalError, TrackingError))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.stdout.flush()
    sys.exit(code)


def _explain(error: Exception, input_errors: tuple[type[Exception], ...]) -> int:
    if hasattr(error, "format_message"):  # a usage error; which class it has depends on typer's version
        if type(error).__name__ == "NoArgsIsHelpError":
            return 0  # the help has been printed
        print(f"error: {' '.join(_usage(error).split())}", file=sys.stderr)
        return 2
    if isinstance(error, typer.Abort):
        return 130
    if isinstance(error, input_errors):
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if isinstance(error, TrainingFailed | ClusterFailed):
        print(f"error: {error}", file=sys.stderr)
        return 1
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        print(
            f"error: {place}{error.strerror or error}; mend it and go on with orchestrator resume NAME",
            file=sys.stderr,
        )
        return 1
    raise error


def _usage(error: Any) -> str:
    """A usage error by its option or argument, the value, and what would be right."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    where = f" (see {context.command_path} --help)" if context else ""
    if type(error).__name__ == "NoSuchOption":
        words = [word for other in context.command.params for word in other.opts] if context else []
        known = [word for word in words if word.startswith("-")]
        if context and context.info_name == "resume" and error.option_name == "--set":
            return (
                "--set: the settings of a search that began stay; a new one can go on from it: search --start-from NAME"
            )
        return f"{error.option_name}: no such option{suggestion(error.option_name, known)}{where}"
    if parameter is None:
        message = error.format_message()
        return f"{message[:1].lower()}{message[1:].rstrip('.')}{where}"
    name = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar or parameter.name.upper()
    if type(error).__name__ == "MissingParameter":
        return f"{name}: missing{where}"
    variable = parameter.envvar
    if context and variable and str(context.get_parameter_source(parameter.name)).endswith("ENVIRONMENT"):
        name = str(variable)
    complaints: list[Any] = getattr(error.__cause__, "errors", list)()
    value = f"{complaints[0]['input']!r}: " if complaints else ""
    message = error.message.removeprefix("Value error, ").rstrip(".")
    if wrong := re.fullmatch("'(.*)' is not one of ('.*')", message):
        hint = suggestion(wrong[1], re.findall("'([^']+)'", wrong[2]))
        message += hint if "did you mean" in hint else ""
    return f"{name}: {value}{message[:1].lower()}{message[1:]}{where}"


if __name__ == "__main__":
    main()
