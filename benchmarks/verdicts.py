"""What verdicts claim, and what they keep: error, coverage and power by simulation, where the truth is known.

    python benchmarks/verdicts.py [table] [--searches 4000] [--only pair grid ...]
    python benchmarks/verdicts.py looks
    python benchmarks/verdicts.py excess
    python benchmarks/verdicts.py margins
    python benchmarks/verdicts.py seeds

Each kind of verdict is a function of the generator, the numbers of classes and of seeds, and `shift`, the true
difference; it makes class tables of many searches and returns what the product's functions say of them: whether a
difference is claimed, and whether the 95% interval holds the truth. The worst of several worlds is printed: class
deviations of a difference of 0.02 to 0.08, seed deviations of 0.002 to 0.03, 20 queries of a class, whose recall is a
count; normal and skewed classes. Power is for a difference of 0.04 in the middle world.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.evaluation.claims import CONFIDENCE, SIGNIFICANT
from orchestrator.evaluation.excess import expected_excess
from orchestrator.evaluation.intervals import of_class_means
from orchestrator.evaluation.verdicts import (
    Estimate,
    Parts,
    crossed_estimate,
    crossed_of,
    half_width,
    holm,
    over_seeds,
    over_seeds_of,
    p_equal,
    paid,
    summarise,
    two_sided,
)
from orchestrator.report.power import POWER, seeds_needed
from orchestrator.report.significance import Difference
from orchestrator.storage.leaderboard import Interval

Floats = NDArray[np.float64]
Rng = np.random.Generator
QUERIES = 20
BLOCK = 500
EFFECT = 0.04
CLASSES, SEEDS = (18, 60, 100), (3, 5, 10)


class World(NamedTuple):
    """Deviations of a difference of two methods, over classes, over seeds, and in each cell."""

    of_class: float
    of_seed: float
    of_cell: float
    skewed: bool = False


MIDDLE = World(0.05, 0.004, 0.03)
WORLDS = (
    World(0.02, 0.004, 0.03),
    MIDDLE,
    World(0.08, 0.002, 0.03),
    World(0.03, 0.01, 0.02),
    World(0.03, 0.03, 0.02),
    World(0.05, 0.004, 0.03, True),
)


class Search(NamedTuple):
    """Deviations of the configurations that searches for one method find: of their mean, and on a class."""

    of_search: float
    of_cell: float


class Outcome(NamedTuple):
    """Of R simulated verdicts; None for what they do not say."""

    claimed: NDArray[np.bool_]
    held: NDArray[np.bool_] | None = None


Kind = Callable[[Rng, int, int, World, float, int], Outcome]


def tables(rng: Rng, shape: tuple[int, int, int], world: World, arms: int, shift: float) -> Floats:
    """Recalls (arms, R, C, S) of R searches' methods, alike over the population of classes; the first is better by
    `shift`."""
    searches, classes, seeds = shape
    half = 1 / np.sqrt(2)  # so that a difference of two has the world's deviations
    size = (arms, searches, classes, 1)
    of_class = rng.standard_exponential(size) - 1 if world.skewed else rng.standard_normal(size)
    values = rng.normal(0.5, 0.1, (1, searches, classes, 1)) + half * (
        world.of_class * of_class
        + world.of_seed * rng.standard_normal((arms, searches, 1, seeds))
        + world.of_cell * rng.standard_normal((arms, searches, classes, seeds))
    )
    values[0] += shift
    # most queries have the same result with another method or seed: what is left is the rounding to whole queries
    return np.asarray(np.round(values * QUERIES + rng.uniform(-0.5, 0.5, values.shape)) / QUERIES)


def judged(estimates: tuple[Floats, Parts], truth: float) -> tuple[Floats, NDArray[np.bool_]]:
    """p of R tests, and whether their 95% intervals hold the truth."""
    mean, parts = estimates
    return two_sided(mean, parts), np.abs(mean - truth) <= half_width(parts, CONFIDENCE)


def _crossed(apart: Floats) -> tuple[Floats, Parts]:
    classes, seeds = apart.shape[-2:]
    return crossed_of(apart, np.full((classes, seeds), float(QUERIES)), 1 / (QUERIES * classes))


def pair(rng: Rng, classes: int, seeds: int, world: World, shift: float, searches: int) -> Outcome:
    """Two configurations, over other classes and other seeds."""
    one, other = tables(rng, (searches, classes, seeds), world, 2, shift)
    p, held = judged(_crossed(one - other), shift)
    return Outcome(p < SIGNIFICANT, held)


def three(rng: Rng, classes: int, seeds: int, world: World, shift: float, searches: int) -> Outcome:
    """Any of the three pairs of three, by Holm's method; for the power, the best against the second."""
    values = tables(rng, (searches, classes, seeds), world, 3, shift)
    ps = np.array([judged(_crossed(values[a] - values[b]), 0.0)[0] for a, b in combinations(range(3), 2)])
    adjusted = np.array([holm(column.tolist()) for column in ps.T])
    return Outcome((adjusted[:, 0] if shift else adjusted.min(axis=1)) < SIGNIFICANT)


