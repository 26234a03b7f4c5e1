"""What `make gpu` measures of trainings, on the null device: it comes to its end and gives every figure."""

import json

import pytest
from support.null_cuda import run_on_null_device

CODE = """
import sys, tempfile
from pathlib import Path
sys.path[:0] = ["benchmarks"]
import gpu_trainings
from gpu_lines import Figures
from gpu_starvation import Kept

gpu_trainings.SPAN = 0.0
with tempfile.TemporaryDirectory() as folder:
    store = gpu_trainings.store_of(Path(folder), "small", 240)
    figures = Figures()
    figures["images of a batch"] = 12
    wanted = ("small_cnn", "tf32", True), ("small_cnn", "bf16", False), ("none", "bf16", True)
    for backbone, precision, repeat in wanted:
        settings = {**gpu_trainings.SMALL, "method": "proxy_anchor", "device": "cuda", "validate_every": "2 steps"}
        settings |= {"backbone": backbone, "precision": precision, "deterministic": repeat, "validation_share": 0.0}
        gpu_trainings._one_rate(figures, f"{backbone}, {precision}, from memory", store, settings, Kept)
    seconds, unordered = gpu_trainings.one_training(folder, "small", settings | {"backbone": "small_cnn"})
    figures["a training: seconds"] = seconds
"""


@pytest.mark.slow
def test_rates_of_steps_are_measured_and_a_network_that_fails_takes_no_other_with_it() -> None:
    lines = [json.loads(line) for line in run_on_null_device(CODE).splitlines() if line.startswith("{")]
    figures = {name: value for line in lines for name, value in line.items()}
    assert "unknown backbone 'none'" in figures.pop("none, bf16, from memory: failed")
    names = [f"small_cnn, {precision}, from memory" for precision in ("tf32", "bf16")]
    wanted = {f"{name}: {unit}" for name in names for unit in ("images/s", "ms a step", "GiB")}
    assert figures.keys() == wanted | {"images of a batch", "a training: seconds"}
    assert all(value > 0 for value in figures.values())
