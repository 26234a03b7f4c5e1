"""Intervals over classes and seeds, and Holm's correction, computed slowly and obviously."""

import itertools
import math
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import t


def half_width(parts: list[tuple[float, int]], confidence: float) -> float:
    return math.sqrt(sum(t.ppf((1 + confidence) / 2, freedom) ** 2 * variance for variance, freedom in parts))


def slow_parts(values_CS: np.ndarray[Any, Any]) -> list[tuple[float, int]]:
    """Variance of the mean over classes and over seeds of equal weight, by leaving out one at a time."""
    parts = []
    for axis in (0, 1):
        count = values_CS.shape[axis]
        without = [np.delete(values_CS, at, axis=axis).mean() for at in range(count)]
        whole = values_CS.mean()
        parts.append(((count - 1) / count * sum((one - whole) ** 2 for one in without), count - 1))
    return parts


def slow_p(mean: float, parts: list[tuple[float, int]]) -> float:
    """For which the interval ends at 0."""
    return float(brentq(lambda p: half_width(parts, 1 - p) - abs(mean), 1e-13, 1 - 1e-13, xtol=1e-15))


def closed_holm(ps: list[float], weights: list[float]) -> list[float]:
    """Weighted Holm's adjusted p by its definition: the largest of the weighted Bonferroni tests of all sets of
    hypotheses that a hypothesis is in."""
    adjusted = [0.0] * len(ps)
    for size in range(1, len(ps) + 1):
        for some in itertools.combinations(range(len(ps)), size):
            total = sum(weights[at] for at in some)
            p = min(1.0, min(ps[at] * total / weights[at] for at in some))
            for at in some:
                adjusted[at] = max(adjusted[at], p)
    return adjusted
