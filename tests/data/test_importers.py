"""The importers, on small trees of each benchmark's layout, whole and broken."""

import errno
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from scipy.io import loadmat, savemat
from support.archive_trees import (
    CARS,
    INSHOP_SPLITS,
    LABELS,
    TABLE_SPLITS,
    cars_devkit,
    cars_folders,
    cars_old,
    cifar,
    cub,
    folders,
    inshop,
    nabirds,
    one,
    photo,
    publish,
    run,
    sop,
    table,
    text,
)
from support.output_schemas import conforms
from torchvision.datasets import CIFAR10, CIFAR100

from orchestrator.data import encoding, store
from orchestrator.data import prepare as prepare_module
from orchestrator.data.archives.catalog import ARCHIVES, OWN
from orchestrator.data.archives.listing import Count, Counts
from orchestrator.data.archives.own import read_csv as own_csv
from orchestrator.data.archives.own import read_folder
from orchestrator.data.catalog import datasets, open_dataset, overview
from orchestrator.data.prepare import prepare
from orchestrator.data.sources import read_source
from orchestrator.data.splits import class_split, rows_for_testing
from orchestrator.data.store import Store
from orchestrator.errors import DataError

# --- trees: two images of each class but for the last, which has one, unless labels (and splits) are given


class Tree(NamedTuple):
    """How to write one, and what the store made of it should be: labels, splits, class names."""

    importer: str
    write: Callable[[Path], None]
    labels: list[int]
    splits: list[str]
    names: list[str]
    counts: Counts | None = None


MIXED = ["train", "test", "train", "test", "train", "test", "train"]
COUNTS = Counts(Count(7, 4), first_half=4)


CAR_ORDER = [row for split in ("train", "test") for row in range(7) if MIXED[row] == split]


