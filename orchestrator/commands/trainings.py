"""What trains: a search, a benchmark, either of them resumed, a method once."""

import contextlib
import json
import os
import re
import shlex
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer
from rich.status import Status
from rich.text import Text

from orchestrator import objects
from orchestrator.commands.options import (
    DEFAULT_STORAGE,
    PORT,
    Address,
    BudgetWords,
    Epochs,
    Json,
    MaxConcurrent,
    PresetName,
    RayOutput,
    SearchName,
    Set,
    StallTimeout,
    Storage,
    TrackingUri,
    TrialTimeout,
    Workers,
    assignments,
    benchmark_of,
    not_empty,
    places_of,
)
from orchestrator.commands.output import plain, say, show_comparison, waiting, warn_of_plugins
from orchestrator.errors import InputError, Problems
from orchestrator.limits import MOST_CONCURRENT, MOST_EPOCHS, MOST_RUNS, MOST_TRIALS, MOST_WORKERS
from orchestrator.terminal import Terminal, echo

if TYPE_CHECKING:
    from orchestrator.benchmark import Benchmark
    from orchestrator.cluster import RayRunner
    from orchestrator.search import Outcome
    from orchestrator.spec import Search

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty SETTINGS


def search(
    space: Annotated[str, typer.Argument(help="A search file, or the name of a shipped one.", metavar="SPACE")],
    name: Annotated[
        str | None, typer.Option(help="Name of this search; a new one by default.", metavar="NAME", callback=not_empty)
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Data set, in place of the file's.", metavar="NAME", callback=not_empty)
    ] = None,
    preset: PresetName = None,
    num_trials: Annotated[int | None, typer.Option(min=1, max=MOST_TRIALS, help="How many points to try.")] = None,
    budget: BudgetWords = [],  # noqa: B006 (typer reads the default)
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="tpe, gp, cmaes, nsga2, qmc, random or grid, in place of the file's.",
            metavar="NAME",
            callback=not_empty,
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="asha, median, hyperband or none, in place of the file's.", metavar="NAME", callback=not_empty
        ),
    ] = None,
    start_from: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Try first: a preset, or SEARCH:K, the best K of an earlier search; repeat as needed.",
        ),
    ] = [],  # noqa: B006 (typer reads the default)
    max_concurrent: MaxConcurrent = None,
    workers: Workers = None,
    trial_timeout: TrialTimeout = None,
    stall_timeout: StallTimeout = None,
    final_workers: Annotated[
        int | None, typer.Option(min=1, max=MOST_WORKERS, help="The same, for the winner's final run.")
    ] = None,
    final_trials: Annotated[
        int | None, typer.Option(min=1, max=MOST_RUNS, help="So many of the best trials have final runs; 1 by default.")
    ] = None,
    final_seeds: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_RUNS, help="Final runs of each of them, over so many seeds; 1 by default."),
    ] = None,
    final_protocol: Annotated[
        Literal["same", "conventional"] | None,
        typer.Option(help="Protocol of the final runs of a search over folds (protocol=mlrc); same by default."),
    ] = None,
    epochs: Epochs = None,
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
        "trial_timeout": trial_timeout,
        "stall_timeout": stall_timeout,
        "final_workers": final_workers,
        "final_trials": final_trials,
        "final_seeds": final_seeds,
        "final_protocol": final_protocol,
        "seed": seed,
    }
    if dry_run:
        with waiting("timing a few steps"):
            resolved = _resolve(space, name, preset, epochs, set_, changes, storage)
            from orchestrator.plan import plan
            from orchestrator.tracking import check_tracking_uri

            if tracking_uri:
                check_tracking_uri(tracking_uri)
            planned = plan(resolved, storage)
        warn_of_plugins()
        _note_idle(resolved)
        _warn_of_machine(resolved)
        _show_plan(planned, as_json=json_)
        return
    with waiting("starting: the data set, then Ray") as status:
        resolved = _resolve(space, name, preset, epochs, set_, changes, storage)
        warn_of_plugins()
        _note_idle(resolved)
        from orchestrator.display import Display
        from orchestrator.search import start

        runner = _ray(address, ray_output)
        outcome = start(resolved, runner, storage=storage, tracking_uri=tracking_uri, watcher=Display(status=status))
    _conclude(outcome, storage, as_json=json_)


