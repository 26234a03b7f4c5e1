"""What a training step of each method costs beside one of ProxyAnchor: seconds and the bytes of its tensors.

    python benchmarks/method_costs.py [--methods hier dada ...] [--seconds 2]
    python benchmarks/method_costs.py --gpu          # takes those of a GPU from what `make gpu` measured

A step is a whole one of our engine: batch of 128 images (4 of a class), embeddings of 512 numbers, 100 and 10,000
classes, the forward and backward passes, all of `update`, the optimiser. The network is a single small layer, so that
the method's own part is what is measured; one that runs the network several times is not charged for it. Each method
has its defaults.

Time: a step of the method and one of ProxyAnchor take turns in one process with one thread, for so many seconds and at
least three rounds, by the processor's clock, which stands still while others have it; the shortest of each counts.

Memory: `PeakMemory` of a step, with parameters, gradients and the state of the optimiser. The results are written into
`orchestrator/report/method_costs.json`, from which `orchestrator methods` and the documentation take them; methods that
are not named keep theirs.

PFML and CPML are measured with 100 classes alone: with 10,000 a step takes minutes.
"""

import argparse
import gc
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from orchestration import machine
from torch import Generator

from orchestrator.check.subject import NETWORK, SIZE
from orchestrator.config.training import Training
from orchestrator.method import Batch, Task, find_method, registry
from orchestrator.report.method_costs import COSTS, REFERENCE
from orchestrator.training.engine import Engine
from orchestrator.training.learner import Learner
from orchestrator.training.memory import PeakMemory, freed_memory_kept
from orchestrator.training.optimizer import build_optimizer

BATCH, IMAGES, DIM = 128, 4, 512
GPU_RESULTS = Path(__file__).resolve().parent / "gpu" / "results.json"
CLASSES = 100, 10_000
MINUTES = {"pfml", "cpml"}
"""Whose step takes minutes with 10,000 classes of 15 proxies, all compared with each other: not measured."""


class Steps:
    """Training steps of a method, one at a time, on random images that are on the device."""

    def __init__(self, name: str, classes: int, device: Literal["cpu", "cuda"] = "cpu") -> None:
        torch.manual_seed(0)
        kind = find_method(name)
        training = Training(
            embedding_dim=DIM,
            pooling="average",
            classes_per_batch=BATCH // IMAGES,
            images_per_class=IMAGES,
            device=device,
            freeze_batch_norm=False,
        )
        task = Task(
            num_classes=classes,
            embedding_dim=DIM,
            feature_dim=0,
            class_names=tuple(map(str, range(classes))),
            batch_size=BATCH,
            num_samples=classes * IMAGES,
            steps_per_epoch=100,
            total_steps=1000,
            super_classes=tuple(label // 10 for label in range(classes)),
        )
        given: dict[str, Any] = {"channels": 1, "backbone": NETWORK, "weights": "random", "weights_sha256": None}
        self.device = torch.device(device)
        self.learner = Learner(kind, kind.Config(), task, pooling=training.pooling, **given).to(self.device)
        scaler = torch.amp.GradScaler(device, enabled=False)
        optimizer = build_optimizer(self.learner, training)
        self.engine = Engine(self.learner, training, optimizer, scaler, Generator().manual_seed(0), self.device)
        self.rng, self.classes, self.count = Generator().manual_seed(1), classes, 0

    def batch(self, *, meta: bool = False) -> Batch:
        labels = torch.randperm(self.classes, generator=self.rng)[: BATCH // IMAGES].repeat_interleave(IMAGES)
        samples = labels * IMAGES + torch.arange(BATCH) % IMAGES
        views = [torch.rand(BATCH, 1, SIZE, SIZE, generator=self.rng) for _ in range(self.learner.method.views)]
        share: Any = getattr(self.learner.method.config, "meta_share", None)
        clean = self.batch(meta=True) if share and not meta else None
        first, *others = (view.to(self.device) for view in views)
        labels, samples = labels.to(self.device), samples.to(self.device)
        return Batch(first, labels[:, None], samples, slice(None), self.count, tuple(others), clean)

    def step(self) -> float:
        """Its seconds: the processor's on a CPU, on a GPU those on the clock."""
        batch = self.batch()
        begun = self._time()
        self.engine.step(batch, 0)
        self.count += 1
        return self._time() - begun

    def _time(self) -> float:
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def measure(name: str, classes: int, seconds: float) -> dict[str, Any]:
    """Seconds and bytes of a step of the method, and its seconds as a multiple of those of the reference."""
    with PeakMemory() as memory:
        own = Steps(name, classes)
        for _ in range(2):
            own.step()
    other = Steps(REFERENCE, classes)
    other.step()
    pairs: list[tuple[float, float]] = []
    while len(pairs) < 3 or sum(map(sum, pairs)) < seconds:
        pairs.append((own.step(), other.step()))
    mine, its = (min(times) for times in zip(*pairs, strict=True))
    return {
        "seconds": float(f"{mine:.3g}"),
        "times": float(f"{mine / its:.3g}"),
        "megabytes": round(memory.peak / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--gpu", action="store_true")
    arguments = parser.parse_args()
    if arguments.gpu:
        write(with_gpu(json.loads(COSTS.read_text(encoding="utf-8")), GPU_RESULTS))
        return
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    for name in arguments.methods or sorted(registry()):
        found[name] = {}
        for classes in CLASSES[: 1 if name in MINUTES else None]:
            with freed_memory_kept("cpu"):
                found[name][str(classes)] = measure(name, classes, arguments.seconds)
            gc.collect()
        print(name, json.dumps(found[name]), flush=True)
    kept = json.loads(COSTS.read_text(encoding="utf-8"))["methods"] if arguments.methods else {}
    content = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "methods": dict(sorted({**kept, **found}.items())),
    }
    write(with_gpu(content, GPU_RESULTS))


def with_gpu(content: dict[str, Any], results: Path) -> dict[str, Any]:
    """The costs, with the seconds on a GPU of `make gpu`'s part `costs`."""
    part = next(one for one in json.loads(results.read_text(encoding="utf-8"))["parts"] if one["name"] == "costs")
    for name, sizes in content["methods"].items():
        for classes, cost in sizes.items():
            cost["gpu_seconds"] = float(f"{part['figures'][f'{name}, {int(classes):,} classes: ms a step'] / 1000:.4g}")
    return content | {"gpu": f"{part['where']['machine']}, {part['where']['date'][:10]}"}


def write(content: dict[str, Any]) -> None:
    COSTS.write_text(json.dumps(content).replace('}}, "', '}},\n"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
