"""Augmentation of training images, keyed by (seed, epoch, view, sample).

The random numbers of a sample come from a hash of these, never from a generator's state, so the sample looks the
same whatever batch, process or rank it is in. B: batch, C: channels, H, W: height, width.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from orchestrator.data.augmentations import ANNOUNCED, RECIPES, Degradation, degradation_of, recipe_of
from orchestrator.data.augmentations.crops import DRAWS
from orchestrator.errors import DataError
from orchestrator.problems import suggestion


def augment(
    images: Tensor,
    indices: ArrayLike,
    *,
    recipe: str,
    seed: int,
    epoch: int,
    view: int = 0,
    degradation: Degradation | None = None,
) -> Tensor:
    """Turn uint8 images (B, C, H, W) into float32 in [0, 1], changed as `recipe` says, then by the `degradation`.

    `indices`: the samples' rows in the store, (B,), not their places in the batch. A sample's result is the same bit
    for bit in every batch. Raises DataError for an unknown recipe.
    """
    if recipe not in (*RECIPES, *ANNOUNCED):
        raise DataError(f"unknown augmentation '{recipe}'{suggestion(recipe, (*RECIPES, *ANNOUNCED))}")
    rows = np.asarray(indices, dtype=np.int64)
    if rows.shape != images.shape[:1]:
        raise DataError(f"indices have shape {rows.shape}, not ({images.shape[0]},): one for each image")
    draws = uniforms(rows, seed=seed, epoch=epoch, view=view)
    result = recipe_of(recipe)(images.to(torch.float32) / 255, draws)
    return result if degradation is None else degrade(result, draws, degradation)


def uniforms(
    indices: NDArray[np.int64], *, seed: int, epoch: int, view: int = 0, draws: int = DRAWS
) -> NDArray[np.float64]:
    """Random numbers in [0, 1) of each sample, (B, draws), from the SplitMix64 hash of (seed, epoch, sample, draw); in
    further views of a sample, of (seed, epoch, view, sample, draw).

    Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    key = np.zeros(1, np.uint64)
    for part in (seed, epoch, *([view] if view else [])):
        key = _mix(key ^ np.uint64(part % 2**64))
    keys = _mix(key ^ indices.astype(np.uint64))[:, None] + _GAMMA * np.arange(draws, dtype=np.uint64)
    return (_mix(keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def degrade(images: Tensor, draws: NDArray[np.float64], degradation: Degradation) -> Tensor:
    """Degrade some of these images, float32 (B, C, H, W) in [0, 1]. `draws`: their uniforms, (B, 12 or more); number 8
    decides whether, 9 and 10 where."""
    rows = np.flatnonzero(draws[:, 8] < degradation.probability)
    if not len(rows):
        return images
    change, usual = degradation_of(degradation.kind)
    extent = usual if degradation.extent is None else degradation.extent
    result = images.clone()
    result[rows] = change(images[rows], draws[rows, 9:], extent)
    return result


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's step: a bijection of 64-bit words in which every input bit changes half the output bits."""
    x = x + _GAMMA
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_GAMMA = np.uint64(0x9E3779B97F4A7C15)
