"""Images out of focus."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EXTENT = 0.02


def apply(images: Tensor, draws: NDArray[np.float64], extent: float) -> Tensor:
    """A Gaussian of standard deviation `extent` of each side, truncated at three; the image's border continues."""
    for dim in (2, 3):
        side = images.shape[dim]
        radius = max(1, math.ceil(3 * extent * side))
        offsets = np.arange(-radius, radius + 1)
        weights = np.exp(-0.5 * (offsets / (extent * side)) ** 2)
        pixels = torch.arange(side, device=images.device)
        blurred = torch.zeros_like(images)
        # By shifted images, not by a convolution, whose rounding may depend on the batch.
        for offset, weight in zip(offsets.tolist(), (weights / weights.sum()).tolist(), strict=True):
            blurred += weight * images.index_select(dim, (pixels + offset).clamp(0, side - 1))
        images = blurred
    return images.clamp(0, 1)
