"""Seconds and memory of a step of the optimiser: plain, with LoRA, with gradients of several batches, in parts.

    python benchmarks/recipes.py [--backbones resnet50 timm/vit_small_patch16_224] [--images 8] [--size 224]

ProxyAnchor with Adam on made images, in float32 on one thread, batch norm frozen; each way in a process of its own.
Seconds are of the fastest of three steps, memory is the growth of the process's peak over the network and the images:
what is kept for the backward pass, gradients, the optimiser's moments.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

from orchestration import machine
from process_memory import peak_memory, resident_memory

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "LoRA, rank 8": {"lora_rank": 8},
    "LoRA, rank 8, attention only": {"lora_rank": 8, "lora_layers": "attention"},
    "two batches of half the images": {"accumulate_batches": 2},
    "a quarter at once": {"images_per_pass": 4},
    "LoRA, rank 8, a quarter at once": {"lora_rank": 8, "images_per_pass": 4},
    "LoRA, rank 8, two batches, a quarter at once": {"lora_rank": 8, "accumulate_batches": 2, "images_per_pass": 4},
}
"""`images_per_pass` counts quarters of all images here."""


def measure(backbone: str, way: str, images: int, size: int) -> dict[str, float]:
    """Seconds of a step of the optimiser, bytes, and the number of trained parameters."""
    import torch

    from orchestrator.config.training import Training
    from orchestrator.method import Batch, Task, find_method
    from orchestrator.networks.lora import LoRA
    from orchestrator.training.engine import Engine
    from orchestrator.training.learner import Learner
    from orchestrator.training.optimizer import build_optimizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    given = dict(WAYS[way])
    rank, layers = given.get("lora_rank"), given.get("lora_layers", "all")
    if "images_per_pass" in given:
        given["images_per_pass"] = images // 4
    together = given.get("accumulate_batches", 1)
    batch = images // together
    method, cpu = find_method("proxy_anchor"), torch.device("cpu")
    learner = Learner(
        method,
        method.Config(),
        Task(images // 4, 128, 0, batch_size=batch),
        channels=3,
        backbone=backbone,
        weights="random",
        weights_sha256=None,
        pooling="average",
        image_size=size,
        lora=None if rank is None else LoRA(rank, layers=layers),
    )
    training = Training(device="cpu", **given)
    learner.freeze_batch_norm()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    engine = Engine(learner, training, build_optimizer(learner, training), scaler, torch.Generator(), cpu)
    pixels, labels = torch.rand(images, 3, size, size), torch.arange(images // 4).repeat_interleave(4)[:, None]
    before, seconds = resident_memory(), []
    for _ in range(3):
        began = time.perf_counter()
        for first in range(0, images, batch):
            rows = slice(first, first + batch)
            engine.step(Batch(pixels[rows], labels[rows], torch.arange(batch)), 0)
        seconds.append(time.perf_counter() - began)
    trained = sum(parameter.numel() for parameter in engine.parameters.values())
    return {"seconds": min(seconds), "bytes": peak_memory() - before, "trained": trained}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["resnet50", "timm/vit_small_patch16_224"])
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        backbone, way = json.loads(given.one)
        print(json.dumps(measure(backbone, way, given.images, given.size)))
        return
    print(f"{machine()}, {datetime.now(UTC):%Y-%m-%d}; {given.images} images of {given.size} pixels a step\n")
    print("| backbone | way | trained, M | seconds a step | memory, MiB | load |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for backbone in given.backbones:
        for way in WAYS:
            if "attention" in way and "vit" not in backbone:
                continue
            asked = ["--images", str(given.images), "--size", str(given.size), "--one", json.dumps([backbone, way])]
            done = subprocess.run([sys.executable, __file__, *asked], check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            numbers = f"{found['trained'] / 1e6:.2f} | {found['seconds']:.2f} | {found['bytes'] / 2**20:,.0f}"
            print(f"| {backbone} | {way} | {numbers} | {os.getloadavg()[0]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
