"""What a suggestion costs after many trials, and whether a search of many trials loses by looking at some of them.

    python benchmarks/suggestions.py cost [--trials 100 1000 10000] [--algorithm tpe]   # the study alone
    python benchmarks/suggestions.py search [--trials 100000] [--slots 1000]            # conductor, journal and study
    python benchmarks/suggestions.py quality [--trials 2000] [--seeds 10]               # with all trials, with some
    python benchmarks/suggestions.py front [--trials 40] [--seeds 10]                   # of two objectives

Nothing is trained: a trial's curve is computed from its point. `quality` gives the regret of the best point, without
the noise that the search saw, `front` the area that the front of two objectives dominates. Results: scale.md.
"""

import argparse
import math
import resource
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.execution.protocol import Validated, Work
from orchestrator.search import thinning
from orchestrator.search.beginning import first_fields
from orchestrator.search.conductor import Conductor
from orchestrator.search.study import Study
from orchestrator.storage.journal import Journal
from orchestrator.storage.places import JOURNAL

SPACE = {
    "lr": {"low": 1e-4, "high": 1e-2, "log": True},
    "alpha": {"low": 8, "high": 64, "log": True},
    "margin": {"low": 0, "high": 0.4},
    "proxy_lr_multiplier": {"low": 1, "high": 300, "log": True},
}
VALIDATIONS = 4
ASKED = 50
"""How many suggestions are timed; their median counts."""


def search_of(
    trials: int, algorithm: str, scheduler: str, seed: int = 0, more: Mapping[str, Any] | None = None
) -> Search:
    raw = {
        "method": "proxy_anchor",
        "dataset": "glyphs-small",
        "settings": {"epochs": VALIDATIONS},
        "space": SPACE,
        "algorithm": algorithm,
        "num_trials": trials,
        "seed": seed,
        "scheduler": scheduler,
        "final": False,
        **(more or {}),
    }
    return resolve_search(raw, name="many", source="benchmarks/suggestions.py")


def quality_of(point: Mapping[str, float]) -> float:
    """At most 0, with a curved ridge between the two rates, and a second, lower hill."""
    x = np.array(
        [
            math.log10(point["lr"]) + 3,
            math.log2(point["alpha"] / 32),
            (point["margin"] - 0.1) / 0.1,
            math.log10(point["proxy_lr_multiplier"]) - 2,
        ]
    )
    ridge = (x[3] - x[0] ** 2) ** 2 + 0.3 * x[0] ** 2
    first, second = -ridge - 0.2 * x[1] ** 2 - 0.1 * x[2] ** 2, -0.15 - 2 * float(np.sum((x - 0.8) ** 2))
    return max(float(first), second)


def curve_of(point: Mapping[str, float], random: np.random.Generator) -> list[float]:
    end = quality_of(point) + 0.02 * random.normal()
    return [end - 0.5**age for age in range(1, VALIDATIONS + 1)]


def run_trial(study: Study, number: int, point: Mapping[str, Any], random: np.random.Generator) -> None:
    name, state = f"{number:06d}", "done"
    for age, value in enumerate(curve_of(point, random), start=1):
        if study.report(name, age, value):
            state = "pruned"
            break
    study.tell(name, state)


def cost(trials: Sequence[int], algorithm: str, scheduler: str) -> None:
    """The processor's milliseconds of a suggestion, and of a trial's reports and end, after so many trials."""
    print("| trials before | a suggestion, ms | its reports and end, ms |")
    print("| ---: | ---: | ---: |")
    random = np.random.default_rng(0)
    for many in trials:
        study = Study(search_of(10**6, algorithm, scheduler))
        for number in range(many):
            study.enter(f"{number:06d}", number, study.space.point(draw_point(random)))
            run_trial(study, number, study_point(study, number), random)
        asked, ended = [], []
        for number in range(many, many + ASKED):
            started = time.process_time()
            point = study.ask(f"{number:06d}", number)
            between = time.process_time()
            assert point is not None
            run_trial(study, number, point, random)
            asked.append(between - started)
            ended.append(time.process_time() - between)
        print(f"| {many:,} | {1000 * np.median(asked):.2f} | {1000 * np.median(ended):.2f} |", flush=True)


def draw_point(random: np.random.Generator) -> dict[str, float]:
    lr, alpha, margin, multiplier = random.uniform(size=4)
    return {
        "lr": 10 ** (2 * lr - 4),
        "alpha": 8.0 * 8**alpha,
        "margin": 0.4 * margin,
        "proxy_lr_multiplier": 300**multiplier,
    }


def study_point(study: Study, number: int) -> Mapping[str, Any]:
    trial = study.running[study.bracket(number)][f"{number:06d}"]
    point: Mapping[str, Any] = trial.user_attrs["params"]
    return point


