"""The mean-field losses against their formulas, one pair at a time, on label sets and at large numbers."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from methods.mean_field import (
    MeanFieldContrastive,
    MeanFieldMultiSimilarity,
    _OverFields,
    class_wise_multi_similarity,
    penalty_of_fields,
)
from orchestrator.method import Task

D, C = 5, 5
LABELS = torch.tensor([[0, -1], [0, -1], [1, -1], [2, -1], [2, 0], [1, -1]])  # classes 3 and 4 have no sample
SETS = [{int(label) for label in row if label >= 0} for row in LABELS]
NONE = torch.zeros((), dtype=torch.float64)


def slow_contrastive(s: Tensor, among: Tensor, pos: float, neg: float) -> tuple[Tensor, Tensor]:
    pairs = [
        torch.clamp(1 - s[i, c] - pos, min=0) if c in own else torch.clamp(neg - (1 - s[i, c]), min=0)
        for i, own in enumerate(SETS)
        for c in range(C)
    ]
    fields = [torch.clamp(neg - (1 - among[c, d]), min=0) ** 2 for c in range(C) for d in range(C) if c != d]
    return torch.stack(pairs).sum() / len(SETS), torch.stack(fields).sum() / C


def slow_multi_similarity(s: Any, among: Any, alpha: float, beta: float, base: float) -> tuple[Any, Any]:
    of = [[i for i, own in enumerate(SETS) if c in own] for c in range(C)]
    q: Any = [
        [
            sum((torch.exp(beta * (s[i, d] - base)) for i in of[c] if d not in SETS[i]), NONE) / max(1, len(of[c]))
            for d in range(C)
        ]
        for c in range(C)
    ]
    p: Any = [sum(torch.exp(-alpha * (s[i, c] - base)) for i in of[c]) / len(of[c]) for c in range(C) if of[c]]
    pull = sum(torch.log(1 + each) for each in p) / alpha
    push = sum(torch.log(1 + q[c][d] + q[d][c]) for c in range(C) for d in range(C) if c != d) / (2 * beta)
    soft = [torch.log(1 + torch.exp(beta * (among[c, d] - base))) / beta for c in range(C) for d in range(C) if c != d]
    return (pull + push) / len(p), torch.stack([each**2 for each in soft]).sum() / C


@pytest.mark.parametrize(
    ("kind", "slow", "settings"),
    [
        (MeanFieldContrastive, slow_contrastive, {"pos_margin": 0.1, "neg_margin": 0.9}),
        (MeanFieldMultiSimilarity, slow_multi_similarity, {"alpha": 0.5, "beta": 6.0, "base": 0.2}),
    ],
)
def test_the_losses_are_their_formulas(kind: Any, slow: Any, settings: dict[str, float]) -> None:
    torch.manual_seed(0)
    method = kind(kind.Config(**settings, field_weight=0.3), Task(C, D, D)).double()
    noise = torch.randn(len(LABELS), D, dtype=torch.float64, generator=Generator().manual_seed(1))
    z = F.normalize(noise, dim=1).requires_grad_()
    fields = F.normalize(method.fields.weight, dim=1)
    wanted = slow(z @ fields.T, fields @ fields.T, *settings.values())
    found = method.loss({"embedding": z}, LABELS)
    for term, plain in zip(found.values(), (wanted[0], 0.3 * wanted[1]), strict=True):
        assert term.item() == pytest.approx(plain.item(), rel=1e-10)
        leaves = [z, method.fields.weight]
        both = [torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True) for value in (term, plain)]
        for ours, theirs in zip(*both, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("least", [-math.inf, 0.3])
@pytest.mark.parametrize("crowd", [0, 1])
def test_what_keeps_fields_apart_is_the_same_in_blocks_and_in_lists(
    crowd: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows at a time, of all pairs or of a list of those that count."""
    monkeypatch.setattr(_OverFields, "BLOCK", 3 * 8)
    monkeypatch.setattr(_OverFields, "CROWD", crowd)
    fields = F.normalize(torch.randn(8, 3, dtype=torch.float64, generator=Generator().manual_seed(2)), dim=1)
    fields.requires_grad_()
    pairs = [(c, d) for c in range(8) for d in range(8) if c != d]
    terms = [torch.relu(fields[c] @ fields[d] - 0.3) ** 2 for c, d in pairs]
    plain = torch.stack(terms).sum() / 8
    found = penalty_of_fields(fields, lambda s: torch.relu(s - 0.3), least)
    assert found.item() == pytest.approx(plain.item(), rel=1e-12) and found > 0.1
    slopes = [torch.autograd.grad(value, fields)[0] for value in (found, plain)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)
    assert penalty_of_fields(fields[:0], torch.relu) == 0
    assert penalty_of_fields(fields, torch.relu, 0.9) != penalty_of_fields(fields, torch.relu)


def test_fields_without_a_weight_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the author's commands."""
    monkeypatch.setattr(_OverFields, "apply", None)
    method = MeanFieldMultiSimilarity(MeanFieldMultiSimilarity.Config(field_weight=0), Task(C, D, D))
    terms = method.loss({"embedding": F.normalize(torch.randn(len(LABELS), D), dim=1)}, LABELS)
    assert terms["fields"] == 0 and terms["pairs"] > 0


def test_large_sharpness_stays_finite_in_float32() -> None:
    """Three classes: the first two meet at 1, the others nowhere; all sums are far beyond float32."""
    s = torch.tensor([[0.9, 1.0, -1.0], [-1.0, -0.9, -1.0], [-1.0, -1.0, 0.5]], requires_grad=True)
    positive = torch.eye(3, dtype=torch.bool)
    value = class_wise_multi_similarity(s, positive, ~positive, beta=1000.0, base=-1.0)
    # log[1 + e^2000 + 1] and twice log[1 + 1 + 1], each in both orders, over 2 beta n
    push = 2 * (2000 + 2 * math.log(3)) / (2 * 1000 * 3)
    pull = sum(math.log1p(math.exp(-0.01 * (x + 1))) for x in (0.9, -0.9, 0.5)) / 0.01 / 3
    assert value.item() == pytest.approx(push + pull, rel=1e-5)
    (gradient,) = torch.autograd.grad(value, s)
    assert torch.isfinite(gradient).all() and gradient[0, 1] > 0