def grid(rng: Rng, classes: int, seeds: int, world: World, shift: float, searches: int) -> Outcome:
    """The best of a grid of four by the same values, against the others: Bonferroni's correction for all six pairs."""
    values = tables(rng, (searches, classes, seeds), world, 4, shift)
    order = np.argsort(-values.mean(axis=(2, 3)), axis=0)
    values = np.take_along_axis(values, order[:, :, None, None], axis=0)
    ps = np.array([6 * judged(_crossed(values[0] - values[k]), 0.0)[0] for k in range(1, 4)])
    return Outcome(ps.min(axis=0) < SIGNIFICANT)


def fixed(rng: Rng, classes: int, seeds: int, world: World, shift: float, searches: int) -> Outcome:
    """Two configurations on the classes that were tested, over other seeds: their true difference is that of these."""
    deviation = float(np.hypot(world.of_seed, world.of_cell / np.sqrt(classes)))
    queries = QUERIES * classes
    apart = np.round(rng.normal(shift, deviation, (searches, seeds)) * queries) / queries
    p, held = judged(over_seeds_of(apart, 1 / queries), shift)
    return Outcome(p < SIGNIFICANT, held)


def counts(rng: Rng, classes: int, seeds: int, world: World, shift: float, searches: int) -> Outcome:
    """The same on 60 queries, of which a seed moves one or none: differences that are often equal."""
    deviation = rng.choice([0.4, 0.7, 1.0, 2.0], (searches, 1))
    apart = np.round(60 * shift + deviation * rng.standard_normal((searches, seeds))) / 60
    p, held = judged(over_seeds_of(apart, 1 / 60), shift)
    return Outcome(p < SIGNIFICANT, held)


def searched(rng: Rng, shape: tuple[int, int, int], world: World, shift: float, trainings: int) -> Floats:
    """Differences (R, C, N, S) of two methods, searched N times each, each winner trained S times: a configuration
    deviates from its method by 0.01, and by 0.03 on a class."""
    searches, classes, times = shape
    found = Search(0.01, 0.03)
    apart = shift + world.of_class * rng.standard_normal((searches, classes, 1, 1))
    apart = apart + found.of_search * np.sqrt(2) * rng.standard_normal((searches, 1, times, 1))
    apart = apart + found.of_cell * np.sqrt(2) * rng.standard_normal((searches, classes, times, 1))
    apart = apart + world.of_seed * rng.standard_normal((searches, 1, times, trainings))
    return np.asarray(apart + world.of_cell * rng.standard_normal((searches, classes, times, trainings)))


def methods(rng: Rng, classes: int, seeds: int, world: World, shift: float, searches: int) -> Outcome:
    """Two methods whose searches were repeated so many times, each winner trained with five seeds."""
    p, held = judged(_crossed(searched(rng, (searches, classes, seeds), world, shift, 5).mean(axis=3)), shift)
    return Outcome(p < SIGNIFICANT, held)


def one_search(rng: Rng, classes: int, seeds: int, world: World, shift: float, searches: int) -> Outcome:
    """For comparison: one search of each, its winner's seeds, said of the methods."""
    p, held = judged(_crossed(searched(rng, (searches, classes, 1), world, shift, seeds)[:, :, 0]), shift)
    return Outcome(p < SIGNIFICANT, held)


