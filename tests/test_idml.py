"""IDML's metrics against slow float64 loops, written from the formulas; then their limits and errors."""

import math

import pytest
import torch
from torch import Tensor

from methods.idml import introspective_distance, introspective_similarity, relative_agreement


def reference_relative_uncertainty(s_q, u_q, s_r, u_r, gamma: float, norm: str) -> tuple[Tensor, Tensor]:
    a = (s_q - s_r).square().sum().sqrt()
    b = (u_q + u_r).square().sum().sqrt()
    if norm == "separate":
        b = u_q.square().sum().sqrt() + u_r.square().sum().sqrt()
    return a, (b + gamma) / a


def reference_matrix(kind: str, s_q, u_q, s_r, u_r, tau, gamma, norm) -> Tensor:
    rows = []
    for q in range(len(s_q)):
        row = []
        for r in range(len(s_r)):
            cosine = s_q[q] @ s_r[r] / s_q[q].square().sum().sqrt() / s_r[r].square().sum().sqrt()
            if torch.equal(s_q[q], s_r[r]):
                row.append(torch.zeros_like(cosine) if kind == "distance" else cosine)
                continue
            a, t = reference_relative_uncertainty(s_q[q], u_q[q], s_r[r], u_r[r], gamma, norm)
            certainty = (-t / tau).exp()
            row.append(
                {"distance": a * certainty, "sim": 1 - (1 - cosine) * certainty, "dis": cosine * certainty}[kind]
            )
        rows.append(torch.stack(row))
    return torch.stack(rows)


def drawn(seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """s and u of 5 queries and 4 references; two pairs share their semantic embedding."""
    generator = torch.Generator().manual_seed(seed)
    s_q, u_q, s_r, u_r = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((5, 6), (5, 3), (4, 6), (4, 3))
    )
    s_q, s_r = (torch.nn.functional.normalize(s, dim=1) for s in (s_q, s_r))
    s_r[1] = s_q[2]
    s_r[3] = s_q[0]
    return [x.to(dtype).requires_grad_() for x in (s_q, u_q, s_r, u_r)]


def fast(kind: str, inputs, **kw) -> Tensor:
    if kind == "distance":
        return introspective_distance(*inputs, **kw)
    return introspective_similarity(*inputs, form=kind, **kw)


@pytest.mark.parametrize("norm", ["sum", "separate"])
@pytest.mark.parametrize(("tau", "gamma"), [(5, 0), (1, 2), (9, 0.5)])
@pytest.mark.parametrize("kind", ["distance", "sim", "dis"])
def test_matrices_and_gradients_agree_with_the_loops(kind, tau, gamma, norm):
    inputs = drawn(0)
    weights = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = fast(kind, inputs, tau=tau, gamma=gamma, norm=norm)
    expected = reference_matrix(kind, *inputs, tau, gamma, norm)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    for x, y in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


def test_equal_semantics_give_zero_distance_without_gradient_and_the_cosine():
    s, u = torch.tensor([[0.6, 0.8]]), torch.tensor([[3.0, 4.0]])
    inputs = [x.clone().requires_grad_() for x in (s, u, s, u)]
    distance = introspective_distance(*inputs, tau=5, gamma=2)
    distance.sum().backward()
    assert distance.item() == 0
    assert all(not x.grad.any() for x in inputs)
    for form in ("sim", "dis"):
        assert introspective_similarity(s, u, s, u, tau=5, gamma=2, form=form).item() == pytest.approx(1)


def test_a_proxy_without_uncertainty_leaves_the_norm_of_the_sample():
    s_q, _, s_r, _ = drawn(0)
    u_q = torch.full((5, 4), 3.0, dtype=torch.float64)
    found = introspective_distance(s_q, u_q, s_r, torch.zeros(4, 4, dtype=torch.float64), tau=5, gamma=0)
    a = torch.cdist(s_q, s_r)
    expected = torch.where(a > 0, a * torch.exp(-6 / (5 * a)), 0)
    torch.testing.assert_close(found, expected)


