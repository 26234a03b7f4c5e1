"""The data set of emoji: from packages of a registry, or a folder of them, to a store with licences and vendors."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.archive_trees import run
from support.registry import Registry, fetched, served, tarball

from orchestrator import registries
from orchestrator.data import prepare as prepare_module
from orchestrator.data.archives.catalog import ARCHIVES
from orchestrator.data.archives.emoji import EMOJI, SETS, read_emoji
from orchestrator.data.archives.listing import Count, Counts
from orchestrator.data.card import DataCard
from orchestrator.data.catalog import check_prepared, open_dataset, overview
from orchestrator.data.prepare import prepare
from orchestrator.data.splits import class_split
from orchestrator.errors import DataError
from orchestrator.registries import NpmTarball, fetch

VENDORS = [package.package.rpartition("/")[2] for package in SETS]
SIGNS = ("apple", "bell", "cat", "dog")
LEFT_OUT = ("flag-peru", "cat-low", "two-oclock", "one-thirty", "keycap-1", "hand-dark-skin-tone", "regional-a")
KEPT = ("speaker-low-volume", "white-flag")
"""Names that are alike but for their place in the name."""


def icons(vendor: int) -> dict[str, Any]:
    """Each sign is a disc of its own colour on nothing; the last vendor's are wide and begin left of the middle."""
    wide = vendor == len(VENDORS) - 1
    width, height = (40, 20) if wide else (16, 16)

    def disc(place: int) -> dict[str, Any]:
        body = f'<circle cx="{width / 2 - 10 * wide}" cy="{height / 2}" r="5" fill="#{place:02x}{16 * vendor:02x}40"/>'
        return {"body": body} | ({"left": -10, "width": 40} if wide else {})

    names = [*SIGNS, *KEPT, *LEFT_OUT, *(["rare"] if vendor < 6 else [])]
    if vendor == 0:
        names.remove("dog")
    return {"icons": {name: disc(9 * place) for place, name in enumerate(names)}, "width": 16, "height": height}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(registries, "WAIT", 0.01)
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    with served() as registry:
        monkeypatch.setenv("npm_config_registry", registry.address)
        yield registry