def as_before(rng: Rng, classes: int, seeds: int, world: World, shift: float, searches: int) -> Outcome:
    """For comparison: the t-test over seeds, said of unseen classes."""
    one, other = tables(rng, (searches, classes, seeds), world, 2, shift)
    p, held = judged(over_seeds_of((one - other).mean(axis=1)), shift)
    return Outcome(p < SIGNIFICANT, held)


def bootstrap(rng: Rng, classes: int, seeds: int, world: World, shift: float, searches: int) -> Outcome:
    """For comparison: percentiles of Owen's bootstrap, classes and seeds drawn independently."""
    one, other = tables(rng, (searches, classes, seeds), world, 2, shift)
    rows = rng.multinomial(classes, np.full(classes, 1 / classes), 400) / classes
    columns = rng.multinomial(seeds, np.full(seeds, 1 / seeds), 400) / seeds
    low, high = np.quantile(((rows @ (one - other)) * columns).sum(axis=2), [0.025, 0.975], axis=1)
    return Outcome((low > 0) | (high < 0), (low <= shift) & (shift <= high))


def one_test(rng: Rng, classes: int, seeds: int, world: World, shift: float, searches: int) -> Outcome:
    """The interval of one test over classes, of equal sizes."""
    odds = 0.4 + rng.standard_normal((classes, searches))
    means = rng.binomial(QUERIES, 1 / (1 + np.exp(-odds))) / QUERIES
    ends = np.array(of_class_means(means, np.full(classes, float(QUERIES))))
    return Outcome(np.zeros(searches, bool), (ends[:, 0] <= TRUTHS[0]) & (TRUTHS[0] <= ends[:, 1]))


def unequal(rng: Rng, classes: int, seeds: int, world: World, shift: float, searches: int) -> Outcome:
    """The same where large classes are the hard ones: lognormal sizes, a correlation of -0.7 with the log odds."""
    drawn = (hard_when_large(rng, classes) for _ in range(searches))
    ends = np.array([of_class_means(means[:, None], sizes)[0] for means, sizes in drawn])
    return Outcome(np.zeros(searches, bool), (ends[:, 0] <= TRUTHS[1]) & (TRUTHS[1] <= ends[:, 1]))


def hard_when_large(rng: Rng, classes: int) -> tuple[Floats, Floats]:
    """Means and sizes of classes."""
    z = rng.standard_normal(classes)
    sizes = np.maximum(2, np.round(20 * np.exp(z)))
    odds = 0.3 - 0.7 * z + np.sqrt(0.51) * rng.standard_normal(classes)
    return rng.binomial(sizes.astype(int), 1 / (1 + np.exp(-odds))) / sizes, sizes


def _truths() -> tuple[float, float]:
    rng = np.random.default_rng(0)
    equal = float((1 / (1 + np.exp(-(0.4 + rng.standard_normal(2_000_000))))).mean())
    means, sizes = hard_when_large(rng, 2_000_000)
    return equal, float((means * sizes).sum() / sizes.sum())


TRUTHS = _truths()
KINDS: dict[str, tuple[Kind, str]] = {
    "pair": (pair, "two configurations, classes and seeds"),
    "three": (three, "three configurations, Holm"),
    "grid": (grid, "best of a grid of four"),
    "fixed": (fixed, "two configurations, these classes"),
    "counts": (counts, "the same, 60 queries"),
    "methods": (methods, "two methods, searches repeated"),
    "one_test": (one_test, "one test over classes"),
    "unequal": (unequal, "one test, large classes hard"),
    "one_search": (one_search, "*for comparison:* two methods from one search of each"),
    "as_before": (as_before, "*for comparison:* t-test over seeds"),
    "bootstrap": (bootstrap, "*for comparison:* bootstrap's percentiles"),
}
INTERVALS_ONLY = ("one_test", "unequal")


SCHEDULES: tuple[tuple[int, ...], ...] = (
    (5,),
    (5, 10),
    (5, 30),
    (5, 10, 20, 30),
    (3, 5, 10, 20, 60),
    tuple(range(3, 31)),
)


