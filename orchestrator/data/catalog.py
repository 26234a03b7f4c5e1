"""The data sets that can be asked for by name, and where each one's store comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.data.store import DataError, Store
from orchestrator.errors import suggestion

Say = Callable[[str], None]


@dataclass(frozen=True)
class DatasetInfo:
    """A data set's entry in the catalog.

    `images` and `classes` are what is expected; for drawn sets they can drift with the versions of Pillow and
    matplotlib, and the store's manifest has the true numbers. `build(path, say)` makes the store at `path`.
    """

    name: str
    summary: str
    images: int
    classes: int
    how_to_get: str
    build: Callable[[Path, Say], Store]


def datasets() -> dict[str, DatasetInfo]:
    """The known data sets by name."""
    return dict(_CATALOG)


def open_dataset(name: str, root: Path | str, *, say: Say | None = None) -> Store:
    """The store of a data set at `root / name`, made first if it is not there.

    `say` gets one line when something that takes time is done. Raises DataError for an unknown name, for a store
    that is damaged, and for a folder that cannot be written.
    """
    if name not in _CATALOG:
        raise DataError(f"unknown data set '{name}'{suggestion(name, _CATALOG)}")
    path = Path(root).absolute() / name
    if path.exists():
        return Store.open(path)
    return _CATALOG[name].build(path, say or (lambda line: None))


def _draw_glyphs(path: Path, say: Say, *, name: str, classes: int | None, draws: int) -> Store:
    from orchestrator.data.glyphs import GlyphSettings, build_glyphs  # matplotlib is needed for drawing only

    say(f"drawing the data set {name} into {path} (once, well under a minute)")
    return build_glyphs(path, name, GlyphSettings(classes=classes, draws=draws))


_GLYPHS = "the same character across 16 typefaces"
_DRAWN = "drawn from matplotlib's fonts when first used; nothing to download"

_CATALOG = {
    info.name: info
    for info in (
        DatasetInfo(
            name="glyphs",
            summary=f"{_GLYPHS}, all distinct characters",
            images=24064,
            classes=376,
            how_to_get=_DRAWN,
            build=partial(_draw_glyphs, name="glyphs", classes=None, draws=4),
        ),
        DatasetInfo(
            name="glyphs-small",
            summary=f"{_GLYPHS}, small enough for a demo",
            images=3840,
            classes=120,
            how_to_get=_DRAWN,
            build=partial(_draw_glyphs, name="glyphs-small", classes=120, draws=2),
        ),
    )
}
