"""Embeddings of image files by a trained model, prepared as the images of its evaluation are."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestrator.data.encoding import UnreadableImage
from orchestrator.data.pipeline import as_float
from orchestrator.data.preparation import Preparation
from orchestrator.errors import InputError
from orchestrator.method import Method
from orchestrator.training.device import choose_device, subnormals_flushed
from orchestrator.training.embed import retrieval_of
from orchestrator.training.learner import Learner
from orchestrator.training.memory import freed_memory_kept
from orchestrator.training.model_file import load_learner, saved_model

BATCH = 64
THREADS = 8


@dataclass(frozen=True)
class EmbeddedFiles:
    """The images that could be read, `embedding` (N, D) in float32 as the evaluation compares them, and why others were
    left out. Where the method ranks by rows of its own, `embedding` has an image's row as an item, and `query` its row
    as a query; else both are the same."""

    paths: list[Path]
    embedding: NDArray[np.float32]
    query: NDArray[np.float32]
    left_out: dict[Path, str]
    by_product: bool
    """Whether the largest inner product is the nearest; else the smallest distance is."""


def embed_files(
    model: Path,
    files: Sequence[Path],
    device: str = "auto",
    *,
    progress: Callable[[int, int], None] | None = None,
) -> EmbeddedFiles:
    """Embed image files, each prepared as the model's data set and its evaluation do (`Preparation`). Where they do not
    crop images must have one size.

    InputError if none can be read, or if they differ in size. `progress` is called with the images done and all.
    """
    learner, experiment = load_learner(model)
    chosen_device = choose_device(device)
    learner = learner.to(chosen_device).eval()
    training = experiment.training
    prepared = Preparation.of(saved_model(model), training.augmentation, training.image_size)

    def read(path: Path) -> Tensor | str:
        try:
            return prepared(path)
        except UnreadableImage as error:
            return str(error)

    if prepared.crop is not None:
        import torchvision.transforms.v2.functional  # noqa: F401  # by one thread, before several do at once

    paths, queries, items, left_out = [], [], [], {}
    shape: tuple[Path, torch.Size] | None = None
    done = 0
    with (
        freed_memory_kept(chosen_device.type),
        subnormals_flushed(),
        _quiet_pillow(),
        ThreadPoolExecutor(THREADS) as pool,
    ):
        for block in _blocks(files):
            images = []
            for path, image in zip(block, pool.map(read, block), strict=True):
                if isinstance(image, str):
                    left_out[path] = image
                    continue
                if shape is None:
                    shape = path, image.shape
                elif image.shape != shape[1]:
                    raise InputError(
                        f"{path}: is {_size(image.shape)}, and {shape[0]} is {_size(shape[1])}: a model that was "
                        f"trained with augmentation={training.augmentation} takes images of one size, that of its "
                        "data set"
                    )
                paths.append(path)
                images.append(image)
            if images:
                query, item = _rows(learner, torch.stack(images), chosen_device)
                queries.append(query)
                items.append(item)
            done += len(block)
            if progress is not None:
                progress(done, len(files))
    if not paths:
        first = next(iter(left_out.items()), None)
        raise InputError("no image to embed" + (f"; the first: {first[0]}: {first[1]}" if first else ""))
    by_product = type(learner.method).retrieval is not Method.retrieval
    return EmbeddedFiles(paths, np.concatenate(items), np.concatenate(queries), left_out, by_product)


@contextlib.contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Without Pillow's warnings, of damaged EXIF data and the like, which name no file: its pixels are read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


@torch.no_grad()
def _rows(learner: Learner, images: Tensor, device: torch.device) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rows of a block of images as queries and as items."""
    dtype = next(learner.parameters()).dtype
    outputs = learner.outputs(as_float(images.to(device), dtype))
    if type(learner.method).retrieval is Method.retrieval:
        rows = outputs["embedding"].float().cpu().numpy()
        return rows, rows
    pair = retrieval_of(learner.method, outputs)
    assert pair is not None
    return pair[0].float().numpy(), pair[1].float().numpy()


def _size(shape: torch.Size) -> str:
    return f"{shape[-1]} x {shape[-2]} pixels"


def _blocks(files: Sequence[Path]) -> Iterator[list[Path]]:
    rest = iter(files)
    for _ in range(math.ceil(len(files) / BATCH)):
        yield list(islice(rest, BATCH))
