"""What feeds a GPU: photographs per second of one process, by its threads, and how long the interpreter's lock is held.

Three ways from JPEG to batches of crops, in turn: our threads step by step, as they were (and are where nothing can be
compiled); our threads with the compiled program; and torch's DataLoader with as many worker processes, on the same
images as files (ImageFolder). Each alone, and beside a loop that stands for a training: between two batches it calls
as many small operations of torch as a training step of ResNet-50 launches kernels (`--launches`).

Per photograph the processor's time is given, of all processes, which is what a core's rate follows from; and, with one
thread, the share of it in which the lock was held. For that a thread of C looks every 0.15 ms whether anybody holds it
(CPython 3.11 and a C compiler; not measured without).

    python benchmarks/feeding.py [--workers 2 4 8 16] [--rounds 5] [--images 2048] [--recipe NAME] [--decoded]
"""

import argparse
import contextlib
import ctypes
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch
from image_pipeline import make, processor
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from orchestrator.data import compiled, pipeline
from orchestrator.data.augmentations.crops import CROPS
from orchestrator.data.pace import usable_cores
from orchestrator.data.pipeline import Reader, Request
from orchestrator.data.store import Store

BATCH = 64
WAYS = ("step by step", "compiled", "DataLoader")
GPU = (2500, 3000)
"""Photographs of 224 pixels a second that ResNet-50 trains on in bf16 on an H100: an estimate, no GPU was at hand."""

SAMPLER = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
static void *(*holder)(void); static pthread_t thread; static volatile int running; static long looks, held;
static void *look(void *unused) {
    struct timespec pause = {0, 100000};
    while (running) {
        pause.tv_nsec = 100000 + (pause.tv_nsec * 7919L + 12345) % 100000;
        nanosleep(&pause, 0);
        looks++; held += holder() != 0;
    }
    return unused;
}
int begin(void) {
    holder = (void *(*)(void))dlsym(RTLD_DEFAULT, "_PyThreadState_UncheckedGet");
    looks = held = 0; running = 1;
    return !holder || pthread_create(&thread, 0, look, 0);
}
double end(void) { running = 0; pthread_join(thread, 0); return (double)held / looks; }
"""


def sampler(folder: Path) -> ctypes.CDLL | None:
    """A library that tells in which share of the time a thread holds the lock; None where it cannot."""
    if sys.version_info[:2] != (3, 11):
        return None  # later, each thread knows only whether itself holds it
    (folder / "lock.c").write_text(SAMPLER, "utf-8")
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        line = [
            "cc",
            "-O2",
            "-shared",
            "-fPIC",
            str(folder / "lock.c"),
            "-o",
            str(folder / "lock.so"),
            "-lpthread",
            "-ldl",
        ]
        subprocess.run(line, check=True, capture_output=True)
        found = ctypes.CDLL(str(folder / "lock.so"))
        found.end.restype = ctypes.c_double
        return None if found.begin() or found.end() is None else found
    return None


class Files(ImageFolder):  # type: ignore[misc]
    """The files of a folder, again and again, up to a number of them."""

    def __init__(self, path: Path, recipe: str, images: int) -> None:
        crop = CROPS[recipe]
        cut = (
            [transforms.RandomCrop(crop.size)]
            if crop.scale is None
            else [transforms.RandomResizedCrop(crop.size, crop.scale, crop.ratio)]
        )
        resize = [transforms.Resize(crop.shorter)] if crop.resize else []
        steps = [*resize, *cut, transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        super().__init__(str(path), transforms.Compose(steps))
        self.number = images

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index % len(self.samples))


@contextlib.contextmanager
def batches(way: str, store: Store, files: Path, recipe: str, workers: int, images: int) -> Iterator[Callable[[], Any]]:
    """A function that gives an epoch's batches."""
    if way == "DataLoader":
        loader: DataLoader[Any] = DataLoader(
            Files(files, recipe, images), BATCH, shuffle=True, num_workers=workers, persistent_workers=True
        )
        yield lambda: iter(loader)
        return
    order = np.random.default_rng(0).permutation(images) % len(store)
    program = (lambda: None) if way == "step by step" else compiled.program
    with mock.patch.object(pipeline, "program", program), Reader(store, augmentation=recipe, threads=workers) as reader:
        yield lambda: reader.read(Request(order[start : start + BATCH], 0) for start in range(0, images, BATCH))


