"""Images of few pixels."""

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

EXTENT = 100 / 224
"""The stronger one of Wang et al., TPAMI 2024, Table 8."""


def apply(images: Tensor, draws: NDArray[np.float64], extent: float) -> Tensor:
    """Scaled down to `extent` of each side, the mean of what each pixel covers, and up again."""
    size = images.shape[-2:]
    small = [max(1, round(extent * side)) for side in size]
    scaled = F.interpolate(images, small, mode="bilinear", antialias=True)
    return F.interpolate(scaled, size, mode="bilinear").clamp(0, 1)
