"""A second computation of what is said of a search, by other code: from its journal's lines and its kept tables alone.

Only numpy and the standard library: nothing here is the project's. Definitions: docs/results.md, docs/protocols.md,
docs/methods.md (metrics), benchmarks/verdicts.md. Suffixes of array names: C classes, S seeds.
"""

import csv
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ends = tuple[float, float]

LEVEL = 0.05
FEWEST_SEEDS, FEWEST_CLASSES = 3, 5


# Student's t ------------------------------------------------------------------------------------------------------

NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


def beyond(t: float, freedom: float) -> float:
    """P(|T| > t): with t = sqrt(f) tan a, the density is cos(a)^(f - 1), over its whole area."""
    start = math.atan(abs(t) / math.sqrt(freedom))
    end = min(math.pi / 2, start + 15 / math.sqrt(freedom))

    def area(low: float, high: float) -> float:
        at = (high + low) / 2 + (high - low) / 2 * NODES
        return float((high - low) / 2 * (WEIGHTS * np.cos(at) ** (freedom - 1)).sum())

    whole = math.sqrt(math.pi) * math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    return min(1.0, 2 * area(start, end) / whole)


def root(falls: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses zero, by bisection."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if falls(middle) > 0 else (low, middle)
    return (low + high) / 2


def quantile(freedom: float, level: float = LEVEL) -> float:
    """The t that |T| is above with probability `level`."""
    return math.tan(root(lambda a: beyond(math.tan(a), freedom) - level, 0.0, math.pi / 2))


# Estimates --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """A mean and the independent parts of its variance: variance, degrees of freedom."""

    value: float
    parts: Sequence[tuple[float, float]]

    def half(self, level: float = LEVEL) -> float:
        return math.sqrt(sum(quantile(freedom, level) ** 2 * variance for variance, freedom in self.parts))

    def at(self, level: float) -> Ends:
        """The interval of a difference, at a level."""
        return self.value - self.half(level), self.value + self.half(level)

    @property
    def ends(self) -> Ends:
        """Of a single difference."""
        return self.at(LEVEL)

    @property
    def share_ends(self) -> Ends:
        """Of a mean between 0 and 1: on the scale of log odds, whose slope is 1 / (m (1 - m))."""
        m = self.value
        half = self.half() / (m * (1 - m))
        low, high = (1 / (1 + (1 - m) / m * math.exp(sign * half)) for sign in (1, -1))
        return low, high

    @cached_property
    def p(self) -> float:
        """The level at which the interval ends at zero."""
        if not sum(variance for variance, _ in self.parts):
            return math.nan
        if len(self.parts) == 1:
            ((variance, freedom),) = self.parts
            return beyond(self.value / math.sqrt(variance), freedom)
        falls = root(lambda x: abs(self.value) - self.half(math.exp(-x)), 0.0, 27.0)
        return math.exp(-falls)


def leave_one_out(values_CS: Floats, counts_CS: Floats, axis: int) -> tuple[float, float]:
    """The jackknife's variance of the mean over queries without one class (axis 0) or seed (axis 1) at a time, and as
    many degrees of freedom as it has."""
    units = range(values_CS.shape[axis])

    def mean(rows: NDArray[np.bool_]) -> float:
        values, counts = values_CS.compress(rows, axis), counts_CS.compress(rows, axis)
        return float((values * counts).sum() / counts.sum())

    whole = mean(np.ones(len(units), bool))
    without = np.array([mean(np.arange(len(units)) != unit) for unit in units])
    share = counts_CS.sum(axis=1 - axis) / counts_CS.sum()
    weight = (share / (1 - share)) ** 2
    freedom = max(1.0, float(weight.sum() ** 2 / (weight**2).sum() - 1))
    return (len(units) - 1) / len(units) * float(((without - whole) ** 2).sum()), freedom


def over_classes(values_C: Floats, counts_C: Floats) -> Mean:
    """Of one training, over other classes of this kind."""
    mean = float(values_C @ counts_C / counts_C.sum())
    return Mean(mean, [leave_one_out(values_C[:, None], counts_C[:, None], 0)])


def crossed(values_CS: Floats, counts_CS: Floats, one_query: float = 0.0) -> Mean:
    """Over other classes and other seeds; a seed's part is at least that of one query."""
    by_class, (of_seeds, freedom) = (leave_one_out(values_CS, counts_CS, axis) for axis in (0, 1))
    mean = float((values_CS * counts_CS).sum() / counts_CS.sum())
    return Mean(mean, [by_class, (max(of_seeds, one_query**2 / values_CS.shape[1]), freedom)])


def interval_of(values: Sequence[float], one_query: float) -> dict[str, float]:
    """Student's, of a mean over seeds; they deviate by one query at least."""
    half = quantile(len(values) - 1) * max(statistics.stdev(values), one_query) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return {"mean": mean, "standard_deviation": statistics.stdev(values), "low": mean - half, "high": mean + half}


def over_seeds(values: Sequence[float], one_query: float = 0.0) -> Mean:
    """Student's: on these classes."""
    deviation = max(statistics.stdev(values), one_query)
    return Mean(statistics.fmean(values), [(deviation**2 / len(values), len(values) - 1)])


def drawn_again(values_CS: Floats, counts_CS: Floats, axis: int | None, draws: int = 4000) -> float:
    """The bootstrap's variance of the mean over queries: classes (axis 0), seeds (1), or both (None) drawn again, each
    with all its queries; times n / (n - 1) where one of them is drawn, as a variance of n values has it."""
    rng, (classes, seeds) = np.random.default_rng(0), values_CS.shape
    rows = rng.multinomial(classes, np.full(classes, 1 / classes), draws) if axis != 1 else np.ones((draws, classes))
    columns = rng.multinomial(seeds, np.full(seeds, 1 / seeds), draws) if axis != 0 else np.ones((draws, seeds))
    sums, totals = (np.einsum("bc,cs,bs->b", rows, of, columns) for of in (values_CS * counts_CS, counts_CS))
    units = {0: classes, 1: seeds}.get(-1 if axis is None else axis)
    return float((sums / totals).var()) * (1.0 if units is None else units / (units - 1))


def holm(ps: Sequence[float]) -> list[float]:
    """Each p times the number of those that are not smaller, never less than a smaller one's."""
    adjusted = [math.nan] * len(ps)
    tested = [place for place, p in enumerate(ps) if not math.isnan(p)]
    largest = 0.0
    for rank, place in enumerate(sorted(tested, key=lambda place: ps[place])):
        largest = max(largest, min(1.0, ps[place] * (len(tested) - rank)))
        adjusted[place] = largest
    return adjusted


def times_taken(look: int) -> float:
    """How many times p is taken at this look: 1.4, 3.6, 8.9."""
    return 1 / (0.7 * 0.4 ** (look - 1))


# A search ---------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A trial or a final run."""

    name: str
    kind: str
    source: str | None
    seed: int
    point: Mapping[str, Any]
    state: str = "running"
    curve: dict[int, Mapping[str, float]] = field(default_factory=dict)
    """Metrics by validation."""
    seconds: float = 0.0
    taken: dict[int, float] = field(default_factory=dict)
    """The seconds of each validation."""
    test: dict[str, float] = field(default_factory=dict)
    untrained: list[Mapping[str, Any]] = field(default_factory=list)
    """The scores of untrained networks that it measured."""

    @property
    def epochs(self) -> float:
        return max((metrics.get("epoch", 0.0) for metrics in self.curve.values()), default=0.0)


@dataclass(frozen=True)
class Pair:
    """How much larger the tests of `one` are than those of `other`."""

    one: str
    other: str
    seeds: int
    value: float
    fixed: Mean | None
    crossed: Mean | None
    classes: int
    look: int
    adjusted: float = math.nan
    fixed_adjusted: float = math.nan
    ends: tuple[float | None, float | None] = (None, None)
    fixed_ends: tuple[float | None, float | None] = (None, None)

    @property
    def verdict(self) -> Mean | None:
        return self.fixed if self.crossed is None else self.crossed

    @property
    def real(self) -> bool:
        return self.adjusted < LEVEL


class Recount:
    """A search, from the lines of its journal and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs, self.looks, tested = folder, dict[str, Run](), 0, 0
        for line in (folder / "journal.jsonl").read_text().splitlines():
            event = json.loads(line)
            kind, run = event["event"], self.runs.get(event.get("trial_id", ""))
            if kind == "search_started":
                self.metric, self.sign = event["objective"]["metric"], 1 if event["objective"]["mode"] == "max" else -1
                self.sizes = event.get("sizes") or {}
            elif kind == "search_ended":
                count = sum(bool(one.test) for one in self.runs.values() if one.kind == "final")
                self.state, self.looks, tested = event["state"], self.looks + (count > tested), max(count, tested)
            elif kind == "trial_started" and run is None:
                point = {key: value for key, value in event["params"].items() if key != "seed"}
                seed = event["config"].get("seed", 0)
                name, source = event["trial_id"], event.get("source")
                self.runs[name] = Run(name, event["kind"], source, seed, point)
            elif run is None:
                continue
            elif kind == "trial_started":
                run.state = "running"
            elif kind == "validation" and event["validation"] not in run.curve:
                run.curve[event["validation"]] = event["metrics"]
                run.seconds += event["seconds"]
                run.taken[event["validation"]] = event["seconds"]
            elif kind == "result":
                run.test |= {k.partition("/")[2]: v for k, v in event["metrics"].items() if k.startswith("test/")}
                run.untrained += [event["untrained"]] if event.get("untrained") else []
            elif kind == "trial_ended":
                run.state = event["state"]

    # Which trial

    @property
    def trials(self) -> list[Run]:
        return [run for run in self.runs.values() if run.kind == "trial"]

    def best(self, run: Run) -> tuple[float, int] | None:
        """The best value of the objective, and its validation: the first of equals."""
        values = [(metrics[self.metric], at) for at, metrics in run.curve.items() if self.metric in metrics]
        return max(values, key=lambda one: (self.sign * one[0], -one[1]), default=None)

    @property
    def ranked(self) -> list[Run]:
        """Trials that may win, best first."""
        ended = [(self.best(run), run) for run in self.trials if run.state in ("done", "pruned")]
        known = [(best[0], run) for best, run in ended if best is not None]
        return [run for _, run in sorted(known, key=lambda one: -self.sign * one[0])]

    def finals(self, trial: Run) -> list[Run]:
        return [run for run in self.runs.values() if run.source == trial.name and run.kind == "final"]

    def tests(self, trial: Run) -> list[Run]:
        """A trial's own tests."""
        return [run for run in self.finals(trial) if run.test]

    def leader(self) -> Run:
        """The one chosen on held-out classes, unless the tests favour another one beyond chance."""
        chosen, sign = self.ranked[0], self.sign if self.metric.startswith("val/") else 1
        ahead = [(pair.value, pair.one) for pair in self.pairs if pair.real and pair.other == chosen.name]
        ahead += [(-pair.value, pair.other) for pair in self.pairs if pair.real and pair.one == chosen.name]
        gain, name = max(((sign * value, name) for value, name in ahead), default=(0.0, chosen.name))
        return self.runs[name if gain > 0 else chosen.name]

    # What it measured

    @property
    def goal(self) -> str:
        """By which metric tests are compared."""
        return self.metric.removeprefix("val/") if self.metric.startswith("val/") else "map_at_r"

    @property
    def one_query(self) -> float:
        return float((self.sizes.get("test") or {}).get("one_query", 0.0))

    def table(self, run: Run) -> dict[str, dict[str, float]]:
        """The kept table of a run's classes, by label; over folds the mean of the models' tables; empty where none was
        kept."""
        place = self.folder / "trials" / run.name
        numbers = ("queries", "recall_at_1", "map_at_r", "r_precision")
        tables = []
        for path in sorted(place.glob("insight/classes.csv")) or sorted(place.glob("fold-*/insight/classes.csv")):
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            tables.append({row["label"]: {key: float(row[key]) for key in numbers if row.get(key)} for row in rows})
        if len(tables) < 2:
            return tables[0] if tables else {}
        first = tables[0]
        return {
            label: {key: statistics.fmean(table[label][key] for table in tables) for key in first[label]}
            for label in first
        }

    def cells(self, runs: Sequence[Run], metric: str) -> tuple[Floats, Floats] | None:
        """Means and numbers of queries (C, S) of some runs' classes; None where a table is missing."""
        tables = [self.table(run) for run in runs]
        if not all(tables):
            return None
        labels = sorted({label for table in tables for label in table})
        values, counts = (
            np.array([[table.get(label, {}).get(key, 0.0) for table in tables] for label in labels])
            for key in (metric, "queries")
        )
        return values, counts

    @cached_property
    def pairs(self) -> list[Pair]:
        """Each two of the trials with final runs, in the order of the leaderboard."""
        confirmed = {run.name: (self, self.tests(run)) for run in self.ranked if self.tests(run)}
        return compared(confirmed, self.goal, self.one_query)

    def gain(self, run: Run, score: Mapping[str, float], metric: str) -> tuple[Mean, int]:
        """A run over its untrained network, whose means by class these are: paired by class, and how many went up."""
        table = self.table(run)
        apart = np.array([table[label][metric] - score[label] for label in table])
        return over_classes(apart, np.array([row["queries"] for row in table.values()])), int((apart > 0).sum())

    def excess(self, draws: int = 20_000) -> tuple[float, float]:
        """How much too high the best value is, a fifth of the classes left out again and again; and the deviation of
        one draw, which says how far another 400 of them may be off."""
        tables = [self.table(run) for run in self.ranked]
        values = np.array([[table[label][self.goal] for table in tables] for label in tables[0]])
        counts = np.array([row["queries"] for row in tables[0].values()])
        values, rng = values - values.mean(axis=1, keepdims=True), np.random.default_rng(1)
        classes = len(counts)
        left = max(1, round(classes / 5))
        lost = []
        for _ in range(draws):
            out = np.zeros(classes, bool)
            out[rng.permutation(classes)[:left]] = True
            kept = counts[~out] @ values[~out] / counts[~out].sum()
            lost.append(kept.max() - counts[out] @ values[out, kept.argmax()] / counts[out].sum())
        scale = math.sqrt((classes - left) / classes)
        return max(0.0, scale * statistics.fmean(lost)), scale * statistics.stdev(lost)


def compared(
    groups: Mapping[str, tuple[Recount, Sequence[Run]]], metric: str, one_query: float, searches: bool = False
) -> list[Pair]:
    """Each two of the groups by the tests over their common seeds: over classes and seeds where both kept the tables of
    their classes, corrected by Holm's method, and paid for each look."""
    found = []
    for (one, (first, mine)), (other, (second, theirs)) in combinations(groups.items(), 2):
        left, right = ({run.seed: run for run in runs} for runs in (mine, theirs))
        seeds = sorted(left.keys() & right.keys())
        if not seeds:
            continue
        apart = [left[seed].test[metric] - right[seed].test[metric] for seed in seeds]
        look = max(first.looks, second.looks, 1)
        fixed = both = None
        classes = 0
        if len(seeds) >= FEWEST_SEEDS:
            fixed = over_seeds(apart, one_query)
            tables = [of.cells([by[s] for s in seeds], metric) for of, by in ((first, left), (second, right))]
            if tables[0] is not None and tables[1] is not None:
                both, classes = crossed(tables[0][0] - tables[1][0], tables[0][1], one_query), len(tables[0][0])
        found.append(Pair(one, other, len(seeds), statistics.fmean(apart), fixed, both, classes, look))
    return list(corrected(found))


def corrected(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """With the adjusted p of both verdicts, and their intervals at 5% divided by how many times p is taken; where it
    becomes 1, as often as there are comparisons."""

    def paid(pair: Pair, mean: Mean | None) -> float:
        p = math.nan if mean is None else mean.p
        return p if math.isnan(p) else min(1.0, times_taken(pair.look) * p)

    adjusted = holm([paid(pair, pair.verdict) for pair in pairs])
    fixed = holm([paid(pair, pair.fixed) for pair in pairs])

    def ends(pair: Pair, mean: Mean | None, p: float, all_p: Sequence[float]) -> tuple[float | None, float | None]:
        if mean is None:
            return None, None
        most = sum(not math.isnan(one) for one in all_p) * times_taken(pair.look)
        return mean.at(LEVEL / (p / mean.p if p < 1 else most))

    for pair, p, q in zip(pairs, adjusted, fixed, strict=True):
        both = {"ends": ends(pair, pair.verdict, p, adjusted), "fixed_ends": ends(pair, pair.fixed, q, fixed)}
        yield Pair(**{**vars(pair), "adjusted": p, "fixed_adjusted": q, **both})
