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
from torch import Tensor
from torch.autograd.function import once_differentiable

# ---------------------------------------------------------------- matrices and masks


def euclidean_distance(queries: Tensor, references: Tensor) -> Tensor:
    """Distances d_ij = ||q_i - r_j|| of queries (Q, D) to references (R, D): (Q, R).

    Close pairs are exact to rounding (a Gram matrix in float32 loses them). Where two rows coincide the distance and
    its gradient are zero. Memory is a few (Q, R), in the backward pass too. It can be differentiated once.
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
    queries = query_labels[:, None].flatten(1)[:, None, :, None]
    references = reference_labels[:, None].flatten(1)[None, :, None, :]
    positive = ((queries == references) & (queries >= 0)).flatten(2).any(2)
    negative = ~positive
    if same:
        if len(query_labels) != len(reference_labels):
            sizes = f"{len(query_labels)} queries and {len(reference_labels)} references"
            raise ValueError(f"same=True needs equal numbers of queries and references, got {sizes}")
        positive.fill_diagonal_(False)
        negative.fill_diagonal_(False)
    return positive, negative


class _EuclideanDistance(torch.autograd.Function):
    """Written out because torch.cdist either loses close pairs in float32 or gives up matrix products, and because its
    backward pass on CUDA allocates Q x R x D numbers.

    Products of float32 numbers are exact in float64, so a Gram matrix in float64 gives distances to float32's rounding
    down to about 1e-6; closer pairs are taken from true differences. The gradient of a pair is its unit vector
    (q - r)/d: two more float64 products, and true differences again where they cancel.
    """

    NEAR: ClassVar[dict[torch.dtype, float]] = {torch.float32: 1e-5, torch.float64: 0.1}
    """Distances of rows of unit length below which true differences are taken, by the type of the input."""
    TILE = (2**10, 2**12)  # rows of queries and of references that are in float64 at a time
    PAIRS = 2**20  # numbers in the largest intermediate for near pairs

    @staticmethod
    def forward(ctx: Any, queries: Tensor, references: Tensor) -> Tensor:
        distance = queries.new_empty(len(queries), len(references))
        near = _EuclideanDistance.NEAR[queries.dtype]
        for rows, columns in _tiles(distance, _EuclideanDistance.TILE):
            q, r = queries[rows].double(), references[columns].double()
            q_squared, r_squared = q.square().sum(1, keepdim=True), r.square().sum(1)
            with _full_precision(queries.device):
                squared = torch.addmm(r_squared, q, r.T, alpha=-2).add_(q_squared).clamp_(min=0)
            close = squared < near**2 * torch.maximum(q_squared, r_squared)
            for pairs in torch.split(close.nonzero(), max(1, _EuclideanDistance.PAIRS // max(1, q.shape[1]))):
                i, j = pairs.unbind(1)
                squared[i, j] = (q[i] - r[j]).square().sum(1)
            distance[rows, columns] = squared.sqrt_()
        ctx.save_for_backward(queries, references, distance)
        return distance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        queries, references, distance = ctx.saved_tensors
        near = _EuclideanDistance.NEAR[queries.dtype]
        to_queries = torch.zeros_like(queries, dtype=torch.float64)
        to_references = torch.zeros_like(references, dtype=torch.float64)
        for rows, columns in _tiles(distance, _EuclideanDistance.TILE):
            q, r, d = queries[rows].double(), references[columns].double(), distance[rows, columns].double()
            weight = torch.where(d > 0, gradient[rows, columns] / d, 0)
            close = (d < near) & (weight != 0)
            far = weight.masked_fill(close, 0)
            with _full_precision(queries.device):
                to_queries[rows] += far.sum(1, keepdim=True) * q - far @ r
                to_references[columns] += far.sum(0)[:, None] * r - far.T @ q
            for pairs in torch.split(close.nonzero(), max(1, _EuclideanDistance.PAIRS // max(1, q.shape[1]))):
                i, j = pairs.unbind(1)
                force = weight[i, j, None] * (q[i] - r[j])
                to_queries.index_add_(0, i + rows.start, force)
                to_references.index_add_(0, j + columns.start, force, alpha=-1)
        return to_queries.to(queries.dtype), to_references.to(references.dtype)


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


def _mean(terms: Tensor, kept: Tensor) -> Tensor:
    """Mean of the kept terms, an attached zero if there is none."""
    return torch.where(kept, terms, 0).sum() / kept.sum().clamp(min=1)


def _log_sum_exp(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    """log sum e^logit over the masked entries along `dim`.

    Without any entry it is about the lowest finite number, not -inf, so that its gradient is 0 and not nan.
    """
    return torch.where(mask, logits, torch.finfo(logits.dtype).min).logsumexp(dim)


def _log_one_plus_sum_exp(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    """log(1 + sum e^logit) over the masked entries along `dim`; the 1 is a logit of zero."""
    total = _log_sum_exp(logits, mask, dim)
    return torch.logaddexp(total, torch.zeros_like(total))


def _negative_log_ratio(logits: Tensor, above: Tensor, below: Tensor) -> Tensor:
    """Mean over rows of -log(sum_above e^logit / sum_below e^logit), less those where a sum is empty."""
    ratio = _log_sum_exp(logits, below, 1) - _log_sum_exp(logits, above, 1)
    return _mean(ratio, above.any(1) & below.any(1))


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
    loss = matrix.new_zeros(())
    for pairs, signed in ((positive, matrix - pos_margin), (negative, neg_margin - matrix)):
        hinge = torch.where(pairs, signed, 0).relu()
        count = {"nonzero": hinge > 0, "all": pairs, "query": torch.ones_like(pairs[:, 0])}[average].sum()
        loss = loss + hinge.sum() / count.clamp(min=1)
    return loss


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
    anchors, positives = (positive & negative.any(1, keepdim=True)).nonzero(as_tuple=True)
    d_ap, d_an, kept = matrix[anchors, positives][:, None], matrix[anchors], negative[anchors]
    if mining == "semihard":
        # A pair without a candidate gets a negative at infinity, whose term is zero.
        d_an = torch.where(kept & (d_an > d_ap), d_an, math.inf).min(1, keepdim=True).values
        kept = kept.any(1, keepdim=True)
    hinge = torch.where(kept, d_ap - d_an + margin, 0).relu()
    return _mean(hinge, hinge > 0)


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
    weights. beta: a number, a learned scalar, or one value per query as (Q,) or (Q, 1), so that one beta
    per class is given as `betas[labels]`.

    Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017.
    """
    if not phi > 0:
        raise ValueError(f"margin: phi must be above 0, got {phi}")
    if isinstance(beta, Tensor) and beta.ndim == 1:
        beta = beta[:, None]
    drawn = _draw_negatives(matrix.detach(), positive, negative, dim, phi, generator)
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
    generator: torch.Generator | None,
) -> Tensor:
    """How often each negative is drawn, (Q, R) integers, if each row draws as many as it has positives."""
    clamped = distance.clamp(0.5, 1.4)
    log_weight = (2 - dim) * clamped.log() - (dim - 3) / 2 * (1 - clamped.square() / 4).log()
    near = negative & (distance <= 1.4)
    log_weight = torch.where(near, log_weight, torch.finfo(log_weight.dtype).min)
    log_weight = log_weight - log_weight.amax(1, keepdim=True)
    cap = min(math.log(phi), 0.0)
    weight = torch.where(near, (log_weight.clamp(max=cap) - cap).exp(), 0)
    weight = torch.where(near.any(1, keepdim=True), weight, negative.to(weight.dtype))

    drawn = torch.zeros_like(positive, dtype=torch.long)
    rows = positive.any(1) & negative.any(1)
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
    complete = positive.any(1) & negative.any(1)
    if epsilon is not None:
        similarity = matrix.detach()
        hardest_positive = torch.where(positive, similarity, math.inf).amin(1, keepdim=True)
        hardest_negative = torch.where(negative, similarity, -math.inf).amax(1, keepdim=True)
        positive = positive & (similarity < hardest_negative + epsilon)
        negative = negative & (similarity > hardest_positive - epsilon)
    attraction = _log_one_plus_sum_exp(-alpha * (matrix - base), positive, 1) / alpha
    repulsion = _log_one_plus_sum_exp(beta * (matrix - base), negative, 1) / beta
    return torch.where(complete, attraction + repulsion, 0).sum() / len(matrix)


