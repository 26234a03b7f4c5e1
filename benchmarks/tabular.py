"""The tabular benchmark of searches: records its tasks, and compares search algorithms on them.

    python benchmarks/tabular.py record [TASK] --storage DIR      # hours on one core; killed, it goes on where it was
    python benchmarks/tabular.py collect --storage DIR [--file searches.parquet]
    python benchmarks/tabular.py verify TASK --storage DIR        # a replay beside real trainings, trial by trial
    python benchmarks/tabular.py compare [--seeds 20] [--slots 1] [--held-out] [--kept FILE]
    python benchmarks/tabular.py budgets [--seeds 20] [--slots 1] # how far from the best value after as many epochs
    python benchmarks/tabular.py fronts [--seeds 20]              # of two objectives, MAP@R and seconds

`record` trains the points of each task below with each seed, as searches in a storage: scrambled Sobol points of the
method's shipped space and of the learning rate, or random ones where settings depend on each other; no early stops,
each training tested. `collect` puts the tasks whose journals are there into the file, and leaves the others in it as
they are; [the page](../docs/benchmark_tables.md) describes it. `verify` searches a task by TPE with ASHA, once on the
table and once by training, and compares the journals. The others take the tasks that are complete and not held out, or
those that are. `compare` prints the epochs until a search has reported 99% of the table's best, as a share of those of
the whole table: median and quartiles over seeds. `--kept` adds the share of each seed to a file. `budgets` prints how
far the best value is below the table's, in points, of searches that have 5, 10 and 20% of its epochs.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from suggestions import area_of

import search_spaces
from orchestrator.benchmarking import (
    TabularTask,
    collect_task,
    evaluate_algorithm,
    find_difference,
    read_tasks,
    replay,
    write_tasks,
)
from orchestrator.benchmarking.replaying import TableRunner, search_points
from orchestrator.benchmarking.table import SHIPPED
from orchestrator.config.files import read_yaml
from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.errors import InputError
from orchestrator.execution.inline import InlineRunner
from orchestrator.execution.protocol import TrialSource
from orchestrator.execution.worker import results
from orchestrator.search.benchmark_searches import advance
from orchestrator.search.driver import suited_to_data
from orchestrator.search.watcher import Watcher
from orchestrator.storage.places import JOURNAL, Places, has_started, writable

POINTS = 200
SEEDS = (0, 1)
PORTION = 50
"""How many trainings of a seed follow each other, so that a part of a task that is recorded has all seeds."""
SETTINGS: dict[str, Any] = {
    "dataset": "glyphs-small",
    "class_subset": 39,
    "augmentation": "none",
    "classes_per_batch": 8,
    "images_per_class": 2,
    "embedding_dim": 64,
    "epochs": 4,
    "validate_every": "12 steps",
    "device": "cpu",
}
"""Of every task: 216 steps on 27 classes, 18 validations on 12 others, one test on 39 others."""
RATE = {"low": 1e-4, "high": 1e-2, "log": True}


@dataclass(frozen=True)
class Recipe:
    """How a task is recorded: its method, with the shipped search file of that name, and its own settings."""

    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    held_out: bool = False

    def search(self, name: str, seed: int) -> Search:
        """The search that records it with one seed."""
        space = {"lr": RATE, **read_yaml(Path(search_spaces.__file__).parent / f"{self.method}.yaml")["space"]}
        settings = {**SETTINGS, **self.settings, "seed": seed}
        conditional = any(isinstance(r, dict) and isinstance(r.get("choices"), dict) for r in space.values())
        raw = {
            "method": self.method,
            "dataset": settings.pop("dataset"),
            "settings": settings,
            "space": space,
            "algorithm": "random" if conditional else "qmc",
            "num_trials": POINTS,
            "final": False,
        }
        search = resolve_search(raw, name=journal_name(name, seed), source="benchmarks/tabular.py")
        return search.model_copy(update={"test_trials": True})


def journal_name(task: str, seed: int) -> str:
    return f"{task}-seed-{seed}"


GLYPHS = {"dataset": "glyphs", "epochs": 2}  # four drawings of each typeface, not two
EFFICIENT_NET = {"backbone": "timm/test_efficientnet", "weights": "random"}
TASKS = {
    "proxy_anchor": Recipe("proxy_anchor"),
    "margin": Recipe("margin"),
    "multi_similarity": Recipe("multi_similarity", EFFICIENT_NET),
    "contrastive": Recipe("contrastive", GLYPHS),
    "soft_triple": Recipe("soft_triple", {"embedding_dim": 16}, held_out=True),
    "anti_collapse": Recipe("anti_collapse", GLYPHS, held_out=True),
}
ASHA = {"name": "asha", "grace_validations": 3, "reduction_factor": 3}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "asha": ASHA,
    "hasty asha": ASHA | {"grace_validations": 1},
    "hyperband": {"name": "hyperband", "max_validations": 18},
    "median": {"name": "median", "grace_validations": 3},
    "promotion": {"name": "promotion"},
    "late promotion": {"name": "promotion", "grace_validations": 3},
    "forecast": {"name": "forecast"},
    "late forecast": {"name": "forecast", "grace_validations": 3},
}
STOPPING = {
    f"{algorithm} + {name}": {"algorithm": algorithm, "scheduler": scheduler}
    for algorithm in ("tpe", "random", "gp")
    for name, scheduler in SCHEDULERS.items()
}
WAYS: dict[str, dict[str, Any]] = {
    **STOPPING,
    "auto": {"algorithm": "auto"},
    "tpe": {"algorithm": "tpe"},
    "random": {"algorithm": "random"},
    "qmc": {"algorithm": "qmc"},
    "gp": {"algorithm": "gp"},
    "cmaes": {"algorithm": "cmaes"},
}


class PortionRunner(InlineRunner):
    """Trains a portion of a search."""

    whole = False
    """Whether it was trained to its end."""

    def run(self, conductor: TrialSource) -> None:
        for _ in range(PORTION):
            if conductor.is_finished or (work := conductor.next()) is None:
                return
            for result in results(work):
                if conductor.report(result) or conductor.stopping:
                    break
            if conductor.stopping:
                return
        self.whole = True


def record(storage: Path, names: Iterable[str]) -> None:
    """The tasks, one training at a time, portion by portion."""
    places = Places(writable(storage))
    for name in names:
        recipe = TASKS[name]
        unfinished = list(SEEDS)
        while unfinished:
            seed, runner = unfinished.pop(0), PortionRunner()
            search = suited_to_data(recipe.search(name, seed), places)[0]
            outcome = advance(search, runner, places, None, Watcher(), {}, print)
            print(f"{search.name}: {len(outcome.ledger.trials)} of {POINTS} trainings", flush=True)
            if outcome.state == "interrupted" and not runner.whole:
                raise SystemExit("interrupted; the same command goes on")
            if outcome.state == "interrupted":
                unfinished.append(seed)


def collect(storage: Path, file: Path) -> None:
    """Put what is recorded so far in the storage into the file."""
    places, tasks = Places(storage.resolve()), read_tasks(file) if file.exists() else {}
    for name, recipe in TASKS.items():
        journals = [places.search(journal_name(name, seed)) / JOURNAL for seed in SEEDS]
        if all(map(has_started, journals)):
            task = collect_task(name, journals, planned=POINTS, held_out=recipe.held_out)
            print(f"{name}: {len(task.points)} of {POINTS} points with {len(SEEDS)} seeds")
            if len(task.points) < len(tasks[name].points if name in tasks else ()):
                raise SystemExit(f"{name}: {file} has more points; name another file")
            if task.points:
                tasks[name] = task
        else:
            print(f"{name}: {'as it was' if name in tasks else 'not begun'}")
    order = dict.fromkeys([*TASKS, *tasks])  # those of the recipes first
    write_tasks([tasks[name] for name in order if name in tasks], file)
    print(f"{file}: {file.stat().st_size:,} bytes")


def verify(name: str, storage: Path, file: Path, trials: int) -> str | None:
    """Where a replay departs from a search that trains, if it does."""
    task = read_tasks(file)[name]
    way = {**WAYS["tpe + asha"], "num_trials": trials}
    with tempfile.TemporaryDirectory() as folder:
        real, table = Path(folder, "real"), Path(folder, "table")
        real.mkdir()
        started = time.perf_counter()
        search_points(task, task.search(seed=0, **way), InlineRunner(), real, storage.resolve() / "data")
        trained = time.perf_counter()
        replay(task, seed=0, folder=table, **way)
        replayed = time.perf_counter()
        print(f"{trials} trials: trained {trained - started:.1f} s, replayed {replayed - trained:.2f} s")
        return find_difference(real / JOURNAL, table / JOURNAL)


def keep(file: Path, row: dict[str, Any]) -> None:
    """Put the result of a way on a task into a file, in place of an earlier one."""
    key = ("task", "way", "slots")
    rows = json.loads(file.read_text("utf-8")) if file.exists() else []
    rows = [old for old in rows if any(old[name] != row[name] for name in key)]
    rows = sorted([*rows, row], key=lambda one: [one[name] for name in key])
    file.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", "utf-8")


def tasks_in(file: Path, *, held_out: bool, partial: bool = False) -> list[TabularTask]:
    """Those by which something may be chosen, or those that are held out."""
    tasks = read_tasks(file).values()
    return [task for task in tasks if task.held_out == held_out and (task.complete or partial)]


def compare(tasks: Iterable[TabularTask], ways: Iterable[str], seeds: int, slots: int, kept: Path | None) -> None:
    """A line per task and way that can search it."""
    print("| task | points | search | share of the table's epochs | quartiles | never | ms per trial |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for task in tasks:
        for way in ways:
            started = time.perf_counter()
            try:
                outcome = evaluate_algorithm(task, seeds=range(seeds), slots=slots, **WAYS[way])
            except InputError:
                print(f"| {task.name} | {len(task.points)} | {way} | cannot search it | | | |", flush=True)
                continue
            if kept is not None:
                shares = [round(share, 4) for share in outcome.shares]
                keep(kept, {"task": task.name, "way": way, "slots": slots, "shares": shares, "never": outcome.missed})
            milliseconds = 1000 * (time.perf_counter() - started) / outcome.trials
            low, high = outcome.quartiles
            print(
                f"| {task.name} | {len(task.points)} | {way} | {outcome.median:.3f} | {low:.3f} to {high:.3f} "
                f"| {outcome.missed} of {seeds} | {milliseconds:.1f} |",
                flush=True,
            )


BUDGETS = (0.05, 0.1, 0.2)


def budgets(tasks: Iterable[TabularTask], ways: Iterable[str], seeds: int, slots: int) -> None:
    """A line per task and way that can search it."""
    print(f"| task | search | {' | '.join(f'{share:.0%} of the epochs' for share in BUDGETS)} |")
    print(f"| --- | --- |{' ---: |' * len(BUDGETS)}")
    for task in tasks:
        for way in ways:
            try:
                rows = [shortfalls(task, way, seed, slots) for seed in range(seeds)]
            except InputError:
                continue
            cells = [quartiles_text(column) for column in zip(*rows, strict=True)]
            print(f"| {task.name} | {way} | {' | '.join(cells)} |", flush=True)


def shortfalls(task: TabularTask, way: str, seed: int, slots: int) -> list[float]:
    """With each share of the epochs the best value of all points less the best that is reported, in points."""
    training_seed = task.seeds[seed % len(task.seeds)]
    sign = 100 if task.objective.mode == "max" else -100
    rows = []
    for share in BUDGETS:
        limit: dict[str, Any] = {"num_trials": len(task.points), "budget": {"epochs": int(share * task.epochs)}}
        search = replay(task, seed=seed, training_seed=training_seed, slots=slots, **limit, **WAYS[way])
        best = [one.best for one in search.progress if one.epochs <= limit["budget"]["epochs"]][-1]
        rows.append(sign * (task.best(training_seed) - best))
    return rows


def fronts(tasks: Iterable[TabularTask], ways: Iterable[str], seeds: int, share: float = 0.1) -> None:
    """A line per task and way: with two objectives, of the area that the curves of all points dominate, the part that a
    search's front dominates after this share of the epochs."""
    print(f"| task | search | area after {share:.0%} of the epochs | trials |")
    print("| --- | --- | --- | --- |")
    for task in tasks:
        limit: dict[str, Any] = {"num_trials": len(task.points), "budget": {"epochs": int(share * task.epochs)}}
        wholes = {training_seed: whole_area(task, training_seed) for training_seed in task.seeds}
        for way in ways:
            areas, trials = [], []
            try:
                for seed in range(seeds):
                    training_seed = task.seeds[seed % len(task.seeds)]
                    search = with_two_objectives(task, training_seed, seed=seed, **limit, **WAYS[way])
                    with tempfile.TemporaryDirectory() as folder:
                        ledger = search_points(task, search, TableRunner(task, slots=1, goal=None), Path(folder))
                    worst, whole = wholes[training_seed]
                    mine = [(ledger.trials[key].best or 0.0, ledger.trials[key].second or 0.0) for key in ledger.front]
                    areas.append(100 * area_of(mine, worst) / whole)
                    trials.append(float(len(ledger.trials)))
            except InputError:
                continue
            print(f"| {task.name} | {way} | {quartiles_text(areas)} | {quartiles_text(trials)} |", flush=True)