def test_without_uncertainty_the_metrics_are_the_plain_ones():
    s_q, _, s_r, _ = drawn(0)
    zeros = torch.zeros(5, 2, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.float64)
    distance = introspective_distance(s_q, zeros[0], s_r, zeros[1], tau=5, gamma=0)
    torch.testing.assert_close(distance, torch.cdist(s_q, s_r))
    torch.testing.assert_close(introspective_similarity(s_q, zeros[0], s_r, zeros[1], tau=5, gamma=0), s_q @ s_r.T)
    distance.sum().backward()
    assert torch.isfinite(s_q.grad).all()


@pytest.mark.parametrize("kind", ["distance", "sim", "dis"])
@pytest.mark.parametrize("gap", [0.0, 1e-38, 1e-20, 1e-12, 1e-6, 1e-3])
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-6, 7.0, 1e4])
def test_float32_stays_finite_in_value_and_gradient(kind, gap, size):
    inputs = [
        torch.tensor(x, dtype=torch.float32).requires_grad_()
        for x in ([[0.0, 1.0]], [[size, 0.0]], [[gap, 1.0]], [[size, 0.0]])
    ]
    matrix = fast(kind, inputs, tau=5, gamma=0)
    matrix.sum().backward()
    assert torch.isfinite(matrix).all()
    assert all(torch.isfinite(x.grad).all() for x in inputs)


def test_float32_bfloat16_and_autocast_agree_with_float64():
    exact = introspective_distance(*drawn(0), tau=5, gamma=0)
    single = introspective_distance(*drawn(0, torch.float32), tau=5, gamma=0)
    torch.testing.assert_close(single.double(), exact, rtol=1e-5, atol=1e-6)
    for kind in ("distance", "sim", "dis"):
        half = drawn(0, torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = fast(kind, half, tau=5, gamma=0)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, fast(kind, [x.float() for x in half], tau=5, gamma=0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tau": 0}, "tau must be a positive number, got 0"),
        ({"gamma": -1}, "gamma must be at least 0, got -1"),
        ({"norm": "both"}, "norm must be 'sum' or 'separate', got 'both'"),
        ({"form": "similarity"}, "form must be 'sim' or 'dis', got 'similarity'"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        introspective_similarity(*drawn(0), **({"tau": 5, "gamma": 0} | change))


def reference_relative_agreement(first, second, anchors, neighbours):
    def cosine(x, y):
        return sum(a * b for a, b in zip(x, y, strict=True)) / math.hypot(*x) / math.hypot(*y)

    x, y = ([[cosine(z, space[a]) for a in anchors] for z in space] for space in (first, second))
    jaccard, reciprocal, cosines = 0.0, 0.0, 0.0
    items = range(len(x))
    for i in items:
        near_x = set(sorted(items, key=lambda j: -cosine(x[i], x[j]))[:neighbours])
        near_y = set(sorted(items, key=lambda j: -cosine(y[i], y[j]))[:neighbours])
        jaccard += len(near_x & near_y) / len(near_x | near_y)
        ranking = sorted(items, key=lambda j: -cosine(x[i], y[j]))
        rank = ranking.index(i) + 1
        reciprocal += 1 / rank if rank <= neighbours else 0
        cosines += cosine(x[i], y[i])
    return {"jaccard": jaccard / 12, "mean_reciprocal_rank": reciprocal / 12, "cosine": cosines / 12}


def test_relative_agreement_agrees_with_the_loops():
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(12, d, generator=generator, dtype=torch.float64) for d in (5, 3))
    anchors = torch.tensor([0, 3, 4, 7, 9, 11])
    found = relative_agreement(first, second, anchors, neighbours=4)
    assert found == pytest.approx(
        reference_relative_agreement(first.tolist(), second.tolist(), anchors.tolist(), 4), rel=1e-9
    )
    same = relative_agreement(first, 3 * first, anchors, neighbours=4)
    assert same == pytest.approx({"jaccard": 1, "mean_reciprocal_rank": 1, "cosine": 1})