@_objective
def fast_ap(matrix: Tensor, positive: Tensor, negative: Tensor, *, num_bins: int = 10) -> Tensor:
    """FastAP on d: 1 - mean over rows of sum_b h+_b H+_b / H_b / N+, average precision from soft histograms.

    The histogram of d^2 has num_bins + 1 edges on [0, 4] and a triangular kernel of half-width
    4/num_bins; h+_b counts positives and h_b all pairs at edge b, H+ and H are their cumulative sums, N+
    the positives of the row. A term is 0 where H_b = 0. Rows without positives are left out. Memory is
    (Q, R, num_bins + 1). ValueError if num_bins < 1.

    Cakir et al., Deep Metric Learning to Rank, CVPR 2019.
    """
    if num_bins < 1:
        raise ValueError(f"fast_ap: num_bins must be at least 1, got {num_bins}")
    edges = torch.linspace(0, 4, num_bins + 1, dtype=matrix.dtype, device=matrix.device)
    counted = positive | negative
    squared = torch.where(counted, matrix, 0).square()
    share = (1 - (squared[:, :, None] - edges).abs() * (num_bins / 4)).relu()
    at_edge_positive = (share * positive[:, :, None]).sum(1)
    up_to_positive = at_edge_positive.cumsum(1)
    up_to = (share * counted[:, :, None]).sum(1).cumsum(1)
    precision = up_to_positive / torch.where(up_to > 0, up_to, 1)
    average_precision = (at_edge_positive * precision).sum(1) / positive.sum(1).clamp(min=1)
    return _mean(1 - average_precision, positive.any(1))


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
    below = positive | negative if include_positive else negative
    return _negative_log_ratio(-scale * matrix, positive, below)


