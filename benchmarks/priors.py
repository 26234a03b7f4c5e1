"""What it brings to expect a good point, and what it costs to expect a wrong one, on the tabular benchmark.

    python benchmarks/priors.py [--tasks margin ...] [--ways gp tpe] [--expect earlier] [--seeds 20] [--held-out]
    python benchmarks/priors.py --train DIR [--tasks margin ...]    # the earlier searches, in that storage

A line for each task, way and expectation: epochs until a validation has reached 99% of the table's best, as a share of
those of the whole table, with the same seeds; and the ratio to what the same search needs that expects nothing: median
and quartiles over seeds. What is expected follows from the trainings with the other seed: `good` is their best point,
`wrong` their worst, `middling` the one in the middle; `earlier` is the best three points of a real search of the same
method on other data, of 40 trials by TPE over the shipped space and the rate, which `earlier.json` holds.
"""

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tabular import TASKS, WAYS, task_parser, tasks_of

from orchestrator.benchmarking import TabularTask, replay
from orchestrator.benchmarking.replaying import goal_of
from orchestrator.errors import InputError
from orchestrator.execution.inline import InlineRunner
from orchestrator.search.benchmark_searches import advance
from orchestrator.search.driver import suited_to_data
from orchestrator.search.start_from import BEST
from orchestrator.search.watcher import Watcher
from orchestrator.storage.places import Places, writable

PLACES = {"good": 0.0, "middling": 0.5, "wrong": 1.0}
"""Of the expected point among all, from the best to the worst."""
EXPECTATIONS = ("nothing", *PLACES, "earlier")
EARLIER = Path(__file__).with_name("earlier.json")
OTHER_DATA = {"dataset": "glyphs-hard", "epochs": 10}
"""More typefaces, distortions, and half as many pictures of a class: about as many steps as on the table's data."""
TRIALS = 40


def train(names: Iterable[str], storage: Path) -> None:
    """Search each task's method on other data, and keep the best points."""
    places = Places(writable(storage))
    for name in names:
        recipe = replace(TASKS[name], settings={**TASKS[name].settings, **OTHER_DATA})
        changes = {"name": f"earlier-{name}", "algorithm": "tpe", "num_trials": TRIALS, "test_trials": False}
        search = suited_to_data(recipe.search(name, seed=0), places)[0].model_copy(update=changes)
        ledger = advance(search, InlineRunner(), places, None, Watcher(), {}, print).ledger
        best = [dict(trial.point) for trial in ledger.candidates()[:BEST]]
        kept = json.loads(EARLIER.read_text("utf-8")) if EARLIER.exists() else {}
        kept = dict(sorted({**kept, name: best}.items()))
        EARLIER.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
        print(f"{name}: {best}", flush=True)


def expected_points(task: TabularTask, training_seed: int, expectation: str) -> list[Mapping[str, Any]]:
    """Those of an earlier search, or the point at a place among the trainings with another seed."""
    if expectation == "earlier":
        return list(json.loads(EARLIER.read_text("utf-8"))[task.name])
    if expectation == "nothing":
        return []
    other = next(seed for seed in task.seeds if seed != training_seed)
    name, sign = task.objective.metric, -1.0 if task.objective.mode == "max" else 1.0

    def loss(point: Mapping[str, Any]) -> float:
        return min((sign * value for value in task.curve(point, other).metrics[name]), default=float("inf"))

    return [sorted(task.points, key=loss)[round(PLACES[expectation] * (len(task.points) - 1))]]


def epochs_to_goal(task: TabularTask, way: str, expectation: str, seed: int, slots: int) -> float:
    """Of one search, all epochs of the table if it never comes there."""
    training_seed = task.seeds[seed % len(task.seeds)]
    goal, changes = goal_of(task, training_seed), {**WAYS[way], "num_trials": len(task.points)}
    if points := expected_points(task, training_seed, expectation):
        changes["learn_from"] = [dict(point) for point in points]
    search = replay(task, seed=seed, training_seed=training_seed, slots=slots, goal=goal, **changes)
    return search.epochs_to(goal) or task.epochs


def quartiles(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = task_parser(__doc__)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=["gp", "tpe"])
    parser.add_argument("--expect", nargs="*", choices=EXPECTATIONS, default=EXPECTATIONS)
    parser.add_argument("--train", type=Path, metavar="DIR")
    options = parser.parse_args()
    if options.train is not None:
        train(options.tasks or TASKS, options.train)
        return
    print("| task | search | expects | share of the table's epochs | ratio, by seed | ratio of medians |")
    print("| --- | --- | --- | --- | --- | ---: |")
    for task in tasks_of(options):
        for way in options.ways:
            without: list[float] = []
            for name in dict.fromkeys(["nothing", *options.expect]):
                try:
                    epochs = [epochs_to_goal(task, way, name, seed, options.slots) for seed in range(options.seeds)]
                except InputError as error:
                    print(f"| {task.name} | {way} | cannot: {error} | | | |", flush=True)
                    break
                without = without or epochs
                ratios = [one / other for one, other in zip(epochs, without, strict=True)]
                of_medians = statistics.median(epochs) / statistics.median(without)
                shares = quartiles([one / task.epochs for one in epochs])
                print(
                    f"| {task.name} | {way} | {name} | {shares} | {quartiles(ratios)} | {of_medians:.2f} |", flush=True
                )


if __name__ == "__main__":
    main()
