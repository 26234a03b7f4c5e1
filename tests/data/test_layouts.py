"""Every layout with the full set's own numbers of images and classes: prepared, trained on for two epochs, tested.

The images are made, 8 x 8 pixels (CIFAR's 32 x 32): a few files, linked under all the names.
"""

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import archive_trees as trees
from torchvision.datasets import CIFAR10, CIFAR100

from orchestrator.config.training import resolve_experiment
from orchestrator.data.archives.catalog import ARCHIVES
from orchestrator.data.manifest import SPLITS
from orchestrator.data.prepare import prepare
from orchestrator.data.splits import class_split
from orchestrator.execution.worker import run_test, run_training
from orchestrator.storage.trial_folder import BEST
from orchestrator.training.embed import evaluate_model_by_query

FILES = 64
SUBSET = 12
"""Classes of either half that are trained and tested on; the store has all of them."""


def spread(images: int, classes: int, first: int = 0) -> list[int]:
    """The labels of so many images of so many classes, class by class."""
    return sorted(first + number % classes for number in range(images))


def inshop(source: Path) -> None:
    train = spread(25_882, 3_997)
    query, gallery = spread(14_218, 3_985, 3_997), spread(12_612, 3_985, 3_997)
    splits = ["train"] * len(train) + ["query"] * len(query) + ["gallery"] * len(gallery)
    trees.inshop(source, train + query + gallery, splits)


class Layout(NamedTuple):
    """How to write a full set, and which of its images belong to which split of its own."""

    importer: str
    write: Callable[[Path], None]
    splits: dict[str, int]
    train: int
    """Images of the training half."""


CARS = spread(8_054, 98) + spread(8_131, 98, 98)
CARS_SPLITS = {"train": 8_093, "test": 8_092}
OWN = spread(240, 40)
LAYOUTS = {
    "cub200": Layout(
        "cub200",
        lambda source: trees.cub(source, spread(5_864, 100) + spread(5_924, 100, 100)),
        {"train": 5_894, "test": 5_894},
        5_864,
    ),
    "cars-old": Layout("cars196", partial(trees.cars_old, labels=CARS), CARS_SPLITS, 8_054),
    "cars-devkit": Layout("cars196", partial(trees.cars_devkit, labels=CARS), CARS_SPLITS, 8_054),
    "cars-folders": Layout("cars196", partial(trees.cars_folders, labels=CARS), CARS_SPLITS, 8_054),
    "sop": Layout(
        "sop",
        lambda source: trees.sop(source, spread(59_551, 11_318) + spread(60_502, 11_316, 11_318), 59_551),
        {"train": 59_551, "test": 60_502},
        59_551,
    ),
    "inshop": Layout("inshop", inshop, {"train": 25_882, "query": 14_218, "gallery": 12_612}, 25_882),
    "nabirds": Layout(
        "nabirds",
        lambda source: trees.nabirds(source, spread(48_562, 555)),
        {"train": 24_281, "test": 24_281},
        88 * 277,
    ),
    "cifar10": Layout(
        "cifar10",
        lambda source: trees.cifar(source, CIFAR10, "labels", tuple(range(10)), 60_000),
        {"train": 50_000, "test": 10_000},
        30_000,
    ),
    "cifar100": Layout(
        "cifar100",
        lambda source: trees.cifar(source, CIFAR100, "fine_labels", tuple(range(100)), 60_000),
        {"train": 50_000, "test": 10_000},
        30_000,
    ),
    "folder": Layout("folder", partial(trees.folders, labels=OWN), {"train": 240}, 120),
    "csv": Layout(
        "csv",
        lambda source: trees.table(source, OWN, ["train"] * 120 + ["query", "gallery"] * 60),
        {"train": 120, "query": 60, "gallery": 60},
        120,
    ),
}


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees get links to a few images in place of an image each."""
    files = [tmp_path / "images" / f"{number}.jpg" for number in range(FILES)]
    for number, file in enumerate(files):
        trees.photo(file, number, (8, 8))
    folders: set[Path] = set()

    def photo(path: Path, seed: int, *_: Any, **__: Any) -> None:
        if path.parent not in folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
        os.link(files[seed % FILES], path)

    monkeypatch.setattr(trees, "photo", photo)


@pytest.mark.slow
@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_full_number_of_classes_is_prepared_trained_on_and_tested(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = LAYOUTS[name]
    layout.write(tmp_path / "source")
    trees.publish(monkeypatch, tmp_path / "source")
    own: dict[str, Any] = {} if layout.importer in ARCHIVES else {"name": "mine", "allow_duplicates": True}
    store = prepare(layout.importer, tmp_path / "source", tmp_path / "data", workers=2, **own)
    assert store.manifest["splits"] == layout.splits
    if layout.importer in ARCHIVES:
        assert (len(store), store.num_classes) == ARCHIVES[layout.importer].counts.total
    split = class_split(store, validation_share=0, seed=0)
    assert (len(split.train), len(split.test)) == (layout.train, len(store) - layout.train)
    assert not set(split.train_classes) & set(split.test_classes)
    assert split.train_classes.max() < split.test_classes.min()

    large = layout.importer == "cifar10"  # 6,000 images a class: two classes each to train and to test, none held out
    subset = 2 if large else min(SUBSET, store.num_classes // 2)
    settings = {
        "method": "proxy_anchor",
        "dataset": store.name,
        "class_subset": subset,
        "classes_per_batch": 2,
        "images_per_class": 16,
        "embedding_dim": 8,
        "augmentation": "none",
        "epochs": 2,
        "lr": 1e-3,
        "validation_share": 0.0 if large else 0.4,
        "device": "cpu",
    }
    validations = list(
        run_training(resolve_experiment(settings, "trial"), data=tmp_path / "data", folder=tmp_path / "run")
    )
    assert [validation.number for validation in validations] == [1, 2]
    for validation in validations:
        assert all(math.isfinite(value) for value in validation.metrics.values()), validation.metrics
        assert large or 0 <= validation.metrics["val/map_at_r"] <= 1
    assert validations[0].metrics["train/loss"] != validations[1].metrics["train/loss"]
    tested = run_test(resolve_experiment(settings, "trial"), data=tmp_path / "data", folder=tmp_path / "run")
    assert all(math.isfinite(value) for value in tested.values()), tested
    low, high = (tested[f"recall_at_1_over_queries_{end}"] for end in ("low", "high"))
    assert low <= tested["recall_at_1"] <= high

    if large:
        return
    rows = class_split(store, validation_share=0, seed=0, class_subset=subset).test
    found = evaluate_model_by_query(tmp_path / "run" / BEST, store, rows, "cpu")
    against = store.splits[rows] == "query" if "query" in layout.splits else np.ones(len(rows), bool)
    assert len(found.queries) == against.sum() > 0
    assert set(store.splits) == {split for split in SPLITS if split in layout.splits}
    assert found.metrics["map_at_r"] == pytest.approx(tested["map_at_r"], abs=1e-9)
