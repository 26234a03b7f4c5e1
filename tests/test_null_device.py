"""On a null CUDA device, where kernels are counted and not run: what must run on a GPU takes its steps there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import test_loop
from support.null_cuda import environment, run_on_null_device
from support.null_training import BACKBONE_SETTINGS, Trained

from orchestrator.networks.backbones import BACKBONES


def train(data: Path, names: list[str], precisions: list[str], before: str = "", **extra: Any) -> dict[str, Trained]:
    """Each training, by its name and precision."""
    request = json.dumps({"data": str(data), "names": names, "precisions": precisions, "extra": extra})
    code = f"{before}\nimport sys\nfrom support import null_training\nsys.argv = ['', {request!r}]\nnull_training.run()"
    printed = run_on_null_device(code, gigabytes=8, caching=False)
    results = {name: Trained(**result) for name, result in json.loads(printed.splitlines()[-1]).items()}
    assert len(results) == len(names) * len(precisions)
    return results


def faults(results: dict[str, Trained]) -> dict[str, str]:
    return {name: result.fault for name, result in results.items() if result.fault is not None}


def test_what_the_device_counts() -> None:
    """A launch, a product, a copy that waits and one that does not, memory; then nothing works any more."""
    printed = run_on_null_device("""
import torch
from support.null_cuda import DEVICE_ASSERT, break_device, clear, counts, launches_by_kernel
x = torch.ones(1000, 1000).cuda()
clear()
y = x + 1
assert (counts().launches, counts().products, counts().waits) == (1, 0, 0), "an addition"
assert list(launches_by_kernel().values()) == [1]
y @ y
assert counts().products == 1
torch.ones(8).pin_memory().cuda(non_blocking=True)
assert (counts().to_device, counts().waits) == (1, 0)
torch.ones(8).cuda()
assert (counts().to_device, counts().waits) == (2, 1)
y.sum().item()
assert (counts().to_host, counts().waits) == (1, 2)
assert counts().bytes >= 12_000_000 and not y.any(), "memory is taken, results are zero"
try:
    torch.empty(10**10, device="cuda")
except torch.OutOfMemoryError:
    print("out of memory")
torch.use_deterministic_algorithms(True)
try:
    torch.histc(x)
except RuntimeError as error:
    print("deterministic" in str(error))
break_device(DEVICE_ASSERT)
for _ in range(2):
    try:
        x + 1
    except RuntimeError as error:
        print(type(error).__name__, "assert" in str(error))
""")
    first, alert, *broken = printed.splitlines()
    assert (first, alert) == ("out of memory", "True")
    assert len(broken) == 2 and all(line.endswith(" True") for line in broken), "a sticky error stays"


FROZEN = """
import torch
from torch import nn
from orchestrator.networks import frozen_batch_norm, relu6, timm_norm
from orchestrator.networks.relu6 import LeanReLU6

def step(layout, dtype):
    layers = [nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), LeanReLU6(inplace=True), timm_norm.BatchNormAct2d(8)]
    network = nn.Sequential(*layers).cuda().to(memory_format=layout)
    frozen_batch_norm.keep_less(network[1])
    timm_norm.keep_less(network)
    network[1].eval().requires_grad_(False), network[3].eval().requires_grad_(False)
    images = torch.ones(4, 8, 6, 6, device="cuda").to(memory_format=layout).requires_grad_()
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        network(images).float().sum().backward()

def choices():
    operators = frozen_batch_norm.DERIVATIVE, relu6.DERIVATIVE
    return [choice.__name__ for operator in operators for choice in operator.choices.values()]
"""


def test_frozen_batch_norm_takes_a_step_on_a_gpu() -> None:
    """By torch's own operator, in all layouts and precisions; one that CUDA refuses is left alone, as batch norm's was:
    None for the statistics that are not read passes on a CPU and asserts on a GPU."""
    printed = run_on_null_device(
        FROZEN
        + """
for layout in (torch.contiguous_format, torch.channels_last):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        step(layout, dtype)
print(*choices())

def planted(gradient, mean, variance, weight, eps):
    return torch.ops.aten.native_batch_norm_backward(
        gradient, gradient, weight, mean, variance, None, None, False, eps, [True, False, False])[0]

x = torch.ones(2, 8, 3, 3)
planted(x, x[0, :, 0, 0], x[0, :, 0, 0], None, 1e-5)
frozen_batch_norm.DERIVATIVE = frozen_batch_norm.Operator(
    planted, frozen_batch_norm.plain_derivative, frozen_batch_norm._example)
step(torch.contiguous_format, torch.float32)
print(*choices())
try:
    planted(x.cuda(), x[0, :, 0, 0].cuda(), x[0, :, 0, 0].cuda(), None, 1e-5)
except RuntimeError as error:
    print("save_mean" in str(error))
"""
    )
    usual, with_planted, refused = printed.splitlines()
    assert usual.split() == ["aten_derivative"] * 6
    assert with_planted.split() == ["plain_derivative"] + ["aten_derivative"] * 3
    assert refused == "True"


def test_networks_and_methods_train(data_folder: Path) -> None:
    """Some of each kind here, all of them in the slow test."""
    assert faults(train(data_folder, ["mobilenet_v2", "idml", "hist"], ["bf16"], channels_last=True)) == {}


@pytest.mark.slow
def test_a_fault_on_the_device_is_seen(data_folder: Path) -> None:
    """The planted bug of the tests around: an operator that only the CPU has."""
    planted = """
from torch import Tensor, nn
import test_loop
real = nn.Linear.forward
nn.Linear.forward = lambda layer, x: real(layer, x.to_mkldnn().to_dense())
"""
    results = train(data_folder, ["small_cnn"], ["float32"], before=planted)
    assert list(faults(results)) == ["small_cnn, float32"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", ["test_a_step_does_not_wait and not extra2", "test_a_planted_wait_is_seen or test_out_of_memory_is_said"]
)
def test_the_tests_for_a_gpu_that_need_no_numbers(chosen: str) -> None:
    """fp16 (extra2) needs them: its scale grows by what kernels say of the gradients."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_gpu.py", "-k", chosen]
    run = subprocess.run(
        command, env=environment(caching="memory" in chosen), capture_output=True, text=True, timeout=500
    )
    assert run.returncode == 0 and " passed" in run.stdout and "skipped" not in run.stdout, run.stdout[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_every_method_trains(precision: str, data_folder: Path) -> None:
    assert faults(train(data_folder, list(test_loop.VARIANTS), [precision])) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "channels_last"), [("float32", False), ("bf16", True), ("fp16", False)])
def test_every_network_trains(precision: str, channels_last: bool, data_folder: Path) -> None:
    assert BACKBONE_SETTINGS.keys() >= BACKBONES.keys()
    assert faults(train(data_folder, list(BACKBONE_SETTINGS), [precision], channels_last=channels_last)) == {}
