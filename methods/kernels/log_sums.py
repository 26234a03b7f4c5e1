"""Logarithms of sums of exponentials over the positive and over the negative pairs of each anchor, in Triton kernels.

The losses on proxies that are made of them are in `methods.kernels.proxy_losses`.
"""

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.derivatives import differentiable_once
from methods.kernels.tiles import TILE, Tile, add_products, products

Measure = Literal["cosine", "squared_euclidean"]


def log_sums(
    anchors: Tensor,
    others: Tensor,
    anchor_labels: Tensor,
    other_labels: Tensor,
    slopes: tuple[float, float],
    metric: Measure = "cosine",
    tile: Tile = TILE,
) -> tuple[Tensor, Tensor]:
    """log sum_j e^(slope s_ij) over the positive pairs of each anchor i, and over its negative ones: two (N,), float32.

    s is x_i . y_j, or -||x_i - y_j||^2. Anchors (N, D) and others (M, D) are floats, computed in float32; labels (N, L)
    and (M, L') are integers, padded with -1; a pair is positive if it shares a label, else negative. -inf where an
    anchor has no such pair. Differentiable once by anchors and others; memory is linear in N and M.
    """
    x, y = anchors.float(), others.float()
    if metric == "cosine":
        bias = y.new_zeros(len(y))
        sums = _LogSums.apply(x, y, bias, anchor_labels, other_labels, slopes, tile)
        return sums[0], sums[1]
    bias = -y.square().sum(1) / 2  # -||x - y||^2 = 2 (x . y - ||y||^2 / 2) - ||x||^2
    both = _LogSums.apply(x, y, bias, anchor_labels, other_labels, (2 * slopes[0], 2 * slopes[1]), tile)
    x_squares = x.square().sum(1)
    return both[0] - slopes[0] * x_squares, both[1] - slopes[1] * x_squares


class _LogSums(torch.autograd.Function):
    """Of slope (x_i . y_j + bias_j); (2, N)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        bias: Tensor,
        x_labels: Tensor,
        y_labels: Tensor,
        slopes: tuple[float, float],
        tile: Tile,
    ) -> Tensor:
        x, y, bias, x_labels, y_labels = (part.contiguous() for part in (x, y, bias, x_labels, y_labels))
        blocks, parts, part_size = tile.grid(len(x), len(y))
        columns = tile.by_dimension(y)
        result = x.new_empty(2, parts, len(x))
        _sums[blocks, parts](
            x,
            columns,
            columns.shape[1],
            bias,
            x_labels,
            y_labels,
            result,
            len(x),
            len(y),
            x.shape[1],
            part_size,
            float(slopes[0]),
            float(slopes[1]),
            OWN_LABELS=x_labels.shape[1],
            LABELS=y_labels.shape[1],
            **tile.options(),
        )
        sums = result.logsumexp(1)
        ctx.save_for_backward(x, y, bias, x_labels, y_labels, sums)
        ctx.slopes, ctx.tile = slopes, tile
        return sums

    @staticmethod
    def backward(ctx: Any, on_sums: Tensor) -> tuple[Tensor | None, ...]:
        x, y, bias, x_labels, y_labels, sums = ctx.saved_tensors
        on_sums = on_sums.contiguous()
        on_x = on_y = on_bias = None
        if ctx.needs_input_grad[0]:
            on_x, _ = _gradient(x, y, x_labels, y_labels, bias, sums, on_sums, ctx.slopes, ctx.tile, anchors=True)
        if ctx.needs_input_grad[1]:
            on_y, on_bias = _gradient(
                y, x, y_labels, x_labels, bias, sums, on_sums, ctx.slopes, ctx.tile, anchors=False
            )
        gradients = (
            None if part is None else differentiable_once(part, x, y, bias, what="a loss of the Triton kernels")
            for part in (on_x, on_y, on_bias)
        )
        return *gradients, None, None, None, None


def _gradient(
    own: Tensor,
    others: Tensor,
    own_labels: Tensor,
    other_labels: Tensor,
    bias: Tensor,
    sums: Tensor,
    on_sums: Tensor,
    slopes: tuple[float, float],
    tile: Tile,
    *,
    anchors: bool,
) -> tuple[Tensor, Tensor]:
    """The gradient on the owned rows (N, D), which are the anchors or the others, and on a bias of theirs (N,)."""
    count, dimensions = own.shape
    blocks, parts, part_size = tile.grid(count, len(others))
    columns = tile.by_dimension(others)
    gradients = own.new_zeros(parts, count, dimensions)
    totals = own.new_empty(parts, count)
    _add_weighted[blocks, parts](
        own,
        others,
        columns,
        columns.shape[1],
        bias,
        own_labels,
        other_labels,
        sums,
        on_sums,
        gradients,
        totals,
        own.new_empty(blocks, parts, tile.rows, tile.others),
        count,
        len(others),
        dimensions,
        part_size,
        float(slopes[0]),
        float(slopes[1]),
        ANCHORS=anchors,
        OWN_LABELS=own_labels.shape[1],
        LABELS=other_labels.shape[1],
        **tile.options(),
    )
    return gradients.sum(0), totals.sum(0)


@triton.jit(do_not_specialize=["count", "other_count"])
def _sums(
    own,
    columns,
    stride,
    bias,
    own_labels,
    other_labels,
    found,
    count,
    other_count,
    dimensions,
    part_size,
    positive_slope,
    negative_slope,
    OWN_LABELS: tl.constexpr,
    LABELS: tl.constexpr,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Program (block, part): both sums of a block of anchors over a part of the others, by their maximum and a sum."""
    block, part = tl.program_id(0), tl.program_id(1)
    rows = block * ROWS + tl.arange(0, ROWS)
    row_in = rows < count
    x = own + rows.to(tl.int64)[:, None] * dimensions
    high_positive = tl.full((ROWS,), -float("inf"), tl.float32)
    high_negative = tl.full((ROWS,), -float("inf"), tl.float32)
    sum_positive = tl.zeros((ROWS,), tl.float32)
    sum_negative = tl.zeros((ROWS,), tl.float32)
    end = tl.minimum((part + 1) * part_size, other_count)
    for start in range(part * part_size, end, OTHERS):
        at = start + tl.arange(0, OTHERS)
        at_in = at < end
        score = products(x, columns, row_in, at, stride, dimensions, ROWS, OTHERS, DEPTH)
        score += tl.load(bias + at, mask=at_in, other=0.0)[None, :]
        positive = _share_labels(own_labels, other_labels, rows, at, row_in, at_in, OWN_LABELS, LABELS, ROWS, OTHERS)
        high_positive, sum_positive = _more(high_positive, sum_positive, score * positive_slope, positive)
        negative = (positive == 0) & at_in[None, :]
        high_negative, sum_negative = _more(high_negative, sum_negative, score * negative_slope, negative)
    place = found + part * count + rows
    tl.store(place, high_positive + tl.log(sum_positive), mask=row_in)
    tl.store(place + tl.num_programs(1) * count, high_negative + tl.log(sum_negative), mask=row_in)


