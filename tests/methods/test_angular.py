"""The angular loss, against a slow version, and what is its own."""

import math

import pytest
import torch
from support.objective_cases import assert_agrees, assert_close, batch_case, proxy_case

from methods.angular import angular
from methods.objectives import cosine_similarity, pair_masks


def slow(s, positive, negative, degrees=40.0, rows=False):
    t, size = math.tan(math.radians(degrees)) ** 2, len(s)
    terms: list[list[torch.Tensor]] = [[] for _ in range(size)]
    for a in range(size):
        for p in range(size):
            if positive[a, p]:
                both = [n for n in range(size) if negative[a, n] and negative[p, n]]
                bounds = [4 * t * (s[a, n] + s[p, n]) - 2 * (1 + t) * s[a, p] for n in both]
                terms[a].append((1 + sum((bound.exp() for bound in bounds), s.sum() * 0)).log())
    count = max(1, sum(len(own) for own in terms))
    shares = [sum(own, s.sum() * 0) * size / count for own in terms]
    return torch.stack(shares) if rows else sum(shares) / size


@pytest.mark.parametrize("degrees", [25.0, 40.0])
@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 1, 2, 2, 3], [[0, -1], [0, 1], [1, 2], [3, -1], [2, 0], [-1, -1]]])
def test_it_agrees_with_the_slow_version(labels, degrees):
    """Values and gradients; samples have several labels, so a pair's negatives differ from its anchor's."""
    s, positive, negative = batch_case("s", labels)
    assert_agrees(angular, slow, s, positive, negative, degrees=degrees)
    shares = angular(s, positive, negative, degrees=degrees, reduction="rows")
    assert_close(shares, slow(s, positive, negative, degrees, rows=True))


def test_the_bound_is_on_the_angle_at_the_negative():
    """The exponent is |a - p|^2 - 4 tan^2(degrees) |n - (a + p) / 2|^2 but for what no unit rows change."""
    positive, negative = pair_masks(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1]), same=True)
    phi, bound = 0.3, math.radians(35)
    z = torch.tensor([[math.cos(phi), math.sin(phi)], [math.cos(phi), -math.sin(phi)], [1, 0]], dtype=torch.float64)
    gap = (z[0] - z[1]).square().sum() - 4 * math.tan(bound) ** 2 * (z[2] - (z[0] + z[1]) / 2).square().sum()
    t = math.tan(bound) ** 2
    constant = 2 - 4 * t * (1 + 0.5)
    wanted = math.log1p(math.exp(gap.item() - constant))
    found = angular(cosine_similarity(z, z), positive, negative, degrees=35.0)
    assert found.item() == pytest.approx(wanted)


@pytest.mark.parametrize("right", [True, False])
def test_extreme_similarities_do_not_overflow_in_float32(right):
    _, positive, negative = batch_case("s", [0, 0, 1, 1])
    s = torch.where(positive == right, 1.0, -1.0).requires_grad_()
    value = angular(s, positive, negative, degrees=80.0)
    value.backward()
    assert value.isfinite()
    assert s.grad is not None
    assert s.grad.isfinite().all()


def test_nothing_left_is_an_attached_zero_and_entries_that_are_neither_add_nothing():
    s, positive, negative = batch_case("s", [0, 0, 1, 2])
    leaf = s.masked_fill(~(positive | negative), math.nan).requires_grad_()
    assert_close(angular(leaf, positive, negative), angular(s, positive, negative))
    value = angular(leaf, positive & False, negative)
    value.backward()
    assert value == 0 and not leaf.grad.any()


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"that of a batch with itself, got \(3, 8\)"):
        angular(*proxy_case("s", [0, 1, 2], 4, 2))
    with pytest.raises(ValueError, match="between 0 and 90, got 90"):
        angular(*batch_case("s", [0, 0, 1]), degrees=90.0)
