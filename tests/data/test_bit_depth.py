"""Images of every kind that Pillow knows, from a file to the pixels that a training sees."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from orchestrator.data import store as stores
from orchestrator.data.encoding import Keeping, as_mode, encode
from orchestrator.data.pipeline import decode_pixels
from orchestrator.data.prepare import prepare
from orchestrator.data.store import Row, Store, write_store
from orchestrator.errors import DataError

RAMP = np.linspace(0, 65535, 16 * 12).round().astype(np.uint16).reshape(12, 16)
"""All of 16 bits, from black to white."""
AS_EIGHT = np.round(RAMP / 257).astype(np.uint8)


def tiff(levels: np.ndarray[Any, Any], photometric: int = 1, bits: int = 16, sample: int = 1) -> bytes:
    """An uncompressed TIFF of one channel, written by hand, as Pillow writes few of those that there are."""
    height, width = levels.shape
    if bits == 12:
        even, odd = (levels.reshape(-1)[start::2].astype(np.uint32) for start in (0, 1))
        pixels = np.stack([even >> 4, (even & 15) << 4 | odd >> 8, odd & 255], axis=1).astype(np.uint8).tobytes()
    else:
        pixels = levels.tobytes()
    entries = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 0, 277: 1, 278: height}
    entries |= {279: len(pixels), 339: sample}
    start = 8 + 2 + 12 * len(entries) + 4
    entries[273] = start
    fields = b"".join(
        tag.to_bytes(2, "little") + (4).to_bytes(2, "little") + (1).to_bytes(4, "little") + value.to_bytes(4, "little")
        for tag, value in sorted(entries.items())
    )
    return b"II*\0" + (8).to_bytes(4, "little") + len(entries).to_bytes(2, "little") + fields + bytes(4) + pixels


def saved(levels: np.ndarray[Any, Any], kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, kind)
    return buffer.getvalue()


def graymap(levels: np.ndarray[Any, Any], most: int) -> bytes:
    return b"P5 %d %d %d\n" % (*levels.shape[::-1], most) + levels.astype(">u2").tobytes()


DEEP: dict[str, tuple[str, Callable[[], bytes]]] = {
    "16-bit PNG": ("png", lambda: saved(RAMP, "PNG")),
    "16-bit TIFF": ("tif", lambda: saved(RAMP, "TIFF")),
    "16-bit TIFF, big-endian": ("tif", lambda: saved(RAMP.astype(">u2"), "TIFF")),
    "16-bit TIFF, white is zero": ("tif", lambda: tiff(65535 - RAMP, photometric=0)),
    "12-bit TIFF": ("tif", lambda: tiff((RAMP.astype(int) * 4095 + 32767) // 65535, bits=12)),
    "16-bit PGM": ("pgm", lambda: graymap(RAMP, 65535)),
    "12-bit PGM": ("pgm", lambda: graymap((RAMP.astype(int) * 4095 + 32767) // 65535, 4095)),
}


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("name", DEEP)
def test_more_than_8_bits_are_scaled_by_their_depth(tmp_path: Path, name: str, original: bool) -> None:
    """In every place that turns bytes into pixels: the preparation, the store, and the reader of photographs."""
    suffix, write = DEEP[name]
    (tmp_path / "source" / "a").mkdir(parents=True)
    (tmp_path / "source" / "a" / f"1.{suffix}").write_bytes(write())
    store = prepare("folder", tmp_path / "source", tmp_path / "data", name="deep", original=original)
    of_jpeg = 0 if original else 4
    for pixels in (store.image(0), decode_pixels(store.image_bytes(0), 3).permute(1, 2, 0).numpy()):
        assert pixels.shape == (12, 16, 3)
        difference = np.abs(pixels.astype(int) - AS_EIGHT[..., None])
        assert difference.max() <= of_jpeg + (1 if "12-bit" in name else 0)


def test_16_bit_colours_keep_their_upper_byte() -> None:
    levels = np.stack([RAMP, RAMP.T.reshape(12, 16), RAMP[::-1]], axis=-1)
    pixels = b"P6 16 12 65535\n" + levels.astype(">u2").tobytes()
    with Image.open(io.BytesIO(pixels)) as image:
        assert np.abs(np.asarray(as_mode(image, "RGB")).astype(int) - levels // 257).max() <= 1


REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "32-bit TIFF": ("tif", lambda: saved(RAMP.astype(np.int32), "TIFF")),
    "float TIFF": ("tif", lambda: saved((RAMP / 65535).astype(np.float32), "TIFF")),
    "signed 16-bit TIFF": ("tif", lambda: tiff(RAMP.astype(np.int16), sample=2)),
    "float map": ("ppm", lambda: b"Pf\n16 12\n-1.0\n" + (RAMP / 65535).astype("<f4").tobytes()),
}


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_pixels_of_unknown_range_are_refused_by_the_name_of_their_file(
    tmp_path: Path, name: str, original: bool
) -> None:
    suffix, write = REFUSED[name]
    (tmp_path / "source" / "a").mkdir(parents=True)
    (tmp_path / "source" / "a" / f"deep.{suffix}").write_bytes(write())
    with pytest.raises(DataError, match=rf"a/deep\.{suffix} \(.*whose range the file does not state") as caught:
        prepare("folder", tmp_path / "source", tmp_path / "data", name="deep", original=original)
    assert "\n" not in str(caught.value)


def test_a_store_that_holds_such_pixels_already_is_one_line(tmp_path: Path) -> None:
    data = saved(RAMP.astype(np.int32), "TIFF")
    rows = [Row(data, 0, "train")]
    write_store(
        tmp_path / "old", name="old", channels=3, class_names=["a"], rows=rows, seed=None, settings={"encoding": "x"}
    )
    with pytest.raises(DataError, match="image 0 cannot be decoded .*whose range"):
        Store.open(tmp_path / "old").image(0)
    with pytest.raises(ValueError, match="whose range"):
        decode_pixels(data, 3)


def palette(transparency: Any) -> Image.Image:
    image = Image.fromarray(AS_EIGHT // 64, "P")
    image.putpalette([200, 10, 30, 0, 250, 9, 7, 8, 240, 90, 90, 91])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


def eight(mode: str) -> Callable[[], Image.Image]:
    return lambda: Image.fromarray(AS_EIGHT).convert(mode)


EIGHT: dict[str, Callable[[], Image.Image]] = {
    **{mode: eight(mode) for mode in ("1", "L", "LA", "CMYK", "YCbCr")},
    "RGB": lambda: Image.fromarray(np.stack([AS_EIGHT, AS_EIGHT.T.reshape(12, 16), AS_EIGHT[::-1]], axis=-1)),
    "RGBA": lambda: Image.fromarray(np.stack([AS_EIGHT, AS_EIGHT[::-1], AS_EIGHT, AS_EIGHT // 2], axis=-1)),
    "P": lambda: palette(None),
    "P, one transparent": lambda: palette(1),
    "P, all half transparent": lambda: palette(bytes([9, 90, 190, 255])),
    "PA": lambda: palette(None).convert("PA"),
}


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("name", EIGHT)
def test_images_of_8_bits_are_what_they_always_were(name: str, mode: str) -> None:
    image = EIGHT[name]()
    np.testing.assert_array_equal(np.asarray(as_mode(image, mode)), np.asarray(EIGHT[name]().convert(mode)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("1", "PNG"), ("L", "PNG"), ("L", "JPEG"), ("LA", "PNG"), ("RGBA", "PNG"), ("P", "GIF"), ("CMYK", "JPEG")]
    + [(name, "PNG") for name in ("P", "P, one transparent", "P, all half transparent")],
)
def test_the_bytes_of_images_of_8_bits_stay_equal(tmp_path: Path, name: str, kind: str) -> None:
    """So does the digest of a data set made of them."""
    path = tmp_path / "image"
    EIGHT[name]().save(path, kind)
    with Image.open(path) as image:
        wanted = image.convert("RGB")
    wanted.info.clear()
    buffer = io.BytesIO()
    wanted.save(buffer, "JPEG", quality=95)
    assert encode(str(path), Keeping(256)).image == buffer.getvalue()


def test_the_test_sees_what_clipping_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Pillow's own conversion the ramp becomes white: its mean is 255 in place of 127."""
    monkeypatch.setattr(stores, "as_mode", lambda image, mode: image.convert(mode))
    data = saved(RAMP, "PNG")
    write_store(
        tmp_path / "x",
        name="x",
        channels=3,
        class_names=["a"],
        rows=[Row(data, 0, "train")],
        seed=None,
        settings={},
    )
    assert Store.open(tmp_path / "x").image(0).mean() > 250
    monkeypatch.undo()
    assert abs(Store.open(tmp_path / "x").image(0).mean() - 127.5) < 1