def benchmark(
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, shipped searches, or search files.", metavar="A,B,...", callback=not_empty),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Data set, in place of the files'.", metavar="NAME", callback=not_empty)
    ] = None,
    budget: Annotated[
        list[str],
        typer.Option(
            "--budget",
            metavar="KEY=LIMIT",
            help="What each method may spend: epochs, hours, gpu_hours or cpu_hours; hours, if a number alone.",
        ),
    ] = [],  # noqa: B006 (typer reads the default)
    num_trials: Annotated[
        int | None, typer.Option(min=1, max=MOST_TRIALS, help="How many points each method may try.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of this benchmark; one that has begun goes on.", metavar="NAME", callback=not_empty),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(help="tpe, gp, cmaes, qmc, random or grid, for all.", metavar="NAME", callback=not_empty),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="asha, median, hyperband or none, for all.", metavar="NAME", callback=not_empty)
    ] = None,
    final_seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_RUNS, help="Final runs of each method's winner, over so many seeds; 5 by default."
        ),
    ] = None,
    max_concurrent: MaxConcurrent = None,
    workers: Workers = None,
    trial_timeout: TrialTimeout = None,
    stall_timeout: StallTimeout = None,
    epochs: Epochs = None,
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
    limits = _limits(budget)
    changes = {
        "dataset": dataset,
        "num_trials": num_trials,
        "budget": limits or None,
        "algorithm": algorithm,
        "scheduler": scheduler,
        "final_seeds": final_seeds,
        "max_concurrent": max_concurrent,
        "workers": workers,
        "trial_timeout": trial_timeout,
        "stall_timeout": stall_timeout,
        "seed": seed,
    }
    with waiting("starting: the data set, then Ray") as status:
        from orchestrator.benchmark import Benchmark, asked, known
        from orchestrator.spec import find_search

        overrides = _overrides(set_, changes, epochs)
        named = [word.strip() for word in methods.split(",")] if methods else []
        if not all(named):
            raise InputError(f"--methods: '{methods}': a name is missing between its commas")
        named = [str(find_search(word)) if "/" in word or Path(word).suffix else word for word in named]
        before = None if name is None else known(places_of(storage).storage, name)
        wanted = {key: value for key, value in changes.items() if value is not None}
        same = limits.keys() - {"trials_without_improvement"}  # which ends each at its own time
        if before is None and named and not same and num_trials is None:
            raise InputError("--budget: missing; give each method the same, such as epochs=200 (or --num-trials)")
        if before is None and name is not None:
            places_of(storage).new_journal(name)  # no search's name
        given = None
        if before is not None or named:
            methods_ = named or (before.methods if before is not None else [])
            name = name or _fresh_name("benchmark")
            given = Benchmark(name=name, methods=methods_, overrides=overrides, changes=wanted)
        chosen = asked(given, before)
        _run_benchmark(
            chosen, storage, tracking_uri, address, status, dry_run=dry_run, as_json=json_, ray_output=ray_output
        )


