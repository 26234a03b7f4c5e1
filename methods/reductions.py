"""What the objectives share: the check of their masks, sums over the terms of a matrix, in blocks, and stable
logarithms of sums.

matrix    (Q, R) floating point
positive, negative, mask, above, below    (Q, R) bool
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

Objective = TypeVar("Objective", bound=Callable[..., Tensor])

Reduction = Literal["mean", "rows"]
"""What an objective returns: one scalar, or (Q,), each query's share, whose mean is that scalar."""


def objective(function: Objective) -> Objective:
    """Check the masks of function(matrix, positive, negative, **hyperparameters), promote half precision, and return
    attached zeros for an empty matrix. ValueError for masks that are not boolean or not of the matrix's shape, and for
    a reduction that there is not."""

    @functools.wraps(function)
    def wrapper(matrix: Tensor, positive: Tensor, negative: Tensor, **hyperparameters: Any) -> Tensor:
        for name, mask in (("positive", positive), ("negative", negative)):
            if mask.dtype != torch.bool or mask.shape != matrix.shape or matrix.ndim != 2:
                raise ValueError(
                    f"{function.__name__}: {name} must be a boolean mask of the matrix's shape (Q, R), "
                    f"got {mask.dtype} {tuple(mask.shape)} for a matrix {tuple(matrix.shape)}"
                )
        reduction = hyperparameters.get("reduction", "mean")
        if reduction not in ("mean", "rows"):
            raise ValueError(f'{function.__name__}: reduction must be "mean" or "rows", got {reduction!r}')
        matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        if matrix.numel() == 0:
            return matrix.sum(1) if reduction == "rows" else matrix.sum()
        return function(matrix, positive, negative, **hyperparameters)

    return cast(Objective, wrapper)


Terms = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From L rows (or columns) of the matrix and the masks: the sums of their terms (L, K), and their numbers (L, K)."""


BLOCK, BLOCK_ON_ACCELERATOR = 2**20, 2**22
"""Numbers of the matrix processed at a time if more than a few are made of each: fewer on a CPU, where blocks
start quickly."""


CACHED = 2**16  # numbers that fit into a CPU's cache together with what is made of them


def reduce_sums(sums: Tensor, counts: Tensor, reduction: Reduction = "mean") -> Tensor:
    """sum_k S_k / max(1, N_k), S and N the totals of sums and counts (L, K) over all L lines.

    "rows": (L,), what each line adds to it, times L.
    """
    counts = counts.sum(0).clamp(min=1)
    if reduction == "rows":
        return (sums / counts).sum(1) * len(sums)
    return (sums.sum(0) / counts).sum()


def mean_of_terms(
    terms: Terms,
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    dim: int = 0,
    width: int = 1,
    reduction: Reduction = "mean",
) -> Tensor:
    """Sums of terms divided by their numbers, added up: `reduced` over the matrix's rows or columns.

    The matrix is taken in blocks along `dim`, each row (0) or column (1) on its own; `width` says how many numbers the
    terms make of one. The backward pass recomputes the blocks, so that nothing but the matrix, its gradient and
    the masks is ever as large as the matrix.
    """
    block = BLOCK if matrix.device.type == "cpu" else BLOCK_ON_ACCELERATOR
    size = block // (width * matrix.shape[1 - dim])
    if size >= matrix.shape[dim]:
        sums, counts = terms(matrix, positive, negative)
    else:
        sums, counts = _InBlocks.apply(matrix, positive, negative, terms, dim, max(1, size))
    return reduce_sums(sums, counts, reduction)


class _InBlocks(torch.autograd.Function):
    """Sums of terms and their numbers for each line, block by block."""

    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, positive: Tensor, negative: Tensor, terms: Terms, dim: int, size: int
    ) -> tuple[Tensor, Tensor]:
        blocks = zip(*(torch.split(part, size, dim) for part in (matrix, positive, negative)), strict=True)
        results = [terms(*block) for block in blocks]
        sums, counts = (torch.cat(parts) for parts in zip(*results, strict=True))
        ctx.save_for_backward(matrix, positive, negative)
        ctx.terms, ctx.dim, ctx.size = terms, dim, size
        ctx.mark_non_differentiable(counts)
        return sums, counts

    @staticmethod
    def backward(ctx: Any, on_sums: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        matrix, positive, negative = ctx.saved_tensors
        if torch.is_grad_enabled():  # all at once, to be differentiated again
            sums, _ = ctx.terms(matrix, positive, negative)
            return *torch.autograd.grad(sums, matrix, on_sums, create_graph=True), None, None, None, None, None
        gradient = torch.empty_like(matrix)
        parts = (torch.split(part, ctx.size, ctx.dim) for part in (gradient, matrix, positive, negative))
        for on_block, to, block, *masks in zip(torch.split(on_sums, ctx.size), *parts, strict=True):
            leaf = block.detach().requires_grad_()
            with torch.enable_grad():
                sums, _ = ctx.terms(leaf, *masks)
            to.copy_(torch.autograd.grad(sums, leaf, on_block)[0])
        return gradient, None, None, None, None, None


def kept_terms(terms: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """For each line the sum of its kept terms, and their number: (L, 1) each, of (L,) or (L, N)."""
    terms = torch.where(kept, terms, 0)
    return (terms[:, None], kept[:, None]) if terms.ndim == 1 else (terms.sum(1)[:, None], kept.sum(1)[:, None])


def any_of(mask: Tensor, dim: int) -> Tensor:
    """mask.any(dim), as bytes, whose maximum is much faster."""
    return mask.view(torch.uint8).amax(dim).bool()


def exp_of_at_most_zero(logits: Tensor) -> Tensor:
    """In place e^logit, and exactly 0 where that is below the smallest normal number, for which exp is slow."""
    info = torch.finfo(logits.dtype)
    floor = math.log(info.tiny) + 1
    return torch.threshold_(logits.clamp_(min=floor).exp_(), 2 * math.exp(floor), 0)


class _LogSumExp(torch.autograd.Function):
    """log sum e^logit over the masked entries along `dim`; about the lowest finite number where there is none.

    Beside it, the terms of the sum over the largest one: the gradient needs them, and its own gradient goes on there.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, mask: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        terms = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        highest = terms.amax(dim, keepdim=True)
        total = exp_of_at_most_zero(terms.sub_(highest)).sum(dim, keepdim=True)
        ctx.save_for_backward(terms, total, any_of(mask, dim).unsqueeze(dim))
        ctx.dim = dim
        ctx.set_materialize_grads(False)
        return (total.log() + highest).squeeze(dim), terms

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, on_terms: Tensor | None) -> tuple[Tensor | None, None, None]:
        terms, total, filled = ctx.saved_tensors
        if torch.is_grad_enabled():
            total = terms.sum(ctx.dim, keepdim=True)
        factor = None if gradient is None else torch.where(filled, gradient.unsqueeze(ctx.dim) / total, 0)
        if on_terms is not None:
            on_terms = torch.where(filled, on_terms, 0)
            factor = on_terms if factor is None else factor + on_terms
        return None if factor is None else terms * factor, None, None


