"""Sources as they come: folders that cannot be read, names in other encodings, odd tables, turned TIFFs; and a
preparation that ended too early, or whose source was changed since."""

import csv
import json
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.archive_trees import photo, run, text
from support.own_folders import classes

from orchestrator.cli.best import _folder_of
from orchestrator.data import encoding
from orchestrator.data import prepare as module
from orchestrator.data.archives.listing import Leftovers, images_of, images_under, path_inside
from orchestrator.data.archives.own import read_csv, read_folder
from orchestrator.data.card import CARD, PAGE, DataCard
from orchestrator.data.catalog import overview
from orchestrator.data.duplicates import FILE as DUPLICATES
from orchestrator.data.encoding import Keeping
from orchestrator.data.manifest import MANIFEST
from orchestrator.data.prepare import prepare
from orchestrator.data.remote import _bytes_of
from orchestrator.errors import DataError, InputError
from orchestrator.storage.places import Places

LATIN = os.fsdecode(b"\xe9")


def test_a_folder_that_cannot_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the refusal is the system's own, made."""
    classes(tmp_path / "photos")
    photo(tmp_path / "photos" / "a" / "sub" / "9.png", 9)
    scandir = os.scandir

    def refusing(path: str | Path) -> object:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(PermissionError):
        list(images_under(tmp_path / "photos", Leftovers()))
    with pytest.raises(InputError, match=r"FOLDER: .*sub: cannot be read \(.*ermission"):
        images_of(tmp_path / "photos")
    with pytest.raises(DataError, match="sub: cannot be read"):
        prepare("folder", tmp_path / "photos", tmp_path / "data", name="mine")
    assert not (tmp_path / "data" / "mine").exists()


@pytest.mark.parametrize("source", [None, "packages"])
def test_what_reads_a_drawing_is_asked_for_first(
    source: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packages").mkdir()
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="emoji: .*resvg"):
        prepare("emoji", source and tmp_path / source, tmp_path / "data")


def test_a_left_out_file_may_have_any_name(tmp_path: Path) -> None:
    classes(tmp_path / "photos")
    for ending in (b"\xe9", b"\xe8"):
        (tmp_path / "photos" / "a" / os.fsdecode(b"note." + ending)).write_text("x")
    store = prepare("folder", tmp_path / "photos", tmp_path / "data", name="mine", allow_left_out=True)
    assert store.manifest["left_out"] == {".\ufffd": 2}


def test_names_that_become_one_are_refused(tmp_path: Path) -> None:
    classes(tmp_path / "photos")
    for number, name in enumerate((b"\xe9.png", b"\xe8.png")):
        photo(tmp_path / "photos" / "a" / os.fsdecode(name), 20 + number)
    with pytest.raises(DataError, match="two files are called a/\ufffd.png, in an encoding other than UTF-8: rename"):
        prepare("folder", tmp_path / "photos", tmp_path / "data", name="mine")


def test_a_source_is_the_same_by_whatever_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / f"photos{LATIN}"
    classes(source)
    prepare("folder", source, tmp_path / "data", name="mine")
    assert len(prepare("folder", source, tmp_path / "data", name="mine"))
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert len(prepare("folder", f"../{source.name}", tmp_path / "data", name="mine"))
    (tmp_path / "link").symlink_to(source)
    assert len(prepare("folder", tmp_path / "link", tmp_path / "data", name="mine"))
    with pytest.raises(DataError, match="--source: missing"):
        prepare("folder", None, tmp_path / "data", name="mine")