@pytest.fixture(autouse=True)
def _small_sets(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The trees' counts in place of the full sets'."""
    if request.node.get_closest_marker("slow"):
        return
    for tree in TREES.values():
        if tree.counts is not None:
            archive = replace(ARCHIVES[tree.importer], counts=tree.counts)
            monkeypatch.setitem(ARCHIVES, tree.importer, archive)


def split_folders(source: Path) -> None:
    names = ["auk", "bee", "cat", "dog"]
    for seed, label in enumerate(LABELS):
        photo(source / ("train" if label < 3 else "test") / names[label] / f"{seed}.png", seed)


SPLIT_COUNTS = {"train": Count(4, 2), "test": Count(3, 2)}
TREES = {
    "cub200": Tree("cub200", cub, LABELS, MIXED, ["001.Zebra_Finch", "002.Auk", "003.Gull", "004.Crow"], COUNTS),
    "nabirds": Tree(
        "nabirds",
        nabirds,
        LABELS,
        MIXED,
        ["Eider (Adult male)", "Crow", "Jay", "Raven"],
        Counts(Count(7, 4), dense=False),
    ),
    "cars-old": Tree("cars196", cars_old, LABELS, MIXED, CARS, COUNTS),
    "cars-devkit": Tree(
        "cars196", cars_devkit, [LABELS[i] for i in CAR_ORDER], [MIXED[i] for i in CAR_ORDER], CARS, COUNTS
    ),
    "cars-folders": Tree(
        "cars196", cars_folders, [LABELS[i] for i in CAR_ORDER], [MIXED[i] for i in CAR_ORDER], CARS, COUNTS
    ),
    "sop": Tree(
        "sop", sop, LABELS, ["train"] * 4 + ["test"] * 3, ["1", "2", "3", "4"], Counts(Count(7, 4), SPLIT_COUNTS)
    ),
    "inshop": Tree(
        "inshop",
        inshop,
        LABELS,
        INSHOP_SPLITS,
        ["id_00000002", "id_00000009", "id_00000030", "id_00007982"],
        Counts(Count(7, 4), {"train": Count(4, 2), "query": Count(1, 1), "gallery": Count(2, 2)}, dense=False),
    ),
    "cifar10": Tree(
        "cifar10",
        lambda source: cifar(source, CIFAR10, "labels"),
        [1, 0] * 6,
        ["train"] * 10 + ["test"] * 2,
        ["auk", "bee"],
        Counts(Count(12, 2), {"train": Count(10, 2)}),
    ),
    "cifar100": Tree(
        "cifar100",
        lambda source: cifar(source, CIFAR100, "fine_labels"),
        [1, 0] * 2,
        ["train"] * 2 + ["test"] * 2,
        ["auk", "bee"],
        Counts(Count(4, 2)),
    ),
    "folder": Tree("folder", folders, LABELS, ["train"] * 7, ["auk", "bee", "cat", "dog"]),
    "folder-splits": Tree(
        "folder", split_folders, [3, *LABELS[:-1]], ["test"] + ["train"] * 6, ["auk", "bee", "cat", "dog"]
    ),
    "csv": Tree("csv", table, LABELS, TABLE_SPLITS, ["2", "9", "10", "100"]),
}


class Made(NamedTuple):
    """A tree on disk, and a folder for data sets."""

    tree: Tree
    source: Path
    root: Path

    def prepare(self, **options: Any) -> Store:
        own = self.tree.importer in ("folder", "csv")
        return prepare(self.tree.importer, self.source, self.root, **({"name": "mine"} if own else {}) | options)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Made]:
    def write(name: str) -> Made:
        source = tmp_path / "source"
        TREES[name].write(source)
        publish(monkeypatch, source)
        return Made(TREES[name], source, tmp_path / "data")

    return write


# --- whole


@pytest.mark.parametrize("name", [name for name in TREES if not name.startswith("cifar")])
def test_layouts(make: Callable[[str], Made], name: str) -> None:
    made = make(name)
    store = made.prepare()
    assert store.labels.tolist() == made.tree.labels
    assert store.splits.tolist() == made.tree.splits
    assert store.class_names == made.tree.names
    store.verify()
    assert [child.name for child in made.root.iterdir()] == [store.name]  # no parts, no drafts
    assert store.manifest["source"].startswith(str(made.source))
    sources = store.column("source")
    origin = Path(store.manifest["source"])
    for row in range(len(store)):
        assert store.image_bytes(row) == ((origin.parent if name == "csv" else origin) / sources[row]).read_bytes()
        assert store.image(row).shape == (10, 12, 3)
    np.testing.assert_array_equal(store.column("original_size"), np.tile([12, 10], (7, 1)))
    opened = open_dataset(store.name, made.root)
    assert opened.manifest == store.manifest


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_kept_to_the_pixel(make: Callable[[str], Made], name: str) -> None:
    made = make(name)
    store = made.prepare()
    assert store.labels.tolist() == made.tree.labels
    assert store.splits.tolist() == made.tree.splits
    assert store.class_names == made.tree.names
    first = {"cifar10": "cifar-10-batches-py/data_batch_1", "cifar100": "cifar-100-python/train"}[name]
    pixels = pickle.loads((made.source / first).read_bytes())["data"].reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(store.images([0, 1]).numpy(), pixels)
    assert store.image_bytes(0).startswith(b"\x89PNG")
    assert store.manifest["settings"] == {"importer": name, "encoding": "PNG"}


@pytest.mark.parametrize("name", ["cub200", "cars-devkit", "sop", "inshop", "nabirds"])
def test_the_first_half_of_the_classes_trains(make: Callable[[str], Made], name: str) -> None:
    split = class_split(make(name).prepare(), validation_share=0, seed=0)
    assert split.train_classes.tolist() == [0, 1]
    assert (len(split.train), len(split.test)) == (4, 3)


def test_boxes_and_super_classes(make: Callable[[str], Made]) -> None:
    birds = make("nabirds").prepare()
    np.testing.assert_array_equal(birds.column("box")[6], [1, 2, 12, 6])
    assert birds.column("super_class").tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert birds.manifest["super_classes"] == ["Ducks, Geese", "Crows"]
    with pytest.raises(DataError, match="no column 'boxes' \\(did you mean 'box'"):
        birds.column("boxes")


@pytest.mark.parametrize("name", ["cars-old", "cars-devkit", "cars-folders"])
def test_boxes_of_cars_are_edges(make: Callable[[str], Made], name: str) -> None:
    np.testing.assert_array_equal(make(name).prepare().column("box"), np.tile([2, 1, 10, 9], (7, 1)))


def test_super_classes_of_products_and_clothes(make: Callable[[str], Made], tmp_path: Path) -> None:
    products = make("sop").prepare()
    assert products.manifest["super_classes"] == ["bicycle", "cabinet"]
    assert products.column("super_class").tolist() == [0] * 4 + [1] * 3
    inshop(tmp_path / "clothes")
    clothes = prepare("inshop", tmp_path / "clothes", tmp_path / "data")
    assert clothes.manifest["super_classes"] == ["WOMEN/Dresses", "WOMEN/Tees"]
    assert clothes.column("super_class").tolist() == [0] * 6 + [1]
    assert clothes.manifest["layout"] == "Img/img"


def test_large_clothes_are_taken_where_there_are_no_others(make: Callable[[str], Made]) -> None:
    made = make("inshop")
    (made.source / "Img" / "img").rename(made.source / "img_highres")
    assert made.prepare().manifest["layout"] == "img_highres"


def test_the_archives_own_folder_may_be_named_too(make: Callable[[str], Made], tmp_path: Path) -> None:
    made = make("cub200")
    inner = prepare("cub200", made.source / "CUB_200_2011", tmp_path / "inner")
    assert inner.manifest["digest"] == made.prepare().manifest["digest"]


# --- what becomes of an image


def decoded(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image


@pytest.mark.parametrize(("size", "scaled"), [((90, 60), (45, 30)), ((60, 91), (30, 46)), ((30, 300), (30, 300))])
def test_the_shorter_side_is_scaled_down_and_never_up(
    tmp_path: Path, size: tuple[int, int], scaled: tuple[int, int]
) -> None:
    store, data = one(tmp_path, size=size, size_kept=30)
    kept = decoded(store.image_bytes(0))
    assert (kept.size, kept.mode, kept.format) == (scaled, "RGB", "JPEG")
    assert (store.image_bytes(0) == data) == (size == scaled)
    assert store.column("original_size").tolist() == [list(size)]
    assert store.manifest["settings"] == {
        "importer": "folder",
        "encoding": "JPEG",
        "quality": 95,
        "size": 30,
        "resampling": "bicubic",
        "orientation": "applied",
        "transparency": "white",
    }


@pytest.mark.parametrize(("mode", "file"), [("L", "1.jpg"), ("CMYK", "1.jpg"), ("RGBA", "1.png"), ("L", "1.png")])
def test_every_image_becomes_rgb(tmp_path: Path, mode: str, file: str) -> None:
    store, data = one(tmp_path, mode=mode, file=file, size=(16, 12), transparency="dropped")
    kept = decoded(store.image_bytes(0))
    assert (kept.mode, kept.format, kept.size) == ("RGB", "JPEG", (16, 12))
    wanted = np.asarray(decoded(data).convert("RGB"), float)
    again = io.BytesIO()
    Image.fromarray(wanted.astype(np.uint8)).save(again, "JPEG", quality=95)
    np.testing.assert_array_equal(store.image(0), np.asarray(decoded(again.getvalue())))


def test_the_orientation_stays_as_stored(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to show
    store, data = one(tmp_path, size=(90, 60), size_kept=30, exif=exif, comment=b"made", orientation="stored")
    assert decoded(data).getexif()[0x0112] == 6
    kept = decoded(store.image_bytes(0))
    assert kept.size == (45, 30)
    assert not kept.getexif() and "comment" not in kept.info


def test_original_bytes(tmp_path: Path) -> None:
    store, data = one(tmp_path, size=(900, 600), original=True, mode="L")
    assert store.image_bytes(0) == data
    assert store.manifest["settings"] == {"importer": "folder", "encoding": "original"}


# --- broken


def edit(file: str, change: Callable[[str], str]) -> Callable[[Made], object]:
    def damage(made: Made) -> None:
        path = made.source / file
        changed = change(path.read_text())
        assert changed != path.read_text()
        path.write_text(changed)

    return damage


def remove(*files: str) -> Callable[[Made], object]:
    def damage(made: Made) -> None:
        for file in files:
            (made.source / file).unlink()

    return damage


def truncate(*files: str) -> Callable[[Made], object]:
    return lambda made: [(made.source / f).write_bytes((made.source / f).read_bytes()[:-60]) for f in files]


def swap(old: str, new: str) -> Callable[[str], str]:
    return lambda content: content.replace(old, new, 1)


CUB = "CUB_200_2011/"
AUK = CUB + "images/002.Auk/"
SOP = "Stanford_Online_Products/"
PARTITION = "Eval/list_eval_partition.txt"


def counts_of(importer: str, **changes: Any) -> Callable[[Made], object]:
    def damage(made: Made) -> None:
        ARCHIVES[importer] = replace(ARCHIVES[importer], counts=replace(ARCHIVES[importer].counts, **changes))

    return damage


def matlab(file: str, change: Callable[[Any], object]) -> Callable[[Made], object]:
    """Change the annotations of a MATLAB file."""

    def damage(made: Made) -> None:
        content = loadmat(made.source / file)
        change(content["annotations"][0])
        savemat(made.source / file, {key: value for key, value in content.items() if not key.startswith("__")})

    return damage


def wrong_car(file: str) -> Callable[[Made], object]:
    return matlab(file, lambda rows: rows[1].__setitem__("class", 9))


def twice(file: str, field: str) -> Callable[[Made], object]:
    return matlab(file, lambda rows: rows[1].__setitem__(field, rows[0][field]))


def relabel(file: str, key: str) -> Callable[[Made], object]:
    def damage(made: Made) -> None:
        batch = pickle.loads((made.source / file).read_bytes())
        batch[key][0] = 7
        (made.source / file).write_bytes(pickle.dumps(batch))

    return damage


TEE = "WOMEN/Tees/id_00007982/06_1_front.jpg"
BROKEN: list[tuple[str, Callable[[Made], object], str]] = [
    # files
    ("cub200", remove(AUK + "3.jpg", AUK + "4.jpg"), r"cub200: 2 of 7 images are missing in .*images/002.Auk/3.jpg, "),
    ("cub200", lambda made: (made.source / CUB / "images").rename(made.source / "x"), r"7 of 7 .* and 4 more; unpack"),
    ("cub200", remove(CUB + "bounding_boxes.txt"), r"bounding_boxes.txt: no such file; unpack the archive again"),
    ("cub200", remove(CUB + "images.txt"), r"no images.txt in it, nor in CUB_200_2011/"),
    ("cub200", truncate(AUK + "3.jpg"), r"1 of 7 images cannot be read: images/002.Auk/3.jpg \(.*truncated.*; unpack"),
    ("cub200", truncate(*(f"{AUK}{n}.jpg" for n in (3, 4))), r"2 of 7 .*Auk/3.jpg \(.*Auk/4.jpg \("),
    ("cub200", lambda made: (made.source / AUK / "3.jpg").write_bytes(b""), r"1 of 7 images cannot be read: .*3.jpg"),
    ("nabirds", remove("nabirds/hierarchy.txt"), "hierarchy.txt: no such file"),
    ("cars-old", remove("cars_annos.mat"), "none of the three layouts"),
    ("cars-old", remove("car_ims/000002.jpg"), "1 of 7 images are missing in .*: car_ims/000002.jpg;"),
    ("cars-old", truncate("cars_annos.mat"), "cars_annos.mat: not a complete MATLAB file"),
    ("cars-devkit", remove("cars_test_annos_withlabels.mat"), "cars_test_annos_withlabels.mat: no such file"),
    ("cars-devkit", remove("devkit/cars_train_annos.mat"), "devkit/cars_train_annos.mat: no such file"),
    ("cars-devkit", remove("cars_train/00001.jpg"), "1 of 7 .*: cars_train/00001.jpg;"),
    ("cars-folders", remove("anno_test.csv"), "anno_test.csv: no such file"),
    ("cars-folders", remove("car_data/car_data/train/Volvo 240/00000.jpg"), "1 of 7 .*Volvo 240/00000.jpg;"),
    ("sop", remove(SOP + "Ebay_test.txt"), "Ebay_test.txt: no such file"),
    ("sop", remove(SOP + "cabinet_final/6_0.JPG"), "1 of 7 .*: cabinet_final/6_0.JPG;"),
    ("inshop", remove(PARTITION), "no Eval/list_eval_partition.txt in it"),
    (
        "inshop",
        lambda made: (made.source / "Img").rename(made.source / "x"),
        "no folder of images; needed is one of Img/img",
    ),
    ("cifar10", remove("cifar-10-batches-py/data_batch_2"), "missing or not as published: data_batch_2; unpack"),
    ("cifar10", truncate("cifar-10-batches-py/test_batch"), "missing or not as published: test_batch"),
    ("cifar100", truncate("cifar-100-python/meta"), "missing or not as published: meta"),
    ("folder", lambda made: (made.source / "elk").mkdir(), r"elk: no images \(.jpg,.*every class needs one"),
    ("folder", truncate("bee/2.png"), "1 of 7 images cannot be read: bee/2.png"),
    ("csv", remove("pictures/2.jpg"), "mine: 1 of 7 images are missing in .*: pictures/2.jpg;"),
    ("csv", remove("list.csv"), "no CSV file in it"),
    ("csv", lambda made: text(made.source / "b.csv", "path,label"), "2 CSV files; name the one"),
    ("nabirds", remove("nabirds/images/0817/00000002-21dc-4d0c-bfe1-4cae3c85c829.jpg"), "1 of 7 images are missing"),
    ("inshop", remove(f"Img/img/{TEE}"), f"1 of 7 images are missing in .*: Img/img/{TEE}; unpack"),
    ("nabirds", truncate("nabirds/images/0817/00000002-21dc-4d0c-bfe1-4cae3c85c829.jpg"), "1 of 7 .*truncated.*unpack"),
    ("cars-old", truncate("car_ims/000002.jpg"), "1 of 7 images cannot be read: car_ims/000002.jpg .*truncated"),
    ("cars-devkit", truncate("cars_train/00001.jpg"), "1 of 7 images cannot be read: cars_train/00001.jpg .*truncated"),
    (
        "cars-folders",
        truncate("car_data/car_data/train/Volvo 240/00000.jpg"),
        "1 of 7 images cannot be read: car_data/car_data/train/Volvo 240/00000.jpg .*truncated",
    ),
    ("sop", truncate(SOP + "cabinet_final/6_0.JPG"), "1 of 7 images cannot be read: cabinet_final/6_0.JPG .*truncated"),
    ("inshop", truncate(f"Img/img/{TEE}"), f"1 of 7 images cannot be read: Img/img/{TEE} .*truncated"),
    ("csv", truncate("pictures/2.jpg"), r"list.csv: 1 of 7 images cannot be read: pictures/2.jpg .*remove their lines"),
    ("csv", remove("pictures/2.jpg"), r"replace these files, or remove their lines from .*/list.csv$"),
    ("folder", truncate("bee/2.png"), "cannot be read: bee/2.png .*; replace or remove these files$"),
    ("folder", lambda made: (made.source / "bee" / "x.jpg").symlink_to("none"), "bee/x.jpg; replace or remove these"),
    # counts
    ("cars-devkit", counts_of("cars196", first_half=5), "cars196, classes 1 to 2: 4 images, not 5 images"),
    ("cars-folders", edit("anno_test.csv", lambda t: t.partition("\n")[2]), "cars196: 6 images of 4 .*, not 7 images"),
    ("inshop", counts_of("inshop", splits={"query": Count(2, 2)}), "inshop, query: 1 images of 1 classes, not 2"),
    ("cifar100", counts_of("cifar100", total=Count(4, 100)), "cifar100: 4 images of 2 classes, not 4 images of 100"),
    (
        "cub200",
        edit(CUB + "images.txt", lambda t: t.replace("7 004.Crow/7.jpg\n", "")),
        "6 images of 3 .*, not 7 images of 4",
    ),
    (
        "cub200",
        counts_of("cub200", first_half=5),
        "cub200, classes 1 to 2: 4 images, not 5 images: .*download it again",
    ),
    ("cars-old", counts_of("cars196", total=Count(8, 4)), "cars196: 7 images of 4 classes, not 8 images of 4 classes"),
    (
        "sop",
        edit(SOP + "Ebay_train.txt", swap("4 2 2 bicycle_final/3_0.JPG\n", "")),
        "sop, train: 3 images of 2 classes, not 4",
    ),
    ("inshop", edit(PARTITION, swap("7\n", "9\n")), "7 images, but its first line says 9: the file is incomplete"),
    ("nabirds", counts_of("nabirds", total=Count(7, 5)), "nabirds: 7 images of 4 classes, not 7 images of 5"),
    (
        "cifar10",
        counts_of("cifar10", total=Count(60000, 10)),
        "12 images of 2 classes, not 60,000 images of 10",
    ),
    # class ids
    (
        "cub200",
        edit(CUB + "image_class_labels.txt", swap("3 2", "3 9")),
        "labels.txt line 3: class 9 is not in classes.txt",
    ),
    (
        "cub200",
        edit(CUB + "image_class_labels.txt", swap("3 2", "3 1")),
        "class 1, but the image is 002.Auk/3.jpg",
    ),
    ("cub200", edit(CUB + "image_class_labels.txt", swap("3 2", "3 two")), "class id 'two' should be a whole number"),
    ("nabirds", edit("nabirds/image_class_labels.txt", swap(" 817", " 820")), "class 820, but the image is 0817/"),
    ("nabirds", edit("nabirds/hierarchy.txt", swap("817 2\n", "")), "hierarchy.txt: no line for class 817"),
    (
        "nabirds",
        edit("nabirds/hierarchy.txt", swap("817 2", "817 3")),
        "line 4: parent class 3 is not in classes.txt",
    ),
    (
        "cars-folders",
        edit("anno_train.csv", swap("9,1\n", "9,5\n")),
        "line 1: class 5 is not in names.csv",
    ),
    (
        "sop",
        edit(SOP + "Ebay_test.txt", lambda t: t.replace(" 4 3 ", " 7 3 ")),
        "no class 4, but ids go up to 7",
    ),
    ("sop", edit(SOP + "Ebay_test.txt", swap(" 3 3 ", " 3 2 ")), "line 2: super_class_id 2 is bicycle elsewhere"),
    (
        "inshop",
        edit(PARTITION, swap("id_00007982 ", "item_7982 ")),
        "line 9: item_id 'item_7982' should be",
    ),
    ("cars-old", wrong_car("cars_annos.mat"), "cars_annos.mat, annotation 2: class 9 has no name; there are 4"),
    ("cars-devkit", wrong_car("devkit/cars_train_annos.mat"), "annos.mat, annotation 2: class 9 has no name"),
    (
        "inshop",
        edit(PARTITION, lambda t: t.replace("id_00007982  ", "id_00000002  ")),
        "inshop: 7 images of 3 classes, not 7 images of 4 classes",
    ),
    ("cifar10", relabel("cifar-10-batches-py/data_batch_2", "labels"), "not as published: data_batch_2"),
    ("cifar100", relabel("cifar-100-python/test", "fine_labels"), "not as published: test; unpack"),
    # identifiers that are there twice
    ("nabirds", edit("nabirds/images.txt", lambda t: t + t.partition("\n")[0] + "\n"), "images.txt line 8: .* twice"),
    ("cars-old", twice("cars_annos.mat", "relative_im_path"), "car_ims/000001.jpg listed twice; every image has one"),
    ("cars-devkit", twice("devkit/cars_train_annos.mat", "fname"), "cars_train/00001.jpg listed twice"),
    ("cars-folders", edit("anno_train.csv", lambda t: t + t.partition("\n")[0] + "\n"), "00000.jpg listed twice"),
    ("inshop", edit(PARTITION, lambda t: t.replace("7\n", "8\n", 1) + t.splitlines()[-1] + "\n"), "6_1_.*listed twice"),
    (
        "cub200",
        edit(CUB + "images.txt", swap("\n4 ", "\n3 ")),
        "line 4: '3' appears twice, first on images.txt line 3",
    ),
    (
        "cub200",
        edit(CUB + "image_class_labels.txt", swap("\n4 ", "\n3 ")),
        "line 4: '3' appears twice",
    ),
    ("cub200", edit(CUB + "images.txt", swap("/4.jpg", "/3.jpg")), "images/002.Auk/3.jpg listed twice"),
    ("cub200", edit(CUB + "bounding_boxes.txt", lambda t: t.partition("\n")[0]), "no line for image id 2 and 5 more"),
    (
        "sop",
        edit(SOP + "Ebay_test.txt", swap("\n5 ", "\n2 ")),
        "'2' appears twice, first on Ebay_train.txt line 3",
    ),
    ("csv", edit("list.csv", swap("pictures/1", "pictures/0")), "list.csv line 3: 'pictures/0.jpg' appears twice"),
    # what is written where
    (
        "cub200",
        edit(CUB + "images.txt", swap("3.jpg", "../../../3.jpg")),
        "'images/002.Auk/../../../3.jpg' leaves",
    ),
    (
        "sop",
        edit(SOP + "Ebay_train.txt", swap("bicycle_final/0", "/etc/0")),
        "line 2: path '/etc/0_0.JPG' leaves",
    ),
    ("csv", edit("list.csv", swap("pictures/0", "../0")), "list.csv line 2: path '../0.jpg' leaves the source folder"),
    ("csv", edit("list.csv", swap("pictures/0.jpg", "")), "list.csv line 2: path '' leaves"),
    ("cub200", edit(CUB + "train_test_split.txt", swap("1 1", "1 2")), "train_test_split.txt line 1: '2' should be 1"),
    ("cub200", edit(CUB + "bounding_boxes.txt", swap("1.0", "nan")), "bounding box 'nan' should be a number"),
    ("cub200", edit(CUB + "bounding_boxes.txt", swap("1.0", "")), "bounding_boxes.txt line 1: 4 fields, not 5"),
    ("cub200", lambda made: (made.source / CUB / "classes.txt").write_bytes(b"\xff\xfe"), "not a text file in UTF-8"),
    (
        "sop",
        edit(SOP + "Ebay_train.txt", swap("super_class_id", "kind")),
        "the header is 'image_id class_id kind path'",
    ),
    ("inshop", edit(PARTITION, swap("query", "qery")), "status 'qery' \\(did you mean 'query'"),
    ("cars-folders", edit("anno_train.csv", swap(",1\n", "\n")), "anno_train.csv line 1: 5 fields, not 6"),
    ("csv", edit("list.csv", swap("label", "lable")), "line 1: no column 'label' \\(did you mean 'lable'"),
    ("csv", edit("list.csv", swap("gallery", "galery")), "line 2: split 'galery' \\(did you mean 'gallery'"),
    ("csv", edit("list.csv", swap(",9,", ",,")), "line 4: no label"),
    ("csv", edit("list.csv", swap(",x\n", "\n")), "line 2: 3 fields, but the header has 4"),
    ("csv", edit("list.csv", lambda t: ""), "list.csv: empty; it needs columns path, label"),
    ("csv", edit("list.csv", lambda t: t.partition("\n")[0]), "list.csv: it lists no image"),
    ("csv", edit("list.csv", swap("split", "splt")), "line 1: column 'splt' \\(did you mean 'split'"),
    (
        "csv",
        lambda made: (made.source / "list.csv").write_bytes(b"path,label\na.jpg,cl\xe9\n"),
        "line 2: not in UTF-8",
    ),
]


@pytest.mark.parametrize(("name", "damage", "message"), BROKEN, ids=[f"{n}-{m}"[:60] for n, _, m in BROKEN])
def test_broken_sources_are_named_in_one_line(
    make: Callable[[str], Made], name: str, damage: Callable[[Made], object], message: str
) -> None:
    made = make(name)
    damage(made)
    with pytest.raises(DataError, match=message) as caught:
        made.prepare()
    assert "\n" not in str(caught.value)
    assert not list(made.root.glob("[!.]*"))


@pytest.mark.parametrize(
    ("importer", "options", "message"),
    [
        ("cub", {}, "no data set 'cub' to prepare \\(did you mean 'cub200'"),
        ("glyphs", {}, "glyphs: is drawn when first used"),
        ("folder", {}, "--name: missing"),
        ("folder", {"name": "cub200"}, "--name: 'cub200' is a known data set's own name"),
        ("folder", {"name": "folder"}, "--name: 'folder' is a known"),
        ("cub200", {"size": 0}, "--size 0: should be at least 1"),
        ("cub200", {"size": 64, "original": True}, "--size 64: --original keeps"),
        ("cifar10", {"size": 64}, "--size: cifar10 is kept as it is"),
        ("cifar10", {"original": True}, "--original: cifar10 is kept as it is"),
        ("cifar10", {"decoded": True}, "--decoded: cifar10 is kept as it is"),
        ("cub200", {"decoded": True, "original": True}, "--decoded: --original keeps"),
    ],
)
def test_bad_arguments(tmp_path: Path, importer: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare(importer, tmp_path, tmp_path / "data", **options)
    assert not list(tmp_path.iterdir())


def test_sources_that_are_no_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--source: no folder .*/none"):
        prepare("cub200", tmp_path / "none", tmp_path / "data")
    text(tmp_path / "CUB_200_2011.tgz", "")
    with pytest.raises(DataError, match="CUB_200_2011.tgz is a file; unpack it"):
        prepare("cub200", tmp_path / "CUB_200_2011.tgz", tmp_path / "data")
    (tmp_path / "empty").mkdir()
    for importer in (*ARCHIVES, *OWN):
        own: dict[str, Any] = {"name": "mine"} if importer in OWN else {}
        with pytest.raises(DataError, match=r"/empty: (no(ne)? .*|missing or not as published)") as caught:
            prepare(importer, tmp_path / "empty", tmp_path / "data", **own)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


# --- the disk


def test_unwritable_storage(make: Callable[[str], Made]) -> None:
    made = make("folder")
    made.root.write_text("a file in the way")
    with pytest.raises(DataError, match="data/mine: cannot be written .*; choose another storage folder"):
        made.prepare()


@pytest.mark.parametrize(("module", "function"), [(os, "fsync"), (store, "sync_to_disk")])
def test_a_full_disk_is_one_line(
    make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch, module: Any, function: str
) -> None:
    made = make("folder")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(module, function, full)
        with pytest.raises(DataError, match="cannot be written .*No space left on device.*; free some space"):
            made.prepare()
    assert not list(made.root.glob("[!.]*"))
    assert len(made.prepare()) == 7


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_arrow_tells_of_a_full_disk() -> None:
    """What `writing_problem` relies on."""
    with pytest.raises(OSError, match="No space") as caught, pa.OSFile("/dev/full", "wb") as file:
        file.write(b"x")
    assert caught.value.errno == errno.ENOSPC


# --- several processes, interruptions, repetitions


def test_the_number_of_processes_changes_nothing(make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("folder")
    one = made.prepare(name="one", size=8)
    whole = (made.source / "dog" / "6.png").read_bytes()
    truncate("dog/6.png")(made)
    monkeypatch.setattr(prepare_module, "PART", 2)
    monkeypatch.setattr(prepare_module, "PARTS", 1)
    seen: list[tuple[int, int]] = []
    with pytest.raises(DataError, match="1 of 7 images cannot be read: dog/6.png"):
        made.prepare(name="two", workers=2, size=8, progress=lambda done, total: seen.append((done, total)))
    assert sorted(seen) == seen and set(seen) == {(0, 7), (2, 7), (4, 7), (6, 7)}
    assert sorted(child.name for child in made.root.iterdir()) == [".two.parts", "one"]
    (made.source / "dog" / "6.png").write_bytes(whole)
    counted = Counted(monkeypatch)
    assert made.prepare(name="two", size=8).manifest["digest"] == one.manifest["digest"]
    assert counted.images == 1  # the other processes' work was taken


class Counted:
    """Encodes, counts, and stops after a number of parts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, parts: int | None = None) -> None:
        self.images = 0
        monkeypatch.setattr(prepare_module, "PART", 2)
        monkeypatch.setattr(prepare_module, "PARTS", 1)

        def write_part(part: Path, contents: Any, keeping: Any) -> Any:
            if parts is not None and self.images == 2 * parts:
                raise KeyboardInterrupt
            self.images += len(contents)
            return encoding.write_part(part, contents, keeping)

        monkeypatch.setattr(prepare_module, "write_part", write_part)


