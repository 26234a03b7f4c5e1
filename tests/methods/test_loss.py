"""A method as the loss of a loop of one's own."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import orchestrator as dml
from methods.objectives import contrastive, euclidean_distance, pair_masks
from orchestrator.method import registry

PAGE = Path(__file__).parents[2] / "docs" / "losses.md"
ROWS = dict(re.findall(r"^\| `(\w+)` \| (?:`(\w+)` )?\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
CLASSES = 8


def loss_of(name: str, **more: Any) -> dml.Loss:
    torch.manual_seed(0)
    more = {"num_classes": CLASSES, "embedding_dim": 16, "batch_size": 32, "total_steps": 10} | more
    return dml.Loss(name, super_classes=[0, 0, 0, 0, 1, 1, 1, 1], **more)


def values_of(loss: dml.Loss, steps: int) -> list[float]:
    """Of a linear network that is trained to tell eight clouds of points."""
    torch.manual_seed(1)
    network, labels = nn.Linear(20, 16), torch.arange(32) % CLASSES
    images = torch.randn(CLASSES, 20)[labels] + 0.5 * torch.randn(32, 20)
    optimizer = torch.optim.AdamW([{"params": network.parameters()}, *loss.parameter_groups(1e-3)], lr=1e-3)
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(network(images), labels)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    return values


@pytest.mark.parametrize("name", ROWS)
def test_each_falls_in_ten_steps(name: str) -> None:
    values = values_of(loss_of(name), 10)
    assert min(values[1:]) < values[0] and all(value == value for value in values)


def test_the_page_has_all_and_their_counterparts() -> None:
    from pytorch_metric_learning import losses

    refused = {}
    for name in registry():
        if name not in ROWS:
            with pytest.raises(dml.InputError, match=f"method '{name}' .*: run it by orchestrator.train") as raised:
                loss_of(name)
            refused[name] = str(raised.value)
    assert len(ROWS) > 35 and all(f"`{name}`" in PAGE.read_text(encoding="utf-8") for name in refused)
    assert all(hasattr(losses, theirs) for theirs in ROWS.values() if theirs)
    theirs = "has a training step of its own", "takes 2 views of each image", "needs the network"
    assert [part for part in theirs if not any(part in said for said in refused.values())] == []


def test_the_examples_of_the_page_run() -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, "docs/losses.md", "exec"), names)
    assert names["value"].item() > 0


def test_it_is_the_method_on_normalised_embeddings() -> None:
    embeddings, labels = 3 * torch.randn(12, 16, dtype=torch.float64), torch.arange(12) % 4
    unit = nn.functional.normalize(embeddings, dim=1)
    positive, negative = pair_masks(labels, labels, same=True)
    loss = loss_of("contrastive", pos_margin=0.1, neg_margin=0.9)
    expected = contrastive(euclidean_distance(unit, unit), positive, negative, pos_margin=0.1, neg_margin=0.9)
    assert float(loss(embeddings, labels)) == pytest.approx(float(expected), rel=1e-12)
    assert torch.equal(loss.normalize(embeddings), unit)


@pytest.mark.parametrize("name", ["proxy_anchor", "contrastive", "pfml"])
def test_its_state_goes_on(name: str) -> None:
    more: dict[str, Any] = {"references": "memory", "memory_size": 40} if name == "contrastive" else {}
    first = loss_of(name, **more)
    values_of(first, 3)
    again = loss_of(name, **more, seed=9)
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    assert (again.steps, again.rng.get_state().tolist()) == (first.steps, first.rng.get_state().tolist())
    embeddings, labels = torch.randn(8, 16), torch.arange(8)
    assert float(again(embeddings, labels)) == float(first(embeddings, labels)) and first.terms


def test_an_image_that_comes_again_is_no_pair_of_itself() -> None:
    """Its earlier embedding in the memory is left out, if the images are numbered."""
    embeddings, labels = torch.randn(8, 16), torch.arange(8)
    numbered, counted = (loss_of("contrastive", references="memory", memory_size=8, memory_start=0) for _ in range(2))
    samples = torch.arange(8)
    numbered(embeddings, labels, samples), counted(embeddings, labels)
    assert float(numbered(embeddings + 1, labels, samples)) != float(counted(embeddings + 1, labels))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpa": 3.0}, "alpa: no such hyperparameter of 'proxy_anchor' (did you mean 'alpha'?)"),
        ({"alpha": "x"}, "alpha: 'x': "),
    ],
)
def test_wrong_hyperparameters_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(dml.InputError, match=re.escape(message)):
        loss_of("proxy_anchor", **changes)
    with pytest.raises(dml.InputError, match=re.escape("unknown method 'proxy_ancor' (did you mean 'proxy_anchor'?)")):
        loss_of("proxy_ancor")


@pytest.mark.parametrize(
    ("embeddings", "labels", "message"),
    [
        (torch.ones(4, 15), torch.arange(4), r"embeddings: \(4, 15\) should be \(B, 16\)"),
        (torch.ones(4, 16), torch.arange(3), r"labels: \(3,\) torch.int64 should be \(4,\) whole numbers"),
        (torch.ones(4, 16), torch.ones(4), r"labels: \(4,\) torch.float32 should be"),
        (torch.ones(4, 16), torch.arange(4) + 7, "labels: 7 to 10 should be below 8"),
    ],
)
def test_wrong_tensors_are_named(embeddings: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(dml.InputError, match=message):
        loss_of("proxy_anchor")(embeddings, labels)
