"""From encoded photographs to their crops in one call, compiled by TorchScript, which gives the interpreter's lock back
for the whole of it: threads that run it hinder neither each other nor the training.

It computes what `pipeline.decode` and `Crop` do step by step, to the bit; those serve where it cannot be compiled.
torchvision's functions could be compiled themselves, but take a second for it; these take some hundredths.
"""

import functools
import math
import platform
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orchestrator.data.augmentations.crops import ATTEMPTS, DRAWS, LONGEST, Crop


class Program(NamedTuple):
    """The compiled functions.

    Both take encoded images, each the bytes of a JPEG in colour, uint8 (bytes,), or pixels, uint8 (C, H, W); their
    uniforms, an empty list for evaluation; and the crop. `fill` writes the crops into images, uint8 or float32
    (n, C, size, size); `views` gives them in memory of their own.
    """

    fill: Callable[..., Any]
    views: Callable[..., Any]


@functools.cache
def _compile() -> Program | str:
    """The program, or why there is none."""
    try:
        import torchvision.io  # noqa: F401  # which brings the decoder

        with warnings.catch_warnings():
            # script is deprecated for torch.compile, which needs a C++ compiler wherever it runs
            warnings.simplefilter("ignore")
            program = Program(torch.jit.script(_fill), torch.jit.script(_views))
            torch.frombuffer(b"0", dtype=torch.uint8)  # torch warns once of memory that cannot be written: it is read
    except Exception as error:  # a version of torch or torchvision without these parts
        return " ".join(str(error).split())[:200] or type(error).__name__
    return program


_lock = threading.Lock()
_reported: set[str] = set()


def program() -> Program | None:
    """The program; None where it cannot be compiled, which is reported once. Images are then prepared step by step."""
    with _lock:
        compiled = _compile()
        if isinstance(compiled, Program):
            return compiled
        if compiled not in _reported:
            _reported.add(compiled)
            warnings.warn(
                "photographs are prepared step by step, some 2,000 a second at most in a process, because this version "
                f"of torch or torchvision does not compile the steps ({compiled})",
                stacklevel=2,
            )
    return None


class Cut(NamedTuple):
    """A crop as the compiled functions take it."""

    size: int
    shorter: int
    resize: bool
    scale: tuple[float, float] | None
    ratio: tuple[float, float]
    attempts: int
    first_draw: int
    of_bytes: bool
    """Whether torchvision resizes bytes on this processor, and not their values in float32."""
    longest: int
    """How many times as long as the shorter side the longer one may be."""


def cut_of(crop: Crop) -> Cut:
    """The crop for the compiled functions."""
    by_vectors = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    of_bytes = by_vectors or platform.machine() in ("aarch64", "arm64")
    return Cut(crop.size, crop.shorter, crop.resize, crop.scale, crop.ratio, ATTEMPTS, DRAWS, of_bytes, LONGEST)


# Compiled -----------------------------------------------------------------------------------------------------


def _nearest(number: float) -> int:
    return int(round(number))  # noqa: RUF046  # compiled, round gives a float


def _resize(image: Tensor, height: int, width: int, of_bytes: bool) -> Tensor:
    """As torchvision's `resize` with antialiasing, (C, H, W) -> (C, height, width)."""
    channels, old_height, old_width = image.size(0), image.size(1), image.size(2)
    if old_height == height and old_width == width:
        return image
    image = image.reshape(1, channels, old_height, old_width)
    if image.is_contiguous(memory_format=torch.channels_last) and image.numel() != image.stride(0):
        # so that torch sees that the channels come last: it would copy the pixels twice
        strides = [image.numel(), image.stride(1), image.stride(2), image.stride(3)]
        image = image.as_strided([1, channels, old_height, old_width], strides)
    if not of_bytes:
        image = image.to(torch.float32)
    image = torch.ops.aten._upsample_bilinear2d_aa(image, [height, width], False, None, None)
    if not of_bytes:
        image = image.round_().to(torch.uint8)
    return image.reshape(channels, height, width)


def _shorter(image: Tensor, cut: Cut) -> Tensor:
    """The image, or its middle, with its shorter side resized; see `middle`."""
    side, of_bytes = cut.shorter, cut.of_bytes
    height, width = image.size(1), image.size(2)
    if max(height, width) > cut.longest * min(height, width):
        tall, wide = min(height, cut.longest * width), min(width, cut.longest * height)
        top, left = (height - tall) // 2, (width - wide) // 2
        image = image[:, top : top + tall, left : left + wide]
        height, width = tall, wide
    if height <= width:
        return _resize(image, side, int(side * width / height), of_bytes)
    return _resize(image, int(side * height / width), side, of_bytes)


def _extent(height: int, width: int, draws: list[float], cut: Cut) -> tuple[int, int]:
    """As `Crop` computes it."""
    scale = cut.scale
    if scale is None:
        return cut.size, cut.size
    least, most = scale
    narrow, broad = cut.ratio
    for attempt in range(cut.attempts):
        u, v = draws[cut.first_draw + 2 * attempt], draws[cut.first_draw + 2 * attempt + 1]
        area = height * width * (least + (most - least) * u)
        aspect = math.exp(math.log(narrow) + (math.log(broad) - math.log(narrow)) * v)
        tall, wide = _nearest(math.sqrt(area / aspect)), _nearest(math.sqrt(area * aspect))
        if 0 < tall <= height and 0 < wide <= width:
            return tall, wide
    tall, wide = _nearest(width / narrow), _nearest(height * broad)
    return min(height, max(1, tall)), min(width, max(1, wide))


def _view(coded: Tensor, draws: list[float] | None, cut: Cut) -> Tensor:
    """As `decode`, then `Crop.training`, or `Crop.evaluation` without draws."""
    image = coded
    if image.dim() == 1:
        image = torch.ops.image.decode_jpeg(coded, 3, False)  # 3: as RGB
    if cut.resize or draws is None:
        image = _shorter(image, cut)
    height, width = image.size(1), image.size(2)
    if draws is None:
        top, left = _nearest((height - cut.size) / 2.0), _nearest((width - cut.size) / 2.0)
        return image[:, top : top + cut.size, left : left + cut.size]
    tall, wide = _extent(height, width, draws, cut)
    top, left = int(draws[0] * (height - tall + 1)), int(draws[1] * (width - wide + 1))
    view = _resize(image[:, top : top + tall, left : left + wide], cut.size, cut.size, cut.of_bytes)
    return view.flip(-1) if draws[2] < 0.5 else view


def _fill(images: Tensor, coded: list[Tensor], draws: list[list[float]], cut: Cut) -> None:
    for number in range(len(coded)):
        view = _view(coded[number], draws[number] if len(draws) > 0 else None, cut)
        if images.dtype == torch.uint8:
            images[number].copy_(view)
        else:
            images[number].copy_(view / 255)


def _views(coded: list[Tensor], draws: list[list[float]], cut: Cut) -> list[Tensor]:
    views: list[Tensor] = []
    for number in range(len(coded)):
        image = coded[number]
        if image.dim() == 3:  # perhaps pixels of the store, which must not be written
            image = image.clone()
        views.append(_view(image, draws[number] if len(draws) > 0 else None, cut))
    return views