def whole_area(task: TabularTask, training_seed: int) -> tuple[tuple[float, float], float]:
    """The worst of both objectives, and the area that the curves of all points dominate from there."""
    curves = [task.curves[number, training_seed] for number in range(len(task.points))]
    worst = 0.0, max(sum(curve.seconds) for curve in curves)
    pairs = [pair for one in curves for pair in improvements(one.metrics[task.objective.metric], one.seconds)]
    return worst, area_of(pairs, worst)


def with_two_objectives(task: TabularTask, training_seed: int, **changes: Any) -> Search:
    """The task's search, for its objective and the seconds until it."""
    content = task.search(training_seed, **changes).content()
    goals = [content.pop("objective", task.objective.metric), "cost/seconds"]
    return resolve_search(content | {"objectives": goals}, name=task.name, source=f"task {task.name}")


def improvements(values: Sequence[float], seconds: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Each best value so far of a curve, and the seconds until it: what a trial has that is stopped there."""
    best, spent = -math.inf, 0.0
    for value, taken in zip(values, seconds, strict=True):
        spent += taken
        if value > best:
            best = value
            yield value, spent


def quartiles_text(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


OF_HELD_OUT = "the tasks that nothing may be chosen by, and no others"


def task_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of scripts that search tasks of the file; `tasks_of` reads them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--file", type=Path, default=SHIPPED)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--held-out", action="store_true", help=OF_HELD_OUT)
    return parser


def tasks_of(options: argparse.Namespace) -> list[TabularTask]:
    """The complete tasks that are meant."""
    tasks = tasks_in(options.file, held_out=options.held_out)
    return [task for task in tasks if not options.tasks or task.name in options.tasks]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "collect", "verify", "compare", "budgets", "fronts"))
    parser.add_argument("task", nargs="?", choices=TASKS)
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--file", type=Path, default=SHIPPED)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--partial", action="store_true", help="tasks of which points are missing too")
    parser.add_argument("--held-out", action="store_true", help=OF_HELD_OUT)
    parser.add_argument("--kept", type=Path, help="a file for the shares of all seeds")
    parser.add_argument(
        "--ways", nargs="*", choices=WAYS, default=[way for way in WAYS if not way.startswith(("gp", "auto"))]
    )
    options = parser.parse_args(arguments)
    if options.what not in ("compare", "budgets", "fronts") and options.storage is None:
        parser.error(f"{options.what} needs --storage")
    if options.what == "record":
        record(options.storage, TASKS if options.task is None else [options.task])
    elif options.what == "collect":
        collect(options.storage, options.file)
    elif options.what == "verify":
        if options.task is None:
            parser.error("verify needs a task")
        difference = verify(options.task, options.storage, options.file, options.trials)
        if difference is not None:
            raise SystemExit(difference)
        print("equal, trial by trial")
    elif options.task is not None:
        parser.error(f"{options.what} takes all tasks: leave {options.task} out")
    else:
        tasks = tasks_in(options.file, held_out=options.held_out, partial=options.partial)
        if options.what == "budgets":
            budgets(tasks, options.ways, options.seeds, options.slots)
        elif options.what == "fronts":
            fronts(tasks, options.ways, options.seeds)
        else:
            compare(tasks, options.ways, options.seeds, options.slots, options.kept)


if __name__ == "__main__":
    main()
