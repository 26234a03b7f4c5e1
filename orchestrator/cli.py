"""The command line."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.errors import InputError, TrainingFailed

if TYPE_CHECKING:
    from orchestrator.search import Outcome
    from orchestrator.spec import Search

app = typer.Typer(
    help="Find out which deep-metric-learning method, with which hyperparameters, really works.",
    epilog="Begin with: orchestrator search demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Storage = Annotated[Path, typer.Option(help="Folder of data sets, searches and runs.", envvar="ORCHESTRATOR_STORAGE")]
TrackingUri = Annotated[
    str | None,
    typer.Option(help="MLflow address; a database in the storage folder by default.", envvar="MLFLOW_TRACKING_URI"),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Fix a setting; repeat as needed.")]
Address = Annotated[str | None, typer.Option(metavar="RAY", help="A running Ray cluster, e.g. auto.")]
RayOutput = Annotated[bool, typer.Option("--ray-output", help="Show Ray's own messages.")]
DEFAULT_STORAGE = Path("runs")


@app.command()
def search(
    space: Annotated[str, typer.Argument(help="A search file, or the name of a shipped one.")],
    name: Annotated[str | None, typer.Option(help="Name of this search; a new one by default.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set, in place of the file's.")] = None,
    num_trials: Annotated[int | None, typer.Option(min=1, help="How many points to try.")] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Trials at a time, at most.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes per trial.")] = 1,
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
    """
    if workers > 1:
        raise InputError(f"--workers: {workers}: several processes per trial are not available yet; leave it at 1")
    resolved = _resolve(space, name, dataset, num_trials, max_concurrent, epochs, seed, set_)
    if dry_run:
        _show_plan(resolved, storage, as_json=json_)
        return
    from orchestrator.cluster import RayRunner
    from orchestrator.display import Display
    from orchestrator.search import start

    runner = RayRunner(address, ray_output)
    outcome = start(resolved, runner, storage=storage, tracking_uri=tracking_uri, watcher=Display())
    _conclude(outcome, storage, as_json=json_)


@app.command()
def resume(
    name: Annotated[str, typer.Argument(help="Name of the search.")],
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    address: Address = None,
    json_: Json = False,
    ray_output: RayOutput = False,
) -> None:
    """Go on with a search after Ctrl-C, a crash or a reboot; no finished trial runs again.

    - `orchestrator resume my-search`
    """
    from orchestrator.cluster import RayRunner
    from orchestrator.display import Display
    from orchestrator.search import resume as go_on

    runner = RayRunner(address, ray_output)
    outcome = go_on(name, runner, storage=storage, tracking_uri=tracking_uri, watcher=Display())
    _conclude(outcome, storage, as_json=json_)


@app.command()
def sync(
    name: Annotated[str, typer.Argument(help="Name of the search.")],
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
) -> None:
    """Send what MLflow missed of a search while it was away.

    - `orchestrator sync my-search --tracking-uri http://mlflow.example:5000`
    """
    from orchestrator.search import Places, tracking_address
    from orchestrator.tracking import redact, sync

    places = Places(storage.expanduser().resolve())
    journal = places.journal(name)
    uri = tracking_address(tracking_uri, places, journal)
    report = sync(journal, uri, places.artifacts)
    typer.echo(f"{report.events} events sent to {redact(uri)}; the search has {report.runs} runs there")
    for refused in report.refused:
        typer.echo(f"refused by the server: {refused}", err=True)


@app.command()
def train(
    method: Annotated[str, typer.Option(help="Name of the method; see `orchestrator methods`.")],
    dataset: Annotated[str, typer.Option(help="Name of the data set; see `orchestrator datasets`.")],
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of training.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the training.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of this training; a new one by default.")] = None,
    set_: Set = [],  # noqa: B006 (typer reads the default)
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    json_: Json = False,
) -> None:
    """Train one method once, in this process, and test it.

    - `orchestrator train --method pfml --dataset glyphs-small --epochs 5 --set delta=0.25`
    """
    from orchestrator.display import Display
    from orchestrator.search import InlineRunner, start
    from orchestrator.spec import parse_assignments, single_training

    overrides = parse_assignments(set_)
    fixed: dict[str, object] = {"method": method, "dataset": dataset}
    fixed |= {k: v for k, v in (("epochs", epochs), ("seed", seed)) if v is not None}
    one = single_training(name or _fresh_name(f"train-{method}"), fixed | overrides)
    outcome = start(one, InlineRunner(), storage=storage, tracking_uri=tracking_uri, watcher=Display())
    _conclude(outcome, storage, as_json=json_)


