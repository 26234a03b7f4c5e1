"""The embedded data set: the same character drawn in sixteen typefaces.

A class is a character; its images show it in the faces that matplotlib ships, each a few times with a small random
distortion. It is real type design with real sub-populations inside a class (serif, mono, italic) and needs no
download. Drawings depend on the seed, the settings below and the versions of Pillow and matplotlib, all recorded in
the manifest.
"""

import io
import math
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from orchestrator.data.store import Row, Store, write_store
from orchestrator.errors import DataError

FACES = (
    *(f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")),
)
COMPUTER_MODERN = ("cmr10.ttf", "cmb10.ttf", "cmti10.ttf", "cmss10.ttf", "cmtt10.ttf")
"""More faces; of each only Latin letters and digits are used: other characters have codes of TeX's there."""
# Characters are compared in one face of each design: without and with serifs.
COMPARED = ("DejaVuSans.ttf", "STIXGeneral.ttf")
OVERSAMPLING = 2  # drawn at twice the size, distorted, then averaged down: smooth edges at any angle


@dataclass(frozen=True)
class GlyphSettings:
    """What a set of drawings depends on, with the versions of Pillow and matplotlib.

    `rotation` and `shear` are in degrees, `shift` in pixels, `scale` a share, each the half-width of a uniform
    distribution around no change; `noise` is the standard deviation of the grey values, on a scale of 0 to 1.
    `stroke`: lines are thicker or thinner on each side by a whole number of half pixels up to this, drawn uniformly,
    as long as half of the ink stays; `clutter`: so many grey lines at random places lie over each drawing. A character
    is drawn in those of `faces` that have it, `at_least` so many (None: all), and looks different from the others in
    each of those `compared`.
    """

    classes: int | None = None  # None: all remaining characters
    draws: int = 4
    seed: int = 0
    size: int = 32
    font_size: int = 20
    rotation: float = 12.0
    scale: float = 0.15
    shear: float = 10.0
    shift: float = 2.0
    noise: float = 0.1
    similarity: float = 0.85
    stroke: int = 0
    clutter: int = 0
    faces: tuple[str, ...] = FACES
    at_least: int | None = None
    compared: tuple[str, ...] = COMPARED


SETS = {
    "glyphs": GlyphSettings(),
    "glyphs-small": GlyphSettings(classes=120, draws=2),
    "glyphs-hard": GlyphSettings(
        classes=1000,
        draws=1,
        rotation=25.0,
        scale=0.25,
        shear=20.0,
        shift=3.0,
        noise=0.15,
        stroke=2,
        clutter=2,
        faces=(*FACES, *COMPUTER_MODERN),
        at_least=8,
        compared=("DejaVuSans.ttf", "DejaVuSerif.ttf"),
    ),
}
"""By the names of the data sets."""


def characters(settings: GlyphSettings) -> list[str]:
    """The characters that become classes, in the seed's order.

    Letters, numbers, symbols and punctuation that enough faces cover, in code-point order; one is dropped if the cosine
    similarity of its drawing with one already kept is above `settings.similarity` in either of the compared faces.
    The seed then shuffles them, so that each half of the classes holds letters of every script.
    """
    faces = {face: _codes(face) for face in settings.faces}
    count = Counter(code for codes in faces.values() for code in codes)
    covered = {code for code, number in count.items() if number >= (settings.at_least or len(faces))}
    covered = covered.intersection(*(faces[face] for face in settings.compared))
    candidates = [chr(code) for code in sorted(covered) if unicodedata.category(chr(code))[0] in "LNSP"]
    similarity = np.zeros((len(candidates), len(candidates)), np.float32)
    for face in settings.compared:
        font = _font(face, settings.font_size)
        drawings = np.stack([np.asarray(_draw(c, font, settings.size), np.float32).ravel() for c in candidates])
        drawings /= np.maximum(np.linalg.norm(drawings, axis=1, keepdims=True), 1e-6)
        similarity = np.maximum(similarity, drawings @ drawings.T)
    codes: list[int] = []
    for i in range(len(candidates)):
        blank = similarity[i, i] == 0  # a few fonts map a code to a glyph without ink
        if not blank and similarity[i, codes].max(initial=0) <= settings.similarity:
            codes.append(i)
    if settings.classes is not None and settings.classes > len(codes):
        raise DataError(
            f"glyphs: {settings.classes} classes requested, but only {len(codes)} characters are distinct; give fewer"
        )
    order = np.random.default_rng(settings.seed).permutation(codes)
    return [candidates[i] for i in order[: settings.classes]]


def build_glyphs(
    path: Path, name: str, settings: GlyphSettings, progress: Callable[[int, int], None] | None = None
) -> Store:
    """Draw a set into a new store at `path`: the first half of the classes is for training, the second for testing.

    `progress` is called with the number of classes drawn and the number of all classes.
    """
    classes = characters(settings)

    def rows() -> Iterator[Row]:
        fonts = [(_font(face, settings.font_size * OVERSAMPLING), _codes(face)) for face in settings.faces]
        for label, character in enumerate(classes):
            split = "train" if label < len(classes) // 2 else "test"
            # One generator per character: its images do not depend on which others are drawn.
            rng = np.random.default_rng([settings.seed, ord(character)])
            for font in (font for font, codes in fonts if ord(character) in codes):
                drawing = _draw(character, font, settings.size * OVERSAMPLING)
                for _ in range(settings.draws):
                    yield Row(_png(_distort(drawing, settings, rng)), label, split)
            if progress:
                progress(label + 1, len(classes))

    return write_store(
        path,
        name=name,
        channels=1,
        class_names=[f"{c} {unicodedata.name(c, f'U+{ord(c):04X}')}" for c in classes],
        rows=rows(),
        seed=settings.seed,
        settings=asdict(settings),
    )


def _codes(face: str) -> set[int]:
    """The code points that a face has a glyph for."""
    codes = {code for code, glyph in FT2Font(str(_path(face))).get_charmap().items() if glyph}
    return codes & set(map(ord, string.ascii_letters + string.digits)) if face in COMPUTER_MODERN else codes


def _path(face: str) -> Path:
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / face
    if not path.is_file():
        raise DataError(f"{path}: this font of matplotlib is missing; reinstall matplotlib")
    return path


def _font(face: str, size: int) -> ImageFont.FreeTypeFont:
    # The basic layout is always available; Raqm is not in every build of Pillow and may draw differently.
    return ImageFont.truetype(_path(face), size, layout_engine=ImageFont.Layout.BASIC)


def _draw(character: str, font: ImageFont.FreeTypeFont, size: int) -> Image.Image:
    """White on black, with the centre of the inked box at the centre of the image."""
    canvas = Image.new("L", (3 * size, 3 * size))
    ImageDraw.Draw(canvas).text((size, 2 * size), character, font=font, fill=255, anchor="ls")
    left, top, right, bottom = canvas.getbbox() or (0, 0, 0, 0)
    x, y = (left + right - size) // 2, (top + bottom - size) // 2
    return canvas.crop((x, y, x + size, y + size))


def _distort(drawing: Image.Image, settings: GlyphSettings, rng: np.random.Generator) -> NDArray[np.uint8]:
    drawing = _change_stroke(drawing, settings.stroke, rng)
    angle, shear, scale_x, scale_y, shift_x, shift_y = rng.uniform(-1, 1, 6)
    angle = math.radians(angle * settings.rotation)
    shear = math.tan(math.radians(shear * settings.shear))
    scale = np.diag([1 + scale_x * settings.scale, 1 + scale_y * settings.scale])
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    # Pillow maps each point of the result to its source, so the matrix is the inverse, about the image's centre.
    inverse = np.linalg.inv(rotation @ np.array([[1, shear], [0, 1]]) @ scale)
    middle = np.full(2, drawing.width / 2)
    moved = middle + np.array([shift_x, shift_y]) * settings.shift * OVERSAMPLING
    offset = middle - inverse @ moved
    data = (*inverse[0], offset[0], *inverse[1], offset[1])
    bent = drawing.transform(drawing.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
    _clutter(bent, settings.clutter, rng)
    grey = np.asarray(bent.reduce(OVERSAMPLING), np.float32)
    grey = grey + 255 * settings.noise * rng.standard_normal(grey.shape, np.float32)
    return np.clip(np.rint(grey), 0, 255).astype(np.uint8)


def _change_stroke(drawing: Image.Image, most: int, rng: np.random.Generator) -> Image.Image:
    """With all lines thicker or thinner by up to `most` pixels of this size; half of the ink stays at least."""
    if not most:
        return drawing
    change = int(rng.integers(-most, most + 1))
    kind, ink = ImageFilter.MaxFilter if change > 0 else ImageFilter.MinFilter, np.asarray(drawing).sum()
    for _ in range(abs(change)):
        filtered = drawing.filter(kind(3))
        drawing = filtered if np.asarray(filtered).sum() >= ink / 2 else drawing
    return drawing


def _clutter(drawing: Image.Image, lines: int, rng: np.random.Generator) -> None:
    """Draw so many straight lines over it, each between two points, grey, one to three pixels of this size wide."""
    for _ in range(lines):
        ends = [float(end) for end in rng.uniform(0, drawing.width, 4)]
        grey, width = int(rng.integers(80, 200)), int(rng.integers(1, 4))
        ImageDraw.Draw(drawing).line(ends, fill=grey, width=width)


def _png(image: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "png", compress_level=1)
    return buffer.getvalue()
