"""IBC against a slow version of its messages, one pair of images and one head at a time."""

import math
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from methods.ibc import IBC, drawing_from, smoothed_cross_entropy
from orchestrator.method import Batch, InputError, Task

B, D, C = 5, 6, 4
LABELS = torch.tensor([[0, -1], [1, -1], [2, 0], [-1, -1], [1, -1]])


def build(**settings: Any) -> Any:
    torch.manual_seed(0)
    return IBC(IBC.Config(**settings), Task(C, D, D)).double()


def step(method: IBC, raw: Tensor, seed: int = 0) -> dict[str, Tensor]:
    outputs = {"raw": raw, "embedding": torch.nn.functional.normalize(raw, dim=1)}
    return method.step(
        Batch(torch.empty(0), LABELS, torch.arange(B)), lambda images: outputs, Generator().manual_seed(seed)
    )


def vectors() -> Tensor:
    return torch.randn(B, D, dtype=torch.float64, generator=Generator().manual_seed(1)).requires_grad_()


def slow_cross_entropy(logits: Tensor, smoothing: float) -> Tensor:
    terms = []
    for row, labels in zip(logits, LABELS.tolist(), strict=True):
        if own := {label for label in labels if label >= 0}:
            p = row.exp() / row.exp().sum()
            wanted = -torch.log(torch.stack([p[c] for c in own]).sum())
            terms.append((1 - smoothing) * wanted - smoothing * torch.log(p).sum() / C)
    return torch.stack(terms).mean()


def layer_norm(rows: Tensor, layer: Any) -> Tensor:
    found = []
    for row in rows:
        spread = ((row - row.mean()) ** 2).mean()
        found.append((row - row.mean()) / torch.sqrt(spread + 1e-5) * layer.weight + layer.bias)
    return torch.stack(found)


def slow_messages(x: Tensor, layer: Any, heads: int) -> Tensor:
    """The released attention: its softmax has a term of e^0 more below the line."""
    attention, size = layer.self_attn, D // heads
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    q, k, v = (x @ w.T + b for w, b in zip(weights, biases, strict=True))
    rows = []
    for i in range(B):
        parts = []
        for h in range(heads):
            own = slice(h * size, (h + 1) * size)
            scores = torch.stack([(q[i, own] @ k[j, own] / math.sqrt(size)).exp() for j in range(B)])
            parts.append(torch.stack([scores[j] / (scores.sum() + 1) * v[j, own] for j in range(B)]).sum(0))
        rows.append(torch.cat(parts))
    found: Tensor = torch.stack(rows) @ attention.out_proj.weight.T + attention.out_proj.bias
    return found


@pytest.mark.parametrize(("layers", "heads"), [(1, 2), (2, 3)])
def test_both_terms_and_every_gradient(layers: int, heads: int) -> None:
    method = build(layers=layers, heads=heads, dropout=0.0, temperature=0.7, smoothing=0.2, message_weight=0.6)
    with torch.no_grad():
        for value in method.parameters():
            value.add_(torch.randn(value.shape, generator=Generator().manual_seed(2)), alpha=0.3)
    raw = vectors()
    found = step(method, raw)
    x = torch.stack([row / row.norm() for row in raw]) @ method.first.weight.T + method.first.bias
    for layer in method.layers:
        x = layer_norm(x + slow_messages(x, layer, heads), layer.norm1)
        wide = (x @ layer.linear1.weight.T + layer.linear1.bias).clamp(min=0)
        x = layer_norm(x + wide @ layer.linear2.weight.T + layer.linear2.bias, layer.norm2)
    spread = ((x - x.mean(0)) ** 2).mean(0)
    logits = ((x - x.mean(0)) / torch.sqrt(spread + 1e-5) * method.gain) @ method.second.T
    wanted = {
        "direct": slow_cross_entropy((raw @ method.direct.weight.T + method.direct.bias) / 0.7, 0.2),
        "messages": 0.6 * slow_cross_entropy(logits / 0.7, 0.2),
    }
    assert found.keys() == wanted.keys()
    leaves = [raw, *method.parameters()]
    for name, value in wanted.items():
        assert found[name].item() == pytest.approx(value.item(), rel=1e-10)
        pairs = (
            torch.autograd.grad(part, leaves, allow_unused=True, retain_graph=True) for part in (found[name], value)
        )
        for mine, other in zip(*pairs, strict=True):
            none = torch.zeros(())
            torch.testing.assert_close(none if mine is None else mine, none if other is None else other)


def test_dropout_is_drawn_from_the_generator_that_is_given_and_from_no_other() -> None:
    method, raw, before = build(), vectors(), torch.get_rng_state()
    first, again, other = (float(step(method, raw, seed)["messages"].detach()) for seed in (0, 0, 1))
    assert first == again != other and torch.equal(torch.get_rng_state(), before)
    without = build(dropout=0.0)
    assert step(without, raw, 0)["messages"] == step(without, raw, 1)["messages"]
    with drawing_from(Generator(), torch.device("cpu")):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_without_labels_costs_nothing_and_one_image_is_finite() -> None:
    logits = torch.randn(3, C, generator=Generator().manual_seed(0), requires_grad=True)
    none = smoothed_cross_entropy(logits, torch.zeros(3, C, dtype=torch.bool), 0.1)
    assert none == 0 and none.requires_grad
    with pytest.raises(InputError, match="heads: 4: should divide embedding_dim, which is 6"):
        build(heads=4)
