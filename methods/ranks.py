"""Relaxed ranks: how far down its query's list each positive stands, each comparison a step that has a slope.

Q queries, R references, N positive pairs (q, p), in the order of positive.nonzero()
matrix    (Q, R) similarities s
positive, negative    (Q, R) bool
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor

from methods import reductions
from methods.baselines import ReferencesConfig

Step = Callable[[Tensor, Tensor], Tensor]
"""From differences s_qj - s_qp (n, R), and whether j is a positive (n, R): what j adds to the rank of p, (n, R)."""


Formula = Literal["printed", "released"]
"""Whether a query is left out of its own list, or, as in released codes, is in it."""


def with_queries(mask: Tensor, formula: Formula) -> Tensor:
    """The mask (Q, R), of the released formula with each query itself, which is the reference of its number.

    ValueError for another formula, and where there are not as many references as queries.
    """
    if formula == "printed":
        return mask
    if formula != "released":
        raise ValueError(f'ranks: formula must be "printed" or "released", got {formula!r}')
    if mask.shape[0] != mask.shape[1]:
        raise ValueError(f"ranks: the released formula needs the queries as references, got {tuple(mask.shape)}")
    return mask | torch.eye(len(mask), dtype=torch.bool, device=mask.device)


class RanksConfig(ReferencesConfig):
    """That of a loss of ranks."""

    formula: Formula = Field("printed", description="released: a query is in its own list too; of the batch alone")

    @model_validator(mode="after")
    def _of_the_batch(self) -> Self:
        if self.formula == "released" and self.references != "batch":
            raise ValueError(f"formula: 'released': needs references: batch, not {self.references}")
        return self


def positive_ranks(matrix: Tensor, positive: Tensor, negative: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor]:
    """The rank of each positive p in the list of its query q, among the other positives and among all.

        among = 1 + sum over the row's other positives j of step(s_qj - s_qp)
        overall = among + sum over the row's negatives j of step(s_qj - s_qp)

    Returns the pairs' queries (N,), among (N,) and overall (N,). Entries that are neither positive nor negative are
    not compared. Time is N x R. Memory is N and a tile of some pairs by R, never all comparisons: the backward pass
    computes the tiles again, with exact gradients.
    """
    queries, places = positive.nonzero(as_tuple=True)
    sums = cast(Tensor, _Sums.apply(matrix, positive, negative, queries, places, step))
    among = 1 + sums[0]
    return queries, among, among + sums[1]


def mean_over_queries(terms: Tensor, queries: Tensor, positive: Tensor) -> Tensor:
    """Mean of the pairs' terms (N,) over each query's positives: (Q,), 0 for a query without any."""
    totals = terms.new_zeros(len(positive)).index_add(0, queries, terms)
    return totals / positive.sum(1).clamp(min=1)


def one_minus_mean(scores: Tensor, positive: Tensor, reduction: reductions.Reduction = "mean") -> Tensor:
    """1 - mean of the scores (Q,) over the queries with a positive; an attached zero if there is none."""
    terms = reductions.kept_terms(1 - scores, reductions.any_of(positive, 1))
    return reductions.reduce_sums(*terms, reduction)


def one_minus_recall(
    ranks: Tensor,
    queries: Tensor,
    positive: Tensor,
    ks: Sequence[int],
    temperature: float,
    reduction: reductions.Reduction = "mean",
) -> Tensor:
    """1 - mean over the queries with a positive and over the k of min(k, sum over positives p of sigma((k - rank_p) /
    temperature)) / min(k, number of positives); ranks and queries (N,) of the positive pairs, as `positive_ranks` gives
    them. ValueError if `ks` is empty or has a k below 1, or the temperature is not above 0."""
    if not ks or min(ks) < 1:
        raise ValueError(f"recall: each k must be at least 1, got {list(ks)}")
    if not temperature > 0:
        raise ValueError(f"recall: k_temperature must be above 0, got {temperature}")
    count = positive.sum(1).clamp(min=1)
    recalls = []
    for k in ks:
        recall = mean_over_queries(torch.sigmoid((k - ranks) / temperature), queries, positive) * count
        recalls.append(recall.clamp(max=k) / count.clamp(max=k))
    return one_minus_mean(torch.stack(recalls).mean(0), positive, reduction)


class _Sums(torch.autograd.Function):
    """Sums of the steps over each pair's other positives and over its negatives, (2, N), some pairs at a time."""

    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, positive: Tensor, negative: Tensor, queries: Tensor, places: Tensor, step: Step
    ) -> Tensor:
        sums = matrix.new_empty(2, len(queries))
        for part in _Sums.parts(matrix, queries):
            queries_here = queries[part]
            sums[:, part] = _Sums.of(
                matrix[queries_here], positive[queries_here], negative[queries_here], places[part], step
            )
        ctx.save_for_backward(matrix, positive, negative, queries, places)
        ctx.step = step
        return sums

    @staticmethod
    def parts(matrix: Tensor, queries: Tensor) -> Iterator[slice]:
        block = reductions.BLOCK if matrix.device.type == "cpu" else reductions.BLOCK_ON_ACCELERATOR
        size = max(1, block // matrix.shape[1])
        return (slice(start, start + size) for start in range(0, len(queries), size))

    @staticmethod
    def of(rows: Tensor, positive: Tensor, negative: Tensor, places: Tensor, step: Step) -> Tensor:
        """The sums (2, n) of n pairs, from the rows (n, R) of their queries."""
        others = positive.scatter(1, places[:, None], False)
        differences = torch.where(others | negative, rows - rows.gather(1, places[:, None]), 0)
        added = step(differences, others)
        return torch.stack([torch.where(mask, added, 0).sum(1) for mask in (others, negative)])

    @staticmethod
    def backward(ctx: Any, on_sums: Tensor) -> tuple[Tensor | None, ...]:
        matrix, positive, negative, queries, places = ctx.saved_tensors
        if torch.is_grad_enabled():  # all at once, to be differentiated again
            sums = _Sums.of(matrix[queries], positive[queries], negative[queries], places, ctx.step)
            return *torch.autograd.grad(sums, matrix, on_sums, create_graph=True), None, None, None, None, None
        gradient = torch.zeros_like(matrix)
        for part in _Sums.parts(matrix, queries):
            queries_here = queries[part]
            rows = matrix[queries_here].detach().requires_grad_()
            with torch.enable_grad():
                sums = _Sums.of(rows, positive[queries_here], negative[queries_here], places[part], ctx.step)
            gradient.index_add_(0, queries_here, torch.autograd.grad(sums, rows, on_sums[:, part])[0])
        return gradient, None, None, None, None, None
