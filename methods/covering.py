"""How well centres cover the points of a class: greedy k-center, and radii of coverings.

Gurbuz, Can and Alatan, "Deep Metric Learning with Chance Constraints", WACV 2024: Algorithm 2, and Figure 2 of
the paper and of its supplement.

Shapes: N points, b points of a class's pool, P centres, D dimensions.
"""

import torch
from torch import Tensor


def greedy_k_center(pool: Tensor, proxies: Tensor, k: int) -> Tensor:
    """Indices of the k points of one class's pool that proxies and choices so far cover worst (Algorithm 2).

    Takes k times the point whose distance to the nearest of `proxies` and of the points already taken is largest.
    Ties go to the lowest index; no index is taken twice, even among duplicates.

    Args:
        pool: (b, D) embeddings to choose from. proxies: (P, D) embeddings that already cover; P may be 0.
        k: how many to take, 0 to b.

    Returns:
        (k,) indices into `pool`, in the order taken.

    Raises:
        ValueError: if k is negative or larger than the pool.
    """
    if not 0 <= k <= len(pool):
        raise ValueError(f"k must be between 0 and the size of the pool, {len(pool)}, got {k}")
    centres, _ = _greedy_cover(pool.detach().double(), proxies.detach().double(), k)
    return torch.tensor(centres, dtype=torch.long, device=pool.device)


def covering_radius(points: Tensor, point_labels: Tensor, centres: Tensor, centre_labels: Tensor) -> float:
    """Largest distance of a class's points to the nearest centre of the class, averaged over classes.

    Args:
        points: (N, D). point_labels: (N,) integers. centres: (P, D). centre_labels: (P,) integers.

    Raises:
        ValueError: if there is no point, or a class of the points has no centre.
    """
    radii, centres_of = [], _by_class(centres, centre_labels)
    for label, of_class in _by_class(points, point_labels).items():
        if label not in centres_of:
            raise ValueError(f"class {label} has points but no centre: its covering radius is undefined")
        radii.append(_distance(of_class, centres_of[label]).amin(1).max())
    return _mean(radii)


def mean_covering_radius(points: Tensor, labels: Tensor) -> float:
    """How spread out the classes are: greedy k-center radii for k = 1 ... n_c, averaged over k, then over classes.

    The first centre of a class is its first point, the others follow `greedy_k_center` (supplement, Fig. 2).

    Args:
        points: (N, D). labels: (N,) integers.

    Raises:
        ValueError: if there is no point.
    """
    means = []
    for of_class in _by_class(points.detach().double(), labels).values():
        _, radii = _greedy_cover(of_class, of_class[:0], len(of_class))
        means.append(torch.stack(radii).mean())
    return _mean(means)


def class_spread(points: Tensor, labels: Tensor) -> float:
    """How far a class's points are apart: the mean distance of two of them, averaged over classes with at least two.

    0 where they have merged into one.

    Args:
        points: (N, D). labels: (N,) integers.

    Raises:
        ValueError: if no class has two points.
    """
    classes = [of_class for of_class in _by_class(points, labels).values() if len(of_class) > 1]
    if not classes:
        raise ValueError("the spread of a class needs two of its points, no class has them")
    return _mean([_distance(of_class, of_class).sum() / (len(of_class) * (len(of_class) - 1)) for of_class in classes])


def _greedy_cover(pool: Tensor, proxies: Tensor, k: int) -> tuple[list[int], list[Tensor]]:
    """The k indices taken, and the largest distance left to the nearest centre after each."""
    nearest = pool.new_full((len(pool),), torch.inf)
    if len(proxies):
        nearest = _distance(pool, proxies).amin(1)
    centres: list[int] = []
    radii: list[Tensor] = []
    for _ in range(k):
        index = int(nearest.argmax())  # the first of several
        centres.append(index)
        nearest = torch.minimum(nearest, _distance(pool, pool[index : index + 1]).squeeze(1))
        nearest[index] = -torch.inf  # never again, even among duplicates
        radii.append(nearest.max().clamp_min(0))
    return centres, radii


def _distance(points: Tensor, centres: Tensor) -> Tensor:
    """Distances from true differences in float64, so that equal distances tie exactly."""
    return torch.cdist(points.detach().double(), centres.detach().double(), compute_mode="donot_use_mm_for_euclid_dist")


def _by_class(rows: Tensor, labels: Tensor) -> dict[int, Tensor]:
    """The rows of each class, in their order."""
    classes, counts = torch.unique(labels, return_counts=True)
    parts = torch.split(rows[labels.argsort(stable=True)], counts.tolist())
    return dict(zip(classes.tolist(), parts, strict=True))


def _mean(radii: list[Tensor]) -> float:
    if not radii:
        raise ValueError("a covering radius needs at least one point, got none")
    return torch.stack(radii).mean().item()
