"""Deep metric learning with chance constraints (CCP): proxy problems solved one after the other.

Gurbuz, Can and Alatan, "Deep Metric Learning with Chance Constraints", WACV 2024. Each problem starts from proxies
that cover their classes better than the last ones (Algorithm 2) and stays near the last solution (Algorithm 1).

Shapes: N points, b points of a class's pool, P centres, D dimensions.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def greedy_k_center(pool: Tensor, proxies: Tensor, k: int) -> Tensor:
    """Indices of the k points of one class's pool that proxies and choices so far cover worst (Algorithm 2).

    Takes k times the point whose distance to the nearest of `proxies` and of the points already taken is largest.
    Ties go to the lowest index; no index is taken twice, even among duplicates.

    Args:
        pool: (b, D) embeddings to choose from. proxies: (P, D) embeddings that cover already; P may be 0.
        k: how many to take, 0 to b.

    Returns:
        (k,) indices into `pool`, in the order taken.

    Raises:
        ValueError: if k is negative or larger than the pool.
    """
    if not 0 <= k <= len(pool):
        raise ValueError(f"k must be between 0 and the size of the pool, {len(pool)}, got {k}")
    taken, _ = _greedy_cover(pool.detach().double(), proxies.detach().double(), k)
    return torch.tensor(taken, dtype=torch.long, device=pool.device)


def proximal_term(parameters: Iterable[Tensor], anchor: Iterable[Tensor]) -> Tensor:
    """Half the squared distance of the network's parameters to the last problem's best, 1/2 ||theta - theta*||^2.

    Its gradient on each parameter is theta - theta*; `anchor` gets none. Proxies are no part of theta.

    Args:
        parameters, anchor: equally many tensors, pairwise of the same shape.

    Raises:
        ValueError: if numbers or shapes differ.
    """
    terms = []
    for parameter, best in zip(parameters, anchor, strict=True):
        if parameter.shape != best.shape:
            raise ValueError(f"anchor has shape {tuple(best.shape)} for a parameter {tuple(parameter.shape)}")
        terms.append((parameter - best.detach()).square().sum())
    return torch.stack(terms).sum() / 2 if terms else torch.zeros(())


def lipschitz_normalize(v: Tensor) -> Tensor:
    """v / ||v|| where ||v|| >= 1, else v, along the last dimension: a projection that is 1-Lipschitz.

    Returns the shape of v, at least float32.
    """
    norm: Tensor = torch.linalg.vector_norm(v, dim=-1, keepdim=True, dtype=torch.promote_types(v.dtype, torch.float32))
    return v / norm.clamp_min(1)


def covering_radius(points: Tensor, point_labels: Tensor, centres: Tensor, centre_labels: Tensor) -> float:
    """Largest distance of a class's points to the nearest centre of the class, averaged over classes.

    Args:
        points: (N, D). point_labels: (N,) integers. centres: (P, D). centre_labels: (P,) integers.

    Raises:
        ValueError: if there is no point, or a class of the points has no centre.
    """
    radii = []
    for label in _classes(point_labels):
        own = centres[centre_labels == label]
        if len(own) == 0:
            raise ValueError(f"class {label} has points but no centre: its covering radius is undefined")
        radii.append(_distance(points[point_labels == label], own).amin(1).max())
    return torch.stack(radii).mean().item()


def mean_covering_radius(points: Tensor, labels: Tensor) -> float:
    """How spread out the classes are: greedy k-center radii for k = 1 ... n_c, averaged over k, then over classes.

    The first centre of a class is its first point, the others follow `greedy_k_center` (supplement, Fig. 2).

    Args:
        points: (N, D). labels: (N,) integers.

    Raises:
        ValueError: if there is no point.
    """
    means = []
    for label in _classes(labels):
        own = points[labels == label].detach().double()
        _, radii = _greedy_cover(own, own[:0], len(own))
        means.append(torch.stack(radii).mean())
    return torch.stack(means).mean().item()


def _greedy_cover(pool: Tensor, proxies: Tensor, k: int) -> tuple[list[int], list[Tensor]]:
    """The k indices taken, and the largest distance left to the nearest centre after each."""
    nearest = pool.new_full((len(pool),), torch.inf)
    if len(proxies):
        nearest = _distance(pool, proxies).amin(1)
    taken: list[int] = []
    radii: list[Tensor] = []
    for _ in range(k):
        index = int(nearest.argmax())  # the first of equals
        taken.append(index)
        nearest = torch.minimum(nearest, _distance(pool, pool[index : index + 1]).squeeze(1))
        nearest[taken] = -torch.inf  # never again, even among duplicates
        radii.append(nearest.max().clamp_min(0))
    return taken, radii


def _distance(points: Tensor, centres: Tensor) -> Tensor:
    """From true differences in float64, so that equal distances tie exactly."""
    return torch.cdist(points.detach().double(), centres.detach().double(), compute_mode="donot_use_mm_for_euclid_dist")


def _classes(labels: Tensor) -> list[int]:
    if len(labels) == 0:
        raise ValueError("a covering radius needs at least one point, got none")
    return sorted(set(labels.tolist()))
