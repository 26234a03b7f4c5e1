"""Where the recorded texts lie, and what is replaced in them."""

import difflib
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orchestrator.data.store import Row, Store, write_store

GOLDENS = Path(__file__).parents[1] / "goldens"


CLASSES, IMAGES, SIZE = 12, 6, 16


def patterns(path: Path) -> Store:
    """A data set of coarse patterns under noise, each class its own, as PNG: its pixels are the same everywhere."""

    def rows() -> Iterator[Row]:
        for row in range(CLASSES * IMAGES):
            label = row // IMAGES
            coarse = np.random.default_rng(label).integers(0, 70, (4, 4)).repeat(SIZE // 4, 0).repeat(SIZE // 4, 1)
            noise = np.random.default_rng(1000 + row).integers(0, 180, (SIZE, SIZE))
            buffer = io.BytesIO()
            Image.fromarray((coarse + noise).astype(np.uint8)).save(buffer, "png")
            yield Row(buffer.getvalue(), label, "train" if label < CLASSES * 2 // 3 else "test")

    names = [f"pattern {label}" for label in range(CLASSES)]
    return write_store(path, name="patterns", channels=1, class_names=names, rows=rows(), seed=0, settings={})


Golden = Callable[[str, str], None]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with the file of that name, or writes it there under --update-goldens."""
    update = bool(request.config.getoption("--update-goldens"))

    def compare(name: str, text: str) -> None:
        check(GOLDENS / name, text.rstrip("\n") + "\n", update=update)

    return compare


def check(path: Path, text: str, *, update: bool) -> None:
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    held = path.read_text(encoding="utf-8") if path.exists() else ""
    if held != text:
        changes = difflib.unified_diff(held.splitlines(), text.splitlines(), "held", "now", lineterm="", n=1)
        shown = "\n".join(line[:300] for line in list(changes)[:60])
        pytest.fail(f"{path.name} is not what it was; if that is meant: make goldens\n{shown}", pytrace=False)
