"""Items that are equally near: what metrics count of them.

A collapsed network gives all images one embedding, and a list of neighbours then says in which order the rows are
stored. So ties between items of the query's class and others count in expectation over all orders of the tied ones.

Source: McSherry and Najork, Computing information retrieval performance measures efficiently in the presence of tied
scores, ECIR 2008.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.evaluation.measures.base import Ranked
from orchestrator.evaluation.rows import Integers


class Ties(NamedTuple):
    """T ties of some queries' lists that hold items of the query's class (hits) and others, by query and place."""

    row_T: Integers
    """Which of the queries."""
    first_T: Integers
    """The first place, from 0."""
    size_T: Integers
    hits_T: Integers

    @classmethod
    def of_sorted(
        cls, row_P: Integers, place_P: Integers, run_P: Integers, value_P: NDArray[np.float64], hit_P: NDArray[np.bool_]
    ) -> "Ties":
        """From P neighbours in order, those of a run at places in a row: tied are equal values of a run."""
        if not len(row_P):
            return NO_TIES
        begins = np.ones(len(row_P), dtype=bool)
        begins[1:] = (run_P[1:] != run_P[:-1]) | (value_P[1:] != value_P[:-1])
        group_P = np.cumsum(begins) - 1
        size, hits = np.bincount(group_P), np.bincount(group_P, hit_P).astype(np.int64)
        mixed = (hits > 0) & (hits < size)
        return cls(row_P[begins][mixed], place_P[begins][mixed], size[mixed], hits[mixed])

    def of_rows(self, numbers: Integers) -> "Ties":
        """The same for a longer list of queries, in which these have such numbers."""
        return self._replace(row_T=numbers[self.row_T])

    def where(self, kept_T: NDArray[np.bool_]) -> "Ties":
        """Some of them."""
        return Ties(*(values[kept_T] for values in self))


NO_TIES = Ties(*(np.empty(0, np.int64) for _ in range(4)))


def together(parts: Sequence[Ties]) -> Ties:
    """All of them, by query and place."""
    joined = Ties(*map(np.concatenate, zip(*parts, strict=True)))
    order = np.lexsort((joined.first_T, joined.row_T))
    return Ties(*(values[order] for values in joined))


def rank_hits(hit_QN: NDArray[np.bool_], ties: Ties, relevant_Q: Integers, gallery: int) -> Ranked:
    """The hits of some queries' lists of N neighbours, with their chances where they are tied with others.

    Of a tie of n items, r of them hits, with h hits before it, the o-th place (from 0) is a hit with probability
    r / n; if it is one, 1 + o (r - 1) / (n - 1) of the tie's hits come no later, on average; and if all places of the
    tie before it were none, it is none with probability (n - r - o) / (n - o).
    """
    depth = hit_QN.shape[1]
    at = np.flatnonzero(hit_QN)
    row, place = np.divmod(at, depth)
    count = np.bincount(row, minlength=len(hit_QN))
    before_Q = np.cumsum(count) - count
    right = np.arange(len(row)) - before_Q[row] + 1  # of the query's hits, the first, ...
    if not len(ties.row_T):
        return Ranked(relevant_Q, row, place, right, gallery)
    length = np.minimum(ties.size_T, depth - ties.first_T)
    tie = np.repeat(np.arange(len(length)), length)
    offset = np.arange(len(tie)) - np.repeat(np.cumsum(length) - length, length)
    starts = ties.row_T * depth + ties.first_T
    earlier = np.searchsorted(at, starts) - before_Q[ties.row_T]
    size, hits = ties.size_T[tie], ties.hits_T[tie]
    tied_at = starts[tie] + offset
    sure = ~np.isin(at, tied_at, assume_unique=True)
    all_at = np.concatenate([at[sure], tied_at])
    order = np.argsort(all_at)

    def merge(sure_H: NDArray[np.generic], tied_H: NDArray[np.generic]) -> NDArray[np.float64]:
        return np.concatenate([sure_H, tied_H])[order].astype(np.float64)

    ones = np.ones(int(sure.sum()))
    row, place = np.divmod(all_at[order], depth)
    return Ranked(
        relevant_Q,
        row,
        place,
        merge(right[sure], earlier[tie] + 1 + offset * (hits - 1) / (size - 1)),
        gallery,
        chance_H=merge(ones, hits / size),
        missed_H=merge(0 * ones, np.maximum(0, size - hits - offset) / (size - offset)),
    )
