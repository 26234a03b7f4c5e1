"""The objectives: a matrix between queries and references and two masks of pairs give one scalar.

A loss of deep metric learning is a choice of references (the batch, class proxies, a memory), of a metric
(distance d or cosine similarity s) and of an objective. This file holds the objectives; the plain matrices
and masks for them (`distances.py`) can be imported from here too.

    Q queries, R references, D embedding size, C classes, M centres per class
    matrix    (Q, R) floating point, d or s; half precision is promoted to float32, float64 stays float64
    positive  (Q, R) bool, pairs that share a label
    negative  (Q, R) bool, pairs that share none

Common to all objectives: embeddings are never normalised here, the caller passes unit rows; an entry that is
neither positive nor negative (a sample paired with itself) adds exactly nothing to value or gradient, even if
it is inf or nan; gradients are finite; if no term is left, the result is a zero attached to the graph. Masks
that are not boolean, or of another shape than the matrix, raise ValueError. With `reduction="rows"` the result is
(Q,), each query's share: their mean is the scalar, whatever that is divided by. ProxyAnchor has none, for its terms
are those of proxies.
"""

import math
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.distances import cosine_similarity as cosine_similarity
from methods.distances import euclidean_distance as euclidean_distance
from methods.distances import full_precision, tiles
from methods.distances import pair_masks as pair_masks
from methods.reductions import (
    CACHED,
    Reduction,
    any_of,
    exp_of_at_most_zero,
    kept_terms,
    log_one_plus_sum_exp,
    mean_of_terms,
    negative_log_ratio,
    objective,
    reduce_sums,
)

CLOSE_PAIRS = 2**12  # pairs of centres that are compared at a time


# ---------------------------------------------------------------- objectives on pairs and triplets


