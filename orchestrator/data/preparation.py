"""How an image file becomes the pixels that a model sees in its evaluation, whoever asks: `evaluate`, `embed`, `query`,
an export.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from orchestrator.data.augmentations.crops import LONGEST, SHORTER_SIDE, Crop, crop_of
from orchestrator.data.encoding import KEPT_FORMATS, QUALITY, Keeping, UnreadableImage, encode, read_image
from orchestrator.data.pipeline import decode_pixels

KEPT = ("importer", "encoding", "size", "orientation", "transparency")
"""The settings of a data set that decide how it keeps an image; a model's file has them."""


def kept_settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a store, for a model's file; empty for images that were drawn, which are used as they are."""
    settings = manifest.get("settings", {})
    return {key: settings[key] for key in KEPT if key in settings} if "importer" in settings else {}


IMPORTS = """\
import io

from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional
"""
"""Of `Preparation.example`."""


@dataclass(frozen=True)
class Preparation:
    """What a data set does to an image when it keeps it, and then the evaluation when it reads it.

    `keeping` is None for images that are used as they are, `crop` for those that are not cut.
    """

    channels: int
    keeping: Keeping | None
    crop: Crop | None

    @classmethod
    def of(cls, saved: Mapping[str, Any], augmentation: str, image_size: int | None) -> Self:
        """Of a saved model. The file of an earlier version does not tell how its data set kept images: photographs are
        then taken to be kept as `datasets prepare` did by default."""
        crop = crop_of(augmentation, image_size)
        stored = saved.get("kept")
        if stored is None:
            keeping = None if crop is None else Keeping(SHORTER_SIDE)
        else:
            keeping = Keeping.of(stored) if stored else None
        return cls(int(saved["channels"]), keeping, crop)

    def __call__(self, file: Path) -> Tensor:
        """A file's pixels, uint8 (C, H, W). UnreadableImage for a file that cannot be read or decoded; nothing else
        is an image's fault."""
        try:
            data = read_image(file) if self.keeping is None else encode(str(file), self.keeping).image
            pixels = decode_pixels(data, self.channels)
        except (MemoryError, ImportError):
            raise
        except Exception as error:
            raise UnreadableImage.of(error) from None
        return pixels if self.crop is None else self.crop.evaluation(pixels)

    @property
    def example(self) -> str:
        """A function `prepare(path)` that does the same with Pillow and torchvision alone, as lines of a program."""
        keeping, mode = self.keeping, "RGB" if self.channels == 3 else "L"
        lines = ["image = Image.open(path)"]
        if keeping is not None and keeping.size is not None:
            upright = " and image.getexif().get(274, 1) == 1" if keeping.orientation == "applied" else ""
            lines += [f'as_it_is = image.format in {KEPT_FORMATS} and image.mode == "RGB"{upright}']
        if keeping is not None and keeping.orientation == "applied":
            lines += ["image = ImageOps.exif_transpose(image)"]
        if keeping is not None and keeping.transparency == "white":
            white = 'Image.new("RGBA", image.size, "white")'
            lines += ["as_it_is = as_it_is and not image.has_transparency_data"] if keeping.size is not None else []
            lines += [f'image = Image.alpha_composite({white}, image.convert("RGBA"))']
        lines += [f'image = image.convert("{mode}")']
        if keeping is not None and keeping.size is not None:
            lines += [f"if (scale := {keeping.size} / min(image.size)) < 1:"]
            resized = "image.resize([round(side * scale) for side in image.size], Image.Resampling.BICUBIC)"
            lines += [f"    image = {resized}"]
            lines += ["if scale < 1 or not as_it_is:"]
            lines += [
                f"    image.save(jpeg := io.BytesIO(), 'JPEG', quality={QUALITY})",
                "    image = Image.open(jpeg)",
            ]
        lines += ["pixels = functional.pil_to_tensor(image)"]
        if self.crop is not None:
            lines += [
                "height, width = pixels.shape[1:]",
                f"tall, wide = min(height, {LONGEST} * width), min(width, {LONGEST} * height)",
                "pixels = functional.crop(pixels, (height - tall) // 2, (width - wide) // 2, tall, wide)",
            ]
            resized = f"functional.resize(pixels, [{self.crop.shorter}], antialias=True)"
            lines += [f"pixels = functional.center_crop({resized}, [{self.crop.size}])"]
        lines += ["return pixels.permute(1, 2, 0)[None]"]
        body = "\n".join(f"    {line}" for line in lines)
        return f"{IMPORTS}\n\ndef prepare(path):  # a photograph -> uint8 (1, height, width, channels)\n{body}\n"

    @property
    def steps(self) -> dict[str, Any]:
        """The same in words, in this order, for those who prepare images with another program."""
        steps: dict[str, Any] = {}
        if self.keeping is not None and self.keeping.orientation == "applied":
            steps["exif_orientation"] = "applied"
        if self.keeping is not None and self.keeping.transparency == "white":
            steps["background"] = "white"
        if self.keeping is not None and self.keeping.size is not None:
            steps["reduce_shorter_side_to_at_most"] = f"{self.keeping.size} (bicubic, antialiased)"
            steps["jpeg_quality"] = f"{QUALITY} (of images that were reduced, or were not RGB in JPEG or PNG)"
        if self.crop is not None:
            steps["of_images_more_than_16_times_as_long_as_wide"] = f"the middle, {LONGEST} to 1"
            steps["resize_shorter_side"] = self.crop.shorter
            steps["interpolation"] = "bilinear, antialiased"
            steps["center_crop"] = self.crop.size
        return steps
