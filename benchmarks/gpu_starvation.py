"""Whether the GPU waits for images: a network's training from the store, against the same loop on tensors in memory.

Made photographs (see `image_pipeline.py`) in a store, with the shorter side at 256; `fit()` trains on them, and again
with a reader that gives the same few batches, decoded beforehand, at once. The two take turns; a turn is timed from its
second window of steps on. The aim is a ratio of 0.9. Without a GPU it says so and ends.

    python benchmarks/gpu_starvation.py [--threads 8] [--precision bf16] [--rounds 3]
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from image_pipeline import make, processor

from orchestrator.config.training import Experiment, resolve_experiment
from orchestrator.data.pipeline import Reader, Request
from orchestrator.data.store import Store
from orchestrator.training import loop, splits

KEPT = 8  # batches in memory


class Kept(Reader):
    """The first few batches asked for, again and again."""

    def read(self, requests: Iterable[Request]) -> Iterator[tuple[Request, torch.Tensor]]:
        asked = iter(requests)
        first = list(itertools.islice(asked, KEPT))
        images = [images for _, images in super().read(first)]
        for number, request in enumerate(itertools.chain(first, asked)):
            yield request, images[number % KEPT]


def images_per_second(experiment: Experiment, store: Store, windows: int, reader: type[Reader]) -> float:
    """Of a training, its first window of steps left out, in which `Kept` reads what it keeps too."""
    with mock.patch.object(splits, "Reader", reader):
        split = splits.data_splits(experiment.training, store)[0]
        first, *timed = loop.fit(experiment, store, split, stop_after=windows + 1)
    images = experiment.training.batch_size * (timed[-1].step - first.step)
    return images / sum(window.seconds for window in timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--recipe", default="random_crop_224")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--threads", type=int, help="that prepare photographs; default: as a training chooses them")
    parser.add_argument("--steps", type=int, default=50, help="in a window")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try this script itself")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(json.dumps({"not run": "no GPU here: whether one would wait for images was not measured"}))
        return
    settings: dict[str, Any] = {
        "method": "proxy_anchor",
        "backbone": arguments.backbone,
        "weights": "random",
        "embedding_dim": 512,
        "augmentation": arguments.recipe,
        "classes_per_batch": 4,
        "images_per_class": 32 if arguments.device == "cuda" else 2,
        "validation_share": 0.0,
        "validate_every": f"{arguments.steps} steps",
        "epochs": 100_000,
        "precision": arguments.precision,
        "channels_last": True,
        "loader_threads": arguments.threads,
        "device": arguments.device,
    }
    experiment = resolve_experiment(settings, "gpu_starvation")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, _, store, _ = make(Path(folder), arguments.images)
        ways: dict[str, Callable[[], float]] = {
            name: lambda reader=reader: images_per_second(experiment, store, arguments.windows, reader)  # type: ignore[misc]
            for name, reader in (("store", Reader), ("memory", Kept))
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, way in ways.items():
                rates[name].append(way())
    ratios = [one / other for one, other in zip(rates["store"], rates["memory"], strict=True)]
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else "no GPU"
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {where}, {processor()}, {os.cpu_count()} cores; torch {torch.__version__}; "
        f"{arguments.backbone}, {arguments.precision}, batch {experiment.training.batch_size}, {arguments.recipe}, "
        f"{arguments.threads or 'as many as it takes'} threads, {arguments.rounds} rounds"
    )
    for name, found in rates.items():
        print(f"{name:8} {statistics.median(found):8.0f} images/s ({min(found):.0f} to {max(found):.0f})")
    print(f"store / memory {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    facts = {"backbone": arguments.backbone, "precision": arguments.precision, "batch": experiment.training.batch_size}
    figures = {f"images/s from {'the store' if name == 'store' else name}": rates[name] for name in rates}
    medians = {name: statistics.median(found) for name, found in figures.items()}
    print(json.dumps(facts | medians | {"store / memory": statistics.median(ratios), "rounds": len(ratios)}))


if __name__ == "__main__":
    main()