@pytest.fixture
def sets(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> list[NpmTarball]:
    """The nine packages, made small and published there."""
    pytest.importorskip("resvg_py", reason="the package resvg-py is missing")
    made = []
    for number, package in enumerate(SETS):
        licence = {"title": "MIT", "spdx": "MIT", "url": "http://licence"}
        info = {"name": f"Set {number}", "author": {"name": "Someone"}, "license": licence}
        content = tarball({"icons.json": icons(number), "info.json": info})
        made.append(registry.publish(package.package, package.version, content))
    small = replace(EMOJI, packages=tuple(made), read=partial(read_emoji, sets=made), counts=Counts(Count(53, 6)))
    monkeypatch.setitem(ARCHIVES, "emoji", small)
    return made


def test_the_table_is_of_nine_packages_with_whole_digests() -> None:
    assert len(SETS) == len({package.package for package in SETS}) == 9
    assert all(len(bytes.fromhex(package.sha512)) == 64 for package in SETS)
    assert EMOJI.counts.total == Count(6_582, 860)


def test_it_is_fetched_drawn_and_split(
    sets: list[NpmTarball], registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match="'emoji' is not prepared in .*: orchestrator datasets prepare emoji "):
        check_prepared("emoji", tmp_path / "data")
    assert run("datasets", "prepare", "emoji", f"--storage={tmp_path}", "--workers=1") == 0
    out, err = capsys.readouterr()
    assert f"fetching 9 packages from {registry.address} into {tmp_path}/cache/packages (1 MB, once)\n" in err
    assert "image sizes: all 112 x 112 pixels\n" in out
    assert "emoji: 53 images of 6 classes" in out and "  licences: MIT: Set 0 by Someone, Set 1 by" in out
    store = open_dataset("emoji", tmp_path / "data")
    assert store.class_names == sorted([*SIGNS, *KEPT])
    counts = dict(zip(store.class_names, np.bincount(store.labels), strict=True))
    assert counts["dog"] == 8 and counts["cat"] == 9
    assert store.column("vendor")[store.labels == 0].tolist() == VENDORS
    assert store.column("source")[0] == f"{VENDORS[0]}/apple"
    assert store.manifest["licences"][3] == {
        "part": VENDORS[3],
        "licence": "MIT",
        "address": "http://licence",
        "attribution": "Set 3 by Someone",
    }
    card = DataCard.read(store.path)
    assert card is not None and card.licences == store.manifest["licences"]
    assert "resvg-py" in store.manifest["versions"]
    for row in range(9):  # apple, by all vendors
        pixels = store.image(row)
        assert pixels.shape == (112, 112, 3)
        assert pixels[56, 56].tolist() == [0, 16 * row, 64] and (pixels[0] == 255).all()
    split = class_split(store, validation_share=0, seed=0)
    assert (len(split.train_classes), len(split.test_classes)) == (3, 3)

    registry.files, registry.requests = {}, []
    assert run("datasets", "prepare", "emoji", f"--storage={tmp_path}") == 0
    assert "already exists" in capsys.readouterr().out and registry.requests == []
    assert run("datasets", "prepare", "emoji", f"--storage={tmp_path}", f"--source={tmp_path / 'cache/packages'}") == 0


def test_a_folder_of_the_packages_needs_no_registry(sets: list[NpmTarball], registry: Registry, tmp_path: Path) -> None:
    fetch(*sets)
    folder = (tmp_path / "cache" / "packages").rename(tmp_path / "brought")
    registry.files = {}
    store = prepare("emoji", folder, tmp_path / "data")
    assert len(store) == 53 and not (tmp_path / "cache" / "packages").exists()
    (folder / sets[4].filename).unlink()
    with pytest.raises(DataError, match=rf"brought: no {sets[4].filename}: npm pack @iconify-json/{VENDORS[4]}@"):
        prepare("emoji", folder, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_set_that_is_missing_or_another_one_leaves_nothing(
    sets: list[NpmTarball], registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"/{sets[8].package}/-/{sets[8].filenames[1]}"
    whole = registry.files.pop(address)
    assert run("datasets", "prepare", "emoji", f"--storage={tmp_path}") == 2
    assert (
        f"error: {sets[8].filename}: {registry.address} answers 404 (Not Found); or: orchestrator datasets prepare "
        "emoji --source DIR, with the files of `npm pack NAME@VERSION` in DIR\n"
    ) in capsys.readouterr().err
    registry.files[address] = whole[:-1] + b"?"
    assert run("datasets", "prepare", "emoji", f"--storage={tmp_path}") == 2
    assert "it is another file, or damaged; it was not kept" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    registry.files[address], registry.requests = whole, []
    assert len(prepare("emoji", None, tmp_path / "data")) == 53
    assert len(registry.requests) == 1, "what was whole is not fetched again"


def test_other_counts_are_told(sets: list[NpmTarball], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHIVES, "emoji", replace(ARCHIVES["emoji"], counts=EMOJI.counts))
    with pytest.raises(DataError, match="emoji: 53 images of 6 classes, not 6,582 images of 860 classes"):
        prepare("emoji", None, tmp_path / "data")


def test_without_what_draws_nothing_is_fetched(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare_module, "find_spec", lambda name: None)
    assert run("datasets", "prepare", "emoji", f"--storage={tmp_path}") == 2
    needs = "this needs the package resvg_py, which is not installed: uv pip install resvg-py"
    assert f"error: emoji: {needs}\n" in capsys.readouterr().err and registry.requests == []
    with pytest.raises(DataError, match="--source: missing; give the folder of the unpacked archive"):
        prepare("cub200", None, tmp_path / "data")
    assert "prepare emoji: fetched from the npm registry, 14 MB" in overview(tmp_path)["emoji"].how_to_get


@pytest.mark.slow
def test_the_true_sets_are_as_they_were(tmp_path: Path) -> None:
    """Of the cache, or fetched: 14 MB."""
    pytest.importorskip("resvg_py", reason="the package resvg-py is missing")
    listing = read_emoji(fetched(*SETS))
    assert Count(len(listing.pictures), len(listing.class_names)) == EMOJI.counts.total
    licences = "Apache-2.0 Apache-2.0 CC-BY-SA-4.0 CC-BY-4.0 CC-BY-4.0 CC-BY-SA-4.0 MIT Apache-2.0 CC-BY-4.0"
    assert [licence.licence for licence in listing.licences] == licences.split()
    pixels = listing.pictures[0].pixels.pixels
    assert pixels.shape == (112, 112, 3) and 0 < pixels.mean() < 255
