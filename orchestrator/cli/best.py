"""`best`: from a data set, or a folder of pictures, to an exported model, within some hours."""

import contextlib
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from orchestrator.cli import completing
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    Address,
    Json,
    Set,
    Storage,
    TrackingUri,
    assignments,
    key_option,
    not_empty,
    places_of,
)
from orchestrator.cli.output import print_json, say, waiting, warn_of_plugins
from orchestrator.cli.starting import (
    Results,
    beside_ray,
    check_addresses,
    conclude,
    goes_on,
    parse_limits,
    refuse_start,
)
from orchestrator.cli.terminal import Terminal, echo
from orchestrator.errors import InputError
from orchestrator.problems import Problem
from orchestrator.search.beginning import check_dataset, runner_at
from orchestrator.storage import paths
from orchestrator.storage.address import is_address
from orchestrator.text import span

if TYPE_CHECKING:
    from orchestrator.search.best import Begun
    from orchestrator.search.best_file import BestSearch
    from orchestrator.search.finish import Outcome
    from orchestrator.search.plan_output import BestPlan
    from orchestrator.storage.places import Places


def best(
    dataset: Annotated[
        str,
        typer.Argument(
            help="A data set, or a folder of pictures, FOLDER/CLASS/FILE.",
            metavar="DATASET",
            autocompletion=completing.datasets,
        ),
    ],
    budget: Annotated[
        list[str], key_option("budget", "What it may take, final runs included: hours=2.", metavar="hours=LIMIT")
    ] = [],  # noqa: B006 (typer reads the default)
    name: Annotated[
        str | None,
        typer.Option(help="Name of its search; best-DATASET by default.", metavar="NAME", callback=not_empty),
    ] = None,
    set_: Set = [],  # noqa: B006 (typer reads the default)
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    address: Address = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would run and how long; measures the pre-trained networks only."),
    ] = False,
    json_: Json = False,
) -> None:
    """The best model for pictures of your own: is fine-tuning worth it, which model, how good, and its file.

    It searches over a short list of methods, networks and recipes, trains the winner again over three seeds, compares
    it with the pre-trained network as it comes, and exports it as NAME.pt2.

    The same command, run again, goes on where it stopped, or answers from what is there; with more hours it
    searches on.

    - `orchestrator best photos --budget hours=2`: of the folder photos, with a folder for each class

    - `orchestrator best mine --budget hours=2 --dry-run`

    - `orchestrator best mine --budget hours=8 --set backbone=resnet50`
    """
    from orchestrator.search.best import default_name, find_begun, hours_of

    hours, places = hours_of(parse_limits(budget)), places_of(storage)
    if (folder := _folder_of(dataset, places)) is not None:
        dataset = _prepare(folder, storage, dry_run=dry_run)
    name = name or default_name(dataset)
    begun = find_begun(name, dataset, places)
    if begun is not None and set_:
        raise InputError(f"--set: {set_[0]}: {name} has begun with other settings: give it another --name")
    check_addresses(tracking_uri, address)
    if dry_run:
        _show_plan(begun, hours, lambda: _planned(dataset, hours, places, name, set_, address), as_json=json_)
        return
    results = Results(storage, json_)
    words = ["orchestrator", "best", dataset, "--budget", f"hours={hours:g}"]
    words += [] if name == default_name(dataset) else ["--name", name]
    again = f"{shlex.join(words)}{paths.in_command(storage)}"
    if begun is None:
        refuse_start(storage, tracking_uri, name, address)
        planned = _planned(dataset, hours, places, name, set_, address)
    from orchestrator.search.signals import continued_by

    with continued_by(again):
        if begun is None:
            outcome: Outcome | None = _start(planned, storage, tracking_uri, address, results)
        else:
            outcome = _go_on(begun, hours, storage, tracking_uri, address, results)
    if outcome is not None:
        from orchestrator.search.notify import Notification

        try:
            conclude(outcome, results, Notification.of(None, None), summarise=False)
        except typer.Exit:
            say(f"with its answers at the end:  {again}")
            raise
    from orchestrator.search.best import finish_best

    with waiting("comparing with the pre-trained network") as status:
        result = finish_best(name, places, lambda doing: status.update(f"{doing} ..."))
    for reply in () if json_ else result.replies:
        console, head = Terminal(), len(reply.question)
        wrapped = fill(f"{reply.question} {reply.answer}", console.width, subsequent_indent="  ")
        console.print(Text.assemble((wrapped[:head], "bold"), wrapped[head:]), soft_wrap=True)
    if json_:
        print_json(result.output)
    if result.problem is not None:
        raise result.problem


