"""Where float32 numbers are rounded to TF32: in the network, in both directions, as the setting says; never in a loss.

A GPU's switches can be set and read without one: here they are read in the middle of a training on the CPU.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from support.contract_methods import Centres, training_of
from torch import Tensor

import orchestrator.training.learner
from orchestrator.check.subject import HELD_OUT_ROWS, MADE, Run, Subject
from orchestrator.config.training import Training
from orchestrator.data.store import Store
from orchestrator.method import Batch, Engine, Outputs, registry, total
from orchestrator.networks.embedding import EmbeddingNetwork
from orchestrator.training import engine as engine_module
from orchestrator.training import precision
from orchestrator.training.embed import run_network

SWITCHES = {  # convolutions and products of the network in TF32
    "float32": (True, False),
    "tf32": (True, True),
    "full_float32": (False, False),
    "bf16": (True, False),
}
Seen = set[tuple[str, bool, bool]]
seen: Seen = set()


def look(where: str) -> None:
    seen.add((where, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))


class Probe(torch.autograd.Function):
    """A tensor as it is; notes the switches as it passes, and as its gradient does."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, where: str) -> Tensor:
        ctx.where = where
        look(where)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        look(f"{ctx.where}, backward")
        return gradients[0], None


class Probed(Centres):
    """L = the pull."""

    name = "probed"

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        return super().loss(outputs | {"embedding": Probe.apply(outputs["embedding"], "loss")}, labels)


class ProbedTwice(Probed):
    """L = the pull, by a training step of its own."""

    name = "probed_twice"

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        engine.gradients(total(engine.terms(batch)), create_graph=True)
        terms = engine.terms(batch)
        engine.backward(total(terms))
        engine.apply()
        return terms


@pytest.fixture(autouse=True)
def switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The network and the loss are probed; a CPU's switches are set as a GPU's; the loss of each test starts anew."""
    forward = EmbeddingNetwork.forward

    def probed(self: EmbeddingNetwork, images: Tensor) -> Outputs:
        return {name: Probe.apply(output, "network") for name, output in forward(self, images).items()}

    seen.clear()
    monkeypatch.setattr(EmbeddingNetwork, "forward", probed)
    monkeypatch.setattr(precision, "may_round", lambda device: True)
    for method in (Probed, ProbedTwice):
        monkeypatch.setitem(registry(), method.name, method)
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before


def expected(name: str) -> Seen:
    convolutions, products = SWITCHES[name]
    whole = {(f"network{direction}", convolutions, products) for direction in ("", ", backward")}
    return whole | {("loss, backward", convolutions, False)}


@pytest.mark.parametrize(("method", "name"), [*((Probed, name) for name in SWITCHES), (ProbedTwice, "tf32")])
def test_the_network_computes_in_the_precision_and_the_loss_in_float32(
    method: type[Probed], name: str, data_folder: Path
) -> None:
    training_of(method, data_folder, None, take=1, precision=name)
    assert {found for found in seen if found[0] != "loss"} == expected(name)
    assert {products for where, _, products in seen if where == "loss"} == {False}


def test_also_where_a_batch_passes_in_parts(data_folder: Path) -> None:
    training_of(Probed, data_folder, None, take=1, precision="tf32", images_per_pass=7)
    assert {found for found in seen if found[0] != "loss"} == expected("tf32")


def test_planted_a_backward_pass_that_is_left_alone(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrator.training.learner, "network_from_here", lambda outputs, _: outputs)
    training_of(Probed, data_folder, None, take=1, precision="tf32")
    assert ("network, backward", True, False) in seen


def test_planted_a_loss_that_is_rounded(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = precision.arithmetic
    monkeypatch.setattr(engine_module, "arithmetic", lambda name, device, products: whole(name, device))
    training_of(Probed, data_folder, None, take=1, precision="tf32")
    assert ("loss, backward", True, True) in seen


@pytest.mark.parametrize(("name", "products"), [("bf16", False), ("tf32", True)])
@pytest.mark.parametrize("normalized", [True, False])
def test_evaluation_rounds_as_the_training_does_but_never_to_half(name: str, products: bool, normalized: bool) -> None:
    run = Run(Subject(Probed, {}))
    run.learner.float().precision = name
    seen.clear()
    found = run_network(run.learner, cast(Store, MADE), HELD_OUT_ROWS, torch.device("cpu"), normalized=normalized)
    assert seen == {("network", True, products)} and found["embedding"].dtype == torch.float32


def test_the_three_float32_are_the_same_on_a_cpu(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(registry(), Probed.name, Probed)
    found = [training_of(Probed, data_folder, None, take=2, precision=name) for name in list(SWITCHES)[:3]]
    assert found[0] == found[1] == found[2]


def test_what_was_float32_is_float32() -> None:
    """Files and journals of a time with fewer names mean what they meant: TF32 convolutions, full products."""
    assert Training().precision == "float32" and SWITCHES["float32"] == (True, False)
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == SWITCHES["float32"]
