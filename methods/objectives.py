"""The objectives: a matrix between queries and references and two masks of pairs give one scalar.

A loss of deep metric learning is a choice of references (the batch, class proxies, a memory), of a metric
(distance d or cosine similarity s) and of an objective. This file holds the objectives, and the plain
matrices and masks to feed them.

    Q queries, R references, D embedding size, C classes, M centres per class
    matrix    (Q, R) floating point, d or s; half precision is promoted to float32, float64 stays float64
    positive  (Q, R) bool, pairs that share a label
    negative  (Q, R) bool, pairs that share none

Held by every objective: embeddings are never normalised here, the caller passes unit rows; an entry that is
neither positive nor negative (a sample paired with itself) adds exactly nothing to value or gradient, even if
it is inf or nan; gradients are finite; if no term is left, the result is a zero attached to the graph. Masks
that are not boolean, or of another shape than the matrix, raise ValueError.
"""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

# ---------------------------------------------------------------- matrices and masks


def euclidean_distance(queries: Tensor, references: Tensor) -> Tensor:
    """Distances d_ij = ||q_i - r_j|| of queries (Q, D) to references (R, D): (Q, R).

    Close pairs are exact to rounding (a Gram matrix in float32 loses them), others to ten times that. Where two rows
    coincide the distance and its gradients are zero. Memory is a few (Q, R), in the backward pass too.
    """
    queries, references = _same_precision(queries, references)
    return cast(Tensor, _EuclideanDistance.apply(queries, references))


def cosine_similarity(queries: Tensor, references: Tensor) -> Tensor:
    """Products s_ij = q_i . r_j of unit rows (Q, D) and (R, D): (Q, R).

    In float32 or better, under autocast and with TF32 allowed too (the backward products keep TF32 if
    allowed).
    """
    queries, references = _same_precision(queries, references)
    with _full_precision(queries.device):
        return queries @ references.T


def pair_masks(query_labels: Tensor, reference_labels: Tensor, same: bool) -> tuple[Tensor, Tensor]:
    """Masks (positive, negative), both (Q, R): pairs that share a label, and pairs that share none.

    Labels are integers (N,), or label sets (N, L) padded with -1; -1 is no label and equals nothing. With
    `same` queries and references are the same samples in the same order, and the diagonal is neither. Raises
    ValueError if `same` and the numbers of queries and references differ.
    """
    if same and len(query_labels) != len(reference_labels):
        sizes = f"{len(query_labels)} queries and {len(reference_labels)} references"
        raise ValueError(f"same=True needs equal numbers of queries and references, got {sizes}")
    # what is no label differs on the two sides, and so equals nothing
    queries, references = query_labels[:, None].flatten(1), reference_labels[:, None].flatten(1)
    queries = torch.where(queries < 0, -1, queries)
    references = torch.where(references < 0, -2, references)
    positive = torch.zeros(len(queries), len(references), dtype=torch.bool, device=queries.device)
    for own in queries.unbind(1):
        for other in references.unbind(1):
            positive |= own[:, None] == other
    negative = ~positive
    if same:
        positive.fill_diagonal_(False)
        negative.fill_diagonal_(False)
    return positive, negative


