"""The bytes of a training's tensors: counted as they are made and freed, and beside what the process really takes."""

import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import process_memory
import pytest
import torch
from support.conductors import SETTINGS
from torch import Tensor, nn

import orchestrator.training.memory
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.execution.protocol import Work
from orchestrator.execution.worker import results
from orchestrator.search import plan
from orchestrator.training.memory import PeakMemory

SIDE = 512
MATRIX = 4 * SIDE * SIDE
"""Bytes."""
LARGE = 64 * 2**20
"""Bytes of a block that glibc takes from the system, and gives back, by itself."""


def test_tensors_are_counted_as_they_are_made_and_freed() -> None:
    with PeakMemory() as memory:
        first = torch.ones(SIDE, SIDE)
        assert memory.live == MATRIX
        views = [first.T, first[1:], first.view(-1)]
        assert memory.live == MATRIX and len(views) == 3
        second = first * 2
        assert memory.live == 2 * MATRIX
        second += 1
        del first, views
        assert (memory.live, memory.peak) == (MATRIX, 2 * MATRIX)
        del second
    assert (memory.live, memory.peak) == (0, 2 * MATRIX)


def test_a_sparse_tensor_is_left_out() -> None:
    with PeakMemory() as memory:
        torch.eye(3).to_sparse()
    assert memory.live == 0


BLOCKS = f"""
import json, resource, psutil
from orchestrator.training.memory import freed_memory_kept

def faults(rounds, size={LARGE}):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        assert b"1" * size
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found, process = {{}}, psutil.Process()
for device in ("cuda", "cpu"):
    with freed_memory_kept(device):
        with freed_memory_kept(device):  # as a validation within a training
            faults(2)
        within, held = faults(10), process.memory_info().rss
    returned = held - process.memory_info().rss
    after, _, small = faults(10), faults(2, 2**20), faults(10, 2**20)
    found[device] = dict(within=within, returned=returned, after=after, small=small)
print(json.dumps(found))
"""
"""Fills and frees blocks again and again, and counts the pages that the system gave for them: in a process whose memory
no other test has divided into pieces."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_kept_while_a_network_runs_on_a_cpu() -> None:
    """Each page of a block that is new in memory is a fault; at the end all of it is given back."""
    done = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True)
    found, pages = json.loads(done.stdout), LARGE // resource.getpagesize()
    assert found["cuda"]["within"] > 5 * pages and found["cuda"]["returned"] < 0.1 * LARGE
    assert found["cpu"]["within"] < pages / 10 and found["cpu"]["returned"] > 0.9 * LARGE
    for one in found.values():
        assert one["after"] > 5 * pages
        assert one["small"] < pages / 10, "blocks of a megabyte are kept as before"


def test_a_trial_keeps_it(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def noted(device: str) -> Iterator[None]:
        entered.append(device)
        yield
        entered.append("left")

    monkeypatch.setattr(orchestrator.training.memory, "freed_memory_kept", noted)
    training = results(
        Work("0000", resolve_experiment(SETTINGS, "trial"), str(data_folder), str(tmp_path / "t"), stop_after=1)
    )
    next(training)
    assert entered == ["cpu"]
    assert not list(training) and entered == ["cpu", "left"]


class Steps(nn.Module):
    """Keeps the input of each of `depth` products for the backward pass, and their results for the tanh."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.eye(SIDE)) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(x @ layer)
        return x


@pytest.mark.parametrize("depth", [2, 5])
def test_what_is_kept_for_the_backward_pass_counts(depth: int) -> None:
    with PeakMemory() as memory:
        network, x = Steps(depth), torch.randn(SIDE, SIDE)
        assert memory.live == (depth + 1) * MATRIX
        kept = network(x).sum()
        assert memory.live == (2 * depth + 1) * MATRIX + 4  # the results of the tanh, which are the next one's input
        kept.backward()
        del kept
        assert memory.live == (2 * depth + 1) * MATRIX  # now a gradient for each parameter
        optimizer = torch.optim.Adam(network.parameters())
        optimizer.step()
        assert memory.live - (4 * depth + 1) * MATRIX == pytest.approx(0, abs=100)


TRAINED = """
import json, sys
from pathlib import Path
import torch
from dataclasses import replace
from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.training.loop import fit
from orchestrator.training.memory import PeakMemory, freed_memory_kept
from orchestrator.training.splits import data_splits
from process_memory import peak_memory, resident_memory

given = {"method": "contrastive", "dataset": "glyphs-small", "device": "cpu", "embedding_dim": 64}
big = {"classes_per_batch": int(sys.argv[2]), "images_per_class": 8, "validate_every": "1 steps"}
store = open_dataset("glyphs-small", Path(sys.argv[1]))
experiment = resolve_experiment(given | big, "test")
split = data_splits(experiment.training, store)[0]

none = replace(split, validation=split.validation[:0])
if sys.argv[3] == "counted":
    with PeakMemory() as counted:
        next(fit(experiment, store, none))
    print(json.dumps(counted.peak))
else:
    small = replace(experiment, training=experiment.training.model_copy(update={"classes_per_batch": 2}))
    next(fit(small, store, none))
    before = resident_memory()
    next(fit(experiment, store, none))
    print(json.dumps(peak_memory() - before))
"""


def answer(command: list[str]) -> Any:
    """What a process prints that can import `benchmarks/process_memory.py`."""
    environment = os.environ | {"PYTHONPATH": str(Path(process_memory.__file__).parent)}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(ran.stdout)


def test_a_step_s_memory_is_told_beside_the_gpu_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "choose_device", lambda _: torch.device("cuda"))
    about = SimpleNamespace(total_memory=84_987_740_160, name="NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)
    told = plan.memory_of(12_300_000_000, Training(classes_per_batch=8, images_per_class=4))
    assert told == {
        "of a training step's tensors": "12.3 GB in one process, with its batch of 32",
        "of the GPU": "85.0 GB (NVIDIA H100)",
    }


def test_the_peak_of_a_process_is_not_that_of_the_process_that_begins_it() -> None:
    """As getrusage's ru_maxrss is."""
    large = torch.ones(100_000_000)
    script = "from process_memory import peak_memory; print(peak_memory())"
    assert 4e6 < answer([sys.executable, "-c", script]) < 100e6 < large.untyped_storage().nbytes()


@pytest.mark.slow
def test_it_is_what_a_training_takes(data_folder: Path) -> None:
    """Beside the resident memory of a process that trains the same batch, which also holds pages that are free."""
    found = {}
    for what in ("counted", "taken"):
        command = [sys.executable, "-c", TRAINED, str(data_folder), "40", what]
        found[what] = answer(command)
    assert found["counted"] > 80e6, "the batch is large enough to be seen"
    assert 0.3 < found["counted"] / found["taken"] < 1.5, found
