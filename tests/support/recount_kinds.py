"""What a second computation says of grids over seeds, fronts, several data sets, margins and forecasts; like recount.py
by numpy and the standard library alone. Definitions: docs/results.md, benchmarks/verdicts.md."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from support.recount import (
    FEWEST_SEEDS,
    LEVEL,
    Ends,
    Floats,
    Mean,
    Pair,
    Recount,
    Run,
    beyond,
    crossed,
    holm,
    over_seeds,
    quantile,
    times_taken,
)

# Grids over seeds -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PointOf:
    """A point of a grid: the best value of each of its trials by seed, and these trials."""

    params: Mapping[str, object]
    values: Mapping[int, float]
    runs: Mapping[int, Run]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values.values())


def points_of(own: Recount) -> list[PointOf]:
    """Best mean first."""
    groups: dict[str, list[Run]] = {}
    for run in own.ranked:
        groups.setdefault(str(sorted(run.point.items())), []).append(run)
    points = []
    for runs in groups.values():
        values = {run.seed: best[0] for run in runs if (best := own.best(run)) is not None}
        points.append(PointOf(runs[0].point, values, {run.seed: run for run in runs}))
    return sorted(points, key=lambda point: -own.sign * point.mean)


@dataclass(frozen=True)
class Beside:
    """The best point less another one."""

    value: float
    seeds: int
    mean: Mean | None
    adjusted: float
    ends: tuple[float | None, float | None]


def from_the_best(own: Recount, points: Sequence[PointOf]) -> list[Beside]:
    """Which point is the best is known from the same values, so that p is taken as often as there are pairs."""
    pairs, best = math.comb(len(points), 2), points[0]
    one_query = float((own.sizes.get("validation") or {}).get("one_query", 0.0))
    found = []
    for other in points[1:]:
        seeds = sorted(best.values.keys() & other.values.keys())
        apart = [best.values[seed] - other.values[seed] for seed in seeds]
        mean = None
        if len(seeds) >= FEWEST_SEEDS:
            cells = [own.cells([point.runs[seed] for seed in seeds], own.goal) for point in (best, other)]
            mean = over_seeds(apart, one_query)
            if cells[0] is not None and cells[1] is not None:
                mean = crossed(cells[0][0] - cells[1][0], cells[0][1], one_query)
        p = math.nan if mean is None else min(1.0, pairs * mean.p)
        ends = (None, None) if mean is None else mean.at(LEVEL / pairs)
        found.append(Beside(statistics.fmean(apart), len(seeds), mean, p, ends))
    return found


# Two objectives ---------------------------------------------------------------------------------------------------


def front_of(own: Recount, second: str, larger: bool) -> dict[str, tuple[float, float]]:
    """Both objectives of the trials that no other one equals or beats in both, at the best validation of the first."""
    values: dict[str, tuple[float, float]] = {}
    for run in own.trials:
        if (best := own.best(run)) is None or run.state not in ("done", "pruned"):
            continue
        until = [seconds for at, seconds in run.taken.items() if at <= best[1]]
        values[run.name] = best[0], sum(until) if second == "cost/seconds" else run.curve[best[1]][second]
    losses = {name: (-own.sign * one, -two if larger else two) for name, (one, two) in values.items()}

    def beaten(name: str) -> bool:
        mine = losses[name]
        others = ((other, theirs) for other, theirs in losses.items() if other != name)
        return any(
            theirs[0] <= mine[0] and theirs[1] <= mine[1] and (theirs != mine or other < name)
            for other, theirs in others
        )

    return {name: pair for name, pair in values.items() if not beaten(name)}


# Margins, data sets ----------------------------------------------------------------------------------------------


def equal_ps(pairs: Sequence[Pair], margin: float) -> list[float]:
    """Of each pair's two one-sided tests at -margin and margin, the larger p; paid and corrected as others are."""
    ps = []
    for pair in pairs:
        assert pair.verdict is not None
        beside = [Mean(pair.value - end, pair.verdict.parts).p / 2 for end in (-margin, margin)]
        ps.append(1.0 if abs(pair.value) >= margin else min(1.0, times_taken(pair.look) * max(beside)))
    return holm(ps)


@dataclass(frozen=True)
class OverSets:
    """A mean over data sets with random effects."""

    value: float
    error: float
    freedom: int

    @property
    def p(self) -> float:
        return beyond(self.value / self.error, self.freedom)

    def ends(self, level: float = LEVEL) -> Ends:
        half = quantile(self.freedom, level) * self.error
        return self.value - half, self.value + half


def over_sets(means: Sequence[Mean]) -> OverSets:
    """Each counts the same; the error is the larger of that by their spread and that by their own errors."""
    values, errors = [m.value for m in means], [sum(part for part, _ in m.parts) for m in means]
    variance = max(statistics.variance(values), statistics.fmean(errors)) / len(means)
    return OverSets(statistics.fmean(values), math.sqrt(variance), len(means) - 1)


# Importances -----------------------------------------------------------------------------------------------------


def main_effects(values_AB: Floats) -> tuple[float, float]:
    """Of a full grid of two settings: the shares of the variance of the means over the other one."""
    return tuple(float(values_AB.mean(axis=axis).var() / values_AB.var()) for axis in (1, 0))  # type: ignore[return-value]


# Forecasts --------------------------------------------------------------------------------------------------------

TOP, SHAPE = 4, -0.5


def chance_of_better(results: Floats, above: float, more: int, draws: int = 200_000) -> float:
    """The chance that the best of so many more results is better than a value: the best four's tail above the fifth is
    a generalized Pareto distribution of shape -0.5, whose scale and share four results tell roughly."""
    rng, ranked = np.random.default_rng(5), np.sort(results)[::-1]
    threshold = ranked[TOP]
    scale = (1 - SHAPE) * (ranked[:TOP].mean() - threshold) * TOP / rng.gamma(TOP, 1.0, draws)
    share = rng.beta(TOP + 1, len(ranked) - TOP, draws)
    tail = share * np.clip(1 + SHAPE * (above - threshold) / scale, 0, None) ** (-1 / SHAPE)
    return float((1 - (1 - tail) ** more).mean())


# Methods, whose searches were repeated ----------------------------------------------------------------------------


def between_searches(methods: Mapping[str, Sequence[Recount]], metric: str) -> list[tuple[str, str, Floats, Mean, int]]:
    """Each two methods, by the mean test of each search's winner: the differences, crossed over classes and searches
    where the tables of all runs were kept."""
    found = []
    for (one, mine), (other, theirs) in combinations(methods.items(), 2):
        means, tables = [], []
        for own in (mine, theirs):
            runs = [search.tests(search.ranked[0]) for search in own]
            means.append(np.array([statistics.fmean(run.test[metric] for run in of) for of in runs]))
            tables.append([search.cells(of, metric) for search, of in zip(own, runs, strict=True)])
        apart = means[0] - means[1]
        kept = [cells for of in tables for cells in of if cells is not None]
        one_query = max(search.one_query for search in (*mine, *theirs))
        if len(kept) < 2 * len(apart):
            found.append((one, other, apart, over_seeds(apart.tolist(), one_query), 0))
            continue
        values = np.stack([values.mean(axis=1) for values, _ in kept], axis=1)
        counts = np.stack([counts[:, 0] for _, counts in kept[: len(apart)]], axis=1)
        mean = crossed(values[:, : len(apart)] - values[:, len(apart) :], counts, one_query)
        found.append((one, other, apart, mean, len(values)))
    return found
