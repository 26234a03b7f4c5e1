"""The card of a data set as one self-contained page: its counts, ten classes at random, and, if asked for, the pictures
that a comparison of pixels takes for one another."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from orchestrator.data.card import DataCard
from orchestrator.data.splits import rows_for_testing
from orchestrator.data.store import Store
from orchestrator.report.html.rendering import render
from orchestrator.report.model_view import image_source, thumbnail
from orchestrator.storage.atomic import write_whole

CLASSES, OF_A_CLASS, CONFUSED = 10, 6, 10
SIDE = 96
SAMPLE = 500
"""Test images that the pixels of are compared; so many at most, whatever the size of the data set."""
PIXELS = 16
"""Each is compared as so many pixels in each direction."""


@dataclass(frozen=True)
class Thumbnail:
    source: str
    width: int
    height: int
    text: str

    @classmethod
    def of(cls, store: Store, row: int) -> "Thumbnail":
        small = thumbnail(store.image(row), SIDE)
        return cls(image_source(small), *small.size, store.class_names[store.labels[row]])


@dataclass(frozen=True)
class Confusions:
    """Of `sampled` images the `share` whose nearest is of another class, and the nearest such pairs."""

    sampled: int
    share: float
    pairs: list[tuple[int, int]]


def confusions(store: Store) -> Confusions:
    """Nearest neighbours by pixels, reduced to PIXELS x PIXELS and with mean 0, among SAMPLE test images: what an
    untrained baseline confuses first."""
    rows = rows_for_testing(store)
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, SAMPLE).astype(int))]
    images = (thumbnail(store.image(row), 4 * PIXELS).resize((PIXELS, PIXELS), Image.Resampling.BOX) for row in rows)
    pixels = np.stack([np.asarray(image, np.float32).ravel() for image in images])
    pixels -= pixels.mean(axis=1, keepdims=True)
    squares = (pixels**2).sum(axis=1)
    distances = squares[:, None] + squares[None] - 2 * pixels @ pixels.T
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argmin(axis=1)
    wrong = np.flatnonzero(store.labels[rows] != store.labels[rows[nearest]])
    ordered = wrong[np.argsort(distances[wrong, nearest[wrong]], kind="stable")]
    pairs = dict.fromkeys(tuple(sorted((int(rows[one]), int(rows[nearest[one]])))) for one in ordered)
    return Confusions(len(rows), len(wrong) / len(rows), [(one, other) for one, other in pairs][:CONFUSED])


def write_data_page(card: DataCard, store: Store, path: Path, *, confused: bool) -> None:
    """The page, whole or not at all; `confused`: with the pictures that are taken for one another (seconds)."""
    random_classes = np.random.default_rng(0).permutation(store.num_classes)[:CLASSES]
    classes = [
        [Thumbnail.of(store, int(row)) for row in np.flatnonzero(store.labels == label)[:OF_A_CLASS]]
        for label in random_classes
    ]
    confused_classes = confusions(store) if confused else None
    pairs = (
        [[Thumbnail.of(store, row) for row in pair] for pair in confused_classes.pairs]
        if confused_classes is not None
        else []
    )
    values = {"card": card, "classes": classes, "confusions": confused_classes, "pairs": pairs}
    write_whole(path, render("data.html", values, more="query_page").encode())
