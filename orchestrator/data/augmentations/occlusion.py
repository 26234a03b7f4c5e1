"""Images that are partly hidden."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EXTENT = 0.5


def apply(images: Tensor, draws: NDArray[np.float64], extent: float) -> Tensor:
    """A grey rectangle of `extent` of each side, all of it inside the image."""
    hidden = []
    for draw, side in zip(draws.T, images.shape[-2:], strict=False):
        length = max(1, round(extent * side))
        first = torch.from_numpy(np.floor(draw * (side - length + 1)).astype(np.int64))[:, None]
        pixels = torch.arange(side)
        hidden.append((pixels >= first) & (pixels < first + length))
    rows, columns = hidden
    return images.masked_fill((rows[:, None, :, None] & columns[:, None, None, :]).to(images.device), 0.5)