def test_an_interrupted_end_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the store is in its place: the list of copies, the parts, the card and its page."""
    classes(tmp_path / "photos")
    photo(tmp_path / "photos" / "a" / "again.png", 0, (24, 20))
    command = ["datasets", "prepare", "folder", f"--source={tmp_path / 'photos'}", "--name=mine"]
    command += [f"--storage={tmp_path}", "--allow-duplicates"]

    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_finish", interrupted)
        assert run(*command) == 130
    folder = tmp_path / "data" / "mine"
    assert folder.exists() and not (folder / DUPLICATES).exists() and list((tmp_path / "data").glob(".mine.parts/*"))
    assert run(*command) == 0
    assert (folder / DUPLICATES).exists() and (folder / CARD).exists() and (folder / PAGE).exists()
    assert not list((tmp_path / "data").glob(".mine.parts/*.arrow*")) and not list((tmp_path / "data").glob("*.csv"))


def test_a_source_that_lost_images_is_not_accepted(tmp_path: Path) -> None:
    classes(tmp_path)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("?/*.png"))
    text(tmp_path / "list.csv", "path,label", *(f"{name},{name[0]}" for name in names))
    prepare("csv", tmp_path / "list.csv", tmp_path / "data", name="mine")
    (tmp_path / names[0]).unlink()
    with pytest.raises(DataError, match="already exists, and what it was made of cannot be read any more: .* missing"):
        prepare("csv", tmp_path / "list.csv", tmp_path / "data", name="mine")
    (tmp_path / "list.csv").unlink()
    assert len(prepare("csv", tmp_path / "list.csv", tmp_path / "data", name="mine")) == len(names), "none is there"


@pytest.mark.parametrize(
    "parts", [("train", "eval"), ("train", "eval", "holdout", "extra"), ("training", "extra"), ("train", "evaluation")]
)
def test_parts_of_other_names_are_no_classes(parts: tuple[str, ...], tmp_path: Path) -> None:
    for number, part in enumerate(parts):
        photo(tmp_path / part / "auk" / "1.png", number)
    with pytest.raises(DataError, match="parts"):
        read_folder(tmp_path)


def test_a_class_may_be_called_as_a_part(tmp_path: Path) -> None:
    """The vehicle."""
    for number, name in enumerate(("train", "bus", "car")):
        photo(tmp_path / name / ("red" if name == "bus" else "") / "1.png", number)
    assert set(read_folder(tmp_path).class_names.values()) == {"train", "bus", "car"}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kept", ["applied", "stored"])
def test_a_turned_tiff_is_told_and_kept_as_asked(orientation: int, kept: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 9, 3), np.uint8)
    exif = Image.Exif()
    exif[encoding.ORIENTATION] = orientation
    results = []
    for name in ("1.tif", "1.png"):
        Image.fromarray(pixels).save(tmp_path / name, exif=exif)
        results.append(encoding._encode(str(tmp_path / name), Keeping(6, orientation=kept)))
    (tiff, of_tiff), (png, of_png) = results
    assert (tiff.orientation, tiff.width, tiff.height) == (png.orientation, png.width, png.height)
    assert tiff.orientation == orientation and np.array_equal(np.asarray(of_tiff), np.asarray(of_png))


@pytest.mark.parametrize("content", ['{"settings": {}, "images": "abc"}', "null", "3.5", "[]"])
def test_one_odd_manifest_is_damaged_alone(content: str, tmp_path: Path) -> None:
    classes(tmp_path / "photos")
    prepare("folder", tmp_path / "photos", tmp_path / "data", name="mine")
    (tmp_path / "data" / "odd").mkdir()
    (tmp_path / "data" / "odd" / MANIFEST).write_text(content)
    rows = overview(tmp_path / "data")
    assert (rows["odd"].state, rows["mine"].state) == ("damaged", "prepared")


@pytest.mark.parametrize("change", [{"images": None}, {"licences": [{}]}, {"class_sizes": 3}])
def test_a_card_that_cannot_be_shown_is_none(change: dict[str, object], tmp_path: Path) -> None:
    classes(tmp_path / "photos")
    card = DataCard.of(store := prepare("folder", tmp_path / "photos", tmp_path / "data", name="mine"))
    (store.path / CARD).write_text(json.dumps(card.plain))
    assert DataCard.read(store.path) is not None
    (store.path / CARD).write_text(json.dumps(card.plain | change))
    assert DataCard.read(store.path) is None


def test_a_tables_lines_are_counted_from_its_first(tmp_path: Path) -> None:
    text(tmp_path / "list.csv", "sep=;", "path;label", "1.png;a", "2.png;")
    with pytest.raises(DataError, match="list.csv line 4: no label"):
        read_csv(tmp_path / "list.csv")


def test_a_tables_names_may_be_composed_otherwise_than_the_files(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "\u00e9")
    photo(tmp_path / f"{decomposed}.png", 0)
    with (tmp_path / "list.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["path", "label"], ["\u00e9.png", "a"]])
    (picture,) = read_csv(tmp_path / "list.csv").pictures
    assert picture.source == f"{decomposed}.png"


def test_a_label_of_many_digits_is_a_name(tmp_path: Path) -> None:
    photo(tmp_path / "1.png", 0)
    text(tmp_path / "list.csv", "path,label", f"1.png,{'9' * 5000}")
    assert list(read_csv(tmp_path / "list.csv").class_names.values()) == ["9" * 5000]


@pytest.mark.parametrize("path", [".", "", "..", "/a", "a/../b"])
def test_a_path_is_below_its_source(path: str) -> None:
    with pytest.raises(DataError, match="line 3: path '.*' leaves the source folder"):
        path_inside(path, "line 3")


def test_a_fetch_that_ended_before_its_manifest_begins_again(tmp_path: Path) -> None:
    assert _bytes_of(tmp_path / MANIFEST) is None
    (tmp_path / MANIFEST).write_bytes(b"{}")
    assert _bytes_of(tmp_path / MANIFEST) == b"{}"


def test_best_reads_the_folder_again_that_a_data_set_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its labels may have been corrected; of another folder of the name, it says which is taken."""
    monkeypatch.chdir(tmp_path)
    classes(tmp_path / "photos")
    places = Places(tmp_path / "runs")
    prepare("folder", tmp_path / "photos", places.data, name="photos")
    assert _folder_of("photos", places) == Path("photos") and capsys.readouterr().err == ""
    (tmp_path / "icons").mkdir()
    assert _folder_of("icons", places) is None
    assert "'icons' is the data set of this name; for the folder here: orchestrator best ./icons" in (
        capsys.readouterr().err
    )
