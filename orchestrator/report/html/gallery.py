"""A model's gallery as a table of thumbnails for MLflow."""

import json
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

from orchestrator.report.html.model_page import neighbours, uncertainty_text
from orchestrator.report.model_view import THUMBNAIL, View
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.opening import make_folder, open_file

GALLERY = "gallery"
"""A table of the tracker, `gallery.json`, and the folder of its images."""
TABLE_NEIGHBOURS = 5
FRAME = 3


def write_gallery(view: View, folder: Path, place: str) -> str:
    """The gallery as a table that MLflow shows with thumbnails: `gallery.json` in `folder`, its images beneath it.

    `place` is the folder's path among the artifacts of the run. Frames and words say what is right; the uncertainty
    is shown under the image. The format is that of `mlflow.log_table` with `mlflow.Image` cells. Returns the table's
    path among the artifacts.
    """
    insight, names = view.insight, view.names
    columns = min(TABLE_NEIGHBOURS, insight.neighbour_KN.shape[1])
    heads = ["class", "query", *(f"neighbour {rank + 1}" for rank in range(columns)), "found"]
    rows = []
    make_folder(folder / GALLERY)
    for number, (row, label) in enumerate(zip(insight.query_K.tolist(), insight.query_label_K.tolist(), strict=True)):
        neighbour_labels = insight.neighbour_label_KN[number, : neighbours(insight, number, columns)]
        images = [_frame(view.thumbnails[row], None, uncertainty_text(insight, "K", number))]
        for rank in range(columns):
            right = bool(insight.neighbour_label_KN[number, rank] == label)
            level = uncertainty_text(insight, "KN", (number, rank))
            images.append(_frame(view.thumbnails[int(insight.neighbour_KN[number, rank])], right, level))
        cells = []
        for rank, image in enumerate(images):
            file = f"{GALLERY}/{number:02d}-{rank}.webp"
            with open_file(
                folder / file, "wb"
            ) as picture:  # not flushed to the disk: there are 150, which can be remade
                image.save(picture, "WEBP", quality=80)
            cells.append({"type": "image", "filepath": f"{place}/{file}", "compressed_filepath": f"{place}/{file}"})
        text = ", ".join(f"{'✓' if other == label else '✗'} {names[other]}" for other in neighbour_labels.tolist())
        rows.append(
            [names[label], *cells, f"{int((neighbour_labels == label).sum())} of {len(neighbour_labels)} right: {text}"]
        )
    table = json.dumps({"columns": heads, "data": rows}, ensure_ascii=False)
    write_whole(folder / f"{GALLERY}.json", table.encode())
    return f"{place}/{GALLERY}.json"


def _frame(image: Image.Image, right: bool | None, level: str) -> Image.Image:
    """In a frame: solid green, broken red, or grey for a query; the level below it."""
    side, below = THUMBNAIL + 2 * FRAME, 12 if level else 0
    framed = Image.new("RGB", (side, side + below), "white")
    colour = {None: (120, 120, 120), True: (26, 127, 75), False: (198, 47, 58)}[right]
    draw = ImageDraw.Draw(framed)
    draw.rectangle((0, 0, side - 1, side - 1), outline=colour, width=FRAME)
    if right is False:
        for gap in range(8, side - 8, 12):
            for box in ((gap, 0, gap + 4, FRAME - 1), (gap, side - FRAME, gap + 4, side - 1)):
                draw.rectangle(box, fill="white")
                draw.rectangle((box[1], box[0], box[3], box[2]), fill="white")
    image = ImageOps.contain(image, (THUMBNAIL, THUMBNAIL))  # small ones are enlarged
    framed.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    if level:
        draw.text((side / 2, side), level, fill="black", anchor="ma")
    return framed