@triton.jit
def _more(high, total, logits, counted):
    """The running maximum and the sum of e^(logit - maximum) with the counted logits of one more tile."""
    higher = tl.maximum(high, tl.max(tl.where(counted, logits, -float("inf")), 1))
    base = tl.where(higher == -float("inf"), 0.0, higher)
    terms = tl.where(counted, tl.exp(logits - base[:, None]), 0.0)
    return higher, total * tl.exp(high - base) + tl.sum(terms, 1)


@triton.jit
def _share_labels(
    own_labels,
    other_labels,
    rows,
    at,
    row_in,
    at_in,
    OWN_LABELS: tl.constexpr,
    LABELS: tl.constexpr,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Whether a pair shares a label of at least 0, (ROWS, OTHERS); false outside."""
    shared = tl.zeros((ROWS, OTHERS), tl.int1)
    for i in tl.static_range(OWN_LABELS):
        row_label = tl.load(own_labels + rows * OWN_LABELS + i, mask=row_in, other=-1)
        for j in tl.static_range(LABELS):
            other_label = tl.load(other_labels + at * LABELS + j, mask=at_in, other=-1)
            shared = shared | ((row_label[:, None] == other_label[None, :]) & (row_label >= 0)[:, None])
    return shared


@triton.jit(do_not_specialize=["count", "other_count"])
def _add_weighted(
    own,
    others,
    columns,
    stride,
    bias,
    own_labels,
    other_labels,
    sums,
    on_sums,
    gradients,
    totals,
    scratch,
    count,
    other_count,
    dimensions,
    part_size,
    positive_slope,
    negative_slope,
    ANCHORS: tl.constexpr,
    OWN_LABELS: tl.constexpr,
    LABELS: tl.constexpr,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Program (block, part): sum_j w_ij y_j and sum_j w_ij of a block of rows over a part of the others, w being the
    gradient on the score of a pair. The rows are the anchors, whose sums and gradients it reads, or the others."""
    block, part = tl.program_id(0), tl.program_id(1)
    rows = block * ROWS + tl.arange(0, ROWS)
    row_in = rows < count
    x = own + rows.to(tl.int64)[:, None] * dimensions
    to = gradients + (part.to(tl.int64) * count + rows.to(tl.int64))[:, None] * dimensions
    scratch += (block * tl.num_programs(1) + part).to(tl.int64) * ROWS * OTHERS
    total = tl.zeros((ROWS,), tl.float32)
    end = tl.minimum((part + 1) * part_size, other_count)
    for start in range(part * part_size, end, OTHERS):
        at = start + tl.arange(0, OTHERS)
        at_in = at < end
        score = products(x, columns, row_in, at, stride, dimensions, ROWS, OTHERS, DEPTH)
        if ANCHORS:
            score += tl.load(bias + at, mask=at_in, other=0.0)[None, :]
            log_positive = tl.load(sums + rows, mask=row_in, other=0.0)[:, None]
            log_negative = tl.load(sums + count + rows, mask=row_in, other=0.0)[:, None]
            on_positive = tl.load(on_sums + rows, mask=row_in, other=0.0)[:, None]
            on_negative = tl.load(on_sums + count + rows, mask=row_in, other=0.0)[:, None]
        else:
            score += tl.load(bias + rows, mask=row_in, other=0.0)[:, None]
            log_positive = tl.load(sums + at, mask=at_in, other=0.0)[None, :]
            log_negative = tl.load(sums + other_count + at, mask=at_in, other=0.0)[None, :]
            on_positive = tl.load(on_sums + at, mask=at_in, other=0.0)[None, :]
            on_negative = tl.load(on_sums + other_count + at, mask=at_in, other=0.0)[None, :]
        positive = _share_labels(own_labels, other_labels, rows, at, row_in, at_in, OWN_LABELS, LABELS, ROWS, OTHERS)
        slope = tl.where(positive, positive_slope, negative_slope)
        share = tl.exp(score * slope - tl.where(positive, log_positive, log_negative))
        weight = tl.where(positive, on_positive, on_negative) * slope * share
        weight = tl.where(row_in[:, None] & at_in[None, :], weight, 0.0)
        total += tl.sum(weight, 1)
        add_products(to, weight, scratch, others, start, end, row_in, dimensions, ROWS, OTHERS, DEPTH, WIDTH)
    tl.store(totals + part * count + rows, total, mask=row_in)
