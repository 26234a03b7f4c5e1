"""CIFAR-10 and CIFAR-100."""

from pathlib import Path
from typing import Any

from orchestrator.data.archives.listing import UNPACK_AGAIN, Archive, Count, Counts, Listing, Picture, archive_root
from orchestrator.errors import DataError


def read_cifar10(source: Path) -> Listing:
    """CIFAR-10, the Python version."""
    from torchvision.datasets import CIFAR10

    return _cifar(source, CIFAR10)


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
    summary="CIFAR-10, for tests on foreign images",
    origin="https://www.cs.toronto.edu/~kriz/cifar.html",
    read=read_cifar10,
    counts=Counts(Count(60_000, 10), {"train": Count(50_000, 10), "test": Count(10_000, 10)}),
    pixels=True,
)
CIFAR_100 = Archive(
    name="cifar100",
    summary="CIFAR-100, for tests on foreign images",
    origin="https://www.cs.toronto.edu/~kriz/cifar.html",
    read=read_cifar100,
    counts=Counts(Count(60_000, 100), {"train": Count(50_000, 100), "test": Count(10_000, 100)}),
    pixels=True,
)