@pytest.mark.parametrize(
    ("between", "again"),
    [
        (lambda made: None, 3),
        (lambda made: photo(made.source / "auk" / "0.png", 99), 5),  # that part is made anew
        (lambda made: next((made.root / ".mine.parts").glob("00000-*")).write_bytes(b"damaged"), 5),
        (lambda made: (made.root / ".mine.parts" / "00002-0.tmp").write_text(""), 3),
    ],
)
def test_an_interrupted_preparation_goes_on(
    make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch, between: Callable[[Made], object], again: int
) -> None:
    made = make("folder")
    Counted(monkeypatch, parts=2)
    with pytest.raises(KeyboardInterrupt, match="^4 of 7 images are kept; run the same command again to continue$"):
        made.prepare()
    assert not list(made.root.glob("[!.]*"))
    between(made)
    counted = Counted(monkeypatch)
    seen: list[int] = []
    resumed = made.prepare(progress=lambda done, total: seen.append(done))
    assert counted.images == again and seen[0] == 7 - again
    assert resumed.manifest["digest"] == made.prepare(name="fresh").manifest["digest"]
    assert sorted(child.name for child in made.root.iterdir()) == ["fresh", "mine"]


def test_other_settings_begin_anew(make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("folder")
    Counted(monkeypatch, parts=2)
    with pytest.raises(KeyboardInterrupt):
        made.prepare()
    counted = Counted(monkeypatch)
    made.prepare(size=5)
    assert counted.images == 7


def test_one_at_a_time(make: Callable[[str], Made]) -> None:
    made = make("folder")

    def meanwhile(done: int, total: int) -> None:
        with pytest.raises(DataError, match="another process is preparing it"):
            made.prepare()

    assert len(made.prepare(progress=meanwhile)) == 7


def test_prepared_twice(make: Callable[[str], Made], capsys: pytest.CaptureFixture[str]) -> None:
    made = make("folder")
    command = ["datasets", "prepare", "folder", f"--source={made.source}", "--name=mine", "--workers=1"]
    command.append(f"--storage={made.root.parent}")
    for says in (r"mine: 7 images of 4 classes in ", r"mine: already exists: 7 images of 4 classes"):
        assert run(*command) == 0
        printed = capsys.readouterr()
        assert printed.out.startswith(says) and not printed.err
        assert ("\n  test: " in printed.out) == ("already" not in says)
    assert run(*command, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    conforms("datasets prepare", answer)
    assert (answer["made"], answer["images"], answer["splits"]) == (False, 7, {"train": 7})
    assert run(*command, "--size=8") == 2
    printed = capsys.readouterr()
    assert "data/mine: already exists, with size 256, not 8; delete that folder" in printed.err
    assert printed.err.count("\n") == 1
    elsewhere = made.source.parent / "elsewhere"
    elsewhere.mkdir()
    assert run(*[word.replace(str(made.source), str(elsewhere)) for word in command]) == 2
    assert f"already exists, made from {made.source}, not {elsewhere}" in capsys.readouterr().err


def test_a_refusal_leaves_nothing_behind(make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("folder")
    for file in made.source.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(DataError, match=r"7 of 7 images cannot be read: auk/0.png \(not an image\), "):
        made.prepare()
    assert not list(made.root.iterdir())


def test_a_small_set_keeps_what_was_done(make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("folder")
    encoded: list[int] = []

    def stopped(*arguments: Any) -> Any:
        if len(encoded) == 3:
            raise KeyboardInterrupt
        encoded.append(1)
        return encoding.write_part(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "write_part", stopped)
        with pytest.raises(KeyboardInterrupt, match="^3 of 7 images are kept"):
            made.prepare()
    seen: list[int] = []
    made.prepare(progress=lambda done, total: seen.append(done))
    assert seen[0] == 3


def test_a_csv_file_is_named(make: Callable[[str], Made], capsys: pytest.CaptureFixture[str]) -> None:
    made = make("csv")
    text(made.source / "other.csv", *(made.source / "list.csv").read_text().splitlines())
    command = ["datasets", "prepare", "csv", "--name=mine", f"--storage={made.root.parent}"]
    assert run(*command, f"--source={made.source / 'list.csv'}") == 0
    assert Store.open(made.root / "mine").manifest["source"] == str(made.source / "list.csv")
    assert overview(made.root)["mine"].how_to_get.endswith("/source/list.csv")
    for again in (made.source / "list.csv", made.source):
        assert run(*command, f"--source={again}") == 0
    capsys.readouterr()
    assert run(*command, f"--source={made.source.parent}") == 2
    assert f"made from {made.source / 'list.csv'}, not {made.source.parent}" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["list", "image"])
def test_no_pipe_is_waited_for(make: Callable[[str], Made], what: str) -> None:
    made = make("csv")
    path = made.source / ("list.csv" if what == "list" else "pictures/2.jpg")
    path.unlink()
    os.mkfifo(path)
    message = (
        "is a device, a pipe" if what == "list" else "1 of 7 images are missing in .*, or no regular files: pictures/2"
    )
    with pytest.raises(DataError, match=message):
        read_source("csv", made.source / "list.csv", "mine")


def test_a_split_of_every_class_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part, seed in (("train", 0), ("test", 10)):
        for name in "abcd":
            photo(tmp_path / "source" / part / name / "0.png", seed + ord(name))
    command = ["datasets", "prepare", "folder", f"--source={tmp_path / 'source'}", "--name=mine"]
    assert run(*command, f"--storage={tmp_path}") == 0
    told = "note: mine: its own split divides the images of every class, and is used by protocol=classification only"
    assert told in capsys.readouterr().err


def test_images_beside_the_classes_are_told(make: Callable[[str], Made], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("folder", "folder-splits"):
        made = make(name)
        parent = made.source / "train" if name == "folder-splits" else made.source
        for stray in ("a.jpg", "b.png", "c.jpg", "d.jpg", "._e.jpg", "notes.txt"):
            (parent / stray).write_bytes(b"never read")
        command = ["datasets", "prepare", "folder", f"--source={made.source}", f"--name={name}-1"]
        assert run(*command, f"--storage={made.root.parent}") == 0
        where = "train/" if name == "folder-splits" else ""
        beside = f"{where}a.jpg, {where}b.png, {where}c.jpg and 1 more"
        said = capsys.readouterr().err.splitlines()
        assert f"note: 4 images lie outside the class folders and are ignored: {beside}" in said
        shutil.rmtree(made.source)


@pytest.mark.parametrize("classes", [1, 3, 4])
def test_too_few_classes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], classes: int) -> None:
    folders(tmp_path / "source", [label for label in range(classes) for _ in range(2)])
    command = ["datasets", "prepare", "folder", f"--source={tmp_path / 'source'}", "--name=few"]
    assert run(*command, f"--storage={tmp_path}") == 0
    said = capsys.readouterr().err
    told = f"note: few: cannot be trained on: it needs 2 classes for training, and has {classes // 2} of "
    assert said.startswith(told) if classes < 4 else not said
    assert "classification" not in said  # it has no test images of its own
    few = Store.open(tmp_path / "data" / "few")
    assert set(few.labels[rows_for_testing(few)]) == set(range(classes // 2, classes))
    if classes < 4:
        with pytest.raises(DataError, match="few: cannot be trained on: it needs 2 classes for training"):
            class_split(few, validation_share=0.3, seed=0)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ("images/auk/1.png", "images/bee/1.png"),
            "one folder, images, which has 2 folders .* Then --source .*/images$",
        ),
        (("Training/auk/1.png", "Testing/bee/1.png"), "folders Testing, Training: parts are called train, test"),
        (("train/auk/1.png", "test/bee/1.png", "cat/1.png"), "folders test, train look like parts .* cat like classes"),
        (("auk/train/1.png", "auk/test/2.png", "bee/train/3.png"), "put the parts above the classes, as in test/auk"),
    ],
)
def test_another_layout_is_no_folder_of_classes(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    for number, file in enumerate(files):
        photo(tmp_path / file, number)
    with pytest.raises(DataError, match=message):
        read_folder(tmp_path)


@pytest.mark.parametrize("separator", [";", "\t", ","])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "cp1252"])
def test_tables_of_spreadsheets_are_read_or_refused(tmp_path: Path, separator: str, encoding: str) -> None:
    rows = [("path", "label"), ("a\\1.png", "é"), ("a\\2.png", "ü")]
    table = "\r\n".join(separator.join(row) for row in rows)
    (tmp_path / "list.csv").write_bytes(table.encode(encoding))
    if encoding == "cp1252":
        with pytest.raises(DataError, match=r"list.csv line 2: not in UTF-8, .* save it as 'CSV UTF-8'"):
            own_csv(tmp_path)
        return
    listing = own_csv(tmp_path)
    assert [picture.source for picture in listing.pictures] == ["a/1.png", "a/2.png"]
    assert list(listing.class_names.values()) == ["é", "ü"]


