"""What a training step takes: its memory with a frozen batch norm, and its time in our loop beside bare PyTorch.

    python benchmarks/training_step.py memory [--backbones resnet50 timm/efficientnet_lite0] [--images 56]
    python benchmarks/training_step.py loop [--methods multi_similarity] [--rounds 5] [--steps 60]
    python benchmarks/training_step.py subnormals [--shares 0 0.01 0.05] [--rounds 5]

`memory`: forward and backward pass of a network from random weights, its batch norm frozen, as torch computes it, as we
do, and as a trial does, which keeps freed memory; each in a process of its own: the growth of the peak, and the seconds
of a processor of the third step.

`loop`: `small_cnn` on `glyphs-small`, a batch of 128, one thread: the median time from step to step of a training, and
of a bare loop over the same network, loss and optimiser on images that are in memory. Rounds in turn; the ratio is the
median of the rounds' ratios.

`subnormals`: a processor's seconds of forward and backward pass of `small_cnn`, 64 images of 32 pixels, one thread,
with a share of its convolutions' weights at 1e-39, as a dead channel's are after a long decay: as torch computes it,
and with such numbers taken for 0, as a trial does. Rounds in turn, their medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from orchestration import machine
from process_memory import peak_memory

SIDE = 224
CLASSES, IMAGES = 32, 4
WAYS = ("torch", "ours", "trial")


def one(backbone: str, way: str, images: int) -> dict[str, float]:
    """Three steps of a network in this process."""
    import torch
    from torch import nn

    from orchestrator.networks.backbones import build_backbone
    from orchestrator.networks.frozen_batch_norm import keep_less
    from orchestrator.networks.timm_norm import LeanBatchNormAct2d
    from orchestrator.training.memory import freed_memory_kept

    torch.manual_seed(0)
    network = build_backbone(backbone, channels=3, weights="random").train()
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval().requires_grad_(False)
            if way != "torch":
                keep_less(module)
            elif isinstance(module, LeanBatchNormAct2d):
                module.__class__ = LeanBatchNormAct2d.__base__
    batch = torch.randn(images, 3, SIDE, SIDE)
    before = peak_memory()
    with freed_memory_kept("cpu" if way == "trial" else "none"):
        for _ in range(3):
            network.zero_grad()
            started = time.process_time()
            loss = network(batch).square().sum()
            loss.backward()
            seconds = time.process_time() - started
    gradient = sum(float(p.grad.abs().sum()) for p in network.parameters() if p.grad is not None)
    return {"GiB": (peak_memory() - before) / 2**30, "s": seconds, "loss": float(loss.detach()), "gradient": gradient}


def memory(backbones: list[str], images: int) -> None:
    for backbone in backbones:
        found: dict[str, dict[str, float]] = {}
        for way in WAYS:
            command = [sys.executable, __file__, "one", backbone, way, str(images)]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[way] = json.loads(done.stdout.splitlines()[-1])
        same = all(found["torch"][key] == found[way][key] for way in WAYS for key in ("loss", "gradient"))
        figures = [f"{found[way][key]:.{2 if key == 'GiB' else 1}f}" for key in ("GiB", "s") for way in WAYS]
        print(f"| {backbone} | {' | '.join(figures)} | {'equal' if same else 'DIFFERENT'} |", flush=True)


def in_loop(method: str, steps: int, data: Path) -> float:
    """The median seconds from step to step of a training."""
    from orchestrator.config.training import resolve_experiment
    from orchestrator.data.catalog import open_dataset
    from orchestrator.data.splits import class_split
    from orchestrator.training import loop

    stamps: list[float] = []

    class Stamped(loop.Clock):
        def ticks(self, step: int) -> bool:
            stamps.append(time.perf_counter())
            return super().ticks(step)

    plain, loop.Clock = loop.Clock, Stamped  # type: ignore[misc]
    try:
        store = open_dataset("glyphs-small", data)
        settings = described(method) | {"epochs": 1000, "validate_every": f"{steps} steps"}
        split = class_split(store, validation_share=0.3, seed=0)
        for _ in loop.fit(resolve_experiment(settings, "benchmark"), store, split, stop_after=1):
            pass
    finally:
        loop.Clock = plain  # type: ignore[misc]
    return between(stamps)


def between(stamps: list[float]) -> float:
    """The median time between them, without the first few."""
    return statistics.median(after - before for before, after in pairwise(stamps[5:]))


def described(method: str) -> dict[str, Any]:
    return {
        "method": method,
        "dataset": "glyphs-small",
        "embedding_dim": 64,
        "classes_per_batch": CLASSES,
        "images_per_class": IMAGES,
        "threads": 1,
        "device": "cpu",
    }


def bare(method: str, steps: int, data: Path) -> float:
    """The same of a loop as one writes it by hand."""
    import numpy as np
    import torch

    from orchestrator.config.training import resolve_experiment
    from orchestrator.data.catalog import open_dataset
    from orchestrator.data.splits import class_split
    from orchestrator.method import Batch, total
    from orchestrator.training.model_file import new_learner
    from orchestrator.training.optimizer import build_optimizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = open_dataset("glyphs-small", data)
    split = class_split(store, validation_share=0.3, seed=0)
    experiment = resolve_experiment(described(method) | {"epochs": 1000}, "benchmark")
    learner = new_learner(experiment, store, split)
    learner.train()
    learner.freeze_batch_norm()
    optimizer = build_optimizer(learner, experiment.training)
    images, classes = store.images(split.train), np.unique(store.labels[split.train], return_inverse=True)[1]
    rng, generator = np.random.default_rng(0), torch.Generator()
    rows = [np.flatnonzero(classes == label) for label in range(classes.max() + 1)]
    stamps: list[float] = []
    for _ in range(steps):
        chosen = [rng.choice(rows[label], IMAGES) for label in rng.choice(len(rows), CLASSES, replace=False)]
        batch = torch.from_numpy(np.concatenate(chosen))
        optimizer.zero_grad(set_to_none=True)
        labels = torch.from_numpy(classes)[batch][:, None]
        terms = learner.method.step(Batch(images[batch], labels, batch), learner.outputs, generator)
        torch.autograd.backward(total(terms))
        optimizer.step()
        stamps.append(time.perf_counter())
    return between(stamps)


def beside(methods: list[str], rounds: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for method in methods:
            times = [(in_loop(method, steps, Path(folder)), bare(method, steps, Path(folder))) for _ in range(rounds)]
            ours, theirs = (statistics.median(side) for side in zip(*times, strict=True))
            ratios = sorted(mine / other for mine, other in times)
            print(
                f"| {method} | {1000 * theirs:.1f} | {1000 * ours:.1f} | {statistics.median(ratios):.3f} "
                f"| {ratios[0]:.3f} to {ratios[-1]:.3f} |"
            )


def subnormals(shares: list[float], rounds: int) -> None:
    import contextlib

    import torch

    from orchestrator.networks.backbones import build_backbone
    from orchestrator.training.device import SUBNORMAL, subnormals_flushed

    torch.set_num_threads(1)
    for share in shares:
        torch.manual_seed(0)
        network, images = build_backbone("small_cnn", channels=1, weights="random").train(), torch.rand(64, 1, 32, 32)
        for parameter in network.parameters():
            if parameter.dim() == 4:
                parameter.data[torch.rand_like(parameter) < share] = SUBNORMAL

        def step(flushed: bool, network: Any = network, images: Any = images) -> float:
            with subnormals_flushed() if flushed else contextlib.nullcontext():
                started = time.process_time()
                network(images).square().mean().backward()
                return time.process_time() - started

        times = [(step(False), step(True)) for _ in range(rounds)]
        plain, flushed = (statistics.median(side) for side in zip(*times, strict=True))
        print(f"| {share:.0%} | {1000 * plain:.0f} | {1000 * flushed:.0f} | {plain / flushed:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ways = parser.add_subparsers(dest="way", required=True)
    part = ways.add_parser("memory")
    part.add_argument("--backbones", nargs="+", default=["resnet50", "timm/efficientnet_lite0"])
    part.add_argument("--images", type=int, default=56)
    part = ways.add_parser("loop")
    part.add_argument("--methods", nargs="+", default=["multi_similarity", "proxy_anchor"])
    part.add_argument("--rounds", type=int, default=5)
    part.add_argument("--steps", type=int, default=60)
    part = ways.add_parser("subnormals")
    part.add_argument("--shares", nargs="+", type=float, default=[0.0, 0.01, 0.05])
    part.add_argument("--rounds", type=int, default=5)
    part = ways.add_parser("one")
    part.add_argument("backbone")
    part.add_argument("way_of", choices=WAYS)
    part.add_argument("images", type=int)
    given = parser.parse_args()
    if given.way == "one":
        print(json.dumps(one(given.backbone, given.way_of, given.images)))
        return
    print(f"{machine()}, {datetime.now(UTC):%Y-%m-%d}")
    if given.way == "memory":
        columns = [f"{way} {unit}" for unit in ("GiB", "s") for way in WAYS]
        print(f"| {given.images} images | {' | '.join(columns)} | results |")
        print(f"| --- | {'---: | ' * 2 * len(WAYS)}--- |")
        memory(given.backbones, given.images)
    elif given.way == "subnormals":
        print("| subnormal weights | torch ms | trial ms | ratio |\n| ---: | ---: | ---: | ---: |")
        subnormals(given.shares, given.rounds)
    else:
        print("| method | bare ms | ours ms | ratio | in the rounds |\n| --- | ---: | ---: | ---: | --- |")
        beside(given.methods, given.rounds, given.steps)


if __name__ == "__main__":
    main()