@objective
def contrastive(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    pos_margin: float = 0.0,
    neg_margin: float = 0.5,
    average: Literal["nonzero", "all", "query"] = "nonzero",
    reduction: Reduction = "mean",
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
        masks = {"nonzero": [hinge > 0 for hinge in hinges], "all": [positive, negative]}.get(average)
        counts = [pairs.sum(1) for pairs in masks] if masks else [matrix.new_ones(len(matrix))] * 2
        return torch.stack([hinge.sum(1) for hinge in hinges], 1), torch.stack(counts, 1)

    return mean_of_terms(terms, matrix, positive, negative, reduction=reduction)


@objective
def triplet(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float = 0.1,
    mining: Literal["semihard", "all"] = "semihard",
    reduction: Reduction = "mean",
) -> Tensor:
    """Triplet loss on d: mean of the terms [d_ap - d_an + margin]+ above zero, (a, p, n) in the row of a.

    `mining`: "semihard" keeps for each (a, p) the closest n with d_an > d_ap, and drops the pair if there is
    none; "all" keeps every triplet; ValueError for any other. Memory is (number of positive pairs, R).

    Schroff et al., FaceNet, CVPR 2015.
    """
    if mining not in ("semihard", "all"):
        raise ValueError(f'triplet: mining must be "semihard" or "all", got {mining!r}')

    def terms(matrix: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        anchors, positives = (positive & any_of(negative, 1)[:, None]).nonzero(as_tuple=True)
        d_ap, d_an, valid = matrix[anchors, positives][:, None], matrix[anchors], negative[anchors]
        if mining == "semihard":
            # A pair without a candidate gets a negative at infinity, whose term is zero.
            d_an = torch.where(valid & (d_an > d_ap), d_an, math.inf).min(1, keepdim=True).values
            valid = valid.any(1, keepdim=True)
        hinge = torch.where(valid, d_ap - d_an + margin, 0).relu()
        none = hinge.new_zeros(len(matrix))
        by_anchor = (none.index_add(0, anchors, each.to(hinge.dtype)) for each in (hinge.sum(1), (hinge > 0).sum(1)))
        sums, counts = (each[:, None] for each in by_anchor)
        return sums, counts

    width = math.ceil(int(positive.sum()) / len(matrix))
    return mean_of_terms(terms, matrix, positive, negative, width=max(1, width), reduction=reduction)


@objective
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
    reduction: Reduction = "mean",
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
    negatives = _draw_negatives(matrix.detach(), positive, negative, dim, phi, phi_form, generator)
    attracted = torch.where(positive, matrix - (beta - alpha), 0).relu()
    repelled = torch.where(negatives > 0, (beta + alpha) - matrix, 0).relu()
    counts = (attracted > 0).sum(1) + (negatives * (repelled > 0)).sum(1)
    return reduce_sums((attracted.sum(1) + (negatives * repelled).sum(1))[:, None], counts[:, None], reduction)


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

    counts = torch.zeros_like(positive, dtype=torch.long)
    (rows,) = (any_of(positive, 1) & any_of(negative, 1)).nonzero(as_tuple=True)
    if len(rows):
        # A generator belongs to one device; on the CPU it gives the same draws for every accelerator.
        device = generator.device if generator is not None else weight.device
        number = positive[rows].sum(1, keepdim=True)
        most = int(number.max())
        picks = torch.multinomial(weight[rows].to(device), most, replacement=True, generator=generator)
        used = torch.arange(most, device=number.device) < number
        counts[rows] = counts[rows].scatter_add(1, picks.to(counts.device), used.long())
    return counts


@objective
def multi_similarity(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float | None = 0.1,
    reduction: Reduction = "mean",
) -> Tensor:
    """Multi-similarity loss on s, over mined pairs: the mean over rows of

        1/alpha log[1 + sum_pos e^(-alpha (s - base))] + 1/beta log[1 + sum_neg e^(beta (s - base))]

    A negative stays if s > (hardest positive of its row) - epsilon, a positive if s < (hardest negative
    of its row) + epsilon; with epsilon=None all pairs stay. A row that lacks positives or negatives
    counts 0 in the mean.

    Wang et al., Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning, CVPR 2019.
    """

    def terms(matrix: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        complete = any_of(positive, 1) & any_of(negative, 1)
        if epsilon is not None:
            similarity = matrix.detach()
            hardest_positive = torch.where(positive, similarity, math.inf).amin(1, keepdim=True)
            hardest_negative = torch.where(negative, similarity, -math.inf).amax(1, keepdim=True)
            positive = positive & (similarity < hardest_negative + epsilon)
            negative = negative & (similarity > hardest_positive - epsilon)
        attraction = log_one_plus_sum_exp(-alpha * (matrix - base), positive, 1) / alpha
        repulsion = log_one_plus_sum_exp(beta * (matrix - base), negative, 1) / beta
        rows, _ = kept_terms(attraction + repulsion, complete)
        return rows, torch.ones_like(rows)

    return mean_of_terms(terms, matrix, positive, negative, reduction=reduction)


@objective
def fast_ap(
    matrix: Tensor, positive: Tensor, negative: Tensor, *, num_bins: int = 10, reduction: Reduction = "mean"
) -> Tensor:
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
    return reduce_sums(*kept_terms(1 - average_precision, any_of(positive, 1)), reduction)


class _SoftHistograms(torch.autograd.Function):
    """Histograms of d^2 by row, of the positives and of all counted pairs: two (Q, num_bins + 1).

    The edges are on [0, 4], and a pair counts at an edge with relu(1 - |d^2 - edge| num_bins/4): only the two edges
    about it get a share, so its gradient is the difference between those of the two, 0 where it lies on an edge.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, positive: Tensor, counted: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
        histograms = [matrix.new_empty(len(matrix), num_bins + 1) for _ in range(2)]
        for rows, _ in tiles(matrix, _SoftHistograms.rows(matrix)):
            place = _SoftHistograms.place(matrix[rows], counted[rows], num_bins)
            is_positive = positive[rows].to(place.dtype)
            share = torch.empty_like(place)
            for edge in range(num_bins + 1):
                torch.sub(place, edge, out=share).abs_().neg_().add_(1).clamp_(min=0)
                histograms[1][rows, edge] = share.sum(1)
                histograms[0][rows, edge] = share.mul_(is_positive).sum(1)
        ctx.save_for_backward(matrix, positive, counted)
        ctx.num_bins = num_bins
        return histograms[0], histograms[1]

    @staticmethod
    def rows(matrix: Tensor) -> tuple[int, int]:
        """As many rows as fit into a CPU's cache."""
        whole = matrix.device.type != "cpu"
        return len(matrix) if whole else max(1, CACHED // matrix.shape[1]), matrix.shape[1]

    @staticmethod
    def place(matrix: Tensor, counted: Tensor, num_bins: int) -> Tensor:
        """d^2 in widths of a bin, and beyond the reach of every edge for pairs that do not count."""
        return torch.where(counted, matrix.square() * (num_bins / 4), num_bins + 1).clamp_(max=num_bins + 1)

    @staticmethod
    def backward(ctx: Any, on_positive: Tensor, on_all: Tensor) -> tuple[Tensor | None, ...]:
        matrix, positive, counted = ctx.saved_tensors
        # nothing counts beyond the last edge: two more columns, with gradient zero
        both = torch.stack([on_all, on_all + on_positive], dim=1)
        slopes = F.pad(both, (0, 2)).diff(dim=2).mul_(ctx.num_bins / 2)  # (Q, negative or positive, num_bins + 2)
        slopes = slopes.flatten(1)
        gradient = torch.empty_like(matrix)
        for rows, _ in tiles(matrix, _SoftHistograms.rows(matrix)):
            place = _SoftHistograms.place(matrix[rows].detach(), counted[rows], ctx.num_bins)
            edge = place.floor()
            between = place != edge
            index = edge.nan_to_num_().long().add_(positive[rows], alpha=ctx.num_bins + 2)
            slope = slopes[rows].gather(1, index) * matrix[rows]
            gradient[rows] = torch.where(between, slope, 0)
        return gradient, None, None, None


# ---------------------------------------------------------------- objectives on proxies


@objective
def proxy_nca(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    scale: float = 1.0,
    include_positive: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    """ProxyNCA on x: mean over rows of -log(sum_pos e^(-scale x) / sum_neg e^(-scale x)); may be negative.

    x is what the matrix holds: d in IDML's form, d^2 in the first paper and ProxyNCA++, -s in
    Anti-Collapse's. `include_positive` adds the positives to the denominator. Rows without
    positives are left out, and so are rows without negatives unless `include_positive`.

    Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017;
    Teh et al., ProxyNCA++, ECCV 2020.
    """
    return reduce_sums(
        *negative_log_ratio(matrix, positive, positive | negative if include_positive else negative, -scale), reduction
    )


@objective
def proxy_anchor(
    matrix: Tensor, positive: Tensor, negative: Tensor, *, alpha: float = 32.0, margin: float = 0.1
) -> Tensor:
    """ProxyAnchor on s; sums go down the columns, since the proxies (references) are the anchors:

        mean over references with a positive of log[1 + sum_pos e^(-alpha (s - margin))]
        + mean over all references of log[1 + sum_neg e^(alpha (s + margin))]

    Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020.
    """

    def terms(matrix: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        attraction = log_one_plus_sum_exp(-alpha * (matrix - margin), positive, 0)
        repulsion = log_one_plus_sum_exp(alpha * (matrix + margin), negative, 0)
        pulled, proxies = kept_terms(attraction, any_of(positive, 0))
        return torch.cat([pulled, repulsion[:, None]], 1), torch.cat([proxies, torch.ones_like(proxies)], 1)

    return mean_of_terms(terms, matrix, positive, negative, dim=1)


@objective
def normalized_softmax(
    matrix: Tensor, positive: Tensor, negative: Tensor, *, temperature: float = 0.05, reduction: Reduction = "mean"
) -> Tensor:
    """Normalised softmax on s: mean over rows of -log(sum_pos e^(s/temperature) / sum_all e^(s/temperature)).

    "All" are positives and negatives; several positives share the numerator. Rows without positives are left
    out.

    Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019.
    """
    return reduce_sums(*negative_log_ratio(matrix, positive, positive | negative, 1 / temperature), reduction)


@objective
def soft_triple(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    centres_per_class: int,
    la: float = 20.0,
    gamma: float = 0.1,
    margin: float = 0.01,
    reduction: Reduction = "mean",
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
    is_pair = positive | negative
    has_positive, below = (any_of(mask.reshape(by_class), 2) for mask in (positive, is_pair))
    class_similarity = cast(Tensor, _SoftMaximum.apply(matrix, is_pair, centres_per_class, gamma))
    return reduce_sums(
        *negative_log_ratio(class_similarity - margin * has_positive.to(matrix.dtype), has_positive, below, la),
        reduction,
    )


class _SoftMaximum(torch.autograd.Function):
    """S_c = sum_m softmax_m(s_cm / gamma) s_cm over the counted centres of each class, (Q, C); 0 without any.

    Its gradient p_cm (1 + (s_cm - S_c) / gamma) is computed with it, in blocks that stay in the cache, class by class
    along the fastest axis: a softmax over the few centres of a class is slow.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, counted: Tensor, centres: int, gamma: float) -> Tensor:
        maxima = matrix.new_empty(len(matrix), matrix.shape[1] // centres)
        gradient = torch.empty_like(matrix) if ctx.needs_input_grad[0] else None
        lowest = torch.finfo(matrix.dtype).min
        whole = matrix.device.type == "cpu" and bool(counted.view(torch.uint8).amin())  # a GPU would be waited for
        size = CACHED if matrix.device.type == "cpu" else matrix.numel()
        columns = max(centres, min(matrix.shape[1], size // centres * centres))
        for block in tiles(matrix, (max(1, size // columns), columns)):
            classes = block[0], slice(block[1].start // centres, block[1].stop // centres)
            by_centre = (-1, matrix[block].shape[1] // centres, centres)
            similarity = matrix[block].reshape(by_centre).permute(2, 0, 1)
            similarity = similarity.clone(memory_format=torch.contiguous_format)  # never a view of the matrix
            if not whole:
                mask = counted[block].reshape(by_centre).permute(2, 0, 1)
                similarity.masked_fill_(~mask, lowest)
            highest = similarity.amax(0)
            weight = exp_of_at_most_zero((similarity - highest).div_(gamma))
            if not whole:
                weight.masked_fill_(~mask, 0)
                similarity.masked_fill_(~mask, 0)
            weight.div_(weight.sum(0).clamp_(min=torch.finfo(matrix.dtype).tiny))
            mean = (weight * similarity).sum(0)
            maxima[classes] = mean
            if gradient is not None:
                slope = similarity.sub_(mean).div_(gamma).add_(1).mul_(weight)
                gradient[block].view(by_centre).copy_(slope.permute(1, 2, 0))
        if gradient is not None:
            ctx.save_for_backward(gradient, matrix, counted)
        ctx.centres, ctx.gamma = centres, gamma
        return maxima

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
    with full_precision(centres.device):
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
