"""What `gpu.py` measures of trainings, each figure as a JSON line when it is there. With `--device cpu` in small.

    python benchmarks/gpu_trainings.py steps

- `everything`: each method takes steps in float32 and bf16 and validates, each backbone takes steps in bf16;
- `steps`:      milliseconds of a step and images a second of ResNet-50 and ViT-S, by precision, repeatable as a trial
                is or not, with images from the store and with the same few batches from memory;
- `validation`: 60,502 photographs embedded by ResNet-50, and their metrics, all among all, by faiss and by torch;
- `sharing`:    16 trainings, one, two and four at a time on the GPU, in processes that are there already.

Each training runs as a trial does: its operations in a fixed order (`repeatable`), unless a figure says otherwise.
"""

import argparse
import contextlib
import io
import math
import multiprocessing
import os
import tempfile
import time
import warnings
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from gpu_lines import Figures, measured

SMALL = {
    "classes_per_batch": 6,
    "images_per_class": 2,
    "embedding_dim": 32,
    "weights": "random",
    "validation_share": 0.3,
}
LARGE = {"classes_per_batch": 4, "weights": "random", "validation_share": 0.0, "augmentation": "random_crop_224"}
ITEMS, CLASSES = 60_502, 11_316
"""Of the test half of Stanford Online Products."""
SPAN = 1.5
"""Seconds that a rate is measured over, at least, after its first steps."""
PRECISIONS = ("float32", "tf32", "bf16")


