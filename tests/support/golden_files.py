"""Where the recorded texts lie, and what is replaced in them."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from orchestrator.data.store import Row, Store, write_store

GOLDENS = Path(__file__).parents[1] / "goldens"


CLASSES, IMAGES, SIZE = 12, 6, 16


def patterns(path: Path) -> Store:
    """A data set of coarse patterns under noise, each class its own, as PNG: its pixels are the same everywhere."""

    def rows() -> Iterator[Row]:
        for row in range(CLASSES * IMAGES):
            label = row // IMAGES
            coarse = np.random.default_rng(label).integers(0, 70, (4, 4)).repeat(SIZE // 4, 0).repeat(SIZE // 4, 1)
            noise = np.random.default_rng(1000 + row).integers(0, 180, (SIZE, SIZE))
            buffer = io.BytesIO()
            Image.fromarray((coarse + noise).astype(np.uint8)).save(buffer, "png")
            yield Row(buffer.getvalue(), label, "train" if label < CLASSES * 2 // 3 else "test")

    names = [f"pattern {label}" for label in range(CLASSES)]
    return write_store(path, name="patterns", channels=1, class_names=names, rows=rows(), seed=0, settings={})
