"""Methods with training steps, views or networks of their own, against slow references."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from methods.matryoshka import Matryoshka, prefixes
from methods.momentum_contrast import MomentumContrast
from methods.objectives import cosine_similarity, multi_similarity, pair_masks
from methods.reweighting import LearningToReweight, MetaWeightNet, helping
from methods.sharpness_aware import SharpnessAware, uphill
from methods.vicreg import VICReg, covariance, invariance, variance
from orchestrator.check.subject import TRAIN_ROWS, Run, Subject, terms_of
from orchestrator.method import Batch, total

ROWS = TRAIN_ROWS[:24:2]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=Generator().manual_seed(seed))


def close(found: Tensor, expected: Any) -> bool:
    return torch.allclose(found, torch.as_tensor(expected, dtype=found.dtype), rtol=1e-10, atol=1e-12)


def same_gradient(function: Any, reference: Any, *points: Tensor) -> None:
    """Values and gradients of both, on these points."""
    results = []
    for compute in (function, reference):
        leaves = [point.clone().requires_grad_() for point in points]
        value = compute(*leaves)
        results.append([value, *torch.autograd.grad(value, leaves)])
    for found, expected in zip(*results, strict=True):
        assert close(found, expected)


# VICReg ------------------------------------------------------------------------------------------------------


def slow_invariance(z: Tensor, other: Tensor) -> Tensor:
    n, dim = z.shape
    return torch.stack([(z[i, j] - other[i, j]) ** 2 for i in range(n) for j in range(dim)]).sum() / (n * dim)


def slow_variance(z: Tensor) -> Tensor:
    n, dim = z.shape
    hinges = []
    for j in range(dim):
        mean = sum(z[i, j] for i in range(n)) / n
        var = sum((z[i, j] - mean) ** 2 for i in range(n)) / (n - 1)
        hinges.append(torch.clamp(1 - (var + 1e-4) ** 0.5, min=0))
    return torch.stack(hinges).sum() / dim


def slow_covariance(z: Tensor) -> Tensor:
    n, dim = z.shape
    means = [sum(z[i, j] for i in range(n)) / n for j in range(dim)]
    squares = [
        (sum((z[i, j] - means[j]) * (z[i, k] - means[k]) for i in range(n)) / (n - 1)) ** 2
        for j in range(dim)
        for k in range(dim)
        if j != k
    ]
    return torch.stack([torch.as_tensor(square) for square in squares]).sum() / dim


def test_the_terms_of_vicreg() -> None:
    z, other = 0.7 * noise(5, 4), 0.7 * noise(5, 4, seed=1)
    same_gradient(invariance, slow_invariance, z, other)
    same_gradient(variance, slow_variance, z)
    same_gradient(covariance, slow_covariance, z)
    assert float(slow_variance(z)) > 0, "a hinge is active"


def test_vicreg_reads_two_views_before_they_are_normalised() -> None:
    subject = Subject(VICReg, {"invariance_weight": 3.0, "variance_weight": 2.0, "covariance_weight": 0.5})
    learner, batch = subject.learner(), subject.batch(ROWS)
    z, other = (learner.network(view)["embedding"] for view in batch.views)
    found = terms_of(learner, batch)
    assert close(found["invariance"], 3 * slow_invariance(z, other)) and float(found["invariance"].detach()) > 0
    assert close(found["variance"], 2 * (slow_variance(z) + slow_variance(other)) / 2)
    assert close(found["covariance"], 0.5 * (slow_covariance(z) + slow_covariance(other)))
    labels = torch.flip(batch.labels[:, 0], (0,))
    assert total(terms_of(learner, subject.batch(ROWS, labels=labels))) == total(found), "without labels"


# Sharpness-aware minimisation --------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_step_uphill(adaptive: bool) -> None:
    values, slopes = [noise(3, 2), noise(4, seed=1)], [noise(3, 2, seed=2), noise(4, seed=3)]
    flat = (torch.cat([part.flatten() for part in parts]).tolist() for parts in (values, slopes))
    entries = list(zip(*flat, strict=True))
    size = sum(((abs(w) * g) if adaptive else g) ** 2 for w, g in entries) ** 0.5
    expected = [0.3 * ((w * w * g) if adaptive else g) / size for w, g in entries]
    found = torch.cat([step.flatten() for step in uphill(values, slopes, 0.3, adaptive=adaptive)])
    assert close(found, expected)
    if not adaptive:
        assert float(found.norm()) == pytest.approx(0.3)
    assert not torch.cat([s.flatten() for s in uphill(values, [0 * s for s in slopes], 0.3, adaptive=adaptive)]).any()


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_gradient_is_taken_uphill(adaptive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(SharpnessAware, {"objective": "normalized_softmax", "rho": 0.2, "adaptive": adaptive})
    run, by_hand, batch = Run(subject), subject.learner().train(), subject.batch(ROWS)
    own = dict(by_hand.named_parameters())

    def gradients() -> dict[str, Tensor]:
        by_hand.zero_grad()
        total(by_hand(batch, Generator().manual_seed(0))[0]).backward()  # type: ignore[no-untyped-call]
        return {name: value.grad.clone() for name, value in own.items() if value.grad is not None}

    first = gradients()
    steps = uphill([own[name].detach() for name in first], list(first.values()), 0.2, adaptive=adaptive)
    with torch.no_grad():
        for name, step in zip(first, steps, strict=True):
            own[name].add_(step)
    expected = gradients()
    kept: dict[str, Tensor] = {}
    parameters = run.engine.parameters

    def keep() -> None:
        kept.update({name: value.grad.clone() for name, value in parameters.items() if value.grad is not None})

    monkeypatch.setattr(run.engine, "apply", keep)
    run.engine.step(batch, 0)
    assert kept.keys() == expected.keys() == first.keys()
    for name in expected:
        assert torch.allclose(kept[name], expected[name], rtol=1e-8, atol=1e-12), name
    assert not torch.allclose(kept["network.head.weight"], first["network.head.weight"], rtol=1e-3)


# Momentum contrast -------------------------------------------------------------------------------------------


def slow_contrast(s: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    rows = []
    for i in range(len(s)):
        kept = [a for a in range(s.shape[1]) if positive[i, a] or negative[i, a]]
        own = [p for p in kept if positive[i, p]]
        if own:
            together = torch.stack([torch.exp(s[i, a] / temperature) for a in kept]).sum().log()
            rows.append(torch.stack([together - s[i, p] / temperature for p in own]).mean())
    return torch.stack(rows).mean() if rows else 0 * s.sum()


def test_the_keys_are_of_a_teacher_that_follows_the_network() -> None:
    subject = Subject(MomentumContrast, {"momentum": 0.7, "memory_size": 24, "temperature": 0.2})
    run = Run(subject)
    method = run.learner.method
    assert isinstance(method, MomentumContrast)
    mean: dict[str, Tensor] = copy.deepcopy(dict(run.learner.network.named_parameters()))
    keys: list[Tensor] = []
    for step, rows in enumerate((TRAIN_ROWS[:12], TRAIN_ROWS[6:18])):
        batch = subject.batch(rows, step=step)
        for name, value in run.learner.network.named_parameters():
            mean[name] = 0.7 * mean[name] + 0.3 * value.detach()
        teacher = copy.deepcopy(run.learner.network)
        teacher.load_state_dict(teacher.state_dict() | mean)
        with torch.no_grad():
            keys.append(F.normalize(teacher(batch.views[1])["embedding"], dim=1))
            queries = F.normalize(run.learner.network(batch.images)["embedding"], dim=1)
        found = run.engine.step(batch, 0)
        references = torch.cat([keys[-1], *keys[:-1]])
        before = subject.batch(TRAIN_ROWS[:12]).labels[:, 0]
        marks = torch.cat([batch.labels[:, 0], *([before] * step)])
        images = [*([-1] * 12), *(TRAIN_ROWS[:12].tolist() * step)]
        other = torch.tensor([[image != row for image in images] for row in rows.tolist()])
        same = batch.labels == marks
        assert close(found["loss"].detach(), slow_contrast(queries @ references.T, same & other, ~same & other, 0.2))
    for name, value in method.teacher.named_parameters():
        assert torch.allclose(value, mean[name], rtol=1e-10) and not value.requires_grad
    assert close(method.memory.embeddings, torch.cat(keys))


# Matryoshka --------------------------------------------------------------------------------------------------


def test_lengths_of_prefixes() -> None:
    assert prefixes(512, 8) == [512, 256, 128, 64, 32, 16, 8]
    assert prefixes(100, 20) == [100, 50, 25] and prefixes(4, 8) == [4]


def test_a_matryoshka_loss_is_the_sum_over_prefixes() -> None:
    subject = Subject(Matryoshka, {"objective": "multi_similarity", "smallest": 2})
    learner, batch = subject.learner(), subject.batch(ROWS)
    found = terms_of(learner, batch)
    assert list(found) == ["first_8", "first_4", "first_2"]
    raw = learner.network(batch.images)["embedding"]
    masks = pair_masks(batch.labels, batch.labels, same=True)
    for size in (8, 4, 2):
        rows = torch.stack([row[:size] / row[:size].norm() for row in raw])
        assert close(found[f"first_{size}"], multi_similarity(cosine_similarity(rows, rows), *masks))


def test_a_matryoshka_model_offers_its_prefixes() -> None:
    method = Subject(Matryoshka, {"smallest": 2}).learner().method
    rows = F.normalize(noise(12, 8), dim=1)
    offered = method.embeddings({"embedding": rows})
    assert list(offered) == ["first_4", "first_2"]
    for size in (4, 2):
        assert close(offered[f"first_{size}"], torch.stack([row[:size] / row[:size].norm() for row in rows]))


# Weights that help a clean batch -----------------------------------------------------------------------------


def softmax_rows(s: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of each row's classes, -log softmax(s / T) at its label."""
    found = []
    for row, label in zip(s / temperature, labels.tolist(), strict=True):
        found.append(torch.stack([value.exp() for value in row]).sum().log() - row[label])
    return torch.stack(found)


