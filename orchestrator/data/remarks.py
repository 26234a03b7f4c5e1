"""What a reader of a data set's numbers should know, wherever they are read."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from orchestrator.data.duplicates import APART, FILE, REFUSED, copies_text, near_text
from orchestrator.data.encoding import UPRIGHT
from orchestrator.data.splits import unused_split
from orchestrator.data.store import Store


def remarks(store: Store) -> list[str]:
    """A line each: a split of its own that is not used; exact copies; near copies apart from one another."""
    lines = [line for line in (unused_split(store),) if line is not None]
    duplicates = store.manifest.get("duplicates")
    if not isinstance(duplicates, dict):
        return lines
    if duplicates.get("copies"):
        serious = any(kind in REFUSED for kind in duplicates["copies"])
        why = "numbers on these are too high, or classes wrong" if serious else "a query finds its own copy"
        lines.append(f"{store.name}: {copies_text(duplicates)}: {why}")
    if near := near_text(duplicates, APART):
        lines.append(f"{store.name}: {near}: numbers are too high if two are one picture; {FILE} lists them")
    return lines


def of_pictures(facts: pa.Table, settings: Mapping[str, Any]) -> Iterator[str]:
    """How many images have an orientation or transparency, and what becomes of it."""
    turned = int((facts["orientation"].to_numpy() != UPRIGHT).sum())
    if turned:
        done = "which is applied" if settings.get("orientation") == "applied" else "which is not applied"
        yield f"{turned:,} of {len(facts):,} images have an orientation in their EXIF data, {done}"
    transparent = int(facts["transparent"].to_numpy().sum())
    if transparent:
        done = "shown on white" if settings.get("transparency") == "white" else "dropped, so that what it hides is seen"
        yield f"{transparent:,} of {len(facts):,} images have transparency, which is {done}"