def _folder_of(dataset: str, places: "Places") -> Path | None:
    """The folder of pictures that is meant; None for the name of a data set."""
    if is_address(dataset):
        return None
    path = Path(dataset).expanduser()
    try:
        check_dataset(dataset, places.storage, prepared=False)
    except InputError as error:
        if path.is_dir():
            return path
        hint = error.details[0].suggestion if error.details else None
        rule = f"'{dataset}' is neither a data set nor a folder of pictures"
        raise InputError(Problem(("DATASET",), rule=rule, suggestion=hint)) from None
    if not path.is_dir():
        return None
    from orchestrator.data.catalog import is_made_of

    if is_made_of(dataset, path, places.data):
        return path  # whose labels may have been corrected since
    echo(f"note: '{dataset}' is the data set of this name; for the folder here: orchestrator best ./{path}", err=True)
    return None


def _prepare(folder: Path, storage: Path, *, dry_run: bool) -> str:
    """Make the data set of a folder, as `datasets prepare` does; its name."""
    from orchestrator.cli.datasets import prepare_dataset
    from orchestrator.storage.places import check_name

    name = check_name(re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.resolve().name).strip("-."), "DATASET")
    if dry_run and not (places_of(storage).data / name).exists():
        words = ["orchestrator", "datasets", "prepare", "folder", "--source", str(folder), "--name", name]
        command = f"{shlex.join(words)}{paths.in_command(storage)}"
        raise InputError(f"DATASET: {folder} is a folder of pictures; make a data set of it first: {command}")
    with contextlib.redirect_stdout(sys.stderr):
        prepare_dataset("folder", source=folder, name=name, storage=storage)
    return name


def _planned(
    dataset: str, hours: float, places: "Places", name: str, words: list[str], address: str | None
) -> "BestSearch":
    from orchestrator.search.best_file import plan_best

    with waiting("reading the data set") as status:

        def stage(doing: str) -> None:
            status.update(f"{doing} ...")

        return plan_best(
            dataset,
            hours,
            places,
            name=name,
            overrides=assignments(words, {"dataset": dataset}),
            at_once=None if address is None else 1,
            say=say,
            stage=stage,
        )


def _start(
    planned: "BestSearch", storage: Path, tracking_uri: str | None, address: str | None, results: Results
) -> "Outcome":
    for line in _plan_lines(planned.plan):
        say(line)
    with waiting("starting") as status, beside_ray(lambda: None, address, False, lambda: True):
        warn_of_plugins()
        from orchestrator.cli.live import Display
        from orchestrator.search.best import start_best

        watcher = Display(status=status, results=results)
        return start_best(planned, runner_at(address), storage, tracking_uri, watcher)


def _go_on(
    begun: "Begun", hours: float, storage: Path, tracking_uri: str | None, address: str | None, results: Results
) -> "Outcome | None":
    """Go on with a search; None where nothing is left to do."""
    name, more = begun.ledger.name, begun.more(hours)
    if begun.ledger.is_complete and not more:
        say(f"{name} is {begun.ledger.state}, within {begun.hours:g} hours; these are its answers")
        return None
    journal = places_of(storage).journal(name)
    doing, needed = waiting(f"going on with {name}"), lambda: bool(more) or goes_on(journal)
    with doing as status, beside_ray(lambda: None, address, False, needed):
        from orchestrator.cli.live import Display
        from orchestrator.search.best import go_on_best

        watcher = Display(status=status, results=results)
        return go_on_best(begun, hours, runner_at(address), storage, tracking_uri, watcher)


def _show_plan(begun: "Begun | None", hours: float, plan: Callable[[], "BestSearch"], *, as_json: bool) -> None:
    if begun is not None:
        if as_json:
            from orchestrator.search.control import status

            assert begun.ledger.folder is not None
            print_json(status(begun.ledger, begun.ledger.folder))
            return
        more = begun.more(hours)
        what = "searches on" if more else "would answer" if begun.ledger.is_complete else "goes on"
        echo(f"{begun.ledger.name} has {begun.hours:g} hours and is {begun.ledger.state}: it {what}")
        return
    planned = plan().plan
    if as_json:
        print_json(planned)
        return
    for line in _plan_lines(planned):
        echo(line)
    echo("the search file:")
    print(planned.file, end="")


def _plan_lines(plan: "BestPlan") -> list[str]:
    networks = ", ".join(f"{one} (map_at_r {score:.4f} as it comes)" for one, score in plan.pretrained.items())
    return [
        f"{plan.name}: {plan.images:,} images of {plan.classes:,} classes; networks: {networks}",
        f"  methods: {', '.join(plan.methods)}; recipes: {', '.join(plan.recipes)}; {plan.epochs} epochs, at most "
        f"{span(plan.seconds_of_a_trial)} a trial, {plan.trials_at_a_time} at a time",
        f"  of {span(3600 * plan.hours)}: about {span(plan.seconds_of_the_search)} of search, then at most "
        f"{span(plan.seconds_of_the_final_runs)} for {plan.final_runs} final runs",
    ]
