"""One training by several numbers of processes in turn, beside the same training by one process.

    python benchmarks/elastic.py [--processes 8 3 16] [--classes 10] [--images 5] [--precision float64]

Each group of processes (gloo, one thread each, on this machine) begins from the checkpoint of the one before, and ends
after `--validations`. The batch of classes x images is shared by all of a group, and need not be a multiple. Given are
the largest difference between the two curves, in any metric of any validation, that of the weights at the end, and the
seconds of each group, its start included. Exit code 1 if a metric differs by more than `--tolerance`.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.data.splits import class_split
from orchestrator.storage.trial_folder import CHECKPOINT
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.distributed import process_group
from orchestrator.training.loop import fit

PATIENCE = 600.0
"""Seconds that a group may take."""
SETTINGS: dict[str, Any] = {
    "method": "contrastive",
    "references": "batch+memory",
    "memory_start": 2,
    "memory_size": 96,
    "dataset": "glyphs-small",
    "backbone": "small_cnn",
    "weights": "random",
    "embedding_dim": 16,
    "augmentation": "affine",
    "validate_every": "3 steps",
    "epochs": 100,
    "lr": 1e-3,
    "ema_decay": 0.9,
    "threads": 1,
    "device": "cpu",
}
Curve = list[tuple[int, dict[str, float]]]


def train(folder: str, data: str, settings: dict[str, Any], until: int, stop_after: int) -> Curve:
    """The curve up to validation `until` of a training with `stop_after` of them."""
    store, curve = open_dataset("glyphs-small", Path(data)), []
    split = class_split(store, validation_share=0.3, seed=0)
    experiment = resolve_experiment(SETTINGS | settings, "benchmark")
    for validation in fit(experiment, store, split, folder=Path(folder), stop_after=stop_after):
        curve.append((validation.number, validation.metrics))
        if validation.number == until:
            break
    return curve


def take_part(rank: int, world: int, rendezvous: str, answers: Any, *training: Any) -> None:
    """One process of a group; the first answers with its curve."""
    with process_group(rank, world, Path(rendezvous)):
        curve = train(*training)
        if rank == 0:
            answers.put(curve)


def train_by(world: int, rendezvous: str, *training: Any) -> Curve:
    """The same training by a group of processes of its own."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["orchestrator.training.loop"])
    answers = context.Queue()
    words = [(rank, world, rendezvous, answers, *training) for rank in range(world)]
    processes = [context.Process(target=take_part, args=one, daemon=True) for one in words]
    for process in processes:
        process.start()
    curve: Curve = answers.get(timeout=PATIENCE)
    for process in processes:
        process.join(PATIENCE)
    return curve


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[8, 3, 16])
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--validations", type=int, default=2, help="of each group")
    parser.add_argument("--precision", default="float64")
    parser.add_argument("--tolerance", type=float, default=1e-9)
    parser.add_argument("--data", help="folder of data sets")
    arguments = parser.parse_args(words)
    settings = {
        "classes_per_batch": arguments.classes,
        "images_per_class": arguments.images,
        "precision": arguments.precision,
    }
    stop_after, groups = arguments.validations * len(arguments.processes), []
    with tempfile.TemporaryDirectory() as folder:
        data = arguments.data or f"{folder}/data"
        open_dataset("glyphs-small", Path(data))
        alone = train(f"{folder}/one", data, settings, stop_after, stop_after)
        curve: Curve = []
        for turn, world in enumerate(arguments.processes, 1):
            began = time.monotonic()
            until = turn * arguments.validations
            curve = train_by(world, f"{folder}/meeting-{turn}", f"{folder}/many", data, settings, until, stop_after)
            groups.append({"processes": world, "until": until, "seconds": round(time.monotonic() - began, 1)})
        first, second = (
            load_checkpoint(Path(folder) / name / CHECKPOINT)["model"]["learner"] for name in ("one", "many")
        )
    if [number for number, _ in alone] != [number for number, _ in curve]:
        raise RuntimeError(f"the curves have other validations: {len(alone)} and {len(curve)}")
    pairs = list(zip(alone, curve, strict=True))
    difference = max(abs(mine[name] - its[name]) for (_, mine), (_, its) in pairs for name in mine)
    weights = max(float((first[name].double() - second[name].double()).abs().max()) for name in first)
    report = {"batch": arguments.classes * arguments.images, "precision": arguments.precision, "groups": groups}
    report |= {"validations": len(curve), "largest_difference": difference, "of_weights": weights}
    print(json.dumps({**report, "loss": [round(metrics["train/loss"], 6) for _, metrics in curve]}, indent=2))
    return int(difference > arguments.tolerance)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
