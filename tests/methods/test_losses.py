"""What the losses in files of their own have beside their objective: distances, margins, learned numbers."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import references as slow
from torch import Generator, Tensor

from methods.arc_face import angular_margin
from methods.baselines import Baseline
from methods.sigmoid_pairs import SigmoidPairs
from methods.snr import SNR, snr_distance, zero_mean
from orchestrator.method import Batch, Task

D, C = 6, 4
LABELS = torch.tensor([[0, -1], [0, 1], [1, -1], [1, 2], [2, -1], [2, 0], [-1, -1], [3, -1]])


def unit(rows: int, seed: int) -> Tensor:
    generator = Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, D, dtype=torch.float64, generator=generator), dim=1)


def build(kind: type[Baseline], **settings: Any) -> Any:
    torch.manual_seed(0)
    return kind(kind.Config(**settings), Task(C, D, D)).double()


def terms(method: Baseline, z: Tensor) -> dict[str, Tensor]:
    batch = Batch(torch.empty(0), LABELS, torch.arange(len(z)))
    return method.step(batch, lambda images: {"embedding": z}, Generator().manual_seed(0))


def pairs() -> tuple[Tensor, Tensor]:
    sets = [{int(label) for label in row if label >= 0} for row in LABELS]
    return slow.masks(sets, sets, same=True)


def agree(found: Tensor, wanted: Tensor, *leaves: Tensor) -> None:
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(value.sum(), leaves, retain_graph=True) for value in (found, wanted))
    for mine, other in zip(*gradients, strict=True):
        assert torch.allclose(mine, other, rtol=1e-10, atol=1e-12)


# ArcFace ---------------------------------------------------------------------------------------------------


def test_the_angular_margin_is_finite_at_both_ends_and_falls_with_the_angle_on_both_sides_of_pi() -> None:
    for dtype in (torch.float32, torch.float64):
        cosine = torch.tensor([1.0, 1.0 + 1e-6, 1.0 - 1e-7, 0.0, -1.0, -1.0 - 1e-6], dtype=dtype, requires_grad=True)
        widened = angular_margin(cosine, 0.5)
        (slope,) = torch.autograd.grad(widened.sum(), cosine)
        assert slope.isfinite().all() and (slope > 0).all()
        wanted = [math.cos(0.5)] * 3 + [math.cos(math.pi / 2 + 0.5)] + [-1 - 0.5 * math.sin(0.5)] * 2
        assert torch.allclose(widened, torch.tensor(wanted, dtype=dtype), atol=1e-3)
        assert slope[0] == pytest.approx(math.cos(0.5))
    angles = torch.linspace(0, math.pi, 1000, dtype=torch.float64)
    assert (angular_margin(angles.cos(), 0.7).diff() < 0).all()
    assert torch.allclose(angular_margin(angles.cos(), 0.0), angles.cos(), atol=1e-12)


# SNR -------------------------------------------------------------------------------------------------------


def test_the_snr_distance_is_the_slow_one_and_finite_without_a_signal() -> None:
    q, r = unit(4, 0).requires_grad_(), unit(3, 1).requires_grad_()
    agree(snr_distance(q, r), slow.snr_distance(q, r), q, r)
    flat = torch.full((2, D), D**-0.5, requires_grad=True)
    for rows in (flat, torch.zeros(2, D, requires_grad=True), unit(1, 0).float().repeat(2, 1).requires_grad_()):
        value = snr_distance(rows, rows)
        (gradient,) = torch.autograd.grad(value.sum(), rows)
        assert (value == 0).all() and (gradient == 0).all()
    assert snr_distance(flat, unit(2, 0).float()).isfinite().all()
    assert snr_distance(q.detach().half(), r.detach().bfloat16()).dtype == torch.float32


def test_snr_is_contrastive_with_the_query_as_the_anchor_and_a_mean_of_zero() -> None:
    method, z = build(SNR, neg_margin=2.5, zero_mean_weight=0.3), unit(len(LABELS), 2).requires_grad_()
    found = terms(method, z)
    agree(found["loss"], slow.contrastive(slow.snr_distance(z, z), *pairs(), 0.0, 2.5, "nonzero"), z)
    agree(found["zero_mean"], 0.3 * slow.mean([sum(row.unbind()).abs() for row in z]), z)
    assert zero_mean(torch.empty(0, D)) == 0


# Sigmoid ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["batch", "proxies"])
def test_the_sigmoid_loss_learns_its_scale_and_bias_without_weight_decay(source: str) -> None:
    method, z = build(SigmoidPairs, references=source), unit(len(LABELS), 2).requires_grad_()
    rows = method.proxies() if source == "proxies" else z
    sets = [{int(label) for label in row if label >= 0} for row in LABELS]
    masks = slow.masks(sets, [{c} for c in range(C)], same=False) if source == "proxies" else pairs()
    wanted = slow.sigmoid_pairs(z @ rows.T, *masks, method.log_scale.exp(), method.bias)
    agree(terms(method, z)["loss"], wanted, z, method.log_scale, method.bias)
    assert method.log_scale.exp().item() == pytest.approx(10) and method.bias.item() == -10
    *proxies, group = method.parameter_groups(0.01)
    rate = 0.01 * method.config.proxy_lr_multiplier
    assert group == {"params": [method.log_scale, method.bias], "lr": rate, "weight_decay": 0.0}
    assert [part["params"] for part in proxies] == ([[method.proxies.weight]] if source == "proxies" else [])
    fixed = build(SigmoidPairs, references=source, learned=False)
    assert torch.allclose(terms(fixed, z)["loss"], wanted) and len(fixed.parameter_groups(0.01)) == len(proxies)
