"""How photographs are cut: in training at random, in evaluation at the centre."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.problems import Problem
from orchestrator.text import join_names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

DRAWS = 12
"""Random numbers per sample: the first 8 are the recipe's, the next 3 the degradation's."""
CROP_DRAWS = 32
"""Of a photograph: those, and from DRAWS on two for each of a crop's attempts."""
ATTEMPTS = 10
SHORTER_SIDE = 256


LONGEST = 16
"""How many times as long as the shorter side the longer one may be."""


def middle(image: "Tensor") -> "Tensor":
    """The middle of an image (C, H, W) whose longer side is more than LONGEST times the shorter; others whole."""
    height, width = image.shape[-2:]
    tall, wide = min(height, LONGEST * width), min(width, LONGEST * height)
    top, left = (height - tall) // 2, (width - wide) // 2
    return image[..., top : top + tall, left : left + wide]


@dataclass(frozen=True)
class Crop:
    """How a photograph becomes `size` x `size` pixels.

    In training, with `resize`, the shorter side is first resized to `shorter`. Without `scale` a window of `size` is
    then cropped anywhere; with it, a window whose area is a share of the image's drawn from `scale`, its aspect (width
    / height) log-uniform in `ratio`, which is then resized: torchvision's RandomResizedCrop. If ten draws do not fit
    the image, the largest window of an aspect in `ratio` is taken. Half of the images are flipped.

    In evaluation the shorter side is resized to `shorter` and the centre cropped. Of an image whose longer side is more
    than LONGEST times the shorter one only the middle is resized: 1 x 4,000 pixels would become 0.8 GB. All resizing is
    bilinear with antialiasing, in uint8.
    """

    size: int
    resize: bool
    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    shorter: int = SHORTER_SIDE

    def training(self, image: "Tensor", draws: "NDArray[np.float64]") -> "Tensor":
        """A random view of an image, uint8 (C, H, W) -> (C, size, size). `draws`: its CROP_DRAWS uniforms."""
        from torchvision.transforms.v2 import functional  # takes a second to import, which other data need not pay

        if self.resize:
            image = functional.resize(middle(image), [self.shorter], antialias=True)
        top, left, height, width = self.window(image.shape[-2], image.shape[-1], draws)
        view: Tensor = functional.resized_crop(image, top, left, height, width, [self.size, self.size], antialias=True)
        return functional.horizontal_flip(view) if draws[2] < 0.5 else view

    def evaluation(self, image: "Tensor") -> "Tensor":
        """The centre crop of an image, uint8 (C, H, W) -> (C, size, size)."""
        from torchvision.transforms.v2 import functional

        resized = functional.resize(middle(image), [self.shorter], antialias=True)
        return functional.center_crop(resized, [self.size, self.size])  # type: ignore[no-any-return]

    def window(self, height: int, width: int, draws: "NDArray[np.float64]") -> tuple[int, int, int, int]:
        """Top, left, height and width of the training window in an image of this height and width, in pixels."""
        tall, wide = self._extent(height, width, draws)
        return int(draws[0] * (height - tall + 1)), int(draws[1] * (width - wide + 1)), tall, wide

    def _extent(self, height: int, width: int, draws: "NDArray[np.float64]") -> tuple[int, int]:
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


def crop_of(augmentation: str, size: int | None = None) -> Crop | None:
    """How an augmentation of CROPS cuts photographs; to another `size`, if one is given, with the shorter side resized
    in proportion. None for another augmentation."""
    crop = CROPS.get(augmentation)
    if crop is None or size is None:
        return crop
    return replace(crop, size=size, shorter=round(SHORTER_SIDE * size / crop.size))


def check_cut(image_size: int | None, augmentation: str) -> None:
    """InputError for an image size with an augmentation that cuts no photographs."""
    if image_size is not None and augmentation not in CROPS:
        rule = f"is for photographs, and augmentation: {augmentation} cuts none"
        advice = f": take {join_names(list(CROPS))}, or leave it out"
        raise InputError(Problem(("image_size",), image_size, rule, advice=advice))
