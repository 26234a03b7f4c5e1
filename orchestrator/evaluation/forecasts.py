"""What more training, and more trials, can be expected to bring; without numpy, since each look at a search asks it."""

import itertools
import math
import random
import statistics
from collections.abc import Sequence

from orchestrator.evaluation.rising import ROUNDING

SHORTEST = 4
"""A curve of fewer values has no shape."""
RATES = 24
"""So many rates of approach are tried."""
SLOWEST = 0.9
"""The slowest: after half of a training this share of what was left is still left. Slower ones are straight lines,
which say nothing of their end."""
TOP = 4
"""The tail of results is that of so many of them, the best."""
SHAPE = -0.5
"""Between results that chance spreads (0) and those around an optimum of two settings (-1)."""
DRAWS = 200
FAR, STEPS = 20, 40


def further_rise(values: Sequence[float], factor: float = 2.0) -> float:
    """By how much a curve of T values rises until it has `factor` times as many.

    The curve approaches its end at one rate, y(t) = a - b q^(2t / T), by least squares over t = 1 .. T; b is at least
    0, q at most SLOWEST. The rise is b (q^2 - q^(2 factor)); 0 for fewer than SHORTEST values.
    """
    count = len(values)
    if count < SHORTEST:
        return 0.0
    best = (math.inf, 0.0)
    for place in range(1, RATES + 1):
        q = SLOWEST * place / RATES
        remaining = [q ** (2 * t / count) for t in range(1, count + 1)]
        slope, level = statistics.linear_regression(remaining, values)
        b = max(0.0, -slope)
        level = level if b else statistics.fmean(values)
        error = sum((value - level + b * part) ** 2 for value, part in zip(values, remaining, strict=True))
        best = min(best, (error, b * (q**2 - q ** (2 * factor))))
    return best[1]


def beyond(places: Sequence[float], values: Sequence[float], by: float) -> float:
    """By how much results are expected to be better up to `by` beyond the end 1 of a range, 0 to 1, than inside it.

    The mean of what a line and a parabola through the results say, by least squares; a parabola only to its vertex.
    """
    line = max(0.0, by * statistics.linear_regression(places, values).slope)
    if len(set(places)) < 3:
        return line
    mean = statistics.fmean(places)
    centred = [place - mean for place in places]
    of_squares = statistics.linear_regression(centred, [x * x for x in centred])
    bend = [x * x - of_squares.intercept - of_squares.slope * x for x in centred]
    curvature = _product(bend, values) / max(ROUNDING, _product(bend, bend))
    slope = statistics.linear_regression(
        centred, [v - curvature * x * x for v, x in zip(values, centred, strict=True)]
    )[0]

    def height(place: float) -> float:
        return float(curvature * (place - mean) ** 2 + slope * (place - mean))

    vertex = mean - slope / (2 * curvature) if curvature < 0 else 1 + by
    parabola = max(0.0, height(min(1 + by, max(1.0, vertex))) - height(1.0))
    return (line + parabola) / 2


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


class Tail:
    """The upper tail of results, of which the next ones are further draws.

    Above the (TOP + 1)-th of n results, u, the excesses have a generalized Pareto distribution of shape SHAPE, which
    ends, as results around an optimum do. Its scale is the mean of the TOP excesses (1 - SHAPE) / g, and the share of
    results above u is h: g from a gamma distribution with mean 1 and shape TOP, h from beta(TOP + 1, n - TOP), since so
    few results tell both only roughly. The chance that the best of m more is above y is the mean over g and h of
    1 - (1 - h (1 + SHAPE (y - u) / scale)^(-1 / SHAPE))^m.

    Source: Coles, An Introduction to Statistical Modeling of Extreme Values, 2001, chapter 4.
    """

    def __init__(self, results: Sequence[float]) -> None:
        """Of more than TOP results; larger is better."""
        ranked = sorted(results, reverse=True)
        self.threshold = ranked[TOP]
        self.excess = statistics.fmean(ranked[:TOP]) - self.threshold
        draw = random.Random(0)
        self.drawn = [
            (TOP / draw.gammavariate(TOP, 1), draw.betavariate(TOP + 1, len(ranked) - TOP)) for _ in range(DRAWS)
        ]

    def chance(self, value: float, more: int) -> float:
        """The chance that the best of so many more results is above a value, which is above the threshold."""
        if self.excess <= ROUNDING:
            return 0.0
        relative = max(0.0, value - self.threshold) / (self.excess * (1 - SHAPE))
        below = [
            (1 - share * max(0.0, 1 + SHAPE * relative / scale) ** (-1 / SHAPE)) ** more for scale, share in self.drawn
        ]
        return 1 - statistics.fmean(below)

    def gain(self, best: float, more: int) -> float:
        """By how much the best of so many more results is above `best`, 0 where it is not: the integral of `chance`,
        over FAR mean excesses, by steps that grow."""
        ends = [FAR * self.excess * (place / STEPS) ** 2 for place in range(STEPS + 1)]
        return math.fsum((b - a) * self.chance(best + (a + b) / 2, more) for a, b in itertools.pairwise(ends))
