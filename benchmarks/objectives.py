"""What the objectives cost: forward and backward against pytorch-metric-learning's, as ratios.

    python benchmarks/objectives.py --sizes 128x1000 1024x10000 128x100000 --dim 512

A size is BATCHxPROXIES; objectives on pairs use the batch alone. Ours are computed as the methods of the same name do
by default: from embeddings (and proxies) that are not normalised to the gradients on both.

Time: ours and theirs take turns in one process, round by round, so that a loaded machine slows down both; the median
of the rounds' ratios is printed. Memory: the peak of a process after two passes over what it held before
them (its code loaded by a pass of a few items), each side in a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from process_memory import peak_memory, resident_memory

os.environ.setdefault("OMP_NUM_THREADS", "1")

PAIRS = ["contrastive", "triplet", "multi_similarity", "fast_ap", "margin"]
PROXIES = ["proxy_nca", "proxy_anchor", "normalized_softmax", "soft_triple"]
CENTRES = 4  # per class, of SoftTriple
IMAGES = 4  # per class in the batch
SIDES = ["ours", "theirs"]

Loss = tuple[Callable[[], Any], list[Any]]
"""What makes the scalar, and what gets its gradients."""


def ours(name: str, z: Any, proxies: Any, labels: Any, classes: int) -> Loss:
    """Our loss of embeddings and proxies."""
    import torch
    import torch.nn.functional as F

    from methods import objectives

    function = getattr(objectives, name)
    own_settings: dict[str, dict[str, Any]] = {
        "contrastive": {"neg_margin": 1.3},
        "triplet": {"mining": "all"},
        "multi_similarity": {"epsilon": None},
        "margin": {"dim": z.shape[1], "generator": torch.Generator().manual_seed(0)},
        "proxy_nca": {"include_positive": True, "scale": 3.0},
        "soft_triple": {"centres_per_class": CENTRES},
    }
    settings = own_settings.get(name, {})
    on_distances = name == "proxy_nca" or (name in PAIRS and name != "multi_similarity")
    matrix = objectives.euclidean_distance if on_distances else objectives.cosine_similarity
    own = torch.arange(classes).repeat_interleave(CENTRES if name == "soft_triple" else 1)

    def loss() -> Any:
        unit = F.normalize(z, dim=1)
        if name in PAIRS:
            return function(matrix(unit, unit), *objectives.pair_masks(labels, labels, same=True), **settings)
        found = matrix(unit, F.normalize(proxies, dim=1))
        found = found.square() if name == "proxy_nca" else found
        return function(found, *objectives.pair_masks(labels, own, same=False), **settings)

    return loss, [z, proxies]


def theirs(name: str, z: Any, proxies: Any, labels: Any, classes: int) -> Loss:
    """Theirs, with the same proxies."""
    from pytorch_metric_learning import losses, miners

    dim, miner = z.shape[1], None
    if name == "contrastive":
        loss: Any = losses.ContrastiveLoss(pos_margin=0, neg_margin=1.3)
    elif name == "triplet":
        loss = losses.TripletMarginLoss(margin=0.1, triplets_per_anchor="all")
    elif name == "multi_similarity":
        loss = losses.MultiSimilarityLoss()
    elif name == "fast_ap":
        loss = losses.FastAPLoss(num_bins=10)
    elif name == "margin":
        loss, miner = losses.MarginLoss(margin=0.2, beta=1.2), miners.DistanceWeightedMiner()
    elif name == "proxy_nca":
        loss = losses.ProxyNCALoss(classes, dim, softmax_scale=3)
        loss.proxies = proxies
    elif name == "proxy_anchor":
        loss = losses.ProxyAnchorLoss(classes, dim)
        loss.proxies = proxies
    elif name == "normalized_softmax":
        loss = losses.NormalizedSoftmaxLoss(classes, dim)
        loss.W.data = proxies.data.T.contiguous()
    else:
        loss = losses.SoftTripleLoss(classes, dim, centers_per_class=CENTRES)
        loss.fc.data = proxies.data.T.contiguous()
    return lambda: loss(z, labels, miner(z, labels) if miner else None), [z, *loss.parameters()]


def prepare(name: str, side: str, batch: int, count: int, dim: int) -> Loss:
    """A side's loss of random points."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    centres = CENTRES if name == "soft_triple" else 1
    classes = count // centres if name in PROXIES else batch // IMAGES
    z = torch.randn(batch, dim, requires_grad=True)
    proxies = torch.nn.Parameter(torch.randn(classes * centres if name in PROXIES else 1, dim))
    labels = torch.arange(batch // IMAGES).repeat_interleave(IMAGES) % classes
    return (ours if side == "ours" else theirs)(name, z, proxies, labels, classes)


def one_pass(make: Callable[[], Any], leaves: list[Any]) -> float:
    """Seconds of one forward and backward pass; the gradients are dropped."""
    started = time.perf_counter()
    make().backward()
    seconds = time.perf_counter() - started
    for leaf in leaves:
        leaf.grad = None
    return seconds


def measure_time(name: str, batch: int, count: int, dim: int, seconds: float, rounds: int) -> dict[str, float]:
    """Median seconds of a pass of each side, and the median of the rounds' ratios."""
    both = {side: prepare(name, side, batch, count, dim) for side in SIDES}
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    begun = time.perf_counter()
    while len(times["ours"]) <= rounds or time.perf_counter() - begun < seconds:
        for side in SIDES if len(times["ours"]) % 2 else SIDES[::-1]:
            times[side].append(one_pass(*both[side]))
    ratios = [mine / other for mine, other in zip(*times.values(), strict=True)][1:]  # the first round warms up
    medians = {f"{side} s": statistics.median(values[1:]) for side, values in times.items()}
    return medians | {"ratio": statistics.median(ratios), "rounds": len(ratios)}


def measure_memory(name: str, side: str, batch: int, count: int, dim: int) -> dict[str, float]:
    """MiB above the inputs in two passes."""
    one_pass(*prepare(name, side, 2 * IMAGES, 2 * CENTRES, dim))  # the code that it loads is not its memory
    loss = prepare(name, side, batch, count, dim)
    before = resident_memory()
    for _ in range(2):
        one_pass(*loss)
    return {f"{side} MiB": (peak_memory() - before) / 2**20}


def main() -> None:
    """Measure all, print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["128x1000", "1024x10000", "128x100000"])
    parser.add_argument("--names", nargs="+", default=PAIRS + PROXIES, choices=PAIRS + PROXIES)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring, each, at least")
    parser.add_argument("--rounds", type=int, default=5, help="of both sides, at least")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        what, name, *size = arguments.one
        batch, count = map(int, size)
        found = (
            measure_time(name, batch, count, arguments.dim, arguments.seconds, arguments.rounds)
            if what == "time"
            else measure_memory(name, what, batch, count, arguments.dim)
        )
        print(json.dumps(found))
        return
    results = []
    head = f"{'objective':20s} {'batch x proxies':>16s} {'ours s':>9s} {'theirs s':>9s} {'ratio':>6s}"
    print(f"{head} {'MiB':>7s} {'theirs':>7s}")
    for name in arguments.names:
        given = [size.split("x") for size in arguments.sizes]
        sizes = dict.fromkeys((batch, count if name in PROXIES else "0") for batch, count in given)
        for batch, proxies in sizes:
            row: dict[str, Any] = {"name": name, "batch": int(batch), "proxies": int(proxies)}
            for what in ("time", *SIDES):
                command = [sys.executable, __file__, "--one", what, name, batch, proxies, "--dim", str(arguments.dim)]
                command += ["--seconds", str(arguments.seconds), "--rounds", str(arguments.rounds)]
                row |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            size = f"{batch} x {proxies}" if name in PROXIES else batch
            times = f"{row['ours s']:9.4f} {row['theirs s']:9.4f} {row['ratio']:6.2f}"
            print(f"{name:20s} {size:>16s} {times} {row['ours MiB']:7.0f} {row['theirs MiB']:7.0f}", flush=True)
            results.append(row)
    print(json.dumps({"date": f"{datetime.now(UTC):%Y-%m-%d}", "dim": arguments.dim, "results": results}))


if __name__ == "__main__":
    main()
