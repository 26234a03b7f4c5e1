"""What the metrics cost over the bare neighbour search under them, and against pytorch-metric-learning.

    python benchmarks/evaluation.py --items 60502 --classes 11316 --dimensions 512 --runs 3

Each way runs in a process of its own, on the same made embeddings (clustered classes on a curved sheet of 32
dimensions, unit length), with the same depth of neighbours (1,000 and the query itself):
- `bare`:        a flat faiss index, filled and searched in chunks, the neighbours thrown away;
- `metrics`:     `evaluate_embeddings` without clustering: all retrieval metrics;
- `queries`:     the same with the table of every query and the bootstrap's intervals;
- `peer`:        AccuracyCalculator of pytorch-metric-learning, its retrieval metrics;
- `approximate`: `evaluate_embeddings(..., approximate=True)`, for the sizes at which an exact search takes hours.

`memory` is the peak of the resident memory less what was resident before the call, embeddings and imports included.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

DEPTH = 1000
SHEET = 32


def make(items: int, classes: int, dimensions: int) -> tuple[Any, Any]:
    """Unit rows (items, dimensions) in float32 and their labels, sizes of classes drawn at random."""
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=items)
    centres = rng.standard_normal((classes, SHEET), dtype=np.float32)
    onto = rng.standard_normal((SHEET, dimensions), dtype=np.float32)
    rows = np.empty((items, dimensions), dtype=np.float32)
    for start in range(0, items, 10_000):
        part = slice(start, start + 10_000)
        latent = centres[labels[part]] + 0.7 * rng.standard_normal((len(labels[part]), SHEET), dtype=np.float32)
        rows[part] = np.tanh(latent @ onto / SHEET**0.5)
        rows[part] /= np.linalg.norm(rows[part], axis=1, keepdims=True)
    return rows, labels


def bare(rows: Any, labels: Any) -> dict[str, float]:
    """The neighbours and nothing else."""
    import faiss

    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows)
    for start in range(0, len(rows), 2048):
        index.search(rows[start : start + 2048], min(DEPTH + 1, len(rows)))
    return {}


def metrics(rows: Any, labels: Any) -> dict[str, float]:
    """What a final test computes, without k-means."""
    from orchestrator.evaluation import evaluate_embeddings

    return evaluate_embeddings(rows, labels, clustering=False)


def queries(rows: Any, labels: Any) -> dict[str, float]:
    """What `orchestrator evaluate` computes, without k-means."""
    from orchestrator.evaluation import evaluate_queries

    result = evaluate_queries(rows, labels, clustering=False)
    low, high = result.intervals()["map_at_r"]
    return result.metrics | {"map_at_r low": low, "map_at_r high": high}


def peer(rows: Any, labels: Any) -> dict[str, float]:
    """The library most of the field uses."""
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    include = ("precision_at_1", "r_precision", "mean_average_precision_at_r", "mean_average_precision")
    calculator = AccuracyCalculator(include=include, k=min(DEPTH, len(rows) - 1), device=torch.device("cpu"))
    result: dict[str, float] = calculator.get_accuracy(torch.from_numpy(rows), torch.from_numpy(labels))
    return result


def approximate(rows: Any, labels: Any) -> dict[str, float]:
    """Inverted lists in place of the flat index."""
    from orchestrator.evaluation import evaluate_embeddings

    return evaluate_embeddings(rows, labels, clustering=False, approximate=True)


WAYS: dict[str, Callable[[Any, Any], dict[str, float]]] = {
    "bare": bare,
    "metrics": metrics,
    "queries": queries,
    "peer": peer,
    "approximate": approximate,
}


def measure(way: str, folder: Path, threads: int) -> None:
    """In the child: one call, as one JSON line."""
    import faiss
    import psutil
    import torch

    import orchestrator.evaluation  # noqa: F401 (imports are not measured)

    if way == "peer":
        import pytorch_metric_learning.utils.accuracy_calculator  # noqa: F401

    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    rows, labels = np.load(folder / "rows.npy"), np.load(folder / "labels.npy")
    before = psutil.Process().memory_info().rss
    started = time.perf_counter()
    found = WAYS[way](rows, labels)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "memory": (peak - before) / 1e9, "found": found}))


def machine() -> str:
    """Processor and number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown'}, {os.cpu_count()} cores"


def main() -> None:
    """Measure, and print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--classes", type=int, help="items / 5.35 by default, as in Stanford Online Products")
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=["bare", "metrics", "queries", "peer"])
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure[0], Path(arguments.measure[1]), int(arguments.measure[2]))
        return
    classes = arguments.classes or round(arguments.items / 5.35)
    measured: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways}
    with tempfile.TemporaryDirectory() as folder:
        rows, labels = make(arguments.items, classes, arguments.dimensions)
        np.save(Path(folder) / "rows.npy", rows)
        np.save(Path(folder) / "labels.npy", labels)
        del rows
        environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
        for number in range(arguments.runs):
            for way in arguments.ways:
                command = [sys.executable, __file__, "--measure", way, folder, str(arguments.threads)]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
                measured[way].append(json.loads(done.stdout.splitlines()[-1]))
                print(f"run {number + 1}: {way} {measured[way][-1]}", file=sys.stderr, flush=True)
    bound = statistics.median(one["seconds"] for one in measured["bare"]) if "bare" in measured else None
    print(f"{arguments.items} x {arguments.dimensions}, {classes} classes, {arguments.threads} threads, medians")
    for way, runs in measured.items():
        seconds, memory = (statistics.median(one[key] for one in runs) for key in ("seconds", "memory"))
        ratio = f"{seconds / bound:6.2f} x bare" if bound else ""
        print(f"  {way:12s} {seconds:8.1f} s  {memory:6.2f} GB {ratio}")
    record = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "measured": measured}
    print(json.dumps(vars(arguments) | record))


if __name__ == "__main__":
    main()
