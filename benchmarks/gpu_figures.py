"""What `gpu.py` measures beside trainings, each figure as a JSON line when it is there. With `--device cpu` in small.

    python benchmarks/gpu_figures.py energy

- `environment`: whether torch computes on the device; its name, memory and versions;
- `energy`:      `methods.pfml.potential_energy` and its gradient, beside the two products of N x N x D numbers that no
                 exact form can do without, in float32;
- `fused`:       the Triton kernels: the energy and gradient of 1,000,000 x 512 beside the device's rate of products,
                 and of 100,000 beside torch; a softmax over 100,000 and 1,000,000 classes beside torch;
- `costs`:       a step of every method without a backbone's, with 100 and 10,000 classes (method_costs.py);
- `million`:     all retrieval metrics of 20,000 queries among 1,000,000 x 512, by faiss and by torch in float64;
- `trials`:      a search of 16 trials with one, two and four at a time on a GPU;
- `workers`:     a training over two GPUs.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from evaluation import make
from gpu_lines import Figures, measured
from pfml_energy import points

ROOT = Path(__file__).resolve().parents[1]
TILE = 4096
SHARES, LONGEST = 64, 30.0
"""Of the energy of all points one of SHARES parts is tried; then as much of it as takes at most LONGEST seconds."""


def seconds(device: str, call: Callable[[], Any], rounds: int = 3) -> float:
    """The median time of a call, after one that is not counted."""
    taken = []
    for _ in range(rounds + 1):
        wait(device)
        began = time.perf_counter()
        call()
        wait(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def environment(device: str) -> None:
    """What the device is, and whether a product on it is right to rounding."""
    facts = Figures()
    facts |= {"torch": torch.__version__, "system": f"{platform.system()} {platform.machine()}"}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "GPU": properties.name,
            "GPUs": torch.cuda.device_count(),
            "memory GiB": properties.total_memory / 2**30,
            "CUDA of torch": torch.version.cuda,
            "cuDNN": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    torch.manual_seed(0)
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    off = float(((a.to(device) @ b.to(device)).cpu() - a @ b).abs().max())
    facts["largest error of a product"] = off
    if not off < 0.1:  # of entries of 23 on average; TF32 is right to 0.05
        facts["a product: failed"] = f"it is off by {off:.3g}"


def energy(device: str) -> dict[str, Any]:
    from methods.pfml import potential_energy

    found = Figures()
    for proxies in (2000, 22636, 100000) if device == "cuda" else (500,):
        rows, labels = points(proxies, 180, 512, 2)
        rows, labels = rows.to(device).requires_grad_(), labels.to(device)

        def whole(rows: Any = rows, labels: Any = labels) -> None:
            rows.grad = None
            value = potential_energy(rows[:180], labels[:180], rows[180:], labels[180:], delta=0.2, alpha=4.0)
            torch.autograd.backward(value)

        def products(rows: Any = rows) -> None:
            rows = rows.detach()
            for start in range(0, len(rows), TILE):
                (rows[start : start + TILE] @ rows.T) @ rows

        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        size = f"{proxies} + 180 points"
        found[f"{size}: energy s"] = seconds(device, whole)
        if device == "cuda":
            found[f"{size}: peak memory MiB"] = torch.cuda.max_memory_allocated() / 2**20
        found[f"{size}: products s"] = seconds(device, products)
        found[f"{size}: energy / products"] = found[f"{size}: energy s"] / found[f"{size}: products s"]
    return found


def once(device: str, call: Callable[[], Any]) -> tuple[float, dict[str, float]]:
    """Seconds of one call, and on a GPU the most memory during it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    wait(device)
    began = time.perf_counter()
    call()
    wait(device)
    taken = time.perf_counter() - began
    return taken, {"peak memory MiB": torch.cuda.max_memory_allocated() / 2**20} if device == "cuda" else {}