def test_helping_weights() -> None:
    assert close(helping(torch.tensor([-1.0, 2.0, -3.0, 0.0])), [0.25, 0, 0.75, 0])
    assert not helping(torch.tensor([1.0, 2.0])).any()


def by_hand(subject: Subject, batch: Batch) -> tuple[Any, list[str], Tensor, Tensor]:
    """A learner, its parameters but the weighing network's, each sample's gradient (B, P), and its loss (B,)."""
    learner: Any = subject.learner().train()
    own = [name for name, value in learner.named_parameters() if value.requires_grad and "weigher" not in name]
    parameters = [dict(learner.named_parameters())[name] for name in own]
    outputs = learner.outputs(batch.images)
    rows = softmax_rows(outputs["embedding"] @ learner.method.base.proxies().T, batch.labels[:, 0], 0.1)
    slopes = [torch.autograd.grad(row, parameters, retain_graph=True) for row in rows]
    return learner, own, torch.stack([torch.cat([part.flatten() for part in slope]) for slope in slopes]), rows.detach()


def clean_slope(learner: Any, names: list[str], step: Tensor, batch: Batch) -> Tensor:
    """The clean batch's gradient (P,) after a step of these parameters."""
    parameters = [dict(learner.named_parameters())[name] for name in names]
    with torch.no_grad():
        for parameter, part in zip(parameters, torch.split(step, [p.numel() for p in parameters]), strict=True):
            parameter.add_(part.view_as(parameter))
    assert batch.meta is not None
    outputs = learner.outputs(batch.meta.images)
    rows = softmax_rows(outputs["embedding"] @ learner.method.base.proxies().T, batch.meta.labels[:, 0], 0.1)
    return torch.cat([part.flatten() for part in torch.autograd.grad(rows.mean(), parameters)])


