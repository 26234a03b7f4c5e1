"""The card of a data set: what a careful person would look at before trusting a number on it."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from orchestrator.data.duplicates import copies_text, near_text
from orchestrator.data.measured import Measured
from orchestrator.storage.files import read_json
from orchestrator.text import pluralize

if TYPE_CHECKING:
    from orchestrator.data.store import Store

CARD, PAGE = "card.json", "card.html"
"""The card's files in a store's folder."""
KINDS_SHOWN = 6


@dataclass(frozen=True)
class DataCard:
    """Counts of a data set. `training` and `test`: its halves of classes, None where one has no query."""

    name: str
    images: int
    classes: int
    splits: dict[str, int]
    training: Measured | None
    test: Measured | None
    class_sizes: tuple[int, int, int]
    """Images of the smallest class, of the median one, of the largest."""
    single: int
    """Classes of one image."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """Width and height of the smallest image, the median one, the largest, by their pixels; empty if not known."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Images by format and mode."""
    duplicates: dict[str, dict[str, int]] = field(default_factory=dict)
    with_orientation: int = 0
    with_transparency: int = 0
    orientation: str = "stored"
    transparency: str = "dropped"
    left_out: dict[str, int] = field(default_factory=dict)
    """Files that are no images, by the ending of their names."""
    remarks: list[str] = field(default_factory=list)
    licences: list[dict[str, str]] = field(default_factory=list)
    """Of its parts: `part`, `licence`, `address`, `attribution`."""

    @classmethod
    def of(cls, store: "Store") -> Self:
        import numpy as np

        from orchestrator.data.remarks import remarks
        from orchestrator.data.splits import halves

        counts = np.sort(np.bincount(store.labels, minlength=store.num_classes))
        sides = halves(store.labels, store.splits, store.num_classes)
        training, test = (Measured.of(store, [np.flatnonzero(np.isin(store.labels, side))]) for side in sides)
        manifest, settings = store.manifest, store.manifest.get("settings", {})
        sizes: list[tuple[int, int]] = []
        if "original_size" in store.columns:
            all_sizes = store.column("original_size").astype(np.int64)
            order = np.argsort(all_sizes.prod(axis=1), kind="stable")
            places = (0, len(order) // 2, len(order) - 1)
            sizes = [(int(width), int(height)) for width, height in all_sizes[order[list(places)]]]
        return cls(
            name=store.name,
            images=len(store),
            classes=store.num_classes,
            splits=dict(manifest["splits"]),
            training=training,
            test=test,
            class_sizes=(int(counts[0]), int(counts[len(counts) // 2]), int(counts[-1])),
            single=int((counts == 1).sum()),
            sizes=sizes,
            kinds=dict(manifest.get("kinds", {})),
            duplicates=dict(manifest.get("duplicates", {})),
            with_orientation=int(manifest.get("with_orientation", 0)),
            with_transparency=int(manifest.get("with_transparency", 0)),
            orientation=settings.get("orientation", "stored"),
            transparency=settings.get("transparency", "dropped"),
            left_out=dict(manifest.get("left_out", {})),
            remarks=remarks(store),
            licences=list(manifest.get("licences", [])),
        )

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """That of a store's folder; None if it has none that can be read."""
        try:
            card = cls(**read_json(folder / CARD))
            fewest, median, most = card.class_sizes
            sizes = [(width, height) for width, height in card.sizes]
            training, test = Measured.read(card.training), Measured.read(card.test)
            card = replace(card, class_sizes=(fewest, median, most), sizes=sizes, training=training, test=test)
            assert card.facts is not None  # it can be shown
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return card

    @property
    def unmeasurable(self) -> str | None:
        """Which halves of the classes have nothing to be found, in one line; None if both have."""
        sides = [side for side, of in (("training", self.training), ("test", self.test)) if of is None]
        if not sides or not self.single:
            return None
        return (
            f"{self.name}: {self.single:,} of {pluralize(self.classes, 'class', 'classes')} "
            f"{'has' if self.single == 1 else 'have'} one image: no image of the {' and '.join(sides)} classes has "
            "another of its class to be found, so nothing can be measured on them"
        )

    @property
    def plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        sides = {side: of and of.plain for side, of in (("training", self.training), ("test", self.test))}
        return asdict(self) | sides

    @property
    def facts(self) -> dict[str, str]:
        """The same as texts, each with its heading."""
        fewest, median, most = self.class_sizes
        single = f"; {pluralize(self.single, 'class has', 'classes have')} one image" if self.single else ""
        facts = {
            "images": f"{self.images:,} of {pluralize(self.classes, 'class', 'classes')}",
            "splits": _list_counts(self.splits),
            "training": _side(self.training),
            "test": _side(self.test),
            "images of a class": f"{fewest:,} to {most:,}, the median {median:,}{single}",
        }
        if self.sizes:
            smallest, middle, largest = (f"{width:,} x {height:,}" for width, height in self.sizes)
            spread = f"{smallest} to {largest} pixels, the median {middle}"
            facts["image sizes"] = f"all {smallest} pixels" if smallest == largest else spread
        if self.kinds:
            kinds = dict(list(self.kinds.items())[:KINDS_SHOWN])
            facts["formats and modes"] = _list_counts(kinds) + (", ..." if len(self.kinds) > KINDS_SHOWN else "")
        if self.duplicates:
            facts["copies"] = copies_text(self.duplicates) if self.duplicates["copies"] else "none"
            facts["near copies"] = near_text(self.duplicates) if self.duplicates["near"] else "none"
        facts["EXIF orientation"] = _of_images(self.with_orientation, self.orientation)
        facts["transparency"] = _of_images(self.with_transparency, self.transparency)
        facts["left out"] = _list_counts(self.left_out) or "nothing"
        if self.licences:
            authors: dict[str, list[str]] = defaultdict(list)
            for of in self.licences:
                authors[of["licence"]].append(of["attribution"])
            facts["licences"] = "; ".join(f"{licence}: {', '.join(names)}" for licence, names in authors.items())
        if self.remarks:
            facts["to know"] = "; ".join(self.remarks)
        return facts


def _side(of: Measured | None) -> str:
    return "no image has another of its class" if of is None else of.text_with_queries


def _of_images(count: int, how: str) -> str:
    return f"{pluralize(count, 'image')}, {how}" if count else "none"


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