def store_of(folder: Path, kind: str, images: int) -> Any:
    """A store of drawn pictures: "small", 20 a class and 32 pixels wide, or "photographs" of 8 classes, their shorter
    side at 256, of which each 32nd is the same, since drawing takes longer than decoding."""
    from PIL import Image

    from orchestrator.data.store import Row, Store, write_store

    path = folder / kind
    if path.exists():
        return Store.open(path)
    rng = np.random.default_rng(0)
    pictures, classes = [], 8
    for number in range(min(images, 32) if kind == "photographs" else images):
        content = io.BytesIO()
        if kind == "photographs":
            from image_pipeline import photograph

            size = (256, 341) if number % 2 else (341, 256)
            photograph(rng, *size).save(content, "JPEG", quality=90)
        else:
            base = np.random.default_rng(number // 20).integers(0, 256, (32, 32, 3))
            pixels = np.clip(base + rng.normal(0, 40, base.shape), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(content, "PNG")
        pictures.append(content.getvalue())
    if kind == "small":
        classes = math.ceil(images / 20)
    labels = [number % 8 if kind == "photographs" else number // 20 for number in range(images)]
    splits = ["test" if kind == "small" and label % 4 == 3 else "train" for label in labels]
    rows = [Row(pictures[number % len(pictures)], labels[number], splits[number]) for number in range(images)]
    names = [str(label) for label in range(classes)]
    return write_store(path, name=kind, channels=3, class_names=names, rows=rows, seed=0, settings={})


def trained(store: Any, settings: dict[str, Any], stop_after: int) -> tuple[dict[str, float], set[str]]:
    """The last validation of a training, run as a trial runs it, and its operations without a fixed order."""
    from orchestrator.config.training import resolve_experiment
    from orchestrator.training import loop, splits
    from orchestrator.training.repeatable import fixed_operations

    experiment = resolve_experiment(settings, "gpu")
    with fixed_operations(settings["device"]) as unordered, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = splits.data_splits(experiment.training, store)[0]
        *_, last = loop.fit(experiment, store, split, stop_after=stop_after)
    return last.metrics, set(unordered)


# Everything --------------------------------------------------------------------------------------------------------


def one_training(folder: str, kind: str, settings: dict[str, Any]) -> tuple[float, list[str]]:
    """Seconds of a short training in this process, and its operations without a fixed order. ValueError unless its loss
    is a number."""
    torch.set_num_threads(1)
    store = store_of(Path(folder), kind, 0)
    began = time.perf_counter()
    metrics, unordered = trained(store, settings, stop_after=1)
    if not math.isfinite(loss := metrics.get("train/loss", math.nan)):
        raise ValueError(f"its loss is {loss}")
    return time.perf_counter() - began, sorted(unordered)


def everything(device: str) -> None:
    """Of each training that fails a figure `...: failed` with the reason, in one line."""
    from orchestrator.method import registry
    from orchestrator.networks.backbones import BACKBONES

    small = {**SMALL, "validate_every": "3 steps", "epochs": 1, "device": device, "threads": 1}
    large = {**small, **LARGE, "method": "proxy_anchor", "images_per_class": 4, "precision": "bf16", "epochs": 1000}
    wanted: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in BACKBONES:
        wanted[f"{name}, bf16"] = "photographs", {**large, "backbone": name}
    for precision in ("float32", "bf16"):
        for name in sorted(registry()):
            wanted[f"{name}, {precision}"] = "small", {**small, "method": name, "precision": precision}
    if device == "cpu":
        wanted = {name: wanted[name] for name in ("pfml, float32", "proxy_anchor, float32")}
    figures, failed, unordered = Figures(), 0, {}
    processes = max(1, min(6, (os.cpu_count() or 1) // 2)) if device == "cuda" else 1
    with tempfile.TemporaryDirectory() as folder, spawned(processes) as pool:
        store_of(Path(folder), "small", 240)
        store_of(Path(folder), "photographs", 64)
        waiting = {pool.submit(one_training, folder, *each): name for name, each in wanted.items()}
        for done in as_completed(waiting):
            name = waiting[done]
            try:
                seconds, operations = done.result()
                figures[f"{name}: seconds"] = round(seconds, 2)
                if operations:
                    unordered[name] = operations
            except Exception as error:
                failed += 1
                figures[f"{name}: failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    figures |= {f"{name}: without a fixed order": ", ".join(operations) for name, operations in unordered.items()}
    figures["trainings that ran, and of how many"] = f"{len(wanted) - failed} of {len(wanted)}"


def spawned(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))


# Steps -------------------------------------------------------------------------------------------------------------


def rate(store: Any, settings: dict[str, Any], reader: Any) -> tuple[float, float]:
    """Images a second of a training, its first window of steps left out, and the GiB of the GPU that torch held."""
    from orchestrator.config.training import resolve_experiment
    from orchestrator.training import loop, splits
    from orchestrator.training.repeatable import fixed_operations

    experiment = resolve_experiment(settings, "gpu")
    cuda = settings["device"] == "cuda"
    order = fixed_operations(settings["device"], deterministic=experiment.training.deterministic is not False)
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with order, mock.patch.object(splits, "Reader", reader), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = splits.data_splits(experiment.training, store)[0]
        began = steps = 0.0
        with contextlib.closing(cast(Generator[Any, None, None], loop.fit(experiment, store, split))) as training:
            for window in training:
                now = time.perf_counter()
                if not began:
                    began, steps = now, window.step
                elif now - began >= SPAN or not cuda:
                    break
    images = experiment.training.batch_size * (window.step - steps)
    return images / (now - began), torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0


def steps(device: str) -> None:
    from gpu_starvation import Kept

    from orchestrator.data.pipeline import Reader

    cuda = device == "cuda"
    size = {"images_per_class": 32 if cuda else 1, "validate_every": "6 steps" if cuda else "1 step"}
    fixed = {**LARGE, **size, "method": "proxy_anchor", "embedding_dim": 512, "epochs": 100_000, "device": device}
    fixed["loader_threads"] = os.cpu_count() or 1
    figures = Figures()
    backbones, precisions = (("resnet50", "vit_small"), PRECISIONS) if cuda else (("small_cnn",), ("float32",))
    with tempfile.TemporaryDirectory() as folder:
        store = store_of(Path(folder), "photographs", 512 if cuda else 32)
        figures["images of a batch"] = 4 * size["images_per_class"]
        figures["threads that prepare photographs"] = fixed["loader_threads"]
        for repeat in (True, False):
            for backbone in backbones:
                for precision in precisions:
                    for source, reader in (("memory", Kept), ("store", Reader)) if repeat else (("memory", Kept),):
                        name = f"{backbone}, {precision}, {'repeatable' if repeat else 'in any order'}, from {source}"
                        more = {"backbone": backbone, "precision": precision, "deterministic": repeat}
                        _one_rate(figures, name, store, fixed | more, reader)
        last = {"backbone": backbones[0], "precision": precisions[-1], "channels_last": True}
        name = f"{backbones[0]}, {precisions[-1]}, channels last, repeatable, from memory"
        _one_rate(figures, name, store, fixed | last, Kept)


def _one_rate(figures: Figures, name: str, store: Any, settings: dict[str, Any], reader: Any) -> None:
    """A network that cannot be built or run here takes none of the others with it."""
    try:
        images, memory = rate(store, settings, reader)
    except Exception as error:
        figures[f"{name}: failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return
    batch = figures["images of a batch"]
    figures |= {f"{name}: images/s": images, f"{name}: ms a step": 1000 * batch / images}
    if memory and name.endswith("memory"):
        figures[f"{name}: GiB"] = memory


# Validation --------------------------------------------------------------------------------------------------------


def validation(device: str) -> None:
    """The network's side from memory and from the store, on as many of the photographs as SPAN allows; the metrics of
    made embeddings, as good as a trained network's."""
    from gpu_figures import searched
    from gpu_starvation import Kept

    from orchestrator.config.training import resolve_experiment
    from orchestrator.data.pipeline import Reader
    from orchestrator.training import splits
    from orchestrator.training.embed import run_network
    from orchestrator.training.model_file import new_learner

    cuda, figures = device == "cuda", Figures()
    threads = os.cpu_count() or 1
    settings = {**LARGE, "method": "proxy_anchor", "backbone": "resnet50" if cuda else "small_cnn", "device": device}
    settings |= {"embedding_dim": 512, "images_per_class": 2, "loader_threads": threads}
    experiment = resolve_experiment(settings, "gpu")
    few = 4096 if cuda else 32
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = store_of(Path(folder), "photographs", 2048 if cuda else 32)
        split = splits.data_splits(experiment.training, store)[0]
        learner = new_learner(experiment, store, split).to(device)
        here = torch.device(device)
        for source, reader in (("memory", Kept), ("store", Reader)):
            rows = np.arange(few) % len(store)
            with mock.patch.object(splits, "Reader", reader):
                for _ in range(2 if cuda else 1):  # the first warms up
                    images = splits.new_reader(store, experiment.training, device=here)
                    with images, torch.no_grad():
                        began = time.perf_counter()
                        run_network(learner, store, rows, here, images)["embedding"].cpu()
                        taken = time.perf_counter() - began
            figures[f"embedded from {source}: images/s"] = few / taken
            figures[f"embedded from {source}: seconds of {ITEMS:,}, from {few:,}"] = ITEMS * taken / few
        del learner
    found = searched(device, ITEMS, CLASSES, None) if cuda else searched(device, 2000, 400, None)
    ways = [value for name, value in found.items() if name in ("faiss: seconds", "torch: seconds")]
    whole = figures[f"embedded from store: seconds of {ITEMS:,}, from {few:,}"] + min(ways)
    figures["seconds of a validation, images from the store, metrics by the faster way"] = whole


# Sharing -----------------------------------------------------------------------------------------------------------


def sharing(device: str) -> None:
    count, at_once = (16, (1, 2, 4)) if device == "cuda" else (2, (1,))
    settings = {**SMALL, "method": "proxy_anchor", "device": device, "epochs": 1000, "threads": 1}
    settings["validate_every"] = "100 steps" if device == "cuda" else "2 steps"
    figures = Figures()
    figures["trainings"] = count
    with tempfile.TemporaryDirectory() as folder:
        store_of(Path(folder), "small", 240)
        for together in at_once:
            with spawned(together) as pool:
                for _ in as_completed([pool.submit(one_training, folder, "small", settings) for _ in range(together)]):
                    pass  # the processes have started, and the GPU has loaded its kernels
                began = time.perf_counter()
                each = [pool.submit(one_training, folder, "small", settings | {"seed": seed}) for seed in range(count)]
                for done in each:
                    done.result()
                figures[f"seconds, {together} at a time"] = time.perf_counter() - began


WHAT = {call.__name__: call for call in (everything, steps, validation, sharing)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    measured(WHAT[arguments.what], arguments.device)


if __name__ == "__main__":
    main()
