"""What PFML's energy costs: forward and backward, against the naive form and against the products that bound it.

    python benchmarks/pfml_energy.py --proxies 2000 22636 100000 --batch 180 --dim 512

- `energy`:  `methods.pfml.potential_energy` and its gradient;
- `naive`:   the same by one distance matrix and autograd, where its matrices fit the memory given;
- `bound`:   the two products of N x N x D numbers that no exact form can do without (half of the first would do, for
             the matrix is symmetric): distances forward, forces backward.

Points are of a trained model's kind: each proxy close to its class's direction, so that few pairs interact. With
`--delta-rep 1.5` all pairs do: a batch that has only begun to train, under a wide repulsion.

Time: each of the three is cut into the same number of parts (the naive one is not), which take turns in one process,
so that a loaded machine slows down all; the median of the turns' ratios is printed, and the sum of the seconds. Memory
is the growth of a process's peak over the inputs, each way in a process of its own, in one whole pass.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

from process_memory import peak_memory, resident_memory

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


def naive_energy(rows: Any, labels: Any, delta: float, delta_rep: float, alpha: float) -> Any:
    """Equation 6 read aloud."""
    import torch

    d = torch.cdist(rows, rows)
    same = labels[:, None] == labels
    attraction = -torch.where(d < delta, delta, d).clamp_min(1e-6).pow(-alpha)
    repulsion = torch.where(d < delta_rep, d.clamp_min(0.01), delta_rep).pow(-alpha)
    return torch.where(same, attraction, repulsion).sum()


def turn(way: str, rows: Any, labels: Any, part: int, parts: int, arguments: argparse.Namespace) -> float:
    """Seconds of one part of one pass."""
    import torch

    from methods.pfml import potential_energy

    rows.grad = None
    batch, radii = arguments.batch, {"delta": 0.2, "delta_rep": arguments.delta_rep, "alpha": arguments.alpha}
    started = time.perf_counter()
    if way == "energy":
        z, y = rows[:batch], labels[:batch]
        energy = potential_energy(z, y, rows[batch:], labels[batch:], **radii, share=(part, parts))
        torch.autograd.backward(energy)
    elif way == "naive":
        naive_energy(rows, labels, **radii).backward()
    else:
        with torch.no_grad():
            for block in rows.tensor_split(parts)[part].split(4096):
                similarity = block @ rows.T
                similarity @ rows
    return time.perf_counter() - started


def prepare(proxies: int, arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Points that ask for gradients, and labels."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rows, labels = points(proxies, arguments.batch, arguments.dim, arguments.per_class)
    return rows.requires_grad_(), labels


def measure_time(proxies: int, parts: int, naive: bool, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of a whole pass of each way, and its ratio to the bound."""
    rows, labels = prepare(proxies, arguments)
    small = rows[: arguments.batch + 1000].detach().requires_grad_()
    turn("energy", small, labels[: len(small)], 0, 1, arguments)  # warms up
    seconds: dict[str, list[float]] = {"bound": [], "energy": []}
    for part in range(parts):
        for way, times in seconds.items():
            times.append(turn(way, rows, labels, part, parts, arguments))
    found = {f"{way} s": sum(times) for way, times in seconds.items()}
    found["energy / bound"] = statistics.median(e / b for e, b in zip(seconds["energy"], seconds["bound"], strict=True))
    if naive:
        found["naive s"] = turn("naive", rows, labels, 0, 1, arguments)
        found["naive / bound"] = found["naive s"] / found["bound s"]
    return found


def measure_memory(way: str, proxies: int, arguments: argparse.Namespace) -> dict[str, float]:
    """MiB above the inputs."""
    rows, labels = prepare(proxies, arguments)
    before = resident_memory()
    turn(way, rows, labels, 0, 1, arguments)
    return {f"{way} MiB": (peak_memory() - before) / 2**20}


def main() -> None:
    """Measure all sizes, print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proxies", nargs="+", type=int, default=[2000, 22636, 100000])
    parser.add_argument("--batch", type=int, default=180)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--per-class", type=int, default=2)
    parser.add_argument("--delta-rep", type=float, default=0.2)
    parser.add_argument("--alpha", type=float, default=4.0)
    parser.add_argument("--parts", type=int, default=5, help="turns of a pass")
    parser.add_argument("--naive-memory", type=float, default=8.0, help="GiB that the naive form may take")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        what, proxies, naive = arguments.one[0], int(arguments.one[1]), arguments.one[2] == "naive"
        found = (
            measure_time(proxies, arguments.parts, naive, arguments)
            if what == "time"
            else measure_memory(what, proxies, arguments)
        )
        print(json.dumps(found))
        return
    settings = {key: value for key, value in vars(arguments).items() if key not in ("one", "proxies")}
    options = [text for key, value in settings.items() for text in (f"--{key.replace('_', '-')}", str(value))]
    results = []
    for proxies in arguments.proxies:
        fits = 10 * 4 * (proxies + arguments.batch) ** 2 < arguments.naive_memory * 2**30
        row: dict[str, Any] = {"proxies": proxies}
        for what in ("time", "energy", *(["naive"] if fits else [])):
            command = [sys.executable, __file__, "--one", what, str(proxies), "naive" if fits else "-", *options]
            row |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        size = f"{proxies} + {arguments.batch} points"
        print(f"{size:22s} bound   {row['bound s']:8.2f} s")
        for way in ("energy", "naive")[: 1 + fits]:
            ratio, memory = row[f"{way} / bound"], row[f"{way} MiB"]
            print(f"{size:22s} {way:7s} {row[f'{way} s']:8.2f} s {ratio:6.2f} x bound {memory:8.0f} MiB", flush=True)
        results.append(row)
    print(json.dumps({"date": f"{datetime.now(UTC):%Y-%m-%d}"} | settings | {"results": results}))


if __name__ == "__main__":
    main()