class _EuclideanDistance(torch.autograd.Function):
    """Written out because torch.cdist loses close pairs in float32, and because its backward pass on CUDA allocates
    Q x R x D numbers.

    A Gram matrix gives the distances, except those of close pairs, which lose their digits in it: they are listed, and
    taken from true differences in float64. The gradient of a pair is its unit vector (q - r)/d: two more products, and
    true differences again. Where too many are close to be listed, as in a collapsed batch, the products are in float64:
    those of float32 numbers are exact there, and the distances right to float32's rounding down to about 1e-6.
    """

    NEAR: ClassVar[dict[torch.dtype, float]] = {torch.float32: 0.3, torch.float64: 0.1}
    """Distances of rows of unit length up to which true differences are taken, by the type of the products."""
    NEAR_CROWDED = 1e-5  # the same for float32 numbers in float64 products
    CROWD = 1 / 64  # a larger share of near pairs is not listed
    TILE = (2**10, 2**10)  # rows of queries and of references whose distances are computed at a time
    PAIRS = 2**15  # numbers in the largest intermediate for near pairs

    @staticmethod
    def forward(ctx: Any, queries: Tensor, references: Tensor) -> Tensor:
        distance = queries.new_empty(len(queries), len(references))
        near = _EuclideanDistance.NEAR[queries.dtype]
        for rows, columns in _tiles(distance, _EuclideanDistance.TILE):
            q, r = queries[rows], references[columns]
            squared, i, j = _EuclideanDistance.products(q, r, near)
            if queries.dtype == torch.float32 and len(i) > max(len(q), _EuclideanDistance.CROWD * squared.numel()):
                squared, i, j = _EuclideanDistance.products(q.double(), r.double(), _EuclideanDistance.NEAR_CROWDED)
            for own, other in _EuclideanDistance.listed(q, i, j):
                squared[own, other] = (q[own].double() - r[other].double()).square_().sum(1).to(squared.dtype)
            distance[rows, columns] = squared.sqrt_()
        ctx.save_for_backward(queries, references, distance)
        return distance

    @staticmethod
    def products(q: Tensor, r: Tensor, near: float) -> tuple[Tensor, Tensor, Tensor]:
        """Squared distances by a Gram matrix, and rows and columns of the pairs for which it is not exact enough."""
        q_squared, r_squared = q.square().sum(1, keepdim=True), r.square().sum(1)
        with _full_precision(q.device):
            squared = torch.mm(q, r.T).mul_(-2).add_(q_squared).add_(r_squared).clamp_(min=0)
        i, j = _at_most(squared, near**2 * torch.maximum(q_squared.max(), r_squared.max()))
        close = squared[i, j] <= near**2 * torch.maximum(q_squared[i, 0], r_squared[j])
        return squared, i[close], j[close]

    @staticmethod
    def listed(q: Tensor, *lists: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """The lists, some pairs at a time."""
        size = max(1, _EuclideanDistance.PAIRS // max(1, q.shape[1]))
        return zip(*(torch.split(part, size) for part in lists), strict=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        queries, references, distance = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _EuclideanDistance.differentiable(gradient, queries, references, distance)
        to_queries, to_references = torch.zeros_like(queries), torch.zeros_like(references)
        if not distance.numel():
            return to_queries, to_references
        longest = torch.maximum(*(rows.detach().square().sum(1).max() for rows in (queries, references))).sqrt()
        for rows, columns in _tiles(distance, _EuclideanDistance.TILE):
            q, r, d = queries[rows], references[columns], distance[rows, columns]
            weight = gradient[rows, columns] / d
            i, j = _at_most(d, _EuclideanDistance.NEAR[queries.dtype] * longest)
            if queries.dtype == torch.float32 and len(i) > max(len(q), _EuclideanDistance.CROWD * d.numel()):
                q, r, weight = q.double(), r.double(), weight.double()
                i, j = _at_most(d, _EuclideanDistance.NEAR_CROWDED * longest)
            forces = weight[i, j].where(d[i, j] > 0, 0)
            weight[i, j] = 0
            with _full_precision(queries.device):
                for to, own, others, weights in (
                    (to_queries[rows], q, r, weight),
                    (to_references[columns], r, q, weight.T),
                ):
                    total = to if to.dtype == own.dtype else to.to(own.dtype)
                    total.addmm_(weights, others, alpha=-1).addcmul_(weights.sum(1, keepdim=True), own)
                    to.copy_(total)
            pulled = forces != 0
            for force, own, other in _EuclideanDistance.listed(q, forces[pulled], i[pulled], j[pulled]):
                vector = (force[:, None] * (q[own].double() - r[other].double())).to(queries.dtype)
                to_queries.index_add_(0, own + rows.start, vector)
                to_references.index_add_(0, other + columns.start, vector, alpha=-1)
        return to_queries, to_references

    @staticmethod
    def differentiable(
        gradient: Tensor, queries: Tensor, references: Tensor, distance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same by plain operations, in float64, where close pairs keep their digits."""
        apart = distance > 0
        weight = (torch.where(apart, gradient, 0) / torch.where(apart, distance, 1)).double()
        q, r = queries.double(), references.double()
        to_queries = weight.sum(1, keepdim=True) * q - weight @ r
        to_references = weight.sum(0)[:, None] * r - weight.T @ q
        return to_queries.to(queries.dtype), to_references.to(references.dtype)


def _at_most(matrix: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the entries up to the bound; often there are none, which the minimum tells quickly."""
    if matrix.amin() > bound:
        none = torch.empty(0, dtype=torch.long, device=matrix.device)
        return none, none
    i, j = (matrix <= bound).nonzero(as_tuple=True)
    return i, j


def _tiles(matrix: Tensor, size: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    for row in range(0, matrix.shape[0], size[0]):
        for column in range(0, matrix.shape[1], size[1]):
            yield slice(row, row + size[0]), slice(column, column + size[1])


def _same_precision(queries: Tensor, references: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the wider of their types, and at least in float32."""
    dtype = torch.promote_types(torch.promote_types(queries.dtype, references.dtype), torch.float32)
    return queries.to(dtype), references.to(dtype)


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Autocast off and no TF32 or bfloat16 inside float32 products."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    reduced = [(backend, backend.fp32_precision) for backend in backends]
    reduced = [(backend, precision) for backend, precision in reduced if precision not in ("none", "ieee")]
    for backend, _ in reduced:
        backend.fp32_precision = "ieee"
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for backend, precision in reduced:
            backend.fp32_precision = precision


# ---------------------------------------------------------------- what the objectives share

Objective = TypeVar("Objective", bound=Callable[..., Tensor])


def _objective(function: Objective) -> Objective:
    """Check the masks, promote half precision, and answer an empty matrix with an attached zero."""

    @functools.wraps(function)
    def checked(matrix: Tensor, positive: Tensor, negative: Tensor, **hyperparameters: Any) -> Tensor:
        for name, mask in (("positive", positive), ("negative", negative)):
            if mask.dtype != torch.bool or mask.shape != matrix.shape or matrix.ndim != 2:
                raise ValueError(
                    f"{function.__name__}: {name} must be a boolean mask of the matrix's shape (Q, R), "
                    f"got {mask.dtype} {tuple(mask.shape)} for a matrix {tuple(matrix.shape)}"
                )
        matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        if matrix.numel() == 0:
            return matrix.sum()
        return function(matrix, positive, negative, **hyperparameters)

    return cast(Objective, checked)


Terms = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From some rows (or columns) of the matrix and the masks: the sums of their terms (K,), and their numbers (K,)."""

BLOCK, BLOCK_ON_ACCELERATOR = 2**20, 2**22
"""Numbers of the matrix that are worked on at a time where more than a few of them are made of each: fewer where they
are quick to start."""
CACHED = 2**16  # numbers that stay in a CPU's cache with what is made of them
CLOSE_PAIRS = 2**12  # pairs of centres that are compared at a time


def _mean_of_terms(
    terms: Terms, matrix: Tensor, positive: Tensor, negative: Tensor, *, dim: int = 0, width: int = 1
) -> Tensor:
    """Sums of terms over their numbers, added up: sum_k S_k / max(1, N_k).

    The matrix is taken in blocks along `dim`, each row (0) or column (1) on its own; `width` says how many numbers the
    terms make of one. The backward pass computes the blocks again, so that nothing but the matrix, its gradient and
    the masks is ever as large as the matrix.
    """
    block = BLOCK if matrix.device.type == "cpu" else BLOCK_ON_ACCELERATOR
    size = block // (width * matrix.shape[1 - dim])
    if size >= matrix.shape[dim]:
        sums, counts = terms(matrix, positive, negative)
    else:
        sums, counts = _InBlocks.apply(matrix, positive, negative, terms, dim, max(1, size))
    return (sums / counts.clamp(min=1)).sum()


class _InBlocks(torch.autograd.Function):
    """Sums of terms and their numbers, block by block."""

    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, positive: Tensor, negative: Tensor, terms: Terms, dim: int, size: int
    ) -> tuple[Tensor, Tensor]:
        blocks = zip(*(torch.split(part, size, dim) for part in (matrix, positive, negative)), strict=True)
        found = [terms(*block) for block in blocks]
        sums, counts = (torch.stack(parts).sum(0) for parts in zip(*found, strict=True))
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
        for to, block, *masks in zip(*parts, strict=True):
            leaf = block.detach().requires_grad_()
            with torch.enable_grad():
                sums, _ = ctx.terms(leaf, *masks)
            to.copy_(torch.autograd.grad(sums, leaf, on_sums)[0])
        return gradient, None, None, None, None, None


def _total(terms: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the kept terms, and their number."""
    return torch.where(kept, terms, 0).sum()[None], kept.sum()[None]


def _any(mask: Tensor, dim: int) -> Tensor:
    """mask.any(dim), as bytes, whose maximum is far quicker."""
    return mask.view(torch.uint8).amax(dim).bool()


def _exp_of_at_most_zero(logits: Tensor) -> Tensor:
    """In place e^logit, and exactly 0 where that falls below the smallest normal number, which exp is slow to find."""
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
        total = _exp_of_at_most_zero(terms.sub_(highest)).sum(dim, keepdim=True)
        ctx.save_for_backward(terms, total, _any(mask, dim).unsqueeze(dim))
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


def _log_one_plus_sum_exp(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    """log(1 + sum e^logit) over the masked entries along `dim`; the 1 is a logit of zero."""
    total, _ = cast(tuple[Tensor, Tensor], _LogSumExp.apply(logits, mask, dim))
    return torch.logaddexp(total, torch.zeros_like(total))


class _NegativeLogRatio(torch.autograd.Function):
    """Sum of -log(sum_above e^(scale x) / sum_below e^(scale x)) over the rows where no sum is empty.

    Computed with its gradient in blocks that stay in the cache; there are few positives, which are listed.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, above: Tensor, below: Tensor, scale: float, kept: Tensor) -> Tensor:
        size = max(1, CACHED // matrix.shape[1]) if matrix.device.type == "cpu" else len(matrix)
        gradient = torch.empty_like(matrix) if ctx.needs_input_grad[0] else None
        lowest, found = torch.finfo(matrix.dtype).min, []
        for start in range(0, len(matrix), size):
            rows = slice(start, start + size)
            logits = torch.mul(matrix[rows], scale, out=None if gradient is None else gradient[rows])
            i, j = above[rows].nonzero(as_tuple=True)
            positive = logits[i, j]
            high = logits.new_full((len(logits),), lowest).scatter_reduce_(0, i, positive, "amax")
            positive = _exp_of_at_most_zero(positive - high[i])
            total = torch.zeros_like(high).index_add_(0, i, positive)

            if not below[rows].view(torch.uint8).amin():
                logits.masked_fill_(~below[rows], lowest)
            highest = logits.amax(1, keepdim=True)
            sum_below = _exp_of_at_most_zero(logits.sub_(highest)).sum(1)
            ratio = (sum_below.log() + highest[:, 0]) - (total.log() + high)
            found.append(torch.where(kept[rows], ratio, 0).sum())
            if gradient is not None:
                logits.mul_(torch.where(kept[rows], scale / sum_below, 0)[:, None])
                logits[i, j] -= torch.where(kept[rows], scale / total, 0)[i] * positive
        if gradient is not None:
            ctx.save_for_backward(gradient, matrix, above, below, kept)
        ctx.scale = scale
        return torch.stack(found).sum()

    @staticmethod
    def backward(ctx: Any, on_sum: Tensor) -> tuple[Tensor | None, ...]:
        gradient, matrix, above, below, kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # by plain operations, to be differentiated again
            logits = ctx.scale * matrix[kept]
            own, all_ = (logits.masked_fill(~mask[kept], -math.inf).softmax(1) for mask in (above, below))
            gradient = torch.zeros_like(matrix).index_put((kept,), ctx.scale * (all_ - own))
        return gradient * on_sum, None, None, None, None


def _negative_log_ratio(matrix: Tensor, above: Tensor, below: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Sum of -log(sum_above e^(scale x) / sum_below e^(scale x)) over the rows where no sum is empty; their number."""
    kept = _any(above, 1) & _any(below, 1)
    total = cast(Tensor, _NegativeLogRatio.apply(matrix, above, below, scale, kept))
    return total[None], kept.sum()[None]


# ---------------------------------------------------------------- objectives on pairs and triplets


@_objective
def contrastive(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    pos_margin: float = 0.0,
    neg_margin: float = 0.5,
    average: Literal["nonzero", "all", "query"] = "nonzero",
) -> Tensor:
    """Contrastive loss on d.

        mean over positives of [d - pos_margin]+  +  mean over negatives of [neg_margin - d]+

    `average` says what each of the two sums is divided by: "nonzero" the number of its terms above zero,
    "all" the number of pairs of its kind, "query" Q; ValueError for any other. On 1 - s with
    average="query" it is the form used with a cross-batch memory.

    Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006.
    """
    if average not in ("nonzero", "all", "query"):
        raise ValueError(f'contrastive: average must be "nonzero", "all" or "query", got {average!r}')

    def terms(matrix: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        hinges = [
            torch.where(pairs, signed, 0).relu()
            for pairs, signed in ((positive, matrix - pos_margin), (negative, neg_margin - matrix))
        ]
        counted = {"nonzero": [hinge > 0 for hinge in hinges], "all": [positive, negative]}.get(average)
        counts = [pairs.sum() for pairs in counted] if counted else [matrix.new_tensor(len(matrix))] * 2
        return torch.stack([hinge.sum() for hinge in hinges]), torch.stack(counts)

    return _mean_of_terms(terms, matrix, positive, negative)


@_objective
def triplet(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float = 0.1,
    mining: Literal["semihard", "all"] = "semihard",
) -> Tensor:
    """Triplet loss on d: mean of the terms [d_ap - d_an + margin]+ above zero, (a, p, n) in the row of a.

    `mining`: "semihard" keeps for each (a, p) the closest n with d_an > d_ap, and drops the pair if there is
    none; "all" keeps every triplet; ValueError for any other. Memory is (number of positive pairs, R).

    Schroff et al., FaceNet, CVPR 2015.
    """
    if mining not in ("semihard", "all"):
        raise ValueError(f'triplet: mining must be "semihard" or "all", got {mining!r}')

    def terms(matrix: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        anchors, positives = (positive & _any(negative, 1)[:, None]).nonzero(as_tuple=True)
        d_ap, d_an, kept = matrix[anchors, positives][:, None], matrix[anchors], negative[anchors]
        if mining == "semihard":
            # A pair without a candidate gets a negative at infinity, whose term is zero.
            d_an = torch.where(kept & (d_an > d_ap), d_an, math.inf).min(1, keepdim=True).values
            kept = kept.any(1, keepdim=True)
        hinge = torch.where(kept, d_ap - d_an + margin, 0).relu()
        return hinge.sum()[None], (hinge > 0).sum()[None]

    width = math.ceil(int(positive.sum()) / len(matrix))
    return _mean_of_terms(terms, matrix, positive, negative, width=max(1, width))


@_objective
def margin(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    dim: int,
    beta: float | Tensor = 1.2,
    alpha: float = 0.2,
    phi: float = math.inf,
    phi_form: Literal["relative", "printed"] = "relative",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Margin loss on d, with negatives sampled by distance.

    [d - (beta - alpha)]+ over positives plus [(beta + alpha) - d]+ over drawn negatives, divided by the
    number of terms of both kinds above zero. For each positive pair one negative is drawn in its row
    (with replacement, from `generator`), with weight exp(min(w - max_row w, log phi)), where

        w(d) = (2 - D) log d - (D - 3)/2 log(1 - d^2/4),  d clamped below at 0.5,

    the maximum taken over the negatives of the row with d <= 1.4; those beyond have weight zero. If all are
    beyond, the row's negatives are equally likely. Rows without negatives keep their positive terms.

    dim: D, the size of the embeddings. phi: above 0, else ValueError; below 1 it flattens the largest
    weights. phi_form: "printed" is the weight min(phi, exp(w)) of IDML's Eq. 9. beta: a number, a learned
    scalar, or one value per query as (Q,) or (Q, 1), so that one beta per class is given as `betas[labels]`.

    Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017.
    """
    if not phi > 0:
        raise ValueError(f"margin: phi must be above 0, got {phi}")
    if isinstance(beta, Tensor) and beta.ndim == 1:
        beta = beta[:, None]
    if phi_form not in ("relative", "printed"):
        raise ValueError(f"margin: phi_form must be 'relative' or 'printed', got {phi_form!r}")
    drawn = _draw_negatives(matrix.detach(), positive, negative, dim, phi, phi_form, generator)
    attracted = torch.where(positive, matrix - (beta - alpha), 0).relu()
    repelled = torch.where(drawn > 0, (beta + alpha) - matrix, 0).relu()
    terms = (attracted > 0).sum() + (drawn * (repelled > 0)).sum()
    return (attracted.sum() + (drawn * repelled).sum()) / terms.clamp(min=1)


def _draw_negatives(
    distance: Tensor,
    positive: Tensor,
    negative: Tensor,
    dim: int,
    phi: float,
    phi_form: str,
    generator: torch.Generator | None,
) -> Tensor:
    """How often each negative is drawn, (Q, R) integers, if each row draws as many as it has positives."""
    clamped = distance.clamp(0.5, 1.4)
    log_weight = (2 - dim) * clamped.log() - (dim - 3) / 2 * (1 - clamped.square() / 4).log()
    if phi_form == "printed":
        log_weight, phi = log_weight.clamp(max=math.log(phi)), math.inf
    near = negative & (distance <= 1.4)
    log_weight = torch.where(near, log_weight, torch.finfo(log_weight.dtype).min)
    log_weight = log_weight - log_weight.amax(1, keepdim=True)
    cap = min(math.log(phi), 0.0)
    weight = torch.where(near, (log_weight.clamp(max=cap) - cap).exp(), 0)
    weight = torch.where(near.any(1, keepdim=True), weight, negative.to(weight.dtype))

    drawn = torch.zeros_like(positive, dtype=torch.long)
    rows = _any(positive, 1) & _any(negative, 1)
    if rows.any():
        # A generator belongs to one device; on the CPU it gives the same draws for every accelerator.
        device = generator.device if generator is not None else weight.device
        needed = positive[rows].sum(1, keepdim=True)
        most = int(needed.max())
        picks = torch.multinomial(weight[rows].to(device), most, replacement=True, generator=generator)
        used = torch.arange(most, device=needed.device) < needed
        drawn[rows] = drawn[rows].scatter_add(1, picks.to(drawn.device), used.long())
    return drawn


@_objective
def multi_similarity(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float | None = 0.1,
) -> Tensor:
    """Multi-similarity loss on s, over mined pairs: the mean over rows of

        1/alpha log[1 + sum_pos e^(-alpha (s - base))] + 1/beta log[1 + sum_neg e^(beta (s - base))]

    A negative stays if s > (hardest positive of its row) - epsilon, a positive if s < (hardest negative
    of its row) + epsilon; with epsilon=None all pairs stay. A row that lacks positives or negatives
    counts 0 in the mean.

    Wang et al., Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning, CVPR 2019.
    """

    def terms(matrix: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        complete = _any(positive, 1) & _any(negative, 1)
        if epsilon is not None:
            similarity = matrix.detach()
            hardest_positive = torch.where(positive, similarity, math.inf).amin(1, keepdim=True)
            hardest_negative = torch.where(negative, similarity, -math.inf).amax(1, keepdim=True)
            positive = positive & (similarity < hardest_negative + epsilon)
            negative = negative & (similarity > hardest_positive - epsilon)
        attraction = _log_one_plus_sum_exp(-alpha * (matrix - base), positive, 1) / alpha
        repulsion = _log_one_plus_sum_exp(beta * (matrix - base), negative, 1) / beta
        total, _ = _total(attraction + repulsion, complete)
        return total, total.new_full((1,), len(matrix))

    return _mean_of_terms(terms, matrix, positive, negative)


@_objective
def fast_ap(matrix: Tensor, positive: Tensor, negative: Tensor, *, num_bins: int = 10) -> Tensor:
    """FastAP on d: 1 - mean over rows of sum_b h+_b H+_b / H_b / N+, average precision from soft histograms.

    The histogram of d^2 has num_bins + 1 edges on [0, 4] and a triangular kernel of half-width
    4/num_bins; h+_b counts positives and h_b all pairs at edge b, H+ and H are their cumulative sums, N+
    the positives of the row. A term is 0 where H_b = 0. Rows without positives are left out. ValueError if
    num_bins < 1.

    Cakir et al., Deep Metric Learning to Rank, CVPR 2019.
    """
    if num_bins < 1:
        raise ValueError(f"fast_ap: num_bins must be at least 1, got {num_bins}")
    at_edge_positive, at_edge = _SoftHistograms.apply(matrix, positive, positive | negative, num_bins)
    up_to = at_edge.cumsum(1)
    precision = at_edge_positive.cumsum(1) / torch.where(up_to > 0, up_to, 1)
    average_precision = (at_edge_positive * precision).sum(1) / positive.sum(1).clamp(min=1)
    total, rows = _total(1 - average_precision, _any(positive, 1))
    return (total / rows.clamp(min=1)).sum()


class _SoftHistograms(torch.autograd.Function):
    """Histograms of d^2 by row, of the positives and of all counted pairs: two (Q, num_bins + 1).

    The edges are on [0, 4], and a pair counts at an edge with relu(1 - |d^2 - edge| num_bins/4): only the two edges
    about it get a share, so its gradient is the difference between those of the two, 0 where it lies on an edge.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, positive: Tensor, counted: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
        found = [matrix.new_empty(len(matrix), num_bins + 1) for _ in range(2)]
        for rows, _ in _tiles(matrix, _SoftHistograms.rows(matrix)):
            place = _SoftHistograms.place(matrix[rows], counted[rows], num_bins)
            own = positive[rows].to(place.dtype)
            share = torch.empty_like(place)
            for edge in range(num_bins + 1):
                torch.sub(place, edge, out=share).abs_().neg_().add_(1).clamp_(min=0)
                found[1][rows, edge] = share.sum(1)
                found[0][rows, edge] = share.mul_(own).sum(1)
        ctx.save_for_backward(matrix, positive, counted)
        ctx.num_bins = num_bins
        return found[0], found[1]

    @staticmethod
    def rows(matrix: Tensor) -> tuple[int, int]:
        """As many rows as stay in a CPU's cache."""
        whole = matrix.device.type != "cpu"
        return len(matrix) if whole else max(1, CACHED // matrix.shape[1]), matrix.shape[1]

    @staticmethod
    def place(matrix: Tensor, counted: Tensor, num_bins: int) -> Tensor:
        """d^2 in widths of a bin, and beyond the reach of every edge for pairs that do not count."""
        return torch.where(counted, matrix.square() * (num_bins / 4), num_bins + 1).clamp_(max=num_bins + 1)

    @staticmethod
    def backward(ctx: Any, on_positive: Tensor, on_all: Tensor) -> tuple[Tensor | None, ...]:
        matrix, positive, counted = ctx.saved_tensors
        # behind the last edge nothing counts: two more, with gradient zero
        both = torch.stack([on_all, on_all + on_positive], dim=1)
        slopes = F.pad(both, (0, 2)).diff(dim=2).mul_(ctx.num_bins / 2)  # (Q, negative or positive, num_bins + 2)
        slopes = slopes.flatten(1)
        gradient = torch.empty_like(matrix)
        for rows, _ in _tiles(matrix, _SoftHistograms.rows(matrix)):
            place = _SoftHistograms.place(matrix[rows].detach(), counted[rows], ctx.num_bins)
            edge = place.floor()
            between = place != edge
            index = edge.nan_to_num_().long().add_(positive[rows], alpha=ctx.num_bins + 2)
            slope = slopes[rows].gather(1, index) * matrix[rows]
            gradient[rows] = torch.where(between, slope, 0)
        return gradient, None, None, None


# ---------------------------------------------------------------- objectives on proxies


@_objective
def proxy_nca(
    matrix: Tensor, positive: Tensor, negative: Tensor, *, scale: float = 1.0, include_positive: bool = False
) -> Tensor:
    """ProxyNCA on x: mean over rows of -log(sum_pos e^(-scale x) / sum_neg e^(-scale x)); may be negative.

    x is what the matrix holds: d in IDML's form, d^2 in the first paper and ProxyNCA++, -s in
    Anti-Collapse's. `include_positive` adds the positives to the sum below the line. Rows without
    positives are left out, and so are rows without negatives unless `include_positive`.

    Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017;
    Teh et al., ProxyNCA++, ECCV 2020.
    """
    total, rows = _negative_log_ratio(matrix, positive, positive | negative if include_positive else negative, -scale)
    return (total / rows.clamp(min=1)).sum()


@_objective
def proxy_anchor(
    matrix: Tensor, positive: Tensor, negative: Tensor, *, alpha: float = 32.0, margin: float = 0.1
) -> Tensor:
    """ProxyAnchor on s; sums go down the columns, for the proxies (references) are the anchors:

        mean over references with a positive of log[1 + sum_pos e^(-alpha (s - margin))]
        + mean over all references of log[1 + sum_neg e^(alpha (s + margin))]

    Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020.
    """

    def terms(matrix: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        attraction = _log_one_plus_sum_exp(-alpha * (matrix - margin), positive, 0)
        repulsion = _log_one_plus_sum_exp(alpha * (matrix + margin), negative, 0)
        pulled, proxies = _total(attraction, _any(positive, 0))
        return torch.cat([pulled, repulsion.sum()[None]]), torch.cat([proxies, proxies.new_tensor([len(repulsion)])])

    return _mean_of_terms(terms, matrix, positive, negative, dim=1)


@_objective
def normalized_softmax(matrix: Tensor, positive: Tensor, negative: Tensor, *, temperature: float = 0.05) -> Tensor:
    """Normalised softmax on s: mean over rows of -log(sum_pos e^(s/temperature) / sum_all e^(s/temperature)).

    "All" are positives and negatives; several positives share the numerator. Rows without positives are left
    out.

    Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019.
    """
    total, rows = _negative_log_ratio(matrix, positive, positive | negative, 1 / temperature)
    return (total / rows.clamp(min=1)).sum()


@_objective
def soft_triple(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    centres_per_class: int,
    la: float = 20.0,
    gamma: float = 0.1,
    margin: float = 0.01,
) -> Tensor:
    """SoftTriple on the similarities s (Q, C * M) to centres, columns class-major (class by class).

        S_c = sum_m softmax_m(s_cm / gamma) s_cm
        loss = mean over rows of the cross-entropy of la (S_c - margin [c = y])

    The masks are those of the centres; a class is positive if one of its centres is, and left out if all
    of them are neither. Several positive classes (label sets) share the numerator; rows without one are
    left out. ValueError if the columns are not a multiple of centres_per_class. The paper's regulariser
    is `centre_merging`.

    Qian et al., SoftTriple Loss, ICCV 2019.
    """
    _check_class_major("soft_triple: the matrix's columns", matrix.shape[1], centres_per_class)
    by_class = (len(matrix), -1, centres_per_class)
    counted = positive | negative
    own, below = (_any(mask.reshape(by_class), 2) for mask in (positive, counted))
    class_similarity = cast(Tensor, _SoftMaximum.apply(matrix, counted, centres_per_class, gamma))
    total, rows = _negative_log_ratio(class_similarity - margin * own.to(matrix.dtype), own, below, la)
    return (total / rows.clamp(min=1)).sum()


class _SoftMaximum(torch.autograd.Function):
    """S_c = sum_m softmax_m(s_cm / gamma) s_cm over the counted centres of each class, (Q, C); 0 without any.

    Its gradient p_cm (1 + (s_cm - S_c) / gamma) is computed with it, in blocks that stay in the cache, class by class
    along the fastest axis: a softmax over the few centres of a class is slow.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, counted: Tensor, centres: int, gamma: float) -> Tensor:
        found = matrix.new_empty(len(matrix), matrix.shape[1] // centres)
        gradient = torch.empty_like(matrix) if ctx.needs_input_grad[0] else None
        whole, lowest = bool(counted.view(torch.uint8).amin()), torch.finfo(matrix.dtype).min
        size = CACHED if matrix.device.type == "cpu" else matrix.numel()
        columns = max(centres, min(matrix.shape[1], size // centres * centres))
        for block in _tiles(matrix, (max(1, size // columns), columns)):
            classes = block[0], slice(block[1].start // centres, block[1].stop // centres)
            by_centre = (-1, matrix[block].shape[1] // centres, centres)
            similarity = matrix[block].reshape(by_centre).permute(2, 0, 1).contiguous()
            if not whole:
                mask = counted[block].reshape(by_centre).permute(2, 0, 1)
                similarity.masked_fill_(~mask, lowest)
            highest = similarity.amax(0)
            weight = _exp_of_at_most_zero((similarity - highest).div_(gamma))
            if not whole:
                weight.masked_fill_(~mask, 0)
                similarity.masked_fill_(~mask, 0)
            weight.div_(weight.sum(0).clamp_(min=torch.finfo(matrix.dtype).tiny))
            mean = (weight * similarity).sum(0)
            found[classes] = mean
            if gradient is not None:
                slope = similarity.sub_(mean).div_(gamma).add_(1).mul_(weight)
                gradient[block].view(by_centre).copy_(slope.permute(1, 2, 0))
        if gradient is not None:
            ctx.save_for_backward(gradient, matrix, counted)
        ctx.centres, ctx.gamma = centres, gamma
        return found

    @staticmethod
    def backward(ctx: Any, on_found: Tensor) -> tuple[Tensor | None, ...]:
        gradient, matrix, counted = ctx.saved_tensors
        by_class = gradient.view(len(gradient), -1, ctx.centres)
        if torch.is_grad_enabled():  # by plain operations, to be differentiated again
            others = ~counted.view_as(by_class)
            similarity = matrix.reshape(by_class.shape).masked_fill(others, 0)
            logits = (similarity / ctx.gamma).masked_fill(others, torch.finfo(matrix.dtype).min)
            weight = logits.softmax(2).masked_fill(others, 0)
            mean = (weight * similarity).sum(2, keepdim=True)
            by_class = weight * (1 + (similarity - mean) / ctx.gamma)
        return (by_class * on_found.unsqueeze(2)).view_as(gradient), None, None, None


def centre_merging(centres: Tensor, centres_per_class: int) -> Tensor:
    """SoftTriple's regulariser: sum_c sum_{m < m'} sqrt(2 - 2 w_cm . w_cm') / (C M (M - 1)).

    centres (C * M, D) are unit rows, class-major. Zero for one centre per class; where two centres coincide
    the term and its gradient are zero. ValueError if the rows are not a multiple of centres_per_class.

    Qian et al., SoftTriple Loss, ICCV 2019, Eq. 9.
    """
    _check_class_major("centre_merging: the centres", len(centres), centres_per_class)
    centres = centres.to(torch.promote_types(centres.dtype, torch.float32))
    classes = len(centres) // centres_per_class
    grouped = centres.reshape(classes, centres_per_class, centres.shape[1])
    first, second = torch.triu_indices(centres_per_class, centres_per_class, 1, device=centres.device)
    with _full_precision(centres.device):
        squared = 2 - 2 * (grouped @ grouped.mT)[:, first, second]
    apart = squared > 0
    # The product of equal rows is not exactly 1, hence the comparison of those that are close.
    for pairs in torch.split((apart & (squared < 1e-3)).nonzero(), CLOSE_PAIRS):
        of, pair = pairs.unbind(1)
        apart[of, pair] = (grouped[of, first[pair]] != grouped[of, second[pair]]).any(1)
    distance = torch.where(apart, torch.where(apart, squared, 1).sqrt(), 0)
    return distance.sum() / max(1, classes * centres_per_class * (centres_per_class - 1))


def _check_class_major(what: str, count: int, centres_per_class: int) -> None:
    if centres_per_class < 1 or count % centres_per_class:
        raise ValueError(f"{what} must be a multiple of centres_per_class={centres_per_class}, got {count}")