def quality(trials: int, seeds: int, scheduler: str) -> None:
    """Searches that look at all trials beside those that look at some: the regret of the best point, by seed."""
    regrets: dict[str, list[float]] = {"all": [], "some": []}
    most = thinning.MOST
    for seed in range(seeds):
        for way in regrets:
            thinning.MOST = 10**9 if way == "all" else most
            study, random = Study(search_of(trials, "tpe", scheduler, seed)), np.random.default_rng(seed)
            best = -math.inf
            for number in range(trials):
                point = study.ask(f"{number:06d}", number)
                assert point is not None
                best = max(best, quality_of(point))
                run_trial(study, number, point, random)
            regrets[way].append(-best)
        print(seed, {way: f"{values[-1]:.5f}" for way, values in regrets.items()}, flush=True)
    thinning.MOST = most
    for way, values in regrets.items():
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        print(f"| {way} | {middle:.5f} | {low:.5f} to {high:.5f} |")


def second_of(point: Mapping[str, float]) -> float:
    """A cost of at least 0, least far from where the quality is best."""
    far = (math.log10(point["lr"]) + 2.2) ** 2 + (math.log10(point["proxy_lr_multiplier"]) - 0.8) ** 2
    return float(far + 0.5 * (point["margin"] / 0.4) ** 2)


def area_of(front: Sequence[tuple[float, float]], worst: tuple[float, float] = (-4.0, 4.0)) -> float:
    """What points of (quality, cost) dominate of the rectangle from the worst of both to 0."""
    area, cost = 0.0, worst[1]
    for quality, own in sorted(front, reverse=True):
        if own < cost and quality > worst[0]:
            area += (cost - max(own, 0.0)) * (quality - worst[0])
            cost = own
    return area


def front(trials: int, seeds: int, algorithms: Sequence[str]) -> None:
    """Searches for two objectives: the area that is dominated after so many trials."""
    print(f"| {trials} trials | area, median | quartiles | ms per suggestion |")
    print("| --- | ---: | ---: | ---: |")
    for algorithm in algorithms:
        areas, started = [], time.process_time()
        for seed in range(seeds):
            search = search_of(trials, algorithm, "none", seed, {"objectives": ["val/map_at_r", "cost/seconds"]})
            study, random, points = Study(search), np.random.default_rng(seed), []
            for number in range(trials):
                point = study.ask(f"{number:06d}", number)
                assert point is not None
                points.append((quality_of(point), second_of(point)))
                study.report(f"{number:06d}", 1, points[-1][0] + 0.02 * random.normal())
                study.tell(f"{number:06d}", "done", points[-1][1] + 0.02 * random.normal())
            areas.append(area_of(points))
        low, middle, high = np.quantile(areas, [0.25, 0.5, 0.75])
        each = 1000 * (time.process_time() - started) / (seeds * trials)
        print(f"| {algorithm} | {middle:.3f} | {low:.3f} to {high:.3f} | {each:.0f} |", flush=True)


class Results:
    """Runs trials without training them, as many at once as there are slots, a validation each in turn."""

    def __init__(self, portion: int) -> None:
        self.portion = portion
        self.random = np.random.default_rng(0)

    def run(self, conductor: Conductor) -> None:
        running: deque[tuple[Work, list[float], int]] = deque()
        started, last = time.process_time(), 0
        while not conductor.is_finished:
            while (work := conductor.next()) is not None:
                running.append((work, curve_of(work.experiment.flat(), self.random), 1))
            work, curve, age = running.popleft()
            metrics = {"val/map_at_r": curve[age - 1], "train/loss": 1.0, "epoch": float(age)}
            if not conductor.report(Validated(work.trial_id, age, metrics, 1.0, finished=age == VALIDATIONS)):
                running.append((work, curve, age + 1))
            ended = len(conductor.ledger.trials) - len(running)
            if ended >= last + self.portion:
                seconds, started, last = time.process_time() - started, time.process_time(), ended
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
                print(f"| {ended:,} | {1000 * seconds / self.portion:.2f} | {memory:.2f} |", flush=True)


def search(trials: int, slots: int, algorithm: str, scheduler: str) -> None:
    """A whole search without Ray, tracker and trainings."""
    print("| trials ended | processor, ms a trial | memory, GiB |")
    print("| ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as name:
        asked = search_of(trials, algorithm, scheduler)
        with Journal(Path(name, JOURNAL)) as journal:
            first = journal.append("search_started", sync=False, **first_fields(asked), params={}, tags={})
            folder = Path(name)
            conductor = Conductor(asked, folder, data=folder, journal=journal, events=[first], slots=slots)
            Results(max(1, trials // 10)).run(conductor)
            conductor.end()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "search", "quality", "front"))
    parser.add_argument("--trials", type=int, nargs="*")
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--algorithm", default="tpe")
    parser.add_argument("--scheduler", default="asha")
    options = parser.parse_args(arguments)
    if options.what == "cost":
        cost(options.trials or (100, 1000, 10_000), options.algorithm, options.scheduler)
    elif options.what == "search":
        search((options.trials or [100_000])[0], options.slots, options.algorithm, options.scheduler)
    elif options.what == "front":
        front((options.trials or [40])[0], options.seeds, ("gp", "tpe", "nsga2", "random"))
    else:
        quality((options.trials or [2000])[0], options.seeds, options.scheduler)


if __name__ == "__main__":
    main()