def resume(
    name: SearchName,
    num_trials: Annotated[
        int | None, typer.Option(min=1, max=MOST_TRIALS, help="Try so many points in all, from now on.")
    ] = None,
    budget: BudgetWords = [],  # noqa: B006 (typer reads the default)
    max_concurrent: Annotated[
        int | None, typer.Option(min=1, max=MOST_CONCURRENT, help="Trials at a time, at most, from now on.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=MOST_WORKERS, help="Processes that train a trial together, from now on.")
    ] = None,
    cut_damaged: Annotated[
        bool, typer.Option("--cut-damaged", help="Go on from the records before a damaged one; the rest is put aside.")
    ] = False,
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
    with waiting("taking the search up again") as status:
        if (found := benchmark_of(name, storage)) is not None:
            if num_trials or budget or workers or max_concurrent or cut_damaged:
                if workers or max_concurrent or cut_damaged:
                    option = f"--workers: {workers}" if workers else f"--max-concurrent: {max_concurrent}"
                    option = "--cut-damaged" if cut_damaged else option
                    raise InputError(
                        f"{option}: is for one search, and {name} is a benchmark: resume one of its searches (they are "
                        f"told by: orchestrator status {name})"
                    )
                option = f"--num-trials {num_trials}" if num_trials else f"--budget {' --budget '.join(budget)}"
                more = f"orchestrator benchmark --name {name} {option}"
                raise InputError(f"NAME: {name}: is a benchmark: give all its searches more by: {more}")
            _run_benchmark(found, storage, tracking_uri, address, status, as_json=json_, ray_output=ray_output)
            return
        if cut_damaged:
            from orchestrator.salvage import cut
            from orchestrator.search import JOURNAL

            say(cut(places_of(storage).search(name) / JOURNAL) or f"nothing of {name}'s journal is damaged")
        from orchestrator.display import Display
        from orchestrator.search import resume as go_on

        runner = _ray(address, ray_output)
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


def train(
    method: Annotated[
        str | None,
        typer.Option(help="Name of the method; see `orchestrator methods`.", metavar="NAME", callback=not_empty),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Name of the data set; see `orchestrator datasets`.", metavar="NAME", callback=not_empty),
    ] = None,
    preset: PresetName = None,
    epochs: Annotated[int | None, typer.Option(min=1, max=MOST_EPOCHS, help="Epochs of training.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the training.")] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of this training; a new one by default.", metavar="NAME", callback=not_empty),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=MOST_RUNS, help="Train so often, with consecutive seeds, in parallel under Ray.")
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
    with waiting("starting") as status:
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
        overrides = assignments(set_, given)
        fixed = {} if chosen is None else beneath(chosen.settings, overrides)
        fixed |= {key: value for key, value in given.items() if value is not None}
        warn_of_plugins()
        training = single_training(
            name or _fresh_name(f"train-{fixed['method']}"), fixed | overrides, repeats=repeats, preset=chosen
        )
        if dry_run:
            from orchestrator.plan import plan
            from orchestrator.search import check_threads

            if repeats == 1:
                check_threads(training)
            planned = plan(training, storage)
            status.stop()
            _note_idle(training)
            _show_plan(planned, as_json=json_)
            return
        runner: Runner = InlineRunner()
        if repeats > 1:
            runner = _ray()
        _note_idle(training)
        watcher = Display(status=status)
        outcome = start(training, runner, storage=storage, tracking_uri=tracking_uri, watcher=watcher)
    _conclude(outcome, storage, as_json=json_)


def _resolve(
    space: str,
    name: str | None,
    preset: str | None,
    epochs: int | None,
    words: list[str],
    changes: dict[str, Any],
    storage: Path,
) -> "Search":
    from orchestrator.data.catalog import check_known
    from orchestrator.data.remote import is_address
    from orchestrator.presets import find_preset
    from orchestrator.search import starting_settings
    from orchestrator.spec import check_name, find_search, resolve_search
    from orchestrator.yaml_file import read_yaml, sound_assignments

    if name is not None and benchmark_of(check_name(name), storage) is not None:
        raise InputError(f"--name: '{name}' is a benchmark's; choose another name for the search")
    path = find_search(space)
    raw, problems = read_yaml(path), Problems()
    overrides: dict[str, object] = {}
    with problems.noted():
        overrides = _overrides(words, changes, epochs)
    if problems.found:  # what else is wrong is told too
        overrides = sound_assignments(words)
    with problems.noted():
        search = resolve_search(
            raw,
            name=name or _fresh_name(path.stem),
            source=path.name,
            preset=None if preset is None else find_preset(preset),
            overrides=overrides,
            find_settings=lambda name: starting_settings(name, places_of(storage)),
            **changes,
        )
    dataset = changes.get("dataset") or raw.get("dataset")
    if problems.found and isinstance(dataset, str) and not is_address(dataset) and not is_address(str(storage)):
        with problems.noted():
            check_known(dataset, places_of(storage).data)
    problems.tell()
    return search


def _overrides(words: list[str], changes: Mapping[str, object], epochs: int | None) -> dict[str, object]:
    """The settings that `--set` and `--epochs` fix; none may be given twice, also not by another option."""
    overrides = assignments(words, {**changes, "epochs": epochs})
    return overrides if epochs is None else overrides | {"epochs": epochs}


def _limits(words: list[str]) -> dict[str, Any]:
    """The limits of `--budget`; `none` lifts one."""
    from orchestrator.yaml_file import parse_assignments

    words = [f"hours={word}" if re.fullmatch(r"[0-9.]+", word) else word for word in words]
    given = parse_assignments(words, "--budget", "hours=8")
    return {key: None if value == "none" else value for key, value in given.items()}


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
    from orchestrator.benchmark import members, run, to_do
    from orchestrator.display import Display
    from orchestrator.ledger import counted

    searches = to_do(chosen, places_of(storage))
    warn_of_plugins()
    if dry_run:
        from orchestrator.plan import plan

        begun = members(chosen, places_of(storage))
        plans = {label: plan(search, storage, new=label not in begun) for label, search in searches.items()}
        status.stop()
        if as_json:
            print(json.dumps(plans))
        for label, planned in plans.items() if not as_json else ():
            ended = f" (goes on: {counted(len(begun[label].trials), 'trial')} so far)" if label in begun else ""
            echo(f"== {label}{ended}")
            _show_plan(planned, as_json=False)
        if not plans and not as_json:
            echo(f"benchmark '{chosen.name}' is done: nothing would run")
        return
    for search in searches.values():
        _note_idle(search)
    runner = _ray(address, ray_output)

    def watcher(label: str, place: int) -> Display:
        if place == 1:
            return Display(status=status)
        echo(f"== {label}: {place} of {len(searches)}", err=True)
        return Display()

    result = run(chosen, runner, storage=storage, tracking_uri=tracking_uri, watcher=watcher)
    status.stop()
    show_comparison(result.comparison, as_json=as_json)
    console = Terminal(stderr=as_json)
    console.print(Text(f"on a page:  {result.page}"), soft_wrap=True)
    if result.stopped is not None:
        again = f"orchestrator resume {chosen.name} --storage {shlex.quote(objects.shown(storage))}"
        console.print(Text(f"{result.stopped}; go on with:  {again}"), soft_wrap=True)
        raise typer.Exit(1 if result.fault else 130)


def _note_idle(search: "Search") -> None:
    """Settings that change nothing, so that nobody waits for what they do."""
    from orchestrator.spec import idle_settings

    for line in idle_settings(search):
        echo(f"note: {line}", err=True)


def _warn_of_machine(search: "Search") -> None:
    """Threads that this machine does not have, and GPU-hours that it cannot count; the search would be refused here."""
    from orchestrator.search import InlineRunner, check_hours, check_threads

    try:
        check_threads(search)
    except InputError as error:
        echo(f"warning: {error}, or a cluster whose nodes have them", err=True)
    try:
        check_hours(search, InlineRunner())
    except InputError as error:
        device = search.example().training.device
        echo(f"warning: {error}" + ("" if device == "cpu" else ", or a cluster with GPUs"), err=True)


def _show_plan(resolved: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(resolved))
        return
    console = Terminal(soft_wrap=True)
    for key, value in resolved.items():
        if isinstance(value, dict):
            console.print(Text(f"{key}:", style="bold"))
            for inner, shown in value.items():
                console.print(Text(f"  {inner}: {plain(shown)}"))
        else:
            console.print(Text.assemble((f"{key}: ", "bold"), str(value)))


def _conclude(outcome: "Outcome", storage: Path, *, as_json: bool) -> None:
    """The leaderboard and where to look; the exit code says how the search ended."""
    from orchestrator.display import closing, leaderboard
    from orchestrator.report import summary

    console = Terminal(stderr=as_json)
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
        echo(f"error: {what}: {first}", err=True)
        raise typer.Exit(1)
    if outcome.fault:
        echo(f"error: {outcome.fault}; mend it and go on with the command above", err=True)
        raise typer.Exit(1)
    if outcome.state == "interrupted":
        raise typer.Exit(130)


def _ray(address: str | None = None, ray_output: bool = False) -> "RayRunner":
    """Trials on a cluster of our own or at an address; InputError if nothing answers there, or workers would import
    something else here."""
    from orchestrator.cluster import RayRunner

    _refuse_shadows()
    return RayRunner(_reachable(address), ray_output)


def _refuse_shadows() -> None:
    """Ray's workers look into the working directory first: a package of the same name there would be taken for ours."""
    here, ours = Path.cwd(), Path(__file__).resolve().parents[2]
    for package in ("orchestrator", "methods"):
        for found in (here / package / "__init__.py", here / f"{package}.py"):
            if found.exists() and found.resolve() != ours / package / "__init__.py":
                raise InputError(
                    f"{found} would be imported by Ray's workers in place of this tool's own '{package}': "
                    "rename it or start from another directory"
                )


def _reachable(address: str | None) -> str | None:
    """A cluster's address at which something answers: Ray itself would wait for minutes."""
    if address is None or address == "local":
        return address
    if address == "auto":
        return _cluster_here()
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
        speaks = _speaks(host, port)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"--address: no Ray cluster answers at {address} ({reason}); {advice}") from None
    if not speaks:
        raise InputError(f"--address: what answers at {address} is no Ray cluster; {advice}")
    return address


def _speaks(host: str, port: int) -> bool:
    """Whether what answers may be Ray; OSError if nothing does."""
    with socket.create_connection((host, port), timeout=5) as connection:
        if os.environ.get("RAY_USE_TLS") == "1":
            return True  # it understands nothing before a handshake, which is Ray's own
        # Ray speaks gRPC: its first word, as of all HTTP/2, is a SETTINGS frame (type 4)
        connection.sendall(HTTP2_PREFACE)
        return connection.recv(9)[3:4] == b"\x04"


def _cluster_here() -> str:
    """What `auto` stands for: the cluster that `ray start` began or joined here last, else the only one that answers.
    Ray by itself takes any whose process it sees, one of another search too, or one that nobody reaches."""
    from orchestrator.ray_start import clusters_here

    (started, others), found = clusters_here(), []
    for address in dict.fromkeys(filter(None, [started, *others])):
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError, ValueError):
            if _speaks(host.strip("[]"), int(port)):
                found.append(address)
    if started in found or len(found) == 1:
        return str(found[0])
    if found:
        raise InputError(f"--address: auto: several Ray clusters run on this machine: name one of {', '.join(found)}")
    raise InputError("--address: auto: no Ray cluster runs on this machine; begin one by ray start, or leave it out")


def _fresh_name(stem: str) -> str:
    return f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
