"""Images of one's own: what would make a number wrong is refused or told before it is measured."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.archive_trees import one, photo, run
from support.own_folders import classes

from orchestrator.data.encoding import encode
from orchestrator.data.pipeline import decode_pixels
from orchestrator.data.prepare import prepare
from orchestrator.data.store import Store
from orchestrator.errors import DataError

# --- changes of what a data set was made of


def table(source: Path) -> Path:
    classes(source / "images")
    rows = [f"images/{path.parent.name}/{path.name},{path.parent.name}" for path in sorted(source.rglob("*.png"))]
    (source / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    return source


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def replace(file: Path, old: str, new: str) -> int:
    return file.write_text(file.read_text().replace(old, new))


CHANGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "swapped": (
        "folder",
        lambda source: swap(source / "a" / "0.png", source / "b" / "0.png"),
        "2 with another content (a/0.png; b/0.png)",
    ),
    "moved": (
        "folder",
        lambda source: (source / "a" / "0.png").rename(source / "b" / "9.png"),
        "1 moved or renamed (a/0.png, now b/9.png)",
    ),
    "retouched": (
        "folder",
        lambda source: photo(source / "a" / "0.png", 77, (24, 20)),
        "1 with another content (a/0.png)",
    ),
    "exchanged": (
        "folder",
        lambda source: (photo(source / "a" / "9.png", 77), (source / "a" / "0.png").rename(source.parent / "x")),
        "1 added (a/9.png), 1 removed (a/0.png)",
    ),
    "relabelled": (
        "csv",
        lambda source: replace(source / "list.csv", "a/0.png,a", "a/0.png,b"),
        "1 of another class (images/a/0.png: a, now b)",
    ),
    "split": (
        "csv",
        lambda source: (
            replace(source / "list.csv", "\nimages", "\ntrain,images"),
            replace(source / "list.csv", "path,label", "split,path,label"),
            replace(source / "list.csv", "train,images/a/0.png", "test,images/a/0.png"),
        ),
        "1 of another split (images/a/0.png: train, now test)",
    ),
    "retouched, of a table": (
        "csv",
        lambda source: photo(source / "images" / "a" / "0.png", 77, (24, 20)),
        "1 with another content (images/a/0.png)",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_not_mistaken_for_the_data_set(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    importer, change, says = CHANGES[name]
    source = (table if importer == "csv" else classes)(tmp_path / "source")
    command = ["datasets", "prepare", importer, f"--source={source}", "--name=own", f"--storage={tmp_path}"]
    assert run(*command) == run(*command) == 0
    assert capsys.readouterr().err == ""
    before = Store.open(tmp_path / "data" / "own").manifest
    change(source)
    assert run(*command) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and says in err and "give another --name" in err
    assert Store.open(tmp_path / "data" / "own").manifest == before
    assert run(*[word.replace("--name=own", "--name=other") for word in command]) == 0
    assert run(*command, "--json") == 2
    source.rename(tmp_path / "gone")
    assert run(*command) == 0  # what it was made of need not be kept


def test_a_data_set_of_an_earlier_version_is_used_on(tmp_path: Path) -> None:
    """Without digests, and with orientation and transparency as they were: names, classes and splits are compared."""
    source, said = table(tmp_path / "source"), list[str]()
    options = {"orientation": "stored", "transparency": "dropped"}
    made = prepare("csv", source, tmp_path / "data", name="own", **options)  # type: ignore[arg-type]
    rewrite(made)
    old = prepare("csv", source, tmp_path / "data", name="own", say=said.append)
    assert old.manifest["digest"] == made.manifest["digest"] and "content" not in old.columns
    assert (
        len(said) == 1
        and "was made with orientation stored, not applied and transparency dropped, not white" in said[0]
    )
    with pytest.raises(DataError, match="already exists, with orientation stored, not applied"):
        prepare("csv", source, tmp_path / "data", name="own", orientation="applied")
    replace(source / "list.csv", "a/0.png,a", "a/0.png,b")
    with pytest.raises(DataError, match=r"1 of another class \(images/a/0.png: a, now b\)"):
        prepare("csv", source, tmp_path / "data", name="own")


def rewrite(made: Store) -> None:
    """The store as earlier versions wrote it."""
    from orchestrator.data.store import Row, write_store

    rows = [Row(made.image_bytes(k), int(made.labels[k]), str(made.splits[k])) for k in range(len(made))]
    settings = {k: v for k, v in made.manifest["settings"].items() if k not in ("orientation", "transparency")}
    columns = {name: made.column(name) for name in ("source", "original_size")}
    shutil.rmtree(made.path)
    write_store(
        made.path,
        name=made.name,
        channels=3,
        class_names=made.class_names,
        rows=rows,
        seed=None,
        settings=settings,
        facts={"source": made.manifest["source"]},
        columns=columns,
    )


# --- orientation and transparency


def turned(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("size", [8, 64], ids=["scaled", "kept"])
def test_images_of_ones_own_are_as_they_are_shown(tmp_path: Path, value: int, size: int) -> None:
    """All eight orientations of one picture become one picture, whether it is scaled or small enough to be kept."""
    down, across = np.mgrid[:12, :16]
    picture = Image.fromarray((20 + 5 * across + 9 * down).astype(np.uint8)).convert("RGB")
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the transposition that undoes it
    stored = picture if value == 1 else picture.transpose(Image.Transpose(back[value]))
    (tmp_path / "source" / "a").mkdir(parents=True)
    stored.save(tmp_path / "source" / "a" / "1.png", exif=turned(value))
    store = prepare("folder", tmp_path / "source", tmp_path / "data", name="one", size=size)
    scaled = picture.resize((round(16 * size / 12), size), Image.Resampling.BICUBIC)
    wanted = np.asarray(scaled if size < 12 else picture)
    assert store.image(0).shape == wanted.shape
    assert np.abs(store.image(0).astype(int) - wanted.astype(int)).mean() < 6  # JPEG
    assert store.manifest["with_orientation"] == (value != 1)
    assert store.manifest["settings"]["orientation"] == "applied"


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_a_hidden_background_is_not_seen(tmp_path: Path, mode: str) -> None:
    image = Image.new("RGBA", (20, 20), (200, 30, 30, 0))
    image.paste((10, 10, 10, 255), (5, 5, 15, 15))
    options: dict[str, Any] = {}
    if mode == "P":  # a palette with one transparent colour
        image = image.convert("RGB").quantize(8)
        options = {"transparency": image.getpixel((0, 0))}
    elif mode == "RGB":
        image, options = image.convert("RGB"), {"transparency": (200, 30, 30)}
    else:
        image = image.convert(mode)
    (tmp_path / "source" / "a").mkdir(parents=True)
    image.save(tmp_path / "source" / "a" / "1.png", **options)
    said: list[str] = []
    white = prepare("folder", tmp_path / "source", tmp_path / "data", name="white", say=said.append)
    assert white.image(0)[1, 1].min() > 245 and white.image(0)[10, 10].max() < 30
    assert said[0] == "1 of 1 images have transparency, which is shown on white"
    dropped = prepare("folder", tmp_path / "source", tmp_path / "data", name="dropped", transparency="dropped")
    assert dropped.image(0)[1, 1].min() < 150
    assert white.manifest["with_transparency"] == dropped.manifest["with_transparency"] == 1


def test_opaque_images_with_an_alpha_channel_are_not_counted(tmp_path: Path) -> None:
    store, _ = one(tmp_path, mode="RGB", file="1.png")
    Image.new("RGBA", (9, 9), (1, 2, 3, 255)).save(tmp_path / "source" / "a" / "1.png")
    again = prepare("folder", tmp_path / "source", tmp_path / "data", name="again")
    assert store.manifest["with_transparency"] == again.manifest["with_transparency"] == 0


def test_benchmarks_keep_what_their_papers_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--orientation: cub200 is kept as its papers used it"):
        prepare("cub200", tmp_path, tmp_path, orientation="applied")
    with pytest.raises(DataError, match="--original keeps the images as they are"):
        prepare("folder", tmp_path, tmp_path, name="x", original=True, transparency="white")


@pytest.mark.parametrize("kind", ["EPS", "PDF"])
def test_no_format_that_calls_another_program_is_read(tmp_path: Path, kind: str) -> None:
    """Whatever the file is called."""
    from orchestrator.data.encoding import Keeping

    Image.new("RGB", (9, 9)).save(tmp_path / "x", kind)
    (tmp_path / "x").rename(tmp_path / "x.jpg")
    with pytest.raises(OSError, match="cannot identify image file"):
        encode(str(tmp_path / "x.jpg"), Keeping(256))
    with pytest.raises(ValueError, match="not an image"):
        decode_pixels((tmp_path / "x.jpg").read_bytes(), 3)
