"""Copies are found by what the images show, counted, named, and refused where they make a number wrong."""

import csv
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from imagehash import phash
from PIL import Image
from support import made_searches
from support.archive_trees import run
from support.own_folders import classes
from support.pictures import picture

from orchestrator.data.duplicates import NEAR, near_pairs
from orchestrator.data.looks import SIDE, perceptual_hashes
from orchestrator.data.prepare import prepare
from orchestrator.data.remarks import remarks
from orchestrator.data.store import Store
from orchestrator.errors import DataError
from orchestrator.report.learning import told_beside


def halves(source: Path) -> Path:
    """Four classes of three pictures, the first two of which train."""
    for label, name in enumerate("abcd"):
        for number in range(3):
            picture(source / name / f"{number}.png", 3 * label + number)
    return source


def parts(source: Path) -> Path:
    """Query and gallery of two classes, and two for training."""
    for number, place in enumerate(
        ("train/a/0", "train/a/1", "train/b/0", "train/b/1", *("query/c/0", "gallery/c/1", "query/d/0", "gallery/d/1"))
    ):
        picture(source / f"{place}.png", number)
    return source


def without_metadata(source: Path, file: str, copy: str) -> None:
    """The same pixels in another file."""
    with Image.open(source / file) as image:
        image.save(source / copy, compress_level=1)


def as_bitmap(source: Path, file: str, copy: str) -> None:
    """The same picture in another format, which is kept as JPEG; the PNG is kept as it is."""
    with Image.open(source / file) as image:
        image.save(source / copy)


def lying(source: Path, file: str, copy: str) -> None:
    """The same picture, stored on its side."""
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(source / file) as image:
        image.transpose(Image.Transpose.ROTATE_90).save(source / copy, exif=exif, lossless=True)


