"""What a reader of a data set's numbers should know, wherever they are read."""

from orchestrator.data.duplicates import REFUSED, copies_text
from orchestrator.data.splits import unused_split
from orchestrator.data.store import Store


def remarks(store: Store) -> list[str]:
    """A line each: a split of its own that is not used, exact copies."""
    lines = [line for line in (unused_split(store),) if line is not None]
    duplicates = store.manifest.get("duplicates")
    if isinstance(duplicates, dict) and duplicates.get("copies"):
        serious = any(kind in REFUSED for kind in duplicates["copies"])
        why = "numbers on these are too high, or classes wrong" if serious else "a query finds its own copy"
        lines.append(f"{store.name}: has {copies_text(duplicates)}: {why}")
    return lines
