"""An image and its nearest neighbours, as one self-contained page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from orchestrator.data.encoding import open_image, read_image
from orchestrator.report.html.rendering import render
from orchestrator.report.model_view import image_source
from orchestrator.storage.atomic import write_whole

LARGE, SMALL = 320, 160


@dataclass(frozen=True)
class Shown:
    """An image on the page: its name, its distance or product, and its picture, if its file is there."""

    name: str
    source: str | None = None
    width: int = 0
    height: int = 0
    value: float = 0.0

    @classmethod
    def of(cls, path: Path, name: str, side: int = SMALL, value: float = 0.0) -> "Shown":
        try:
            with open_image(read_image(path)) as image:
                picture = image.convert("RGB")
        except (OSError, ValueError):  # moved since it was embedded
            return cls(name, value=value)
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
        return cls(name, image_source(picture), picture.width, picture.height, value)


def write_query_page(query: Shown, neighbours: Sequence[Shown], subtitle: str, measure: str, path: Path) -> None:
    """The page, whole or not at all."""
    values = {"query": query, "found": neighbours, "subtitle": subtitle, "measure": measure}
    write_whole(path, render("query.html", values, more="query_page").encode())
