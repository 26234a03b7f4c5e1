"""Images of an archive -> the bytes that a store keeps, in parts that survive an interruption.

A part is a small Arrow file with a row per image, the fields of `Encoded`. Worker processes run this module, so it
imports nothing that is slow to load.
"""

import hashlib
import io
import os
import threading
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import parent_process
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL import __version__ as pillow_version

from orchestrator.data.looks import SIDE, perceptual_hashes
from orchestrator.storage.files import what_is
from orchestrator.storage.opening import open_file

QUALITY = 95  # on photographs an error of about two grey levels, at a quarter of the size of PNG
KEPT_FORMATS = ("JPEG", "PNG")
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")
"""The formats that are read, by Pillow's names; JPEG includes MPO. None of them calls another program (EPS does)."""
PART_SCHEMA = pa.schema(
    [
        ("image", pa.binary()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("content", pa.string()),
        ("exact", pa.string()),
        ("pixels", pa.string()),
        ("look", pa.string()),
        ("orientation", pa.int8()),
        ("transparent", pa.bool_()),
        ("kind", pa.string()),
    ]
)

IMAGE_BYTES = 1 << 29
"""The most bytes of an image file, 512 MiB: those of the most pixels that Pillow decodes, uncompressed in RGB."""
CONVERSION = 4
"""Increased when images get other pixels than before: parts of an interrupted preparation are then not used."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
SCALED_TO_SIXTEEN = ("PNG", "PPM")
"""Formats whose grey levels of more than 8 bits Pillow may give as 32-bit integers, from 0 to 65535."""
BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0
"""TIFF's tags, and a value of the second."""


@dataclass(frozen=True)
class Drawing:
    """A picture that is drawn: `svg`, with its viewBox, as a square of `side` pixels on white.

    Letters are not drawn: which fonts there are differs between machines.
    """

    svg: str
    side: int

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """uint8 (side, side, 3); ValueError for what is no SVG."""
        import resvg_py

        drawn = resvg_py.svg_to_bytes(
            svg_string=self.svg, width=self.side, height=self.side, background="white", skip_system_fonts=True
        )
        with open_image(bytes(drawn)) as image:
            return np.asarray(as_mode(image, "RGB"))


Content = str | NDArray[np.uint8] | Drawing
"""A file, pixels (H, W, 3), or what is to be drawn."""


ORIENTATIONS, TRANSPARENCIES = ("stored", "applied"), ("dropped", "white")
"""What a data set can make of an orientation in an image's EXIF data, and of transparency."""
ORIENTATION, UPRIGHT = 0x0112, 1
"""EXIF's tag, and its value for images that are shown as they are stored."""


@dataclass(frozen=True)
class Keeping:
    """How a data set keeps its images: what `encode` does, as the manifest's settings record it."""

    size: int | None = None
    """Most pixels of the shorter side; None keeps the files' bytes."""
    decoded: bool = False
    """Whether pixels are kept, as PPM."""
    orientation: str = "stored"
    transparency: str = "dropped"

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """From the settings of a manifest; older ones do not tell orientation and transparency."""
        size = settings.get("size")
        return cls(
            size if isinstance(size, int) else None,
            settings.get("encoding") == "JPEG, decoded",
            settings.get("orientation", ORIENTATIONS[0]),
            settings.get("transparency", TRANSPARENCIES[0]),
        )


class Encoded(NamedTuple):
    """One image as a store keeps it, and what is known of the original: its size, and for finding copies, digests."""

    image: bytes
    width: int
    height: int
    content: str = ""
    """128 bits of SHA-256 of the file's bytes, or of pixels, in hexadecimal."""
    exact: str = ""
    """Of the pixels that are kept, before they are encoded: equal for one picture in two formats."""
    pixels: str = ""
    """128 bits of SHA-256 of a thumbnail, with a shorter side of 64 to 127 pixels: equal for the same pixels."""
    look: str = ""
    """The perceptual hash (pHash, 64 bits, in hexadecimal), which hardly changes when an image is resized or
    re-encoded; "" for an image with nothing to see."""
    orientation: int = UPRIGHT
    """In the file's EXIF data."""
    transparent: bool = False
    """Whether some of its pixels are not opaque."""
    kind: str = ""
    """Format and mode, as in `PNG RGBA`."""


class UnreadableImage(ValueError):
    """A file that is no image that can be read; the message is the reason, in one line."""

    @classmethod
    def of(cls, error: Exception) -> Self:
        """From what a decoder raised: on broken files IndexError, zlib.error, SyntaxError, whatever."""
        if isinstance(error, UnidentifiedImageError):
            return cls("not an image")  # Pillow's message contains a memory address
        reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        return cls(" ".join(reason.split()))


class Unreadable(NamedTuple):
    """An image that cannot be read: its position in the part, and why."""

    position: int
    reason: str


def encode(content: Content, keeping: Keeping) -> Encoded:
    """The image with a shorter side of at most `keeping.size`, RGB, as JPEG of quality 95; without a size the file's
    own bytes. `exact`, `pixels` and `look` are left out.

    It is never enlarged. A JPEG or PNG file that is already RGB, upright, opaque and small enough is kept byte for
    byte, and pixels become PNG. Re-encoded images carry no metadata. Every image is decoded completely. Raises OSError
    (also Pillow's, for broken files), ValueError for pixels that `as_mode` refuses, or whatever else a decoder raises
    on damaged data.
    """
    return _encode(content, keeping)[0]


TURNED_BACK = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""By a tag of orientation: what undoes the turn that it asks for."""


def _encode(content: Content, keeping: Keeping) -> tuple[Encoded, Image.Image]:
    """The same, and its pixels before they were encoded."""
    if isinstance(content, Drawing):
        content = content.pixels
    if not isinstance(content, str):
        image = Image.fromarray(content)
        shape = repr(content.shape).encode()
        facts = Encoded(_write(image, "PNG"), content.shape[1], content.shape[0], digest(shape + content.tobytes()))
        return facts._replace(kind="pixels RGB"), image
    data = read_image(Path(content))
    with open_image(data) as image:
        # Pillow turns a TIFF while it is read, and forgets how
        in_tiff = image.getexif().get(ORIENTATION, UPRIGHT) if image.format == "TIFF" else None
        image.load()
        orientation = image.getexif().get(ORIENTATION, UPRIGHT) if in_tiff is None else in_tiff
        orientation = orientation if orientation in range(UPRIGHT, 9) else UPRIGHT
        transparent = _transparent(image)
        facts = Encoded(data, 0, 0, digest(data), orientation=orientation, transparent=transparent)
        facts = facts._replace(kind=f"{image.format} {image.mode}")
        turned = keeping.orientation == "applied" and orientation != UPRIGHT
        blended = keeping.transparency == "white" and transparent
        as_it_is = image.mode == "RGB" and image.format in KEPT_FORMATS and not turned and not blended
        if turned:
            ImageOps.exif_transpose(image, in_place=True)
        width, height = image.size
        rgb = _on_white(image) if blended else as_mode(image, "RGB")
        if in_tiff is not None and keeping.orientation != "applied" and orientation in TURNED_BACK:
            rgb = rgb.transpose(TURNED_BACK[orientation])
            width, height = rgb.size
    facts = facts._replace(width=width, height=height)
    if keeping.size is None:
        return facts, rgb
    shorter, size = min(width, height), keeping.size
    if shorter > size:
        scaled = tuple(size if side == shorter else round(side * size / shorter) for side in (width, height))
        rgb = rgb.resize((scaled[0], scaled[1]), Image.Resampling.BICUBIC)
    if as_it_is and shorter <= size:
        return facts, rgb
    rgb.info.clear()
    return facts._replace(image=_write(rgb, "JPEG")), rgb


def read_image(path: Path) -> bytes:
    """The bytes of an image file. OSError, or ValueError for what is no file or has more than IMAGE_BYTES: pipes and
    devices are not waited for, and no file without an end is read."""
    if (what := what_is(path)) is not None:
        raise ValueError(f"is {what}, not an image file")
    with open_file(path) as file:
        data = file.read(IMAGE_BYTES + 1) if os.fstat(file.fileno()).st_size <= IMAGE_BYTES else None
    if data is None or len(data) > IMAGE_BYTES:
        raise ValueError(f"has more than {IMAGE_BYTES >> 20} MiB, the most that is read of an image file")
    return data


def open_image(data: bytes | memoryview | Path) -> Image.Image:
    """An image of one of the FORMATS, by its content; Pillow's errors."""
    return Image.open(data if isinstance(data, Path) else io.BytesIO(data), formats=FORMATS)


def digest(data: bytes) -> str:
    """128 bits of SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()[:32]


def _thumbnail(rgb: Image.Image) -> tuple[str, NDArray[np.uint8]]:
    """A digest of all pixels' means, and a grey thumbnail for `perceptual_hashes`."""
    small = rgb.reduce(max(1, min(rgb.size) // 64))
    grey = small.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    return digest(b"%d %d\n" % rgb.size + small.tobytes()), np.asarray(grey)


def _transparent(image: Image.Image) -> bool:
    if not image.has_transparency_data:
        return False
    if image.mode in SIXTEEN_BITS or image.mode == "I":
        return bool((np.asarray(image) == image.info["transparency"]).any())
    alpha = image.getchannel("A") if "A" in image.getbands() else image.convert("RGBA").getchannel("A")
    return int(alpha.getextrema()[0]) < 255  # type: ignore[arg-type]


def _on_white(image: Image.Image) -> Image.Image:
    """An image with transparent pixels, in RGB as it looks on white."""
    if image.mode in SIXTEEN_BITS or image.mode == "I":
        levels = np.asarray(as_mode(image, "L")).copy()
        levels[np.asarray(image) == image.info["transparency"]] = 255
        return Image.fromarray(levels).convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def to_ppm(encoded: Encoded) -> Encoded:
    """The same image with its pixels uncompressed: PPM, a line each for format, width and height, and 255, then bytes.

    They are the pixels that the encoded image gives whenever it is decoded.
    """
    with open_image(encoded.image) as image:
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
    image.load()
    return image if image.mode == mode else image.convert(mode)  # a copy takes as long as a third of the decoding


def part_path(folder: Path, number: int, contents: Sequence[Content], keeping: Keeping) -> Path:
    """The part's file. Its name identifies the sources (files by path, length and time) and the settings.

    Raises OSError if a file is missing.
    """
    name = hashlib.sha256(repr((keeping, QUALITY, CONVERSION, pillow_version)).encode())
    for content in contents:
        if isinstance(content, str):
            status = Path(content).stat()
            name.update(repr((content, status.st_size, status.st_mtime_ns)).encode())
        elif isinstance(content, Drawing):
            name.update(repr((content, version("resvg-py"))).encode())
        else:
            name.update(repr(content.shape).encode() + content.tobytes())
    return folder / f"{number:05d}-{name.hexdigest()[:24]}.arrow"


def write_part(part: Path, contents: Sequence[Content], keeping: Keeping) -> list[Unreadable] | None:
    """Encode the images into the file `part`, whole or not at all.

    Returns those that cannot be read (the part is then not written), or None if the work was cancelled in between.
    Raises OSError if the part cannot be written.
    """
    encoded: list[Encoded] = []
    thumbnails: list[NDArray[np.uint8]] = []
    unreadable: list[Unreadable] = []
    for position, content in enumerate(contents):
        if _called_off is not None and _called_off.is_set():
            return None
        try:
            with warnings.catch_warnings(action="ignore"):
                image, rgb = _encode(content, keeping)
                pixels, thumbnail = _thumbnail(rgb)
                exact = f"{pixels}{zlib.crc32(rgb.tobytes()):08x}"  # a third of SHA-256's time, for equal means alone
                image = image._replace(exact=exact, pixels=pixels)
                encoded.append(to_ppm(image) if keeping.decoded else image)
                thumbnails.append(thumbnail)
        except MemoryError:
            raise
        except Exception as error:
            unreadable.append(Unreadable(position, str(UnreadableImage.of(error))))
    if unreadable:
        return unreadable
    rows = [row._replace(look=look) for row, look in zip(encoded, perceptual_hashes(np.stack(thumbnails)), strict=True)]
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(PART_SCHEMA)]
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


def begin_encoding(called_off: Event) -> None:
    """Initialise a worker process: it ends with the process that started it, however that ends."""
    global _called_off
    _called_off = called_off
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _write(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=QUALITY)
    return buffer.getvalue()


_called_off: Event | None = None
