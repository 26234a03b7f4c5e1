"""`search` and `resume`: start or continue a search or a benchmark."""

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import completing
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    Address,
    BudgetWords,
    Epochs,
    Experiment,
    Json,
    MaxConcurrent,
    MaxRestarts,
    NotifyCommand,
    NotifyUrl,
    PresetName,
    RayOutput,
    Retry,
    SearchName,
    Set,
    StallTimeout,
    Storage,
    TrackingUri,
    TrialTimeout,
    Workers,
    benchmark_of,
    key_option,
    not_empty,
    one_of,
    places_of,
)
from orchestrator.cli.output import say, waiting, warn_of_plugins
from orchestrator.cli.starting import (
    Results,
    beside_ray,
    check_addresses,
    conclude,
    given_keys,
    goes_on,
    note_idle,
    parse_limits,
    read_request,
    refuse_start,
    run_benchmark,
    show_plan,
)
from orchestrator.cli.terminal import echo
from orchestrator.errors import InputError
from orchestrator.search.beginning import runner_at

if TYPE_CHECKING:
    from orchestrator.config.search import Search


def search(
    ctx: typer.Context,
    space: Annotated[
        str | None,
        typer.Argument(
            help="A search file, or the name of a shipped one.", metavar="SPACE", autocompletion=completing.spaces
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(help="In place of SPACE: an earlier search, as it was.", metavar="SEARCH", callback=not_empty),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of this search; a new one by default.", metavar="NAME", callback=not_empty)
    ] = None,
    dataset: Annotated[
        str | None,
        key_option("dataset", metavar="NAME", callback=not_empty, autocompletion=completing.datasets),
    ] = None,
    preset: PresetName = None,
    num_trials: Annotated[int | None, key_option("num_trials")] = None,
    seeds: Annotated[int | None, key_option("seeds")] = None,
    budget: BudgetWords = [],  # noqa: B006 (typer reads the default)
    algorithm: Annotated[str | None, key_option("algorithm", metavar="NAME", callback=not_empty)] = None,
    scheduler: Annotated[str | None, key_option("scheduler", metavar="NAME", callback=not_empty)] = None,
    objective: Annotated[str | None, key_option("objective", metavar="METRIC", callback=not_empty)] = None,
    constraints: Annotated[list[str], key_option("constraints", metavar="COST=LIMIT")] = [],  # noqa: B006 (typer reads the default)
    start_from: Annotated[list[str], key_option("start_from", metavar="NAME")] = [],  # noqa: B006 (typer reads the default)
    learn_from: Annotated[list[str], key_option("learn_from", metavar="NAME")] = [],  # noqa: B006 (typer reads the default)
    max_concurrent: MaxConcurrent = None,
    workers: Workers = None,
    trial_timeout: TrialTimeout = None,
    stall_timeout: StallTimeout = None,
    retry: Retry = None,
    max_restarts: MaxRestarts = None,
    final_workers: Annotated[int | None, key_option("final_workers")] = None,
    final_trials: Annotated[int | None, key_option("final_trials")] = None,
    final_seeds: Annotated[int | None, key_option("final_seeds")] = None,
    final_protocol: Annotated[
        str | None,
        key_option("final_protocol", metavar="<{final_protocols:|}>", callback=one_of("final_protocols")),
    ] = None,
    epochs: Epochs = None,
    seed: Annotated[int | None, key_option("seed")] = None,
    set_: Set = [],  # noqa: B006 (typer reads the default)
    range_: Annotated[
        list[str],
        typer.Option(
            "--range",
            metavar="KEY=RANGE",
            help="Search a setting in this range, or among these choices, written as in a file; repeat as needed.",
        ),
    ] = [],  # noqa: B006 (typer reads the default)
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = None,
    notify_command: NotifyCommand = None,
    notify_url: NotifyUrl = None,
    address: Address = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the resolved search and its cost; draws the data set, trains nothing."),
    ] = False,
    json_: Json = False,
    ray_output: RayOutput = False,
) -> None:
    """Search for the best hyperparameters of a method.

    - `orchestrator search demo`

    - `orchestrator search pfml --dataset glyphs --num-trials 40 --set epochs=20`

    - `orchestrator search my_space.yaml --set delta=0.2 --dry-run`

    - `orchestrator search pfml --preset pfml/cub200/resnet50`

    - `orchestrator search pfml_grid --preset pfml/cub200/resnet50 --seeds 5`

    - `orchestrator search pfml --budget hours=8 --start-from my-search:3`

    - `orchestrator search --like my-search --range 'alpha={low: 0.1, high: 1, log: true}' --start-from my-search:3`

    - `orchestrator search pfml --set protocol=mlrc --final-trials 3 --final-seeds 5 --final-protocol conventional`
    """
    from orchestrator.search.notify import Notification

    notification = Notification.of(notify_command, notify_url)
    # options called like keys of the file, such as final_seeds, are read by given_keys
    if dry_run:
        with waiting("timing a few steps"):
            resolved = read_request(
                space, name, preset, epochs, set_, given_keys(ctx), storage, like=like, ranges=range_, prepared=False
            )
            from orchestrator.search.plan import plan

            check_addresses(tracking_uri, address)
            if address == "storage":
                from orchestrator.execution.through_storage import check_joinable

                check_joinable(resolved, storage)
            planned = plan(resolved, storage)
        warn_of_plugins()
        note_idle(resolved)
        if address is None:
            _warn_of_machine(resolved)
        show_plan(planned, as_json=json_)
        return
    keys = given_keys(ctx)

    def resolve() -> "Search":
        resolved = read_request(space, name, preset, epochs, set_, keys, storage, like=like, ranges=range_)
        refuse_start(storage, tracking_uri, resolved.name, address)
        return resolved

    results = Results(storage, json_)
    doing = "reading the search" + ("" if address == "storage" else ", starting Ray")
    with waiting(doing) as status, beside_ray(resolve, address, ray_output) as resolved:
        warn_of_plugins()
        note_idle(resolved)
        from orchestrator.cli.live import Display
        from orchestrator.search.driver import start

        outcome = start(
            resolved,
            runner_at(address, ray_output),
            storage=storage,
            tracking_uri=tracking_uri,
            experiment=experiment,
            watcher=Display(status=status, results=results),
        )
    conclude(outcome, results, notification)


