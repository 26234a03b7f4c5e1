"""Pictures that no two classes share."""

from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, seed: int, size: tuple[int, int] = (150, 120)) -> Path:
    """A smooth made picture, as photographs are."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path)
    return path
