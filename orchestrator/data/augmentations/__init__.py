"""Augmentations of training images: recipes for batches of equal-sized images, crops for photographs of any size, and
degradations. A recipe or a degradation is in the file of this folder that is called like it, and a line of its table.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING

from orchestrator import parts
from orchestrator.data.augmentations.crops import CROPS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Draws = NDArray[np.float64]
    Recipe = Callable[[Tensor, Draws], Tensor]
    Change = Callable[[Tensor, Draws, float], Tensor]

RECIPES = (
    "none",
    "affine",
)
"""Their names: settings are checked by them, without loading what the recipes need."""

ANNOUNCED = parts.names("augmentations", (*RECIPES, *CROPS))
AUGMENTATIONS = (*RECIPES, *CROPS, *ANNOUNCED)

DEGRADATIONS = (
    "low_resolution",
    "blur",
    "occlusion",
)


def recipe_of(name: str) -> "Recipe":
    """What the file of this name, or the package that announces it, gives as `apply`: images, float32 (B, C, H, W) in
    [0, 1], and their uniforms (B, 12) -> the images changed."""
    if name in ANNOUNCED:
        return parts.load_part("augmentations", name, FunctionType)
    recipe: Recipe = importlib.import_module(f"{__name__}.{name}").apply
    return recipe


def degradation_of(name: str) -> "tuple[Change, float]":
    """What the file of this name gives as `apply`, which takes the extent too, and as `EXTENT`, the usual one."""
    module = importlib.import_module(f"{__name__}.{name}")
    return module.apply, module.EXTENT


@dataclass(frozen=True)
class Degradation:
    """How some images are degraded, after the recipe: each with `probability`.

    `extent` is a share of the image's sides, null for the kind's default: `low_resolution` the sides that the image is
    scaled down to (and up again), `blur` the Gaussian's standard deviation, `occlusion` the sides of a grey rectangle.
    """

    kind: str
    probability: float
    extent: float | None