def resume(
    name: SearchName,
    num_trials: Annotated[int | None, key_option("num_trials", "Number of points in all, from now on.")] = None,
    budget: BudgetWords = [],  # noqa: B006 (typer reads the default)
    max_concurrent: Annotated[
        int | None, key_option("max_concurrent", "Trials at a time, at most, from now on.")
    ] = None,
    workers: Annotated[int | None, key_option("workers", "Processes that train a trial together, from now on.")] = None,
    final_trials: Annotated[
        int | None, key_option("final_trials", "Number of best trials that have final runs, from now on.")
    ] = None,
    final_seeds: Annotated[
        int | None, key_option("final_seeds", "Number of final runs of each of them, one per seed, from now on.")
    ] = None,
    cut_damaged: Annotated[
        bool,
        typer.Option("--cut-damaged", help="Continue from the records before a damaged one; the rest is set aside."),
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    notify_command: NotifyCommand = None,
    notify_url: NotifyUrl = None,
    address: Address = None,
    json_: Json = False,
    ray_output: RayOutput = False,
) -> None:
    """Continue a search after a stop, a pause, a crash or a reboot; no finished trial runs again.

    A finished search continues if it is given more trials, another budget, or more final runs.

    - `orchestrator resume my-search`

    - `orchestrator resume my-search --num-trials 80 --budget hours=none`

    - `orchestrator resume my-search --final-trials 3 --final-seeds 5`

    - `orchestrator resume my-search --workers 4 --max-concurrent 2`
    """
    from orchestrator.search.notify import Notification

    notification = Notification.of(notify_command, notify_url)
    results = Results(storage, json_)
    with waiting("resuming the search") as status:
        if (benchmark := benchmark_of(name, storage)) is not None:
            for_one = {
                "--workers": workers,
                "--max-concurrent": max_concurrent,
                "--final-trials": final_trials,
                "--final-seeds": final_seeds,
            }
            refused = [f"{option}: {value}" for option, value in for_one.items() if value]
            if num_trials or budget or refused or cut_damaged:
                if refused or cut_damaged:
                    option = "--cut-damaged" if cut_damaged else refused[0]
                    raise InputError(
                        f"{option}: is for one search, and {name} is a benchmark: resume one of its searches (they are "
                        f"listed by: orchestrator status {name})"
                    )
                option = f"--num-trials {num_trials}" if num_trials else f"--budget {' --budget '.join(budget)}"
                more = f"orchestrator benchmark --name {name} {option}"
                raise InputError(f"NAME: {name}: is a benchmark: give all its searches more with: {more}")
            run_benchmark(
                benchmark,
                storage,
                tracking_uri,
                address,
                status,
                as_json=json_,
                ray_output=ray_output,
                notification=notification,
            )
            return
        if cut_damaged:
            from orchestrator.search.journal_repair import cut
            from orchestrator.storage.places import JOURNAL

            say(cut(places_of(storage).search(name) / JOURNAL) or f"nothing of {name}'s journal is damaged")
        limits = parse_limits(budget)
        journal = places_of(storage).journal(name)  # a wrong name is told at once
        changed = bool(limits) or any((num_trials, max_concurrent, workers, final_trials, final_seeds))
        # a change may be refused: then Ray is not needed
        with beside_ray(lambda: None, address, ray_output, lambda: not changed and goes_on(journal)):
            from orchestrator.cli.live import Display
            from orchestrator.search.driver import resume as resume_search

            outcome = resume_search(
                name,
                runner_at(address, ray_output),
                storage=storage,
                tracking_uri=tracking_uri,
                watcher=Display(status=status, results=results),
                num_trials=num_trials,
                budget=limits,
                workers=workers,
                max_concurrent=max_concurrent,
                final_trials=final_trials,
                final_seeds=final_seeds,
            )
    conclude(outcome, results, notification)


def _warn_of_machine(search: "Search") -> None:
    """Warn of threads that this machine does not have and GPU-hours it cannot count: it would refuse the search."""
    from orchestrator.execution.inline import InlineRunner, check_threads
    from orchestrator.search.preflight import check_hours

    try:
        check_threads(search)
    except InputError as error:
        echo(f"warning: {error}, or a cluster whose nodes have them", err=True)
    try:
        check_hours(search, InlineRunner())
    except InputError as error:
        device = search.example().training.device
        echo(f"warning: {error}" + ("" if device == "cpu" else ", or a cluster with GPUs"), err=True)