def test_other_words_of_spreadsheets(tmp_path: Path) -> None:
    text(tmp_path / "list.csv", "sep=;", "path;label", "1.png;a")
    assert own_csv(tmp_path).pictures[0].source == "1.png"
    text(tmp_path / "list.csv", "path,label", r"C:\photos\1.png,a")
    with pytest.raises(DataError, match=r"line 2: path 'C:.*' is absolute; give one relative to the table's folder"):
        own_csv(tmp_path)


def test_the_complete_layout_is_chosen(make: Callable[[str], Made], capsys: pytest.CaptureFixture[str]) -> None:
    made = make("cars-devkit")
    (made.source / "cars_annos.mat").write_bytes(b"of another download")
    command = ["datasets", "prepare", "cars196", f"--source={made.source}", f"--storage={made.root.parent}"]
    assert run(*command) == 0
    assert "note: read by the layout of devkit/cars_meta.mat" in capsys.readouterr().err
    made = make("inshop")
    (made.source / "Img" / "img").rename(made.source / "Img" / "img_highres")
    (made.source / "Img" / "img").mkdir()
    assert made.prepare().manifest["layout"] == "Img/img_highres"


def test_a_folder_of_validation_images_is_no_class(tmp_path: Path) -> None:
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="folders train, val: parts are called train, test, query, gallery"):
        read_folder(tmp_path)


