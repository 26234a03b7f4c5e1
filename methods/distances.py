"""The plain matrices and masks for the objectives: distances, similarities, pairs by label.

Q queries, R references, D embedding size
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import torch
from torch import Tensor


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
    with full_precision(queries.device):
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
    # entries without a label differ on the two sides, so they equal nothing
    queries, references = query_labels[:, None].flatten(1), reference_labels[:, None].flatten(1)
    queries = torch.where(queries < 0, -1, queries)
    references = torch.where(references < 0, -2, references)
    positive = torch.zeros(len(queries), len(references), dtype=torch.bool, device=queries.device)
    for label in queries.unbind(1):
        for other in references.unbind(1):
            positive |= label[:, None] == other
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
    PAIRS, PAIRS_ON_ACCELERATOR = 2**15, 2**20  # numbers in the largest intermediate for near pairs

    @staticmethod
    def forward(ctx: Any, queries: Tensor, references: Tensor) -> Tensor:
        distance = queries.new_empty(len(queries), len(references))
        near = _EuclideanDistance.NEAR[queries.dtype]
        for rows, columns in tiles(distance, _EuclideanDistance.TILE):
            q, r = queries[rows], references[columns]
            squared, i, j = _EuclideanDistance.products(q, r, near)
            if queries.dtype == torch.float32 and len(i) > max(len(q), _EuclideanDistance.CROWD * squared.numel()):
                squared, i, j = _EuclideanDistance.products(q.double(), r.double(), _EuclideanDistance.NEAR_CROWDED)
            for q_rows, other in _EuclideanDistance.list_blocks(q, i, j):
                squared[q_rows, other] = (q[q_rows].double() - r[other].double()).square_().sum(1).to(squared.dtype)
            distance[rows, columns] = squared.sqrt_()
        ctx.save_for_backward(queries, references, distance)
        return distance

    @staticmethod
    def products(q: Tensor, r: Tensor, near: float) -> tuple[Tensor, Tensor, Tensor]:
        """Squared distances by a Gram matrix, and rows and columns of the pairs for which it is not exact enough."""
        q_squared, r_squared = q.square().sum(1, keepdim=True), r.square().sum(1)
        with full_precision(q.device):
            squared = torch.mm(q, r.T).mul_(-2).add_(q_squared).add_(r_squared).clamp_(min=0)
        i, j = _at_most(squared, near**2 * torch.maximum(q_squared.max(), r_squared.max()))
        close = squared[i, j] <= near**2 * torch.maximum(q_squared[i, 0], r_squared[j])
        (close,) = close.nonzero(as_tuple=True)  # once: on a GPU the host waits for the length
        return squared, i[close], j[close]

    @staticmethod
    def list_blocks(q: Tensor, *lists: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """The lists, some pairs at a time."""
        numbers = _EuclideanDistance.PAIRS if q.device.type == "cpu" else _EuclideanDistance.PAIRS_ON_ACCELERATOR
        size = max(1, numbers // max(1, q.shape[1]))
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
        for rows, columns in tiles(distance, _EuclideanDistance.TILE):
            q, r, d = queries[rows], references[columns], distance[rows, columns]
            weight = gradient[rows, columns] / d
            i, j = _at_most(d, _EuclideanDistance.NEAR[queries.dtype] * longest)
            if queries.dtype == torch.float32 and len(i) > max(len(q), _EuclideanDistance.CROWD * d.numel()):
                q, r, weight = q.double(), r.double(), weight.double()
                i, j = _at_most(d, _EuclideanDistance.NEAR_CROWDED * longest)
            forces = weight[i, j].where(d[i, j] > 0, 0)
            weight[i, j] = 0
            with full_precision(queries.device):
                for to, own, others, weights in (
                    (to_queries[rows], q, r, weight),
                    (to_references[columns], r, q, weight.T),
                ):
                    total = to if to.dtype == own.dtype else to.to(own.dtype)
                    total.addmm_(weights, others, alpha=-1).addcmul_(weights.sum(1, keepdim=True), own)
                    to.copy_(total)
            if forces.device.type == "cpu":  # others have none; a GPU would be waited for
                (pulled,) = forces.nonzero(as_tuple=True)
                forces, i, j = forces[pulled], i[pulled], j[pulled]
            for force, own, other in _EuclideanDistance.list_blocks(q, forces, i, j):
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
    """Rows and columns of the entries up to the bound; often there are none, which the minimum shows quickly on a CPU,
    while a GPU would be waited for twice."""
    if matrix.device.type == "cpu" and matrix.amin() > bound:
        none = torch.empty(0, dtype=torch.long, device=matrix.device)
        return none, none
    i, j = (matrix <= bound).nonzero(as_tuple=True)
    return i, j


def tiles(matrix: Tensor, size: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    for row in range(0, matrix.shape[0], size[0]):
        for column in range(0, matrix.shape[1], size[1]):
            yield slice(row, row + size[0]), slice(column, column + size[1])


def _same_precision(queries: Tensor, references: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the wider of their types, and at least in float32."""
    dtype = torch.promote_types(torch.promote_types(queries.dtype, references.dtype), torch.float32)
    return queries.to(dtype), references.to(dtype)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Autocast off and no TF32 or bfloat16 inside float32 products."""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # before torch 2.9 there is one switch for all
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            with torch.autocast(device.type, enabled=False):
                yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
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