@app.command()
def evaluate(
    checkpoint_or_run: Annotated[
        str,
        typer.Argument(help="A model file, a search (its final model), SEARCH/TRIAL, or an MLflow run id."),
    ],
    dataset: Annotated[str, typer.Option(help="Name of the data set.")],
    storage: Storage = DEFAULT_STORAGE,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    json_: Json = False,
) -> None:
    """All retrieval metrics of a trained model on the test classes of a data set.

    - `orchestrator evaluate my-search --dataset glyphs`

    - `orchestrator evaluate runs/searches/my-search/trials/0003/best.pt --dataset glyphs`
    """
    from orchestrator.data.catalog import open_dataset
    from orchestrator.data.splits import class_split
    from orchestrator.loop import evaluate_model
    from orchestrator.report import find_model
    from orchestrator.search import Places

    places = Places(storage.expanduser().resolve())
    model = find_model(checkpoint_or_run, places)
    store = open_dataset(dataset, places.data)
    metrics = evaluate_model(model, store, class_split(store, validation_share=0.0, seed=0).test, device)
    if json_:
        print(json.dumps({"model": str(model), "dataset": dataset, "split": "test", "metrics": metrics}))
        return
    table = Table(title=f"{model} on {dataset}, test classes", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for key, value in metrics.items():
        table.add_row(key, f"{value:.4f}")
    Console().print(table)


@app.command()
def report(
    name: Annotated[str, typer.Argument(help="Name of the search.")],
    storage: Storage = DEFAULT_STORAGE,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the leaderboard to a CSV file.")] = None,
    json_: Json = False,
) -> None:
    """The leaderboard of a search, also while it runs.

    - `orchestrator report my-search`

    - `orchestrator report my-search --csv leaderboard.csv`
    """
    from orchestrator.display import leaderboard
    from orchestrator.ledger import write_csv
    from orchestrator.report import read_search, summary

    ledger, journal = read_search(name, storage)
    if csv is not None:
        write_csv(ledger, csv)
        typer.echo(f"{len(ledger.trials)} trials written to {csv}", err=True)
    if json_:
        print(json.dumps(summary(ledger, journal)))
    elif csv is None:
        Console().print(leaderboard(ledger))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method's hyperparameters.")] = None,
    json_: Json = False,
) -> None:
    """The installed methods, or one method's formula and hyperparameters.

    - `orchestrator methods`

    - `orchestrator methods pfml`
    """
    from orchestrator.method import find_method, plugin_problems, registry
    from orchestrator.report import describe_method

    if name is None:
        described = [describe_method(method) for _, method in sorted(registry().items())]
        if json_:
            print(json.dumps(described))
        else:
            table = Table(box=None)
            for column in ("name", "what", "paper"):
                table.add_column(column)
            for method in described:
                table.add_row(method["name"], method["summary"], method["paper"])
            Console().print(table)
        for problem in plugin_problems():
            typer.echo(f"warning: {problem}", err=True)
        return
    method = describe_method(find_method(name))
    if json_:
        print(json.dumps(method))
        return
    console = Console()
    console.print(Text(method["documentation"]))
    table = Table(title="hyperparameters", title_justify="left")
    for column in ("name", "type", "default", "range", "meaning"):
        table.add_column(column)
    for row in method["hyperparameters"]:
        table.add_row(row["name"], row["type"], str(row["default"]), row["range"], row["description"])
    console.print(table)


