"""Whether a setting has an effect on a result: tests by ranks, whatever the distribution of the results.

    r_N = ranks of the results, centred, of length 1;   X_ND = orthonormal columns made of the setting alone
    statistic = max over D of |X^T r| (numbers), |X^T r|^2 (groups)
    p = (1 + shuffles of r with as large a statistic) / (1 + SHUFFLES)

Numbers have two columns, their ranks and the squares of these: a line, which is Spearman's correlation, and a bowl.
Groups have one for each of them: the share of the ranks' variance between groups, which orders results as the
statistic of Kruskal and Wallis does. Without an effect all orders of the results are equally likely, also with ties and
with few trials.

Sources: Spearman, The proof and measurement of association between two things, 1904; Kruskal and Wallis, Use of ranks
in one-criterion variance analysis, JASA 1952; Phipson and Smyth, Permutation p-values should never be zero, 2010.

Suffixes: N trials, D columns, B shuffles.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.evaluation.rising import ROUNDING

Floats = NDArray[np.float64]

SHUFFLES = 1999
"""p is at least 1 / 2,000: after Holm's correction for a hundred settings still one in twenty."""
MAX_TRIALS = 500
"""Of more, so many are tested, evenly from best to worst."""


@dataclass(frozen=True)
class RankTest:
    """p, and of numbers Spearman's correlation with the results (NaN of groups)."""

    p: float
    correlation: float


class Shuffled:
    """The results of N trials, and SHUFFLES orders of them, for the tests of several settings."""

    def __init__(self, results: Sequence[float]) -> None:
        self.ranks_N = _unit(_ranks(np.asarray(results, dtype=float)))
        count = len(self.ranks_N)
        orders = np.random.default_rng(0).permuted(np.tile(np.arange(count), (SHUFFLES, 1)), axis=1)
        self.shuffled_BN = self.ranks_N[orders]

    def of_numbers(self, values: Sequence[float]) -> RankTest:
        """The test of a setting whose values are numbers."""
        line_N = _unit(_ranks(np.asarray(values, dtype=float)))
        bowl_N = line_N**2 - (line_N**2).mean()
        bowl_N = _unit(bowl_N - line_N * (line_N @ bowl_N))
        columns_ND = np.stack([line_N, bowl_N], axis=1)
        statistic = np.abs(self.ranks_N @ columns_ND).max()
        return RankTest(
            self._p(statistic, np.abs(self.shuffled_BN @ columns_ND).max(axis=1)), float(self.ranks_N @ line_N)
        )

    def of_groups(self, labels: Sequence[int]) -> RankTest:
        """The test of a setting whose values are words, numbered from 0."""
        of_NG = np.eye(1 + max(labels))[np.asarray(labels)]
        columns_ND = of_NG / np.sqrt(np.maximum(1, of_NG.sum(axis=0)))
        statistic = ((self.ranks_N @ columns_ND) ** 2).sum()
        return RankTest(self._p(statistic, ((self.shuffled_BN @ columns_ND) ** 2).sum(axis=1)), float("nan"))

    def _p(self, statistic: float, by_chance_B: Floats) -> float:
        return float((1 + (by_chance_B >= statistic - ROUNDING).sum()) / (1 + SHUFFLES))


def _ranks(values_N: Floats) -> Floats:
    """1 to N; equal values have their mean rank."""
    _, place_N, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place_N])


def _unit(values_N: Floats) -> Floats:
    """Centred, and of length 1; zeros where all are equal."""
    centred_N = values_N - values_N.mean()
    length = np.linalg.norm(centred_N)
    return np.asarray(centred_N / length if length > ROUNDING else np.zeros_like(centred_N))
