"""What the metrics cost over the bare neighbour search under them, and against pytorch-metric-learning.

    python benchmarks/evaluation.py --items 60502 --classes 11316 --dimensions 512 --runs 3
    python benchmarks/evaluation.py --items 1000000 --dimensions 128 --queries 20000 --ways bare approximate

Each way runs in a process of its own, on the same made embeddings (clustered classes on a curved sheet of 32
dimensions, unit length), with the same depth of neighbours (1,000 and the query itself):
- `bare`:        a flat faiss index, filled and searched in chunks, the neighbours thrown away;
- `metrics`:     `evaluate_embeddings` without clustering: all retrieval metrics;
- `table`:       the same with the table of every query and the bootstrap's intervals;
- `peer`:        AccuracyCalculator of pytorch-metric-learning, its retrieval metrics;
- `approximate`: `evaluate_embeddings(..., approximate=True)`, for the sizes at which an exact search takes hours.

With `--queries N` the first N items are searched for among the others, in place of all among all.
On a machine with other work, the seconds of its processors tell more than those of the clock.
`memory` is the peak of the resident memory less what was resident before the call, embeddings and imports included.
"""

import argparse
import json
import os
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
from process_memory import peak_memory, resident_memory

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


def split(rows: Any, labels: Any, queries: int | None) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Queries with their labels, and the options that name the gallery."""
    if queries is None:
        return (rows, labels), {}
    return (rows[:queries], labels[:queries]), {"gallery": rows[queries:], "gallery_labels": labels[queries:]}


def bare(rows: Any, labels: Any, queries: int | None) -> dict[str, float]:
    """The neighbours and nothing else."""
    import faiss

    (asked, _), among = split(rows, labels, queries)
    gallery = among.get("gallery", rows)
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(gallery)
    for start in range(0, len(asked), 2048):
        index.search(asked[start : start + 2048], min(DEPTH + (queries is None), len(gallery)))
    return {}


def metrics(rows: Any, labels: Any, queries: int | None) -> dict[str, float]:
    """What a final test computes, without k-means."""
    from orchestrator.evaluation.metrics import evaluate_embeddings

    given, among = split(rows, labels, queries)
    return evaluate_embeddings(*given, **among, clustering=False)


def table(rows: Any, labels: Any, queries: int | None) -> dict[str, float]:
    """What `orchestrator evaluate` computes, without k-means."""
    from orchestrator.evaluation.intervals import class_intervals, over_queries
    from orchestrator.evaluation.metrics import evaluate_queries

    given, among = split(rows, labels, queries)
    result = evaluate_queries(*given, **among, clustering=False)
    low, high = class_intervals(result)["map_at_r"]
    over_queries(result)
    return result.metrics | {"map_at_r low": low, "map_at_r high": high}


def peer(rows: Any, labels: Any, queries: int | None) -> dict[str, float]:
    """The library most of the field uses."""
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    given, among = split(rows, labels, queries)
    arrays = [torch.from_numpy(array) for array in (*given, *among.values())]
    include = ("precision_at_1", "r_precision", "mean_average_precision_at_r", "mean_average_precision")
    k = min(DEPTH, len(among.get("gallery", rows)) - (queries is None))
    result: dict[str, float] = AccuracyCalculator(include=include, k=k, device=torch.device("cpu")).get_accuracy(
        *arrays
    )
    return result


def approximate(rows: Any, labels: Any, queries: int | None) -> dict[str, float]:
    """Product codes in place of the flat index."""
    from orchestrator.evaluation.metrics import evaluate_embeddings

    given, among = split(rows, labels, queries)
    return evaluate_embeddings(*given, **among, clustering=False, approximate=True)


WAYS: dict[str, Callable[[Any, Any, int | None], dict[str, float]]] = {
    "bare": bare,
    "metrics": metrics,
    "table": table,
    "peer": peer,
    "approximate": approximate,
}


def measure(way: str, folder: Path, threads: int, queries: int | None) -> None:
    """In the child: one call, as one JSON line."""
    import faiss
    import torch

    import orchestrator.evaluation.metrics  # noqa: F401 (imports are not measured)

    if way == "peer":
        import pytorch_metric_learning.utils.accuracy_calculator  # noqa: F401

    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    rows, labels = np.load(folder / "rows.npy"), np.load(folder / "labels.npy")
    before = resident_memory()
    started = time.perf_counter(), time.process_time()
    found = WAYS[way](rows, labels, queries)
    seconds, processor = time.perf_counter() - started[0], time.process_time() - started[1]
    memory = (peak_memory() - before) / 1e9
    print(json.dumps({"seconds": seconds, "processor": processor, "memory": memory, "found": found}))


def measured(way: str, folder: str, threads: int, queries: int | None) -> dict[str, Any]:
    """What `measure` says in a process of its own, of the rows and labels in the folder."""
    command = [sys.executable, __file__, "--measure", way, folder, "--threads", str(threads)]
    command += ["--queries", str(queries)] if queries else []
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


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
    parser.add_argument("--queries", type=int, help="search for so many among the others; for all among all by default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=["bare", "metrics", "table", "peer"])
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure[0], Path(arguments.measure[1]), arguments.threads, arguments.queries)
        return
    classes = arguments.classes or round(arguments.items / 5.35)
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways}
    with tempfile.TemporaryDirectory() as folder:
        rows, labels = make(arguments.items, classes, arguments.dimensions)
        np.save(Path(folder) / "rows.npy", rows)
        np.save(Path(folder) / "labels.npy", labels)
        del rows
        for number in range(arguments.runs):
            for way in arguments.ways:
                results[way].append(measured(way, folder, arguments.threads, arguments.queries))
                print(f"run {number + 1}: {way} {results[way][-1]}", file=sys.stderr, flush=True)
    medians = {
        way: {key: statistics.median(one[key] for one in runs) for key in ("seconds", "processor", "memory")}
        for way, runs in results.items()
    }
    print(f"{arguments.items} x {arguments.dimensions}, {classes} classes, {arguments.threads} threads, medians")
    for way, one in medians.items():
        line = f"  {way:12s} {one['seconds']:8.1f} s  {one['processor']:8.1f} s of processors  {one['memory']:6.2f} GB"
        if "bare" in medians:
            ratios = [one[key] / medians["bare"][key] for key in ("seconds", "processor")]
            line += f"   {ratios[0]:.2f} x bare, {ratios[1]:.2f} of processors"
        print(line)
    record = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "measured": results}
    print(json.dumps(vars(arguments) | record))


if __name__ == "__main__":
    main()
