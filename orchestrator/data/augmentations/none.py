"""No augmentation."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def apply(images: Tensor, draws: NDArray[np.float64]) -> Tensor:
    """The images as they are."""
    return images
