"""A small rotation, scaling, shear and shift."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


def apply(images: Tensor, draws: NDArray[np.float64]) -> Tensor:
    """Rotate by up to 10 degrees, scale each side by up to 10%, shear by up to 6 degrees, shift by up to 6%.

    Pixels from outside continue the image's border.
    """
    height, width = images.shape[-2:]
    u = 2 * draws - 1
    angle = np.radians(10) * u[:, 0]
    shear = np.tan(np.radians(6) * u[:, 1])
    scale_x, scale_y = 1 + 0.1 * u[:, 2], 1 + 0.1 * u[:, 3]
    shift_x, shift_y = (
        0.06 * 2 * u[:, 4],
        0.06 * 2 * u[:, 5],
    )  # the image spans 2 in the sampler's coordinates
    cos, sin = np.cos(angle), np.sin(angle)
    # Where each pixel comes from: x' = a x + b y + shift_x, y' = c x + d y + shift_y, in pixels that are square.
    a, b = cos * scale_x, (cos * shear - sin) * scale_y * height / width
    c, d = sin * scale_x * width / height, (sin * shear + cos) * scale_y
    coefficients = torch.tensor(np.stack([a, b, shift_x, c, d, shift_y]), dtype=torch.float32, device=images.device)
    a_, b_, x0, c_, d_, y0 = coefficients[..., None, None]
    # Elementwise, not by a matrix product as in affine_grid, whose rounding may depend on the batch.
    x = _centres(width, images)[None, None, :]
    y = _centres(height, images)[None, :, None]
    grid = torch.stack([a_ * x + b_ * y + x0, c_ * x + d_ * y + y0], dim=-1)
    sampled = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return sampled.clamp(0, 1)  # interpolation weights may sum to slightly more than 1


def _centres(size: int, like: Tensor) -> Tensor:
    """Pixel centres in the sampler's coordinates, where the image goes from -1 to 1."""
    return (torch.arange(size, dtype=torch.float32, device=like.device) * 2 + 1) / size - 1
