"""What the objectives cost: forward and backward against pytorch-metric-learning's, in one run, as ratios.

    python benchmarks/objectives.py --sizes 128x1000 1024x10000 128x100000 --dim 512

A size is BATCHxPROXIES; objectives on pairs use the batch alone. Each measurement is a process of its own: the median
time of a forward and backward pass after a warm-up, and the growth of the process's peak memory over its inputs.
Both sides normalise embeddings (and proxies), so that they do the same work.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

PAIRS = ["contrastive", "triplet", "multi_similarity", "fast_ap", "margin"]
PROXIES = ["proxy_nca", "proxy_anchor", "normalized_softmax", "soft_triple"]
CENTRES = 4  # per class, of SoftTriple
IMAGES = 4  # per class in the batch


def ours(name: str, labels: Any, classes: int, dim: int) -> Callable[[Any, Any], Any]:
    """Our objective of embeddings and proxies that are not yet normalised."""
    import torch
    import torch.nn.functional as F

    from methods import objectives

    function = getattr(objectives, name)
    settings: dict[str, Any] = {
        "contrastive": {"neg_margin": 1.3},
        "triplet": {"mining": "all"},
        "multi_similarity": {"epsilon": None},
        "margin": {"dim": dim, "generator": torch.Generator().manual_seed(0)},
        "proxy_nca": {"include_positive": True, "scale": 3.0},
        "soft_triple": {"centres_per_class": CENTRES},
    }.get(name, {})
    matrix = objectives.euclidean_distance if name in PAIRS else objectives.cosine_similarity
    if name == "multi_similarity":
        matrix = objectives.cosine_similarity
    own = torch.arange(classes).repeat_interleave(CENTRES if name == "soft_triple" else 1)

    def loss(z: Any, proxies: Any) -> Any:
        z = F.normalize(z, dim=1)
        if name in PAIRS:
            return function(matrix(z, z), *objectives.pair_masks(labels, labels, same=True), **settings)
        similarity = matrix(z, F.normalize(proxies, dim=1))
        if name == "proxy_nca":
            similarity = 2 - 2 * similarity  # squared distance of unit rows, as theirs
        return function(similarity, *objectives.pair_masks(labels, own, same=False), **settings)

    return loss


def theirs(name: str, labels: Any, classes: int, dim: int, proxies: Any) -> Callable[[Any, Any], Any]:
    """Theirs, with the same proxies."""
    from pytorch_metric_learning import losses, miners

    miner = None
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
    return lambda z, _: loss(z, labels, miner(z, labels) if miner else None)


def measure(side: str, name: str, batch: int, count: int, dim: int, seconds: float) -> dict[str, float]:
    """Median seconds of a pass, and MiB above the inputs."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    centres = CENTRES if name == "soft_triple" else 1
    classes = count // centres if name in PROXIES else batch // IMAGES
    z = torch.randn(batch, dim, requires_grad=True)
    proxies = torch.nn.Parameter(torch.randn(classes * centres if name in PROXIES else 1, dim))
    labels = torch.arange(batch // IMAGES).repeat_interleave(IMAGES) % classes
    loss = ours(name, labels, classes, dim) if side == "ours" else theirs(name, labels, classes, dim, proxies)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < 4 or time.perf_counter() - begun < seconds:
        started = time.perf_counter()
        loss(z, proxies).backward()
        times.append(time.perf_counter() - started)
        z.grad = proxies.grad = None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": statistics.median(times[1:]), "MiB": (peak - before) / 1024}


def main() -> None:
    """Measure all, print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["128x1000", "1024x10000", "128x100000"])
    parser.add_argument("--names", nargs="+", default=PAIRS + PROXIES)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring, each")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        side, name, batch, count = arguments.one
        print(json.dumps(measure(side, name, int(batch), int(count), arguments.dim, arguments.seconds)))
        return
    found = []
    head = f"{'objective':20s} {'batch x proxies':>16s} {'ours s':>9s} {'theirs s':>9s} {'ratio':>6s}"
    print(f"{head} {'MiB':>7s} {'theirs':>7s}")
    for name in arguments.names:
        given = [size.split("x") for size in arguments.sizes]
        sizes = dict.fromkeys((batch, count if name in PROXIES else "0") for batch, count in given)
        for batch, count in sizes:
            both = {}
            for side in ("ours", "theirs"):
                command = [sys.executable, __file__, "--one", side, name, batch, count, "--dim", str(arguments.dim)]
                command += ["--seconds", str(arguments.seconds)]
                both[side] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            mine, other = both["ours"], both["theirs"]
            ratio = mine["seconds"] / other["seconds"]
            size = f"{batch} x {count}" if name in PROXIES else batch
            times = f"{mine['seconds']:9.4f} {other['seconds']:9.4f} {ratio:6.2f}"
            print(f"{name:20s} {size:>16s} {times} {mine['MiB']:7.0f} {other['MiB']:7.0f}", flush=True)
            found.append({"name": name, "batch": int(batch), "proxies": int(count)} | both)
    print(json.dumps({"date": f"{datetime.now(UTC):%Y-%m-%d}", "dim": arguments.dim, "results": found}))


if __name__ == "__main__":
    main()
