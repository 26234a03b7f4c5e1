"""How much too good a search's best value is by luck, and what further seeds of the leading points change, at as many
trainings in all.

    python benchmarks/winners.py recorded [--searches 200]   # the recorded trainings of a task, with two seeds
    python benchmarks/winners.py made [--searches 200]       # its points with known values and known noise

Nothing is trained: the searches are replayed over the tabular benchmark by the conductor of every search. Results:
verdicts.md.
"""

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.benchmarking import TabularCurve, TabularTask, read_task, replay
from orchestrator.config.space import point_key
from orchestrator.storage.leaderboard import chosen_value, points_over_seeds
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord

TASK = "proxy_anchor"
METRIC = "val/map_at_r"
NOISE = (0.01, 0.02, 0.04)
"""Standard deviations over seeds of a point's value; recorded: 0.011 of the ten best points, 0.020 of the 20 best."""
SEEDS = (1, 2, 3, 4)
SEED_EFFECT = 0.015
"""Standard deviation of what a seed, by its held-out classes, adds to all points; recorded: 0.022 between two seeds."""


@dataclass(frozen=True)
class Choice:
    """What a search chose."""

    bias: float
    """Its value less the true one."""
    regret: float
    """The best true value of all points less its own."""


def summarise(values: Sequence[float]) -> str:
    """`0.0123 ± 0.0010`: mean and half of its 95% interval."""
    return f"{statistics.fmean(values):.4f} ± {1.96 * statistics.stdev(values) / math.sqrt(len(values)):.4f}"


def winner_of(ledger: Ledger) -> tuple[TrialRecord, float, tuple[int, ...]]:
    """The winner, the value that is given for it, and the seeds that this is the mean of."""
    winner = ledger.winner()
    assert winner is not None
    value = chosen_value(ledger, winner)
    assert value is not None
    seeds = next((tuple(p.values) for p in points_over_seeds(ledger) if winner.trial_id in p.trial_ids), (winner.seed,))
    return winner, value, seeds


def best_of(curve: TabularCurve) -> float:
    return max(curve.metrics[METRIC], default=0.0)


def recorded(searches: int, trials: int) -> None:
    """One seed chooses, and the other says how good it is; then both choose, and the test says."""
    task = read_task(TASK)
    numbers = {point_key(point): number for number, point in enumerate(task.points)}
    tests = [statistics.fmean(task.curves[n, s].test["map_at_r"] for s in task.seeds) for n in range(len(task.points))]
    print(f"| {trials} trials, random | value less that of the other seed | regret of its test |")
    print("| --- | ---: | ---: |")
    for seeds in (1, 2):
        apart, regrets = [], []
        for search in range(searches):
            first = task.seeds[search % 2]
            of_search = task if first == 0 else with_seeds_exchanged(task)
            ledger = replay(of_search, seed=search, algorithm="random", num_trials=trials, seeds=seeds).ledger
            winner, value, _ = winner_of(ledger)
            number = numbers[point_key(winner.point)]
            apart.append(value - best_of(of_search.curves[number, 1]))
            regrets.append(max(tests) - tests[number])
        less = summarise(apart) if seeds == 1 else ""
        print(f"| `seeds: {seeds}` | {less} | {summarise(regrets)} |", flush=True)


def with_seeds_exchanged(task: TabularTask) -> TabularTask:
    return replace(task, curves={(number, 1 - seed): curve for (number, seed), curve in task.curves.items()})


def made_task(task: TabularTask, noise: float, random: np.random.Generator) -> tuple[TabularTask, list[float]]:
    """A task with the points of this one, whose trainings have one validation: value = truth + effect of the seed +
    noise. The truth is the mean of the point's recorded values. Also the effects of the seeds."""
    effects = [float(effect) for effect in SEED_EFFECT * random.normal(size=len(SEEDS))]
    curves = {}
    for number, truth in enumerate(truths_of(task)):
        for seed, effect in enumerate(effects):
            value = truth + effect + noise * float(random.normal())
            curves[number, seed] = TabularCurve({METRIC: [value], "epoch": [1.0], "train/loss": [1.0]}, [1.0], [1.0])
    return replace(task, seeds=range(len(SEEDS)), curves=curves), effects


def truths_of(task: TabularTask) -> list[float]:
    return [statistics.fmean(best_of(task.curves[n, s]) for s in task.seeds) for n in range(len(task.points))]


def choices(noise: float, seeds: int, algorithm: str, searches: int, trials: int) -> Iterator[Choice]:
    task = read_task(TASK)
    truths = truths_of(task)
    numbers = {point_key(point): number for number, point in enumerate(task.points)}
    for search in range(searches):
        made, effects = made_task(task, noise, np.random.default_rng((search, 7)))
        ledger = replay(made, seed=search, algorithm=algorithm, num_trials=trials, seeds=seeds).ledger
        assert len(ledger.trials) == trials, "all ways train equally often"
        winner, value, of_seeds = winner_of(ledger)
        truth = truths[numbers[point_key(winner.point)]]
        yield Choice(value - truth - statistics.fmean(effects[seed] for seed in of_seeds), max(truths) - truth)


def made(searches: int, trials: int, algorithms: Sequence[str], noises: Sequence[float]) -> None:
    print(f"| {trials} trials | deviation over seeds | | value less truth | regret |")
    print("| --- | ---: | --- | ---: | ---: |")
    for algorithm in algorithms:
        for noise in noises:
            for seeds in SEEDS:
                made_choices = list(choices(noise, seeds, algorithm, searches, trials))
                bias, regret = ([getattr(one, name) for one in made_choices] for name in ("bias", "regret"))
                cells = f"| {algorithm} | {noise} | `seeds: {seeds}` | {summarise(bias)} | {summarise(regret)} |"
                print(cells, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("recorded", "made"))
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--algorithms", nargs="*", default=["random", "tpe"])
    parser.add_argument("--noise", nargs="*", type=float, default=NOISE)
    options = parser.parse_args()
    started = time.process_time()
    if options.what == "recorded":
        recorded(options.searches, options.trials)
    else:
        made(options.searches, options.trials, options.algorithms, options.noise)
    print(f"{time.process_time() - started:.0f} s of a processor")


if __name__ == "__main__":
    main()
