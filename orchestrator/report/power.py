"""How many seeds a comparison needs: a forecast, and how reliable it is."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from orchestrator.evaluation.claims import SIGNIFICANT
from orchestrator.report.significance import Difference

POWER = 0.8
"""The chance to find an existing difference with the forecast number of seeds."""
SEEDS_TO_FORECAST = 4
"""With fewer the deviation is a guess: with three, its 95% interval spans a factor of 12."""
MAX_SEEDS = 1000
QUANTILES = 1000


@dataclass(frozen=True)
class Forecast:
    """Seeds that each of two points needs; None for more than MAX_SEEDS."""

    seeds: int | None
    low: int | None
    high: int | None
    """For the ends of the 95% interval of the deviation."""
    classes_decide: bool = False
    """Whether no number of seeds would do, because the classes differ too much."""

    @property
    def text(self) -> str:
        """`about 12 seeds (6 to 41, because the deviation is not known better)`"""
        if self.classes_decide:
            return "more test classes: these differ too much for any number of seeds"
        numbers = [f"more than {MAX_SEEDS:,}" if n is None else str(n) for n in (self.seeds, self.low, self.high)]
        about = "" if self.seeds is None else "about "
        return f"{about}{numbers[0]} seeds ({numbers[1]} to {numbers[2]}, because the deviation is not known better)"


def power(seeds: int, effect: float, comparisons: float) -> float:
    """The chance that a paired t-test finds a difference of `effect` standard deviations of the pairs' differences,
    at the level that Holm's method requires of the first of so many comparisons: it requires no more of any other.

    The mean over S = sqrt(chi squared(n - 1) / (n - 1)) of P(|Z + sqrt(n) effect| > S t), Z standard normal and
    t the 1 - 0.05 / (2 m) point of Student's t with n - 1 degrees of freedom.
    """
    import numpy as np
    from scipy.stats import chi2, norm, t

    freedom, shift = seeds - 1, math.sqrt(seeds) * effect
    bound = float(t.ppf(1 - SIGNIFICANT / (2 * comparisons), freedom))
    # scipy's noncentral t is NaN far out; this is right everywhere, to four digits
    bounds = bound * np.sqrt(chi2.ppf((np.arange(QUANTILES) + 0.5) / QUANTILES, freedom) / freedom)
    return float(np.mean(norm.sf(bounds - shift) + norm.cdf(-bounds - shift)))


def seeds_needed(difference: Difference, comparisons: int) -> Forecast | None:
    """How many seeds find a difference as large as the observed one with probability POWER, among so many comparisons,
    at the level of the next look (`verdicts.paid`) where runs are continued.

    The deviation sd of k differences is itself estimated: its 95% interval is sd sqrt((k - 1) / c) with c the 97.5% and
    the 2.5% point of chi squared with k - 1 degrees of freedom. None with fewer than SEEDS_TO_FORECAST seeds, without
    a difference, or where it does not vary. Where the verdict is over classes too, seeds lower their part of the
    variance only.
    """
    from scipy.stats import chi2

    from orchestrator.evaluation.verdicts import share_of_look

    spread = 0.0 if difference.interval is None else difference.interval.standard_deviation
    if difference.seeds < SEEDS_TO_FORECAST or not difference.mean or not spread:
        return None
    count = comparisons / share_of_look(difference.look + 1) if difference.look else comparisons
    freedom = difference.seeds - 1
    scales = [1.0, *(math.sqrt(freedom / float(chi2.ppf(point, freedom))) for point in (0.975, 0.025))]
    about, low, high = (
        _fewest(partial(_power_of, difference, scale=scale, comparisons=count), MAX_SEEDS) for scale in scales
    )
    decide = difference.crossed is not None and low is None
    return Forecast(about, low, high, classes_decide=decide)


def _power_of(difference: Difference, seeds: int, *, scale: float, comparisons: float) -> float:
    """The chance of such a verdict with so many seeds, if their deviation is `scale` times the observed one."""
    if difference.crossed is None:
        assert difference.interval is not None
        return power(seeds, abs(difference.mean) / (scale * difference.interval.standard_deviation), comparisons)
    from scipy.stats import norm

    from orchestrator.evaluation.verdicts import Estimate

    (of_classes, freedom), (of_seeds, _) = difference.crossed.parts
    part = of_seeds * scale**2 * difference.seeds / seeds
    estimate = Estimate(difference.mean, ((of_classes, freedom), (part, seeds - 1.0)))
    half = estimate.half(1 - SIGNIFICANT / comparisons)
    return float(norm.sf((half - abs(difference.mean)) / estimate.error))


def _fewest(chance: Callable[[int], float], most: int) -> int | None:
    """The smallest number of seeds with that power, by bisection: more seeds never have less."""
    low, high = 2, most
    if chance(high) < POWER:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= POWER else (middle + 1, high)
    return low