def log_sum_exp(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    """log sum e^logit over the masked entries along `dim`; about the lowest finite number where there is none."""
    total, _ = cast(tuple[Tensor, Tensor], _LogSumExp.apply(logits, mask, dim))
    return total


def log_one_plus_sum_exp(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    """log(1 + sum e^logit) over the masked entries along `dim`; the 1 is a logit of zero."""
    total = log_sum_exp(logits, mask, dim)
    return torch.logaddexp(total, torch.zeros_like(total))


class _NegativeLogRatio(torch.autograd.Function):
    """-log(sum_above e^(scale x) / sum_below e^(scale x)) of each kept row, where no sum is empty; 0 for the others.

    Computed with its gradient in blocks that stay in the cache; there are few positives, which are listed.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, above: Tensor, below: Tensor, scale: float, kept: Tensor) -> Tensor:
        size = max(1, CACHED // matrix.shape[1]) if matrix.device.type == "cpu" else len(matrix)
        gradient = torch.empty_like(matrix) if ctx.needs_input_grad[0] else None
        lowest, ratios = torch.finfo(matrix.dtype).min, []
        for start in range(0, len(matrix), size):
            rows = slice(start, start + size)
            logits = torch.mul(matrix[rows], scale, out=None if gradient is None else gradient[rows])
            i, j = above[rows].nonzero(as_tuple=True)
            positive = logits[i, j]
            high = logits.new_full((len(logits),), lowest).scatter_reduce_(0, i, positive, "amax")
            positive = exp_of_at_most_zero(positive - high[i])
            total = torch.zeros_like(high).index_add_(0, i, positive)

            if matrix.device.type != "cpu" or not below[rows].view(torch.uint8).amin():  # a GPU would be waited for
                logits.masked_fill_(~below[rows], lowest)
            highest = logits.amax(1, keepdim=True)
            sum_below = exp_of_at_most_zero(logits.sub_(highest)).sum(1)
            ratio = (sum_below.log() + highest[:, 0]) - (total.log() + high)
            ratios.append(torch.where(kept[rows], ratio, 0))
            if gradient is not None:
                logits.mul_(torch.where(kept[rows], scale / sum_below, 0)[:, None])
                logits[i, j] -= torch.where(kept[rows], scale / total, 0)[i] * positive
        if gradient is not None:
            ctx.save_for_backward(gradient, matrix, above, below, kept)
        ctx.scale = scale
        return torch.cat(ratios)

    @staticmethod
    def backward(ctx: Any, on_rows: Tensor) -> tuple[Tensor | None, ...]:
        gradient, matrix, above, below, kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # by plain operations, to be differentiated again
            logits = ctx.scale * matrix[kept]
            softmax_above, all_ = (logits.masked_fill(~mask[kept], -math.inf).softmax(1) for mask in (above, below))
            gradient = torch.zeros_like(matrix).index_put((kept,), ctx.scale * (all_ - softmax_above))
        return gradient * on_rows[:, None], None, None, None, None


def negative_log_ratio(matrix: Tensor, above: Tensor, below: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """-log(sum_above e^(scale x) / sum_below e^(scale x)) of rows, and 1; both (Q, 1), 0 where a sum is empty."""
    valid = any_of(above, 1) & any_of(below, 1)
    ratios = cast(Tensor, _NegativeLogRatio.apply(matrix, above, below, scale, valid))
    return ratios[:, None], valid[:, None]
