"""Small trees of each archive's layout, and stores made of them."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import CIFAR10, CIFAR100

from orchestrator.cli.main import main
from orchestrator.data.prepare import prepare
from orchestrator.data.store import Store


def photo(path: Path, seed: int, size: tuple[int, int] = (12, 10), mode: str = "RGB", **options: Any) -> bytes:
    """A made image on disk; its bytes."""
    image = Image.frombytes(mode, size, np.random.default_rng(seed).bytes(size[0] * size[1] * len(mode)))
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path.read_bytes()


def text(path: Path, *lines: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


LABELS = [0, 0, 1, 1, 2, 2, 3]


def mixed(labels: list[int]) -> list[str]:
    """Splits that part the images of every class."""
    return [("train", "test")[number % 2] for number in range(len(labels))]


def named(names: list[str], labels: list[int], other: str) -> list[str]:
    """A name for each class."""
    return [*names, *(f"{other} {k}" for k in range(len(names), max(labels) + 1))]


def birds(
    root: Path, ids: list[str], folders: list[str], class_ids: list[int], classes: list[str], labels: list[int]
) -> None:
    text(root / "images.txt", *(f"{i} {folders[k]}/{i}.jpg" for i, k in zip(ids, labels, strict=True)))
    text(root / "image_class_labels.txt", *(f"{i} {class_ids[k]}" for i, k in zip(ids, labels, strict=True)))
    text(root / "classes.txt", *classes)
    text(root / "train_test_split.txt", *(f"{i} {int(s == 'train')}" for i, s in zip(ids, mixed(labels), strict=True)))
    text(root / "bounding_boxes.txt", *(f"{i} 1.0 2.0 {5 + n} 4.0" for n, i in enumerate(ids)))
    for seed, (i, k) in enumerate(zip(ids, labels, strict=True)):
        photo(root / "images" / folders[k] / f"{i}.jpg", seed)
    (root / "images" / folders[0] / f"._{ids[0]}.jpg").write_bytes(b"macOS")


def cub(source: Path, labels: list[int] = LABELS) -> None:
    names = named(["Zebra_Finch", "Auk", "Gull", "Crow"], labels, "Bird")
    folders = [f"{n:03d}.{name.replace(' ', '_')}" for n, name in enumerate(names, start=1)]
    classes = [f"{n} {name}" for n, name in enumerate(folders, start=1)]
    ids = [str(n) for n in range(1, len(labels) + 1)]
    birds(source / "CUB_200_2011", ids, folders, list(range(1, len(names) + 1)), classes, labels)


def nabirds(source: Path, labels: list[int] = LABELS) -> None:
    ids = [f"{n:08x}-21dc-4d0c-bfe1-4cae3c85c829" for n in range(len(labels))]
    names = named(["Eider (Adult male)", "Crow", "Jay", "Raven"], labels, "Bird")
    class_ids = [295, 817, 820, *range(1010, 1007 + len(names))]
    parents = ["0 Birds", "1 Ducks, Geese", "2 Crows"]
    classes = [*parents, *(f"{number} {name}" for number, name in zip(class_ids, names, strict=True))]
    root = source / "nabirds"
    birds(root, ids, [f"{number:04d}" for number in class_ids], class_ids, classes, labels)
    text(root / "hierarchy.txt", "1 0", "2 0", "295 1", *(f"{number} 2" for number in class_ids[1:]))


CARS = ["Volvo 240", "Audi A4", "Ram C/V Cargo Van", "BMW M3"]


BOX = (3, 2, 10, 9)


def annotations(path: Path, files: list[str], rows: list[int], name: str, labels: list[int], **more: Any) -> None:
    """A MATLAB struct array, as the authors made them."""
    edges = [f"bbox_{edge}" for edge in ("x1", "y1", "x2", "y2")]
    keys = [name, *edges, "class", "test"]
    splits = mixed(labels)
    values = [(files[row], *BOX, labels[row] + 1, int(splits[row] == "test")) for row in rows]
    table = np.array([values], [(key, object) for key in keys]).reshape(1, -1)
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"annotations": table} | more)


def cars_old(source: Path, labels: list[int] = LABELS) -> None:
    files = [f"car_ims/{n:06d}.jpg" for n in range(1, len(labels) + 1)]
    names = np.array([named(CARS, labels, "Car")], object)
    rows = list(range(len(labels)))
    annotations(source / "cars_annos.mat", files, rows, "relative_im_path", labels, class_names=names)
    for seed, file in enumerate(files):
        photo(source / file, seed)


def rows_of(split: str, labels: list[int]) -> list[int]:
    return [row for row, its in enumerate(mixed(labels)) if its == split]


def cars_devkit(source: Path, labels: list[int] = LABELS) -> None:
    files = [f"{row + 1:05d}.jpg" for row in range(len(labels))]
    (source / "devkit").mkdir(parents=True)
    savemat(source / "devkit" / "cars_meta.mat", {"class_names": np.array([named(CARS, labels, "Car")], object)})
    for split, place in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        rows = rows_of(split, labels)
        annotations(source / place, files, rows, "fname", labels)
        for row in rows:
            photo(source / f"cars_{split}" / files[row], row)


def cars_folders(source: Path, labels: list[int] = LABELS) -> None:
    names = named(CARS, labels, "Car")
    text(source / "names.csv", *names)
    for split in ("train", "test"):
        rows = rows_of(split, labels)
        lines = [f"{row:05d}.jpg,{','.join(map(str, BOX))},{labels[row] + 1}" for row in rows]
        text(source / f"anno_{split}.csv", *lines)
        for row in rows:
            folder = names[labels[row]].replace("/", "-")
            photo(source / "car_data" / "car_data" / split / folder / f"{row:05d}.jpg", row)


def sop(source: Path, labels: list[int] = LABELS, train: int = 4) -> None:
    """`train`: so many of the images, the first, are for training."""
    root = source / "Stanford_Online_Products"
    kinds = ["bicycle" if k < 2 else "cabinet" for k in labels]
    rows = [f"{n + 1} {k + 1} {2 + (k >= 2)} {kinds[n]}_final/{n}_0.JPG" for n, k in enumerate(labels)]
    header = "image_id class_id super_class_id path"
    text(root / "Ebay_train.txt", header, *rows[:train])
    text(root / "Ebay_test.txt", header, *rows[train:])
    for n, kind in enumerate(kinds):
        photo(root / f"{kind}_final" / f"{n}_0.JPG", n)


INSHOP_SPLITS = ["train"] * 4 + ["query", "gallery", "gallery"]


def inshop(source: Path, labels: list[int] = LABELS, splits: list[str] = INSHOP_SPLITS) -> None:
    numbers = [2, 9, 30, 7982, *range(7983, 7979 + max(labels) + 1)]
    items = [f"id_{number:08d}" for number in numbers]
    files = [f"WOMEN/{'Dresses' if k < 3 else 'Tees'}/{items[k]}/0{n}_1_front.jpg" for n, k in enumerate(labels)]
    rows = [
        f"img/{file}{' ' * (70 - len(file))}{items[k]}  {split}"
        for file, k, split in zip(files, labels, splits, strict=True)
    ]
    text(source / "Eval" / "list_eval_partition.txt", len(labels), "image_name item_id evaluation_status", *rows)
    for seed, file in enumerate(files):
        photo(source / "Img" / "img" / file, seed)


def cifar(source: Path, kind: Any, label_key: str, labels: tuple[int, ...] = (1, 0), total: int | None = None) -> None:
    """`labels`: of each file, over and over where there are `total` images in all."""
    root = source / kind.base_folder
    root.mkdir(parents=True)
    rng = np.random.default_rng(0)
    parts = [*kind.train_list, *kind.test_list]
    for name, _ in parts:
        share = 5 if total and len(parts) == 2 and name == "train" else 1  # CIFAR-100 has one file for training
        of_file = list(np.resize(labels, share * total // 6)) if total else list(labels)
        batch = {"data": rng.integers(0, 256, (len(of_file), 3072), np.uint8), label_key: [int(k) for k in of_file]}
        (root / name).write_bytes(pickle.dumps(batch))
    names = named(["auk", "bee"], list(labels), "Thing")
    (root / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: names}))


def publish(monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    """Make torchvision take the files of a tree for the published ones."""
    for kind in (CIFAR10, CIFAR100):
        root = source / kind.base_folder

        def md5(name: str, root: Path = root) -> str:
            return hashlib.md5((root / name).read_bytes()).hexdigest()

        if root.exists():
            for listed in ("train_list", "test_list"):
                monkeypatch.setattr(kind, listed, [[name, md5(name)] for name, _ in getattr(kind, listed)])
            monkeypatch.setattr(kind, "meta", kind.meta | {"md5": md5(kind.meta["filename"])})


def folders(source: Path, labels: list[int] = LABELS) -> None:
    names = named(["auk", "bee", "cat", "dog"], labels, "thing")
    for seed, label in enumerate(labels):
        photo(source / names[label] / f"{seed}.png", seed)
    (source / ".cache").mkdir()


TABLE_SPLITS = ["gallery", "query", *["train"] * 5]


def table(source: Path, labels: list[int] = LABELS, splits: list[str] = TABLE_SPLITS) -> None:
    numbers = [2, 9, 10, *range(100, 98 + max(labels))]
    rows = [f"pictures/{n}.jpg,{numbers[k]},{splits[n]},x" for n, k in enumerate(labels)]
    text(source / "list.csv", "path,label,split,note", *rows)
    for n in range(len(labels)):
        photo(source / "pictures" / f"{n}.jpg", n)


def one(tmp_path: Path, **options: Any) -> tuple[Store, bytes]:
    """A store of one image, made with `options` of photo and of prepare; the image's own bytes."""
    mine = {key: options.pop(key) for key in ("size_kept", "original") if key in options}
    more = {key: options.pop(key) for key in ("orientation", "transparency") if key in options}
    data = photo(tmp_path / "source" / "a" / options.pop("file", "1.jpg"), 0, **options)
    kept = {"size": mine["size_kept"]} if "size_kept" in mine else {}
    store = prepare(
        "folder", tmp_path / "source", tmp_path / "data", name="one", original="original" in mine, **kept, **more
    )
    return store, data


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    return int(leaving.value.code or 0)
