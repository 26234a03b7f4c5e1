"""vMF softmax: its distributions against their integrals, its loss one draw and one class at a time."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ive
from torch import Generator, Tensor

from methods.vmf_softmax import VMFSoftmax, angles, draws, log_normalizer_ratio, mean_length, strength
from orchestrator.check.subject import Run, Subject
from orchestrator.method import Batch, InputError, Task

D, C = 4, 3
LABELS = torch.tensor([[0, -1], [1, -1], [2, 0], [-1, -1]])


@pytest.mark.parametrize(("dim", "error"), [(8, 0.06), (64, 2e-3), (256, 2e-4)])
def test_the_approximations_are_near_the_bessel_functions(dim: int, error: float) -> None:
    k, a = np.array([1.0, 20.0, 300.0, 900.0]), 17.0

    def exact(k: Any) -> Any:
        return (dim / 2 - 1) * np.log(k) - np.log(ive(dim / 2 - 1, k)) - k

    found = log_normalizer_ratio(torch.tensor(k**2), torch.tensor(a), dim)
    np.testing.assert_allclose(found, exact(k) - exact(np.sqrt(k**2 + a)), atol=error)
    lengths = mean_length(torch.tensor(k), dim)
    np.testing.assert_allclose(lengths, ive(dim / 2, k) / ive(dim / 2 - 1, k), atol=error)
    squared = torch.tensor(k**2, requires_grad=True)  # d log C / d (k^2) = -A(k) / (2 k)
    (slope,) = torch.autograd.grad(log_normalizer_ratio(squared, -squared.detach() / 2, dim).sum(), squared)
    half = torch.tensor(k) / math.sqrt(2)
    torch.testing.assert_close(slope, mean_length(half, dim) / (2 * half) - lengths / (2 * torch.tensor(k)))


@pytest.mark.parametrize(("dim", "k"), [(2, 0.0), (2, 3.0), (3, 500.0), (8, 0.0), (64, 10.0), (512, 700.0)])
def test_the_share_below_each_angle_is_its_level_and_the_gradient_follows_the_concentration(dim: int, k: float) -> None:
    grid = np.linspace(1e-9, math.pi, 200_001)

    def slow(k: float) -> Any:
        logs = (dim - 2) * np.log(np.sin(grid).clip(1e-300)) + k * np.cos(grid)
        shares = np.cumsum(np.exp(logs - logs.max()))
        return lambda found: np.interp(found, grid, shares / shares[-1])

    levels = torch.linspace(0.01, 0.99, 25, dtype=torch.float64)[None]
    concentration = torch.tensor([k], requires_grad=True)
    found = angles(concentration, levels, dim)
    np.testing.assert_allclose(slow(k)(found.detach().numpy()), levels, atol=4e-4)
    if k >= 3:
        (slope,) = torch.autograd.grad(found.sum(), concentration)
        up, down = (torch.tensor([k * (1 + side)], dtype=torch.float64) for side in (1e-4, -1e-4))
        change = (angles(up, levels, dim) - angles(down, levels, dim)).sum() / (2e-4 * k)
        assert float(slope) == pytest.approx(float(change), rel=2e-2) and slope < 0


def test_draws_are_of_unit_length_and_have_the_mean_of_their_distribution() -> None:
    mu = torch.nn.functional.normalize(torch.randn(2, D, dtype=torch.float64, generator=Generator().manual_seed(0)))
    k = torch.tensor([2.0, 30.0], dtype=torch.float64)
    found = draws(mu, k, 20_000, Generator().manual_seed(1))
    torch.testing.assert_close(found.norm(dim=2), torch.ones(2, 20_000, dtype=torch.float64))
    exact = torch.from_numpy(ive(D / 2, k.numpy()) / ive(D / 2 - 1, k.numpy()))
    torch.testing.assert_close(found.mean(1), exact[:, None] * mu, rtol=0, atol=0.01)


def build(**settings: Any) -> VMFSoftmax:
    torch.manual_seed(0)
    return VMFSoftmax(VMFSoftmax.Config(**settings), Task(C, D, D)).double()


def normalizer(vector: Tensor) -> Tensor:
    """log C of the vector's length, as the released code writes it, up to a constant."""
    squared, a, b = (vector**2).sum(), D / 2 - 0.5, D / 2 + 0.5
    first, second = torch.sqrt(a**2 + squared), torch.sqrt(b**2 + squared)
    return 0.5 * (a * torch.log(a + first) - first + a * torch.log(a + second) - second)


def slow_mean(vector: Tensor) -> Tensor:
    length, a, b = torch.sqrt((vector**2).sum()), D / 2 - 0.5, D / 2 + 0.5
    ratio = length / (a + torch.sqrt(b**2 + length**2)) + length / (a + torch.sqrt(a**2 + length**2))
    return 0.5 * ratio * vector / length


def test_the_loss_and_every_gradient() -> None:
    method = build(draws=3, confidence=0.5, temperature=0.3)
    with torch.no_grad():
        method.scale.fill_(1.7)
    raw = torch.randn(len(LABELS), D, dtype=torch.float64, generator=Generator().manual_seed(2)).requires_grad_()
    batch = Batch(torch.empty(0), LABELS, torch.arange(len(raw)))
    (found,) = method.step(batch, lambda images: {"raw": raw}, Generator().manual_seed(5)).values()
    vectors, beta = 1.7 * raw, 1 / torch.exp(method.log_temperature)
    length = torch.sqrt((vectors**2).sum(1))
    points = draws(vectors / length[:, None], length, 3, Generator().manual_seed(5))
    terms = []
    for i, row in enumerate(LABELS.tolist()):
        if own := [label for label in row if label >= 0]:
            sums = [
                torch.stack([(normalizer(w) - normalizer(w + beta * z)).exp() for w in method.weight]).sum()
                for z in points[i]
            ]
            first = torch.stack([torch.log(value) for value in sums]).mean()
            pulls = [torch.exp(beta * (slow_mean(vectors[i]) * slow_mean(method.weight[c])).sum()) for c in own]
            terms.append(first - torch.log(torch.stack(pulls).sum()))
    wanted = torch.stack(terms).mean()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-10)
    leaves = [raw, *method.parameters()]
    for mine, other in zip(*(torch.autograd.grad(value, leaves) for value in (found, wanted)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-11)


def test_training_begins_with_images_as_concentrated_as_classes() -> None:
    run = Run(Subject(VMFSoftmax, {"confidence": 0.6}))
    raw = run.scope().embed(None).outputs["raw"]
    assert float((run.method.scale * raw).abs().mean()) == pytest.approx(strength(0.6, 8), rel=1e-6)  # type: ignore[operator]
    assert strength(0.6, 8) == pytest.approx(0.6 / 0.64 * 7 / math.sqrt(8))


def test_one_dimension_is_refused() -> None:
    with pytest.raises(InputError, match="embedding_dim: 1: vmf_softmax needs 2 at least"):
        VMFSoftmax(VMFSoftmax.Config(), Task(C, 1, D))