def looks(searches: int) -> None:
    """How often a difference that is none is found at any of several looks at a growing number of seeds."""
    draws = np.random.default_rng(0).standard_normal((searches, 60))
    print("| looked at after | without a price | paid for |\n| --- | ---: | ---: |")
    for schedule in SCHEDULES:
        found = np.zeros((2, searches), bool)
        for look, seeds in enumerate(schedule, start=1):
            p = two_sided(*over_seeds_of(draws[:, :seeds]))
            found |= np.array([p, p * paid(1e-9, look) / 1e-9]) < SIGNIFICANT
        print(f"| {', '.join(map(str, schedule))} seeds | {found[0].mean():.1%} | {found[1].mean():.1%} |")


def excess(searches: int) -> None:
    """The best of several trials on the classes that chose it: how much too high it is, and what is said of it."""
    print("| classes | trials | they deviate by | too high by | said, mean | said, deviation |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    rng = np.random.default_rng(0)
    for deviation in (0.0, 0.02, 0.05):
        for classes in (6, 18, 60):
            for trials in (8, 30, 100):
                true, told = [], []
                for _ in range(searches):
                    own = rng.normal(0.5, deviation, trials)
                    of_class = rng.normal(0, 0.1, (classes, 1))
                    values = own + of_class + rng.normal(0, 0.08, (classes, trials))
                    means = values.mean(axis=0)
                    best = int(means.argmax())
                    true.append(means[best] - own[best] - of_class.mean())
                    found = expected_excess(values, np.full(classes, float(QUERIES)))
                    told.append(0.0 if found is None else found.value)
                cells = (np.mean(true), np.mean(told), np.std(told))
                shown = " | ".join(f"{cell:.4f}" for cell in cells)
                print(f"| {classes} | {trials} | {deviation:g} | {shown} |", flush=True)


def margins(searches: int) -> None:
    """Equality within a margin of 0.02 over five seeds, and the mean over data sets whose differences vary."""
    rng = np.random.default_rng(0)
    print("| true difference | deviation over seeds | called equal within 0.02 |\n| ---: | ---: | ---: |")
    for truth in (0.02, 0.01, 0.0):
        for deviation in (0.004, 0.01, 0.02):
            values = truth + deviation * rng.standard_normal((searches, 5))
            found = [over_seeds(row) for row in values]
            equal = np.mean([one is not None and p_equal(one, 0.02) < SIGNIFICANT for one in found])
            print(f"| {truth:g} | {deviation:g} | {equal:.1%} |", flush=True)
    print("\n| data sets | they deviate by | covered by 95%, random effects | fixed effect |")
    print("| ---: | ---: | ---: | ---: |")
    for count in (2, 3, 5, 10):
        for deviation in (0.0, 0.01, 0.03):
            held = np.zeros(2)
            for _ in range(searches // 2):
                errors = rng.uniform(0.004, 0.02, count)
                values = 0.02 + deviation * rng.standard_normal(count) + errors * rng.standard_normal(count)
                pairs = zip(values.tolist(), errors.tolist(), strict=True)
                found_ = summarise([Estimate(value, ((error**2, 60.0),)) for value, error in pairs])
                weights = 1 / errors**2
                plain = abs((weights * values).sum() / weights.sum() - 0.02) <= 1.96 / np.sqrt(weights.sum())
                held += (found_ is not None and abs(found_.estimate.mean - 0.02) <= found_.estimate.half(), plain)
            both, fixed_ = 2 * held / searches
            print(f"| {count} | {deviation:g} | {both:.1%} | {fixed_:.1%} |", flush=True)


MOST = 40
"""Seeds up to which the true power is simulated."""
ASKED = (
    (18, 0.06, MIDDLE),
    (60, 0.02, MIDDLE),
    (60, 0.02, World(0.03, 0.01, 0.02)),
    (60, 0.02, World(0.03, 0.03, 0.02)),
)


def seeds(searches: int) -> None:
    """The seeds that a pilot of five asks for to find a difference, and the power that they have in truth."""
    print("| classes | difference | deviations: class, seed, cell | needed in truth | asked for: median ", end="")
    print("| 10% to 90% | more classes asked for | power of what is asked for |")
    print("| ---: | ---: | --- | ---: | ---: | --- | ---: | ---: |")
    for classes, shift, world in ASKED:
        curve = {count: rates(pair, classes, count, world, shift, searches)[0] for count in range(3, MOST + 1)}
        enough = next((count for count, chance in curve.items() if chance >= POWER), None)
        rng, asked_for, more = np.random.default_rng(1), [], 0
        for _ in range(searches // 5):
            one, other = tables(rng, (1, classes, 5), world, 2, shift)
            apart = (one - other)[0]
            found = crossed_estimate(apart, np.full(apart.shape, float(QUERIES)))
            fixed_ = over_seeds(apart.mean(axis=0))
            if found is None or fixed_ is None:
                continue
            exact = replace(found, mean=shift)  # what is asked is how many seeds find the true difference
            spread = Interval.of(apart.mean(axis=0).tolist())
            wanted = seeds_needed(Difference("a", "b", 5, shift, spread, fixed_, exact, classes), 1)
            more += wanted is None or wanted.seeds is None
            asked_for += [min(max(3, wanted.seeds), MOST)] if wanted is not None and wanted.seeds is not None else []
        low, middle, high = np.quantile(asked_for, [0.1, 0.5, 0.9]) if asked_for else (np.nan, np.nan, np.nan)
        kept = np.mean([curve[count] for count in asked_for]) if asked_for else np.nan
        of = ", ".join(f"{part:g}" for part in world[:3])
        print(f"| {classes} | {shift:g} | {of} | {enough or f'more than {MOST}'} | {middle:.0f} ", end="")
        print(f"| {low:.0f} to {high:.0f} | {more / (searches // 5):.0%} | {kept:.0%} |", flush=True)


def rates(
    kind: Kind, classes: int, seeds: int, world: World, shift: float, searches: int
) -> tuple[float, float | None]:
    """The share of searches in which a difference was claimed, and in which the interval held the truth."""
    rng = np.random.default_rng([classes, seeds, searches])
    blocks = [kind(rng, classes, seeds, world, shift, min(BLOCK, searches)) for _ in range(-(-searches // BLOCK))]
    claimed = np.concatenate([block.claimed for block in blocks])
    held = [block.held for block in blocks if block.held is not None]
    return float(claimed.mean()), float(np.concatenate(held).mean()) if held else None


def table(searches: int, only: list[str]) -> None:
    """One line for each kind, number of classes and number of seeds."""
    print(
        "| verdict | classes | seeds | error claimed | simulated, worst | coverage claimed | simulated, worst | power |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, (kind, what) in KINDS.items():
        if only and name not in only:
            continue
        for classes in CLASSES:
            for seeds in SEEDS if name not in INTERVALS_ONLY else (1,):
                worlds = WORLDS if name not in (*INTERVALS_ONLY, "counts") else (MIDDLE,)
                found = [rates(kind, classes, seeds, world, 0.0, searches) for world in worlds]
                error = "" if name in INTERVALS_ONLY else f"{max(claimed for claimed, _ in found):.1%}"
                held = [rate for _, rate in found if rate is not None]
                power = ""
                if error:
                    power = f"{rates(kind, classes, seeds, MIDDLE, EFFECT, searches // 2)[0]:.0%}"
                cells = [what, classes, seeds, "5%" if error else "", error, "95%" if held else ""]
                cells += [f"{min(held):.1%}" if held else "", power]
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("table", "looks", "excess", "margins", "seeds"), default="table")
    parser.add_argument("--searches", type=int, default=4000)
    parser.add_argument("--only", nargs="*", default=[], choices=list(KINDS))
    asked = parser.parse_args()
    if asked.what == "looks":
        looks(25 * asked.searches)
    elif asked.what == "excess":
        excess(asked.searches // 4)
    elif asked.what == "seeds":
        seeds(asked.searches)
    elif asked.what == "margins":
        margins(asked.searches)
    else:
        table(asked.searches, asked.only)