def seconds_of_processor() -> float:
    """Of this process and its children."""
    children = psutil.Process().children(recursive=True)
    return time.process_time() + sum(sum(child.cpu_times()[:2]) for child in children)


def timed(epoch: Callable[[], Iterable[Any]], launches: int) -> tuple[float, float]:
    """Wall seconds, and those of the processor, of an epoch."""
    small = torch.zeros(16)
    began, used = time.perf_counter(), seconds_of_processor()
    for _ in epoch():
        for _ in range(launches):
            small.add_(1.0)
    return time.perf_counter() - began, seconds_of_processor() - used


def middle(values: list[float]) -> str:
    return " ".join([_short(statistics.median(values)), f"({_short(min(values))} to {_short(max(values))})"])


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2048, help="in an epoch")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--launches", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recipe", choices=CROPS, default="random_crop_224")
    parser.add_argument("--decoded", action="store_true", help="a store of decoded images, and no DataLoader")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ways = WAYS[:2] if arguments.decoded else WAYS
    found: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    shares: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        _, files, store, decoded = make(Path(folder), 256)
        look = sampler(Path(folder))
        for _ in range(arguments.rounds):
            # in turn, as the machine's speed drifts
            for workers, launches in itertools.product([1, *arguments.workers], [0, arguments.launches]):
                for way in ways:
                    with batches(
                        way, decoded if arguments.decoded else store, files, arguments.recipe, workers, arguments.images
                    ) as epoch:
                        for _ in itertools.islice(epoch(), 2):  # imports, processes, the first of everything
                            pass
                        looks = look if workers == 1 and not launches else None
                        if looks is not None:
                            looks.begin()
                        found.setdefault((way, workers, launches), []).append(timed(epoch, launches))
                        if looks is not None:
                            shares[way].append(looks.end())
    images = arguments.images
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, {usable_cores()} cores, load {os.getloadavg()[0]:.1f}; torch "
        f"{torch.__version__}; {arguments.recipe}, {'decoded' if arguments.decoded else 'JPEG'}, batches of {BATCH}, "
        f"{arguments.launches} launches a batch beside, {arguments.rounds} rounds in turn: medians (lowest to highest)"
    )
    for way in ways:
        used = [1e6 * cpu / images for _, cpu in found[way, 1, 0]]
        rate = [1e6 / one for one in used]
        print(f"\n{way}: {middle(used)} us of processor an image, {middle(rate)} images/s a core", end="")
        print("; cores for " + ", ".join(f"{gpu} images/s: {gpu / statistics.median(rate):.1f}" for gpu in GPU), end="")
        if way != "DataLoader" and shares[way]:
            lock = [share * one for share, one in zip(shares[way], used, strict=True)]
            most = 1e6 / statistics.median(lock)
            print(f"\n  lock held {middle([100 * share for share in shares[way]])}% of the time, ", end="")
            print(f"{middle(lock)} us an image: at most {most:.0f} images/s in a process", end="")
        print()
        for workers in (1, *arguments.workers):
            line = f"  {workers:3} workers"
            for launches in (0, arguments.launches):
                times, name = found[way, workers, launches], "beside the loop" if launches else "alone"
                line += f"   {name}: {middle([images / wall for wall, _ in times])} images/s"
                against = found["step by step", workers, launches]
                ratios = [other / wall for (wall, _), (other, _) in zip(times, against, strict=True)]
                line += f", {middle(ratios)} times step by step" if way != "step by step" else ""
            print(line)


if __name__ == "__main__":
    main()
