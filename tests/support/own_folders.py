"""Folders of classes, as a user has them."""

from pathlib import Path

from support.archive_trees import photo


def classes(source: Path, names: str = "abcd", images: int = 3) -> Path:
    """A folder of made images, each different."""
    for label, name in enumerate(names):
        for number in range(images):
            photo(source / name / f"{number}.png", images * label + number, (24, 20))
    return source
