"""Images of an archive -> the bytes that a store keeps, in parts that survive an interruption.

A part is a small Arrow file: columns image (binary), width and height (int32, of the original). Worker processes run
this module, so it imports nothing that is slow to load.
"""

import hashlib
import io
import os
import threading
import warnings
from collections.abc import Sequence
from multiprocessing import parent_process
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL import __version__ as pillow_version

QUALITY = 95  # on photographs an error of about two grey levels, at a quarter of the size of PNG
KEPT_FORMATS = ("JPEG", "PNG")
PART_SCHEMA = pa.schema([("image", pa.binary()), ("width", pa.int32()), ("height", pa.int32())])

CONVERSION = 2
"""Increased when images get other pixels than before: parts of an interrupted preparation are then not used."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
SCALED_TO_SIXTEEN = ("PNG", "PPM")
"""Formats whose grey levels of more than 8 bits Pillow may give as 32-bit integers, from 0 to 65535."""
BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0
"""TIFF's tags, and a value of the second."""

Content = str | NDArray[np.uint8]
"""A file, or pixels (H, W, 3)."""


class Encoded(NamedTuple):
    """One image as a store keeps it, and its original size."""

    image: bytes
    width: int
    height: int


class Unreadable(NamedTuple):
    """An image that cannot be read: its position in the part, and why."""

    position: int
    reason: str


def encode(content: Content, size: int | None) -> Encoded:
    """The image with a shorter side of at most `size`, RGB, as JPEG of quality 95; with None the file's own bytes.

    It is never enlarged. A JPEG or PNG file that is already RGB and small enough is kept byte for byte, and
    pixels become PNG. A rotation in the file's EXIF is not applied, and re-encoded images carry
    no metadata. Every image is decoded completely. Raises OSError (also Pillow's, for broken files), ValueError for
    pixels that `as_mode` refuses, or whatever else a decoder raises on damaged data.
    """
    if not isinstance(content, str):
        return Encoded(_written(Image.fromarray(content), "PNG"), content.shape[1], content.shape[0])
    data = Path(content).read_bytes()
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        width, height = image.size
        shorter = min(width, height)
        small = size is None or shorter <= size
        if size is None:
            as_mode(image, "RGB")  # files kept as they are must pass too: they are converted when they are used
            return Encoded(data, width, height)
        if small and image.mode == "RGB" and image.format in KEPT_FORMATS:
            return Encoded(data, width, height)
        rgb = as_mode(image, "RGB")
    if not small:
        scaled = tuple(size if side == shorter else round(side * size / shorter) for side in (width, height))
        rgb = rgb.resize((scaled[0], scaled[1]), Image.Resampling.BICUBIC)
    rgb.info.clear()
    return Encoded(_written(rgb, "JPEG"), width, height)


def decoded(encoded: Encoded) -> Encoded:
    """The same image with its pixels uncompressed: PPM, a line each for format, width and height, and 255, then bytes.

    They are the pixels that the encoded image gives whenever it is decoded.
    """
    with Image.open(io.BytesIO(encoded.image)) as image:
        rgb = as_mode(image, "RGB")
    return encoded._replace(image=b"P6\n%d %d\n255\n" % rgb.size + rgb.tobytes())


def as_mode(image: Image.Image, mode: str) -> Image.Image:
    """An image in Pillow's mode `L` or `RGB`, 8 bits per channel.

    Grey levels of 9 to 16 bits are scaled by their depth: round(255 v / (2^bits - 1)); Pillow itself would clip them at
    255. Pillow has already cut 16-bit colours to their upper byte. Transparency is dropped. Raises ValueError for
    numbers whose range is not stated in the file: 32-bit and signed integers, and floats.
    """
    if image.mode in SIXTEEN_BITS or (image.mode == "I" and image.format in SCALED_TO_SIXTEEN):
        tags = getattr(image, "tag_v2", {})
        most = 2 ** int(tags.get(BITS_PER_SAMPLE, (16,))[0]) - 1
        levels = np.asarray(image).astype(np.int64)
        if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:  # Pillow handles this in 8-bit images only
            levels = most - levels
        scaled = (levels.clip(0, most) * 255 + most // 2) // most
        return Image.fromarray(scaled.astype(np.uint8)).convert(mode)
    if image.mode in ("I", "F"):
        kind = "floating-point" if image.mode == "F" else "32-bit or signed"
        raise ValueError(f"{kind} pixels, whose range the file does not state: scale them to 8 or 16 bits")
    return image.convert(mode)


def part_path(
    folder: Path, number: int, contents: Sequence[Content], size: int | None, uncompressed: bool = False
) -> Path:
    """The part's file. Its name identifies the sources (files by path, length and time) and the settings.

    Raises OSError if a file is missing.
    """
    digest = hashlib.sha256(repr((size, QUALITY, CONVERSION, pillow_version)).encode() + b"PPM" * uncompressed)
    for content in contents:
        if isinstance(content, str):
            status = Path(content).stat()
            digest.update(repr((content, status.st_size, status.st_mtime_ns)).encode())
        else:
            digest.update(repr(content.shape).encode() + content.tobytes())
    return folder / f"{number:05d}-{digest.hexdigest()[:24]}.arrow"


def write_part(
    part: Path, contents: Sequence[Content], size: int | None, uncompressed: bool = False
) -> list[Unreadable] | None:
    """Encode the images into the file `part`, whole or not at all.

    Returns those that cannot be read (the part is then not written), or None if the work was cancelled in between.
    Raises OSError if the part cannot be written.
    """
    encoded: list[Encoded] = []
    unreadable: list[Unreadable] = []
    for position, content in enumerate(contents):
        if _called_off is not None and _called_off.is_set():
            return None
        try:
            with warnings.catch_warnings(action="ignore"):
                image = encode(content, size)
                encoded.append(decoded(image) if uncompressed else image)
        except Exception as error:  # decoders raise anything on broken files: IndexError, zlib.error, SyntaxError ...
            if isinstance(error, UnidentifiedImageError):
                error = ValueError("not an image")  # Pillow's message contains a memory address
            reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
            unreadable.append(Unreadable(position, " ".join(reason.split())))
    if unreadable:
        return unreadable
    columns = [pa.array([row[i] for row in encoded], field.type) for i, field in enumerate(PART_SCHEMA)]
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_file(buffer, PART_SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=PART_SCHEMA))
    draft = part.with_suffix(".tmp")
    with draft.open("wb") as file:
        file.write(buffer.getvalue())
        file.flush()
        os.fsync(file.fileno())
    draft.rename(part)
    return []


def read_part(part: Path, count: int) -> pa.Table | None:
    """The part, memory-mapped; None unless it exists, is complete, and has `count` images."""
    try:
        with pa.ipc.open_file(pa.memory_map(str(part))) as reader:
            table = reader.read_all()
    except (OSError, pa.ArrowException):
        return None
    return table if table.schema.equals(PART_SCHEMA) and len(table) == count else None


def begin(called_off: Event) -> None:
    """Initialise a worker process: it ends with the process that started it, however that ends."""
    global _called_off
    _called_off = called_off
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _written(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=QUALITY)
    return buffer.getvalue()


_called_off: Event | None = None
