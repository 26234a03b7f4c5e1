"""Hyp-ViT: distances, loss and ranking against slow formulas in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from methods.hyperbolic import Hyperbolic, exponential_map, hyperbolic_distance
from orchestrator.evaluation.neighbours import nearest_neighbours


def slow_point(vector: list[float], c: float, r: float) -> list[float]:
    """The clipped vector under the exponential map at 0."""
    norm = math.sqrt(sum(v * v for v in vector))
    clipped = [v * min(1.0, r / norm) for v in vector]
    length = math.sqrt(c) * min(norm, r)
    return [math.tanh(length) / length * v for v in clipped]


def slow_distance(x: list[Any], y: list[Any], c: float) -> Any:
    """2 / sqrt(c) artanh(sqrt(c) |-x (+) y|), by Moebius addition."""
    xx, yy, xy = (sum(a * b for a, b in zip(p, q, strict=True)) for p, q in ((x, x), (y, y), (x, y)))
    below = 1 - 2 * c * xy + c * c * xx * yy
    sum_ = [((1 - 2 * c * xy + c * yy) * -a + (1 - c * xx) * b) / below for a, b in zip(x, y, strict=True)]
    squared = sum(a * a for a in sum_)
    if isinstance(squared, Tensor):
        return 2 / math.sqrt(c) * torch.atanh(math.sqrt(c) * squared.sqrt())
    return 2 / math.sqrt(c) * math.atanh(math.sqrt(c * squared))


def vectors(count: int = 9, dim: int = 4, scale: float = 1.5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(count, dim, dtype=torch.float64, generator=generator)


def method(**hyperparameters: float) -> Hyperbolic:
    task: Any = None
    return Hyperbolic(Hyperbolic.Config(**hyperparameters), task)


@pytest.mark.parametrize(("c", "r"), [(0.1, 2.3), (1.0, 1.0), (0.01, 100.0)])
def test_points_and_distances(c: float, r: float) -> None:
    given = vectors()
    points = exponential_map(given, c, r)
    np.testing.assert_allclose(points, [slow_point(row, c, r) for row in given.tolist()], rtol=1e-12)
    wanted = [[slow_distance(x, y, c) for y in points.tolist()] for x in points.tolist()]
    np.testing.assert_allclose(hyperbolic_distance(points, points, c), wanted, rtol=1e-9, atol=1e-9)
    from_zero = hyperbolic_distance(points, points[:1] * 0, c)[:, 0]
    np.testing.assert_allclose(from_zero, 2 * given.norm(dim=1).clamp(max=r), rtol=1e-9)


def test_no_point_is_at_the_edge_and_none_is_lost_at_zero() -> None:
    far = exponential_map(torch.full((1, 3), 1e6), 1.0, 1e9)
    assert far.norm() == pytest.approx(0.999)
    assert torch.isfinite(hyperbolic_distance(far, -far, 1.0)).all()
    zero = torch.zeros(2, 3, requires_grad=True)
    exponential_map(zero, 0.1, 2.3).sum().backward()  # type: ignore[no-untyped-call]
    assert zero.grad is not None and zero.grad.flatten().tolist() == pytest.approx([1.0] * 6)


def slow_loss(points: Tensor, labels: list[int], c: float, tau: float) -> Tensor:
    """One term at a time."""
    terms = []
    rows = [list(row) for row in points]
    for i, own in enumerate(labels):
        pulls = {j: torch.exp(-slow_distance(rows[i], rows[j], c) / tau) for j in range(len(labels)) if j != i}
        negatives = [pulls[k] for k in pulls if labels[k] != own]
        terms += [-torch.log(pulls[j] / (pulls[j] + sum(negatives))) for j in pulls if labels[j] == own]
    return torch.stack(terms).mean()


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 0, 0, 1, 1, 1, 2, 2, 2], [5] * 9])
def test_the_loss(labels: list[int]) -> None:
    found = vectors().requires_grad_()
    own = method(curvature=0.3, clip_radius=1.9, temperature=0.4)
    value = own.loss({"embedding": own.normalize(found)}, torch.tensor(labels)[:, None])["loss"]
    value.backward()  # type: ignore[no-untyped-call]
    wanted = vectors().requires_grad_()
    slow = slow_loss(exponential_map(wanted, 0.3, 1.9), labels, 0.3, 0.4)
    slow.backward()  # type: ignore[no-untyped-call]
    assert float(value.detach()) == pytest.approx(float(slow.detach()), rel=1e-10)
    assert found.grad is not None and wanted.grad is not None
    np.testing.assert_allclose(found.grad, wanted.grad, rtol=1e-8, atol=1e-12)


def test_with_two_of_each_class_it_is_half_the_released_sum() -> None:
    """There: the mean of both places' cross-entropies over the other images, both ways, added up."""
    own = method()
    points = own.normalize(vectors(10))
    logits = -hyperbolic_distance(points, points, 0.1) / 0.2
    here, there = logits[:5], logits[5:]
    total = 0.0
    for across, within in ((here[:, 5:], here[:, :5]), (there[:, :5], there[:, 5:])):
        row = torch.cat([across, within - 1e9 * torch.eye(5)], dim=1)
        total += float(torch.nn.functional.cross_entropy(row, torch.arange(5)))
    found = own.loss({"embedding": points}, torch.arange(5).repeat(2)[:, None])["loss"]
    assert float(found) == pytest.approx(total / 2, rel=1e-12)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize(("c", "scale"), [(0.1, 1.0), (1.0, 2.0), (0.1, 1e-4)])
def test_products_rank_as_distances_do(c: float, scale: float, precision: torch.dtype) -> None:
    own = method(curvature=c)
    points = own.normalize(vectors(80, 3, scale).to(precision))
    queries, items = own.retrieval({"embedding": points})
    products = queries @ items.T
    distance = hyperbolic_distance(points.double(), points.double(), c)
    np.testing.assert_allclose(products, -torch.cosh(math.sqrt(c) * distance), rtol=1e-11)
    found = nearest_neighbours(queries, items, 79, exclude_self=True, by_product=True)[1]
    wanted = distance.fill_diagonal_(torch.inf).argsort(dim=1, stable=True)[:, :79]
    np.testing.assert_array_equal(found, wanted)
    by_euclid = torch.cdist(points, points).fill_diagonal_(torch.inf).argsort(dim=1)[:, :79]
    assert scale < 1 or (by_euclid != wanted).any(), "the distance in the ball ranks otherwise"
