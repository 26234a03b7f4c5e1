"""The harder drawn set: more typefaces, and drawings that are bent, blotted and struck through."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orchestrator.data import glyphs
from orchestrator.data.catalog import datasets
from orchestrator.data.glyphs import COMPUTER_MODERN, FACES, SETS, GlyphSettings, build_glyphs
from orchestrator.data.store import Store

HARD = SETS["glyphs-hard"]
PLAIN = GlyphSettings()
FEW = replace(HARD, classes=24, at_least=16)
"""Characters of sixteen faces at least: their choice takes a second."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return build_glyphs(tmp_path_factory.mktemp("hard") / "few", "few", FEW)


def test_a_character_is_drawn_in_the_faces_that_have_it(store: Store) -> None:
    assert len(set(FACES) & set(COMPUTER_MODERN)) == 0 and len(HARD.faces) == 21
    sizes = np.bincount(store.labels)
    latin = [name[0].isascii() and name[0].isalnum() for name in store.class_names]
    assert 0 < sum(latin) < 24
    np.testing.assert_array_equal(sizes[latin], 21)  # Computer Modern too, of which no other character is taken
    assert set(sizes[np.logical_not(latin)]) == {16}
    assert datasets()["glyphs-hard"].classes == HARD.classes == 1000


def test_the_same_settings_draw_the_same(store: Store, tmp_path: Path) -> None:
    again = build_glyphs(tmp_path / "a", "a", replace(FEW, classes=2))
    assert all(again.image_bytes(row) == store.image_bytes(row) for row in range(len(again)))
    other = build_glyphs(tmp_path / "b", "b", replace(FEW, classes=2, seed=1))
    assert other.manifest["digest"] != again.manifest["digest"]


@pytest.mark.parametrize("changed", [replace(PLAIN, stroke=2), replace(PLAIN, clutter=2)])
def test_each_distortion_changes_drawings(changed: GlyphSettings) -> None:
    drawing = glyphs._draw("A", glyphs._font(FACES[0], 40), 64)
    distorted = [
        [
            glyphs._distort(drawing.copy(), replace(settings, noise=0.0), np.random.default_rng(seed))
            for seed in range(8)
        ]
        for settings in (PLAIN, changed)
    ]
    assert sum(not np.array_equal(one, other) for one, other in zip(*distorted, strict=True)) >= 5


def test_lines_never_vanish() -> None:
    """A hair line would, if it were thinned by one pixel on each side."""
    thin = Image.new("L", (64, 64))
    thin.paste(255, (30, 10, 32, 50))
    wide = Image.new("L", (64, 64))
    wide.paste(255, (20, 20, 44, 44))
    for drawing in (thin, wide):
        ink = np.asarray(drawing).sum()
        sums = {
            int(np.asarray(glyphs._change_stroke(drawing, 2, np.random.default_rng(seed))).sum()) for seed in range(40)
        }
        assert min(sums) >= ink / 2 and max(sums) > ink
        assert len(sums) == (3 if drawing is thin else 5)


def test_computer_modern_s_letters_are_letters() -> None:
    """Its other codes are TeX's: a face's A would be another sign."""
    assert glyphs._codes("cmr10.ttf") == {
        ord(c) for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    }
    pictures = {
        (face, letter): np.asarray(glyphs._draw(letter, glyphs._font(face, 40), 64), np.float32).ravel()
        for face in ("DejaVuSerif.ttf", "cmr10.ttf")
        for letter in "AHOX"
    }
    for letter in "AHOX":
        other = pictures["cmr10.ttf", letter]
        alike = {name: float(pictures["DejaVuSerif.ttf", name] @ other) for name in "AHOX"}
        assert max(alike, key=lambda name: alike[name]) == letter
