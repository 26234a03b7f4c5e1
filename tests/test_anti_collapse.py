"""Anti-Collapse's pure functions against slow float64 versions, written from the formulas."""

import math

import numpy as np
import pytest
import torch

from methods import anti_collapse
from methods.anti_collapse import coding_rate, density, language_guidance, mean_coding_rate


def reference_coding_rate(x: np.ndarray, epsilon: float) -> float:
    """From the eigenvalues of the (D, D) matrix."""
    n, dim = x.shape
    eigenvalues = np.linalg.eigvalsh(np.eye(dim) + dim / (n * epsilon**2) * x.T @ x)
    return 0.5 * float(np.log(eigenvalues).sum())


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(rows, dim=1)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2])
@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (4, 7), (7, 4), (6, 6)])
def test_coding_rate_and_its_gradient(shape, epsilon):
    x = unit(*shape).requires_grad_()
    rate = coding_rate(x, epsilon)
    array = x.detach().numpy()
    assert rate.item() == pytest.approx(reference_coding_rate(array, epsilon), rel=1e-12)
    (gradient,) = torch.autograd.grad(rate, x)
    n, dim = shape
    factor = dim / (n * epsilon**2)
    expected = factor * array @ np.linalg.inv(np.eye(dim) + factor * array.T @ array)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_coding_rate_is_largest_for_orthogonal_rows_and_smallest_for_equal_ones():
    orthogonal, equal = torch.eye(8), unit(1, 8).float().expand(8, 8)
    assert coding_rate(orthogonal).item() == pytest.approx(4 * math.log(1 + 8 / (8 * 0.25)))
    assert coding_rate(equal).item() == pytest.approx(0.5 * math.log(1 + 8 / 0.25))
    assert coding_rate(equal) < coding_rate(unit(8, 8)) < coding_rate(orthogonal)


@pytest.mark.parametrize("shape", [(90, 512), (2000, 128)])
def test_coding_rate_in_float32_under_autocast_with_fast_products(shape):
    x = unit(*shape)
    expected = reference_coding_rate(x.float().double().numpy(), 0.5)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rate = coding_rate(x.float())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert rate.dtype == torch.float32
    assert rate.item() == pytest.approx(expected, rel=1e-5)
    collapsed = x[:1].float().repeat(shape[0], 1).requires_grad_()
    coding_rate(collapsed).backward()
    assert torch.isfinite(collapsed.grad).all()


def test_coding_rate_refuses_what_it_cannot_read():
    with pytest.raises(ValueError, match=r"n >= 1, got \(0, 4\)"):
        coding_rate(torch.zeros(0, 4))
    with pytest.raises(ValueError, match="epsilon must be a positive number, got 0"):
        coding_rate(torch.ones(2, 4), 0)


def test_mean_coding_rate_averages_classes():
    x, labels = unit(11, 4), torch.arange(11) % 3
    expected = np.mean([reference_coding_rate(x[labels == c].numpy(), 0.5) for c in range(3)])
    assert mean_coding_rate(x, labels).item() == pytest.approx(expected)
    with pytest.raises(ValueError, match="at least one row"):
        mean_coding_rate(x[:0], labels[:0])


@pytest.mark.parametrize("block", [1, 30, 2**22])
def test_density_counts_every_pair(monkeypatch, block):
    monkeypatch.setattr(anti_collapse, "BLOCK", block)
    x, labels = unit(11, 4), torch.arange(11) % 3
    pairs = [(i, j) for i in range(11) for j in range(i)]
    within = [math.dist(x[i], x[j]) for i, j in pairs if labels[i] == labels[j]]
    across = [math.dist(x[i], x[j]) for i, j in pairs if labels[i] != labels[j]]
    assert density(x, labels) == pytest.approx(np.mean(within) / np.mean(across))


@pytest.mark.parametrize("labels", [torch.zeros(4), torch.arange(4)])
def test_density_needs_both_kinds_of_pairs(labels):
    with pytest.raises(ValueError, match="pairs within a class and pairs across classes"):
        density(unit(4, 3), labels)
    with pytest.raises(ValueError, match="coincide"):
        density(torch.ones(4, 3), torch.tensor([0, 0, 1, 1]))


def test_language_guidance_is_the_divergence_of_visual_from_language_rows():
    visual, language = unit(5, 4).requires_grad_(), unit(5, 7, seed=1).requires_grad_()
    loss = language_guidance(visual, language, temperature=0.2)
    expected = 0.0
    v, w = visual.detach().numpy(), language.detach().numpy()
    for i in range(5):
        others = [j for j in range(5) if j != i]
        p = np.exp([w[i] @ w[j] / 0.2 for j in others])
        q = np.exp([v[i] @ v[j] / 0.2 for j in others])
        p, q = p / p.sum(), q / q.sum()
        expected += float((p * np.log(p / q)).sum()) / 5
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert visual.grad.abs().max() > 0
    assert language.grad is None
    assert language_guidance(visual, visual.detach()).item() == pytest.approx(0, abs=1e-12)
    alone = language_guidance(visual[:1], language[:1])
    assert alone == 0
    assert alone.requires_grad
    with pytest.raises(ValueError, match="a row per embedding, 5, got 4"):
        language_guidance(visual, language[:4])
    with pytest.raises(ValueError, match="temperature must be a positive number, got 0"):
        language_guidance(visual, language, temperature=0)