def test_samples_weigh_what_a_step_on_them_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual step on sample i alone changes the clean loss by -rate of their gradients' product."""
    subject = Subject(LearningToReweight, {"virtual_lr": 0.3})
    run, batch = Run(subject), subject.batch(ROWS)
    learner, names, slopes, rows = by_hand(subject, batch)
    wanted = (slopes @ clean_slope(learner, names, torch.zeros_like(slopes[0]), batch)).clamp(min=0)
    weights = wanted / wanted.sum()
    assert 0 < int((weights > 0).sum()) < len(rows), "some help, some do not"
    monkeypatch.setattr(run.engine, "apply", lambda: None)
    found = run.engine.step(batch, 0)
    assert torch.allclose(found["loss"].detach(), (weights * rows).sum(), rtol=1e-8)
    moved = torch.cat([run.engine.parameters[name].grad.flatten() for name in names])  # type: ignore[union-attr]
    assert torch.allclose(moved, weights @ slopes, rtol=1e-7, atol=1e-10)


def test_the_weighing_network_learns_from_the_clean_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(MetaWeightNet, {"virtual_lr": 0.3, "hidden": 3})
    run, batch = Run(subject), subject.batch(ROWS)
    learner, names, slopes, rows = by_hand(subject, batch)
    weigher = learner.method.weigher
    shares = weigher(rows[:, None])[:, 0] / len(rows)
    step = (-0.3 * shares.detach() @ slopes).detach()
    slope = clean_slope(learner, names, step, batch)
    # d M / d V = - rate sum over i of (dV_i / dV / n) g_i . dM/dw
    expected = torch.autograd.grad(-0.3 * (shares * (slopes @ slope)).sum(), list(weigher.parameters()))
    applied: list[set[str]] = []
    kept: list[Tensor] = []

    def apply(only: Any) -> None:
        applied.append(set(only))
        kept.extend(value.grad.clone() for name, value in run.engine.parameters.items() if name in applied[-1])  # type: ignore[union-attr]

    monkeypatch.setattr(run.engine, "apply", apply)
    run.engine.step(batch, 0)
    assert [{name.startswith("method.weigher.") for name in names} for names in applied] == [{True}, {False}]
    for found, wanted in zip(kept[: len(expected)], expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-7, atol=1e-12) and wanted.any()
