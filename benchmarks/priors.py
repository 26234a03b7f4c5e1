"""What it brings to expect a good point, and what it costs to expect a wrong one, on the tabular benchmark.

    python benchmarks/priors.py [--tasks margin ...] [--ways gp tpe] [--seeds 20] [--slots 1] [--held-out]

A line for each task, way and expectation: epochs until a validation has reached 99% of the table's best, as a share of
those of the whole table, with the same seeds; and the ratio to what the same search needs that expects nothing: median
and quartiles over seeds. What is expected follows from the trainings with the other seed: `good` is their best point,
`wrong` their worst, `middling` the one in the middle.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tabular import WAYS, task_parser, tasks_of

from orchestrator.benchmarking import TabularTask, replay
from orchestrator.benchmarking.replaying import goal_of
from orchestrator.errors import InputError

PLACES = {"nothing": None, "good": 0.0, "middling": 0.5, "wrong": 1.0}
"""Of the expected point among all, from the best to the worst."""


def expected_point(task: TabularTask, training_seed: int, place: float) -> Mapping[str, Any]:
    """The point at this place among those of the trainings with another seed."""
    other = next(seed for seed in task.seeds if seed != training_seed)
    name, sign = task.objective.metric, -1.0 if task.objective.mode == "max" else 1.0

    def loss(point: Mapping[str, Any]) -> float:
        return min((sign * value for value in task.curve(point, other).metrics[name]), default=float("inf"))

    return sorted(task.points, key=loss)[round(place * (len(task.points) - 1))]


def epochs_to_goal(task: TabularTask, way: str, place: float | None, seed: int, slots: int) -> float:
    """Of one search, all epochs of the table if it never comes there."""
    training_seed = task.seeds[seed % len(task.seeds)]
    goal, changes = goal_of(task, training_seed), {**WAYS[way], "num_trials": len(task.points)}
    if place is not None:
        changes["learn_from"] = [dict(expected_point(task, training_seed, place))]
    search = replay(task, seed=seed, training_seed=training_seed, slots=slots, goal=goal, **changes)
    return search.epochs_to(goal) or task.epochs


def quartiles(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = task_parser(__doc__)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=["gp", "tpe"])
    options = parser.parse_args()
    print("| task | search | expects | share of the table's epochs | ratio, by seed | ratio of medians |")
    print("| --- | --- | --- | --- | --- | ---: |")
    for task in tasks_of(options):
        for way in options.ways:
            without: list[float] = []
            for name, place in PLACES.items():
                try:
                    epochs = [epochs_to_goal(task, way, place, seed, options.slots) for seed in range(options.seeds)]
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
