"""`benchmark`: searches of several methods with an equal budget."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import completing
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    Address,
    Epochs,
    Experiment,
    Json,
    MaxConcurrent,
    MaxRestarts,
    NotifyCommand,
    NotifyUrl,
    RayOutput,
    Retry,
    Set,
    StallTimeout,
    Storage,
    TrackingUri,
    TrialTimeout,
    Workers,
    key_option,
    not_empty,
    places_of,
)
from orchestrator.cli.output import waiting
from orchestrator.cli.starting import fixed_settings, given_keys, run_benchmark
from orchestrator.config.limits import MAX_RUNS
from orchestrator.errors import InputError
from orchestrator.search.beginning import fresh_name


def benchmark(
    ctx: typer.Context,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, shipped searches, or search files.", metavar="A,B,...", callback=not_empty),
    ] = None,
    dataset: Annotated[
        str | None,
        key_option(
            "dataset",
            "Data set, in place of the files'.",
            metavar="NAME",
            callback=not_empty,
            autocompletion=completing.datasets,
        ),
    ] = None,
    budget: Annotated[
        list[str],
        key_option(
            "budget",
            "What each method may spend, such as epochs=400 or gpu_hours=20; hours, if a number alone.",
            metavar="KEY=LIMIT",
        ),
    ] = [],  # noqa: B006 (typer reads the default)
    num_trials: Annotated[int | None, key_option("num_trials", "How many points each method may try.")] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of this benchmark; an existing one continues.", metavar="NAME", callback=not_empty),
    ] = None,
    algorithm: Annotated[
        str | None, key_option("algorithm", "{single_algorithms}, for all.", metavar="NAME", callback=not_empty)
    ] = None,
    scheduler: Annotated[
        str | None, key_option("scheduler", "{schedulers}, for all.", metavar="NAME", callback=not_empty)
    ] = None,
    final_seeds: Annotated[
        int | None,
        key_option("final_seeds", "Number of final runs of each method's winner, one per seed; 5 by default."),
    ] = None,
    searches: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_RUNS,
            help="Searches of each method, each with other seeds; with 3 or more the verdict is on methods.",
        ),
    ] = None,
    max_concurrent: MaxConcurrent = None,
    workers: Workers = None,
    trial_timeout: TrialTimeout = None,
    stall_timeout: StallTimeout = None,
    retry: Retry = None,
    max_restarts: MaxRestarts = None,
    epochs: Epochs = None,
    seed: Annotated[int | None, key_option("seed", "Seed of the searches and of their trainings.")] = None,
    set_: Set = [],  # noqa: B006 (typer reads the default)
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = None,
    notify_command: NotifyCommand = None,
    notify_url: NotifyUrl = None,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run and its cost.")] = False,
    json_: Json = False,
    ray_output: RayOutput = False,
) -> None:
    """Which method is best? An equal budget for each, over its own space, and its winner tested over seeds.

    The same command, run again, continues where it stopped. With more methods (`--methods`), only the
    new ones run; more budget (`--budget`, `--num-trials`) applies to all of them.

    - `orchestrator benchmark --methods pfml,proxy_anchor,multi_similarity --dataset glyphs --budget epochs=200`

    - `orchestrator benchmark --name my-benchmark --methods my_loss/my_loss.yaml`

    - `orchestrator benchmark --name my-benchmark --budget epochs=400`

    - `orchestrator benchmark --name my-benchmark --searches 3`
    """
    from orchestrator.search.notify import Notification

    notification = Notification.of(notify_command, notify_url)
    with waiting("starting Ray, reading the data sets") as status:
        from orchestrator.config.files import find_search
        from orchestrator.plugins import is_method
        from orchestrator.search.benchmark import Benchmark, find_benchmark, resolve_benchmark

        changes = given_keys(ctx)
        limits = changes["budget"] or {}
        overrides = fixed_settings(set_, changes, epochs)
        method_names = [word.strip() for word in methods.split(",")] if methods else []
        if not all(method_names):
            raise InputError(f"--methods: '{methods}': a name is missing between its commas")
        method_names = [
            str(find_search(word)) if ("/" in word or Path(word).suffix) and not is_method(word) else word
            for word in method_names
        ]
        before = None if name is None else find_benchmark(places_of(storage), name)
        times = searches or (1 if before is None else before.searches)
        changed_keys = {key: value for key, value in changes.items() if value is not None}
        same = limits.keys() - {"trials_without_improvement"}  # this one ends each search at its own time
        if before is None and method_names and not same and num_trials is None:
            raise InputError("--budget: missing; give each method the same, such as epochs=200 (or --num-trials)")
        if before is None and name is not None:
            places_of(storage).new_journal(name)  # refuses the name of a search
        request = None
        if before is not None or method_names:
            methods_ = method_names or (before.methods if before is not None else [])
            name = name or fresh_name("benchmark")
            request = Benchmark(
                name=name,
                methods=methods_,
                overrides=overrides,
                changes=changed_keys,
                searches=times,
                experiment=experiment,
            )
        resolved = resolve_benchmark(request, before)
        run_benchmark(
            resolved,
            storage,
            tracking_uri,
            address,
            status,
            dry_run=dry_run,
            as_json=json_,
            ray_output=ray_output,
            notification=notification,
        )