@_objective
def proxy_anchor(
    matrix: Tensor, positive: Tensor, negative: Tensor, *, alpha: float = 32.0, margin: float = 0.1
) -> Tensor:
    """ProxyAnchor on s; sums go down the columns, for the proxies (references) are the anchors:

        mean over references with a positive of log[1 + sum_pos e^(-alpha (s - margin))]
        + mean over all references of log[1 + sum_neg e^(alpha (s + margin))]

    Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020.
    """
    attraction = _log_one_plus_sum_exp(-alpha * (matrix - margin), positive, 0)
    repulsion = _log_one_plus_sum_exp(alpha * (matrix + margin), negative, 0)
    return _mean(attraction, positive.any(0)) + repulsion.mean()


@_objective
def normalized_softmax(matrix: Tensor, positive: Tensor, negative: Tensor, *, temperature: float = 0.05) -> Tensor:
    """Normalised softmax on s: mean over rows of -log(sum_pos e^(s/temperature) / sum_all e^(s/temperature)).

    "All" are positives and negatives; several positives share the numerator. Rows without positives are left
    out.

    Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019.
    """
    return _negative_log_ratio(matrix / temperature, positive, positive | negative)


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
    similarity = torch.where(counted, matrix, 0)
    lowest = torch.finfo(matrix.dtype).min
    share = torch.where(counted, similarity / gamma, lowest).reshape(by_class).softmax(2)
    class_similarity = (share * similarity.reshape(by_class)).sum(2)
    own = positive.reshape(by_class).any(2)
    below = counted.reshape(by_class).any(2)
    return _negative_log_ratio(la * (class_similarity - margin * own.to(matrix.dtype)), own, below)


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
    left, right = grouped[:, first], grouped[:, second]
    squared = 2 - 2 * (left * right).sum(2)
    # The product of equal rows is not exactly 1, hence the comparison.
    apart = (left != right).any(2) & (squared > 0)
    distance = torch.where(apart, torch.where(apart, squared, 1).sqrt(), 0)
    return distance.sum() / max(1, classes * centres_per_class * (centres_per_class - 1))


def _check_class_major(what: str, count: int, centres_per_class: int) -> None:
    if centres_per_class < 1 or count % centres_per_class:
        raise ValueError(f"{what} must be a multiple of centres_per_class={centres_per_class}, got {count}")
