"""`train`: one training of a method, as a search of one trial."""

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import completing
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    Experiment,
    Json,
    NotifyCommand,
    NotifyUrl,
    PresetName,
    Set,
    Storage,
    TrackingUri,
    assignments,
    not_empty,
    places_of,
)
from orchestrator.cli.output import waiting, warn_of_plugins
from orchestrator.cli.starting import Results, beside_ray, conclude, note_idle, refuse_start, show_plan
from orchestrator.config.limits import MAX_EPOCHS, MAX_RUNS
from orchestrator.search.beginning import described_training, runner_at

if TYPE_CHECKING:
    from orchestrator.config.search import Search


def train(
    method: Annotated[
        str | None,
        typer.Option(
            help="Name of the method; see `orchestrator methods`.",
            metavar="NAME",
            callback=not_empty,
            autocompletion=completing.methods,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Name of the data set; see `orchestrator datasets`.",
            metavar="NAME",
            callback=not_empty,
            autocompletion=completing.datasets,
        ),
    ] = None,
    preset: PresetName = None,
    epochs: Annotated[int | None, typer.Option(min=1, max=MAX_EPOCHS, help="Epochs of training.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the training.")] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of this training; a new one by default.", metavar="NAME", callback=not_empty),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(min=1, max=MAX_RUNS, help="Number of trainings with consecutive seeds, in parallel under Ray."),
    ] = 1,
    set_: Set = [],  # noqa: B006 (typer reads the default)
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = None,
    notify_command: NotifyCommand = None,
    notify_url: NotifyUrl = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the resolved training and its cost.")] = False,
    json_: Json = False,
) -> None:
    """Train one method once, in this process, and test it; or several times, for mean, deviation and interval.

    - `orchestrator train --method pfml --dataset glyphs-small --epochs 5 --set delta=0.25`

    - `orchestrator train --method pfml --dataset glyphs-small --epochs 5 --repeats 5`

    - `orchestrator train --preset pfml/cub200/resnet50`
    """
    from orchestrator.search.notify import Notification

    notification = Notification.of(notify_command, notify_url)
    results = Results(storage, json_)
    with waiting("starting") as status:
        typed = {"method": method, "dataset": dataset, "epochs": epochs, "seed": seed}
        overrides = assignments(set_, typed)

        def resolve() -> "Search":
            resolved = described_training(
                typed, overrides, places_of(storage), preset=preset, name=name, repeats=repeats, prepared=not dry_run
            )
            if not dry_run:
                refuse_start(storage, tracking_uri, resolved.name)
            return resolved

        if dry_run:
            from orchestrator.execution.inline import check_threads
            from orchestrator.search.plan import plan

            warn_of_plugins()
            training = resolve()
            if repeats == 1:
                check_threads(training)
            planned = plan(training, storage)
            status.stop()
            note_idle(training)
            show_plan(planned, as_json=json_)
            return
        with beside_ray(resolve, None, False, None if repeats > 1 else lambda: False) as training:
            from orchestrator.cli.live import Display
            from orchestrator.execution.inline import InlineRunner
            from orchestrator.search.driver import start

            warn_of_plugins()
            note_idle(training)
            outcome = start(
                training,
                runner_at() if repeats > 1 else InlineRunner(),
                storage=storage,
                tracking_uri=tracking_uri,
                experiment=experiment,
                watcher=Display(status=status, results=results),
            )
    conclude(outcome, results, notification)
