"""Augmentation of training images, keyed by (seed, epoch, sample).

There are recipes for batches of equal-sized images (`RECIPES`), and crops for photographs of any size (`CROPS`). The
random numbers of a sample come from a hash of these three, never from a generator's state, so the sample looks the same
whatever batch, process or rank it is in. B: batch, C: channels, H, W: height, width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from orchestrator.errors import DataError, suggestion

DRAWS = 12  # random numbers per sample: the first 8 are the recipe's, the next 3 the degradation's
CROP_DRAWS = 32  # of a photograph: those, and from DRAWS on two for each of a crop's attempts
ATTEMPTS = 10
SHORTER_SIDE = 256

Recipe = Callable[[Tensor, NDArray[np.float64]], Tensor]


@dataclass(frozen=True)
class Degradation:
    """How some images are degraded, after the recipe: each with `probability`.

    `extent` is a share of the image's sides, null for the kind's default: `low_resolution` the sides that the image is
    scaled down to (and up again), `blur` the Gaussian's standard deviation, `occlusion` the sides of a grey rectangle.
    """

    kind: str
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
    return result if degradation is None else degrade(result, draws, degradation)


@dataclass(frozen=True)
class Crop:
    """How a photograph becomes `size` x `size` pixels.

    In training, with `resize`, the shorter side is first resized to 256. Without `scale` a window of `size` is then
    cropped anywhere; with it, a window whose area is a share of the image's drawn from `scale`, its aspect (width /
    height) log-uniform in `ratio`, which is then resized: torchvision's RandomResizedCrop. If ten draws do not fit the
    image, the largest window of an aspect in `ratio` is taken. Half of the images are flipped.

    In evaluation the shorter side is resized to 256 and the centre cropped. All resizing is bilinear with antialiasing,
    in uint8.
    """

    size: int
    resize: bool
    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def training(self, image: Tensor, draws: NDArray[np.float64]) -> Tensor:
        """A random view of an image, uint8 (C, H, W) -> (C, size, size). `draws`: its CROP_DRAWS uniforms."""
        from torchvision.transforms.v2 import functional  # takes a second to import, which other data need not pay

        if self.resize:
            image = functional.resize(image, [SHORTER_SIDE], antialias=True)
        top, left, height, width = self.window(image.shape[-2], image.shape[-1], draws)
        view: Tensor = functional.resized_crop(image, top, left, height, width, [self.size, self.size], antialias=True)
        return functional.horizontal_flip(view) if draws[2] < 0.5 else view

    def evaluation(self, image: Tensor) -> Tensor:
        """The centre crop of an image, uint8 (C, H, W) -> (C, size, size)."""
        from torchvision.transforms.v2 import functional

        resized = functional.resize(image, [SHORTER_SIDE], antialias=True)
        return functional.center_crop(resized, [self.size, self.size])  # type: ignore[no-any-return]

    def window(self, height: int, width: int, draws: NDArray[np.float64]) -> tuple[int, int, int, int]:
        """Top, left, height and width of the training window in an image of this height and width, in pixels."""
        tall, wide = self._extent(height, width, draws)
        return int(draws[0] * (height - tall + 1)), int(draws[1] * (width - wide + 1)), tall, wide

    def _extent(self, height: int, width: int, draws: NDArray[np.float64]) -> tuple[int, int]:
        if self.scale is None:
            return self.size, self.size
        (least, most), (narrow, broad) = self.scale, self.ratio
        for attempt in range(ATTEMPTS):
            u, v = draws[DRAWS + 2 * attempt : DRAWS + 2 * attempt + 2]
            area = height * width * (least + (most - least) * u)
            aspect = math.exp(math.log(narrow) + (math.log(broad) - math.log(narrow)) * v)
            tall, wide = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
            if 0 < tall <= height and 0 < wide <= width:
                return tall, wide
        return min(height, max(1, round(width / narrow))), min(width, max(1, round(height * broad)))


def uniforms(indices: NDArray[np.int64], *, seed: int, epoch: int, draws: int = DRAWS) -> NDArray[np.float64]:
    """Random numbers in [0, 1) of each sample, (B, draws), from the SplitMix64 hash of (seed, epoch, sample, draw).

    Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    key = np.zeros(1, np.uint64)
    for part in (seed, epoch):
        key = _mix(key ^ np.uint64(part % 2**64))
    keys = _mix(key ^ indices.astype(np.uint64))[:, None] + _GAMMA * np.arange(draws, dtype=np.uint64)
    return (_mix(keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _none(images: Tensor, draws: NDArray[np.float64]) -> Tensor:
    """The images as they are."""
    return images


def _affine(images: Tensor, draws: NDArray[np.float64]) -> Tensor:
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


def degrade(images: Tensor, draws: NDArray[np.float64], degradation: Degradation) -> Tensor:
    """Degrade some of these images, float32 (B, C, H, W) in [0, 1]. `draws`: their uniforms, (B, 12 or more); number 8
    decides whether, 9 and 10 where."""
    chosen = np.flatnonzero(draws[:, 8] < degradation.probability)
    if not len(chosen):
        return images
    change, usual = DEGRADATIONS[degradation.kind]
    extent = usual if degradation.extent is None else degradation.extent
    result = images.clone()
    result[chosen] = change(images[chosen], draws[chosen, 9:], extent)
    return result


def _low_resolution(images: Tensor, draws: NDArray[np.float64], extent: float) -> Tensor:
    """Scaled down to `extent` of each side, the mean of what each pixel covers, and up again."""
    size = images.shape[-2:]
    small = [max(1, round(extent * side)) for side in size]
    scaled = F.interpolate(images, small, mode="bilinear", antialias=True)
    return F.interpolate(scaled, size, mode="bilinear").clamp(0, 1)


def _blur(images: Tensor, draws: NDArray[np.float64], extent: float) -> Tensor:
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

RECIPES: dict[str, Recipe] = {
    "none": _none,
    "affine": _affine,
}

CROPS = {
    "random_crop_224": Crop(224, resize=True),
    "random_resized_crop_224": Crop(224, resize=False, scale=(0.08, 1.0)),
    "random_resized_crop_227": Crop(227, resize=True, scale=(0.16, 1.0), ratio=(0.75, 1.33)),
}
"""`random_crop_224`: IDML and Anti-Collapse say so (resized to 256 x 256, random crops of 224, flips); PFML gives its
evaluation only (centre crops of 224 from 256) and refers to ProxyAnchor-type papers. We keep the aspect: 256 is the
shorter side. `random_resized_crop_224`: ImageNet's, which the released code of ProxyAnchor and its descendants uses,
with torchvision's default area of 8% to 100%. `random_resized_crop_227`: Musgrave et al., A Metric Learning Reality
Check, ECCV 2020 (MLRC), and CCP, with areas of 16% to 100% as in MLRC's configuration files."""

AUGMENTATIONS = (*RECIPES, *CROPS)

DEGRADATIONS: dict[str, tuple[Callable[[Tensor, NDArray[np.float64], float], Tensor], float]] = {
    "low_resolution": (_low_resolution, 100 / 224),
    "blur": (_blur, 0.02),
    "occlusion": (_occlusion, 0.5),
}
"""Each with its usual extent; that of low resolution is the stronger one of Wang et al., TPAMI 2024, Table 8."""
