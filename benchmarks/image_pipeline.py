"""Images per second and core from the store, against torchvision's ImageFolder and DataLoader in one process.

Made photographs (1/f noise with shapes, 500 x 375 and 375 x 500) lie in a folder of JPEG files, (a) as they are and
(b) with the shorter side brought to 256; the store holds the files of (b), a second store their pixels (as
`datasets prepare --decoded` keeps them). All ways resize to 256, crop 224, flip and
make float32 batches, on one core. The floor is decoding the store's bytes and nothing else.

    python benchmarks/image_pipeline.py [--images 256] [--rounds 5] [--recipe random_crop_224]
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
import torchvision
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg

from orchestrator.data import encoding
from orchestrator.data.augmentations.crops import CROPS
from orchestrator.data.pipeline import Reader, Request
from orchestrator.data.store import Row, Store, write_store

BATCH = 64
QUALITY = 90  # of the files as they are; those at 256 are encoded as the importers do it
CLASSES = 8


def photograph(rng: np.random.Generator, height: int, width: int) -> Image.Image:
    """1/f noise, mostly the same in all colours as in nature, behind a few smooth shapes."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    amplitude = 1 / np.maximum(frequency, 1 / max(height, width)) ** 1.2

    def noise() -> NDArray[np.float64]:
        field = np.fft.irfft2(amplitude * np.exp(2j * np.pi * rng.random(amplitude.shape)), (height, width))
        normal: NDArray[np.float64] = (field - field.mean()) / field.std()
        return normal

    grey = noise()
    pixels = np.stack([120 + 45 * grey + 15 * noise() for _ in range(3)], axis=-1)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        left, top = rng.integers(0, width), rng.integers(0, height)
        box = [int(left), int(top), int(left + rng.integers(20, 150)), int(top + rng.integers(20, 150))]
        colour = tuple(int(value) for value in rng.integers(0, 256, 3))
        (draw.ellipse if rng.random() < 0.5 else draw.rectangle)(box, fill=colour)
    return image


def make(folder: Path, images: int) -> tuple[Path, Path, Store, Store]:
    """Files as they are, files with the shorter side at 256, and the stores of the latter and of their pixels."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(images):
        image = photograph(rng, *((375, 500) if number % 2 else (500, 375)))
        small = transforms.functional.resize(image, 256)
        for way, picture, quality in (("original", image, QUALITY), ("resized", small, encoding.QUALITY)):
            path = folder / way / f"{number % CLASSES:03}" / f"{number:05}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path, quality=quality)
        rows.append(Row(path.read_bytes(), number % CLASSES, "train"))
    pixels = [row._replace(image=encoding.to_ppm(encoding.Encoded(row.image, 0, 0)).image) for row in rows]
    names = [str(label) for label in range(CLASSES)]
    store, decoded = (
        write_store(folder / name, name=name, channels=3, class_names=names, rows=some, seed=0, settings={})
        for name, some in (("store", rows), ("decoded", pixels))
    )
    return folder / "original", folder / "resized", store, decoded


def from_folder(path: Path, recipe: str) -> None:
    """torchvision's way, in this process."""
    crop = CROPS[recipe]
    cut = (
        [transforms.RandomCrop(crop.size)]
        if crop.scale is None
        else [transforms.RandomResizedCrop(crop.size, crop.scale, crop.ratio)]
    )
    resize = [transforms.Resize(256)] if crop.resize else []
    steps = transforms.Compose([*resize, *cut, transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    for _ in DataLoader(ImageFolder(str(path), steps), BATCH, shuffle=True):
        pass


def from_store(store: Store, recipe: str, threads: int = 0) -> None:
    """This package's way."""
    order = np.random.default_rng(0).permutation(len(store))
    requests: Iterator[Request] = (Request(order[start : start + BATCH], 0) for start in range(0, len(store), BATCH))
    with Reader(store, augmentation=recipe, threads=threads) as reader:
        for _ in reader.read(requests):
            pass


def decode_only(store: Store) -> None:
    """The floor: the same bytes, decoded and forgotten."""
    for row in range(len(store)):
        decode_jpeg(torch.frombuffer(bytearray(store.image_bytes(row)), dtype=torch.uint8), ImageReadMode.RGB)


def processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recipe", choices=CROPS, default="random_crop_224")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        original, resized, store, decoded = make(Path(folder), arguments.images)
        ways: dict[str, Callable[[], None]] = {
            "ImageFolder, original files (a)": lambda: from_folder(original, arguments.recipe),
            "ImageFolder, files at 256 (b)": lambda: from_folder(resized, arguments.recipe),
            "store": lambda: from_store(store, arguments.recipe),
            "store of decoded images": lambda: from_store(decoded, arguments.recipe),
            "bare decode of the store's bytes": lambda: decode_only(store),
        }
        # in turn, as the machine's speed drifts; processor time, so that others on the machine count less
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(arguments.rounds + 1):
            for name, way in ways.items():
                began = time.process_time()
                way()
                if turn:
                    seconds[name].append(time.process_time() - began)
        sizes = [np.mean([file.stat().st_size for file in path.rglob("*.jpg")]) / 1024 for path in (original, resized)]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, one core, load {os.getloadavg()[0]:.1f};", end=" ")
    print(f"torch {torch.__version__},", end=" ")
    print(f"torchvision {torchvision.__version__}; {arguments.images} made photographs,", end=" ")
    print(f"{sizes[0]:.0f} KiB and at 256 {sizes[1]:.0f} KiB each, {arguments.recipe}, {arguments.rounds} rounds")
    for name, times in seconds.items():
        ratios = np.array(times) / np.array(seconds["store"])
        print(
            f"{name:34} {arguments.images / np.median(times):7.0f} images/s   "
            f"the store does {np.median(ratios):.2f} times as many ({ratios.min():.2f} to {ratios.max():.2f})"
        )


if __name__ == "__main__":
    main()