def fused(device: str) -> dict[str, Any]:
    """By the Triton kernels, on a CPU by Triton's interpreter; rates count the products of distances and of forces."""
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    from methods import objectives
    from methods.distances import full_precision
    from methods.kernels.energy import excess_energy
    from methods.kernels.proxy_losses import normalized_softmax
    from methods.kernels.tiles import TILE, Tile
    from methods.pfml import potential_energy
    from methods.potentials import InversePower

    other_tiles = (Tile(depth=8), Tile(others=64), Tile(others=64, width=64), Tile(rows=64, others=64, width=64))

    big = device == "cuda"
    side, count, dim, batch = (8192, 1_000_000, 512, 180) if big else (256, 200, 16, 20)
    square = torch.randn(side, side, device=device)
    with full_precision(square.device):
        rate = 2 * side**3 / seconds(device, partial(torch.mm, square, square)) / 1e12
    found = Figures()
    found["product rate, TFLOP/s in float32"] = rate

    rows, labels = points(count - batch, batch, dim, 2)
    rows, labels = rows.to(device).requires_grad_(), labels.to(device)

    def energies(kernels: str | None, delta_rep: float, most: int, share: tuple[int, int] = (0, 1)) -> None:
        rows.grad = None
        z, p, y, c = rows[:batch], rows[batch:most], labels[:batch], labels[batch:most]
        value = potential_energy(z, y, p, c, delta=0.2, alpha=4.0, delta_rep=delta_rep, share=share, kernels=kernels)
        torch.autograd.backward(value)

    for kind, delta_rep in (("few pairs interact", 0.2), ("all pairs interact", 1.6)):
        energies("triton", delta_rep, min(count, 3000))  # compiles
        part, _ = once(device, partial(energies, "triton", delta_rep, count, (0, SHARES)))
        shares = max(1, math.ceil(part * SHARES / LONGEST))
        taken, memory = once(device, partial(energies, "triton", delta_rep, count, (0, shares)))
        name = f"{count:,} x {dim}, {kind}"
        products = 4 * count**2 * dim / shares / taken / 1e12
        found |= {f"{name}: share of the pairs": 1 / shares, f"{name}: seconds": taken}
        found |= {f"{name}: two products' TFLOP/s": products, f"{name}: of the product rate": products / rate}
        found |= {f"{name}: {key}": value for key, value in memory.items()}
        fewer = min(count, 100_180)
        for kernels in (None, "triton"):
            taken, memory = once(device, partial(energies, kernels, delta_rep, fewer))
            found[f"{fewer:,} x {dim}, {kind}: seconds by {kernels or 'torch'}"] = taken

    potential = InversePower(0.2, 1.6, 4.0)
    for tile in (TILE, *other_tiles):
        call = partial(excess_energy, rows.detach()[:fewer], labels[:fewer], potential, (0, 1), True, tile)
        call()  # compiles
        sizes = f"{tile.rows} x {tile.others}, {tile.depth} deep, {tile.width} wide, {tile.warps} warps"
        found[f"{fewer:,} x {dim}, all pairs interact: seconds in tiles of {sizes}"], _ = once(device, call)

    def softmax(kernels: str | None, classes: int) -> None:
        rows.grad = None
        z, p, y = rows[:batch], rows[:classes], torch.arange(classes, device=device)
        if kernels:
            value = normalized_softmax(z, y[:batch, None], p, y, metric="cosine", temperature=0.05)
        else:
            positive, negative = objectives.pair_masks(y[:batch], y, same=False)
            value = objectives.normalized_softmax(objectives.cosine_similarity(z, p), positive, negative)
        torch.autograd.backward(value)

    for classes in (count // 10, count):
        for kernels in (None, "triton"):
            softmax(kernels, classes)
            taken, memory = once(device, partial(softmax, kernels, classes))
            name = f"softmax over {classes:,} classes by {kernels or 'torch'}"
            found |= {f"{name}: seconds": taken} | {f"{name}: {key}": value for key, value in memory.items()}
    return found


def searched(device: str, items: int, classes: int, queries: int | None) -> dict[str, Any]:
    """Seconds of all retrieval metrics: by faiss where it can search on the device, and by torch in float64."""
    from orchestrator.evaluation import neighbours as searching
    from orchestrator.evaluation.metrics import evaluate_queries

    rows, labels = make(items, classes, 512)
    given: dict[str, Any] = {"embeddings": rows[:queries], "labels": labels[:queries]}
    if queries is not None:
        given |= {"gallery": rows[queries:], "gallery_labels": labels[queries:]}
    facts = Figures()
    facts |= {"items": items, "queries": queries or items}
    for way in ("faiss", "torch") if device == "cuda" else ("faiss",):
        devices = searching.gpus_of_faiss(torch.device(device)) if way == "faiss" else []
        if way == "faiss" and device == "cuda" and not devices:
            facts[way] = "not here: built without GPUs, or sees none"
            continue
        if way == "torch":
            setattr(searching, "gpus_of_faiss", lambda _: [])  # noqa: B010  mypy refuses a plain assignment
        began = time.perf_counter()
        with LeastFree(device) as memory:
            found = evaluate_queries(**given, clustering=False, device=torch.device(device))
        facts[f"{way}: seconds"] = time.perf_counter() - began
        facts |= {f"{way}: {key}": value for key, value in memory.found.items()}
        facts |= {"map_at_r": facts.get("map_at_r", found.metrics["map_at_r"])}
        if facts["map_at_r"] != found.metrics["map_at_r"]:
            raise ValueError(f"map_at_r is {facts['map_at_r']} by faiss and {found.metrics['map_at_r']} by torch")
    return facts


class LeastFree:
    """The most memory of the GPU that was taken, also by others than torch, looked at each tenth of a second."""

    def __init__(self, device: str) -> None:
        self.found: dict[str, float] = {}
        self._on = device == "cuda"
        self._ended = threading.Event()

    def __enter__(self) -> "LeastFree":
        if self._on:
            torch.cuda.empty_cache()
            self._before = self._least = torch.cuda.mem_get_info()[0]
            self._thread = threading.Thread(target=self._look)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._on:
            self._ended.set()
            self._thread.join()
            self.found["most memory of the GPU taken, MiB"] = (self._before - self._least) / 2**20

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            self._least = min(self._least, torch.cuda.mem_get_info(0)[0])


def million(device: str) -> dict[str, Any]:
    if device == "cuda":
        return searched(device, 1_020_000, 190_000, 20_000)
    return searched(device, 5000, 1000, 500)


def search(settings: dict[str, Any], **changes: Any) -> float:
    """Seconds of a search in a folder of its own; RuntimeError unless all its trials end as planned."""
    from ruamel.yaml import YAML

    from orchestrator.storage.journal import Journal
    from orchestrator.storage.ledger import Ledger

    trials = changes.pop("trials")
    space = {"lr": [10 ** -(2 + number / trials) for number in range(trials)]}
    fixed = {"epochs": 1, "classes_per_batch": 6, "images_per_class": 2, "embedding_dim": 8} | settings
    wanted = {"method": "proxy_anchor", "dataset": "glyphs-small", "settings": fixed, "space": space}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        YAML().dump(wanted | {"algorithm": "grid", "final": False} | changes, folder / "gpu.yaml")
        command = [sys.executable, "-m", "orchestrator", "search", "gpu.yaml", "--name", "gpu", "--storage", "runs"]
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        taken = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(" ".join((done.stdout + done.stderr).split())[-500:])
        ledger = Ledger.of(Journal.read(folder / "runs" / "searches" / "gpu" / "journal.jsonl"))
    ended = [trial.state for trial in ledger.trials.values()]
    if len(ended) != trials or set(ended) != {"done"}:
        raise RuntimeError(f"of {trials} trials {ended.count('done')} were completed: {ended}")
    return taken


def trials(device: str) -> dict[str, Any]:
    count = 16 if device == "cuda" else 2
    found = Figures()
    found["trials"] = count
    for together in (1, 2, 4) if device == "cuda" else (1, 2):
        share = {"gpus_per_trial": 1 / together} if device == "cuda" else {}
        taken = search({"device": device}, trials=count, max_concurrent=together, workers=1, **share)
        found[f"seconds, {together} at a time"] = taken
    return found


def workers(device: str) -> None:
    if device == "cuda" and torch.cuda.device_count() < 2:
        print(json.dumps({"not run": "needs two GPUs, and here is one"}))
        return
    taken = search({"device": device}, trials=1, workers=2, max_concurrent=1)
    print(json.dumps({"seconds of a trial over two workers": taken}))


def costs(device: str) -> None:
    """The median of five steps after three; ProxyAnchor's first, as the others are compared with it."""
    from method_costs import CLASSES, MINUTES, Steps

    from orchestrator.method import registry
    from orchestrator.report.method_costs import REFERENCE
    from orchestrator.training.repeatable import fixed_operations

    figures, names = Figures(), [REFERENCE, *sorted(set(registry()) - {REFERENCE})]
    for name in names if device == "cuda" else names[:2]:
        for classes in CLASSES[: 1 if name in MINUTES or device == "cpu" else None]:
            with fixed_operations(device):
                try:
                    steps = Steps(name, classes, "cuda" if device == "cuda" else "cpu")
                    figures[f"{name}, {classes:,} classes: ms a step"] = 1000 * statistics.median(
                        [steps.step() for _ in range(8)][3:]
                    )
                except (RuntimeError, ValueError) as error:
                    figures[f"{name}, {classes:,} classes: failed"] = " ".join(str(error).split())[:200]


WHAT = {call.__name__: call for call in (environment, energy, fused, costs, million, trials, workers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    torch.set_num_threads(min(8, os.cpu_count() or 1))
    measured(WHAT[arguments.what], arguments.device)


if __name__ == "__main__":
    main()
