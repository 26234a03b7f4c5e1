"""Augmentation of training images, keyed by (seed, epoch, sample).

The random numbers of a sample come from a hash of these three, never from a generator's state, so the sample looks the
same whatever batch, process or rank it is in. B: batch, C: channels, H, W: height, width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from orchestrator.data.store import DataError
from orchestrator.errors import suggestion

DRAWS = 12  # random numbers per sample: the first 8 are the recipe's, the next 3 the degradation's

Recipe = Callable[[Tensor, NDArray[np.float64]], Tensor]


@dataclass(frozen=True)
class Degradation:
    """What makes some images uncertain, after the recipe: each with `probability`.

    `extent` is a share of the image's sides, null for the kind's own: `low_resolution` the sides that the image is
    scaled down to (and up again), `blur` the Gaussian's standard deviation, `occlusion` the sides of a grey rectangle.
    """

    kind: Literal["low_resolution", "blur", "occlusion"]
    probability: float
    extent: float | None


def augment(
    images: Tensor, indices: ArrayLike, *, recipe: str, seed: int, epoch: int, degradation: Degradation | None = None
) -> Tensor:
    """Turn uint8 images (B, C, H, W) into float32 in [0, 1], changed as `recipe` says, then by the `degradation`.

    `indices`: the samples' rows in the store, (B,), not their places in the batch. A sample's result is the same bit
    for bit in every batch. Raises DataError for an unknown recipe.
    """
    if recipe not in RECIPES:
        raise DataError(f"unknown augmentation '{recipe}'{suggestion(recipe, RECIPES)}")
    rows = np.asarray(indices, dtype=np.int64)
    if rows.shape != images.shape[:1]:
        raise DataError(f"indices have shape {rows.shape}, not ({images.shape[0]},): one for each image")
    draws = uniforms(rows, seed=seed, epoch=epoch)
    result = RECIPES[recipe](images.to(torch.float32) / 255, draws)
    return result if degradation is None else _degrade(result, draws[:, 8:], degradation)


def uniforms(indices: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.float64]:
    """Random numbers in [0, 1) of each sample, (B, DRAWS), from the SplitMix64 hash of (seed, epoch, sample, draw).

    Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    key = np.zeros(1, np.uint64)
    for part in (seed, epoch):
        key = _mix(key ^ np.uint64(part % 2**64))
    keys = _mix(key ^ indices.astype(np.uint64))[:, None] + _GAMMA * np.arange(DRAWS, dtype=np.uint64)
    return (_mix(keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _none(images: Tensor, draws: NDArray[np.float64]) -> Tensor:
    """The images as they are."""
    return images


def _affine(images: Tensor, draws: NDArray[np.float64]) -> Tensor:
    """Rotate by up to 10 degrees, scale each side by up to 10%, shear by up to 6 degrees, shift by up to 6%.

    What comes in from outside continues the image's border.
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
    # By element, not by matrix product as in affine_grid, whose rounding may depend on the batch.
    x = _centres(width, images)[None, None, :]
    y = _centres(height, images)[None, :, None]
    grid = torch.stack([a_ * x + b_ * y + x0, c_ * x + d_ * y + y0], dim=-1)
    sampled = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return sampled.clamp(0, 1)  # interpolation weights may sum to a hair above 1


def _degrade(images: Tensor, draws: NDArray[np.float64], degradation: Degradation) -> Tensor:
    """The first draw decides whether, the other two where."""
    chosen = np.flatnonzero(draws[:, 0] < degradation.probability)
    if not len(chosen):
        return images
    degrade, usual = DEGRADATIONS[degradation.kind]
    extent = usual if degradation.extent is None else degradation.extent
    result = images.clone()
    result[chosen] = degrade(images[chosen], draws[chosen, 1:], extent)
    return result


def _low_resolution(images: Tensor, draws: NDArray[np.float64], extent: float) -> Tensor:
    """Scaled down to `extent` of each side, the mean of what each pixel covers, and up again."""
    size = images.shape[-2:]
    small = [max(1, round(extent * side)) for side in size]
    scaled = F.interpolate(images, small, mode="bilinear", antialias=True)
    return F.interpolate(scaled, size, mode="bilinear").clamp(0, 1)


def _blur(images: Tensor, draws: NDArray[np.float64], extent: float) -> Tensor:
    """A Gaussian of standard deviation `extent` of each side, cut at three; the image's border continues."""
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


def _occlusion(images: Tensor, draws: NDArray[np.float64], extent: float) -> Tensor:
    """A grey rectangle of `extent` of each side, all of it inside the image."""
    hidden = []
    for draw, side in zip(draws.T, images.shape[-2:], strict=False):
        length = max(1, round(extent * side))
        first = torch.from_numpy(np.floor(draw * (side - length + 1)).astype(np.int64))[:, None]
        pixels = torch.arange(side)
        hidden.append((pixels >= first) & (pixels < first + length))
    rows, columns = hidden
    return images.masked_fill((rows[:, None, :, None] & columns[:, None, None, :]).to(images.device), 0.5)


def _centres(size: int, like: Tensor) -> Tensor:
    """Pixel centres in the sampler's coordinates, where the image goes from -1 to 1."""
    return (torch.arange(size, dtype=torch.float32, device=like.device) * 2 + 1) / size - 1


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's step: a bijection of 64-bit words in which every input bit changes half the output bits."""
    x = x + _GAMMA
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_GAMMA = np.uint64(0x9E3779B97F4A7C15)

RECIPES: dict[str, Recipe] = {"none": _none, "affine": _affine}

DEGRADATIONS: dict[str, tuple[Callable[[Tensor, NDArray[np.float64], float], Tensor], float]] = {
    "low_resolution": (_low_resolution, 100 / 224),
    "blur": (_blur, 0.02),
    "occlusion": (_occlusion, 0.5),
}
"""Each with its usual extent; that of low resolution is the stronger one of Wang et al., TPAMI 2024, Table 8."""
