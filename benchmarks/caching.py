"""Gradient caching: seconds and memory of a training step whose images pass the network in parts.

    python benchmarks/caching.py [--backbone timm/vit_small_patch16_224.augreg_in21k] [--batches 64 256] [--parts 16]
    python benchmarks/caching.py --batches 64 4096 --parts 64 --steps 1 --largest-plain 64

One step of ProxyAnchor on made images, in float32 on one thread, each way in a process of its own; the ways take turns.
Seconds are of the fastest of three steps (`--steps`), memory is the growth of the process's peak over the
network and the images.
"""

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime

from orchestration import machine
from process_memory import peak_memory, resident_memory


def measure(backbone: str, batch: int, part: int | None, size: int, steps: int) -> dict[str, float]:
    """Seconds of a step, and bytes."""
    import torch

    from orchestrator.config.training import Training
    from orchestrator.method import Batch, Task, find_method
    from orchestrator.training.engine import Engine
    from orchestrator.training.learner import Learner
    from orchestrator.training.optimizer import build_optimizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    method, cpu = find_method("proxy_anchor"), torch.device("cpu")
    learner = Learner(
        method,
        method.Config(),
        Task(batch // 4, 128, 0, batch_size=batch),
        channels=3,
        backbone=backbone,
        weights="random",
        weights_sha256=None,
        pooling="average",
    )
    training = Training(images_per_pass=part, device="cpu")
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    engine = Engine(learner, training, build_optimizer(learner, training), scaler, torch.Generator(), cpu)
    images, labels = torch.rand(batch, 3, size, size), torch.arange(batch // 4).repeat_interleave(4)[:, None]
    before, seconds = resident_memory(), []
    for _ in range(steps):
        began = time.perf_counter()
        engine.step(Batch(images, labels, torch.arange(batch)), 0)
        seconds.append(time.perf_counter() - began)
    return {"seconds": min(seconds), "bytes": peak_memory() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="timm/vit_small_patch16_224")
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--largest-plain", type=int, default=10**9, help="no larger batch is tried at once")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        batch, part = json.loads(given.one)
        print(json.dumps(measure(given.backbone, batch, part, given.size, given.steps)))
        return
    print(f"{machine()}, {datetime.now(UTC):%Y-%m-%d}; {given.backbone}, {given.size} pixels\n")
    print("| batch | at once | seconds an image | memory, MiB |\n| --- | --- | ---: | ---: |")
    for batch in given.batches:
        for part in (None, given.parts) if batch <= given.largest_plain else (given.parts,):
            command = [sys.executable, __file__, "--backbone", given.backbone, "--size", str(given.size)]
            command += ["--steps", str(given.steps)]
            done = subprocess.run(
                [*command, "--one", json.dumps([batch, part])], check=True, capture_output=True, text=True
            )
            found = json.loads(done.stdout.splitlines()[-1])
            print(f"| {batch} | {part or 'all'} | {found['seconds'] / batch:.3f} | {found['bytes'] / 2**20:,.0f} |")


if __name__ == "__main__":
    main()
