"""What the checks of `datasets prepare` cost: with them and without, in one run, for 100,000 images.

    python benchmarks/preparing.py [--images 1000] [--rounds 5] [--of 100000]

Photographs of 500 x 375 pixels (cut from made ones, all different, JPEG of quality 90) are prepared in this process, in
turn with and without the checks: without, there are no digests, no perceptual hashes and no search for copies, and
transparency is not looked at. The search for copies grows faster than the number of images, so it is timed apart, on
`--of` rows with random hashes, and added to so many times the seconds of an image.

Ratios of processor time: of the fastest rounds, and of each pair of rounds (lowest to highest).
"""

import argparse
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from image_pipeline import photograph, processor

from orchestrator.data.duplicates import Duplicates, find_duplicates
from orchestrator.data.looks import SIDE
from orchestrator.data.prepare import prepare

PER_CLASS = 20
BASES = 20
WAYS: dict[str, dict[str, Any]] = {"256 pixels": {}, "--original": {"original": True}, "--decoded": {"decoded": True}}


def photographs(folder: Path, images: int, height: int = 375, width: int = 500) -> Path:
    """A folder per class, of pictures that all differ."""
    rng = np.random.default_rng(0)
    bases = [photograph(rng, 2 * height, 2 * width) for _ in range(BASES)]
    for number in range(images):
        path = folder / f"{number // PER_CLASS:05}" / f"{number:07}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        left, top = int(rng.integers(0, width)), int(rng.integers(0, height))
        bases[number % BASES].crop((left, top, left + width, top + height)).save(path, quality=90)
    return folder


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Without what is measured here."""
    encoding, step = "orchestrator.data.encoding", "orchestrator.data.prepare"
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch(f"{encoding}.digest", lambda data: ""))
        stack.enter_context(patch(f"{encoding}._thumbnail", lambda rgb: ("", np.zeros((SIDE, SIDE), np.uint8))))
        stack.enter_context(patch(f"{encoding}.perceptual_hashes", lambda thumbnails: [""] * len(thumbnails)))
        stack.enter_context(patch(f"{encoding}._transparent", lambda image: False))
        stack.enter_context(patch(f"{step}._duplicates", lambda *rest: Duplicates([], [], Counter())))
        yield


def seconds(source: Path, options: dict[str, Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        prepare("folder", source, folder, name="made", allow_duplicates=True, workers=1, **options)
        return time.process_time() - began


def copies_of(rows: int) -> float:
    """Seconds of the search for copies among so many images of which none is one."""
    rng = np.random.default_rng(0)
    looks = [f"{look:016x}" for look in rng.integers(0, 2**64, rows, dtype=np.uint64)]
    pixels = [f"{row:032x}" for row in range(rows)]
    labels = np.repeat(np.arange(-(-rows // PER_CLASS)), PER_CLASS)[:rows]
    splits, testing = np.full(rows, "train"), labels >= labels.max() // 2
    began = time.process_time()
    find_duplicates(pixels, looks, labels, splits, testing)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--of", type=int, default=100_000)
    arguments = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {processor()}; {arguments.images:,} images, {arguments.rounds} rounds")
    rest = copies_of(arguments.of)
    print(f"copies among {arguments.of:,} images: {rest:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        source = photographs(Path(folder), arguments.images)
        for name, options in WAYS.items():
            seconds(source, options)  # what is loaded once is not measured
            ratios, each = [], []
            for _ in range(arguments.rounds):
                checked = seconds(source, options) / arguments.images
                with unchecked():
                    bare = seconds(source, options) / arguments.images
                each.append((1000 * checked, 1000 * bare))
                ratios.append((checked * arguments.of + rest) / (bare * arguments.of))
            checked, bare = map(min, zip(*each, strict=True))
            print(
                f"{name:12} {checked:.3f} ms an image with checks, {bare:.3f} without; of {arguments.of:,} images "
                f"{(checked * arguments.of + 1000 * rest) / (bare * arguments.of):.3f} times "
                f"({min(ratios):.3f} to {max(ratios):.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
