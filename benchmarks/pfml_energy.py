"""What PFML's energy costs: forward and backward, against the naive form and against the products that bound it.

    python benchmarks/pfml_energy.py --proxies 2000 22636 100000 --batch 180 --dim 512

- `energy`:  `methods.pfml.potential_energy` and its gradient;
- `naive`:   the same by one distance matrix and autograd, where its matrices fit the memory given;
- `bound`:   the two products of N x N x D numbers that no exact form can do without (half of the first would do, for
             the matrix is symmetric): distances forward, forces backward.

Points are of a trained model's kind: each proxy close to its class's direction. Each measurement is a process of its
own; memory is the growth of its peak over the inputs.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")


def points(proxies: int, batch: int, dim: int, per_class: int) -> tuple[Any, Any]:
    """Unit rows of the batch and the proxies, and their labels."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    classes = max(1, proxies // per_class)
    centres = F.normalize(torch.randn(classes, dim), dim=1)
    labels = torch.cat([torch.arange(batch) // 4 % classes, torch.arange(proxies) // per_class % classes])
    rows = F.normalize(centres[labels] + 0.3 * torch.randn(len(labels), dim) / dim**0.5, dim=1)
    return rows, labels


def naive_energy(rows: Any, labels: Any, delta: float, alpha: float) -> Any:
    """Equation 6 read aloud."""
    import torch

    d = torch.cdist(rows, rows)
    same = labels[:, None] == labels
    attraction = -torch.where(d < delta, delta, d).clamp_min(1e-6).pow(-alpha)
    repulsion = torch.where(d < delta, d.clamp_min(0.01), delta).pow(-alpha)
    return torch.where(same, attraction, repulsion).sum()


def measure(way: str, proxies: int, batch: int, dim: int, per_class: int) -> dict[str, float]:
    """Seconds of the second pass, MiB above the inputs."""
    import torch

    from methods.pfml import potential_energy

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rows, labels = points(proxies, batch, dim, per_class)
    rows.requires_grad_()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = 0.0
    for _ in range(2):
        rows.grad = None
        started = time.perf_counter()
        if way == "energy":
            z, y = rows[:batch], labels[:batch]
            potential_energy(z, y, rows[batch:], labels[batch:], delta=0.2, alpha=4.0).backward()
        elif way == "naive":
            naive_energy(rows, labels, 0.2, 4.0).backward()
        else:
            with torch.no_grad():
                for block in rows.split(4096):
                    similarity = block @ rows.T
                    similarity @ rows
        seconds = time.perf_counter() - started
        if seconds > 60:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "MiB": (peak - before) / 1024}


def main() -> None:
    """Measure all sizes, print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proxies", nargs="+", type=int, default=[2000, 22636, 100000])
    parser.add_argument("--batch", type=int, default=180)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--per-class", type=int, default=2)
    parser.add_argument("--naive-memory", type=float, default=8.0, help="GiB that the naive form may take")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = {"batch": arguments.batch, "dim": arguments.dim, "per_class": arguments.per_class}
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]), **sizes)))
        return
    found = []
    for proxies in arguments.proxies:
        ways = ["bound", "energy"]
        if 10 * 4 * (proxies + arguments.batch) ** 2 < arguments.naive_memory * 2**30:
            ways.append("naive")
        both = {}
        for way in ways:
            command = [sys.executable, __file__, "--one", way, str(proxies)]
            for key, value in sizes.items():
                command += [f"--{key.replace('_', '-')}", str(value)]
            both[way] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        bound = both["bound"]["seconds"]
        for way, result in both.items():
            size = f"{proxies} + {arguments.batch} points"
            print(
                f"{size:22s} {way:7s} {result['seconds']:8.2f} s {result['seconds'] / bound:6.2f} x bound "
                f"{result['MiB']:8.0f} MiB",
                flush=True,
            )
        found.append({"proxies": proxies} | both)
    print(json.dumps({"date": f"{datetime.now(UTC):%Y-%m-%d}"} | sizes | {"results": found}))


if __name__ == "__main__":
    main()
