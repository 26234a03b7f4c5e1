"""torch's optimisers without its compiler: the same bits, the same hooks, and the compiler is never imported."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.training import eager

TRAINED = """
import os, sys
import torch
from orchestrator.training.eager import spare_compiler, step_plainly

def train(given):
    layer = torch.nn.Linear(3, 3)
    if "spare_compiler" in given:
        spare_compiler()
    optimizer = torch.optim.AdamW(layer.parameters())
    if "step_plainly" in given:
        step_plainly(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        layer(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    print(given, "torch._dynamo" in sys.modules, flush=True)

for given in sys.argv[1:]:  # each in a process of its own, which has imported torch
    if os.fork() == 0:
        try:
            train(given)
        finally:
            os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_a_training_does_not_import_the_compiler() -> None:
    """Neither of the two ways suffices."""
    imported = {"spare_compiler,step_plainly": "False", "spare_compiler": "True", "step_plainly": "True"}
    done = subprocess.run([sys.executable, "-c", TRAINED, *imported], capture_output=True, text=True, check=True)
    assert dict(line.split() for line in done.stdout.splitlines()) == imported, done.stderr


PARALLEL = """
import contextlib, sys
import torch
from torch.nn.parallel import DistributedDataParallel
from orchestrator.training.eager import no_compiler

torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
torch.manual_seed(0)
layer = torch.nn.Linear(3, 3)
layer(torch.ones(2, 3)).square().sum().backward()
alone = layer.weight.grad.clone()
layer.zero_grad()
with no_compiler(DistributedDataParallel) if sys.argv[2] == "no_compiler" else contextlib.nullcontext():
    parallel = DistributedDataParallel(layer)
parallel(torch.ones(2, 3)).square().sum().backward()
assert layer.weight.grad.equal(alone)
print("torch._dynamo" in sys.modules, "_dynamo" in vars(torch))
import torch._dynamo
assert torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"  # what the stand-in says
"""


@pytest.mark.slow
@pytest.mark.parametrize(("given", "imported"), [("no_compiler", "False False"), ("nothing", "True True")])
def test_workers_do_not_import_the_compiler(given: str, imported: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARALLEL, str(tmp_path / "group"), given]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == imported  # gloo of torch 2.8 writes there too


def trained(kind: type[torch.optim.Optimizer], plainly: bool, **settings: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """The parameters and the optimiser's state after three steps, saved and loaded after the second."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 2, bias=False))
    images = torch.randn(8, 4)

    def made() -> torch.optim.Optimizer:
        optimizer = kind(network.parameters(), **settings)
        if plainly:
            eager.step_plainly(optimizer)
        return optimizer

    optimizer = made()
    for step in range(3):
        if step == 2:
            saved = optimizer.state_dict()
            optimizer = made()
            optimizer.load_state_dict(saved)
        optimizer.zero_grad()
        network(images).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in network.parameters()], optimizer.state_dict()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Adam", {"weight_decay": 0.1}),
        ("AdamW", {"fused": True}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("RMSprop", {"centered": True}),
        ("Muon", {}),
    ],
)
def test_a_plain_step_is_torch_s_to_the_same_bits(name: str, settings: dict[str, Any]) -> None:
    if (kind := getattr(torch.optim, name, None)) is None:
        pytest.skip(f"this torch has no {name}")
    settings = {"lr": 0.1, **settings}
    parameters, state = trained(kind, False, **settings)
    plain_parameters, plain_state = trained(kind, True, **settings)
    assert all(one.equal(other) for one, other in zip(parameters, plain_parameters, strict=True))
    assert str(state) == str(plain_state)


def test_hooks_and_names_stay() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    eager.step_plainly(optimizer)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.step()
    assert seen == ["before", "after"]
    assert repr(optimizer).startswith("SGD (") and isinstance(optimizer, torch.optim.SGD)


def test_another_optimizer_stays_as_it_is() -> None:
    class Own(torch.optim.SGD):
        pass

    own = Own([nn.Parameter(torch.ones(2))], lr=0.1)
    differentiable = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, differentiable=True)
    for optimizer in (own, differentiable):
        kind = type(optimizer)
        eager.step_plainly(optimizer)
        assert type(optimizer) is kind
