"""Whether a curve still rises beyond its own scatter; without numpy, since each look at a search asks it."""

import math
import statistics
from collections.abc import Sequence

ROUNDING = 1e-9
"""Values that differ by less are equal."""


def p_rising(values: Sequence[float]) -> float:
    """Of the one-sided t-test that a line through the last half of a curve (four values at least) rises; 1 with fewer
    than three values."""
    tail = values[-max(4, len(values) // 2 + 1) :]
    count = len(tail)
    if count < 3:
        return 1.0
    slope, level = statistics.linear_regression(range(count), tail)
    if slope <= 0:
        return 1.0
    squares = sum((value - level - slope * x) ** 2 for x, value in enumerate(tail)) / (count - 2)
    spread = (count**3 - count) / 12  # the sum of (x - mean)^2
    return upper_tail(slope / math.sqrt(max(squares, ROUNDING**2) / spread), count - 2)


def upper_tail(t: float, freedom: int) -> float:
    """P(T > t) of Student's t with a whole number of degrees of freedom, t >= 0.

    Source: M. Abramowitz, I. Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    term = math.cos(angle) if freedom % 2 else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    within = math.sin(angle) * total
    if freedom % 2:
        within = 2 / math.pi * (angle + within)
    return (1 - within) / 2
