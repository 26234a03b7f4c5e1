"""What CCP adds to a training step: the same objective over proxies, with and without its proximal term.

    python benchmarks/ccp.py --backbone resnet18 --batch 32 --size 64

Steps of the two alternate in one process, so that both see the same machine; the median of the steps' ratios is
printed. The paper reports 8% more time per step. The bound is 1: the proximal term reads and writes each parameter
once.
"""

import argparse
import json
import os
import statistics
import time
from datetime import UTC, datetime
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")


def build(method: str, settings: dict[str, Any], backbone: str, classes: int) -> tuple[Any, Any]:
    """A learner, and its optimiser."""
    from orchestrator.config.training import Training
    from orchestrator.method import Task, find_method
    from orchestrator.training.learner import Learner
    from orchestrator.training.optimizer import build_optimizer

    kind = find_method(method)
    learner = Learner(
        kind,
        kind.Config(**settings),
        Task(classes, 128, 0),
        channels=3,
        backbone=backbone,
        weights="random",
        weights_sha256=None,
        pooling="average",
    )
    learner.freeze_batch_norm()
    return learner, build_optimizer(learner, Training(lr=1e-5))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    import torch

    from orchestrator.method import Batch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    classes = arguments.batch // 4
    images = torch.rand(arguments.batch, 3, arguments.size, arguments.size)
    labels = torch.arange(classes).repeat_interleave(4)[:, None]
    batch = Batch(images, labels, torch.arange(arguments.batch))
    plain = {"references": "proxies", "proxies_per_class": 8, "proxy_lr_multiplier": 1.0}
    both = {
        "without": build("contrastive", plain, arguments.backbone, classes),
        "with": build("ccp", {}, arguments.backbone, classes),
    }
    both["with"][0].method.problem += 1  # from the second problem on there is a proximal term
    rng = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {way: [] for way in both}
    for step in range(arguments.steps):
        ways = list(both.items())
        for way, (learner, optimizer) in ways if step % 2 else ways[::-1]:
            started = time.perf_counter()
            terms, _ = learner(batch, rng)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(torch.stack([term.double() for term in terms.values()]).sum())
            optimizer.step()
            seconds[way].append(time.perf_counter() - started)
    medians = {way: statistics.median(values[3:]) for way, values in seconds.items()}
    for way, median in medians.items():
        print(f"{way:8s} {median * 1000:8.1f} ms a step")
    pairs = zip(seconds["with"][3:], seconds["without"][3:], strict=True)
    ratio = statistics.median(with_it / without for with_it, without in pairs)
    print(f"ratio {ratio:.3f}")
    found = {"seconds": medians, "ratio": ratio}
    print(json.dumps({"date": f"{datetime.now(UTC):%Y-%m-%d}"} | vars(arguments) | found))


if __name__ == "__main__":
    main()
