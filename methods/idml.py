"""Introspective deep metric learning (IDML): distances that grow blunt where the images are uncertain.

Wang et al., "Introspective Deep Metric Learning", TPAMI 2024. An image has a semantic embedding s (unit rows) and
an uncertainty embedding u (not normalised); the more uncertain a pair, the smaller its distance, and the weaker
its pull in any objective. A class proxy carries a zero uncertainty.

Shapes: Q queries, R references, A anchors; s has D dimensions, u may have another number of them.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.objectives import cosine_similarity, euclidean_distance

SMALLEST_DISTANCE = 1e-12  # keeps (b + gamma) / a^2, the slope of the relative uncertainty, inside float32


def introspective_distance(
    s_queries: Tensor,
    u_queries: Tensor,
    s_references: Tensor,
    u_references: Tensor,
    *,
    tau: float = 5.0,
    gamma: float = 0.0,
    norm: Literal["sum", "separate"] = "sum",
) -> Tensor:
    """The introspective distance a exp(-t / tau) of all pairs (Eq. 5, 6), t = (b + gamma) / a.

    a = ||s_q - s_r|| is the semantic distance, b = ||u_q + u_r|| the uncertainty of the pair, t the relative
    uncertainty. Where a = 0 the result and its gradient are zero.

    Args:
        s_queries, s_references: (Q, D), (R, D) semantic embeddings, used as given.
        u_queries, u_references: (Q, E), (R, E) uncertainty embeddings, used as given.
        tau: temperature, > 0. gamma: uncertainty that every pair has, >= 0.
        norm: "sum" for b as above, "separate" for b = ||u_q|| + ||u_r|| (ablation).

    Returns:
        (Q, R), at least float32.

    Raises:
        ValueError: if tau, gamma or norm is not as above.
    """
    distance = euclidean_distance(s_queries, s_references)
    return distance * _certainty(distance, u_queries, u_references, tau, gamma, norm)


def introspective_similarity(
    s_queries: Tensor,
    u_queries: Tensor,
    s_references: Tensor,
    u_references: Tensor,
    *,
    tau: float = 5.0,
    gamma: float = 0.0,
    norm: Literal["sum", "separate"] = "sum",
    form: Literal["sim", "dis"] = "sim",
) -> Tensor:
    """The introspective similarity of all pairs: uncertain pairs become alike (Eq. 7, 23) or unrelated (Eq. 24).

    With t as in `introspective_distance` and c the cosine of the semantic embeddings (divided by their norms
    here): 1 - (1 - c) exp(-t / tau) for form "sim", c exp(-t / tau) for "dis" (ISM-Dis, ablation). Where a = 0
    both are the cosine.

    Other arguments, shapes and errors as `introspective_distance`; ValueError too if form is neither.
    """
    if form not in ("sim", "dis"):
        raise ValueError(f"form must be 'sim' or 'dis', got {form!r}")
    certainty = _certainty(euclidean_distance(s_queries, s_references), u_queries, u_references, tau, gamma, norm)
    cosine = cosine_similarity(_unit(s_queries), _unit(s_references))
    return 1 - (1 - cosine) * certainty if form == "sim" else cosine * certainty


def relative_agreement(first: Tensor, second: Tensor, anchors: Tensor, *, neighbours: int = 10) -> dict[str, float]:
    """How far two embeddings of the same items agree, seen relative to common anchors (Eq. 25, Table 16).

    An item's relative embedding holds its cosine similarities to the anchors. By the cosine of relative
    embeddings, averaged over items: `jaccard`, the overlap of the item's nearest neighbours within `first` and
    within `second`; `mean_reciprocal_rank`, 1 / rank of the item itself among the `second` ones nearest to its
    `first` one, 0 beyond `neighbours`; `cosine`, between its two relative embeddings.

    Args:
        first, second: (N, D), (N, E) embeddings of the same N items, semantic and uncertainty, say.
        anchors: (A,) indices of the anchor items; the paper draws 100 uniformly.
        neighbours: size of the neighbourhoods, clipped to N.
    """
    size = min(neighbours, len(first))
    x, y = (_unit(cosine_similarity(_unit(z), _unit(z[anchors]))) for z in (first, second))
    across = cosine_similarity(x, y)
    near_x, near_y = (cosine_similarity(z, z).topk(size, dim=1).indices for z in (x, y))
    shared = (near_x[:, :, None] == near_y[:, None, :]).flatten(1).sum(1)
    own = across.diagonal()
    rank = 1 + (across > own[:, None]).sum(1)
    return {
        "jaccard": (shared.double() / (2 * size - shared)).mean().item(),
        "mean_reciprocal_rank": torch.where(rank <= size, 1 / rank.double(), 0).mean().item(),
        "cosine": own.mean().item(),
    }


def _certainty(
    distance: Tensor, u_queries: Tensor, u_references: Tensor, tau: float, gamma: float, norm: str
) -> Tensor:
    """exp(-t / tau), (Q, R); 1 without gradient where the distance is zero."""
    if not tau > 0:
        raise ValueError(f"tau must be a positive number, got {tau}")
    if not gamma >= 0:
        raise ValueError(f"gamma must be at least 0, got {gamma}")
    if norm == "sum":
        uncertainty = euclidean_distance(u_queries, -u_references)
    elif norm == "separate":
        q, r = (
            torch.linalg.vector_norm(u, dim=1, dtype=torch.promote_types(u.dtype, torch.float32))
            for u in (u_queries, u_references)
        )
        uncertainty = q[:, None] + r
    else:
        raise ValueError(f"norm must be 'sum' or 'separate', got {norm!r}")
    apart = distance > 0
    safe = torch.where(apart, distance, 1).clamp_min(SMALLEST_DISTANCE)
    return torch.where(apart, torch.exp(-(uncertainty + gamma) / (tau * safe)), 1)


def _unit(rows: Tensor) -> Tensor:
    return F.normalize(rows.to(torch.promote_types(rows.dtype, torch.float32)), dim=1)
