"""Photographs, whole and damaged, and trainings on them."""

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from orchestrator.config.training import resolve_experiment
from orchestrator.data.splits import class_split
from orchestrator.data.store import Row, Store, write_store
from orchestrator.storage.trial_folder import CHECKPOINT
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.loop import ValidationResult, fit

CLASSES, IMAGES = 12, 10


DAMAGED = 7
"""A row that cannot be decoded in the damaged store."""


def photograph(rng: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    """A smooth picture with some structure, (H, W, 3)."""
    small = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def encoded(pixels: NDArray[np.uint8], kind: str = "jpeg", mode: str | None = None, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(buffer, kind, **options)
    return buffer.getvalue()


def write_photographs(path: Path, damaged: tuple[int, ...] = ()) -> Store:
    """Photographs of many sizes, ten of each class."""
    rng = np.random.default_rng(0)

    def rows() -> Iterator[Row]:
        for row in range(CLASSES * IMAGES):
            height, width = (int(side) for side in rng.integers(60, 110, 2))
            data = encoded(photograph(rng, height, width))
            data = data[: len(data) // 2] if row in damaged else data
            yield Row(data, row // IMAGES, "train" if row // IMAGES < CLASSES // 2 else "test")

    names = [f"class {label}" for label in range(CLASSES)]
    return write_store(path, name="photographs", channels=3, class_names=names, rows=rows(), seed=0, settings={})


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_photographs(tmp_path_factory.mktemp("photographs") / "photographs")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_photographs(tmp_path_factory.mktemp("damaged") / "photographs", (DAMAGED,))


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("images")]


SAVED: list[tuple[str, str, tuple[int, int], dict[str, Any]]] = [
    ("large.jpg", "RGB", (375, 500), {"quality": 90}),
    ("wide.jpg", "RGB", (300, 601), {"quality": 80, "subsampling": 1}),
    ("small.jpg", "RGB", (200, 231), {}),
    ("small.png", "RGB", (255, 256), {}),
    ("grey.jpg", "L", (260, 300), {}),
    ("print.jpg", "CMYK", (290, 257), {}),
]


SETTINGS = {
    "method": "proxy_anchor",
    "augmentation": "random_crop_224",
    "degradation": "occlusion",
    "extra_augmentations": "color_jitter(brightness=0.4, p=0.7), random_erasing(p=0.5)",
    "embedding_dim": 4,
    "classes_per_batch": 2,
    "images_per_class": 2,
    "validate_every": "3 steps",
    "device": "cpu",
    "loader_threads": 2,
    "epochs": 2,
}


def train(
    folder: Path | None, path: Path, settings: dict[str, Any], stop_after: int = 2, take: int = 9
) -> list[ValidationResult]:
    store = Store.open(path)
    training = resolve_experiment(SETTINGS | settings, "test")
    split = class_split(store, validation_share=0.3, seed=0)
    validations = []
    for validation in fit(training, store, split, folder=folder, stop_after=stop_after):
        validations.append(validation)
        if len(validations) == take:
            break
    return validations


def told(validations: list[ValidationResult]) -> list[Any]:
    return [(v.number, v.step, v.metrics, v.finished) for v in validations]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_checkpoint(folder / CHECKPOINT)["model"]["learner"]  # type: ignore[no-any-return]