@app.command()
def datasets(
    name: Annotated[str | None, typer.Argument(help="Show this data set.")] = None,
    json_: Json = False,
) -> None:
    """The known data sets.

    - `orchestrator datasets`
    """
    from dataclasses import asdict

    from orchestrator.data.catalog import datasets as known
    from orchestrator.errors import suggestion

    if name is not None and name not in known():
        raise InputError(f"unknown data set '{name}'{suggestion(name, known())}")
    shown = [asdict(info) for key, info in known().items() if name in (None, key)]
    shown = [{k: v for k, v in info.items() if isinstance(v, str | int | float | None)} for info in shown]
    if json_:
        print(json.dumps(shown[0] if name is not None else shown))
        return
    table = Table(box=None)
    for column in shown[0]:
        table.add_column(column)
    for info in shown:
        table.add_row(*[str(value) for value in info.values()])
    Console().print(table)


@app.command()
def ui(
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 5000,
) -> None:
    """Look at the searches in MLflow, on this machine only.

    - `orchestrator ui`
    """
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
        raise InputError(f"--storage: {places.storage} holds no runs yet; begin with: orchestrator search demo")
    command = ui_command(uri, places.artifacts, port)
    typer.echo(f"MLflow on {redact(uri)}: http://127.0.0.1:{port} (takes some seconds; Ctrl-C ends it)", err=True)
    try:
        done = subprocess.run(command, env=os.environ | ui_environment(uri), check=False)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    raise typer.Exit(done.returncode)


# What the commands share -----------------------------------------------------------------------------------


def _resolve(
    space: str,
    name: str | None,
    dataset: str | None,
    num_trials: int | None,
    max_concurrent: int | None,
    epochs: int | None,
    seed: int | None,
    assignments: list[str],
) -> "Search":
    from orchestrator.spec import find_search, parse_assignments, read_yaml, resolve_search

    path = find_search(space)
    overrides = parse_assignments(assignments)
    if epochs is not None:
        if "epochs" in overrides:
            raise InputError(f"--epochs {epochs}: --set epochs={overrides['epochs']} says it too; keep one")
        overrides["epochs"] = epochs
    return resolve_search(
        read_yaml(path),
        name=name or _fresh_name(path.stem),
        source=path.name,
        overrides=overrides,
        dataset=dataset,
        num_trials=num_trials,
        max_concurrent=max_concurrent,
        seed=seed,
    )


def _fresh_name(stem: str) -> str:
    return f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"


def _show_plan(search: "Search", storage: Path, *, as_json: bool) -> None:
    from orchestrator.plan import plan

    resolved = plan(search, storage)
    if as_json:
        print(json.dumps(resolved))
        return
    console = Console(soft_wrap=True)
    for key, value in resolved.items():
        if isinstance(value, dict):
            console.print(Text(f"{key}:", style="bold"))
            for inner, shown in value.items():
                console.print(Text(f"  {inner}: {shown}"))
        else:
            console.print(Text.assemble((f"{key}: ", "bold"), str(value)))


def _conclude(outcome: "Outcome", storage: Path, *, as_json: bool) -> None:
    """The leaderboard and where to look; the exit code says how the search ended."""
    from orchestrator.display import closing, leaderboard
    from orchestrator.report import summary

    console = Console(stderr=as_json)
    console.print(leaderboard(outcome.ledger))
    for line in closing(outcome, str(storage)):
        console.print(Text(line), soft_wrap=True)
    if as_json:
        print(json.dumps(summary(outcome.ledger, outcome.journal)), flush=True)
    if outcome.state == "failed":
        reasons = [trial.reason for trial in outcome.ledger.trials.values() if trial.reason]
        first = reasons[0] if reasons else "no trial gave a value"
        typer.echo(f"error: all {len(outcome.ledger.trials)} trials failed; the first: {first}", err=True)
        raise typer.Exit(1)
    if outcome.state == "interrupted":
        raise typer.Exit(130)


def main() -> NoReturn:
    """The console script: bad input is one line and exit code 2."""
    from orchestrator.journal import JournalError
    from orchestrator.tracking import TrackingError

    try:
        app(standalone_mode=False)
        code = 0
    except typer.Exit as leave:
        code = leave.exit_code
    except Exception as error:
        code = _explain(error, (InputError, JournalError, TrackingError))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.stdout.flush()
    sys.exit(code)


def _explain(error: Exception, input_errors: tuple[type[Exception], ...]) -> int:
    import click

    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, click.Abort):
        return 130
    if isinstance(error, input_errors):
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if isinstance(error, TrainingFailed):
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


if __name__ == "__main__":
    main()