Change = Callable[[Path], object]
COPIES: dict[str, tuple[Callable[[Path], Path], Change, str]] = {
    "training and test": (
        halves,
        lambda source: shutil.copy(source / "a" / "0.png", source / "d" / "9.png"),
        "1 exact copy (1 in training and test): a/0.png = d/9.png (training and test)",
    ),
    "two classes that may be held out": (
        halves,
        lambda source: shutil.copy(source / "a" / "0.png", source / "b" / "9.png"),
        "1 exact copy (1 in two classes): a/0.png = b/9.png (two classes)",
    ),
    "other metadata": (
        halves,
        lambda source: without_metadata(source, "a/0.png", "d/9.png"),
        "1 exact copy (1 in training and test)",
    ),
    "another format": (
        halves,
        lambda source: as_bitmap(source, "a/0.png", "d/9.bmp"),
        "1 exact copy (1 in training and test): a/0.png = d/9.bmp (training and test)",
    ),
    "another orientation": (
        halves,
        lambda source: lying(source, "a/0.png", "d/9.webp"),
        "1 exact copy (1 in training and test): a/0.png = d/9.webp (training and test)",
    ),
    "query and gallery": (
        parts,
        lambda source: shutil.copy(source / "query" / "c" / "0.png", source / "gallery" / "c" / "9.png"),
        "1 exact copy (1 in query and gallery): gallery/c/9.png = query/c/0.png (query and gallery)",
    ),
    "every image twice": (
        halves,
        lambda source: [shutil.copy(file, file.with_stem(f"again{file.stem}")) for file in list(source.rglob("*.png"))],
        "12 exact copies (12 in one class): ",
    ),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_refused_where_a_number_would_lie(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, change, says = COPIES[name]
    source = make(tmp_path / "source")
    command = ["datasets", "prepare", "folder", f"--source={source}", f"--storage={tmp_path}"]
    assert run(*command, "--name=clean") == 0
    assert "cop" not in capsys.readouterr().err
    change(source)
    assert run(*command, "--name=own") == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and says in err and "--allow-duplicates" in err
    listed = list(csv.DictReader((tmp_path / "data" / "own.duplicates.csv").open()))
    exact = [row for row in listed if row["copy"] == "exact"]
    assert len(exact) == int(says.split()[0]) and not (tmp_path / "data" / "own").exists()
    assert run(*command, "--name=own", "--allow-duplicates") == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "exact cop" in line]
    store = Store.open(tmp_path / "data" / "own")
    assert [line.removeprefix("note: ") for line in told] == remarks(store) and len(told) == 1
    assert (store.path / "duplicates.csv").exists() and not (tmp_path / "data" / "own.duplicates.csv").exists()


def test_what_is_wrong_with_the_data_is_told_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In comparisons too: the numbers of two searches stand side by side."""
    monkeypatch.setitem(made_searches.SIZES, "remarks", ["own: 1 exact copy"])
    with made_searches.MadeSearch(tmp_path) as made:
        made.trial([0.1, 0.2])
    assert "own: 1 exact copy." in told_beside(made.ledger)


def test_a_few_copies_within_a_class_are_told(tmp_path: Path) -> None:
    """More than a twentieth of the images is refused, as above."""
    source = classes(tmp_path / "source", images=6)
    shutil.copy(source / "a" / "0.png", source / "a" / "9.png")
    store = prepare("folder", source, tmp_path / "data", name="own")
    assert store.manifest["duplicates"]["copies"] == {"one class": 1}
    assert remarks(store) == ["own: 1 exact copy (1 in one class): a query finds its own copy"]


def test_images_that_differ_in_one_pixel_are_no_exact_copies(tmp_path: Path) -> None:
    """Their thumbnails are equal; their pixels are not."""
    source = halves(tmp_path / "source")
    with Image.open(picture(source / "a" / "0.png", 0, (290, 250))) as image:
        image.putpixel((3, 3), tuple(value ^ 1 for value in image.getpixel((3, 3))))  # type: ignore[union-attr]
        image.save(source / "d" / "9.png")
    store = prepare("folder", source, tmp_path / "data", name="own")
    assert store.manifest["duplicates"] == {"copies": {}, "near": {"training and test": 1}}
    pixels = store.column("pixels")
    assert pixels[store.column("source").tolist().index("d/9.png")] == pixels[0]


@pytest.mark.parametrize("how", ["halved", "re-encoded"])
def test_near_copies_are_counted_and_shown(tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = halves(tmp_path / "source")
    with Image.open(source / "a" / "0.png") as image:
        if how == "halved":
            image.resize((75, 60)).save(source / "d" / "9.png")
        else:
            image.save(source / "d" / "9.jpg", quality=40)
    command = ["datasets", "prepare", "folder", f"--source={source}", f"--storage={tmp_path}", "--name=own"]
    assert run(*command) == 0
    told = (
        "own: 1 pair of images looks alike (1 in training and test): numbers are too high if two are one "
        "picture; duplicates.csv lists them"
    )
    assert capsys.readouterr().err.splitlines() == [f"note: {told}"]
    assert remarks(Store.open(tmp_path / "data" / "own")) == [told]
    (pair,) = csv.DictReader((tmp_path / "data" / "own" / "duplicates.csv").open())
    assert (pair["copy"], pair["in"], pair["image"]) == ("near", "training and test", "a/0.png")
    assert pair["other image"].startswith("d/9.") and int(pair["bits"]) <= NEAR


def test_near_pairs_are_those_of_a_comparison_of_all() -> None:
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, 300, dtype=np.uint64)
    for row in range(1, 300, 2):  # up to seven bits from the one before
        for bit in random.choice(64, random.integers(0, 8), replace=False):
            hashes[row] ^= np.uint64(1 << int(bit)) if row % 4 == 1 else np.uint64(0)
        if row % 4 == 1:
            hashes[row] = hashes[row - 1]
            for bit in random.choice(64, random.integers(0, 8), replace=False):
                hashes[row] ^= np.uint64(1 << int(bit))
    wanted = {
        (one, other, bits)
        for one, other in itertools.combinations(range(300), 2)
        if (bits := int(hashes[one] ^ hashes[other]).bit_count()) <= NEAR
    }
    found = list(near_pairs(hashes))
    assert len(wanted) > 20 and set(found) == wanted and len(found) == len(wanted)


def test_the_hashes_are_those_of_the_library(tmp_path: Path) -> None:
    files = [picture(tmp_path / f"{seed}.png", seed) for seed in range(20)]
    greys = [Image.open(file).convert("L").resize((SIDE, SIDE)) for file in files]
    assert perceptual_hashes(np.stack([np.asarray(grey) for grey in greys])) == [str(phash(grey)) for grey in greys]


def test_images_with_nothing_to_see_look_like_no_other(tmp_path: Path) -> None:
    for label, name in enumerate("abcd"):
        for number in range(2):
            (tmp_path / "source" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (30, 30), (20 * label, 40 * number, 7)).save(tmp_path / "source" / name / f"{number}.png")
    store = prepare("folder", tmp_path / "source", tmp_path / "data", name="own")
    assert store.manifest["duplicates"] == {"copies": {}, "near": {}} and set(store.column("look")) == {""}


# --- names, and files that are no images


@pytest.mark.parametrize("other", ["Auk", "auk ", "ａuk", "auk\u200b"])
@pytest.mark.parametrize("kind", ["folder", "query and gallery", "csv"])
def test_class_names_that_look_alike_are_refused_with_both_spellings(tmp_path: Path, other: str, kind: str) -> None:
    source, importer = tmp_path / "source", "csv" if kind == "csv" else "folder"
    first, second = ("query/auk", f"gallery/{other}") if kind == "query and gallery" else ("auk", other)
    for number, place in enumerate((first, first, second, second, f"{second}x", f"{second}x")):
        picture(source / place / f"{number}.png", number)
    if kind == "csv":
        if other == "auk ":
            pytest.skip("cells of a table are trimmed")
        rows = [f'"{p.relative_to(source)}","{p.parent.name}"' for p in sorted(source.rglob("*.png"))]
        (source / "list.csv").write_text("\n".join(["path,label", *rows]))
    with pytest.raises(DataError, match="differ only in case, blanks or forms of letters") as caught:
        prepare(importer, source, tmp_path / "data", name="own")
    assert ascii("auk") in str(caught.value) and ascii(other) in str(caught.value)


def test_composed_and_decomposed_letters_are_one_class(tmp_path: Path) -> None:
    """As macOS and Linux write them."""
    for number, name in enumerate(("query/caf\u00e9", "gallery/cafe\u0301", "query/the", "gallery/the")):
        picture(tmp_path / "source" / name / f"{number}.png", number)
    store = prepare("folder", tmp_path / "source", tmp_path / "data", name="own")
    assert store.class_names == ["caf\u00e9", "the"]
    assert len(prepare("folder", tmp_path / "source", tmp_path / "data", name="own")) == 4


def test_every_readable_file_is_taken_whatever_it_is_called(tmp_path: Path) -> None:
    source = halves(tmp_path / "source")
    for place, (suffix, kind) in enumerate(
        {".jfif": "JPEG", ".jpe": "JPEG", ".avif": "AVIF", ".jp2": "JPEG2000", ".img": "PNG", "": "WEBP"}.items()
    ):
        file = picture(source / "a" / "9.png", 100 + place)
        with Image.open(file) as image:
            image.save(source / "a" / f"new{suffix}", kind)
        file.unlink()
    assert len(prepare("folder", source, tmp_path / "data", name="own")) == 12 + 6


def test_what_is_left_out_is_counted_and_much_of_it_asks_for_a_decision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = classes(tmp_path / "source", images=10)
    (source / "a" / "notes.txt").write_text("not an image")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._0.png"):
        (source / "b" / name).write_text("a system's")
    for name in ("__MACOSX", "@eaDir"):
        picture(source / name / "0.png", 500)
        picture(source / "c" / name / "0.png", 501)
    command = ["datasets", "prepare", "folder", f"--source={source}", f"--storage={tmp_path}", "--name=own"]
    assert run(*command) == 0
    told = capsys.readouterr().err.splitlines()
    assert "note: 1 file is no image and left out: 1 .txt" in told
    assert "note: 6 hidden or system files and folders are left out" in told
    store = Store.open(tmp_path / "data" / "own")
    assert len(store) == 40 and store.class_names == ["a", "b", "c", "d"] and store.manifest["left_out"] == {".txt": 1}
    for number in range(3):
        (source / "d" / f"{number}.heic").write_bytes(b"\0\0\0\x18ftypheic")
    command[-1] = "--name=other"
    assert run(*command) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "4 files are no images and left out: 3 .heic, 1 .txt, beside 40 images" in told[0]
    assert run(*command, "--allow-left-out") == 0
