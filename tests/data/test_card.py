"""The card of a data set: counted by hand, in text, JSON and as a page."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.archive_trees import run
from support.pictures import picture

from orchestrator.data.card import CARD, PAGE, DataCard
from orchestrator.data.prepare import prepare
from orchestrator.data.store import Store
from orchestrator.report.html.data_page import confusions


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Six classes; the test half has one of one image; a copy, a turned and a transparent image, a text."""
    source = tmp_path / "source"
    for label, name in enumerate("abcdef"):
        for number in range(1 if name == "f" else 2 + (name == "a")):
            picture(source / name / f"{number}.png", 3 * label + number, (40 + 10 * label, 40))
    (source / "b" / "copy.png").write_bytes((source / "b" / "0.png").read_bytes())
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(source / "c" / "0.png") as image:
        image.save(source / "c" / "0.jpg", exif=exif)
        image.convert("RGBA").resize((300, 200)).save(source / "c" / "3.png")
    (source / "c" / "0.png").unlink()
    pixels = np.full((40, 40, 4), 128, np.uint8)
    pixels[:20, :, :3] = 7
    Image.fromarray(pixels).save(source / "d" / "clear.png")
    (source / "a" / "notes.txt").write_text("no image")
    return source


def test_the_card_has_what_was_counted_by_hand(odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allowed = ["--allow-duplicates", "--allow-left-out"]
    command = ["datasets", "prepare", "folder", f"--source={odd}", "--name=own", f"--storage={tmp_path}", *allowed]
    assert run(*command) == 0
    out = capsys.readouterr().out
    for line in (
        "training: 3 classes with 9 images, each a query",
        "test: 2 classes with 5 queries (of 3 classes with 6 images)",
        "images of a class: 1 to 3, the median 3; 1 class has one image",
        "image sizes: 40 x 40 to 300 x 200 pixels, the median 40 x 60",
        "formats and modes: 12 PNG RGB, 2 PNG RGBA, 1 JPEG RGB",
        "copies: 1 exact copy (1 in one class)",
        "EXIF orientation: 1 image, applied",
        "transparency: 1 image, white",
        "left out: 1 .txt",
        "to know: own: 1 exact copy (1 in one class): a query finds its own copy",
    ):
        assert f"  {line}\n" in out, out
    store = Store.open(tmp_path / "data" / "own")
    assert DataCard.read(store.path) == DataCard.of(store)
    page = (store.path / PAGE).read_text()
    assert page.count("data:image/webp") == len(store) and "1 exact copy" in page and "confuse first" not in page
    assert run("datasets", "own", f"--storage={tmp_path}", "--json") == 0
    assert json.loads(capsys.readouterr().out)["card"] == json.loads((store.path / CARD).read_text())
    assert run("datasets", "own", f"--storage={tmp_path}") == 0
    assert "\ntest: 2 classes with 5 queries (of 3 classes with 6 images)\n" in capsys.readouterr().out
    assert run("datasets", "own", f"--storage={tmp_path}", f"--html={tmp_path / 'card.html'}") == 0
    assert "What pixels confuse first" in (tmp_path / "card.html").read_text()


def test_what_pixels_confuse_is_shown_the_nearest_first(tmp_path: Path) -> None:
    """e/0 and f/0 are nearly one picture, g and h are pairs that a comparison of pixels finds."""
    for label, name in enumerate("abcdefgh"):
        for number in range(2):
            alike = name in "gh" or (name in "ef" and number == 0)
            seed = 50 + "gh".find(name) if name in "gh" else 60 if alike else 2 * label + number
            file = picture(tmp_path / "source" / name / f"{number}.png", seed)
            with Image.open(file) as image:
                image.point([min(255, level + number) for level in range(256)] * 3).save(file)
    with Image.open(tmp_path / "source" / "f" / "0.png") as image:
        image.point([min(255, level + 2) for level in range(256)] * 3).save(tmp_path / "source" / "f" / "0.png")
    store = prepare("folder", tmp_path / "source", tmp_path / "data", name="own", original=True)
    found = confusions(store)
    sources = store.column("source")
    assert [sources[row] for row in found.pairs[0]] == ["e/0.png", "f/0.png"]
    assert found.sampled == 8 and found.share == pytest.approx(4 / 8)
