"""DADA against slow versions of its formulas, and its two kinds of step against plain descents."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from methods.dada import DADA, Discriminator, nuclear_discrepancy
from orchestrator.check.subject import TRAIN_ROWS, Run, Subject, terms_of

ROWS = TRAIN_ROWS[:24:2]
SETTINGS: dict[str, Any] = {
    "width": 6,
    "class_width": 4,
    "dropout": 0.0,
    "class_share": 0.3,
    "proxy_weight": 0.2,
    "weight": 2.0,
    "discrepancy": 0.7,
}


def slow_layers(net: Discriminator, rows: Tensor) -> Tensor:
    """One image and unit after the other."""
    count = len(net.layers)
    for k in range(count):
        layer: Any = net.layers[k]
        weight, bias = layer.weight, layer.bias
        x = torch.stack([torch.stack([(w * row).sum() + b for w, b in zip(weight, bias, strict=True)]) for row in rows])
        if k < len(net.gains):
            mean = sum(x) / len(x)
            var = sum((row - mean) ** 2 for row in x) / len(x)
            x = torch.stack([(row - mean) / (var + 1e-5) ** 0.5 * net.gains[k] + net.shifts[k] for row in x])
        rows = torch.clamp(x, min=0) if k < count - 1 else x
    return rows


def slow_cross_entropy(logits: Tensor, labels: list[int]) -> Tensor:
    terms = [-torch.log(torch.exp(r[y]) / torch.exp(r).sum()) for r, y in zip(logits, labels, strict=True)]
    return torch.stack(terms).mean()


def slow_terms(method: DADA, z: Tensor, labels: list[int], sign: int) -> dict[str, Tensor]:
    rng = Generator().manual_seed(0)
    beta = np.random.default_rng(int(torch.randint(2**62, (), generator=rng))).beta(2.0, 1.0, size=2)
    proxies = [method.base.proxies.weight[label] for label in labels]
    own = torch.stack([p / (p * p).sum().sqrt() for p in proxies])
    mixed = [(1 - m) * z + m * own for m in beta]
    first, second = (torch.stack([row / (row * row).sum().sqrt() for row in rows]) for rows in mixed)
    domains: Any = method.discriminators["domains"]
    classes: Any = method.discriminators["classes"]
    told = [slow_cross_entropy(slow_layers(domains, rows), [k] * len(z)) for k, rows in enumerate((z, first, own))]
    logits = slow_layers(classes, z)
    norms = [
        torch.linalg.eigvalsh(s.T @ s).clamp(min=0).sqrt().sum()  # the singular values
        for s in (logits.softmax(1), slow_layers(classes, second).softmax(1))
    ]
    gap = 0.7 * (norms[0] - norms[1]) / len(z)
    right = 2 * slow_cross_entropy(logits, labels)
    return {"classes": 0.3 * (right - sign * gap), "domains": sign * 0.7 * torch.stack(told).sum()}


def test_the_terms_of_both_sides() -> None:
    subject = Subject(DADA, SETTINGS)
    learner, batch = subject.learner(), subject.batch(ROWS)
    method: Any = learner.method
    z, labels = F.normalize(learner.network(batch.images)["embedding"].detach(), dim=1), batch.labels[:, 0]
    for sign in (1, -1):
        found = method._terms(z, labels, Generator().manual_seed(0), sign=sign)
        for name, wanted in slow_terms(method, z, labels.tolist(), sign).items():
            assert found[name].item() == pytest.approx(wanted.item(), rel=1e-7)
    terms, plain = terms_of(learner, batch), slow_terms(method, z, labels.tolist(), -1)
    assert terms["domains"].item() == pytest.approx(2 * plain["domains"].item(), rel=1e-7)
    objective = method.base.compare({"embedding": z}, batch.labels, Generator())
    assert terms["proxy"].item() == pytest.approx(0.2 * objective.item())


def test_the_nuclear_norm_is_high_for_answers_that_are_sure_and_differ() -> None:
    sure, unsure = 40 * torch.eye(4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    assert nuclear_discrepancy(sure, unsure).item() == pytest.approx((4 - 1) / 4)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_discriminators_step_first_and_alone(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(Subject(DADA, SETTINGS | {"discriminator_steps": steps}))
    learner: Any = run.learner
    seen: list[tuple[int, list[str]]] = []
    pulled: set[str] = set()
    real = learner.method._terms
    last = {name: value.detach().clone() for name, value in learner.named_parameters()}

    def watched(embeddings: Tensor, labels: Tensor, rng: Generator, *, sign: int) -> Any:
        now = {name: value.detach().clone() for name, value in learner.named_parameters()}
        seen.append((sign, sorted(name for name in now if not torch.equal(now[name], last[name]))))
        last.update(now)
        pulled.update(name for name, value in learner.named_parameters() if value.grad is not None)
        return real(embeddings, labels, rng, sign=sign)

    monkeypatch.setattr(learner.method, "_terms", watched)
    run.step()
    assert [sign for sign, _ in seen] == [1] * steps + [-1]
    assert not seen[0][1]
    assert not pulled, "no gradient of the discriminators' steps is left for the proxies"
    for _, moved in seen[1:]:
        assert moved and all(name.startswith("method.discriminators.") for name in moved)
    after = {name for name, value in learner.named_parameters() if not torch.equal(value, last[name])}
    assert "method.base.proxies.weight" in after and any("backbone" in name for name in after)
    assert not any("discriminators" in name for name in after)


def test_dropout_keeps_the_mean_and_draws_from_the_generator() -> None:
    torch.manual_seed(0)
    net = Discriminator([3, 40, 1], 0.5, normalized_last=False).double()
    rows = F.normalize(torch.randn(4, 3, dtype=torch.float64), dim=1)
    rng = Generator().manual_seed(1)
    found = torch.stack([net(rows, rng) for _ in range(600)]).detach()
    net.dropout = 0.0
    assert found.std(0).min() > 0.05
    assert (found.mean(0) - net(rows, rng)).abs().max() < 5 * float(found.std(0).max()) / math.sqrt(600)
