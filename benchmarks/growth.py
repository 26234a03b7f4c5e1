"""How preparation and evaluation grow: 10,000, 100,000 and 1,000,000 items.

    python benchmarks/growth.py preparation [--items 10000 100000 1000000] [--pixels 48] [--workers 2]
    python benchmarks/growth.py evaluation [--items 10000 100000 1000000] [--queries 2000] [--dimensions 512]

Preparation: `datasets prepare folder` on made JPEG pictures, 100 to a class, each brought from `--pixels` to two thirds
of that, so decoded, resized and encoded anew. A thousand pictures are made, the files are hard links to these: what is
measured is the tool, with files that are in the system's memory.

Evaluation: all retrieval metrics of the rows that `evaluation.py` makes, by the exact and the approximate search, each
in a process of its own. Up to `--all` items each is a query among all others; beyond, the first `--queries` items are
searched for among the rest, and again a quarter of them, so that what is paid once shows. Nothing is extrapolated.
"""

import argparse
import os
import resource
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from evaluation import make, measured
from image_pipeline import photograph, processor
from process_memory import peak_memory

from orchestrator.data.prepare import prepare

PICTURES = 1000  # made; a file may have 65,000 links on common file systems
PER_CLASS = 100


def pictures(folder: Path, items: int, pixels: int) -> Path:
    """A folder per class."""
    rng = np.random.default_rng(0)
    made = folder / "made"
    made.mkdir()
    for number in range(PICTURES):
        photograph(rng, pixels, pixels).save(made / f"{number}.jpg", quality=90)
    for number in range(items):
        path = folder / "source" / f"{number // PER_CLASS:05}" / f"{number:07}.jpg"
        if number % PER_CLASS == 0:
            path.parent.mkdir(parents=True)
        os.link(made / f"{number % PICTURES}.jpg", path)
    return folder / "source"


def preparation(items: int, pixels: int, workers: int) -> None:
    """One line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = pictures(folder, items, pixels)
        used = _processors()
        began = time.perf_counter()
        store = prepare("folder", source, folder / "data", name="made", size=pixels * 2 // 3, workers=workers)
        seconds, processors = time.perf_counter() - began, _processors() - used
        size = sum(file.stat().st_size for file in store.path.rglob("*") if file.is_file())
        began = time.perf_counter()
        type(store).open(store.path)
        opened = time.perf_counter() - began
    print(
        f"{items:9,} images of {pixels} pixels: {seconds:7.1f} s, {items / seconds:6.0f} images/s, "
        f"{1000 * processors / items:.3f} ms of processors each; store {size / 1e9:.3f} GB, opened in {opened:.2f} s; "
        f"peak memory {peak_memory() / 2**30:.2f} GiB",
        flush=True,
    )


def _processors() -> float:
    """Seconds of this process and of the children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def evaluation(items: int, dimensions: int, queries: int | None, ways: list[str], threads: int) -> None:
    """A line per way and number of queries."""
    with tempfile.TemporaryDirectory() as name:
        rows, labels = make(items, round(items / 5.35), dimensions)
        np.save(Path(name) / "rows.npy", rows)
        np.save(Path(name) / "labels.npy", labels)
        del rows
        for count in (None,) if queries is None else (queries // 4, queries):
            for way in ways:
                one = measured(way, name, threads, count)
                what = "every item a query" if count is None else f"{count:,} queries among the rest"
                found = one["found"].get("approximate_recall")
                recall = "" if found is None else f", {found:.4f} of the neighbours found"
                score = f", MAP@R {one['found']['map_at_r']:.4f}" if "map_at_r" in one["found"] else ""
                print(
                    f"{items:9,} x {dimensions}, {what}, {way}: {one['seconds']:7.1f} s, {one['processor']:7.1f} s of "
                    f"processors, {one['memory']:.2f} GB{score}{recall}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("preparation", "evaluation"))
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--pixels", type=int, default=48)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--all", type=int, default=100_000, help="most items of which each is a query")
    parser.add_argument("--ways", nargs="+", default=["metrics", "approximate"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, {os.cpu_count()} cores", flush=True)
    for items in arguments.items:
        if arguments.what == "preparation":
            preparation(items, arguments.pixels, arguments.workers)
        else:
            queries = None if items <= arguments.all else arguments.queries
            evaluation(items, arguments.dimensions, queries, arguments.ways, arguments.threads)


if __name__ == "__main__":
    main()
