"""CCP's pure functions against slow loops, written from Algorithm 2 and the formulas."""

import math

import pytest
import torch

from methods.ccp import (
    covering_radius,
    greedy_k_center,
    lipschitz_normalize,
    mean_covering_radius,
    proximal_term,
)


def reference_k_center(pool: list, proxies: list, k: int) -> list[int]:
    centres, taken = list(proxies), []
    for _ in range(k):
        best, best_distance = -1, -1.0
        for i, point in enumerate(pool):
            nearest = min((math.dist(point, centre) for centre in centres), default=math.inf)
            if i not in taken and nearest > best_distance:
                best, best_distance = i, nearest
        taken.append(best)
        centres.append(pool[best])
    return taken


def reference_covering_radius(points: list, centres: list) -> float:
    return max(min(math.dist(point, centre) for centre in centres) for point in points)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("num_proxies", [0, 1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_k_center_agrees_with_the_loop(seed, num_proxies):
    pool, proxies = drawn(12, 3, seed=seed), drawn(num_proxies, 3, seed=seed + 100)
    for k in (0, 1, 5, 12):
        found = greedy_k_center(pool, proxies, k)
        assert found.dtype == torch.long
        assert found.tolist() == reference_k_center(pool.tolist(), proxies.tolist(), k)


def test_k_center_breaks_ties_by_index_and_takes_no_index_twice():
    grid = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1], [1, 0], [1, 0]])
    centre = torch.zeros(1, 2)
    assert greedy_k_center(grid, centre, 6).tolist() == [0, 1, 2, 3, 4, 5]
    assert greedy_k_center(torch.ones(4, 2), torch.ones(1, 2), 4).tolist() == [0, 1, 2, 3]
    assert greedy_k_center(torch.ones(3, 2), torch.zeros(0, 2), 3).tolist() == [0, 1, 2]


def test_k_center_tells_close_points_apart_in_float32():
    pool = torch.ones(4, 64)
    pool[2, 0] += 1e-6
    assert greedy_k_center(pool, torch.ones(1, 64), 1).tolist() == [2]


@pytest.mark.parametrize("k", [-1, 4])
def test_k_center_refuses_an_impossible_number(k):
    with pytest.raises(ValueError, match=f"between 0 and the size of the pool, 3, got {k}"):
        greedy_k_center(torch.zeros(3, 2), torch.zeros(1, 2), k)


def test_proximal_term_is_half_the_squared_distance():
    parameters = [drawn(3, 4).requires_grad_(), drawn(5, seed=1).requires_grad_()]
    anchor = [drawn(3, 4, seed=2).requires_grad_(), drawn(5, seed=3)]
    term = proximal_term(iter(parameters), iter(anchor))
    expected = sum(
        (x - y) ** 2
        for p, a in zip(parameters, anchor, strict=True)
        for x, y in zip(p.flatten().tolist(), a.flatten().tolist(), strict=True)
    )
    assert term.item() == pytest.approx(expected / 2)
    term.backward()
    for parameter, best in zip(parameters, anchor, strict=True):
        torch.testing.assert_close(parameter.grad, (parameter - best).detach())
    assert anchor[0].grad is None
    assert proximal_term([], []) == 0


def test_proximal_term_refuses_another_network():
    with pytest.raises(ValueError, match=r"anchor has shape \(1,\) for a parameter \(3,\)"):
        proximal_term([torch.zeros(3)], [torch.zeros(1)])
    with pytest.raises(ValueError):
        proximal_term([torch.zeros(3)], [])


def test_lipschitz_normalize_shrinks_long_rows_only():
    v = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.6, 0.8], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    found = lipschitz_normalize(v)
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.6, 0.8], [0, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found[:, 0].sum(), v)
    torch.testing.assert_close(gradient[0], torch.tensor([0.128, -0.096], dtype=torch.float64))
    torch.testing.assert_close(gradient[1], torch.tensor([1.0, 0], dtype=torch.float64))
    torch.testing.assert_close(gradient[3], torch.tensor([1.0, 0], dtype=torch.float64))
    x, y = 2 * drawn(2, 50, 4)
    moved = (lipschitz_normalize(x) - lipschitz_normalize(y)).norm(dim=1)
    assert (moved <= (x - y).norm(dim=1) + 1e-12).all()
    large = lipschitz_normalize(torch.full((2, 8), 6e4, dtype=torch.float16))
    torch.testing.assert_close(large.norm(dim=1), torch.ones(2))


def test_covering_radius_is_the_mean_over_classes():
    points, labels = drawn(20, 3), torch.arange(20) % 3
    centres, centre_labels = drawn(7, 3, seed=1), torch.arange(7) % 4  # class 3 has no points
    expected = sum(
        reference_covering_radius(points[labels == c].tolist(), centres[centre_labels == c].tolist()) for c in range(3)
    )
    assert covering_radius(points, labels, centres, centre_labels) == pytest.approx(expected / 3)
    assert covering_radius(points, labels, points, labels) == 0
    with pytest.raises(ValueError, match="class 2 has points but no centre"):
        covering_radius(points, labels, centres, centre_labels.clamp(max=1))
    with pytest.raises(ValueError, match="at least one point"):
        covering_radius(points[:0], labels[:0], centres, centre_labels)


def test_mean_covering_radius_agrees_with_the_loop():
    points, labels = drawn(15, 3), torch.tensor([0] * 8 + [1] * 6 + [2])
    means = []
    for c in range(3):
        own = points[labels == c].tolist()
        order = reference_k_center(own, [], len(own))
        radii = [reference_covering_radius(own, [own[i] for i in order[: k + 1]]) for k in range(len(own))]
        means.append(sum(radii) / len(radii))
    assert means[0] > means[2] == 0
    assert mean_covering_radius(points, labels) == pytest.approx(sum(means) / 3)
    with pytest.raises(ValueError, match="at least one point"):
        mean_covering_radius(points[:0], labels[:0])
