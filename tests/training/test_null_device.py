"""On a null CUDA device, where kernels are counted and not run: what must run on a GPU takes its steps there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import training_loops
from support.null_cuda import environment, run_on_null_device
from support.null_training import BACKBONE_SETTINGS, Trained
from support.waits import WAITS

from orchestrator.networks.backbones import BACKBONES


def train(data: Path, names: list[str], precisions: list[str], before: str = "", **extra: Any) -> dict[str, Trained]:
    """Each training, by its name and precision."""
    request = json.dumps({"data": str(data), "names": names, "precisions": precisions, "extra": extra})
    code = f"{before}\nimport sys\nfrom support import null_training\nsys.argv = ['', {request!r}]\nnull_training.run()"
    printed = run_on_null_device(code, gigabytes=8, caching=False)
    results = {name: Trained(**result) for name, result in json.loads(printed.splitlines()[-1]).items()}
    assert len(results) == len(names) * len(precisions)
    return results


MAX_LAUNCHES = 1_500
"""Of a method in a step, on a network of few layers: more would take a GPU longer to begin than to compute."""


def problem(name: str, result: Trained) -> str | None:
    """What a training did that it should not, if anything."""
    if result.fault is not None:
        return result.fault
    if result.unordered:
        return f"operations without a fixed order: {', '.join(result.unordered)}"
    if result.waits > WAITS.get(name, 0):
        return f"{result.waits} waits a step, more than {WAITS.get(name, 0)}"
    if name in training_loops.VARIANTS and result.launches > MAX_LAUNCHES:
        return f"{result.launches} launches a step, more than {MAX_LAUNCHES}"
    return None


def problems(results: dict[str, Trained]) -> dict[str, str]:
    """Those of the trainings that have one, by name and precision."""
    found = {key: problem(key.rsplit(", ", 1)[0], result) for key, result in results.items()}
    return {key: fault for key, fault in found.items() if fault is not None}


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
    names = ["mobilenet_v2", "dada", "hist", "idml", "multi_similarity", "triplet"]
    assert problems(train(data_folder, names, ["bf16"], channels_last=True)) == {}


@pytest.mark.slow
def test_planted_problems_are_seen(data_folder: Path) -> None:
    """An operator that only the CPU has, two without a fixed order, one of a backward pass, a wait, many launches."""
    planted = """
import torch
from orchestrator.method import registry

def plant(name, change):
    method = registry()[name]
    step = method.step
    method.step = lambda self, batch, *rest: change(step(self, batch, *rest), batch.images)

def unordered(terms, images):
    torch.histc(images.float())
    return terms | {"planted": torch.nn.functional.adaptive_avg_pool2d(images.float().requires_grad_(), 3).sum()}

def waiting(terms, images):
    return terms if images.sum().item() == 0 else {}

def launching(terms, images):
    for _ in range(1500):
        images = images + 1
    return terms

plant("circle", lambda terms, images: {"planted": images.to_mkldnn().to_dense().sum()})
plant("n_pair", unordered)
plant("sup_con", waiting)
plant("vicreg", launching)
"""
    results = train(data_folder, ["circle", "n_pair", "sup_con", "vicreg", "sigmoid_pairs"], ["float32"], planted)
    wrong = problems(results)
    assert "mkldnn" in wrong.pop("circle, float32").lower()
    unordered = "_histc_cuda with floating point input, adaptive_avg_pool2d_backward_cuda"
    assert wrong.pop("n_pair, float32") == f"operations without a fixed order: {unordered}"
    assert wrong.pop("sup_con, float32") == "1 waits a step, more than 0"
    assert " launches a step, more than 1500" in wrong.pop("vicreg, float32")
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", ["test_a_step_does_not_wait and not extra2", "test_a_planted_wait_is_seen or test_out_of_memory_is_said"]
)
def test_the_tests_for_a_gpu_that_need_no_numbers(chosen: str) -> None:
    """fp16 (extra2) needs them: its scale grows by what kernels say of the gradients."""
    options = ["-q", "-p", "no:cacheprovider", "-k", chosen]
    command = [sys.executable, "-m", "pytest", "tests/training/test_gpu.py", *options]
    run = subprocess.run(
        command, env=environment(caching="memory" in chosen), capture_output=True, text=True, timeout=500
    )
    assert run.returncode == 0 and " passed" in run.stdout and "skipped" not in run.stdout, run.stdout[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_every_method_trains(precision: str, data_folder: Path) -> None:
    assert problems(train(data_folder, list(training_loops.VARIANTS), [precision])) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "channels_last"), [("float32", False), ("bf16", True), ("fp16", False)])
def test_every_network_trains(precision: str, channels_last: bool, data_folder: Path) -> None:
    assert BACKBONE_SETTINGS.keys() >= BACKBONES.keys()
    assert problems(train(data_folder, list(BACKBONE_SETTINGS), [precision], channels_last=channels_last)) == {}
