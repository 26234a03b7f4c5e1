"""Decisions after each pair of seeds, at no price for looking: a confidence sequence for the mean of a few differences.

    x_1, x_2, ...: one value per seed, such as the difference of two arms; normal, mean and deviation unknown
    m_n, s_n^2: mean and mean squared deviation (divided by n) of the first n

The interval after n values is m_n -+ radius, with c^2 = PRECISION and k = (alpha^2 c^2 / (n + c^2))^(1 / n):

    radius^2 = s_n^2 (n + c^2) (1 - k) / ((n + c^2) k - c^2),   infinite while the denominator is not above 0

With probability 1 - alpha or more, all of these intervals hold the mean, whatever n the looking ends at and for any
deviation: it is exact for normal values from the second one on, because the likelihood ratio of the scale-invariant
statistic, mixed over a normal distribution of mean / deviation with variance 1 / c^2, is a martingale that starts at 1.

Source: Wang and Ramdas, Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance, 2023
(arXiv 2310.03722), the Gaussian mixture of scale-invariant likelihood ratios.

Suffixes of array names: N pairs of seeds, K comparisons; leading dimensions are of many claims at once.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.claims.outputs import FIRST_LOOK, Kind

Floats = NDArray[np.float64]
Ends = tuple[Floats, Floats]
Intervals = Callable[[Floats, float], Ends]

ERROR = 0.05
"""The largest probability of a wrong "holds" and, apart from it, of a wrong "does not hold"."""
PRECISION = 0.1
"""c^2. A smaller one is narrower after 3 to 5 values and wider after 20 (`benchmarks/claim_errors.py precision`)."""
HOLDS, FAILS, UNDECIDED = 1, -1, 0


def log_evidence(values_N: Floats, mean: float = 0.0, precision: float = PRECISION) -> Floats:
    """The log of the martingale against `mean` after each value, shape (N,): the interval is where it is below
    -log alpha. The reference of `confidence_sequence`; values that do not differ have an infinite one."""
    x_N = np.asarray(values_N, dtype=np.float64) - mean
    n_N = np.arange(1, x_N.shape[-1] + 1)
    sums_N, squares_N = np.cumsum(x_N, axis=-1), np.cumsum(x_N**2, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_N = (n_N + precision) * squares_N / ((n_N + precision) * squares_N - sums_N**2)
        return np.asarray(0.5 * np.log(precision / (n_N + precision)) + n_N / 2 * np.log(ratio_N))


def confidence_sequence(
    values_N: Floats,
    error: float = ERROR,
    resolution: float = 0.0,
    precision: float = PRECISION,
    *,
    skipped: int | Sequence[int] = 0,
) -> Ends:
    """The low and high ends after each value, each of shape (..., N): of all intervals so far the part that is in each.

    Args:
        values_N: one value per seed, shape (..., N).
        error: the probability that an interval of the sequence misses the mean.
        resolution: the least deviation that is taken for a true one: the weight of one query, since a recall is a
            count, and equal counts with a few seeds do not mean that others would be equal, too.
        skipped: after how many values there is no interval yet: one number, or one for each row of shape (K, N).
    """
    x_N = np.asarray(values_N, dtype=np.float64)
    n_N = np.arange(1, x_N.shape[-1] + 1)
    mean_N = np.cumsum(x_N, axis=-1) / n_N
    shift = x_N[..., :1]  # of values near each other the squares would lose their digits
    variance_N = np.cumsum((x_N - shift) ** 2, axis=-1) / n_N - (mean_N - shift) ** 2
    variance_N = np.maximum(variance_N, resolution**2)
    k_N = (error**2 * precision / (n_N + precision)) ** (1 / n_N)
    room_N = (n_N + precision) * k_N - precision
    factor_N = np.where(room_N > 0, (n_N + precision) * (1 - k_N) / np.where(room_N > 0, room_N, 1.0), np.inf)
    with np.errstate(invalid="ignore"):
        radius_N = np.where(np.isinf(factor_N), np.inf, np.sqrt(np.maximum(variance_N, 0.0) * factor_N))
    radius_N = np.where(n_N <= np.asarray(skipped)[..., None], np.inf, radius_N)
    return _so_far(mean_N - radius_N, mean_N + radius_N)


def _so_far(low_N: Floats, high_N: Floats) -> Ends:
    """The intersection of all intervals so far; where it is empty (with probability `error` at most, or because the
    values are far from normal), the latest interval."""
    both_low_N, both_high_N = np.maximum.accumulate(low_N, axis=-1), np.minimum.accumulate(high_N, axis=-1)
    empty_N = both_low_N > both_high_N
    return np.where(empty_N, low_N, both_low_N), np.where(empty_N, high_N, both_high_N)


def holds(kind: Kind, low: Floats, high: Floats, smallest: float) -> NDArray[np.bool_]:
    """Whether an interval of a comparison proves it. `smallest` is the smallest effect of interest, and the values are
    signed so that a positive difference is what is claimed."""
    if kind == "equivalence":
        return (low > -smallest) & (high < smallest)
    return low > {"non_inferiority": -smallest, "rank_agreement": smallest}.get(kind, 0.0)


def fails(kind: Kind, low: Floats, high: Floats, smallest: float) -> NDArray[np.bool_]:
    """Whether it refutes it: for a claim of a difference one that is smaller than the smallest effect of interest."""
    if kind == "equivalence":
        return (low > smallest) | (high < -smallest)
    return high < (-smallest if kind == "non_inferiority" else smallest)


def decisions(
    kind: Kind,
    values_KN: Floats,
    smallest: float,
    *,
    datasets: int = 1,
    error: float = ERROR,
    resolution: float = 0.0,
    without_effect: Sequence[int] = (),
    intervals: Intervals | None = None,
) -> NDArray[np.int_]:
    """HOLDS, FAILS or UNDECIDED after each pair of seeds, shape (..., N), for all comparisons together.

    It holds when all its comparisons hold, each with confidence 1 - error: an intersection-union test, whose error is
    that of one of them. It fails as soon as one of them fails, with confidence 1 - error / (K x datasets): Bonferroni's
    correction, so that a true claim is refuted anywhere with probability `error` at most.

    Args:
        values_KN: one value per comparison and seed, shape (..., K, N).
        datasets: on how many the claim is tested.
        without_effect: with how many seeds, from the first on, each comparison is of trainings that are the same: it
            has no interval, so neither holds nor fails, until there are more.
        intervals: the ends of (values, error) in place of the confidence sequence, for tests of this code.
    """

    def sequence(values_N: Floats, error_of_one: float) -> Ends:
        return confidence_sequence(values_N, error_of_one, resolution, skipped=without_effect or 0)

    ends_of = intervals or sequence
    comparisons = values_KN.shape[-2]
    holds_N = holds(kind, *ends_of(values_KN, error), smallest).all(axis=-2)
    fails_N = fails(kind, *ends_of(values_KN, error / (comparisons * datasets)), smallest).any(axis=-2)
    decision_N = np.where(fails_N, FAILS, np.where(holds_N, HOLDS, UNDECIDED))
    decision_N[..., : FIRST_LOOK - 1] = UNDECIDED
    return decision_N


def first_decision(decision_N: NDArray[np.int_]) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Of each row: the decision at which it stops, and after how many pairs; UNDECIDED after all of them if none."""
    decided_N = decision_N != UNDECIDED
    at = np.where(decided_N.any(axis=-1), decided_N.argmax(axis=-1), decision_N.shape[-1] - 1)
    return np.take_along_axis(decision_N, at[..., None], axis=-1)[..., 0], at + 1