# --- the command line


def test_interruption_at_the_command_line(
    make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make("csv")
    Counted(monkeypatch, parts=1)
    command = ["datasets", "prepare", "csv", f"--source={made.source / 'list.csv'}", "--name=mine", "--workers=1"]
    assert run(*command, f"--storage={made.root.parent}") == 130
    assert capsys.readouterr().err == "interrupted: 2 of 7 images are kept; run the same command again to continue\n"


def test_what_is_prepared_is_listed(make: Callable[[str], Made], capsys: pytest.CaptureFixture[str]) -> None:
    made = make("cub200")
    made.prepare()
    prepare("folder", made.source / "CUB_200_2011" / "images", made.root, name="mine")
    states = {name: info.state for name, info in overview(made.root).items()}
    assert states.pop("cub200") == states.pop("mine") == "prepared"
    (made.root / "broken").mkdir()
    text(made.root / "broken" / "manifest.json", "{}")
    assert overview(made.root)["broken"].state == "damaged"
    assert states.pop("glyphs") == "drawn when used"
    assert set(states.values()) == {"not prepared", "drawn when used"}
    storage = f"--storage={made.root.parent}"
    assert run("datasets", storage) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in datasets())
    assert "orchestrator datasets prepare NAME --source DIR" in listed
    assert run("datasets", "mine", storage, "--json") == 0
    assert json.loads(capsys.readouterr().out) | {"how_to_get": ""} == {
        "name": "mine",
        "summary": f"your own: folder {made.source}/CUB_200_2011/images",
        "images": 7,
        "classes": 4,
        "how_to_get": "",
        "state": "prepared",
    }
    assert run("datasets", "min", storage) == 2
    assert "unknown data set or command 'min' (did you mean 'mine'?)" in capsys.readouterr().err


def test_open_dataset_says_how_to_prepare(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'sop' is not prepared in .*/data: orchestrator datasets prepare sop "):
        open_dataset("sop", tmp_path / "data")
    with pytest.raises(DataError, match="unknown data set '../data'"):
        open_dataset("../data", tmp_path / "data")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_ctrl_c_in_a_terminal(tmp_path: Path) -> None:
    """A signal to the whole process group, workers included."""
    for label in range(4):
        photo(tmp_path / "source" / f"{label}" / "0.png", label, (700, 500))
        for number in range(1, 100):
            os.link(tmp_path / "source" / f"{label}" / "0.png", tmp_path / "source" / f"{label}" / f"{number}.png")
    command = [sys.executable, "-m", "orchestrator", "datasets", "prepare", "folder", "--source", "source"]
    command += ["--name", "mine", "--workers", "2", "--storage", "runs", "--allow-duplicates"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    parts = tmp_path / "runs" / "data" / ".mine.parts"
    while process.poll() is None and not list(parts.glob("*.arrow")):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    (line,) = (line for line in err.splitlines() if not line.endswith(" ..."))
    assert line.startswith("interrupted: ")
    assert not out and [child.name for child in parts.parent.iterdir()] == [".mine.parts"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("mine: 400 images of 4 classes in ")
    Store.open(parts.parent / "mine").verify()
