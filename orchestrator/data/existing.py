"""A data set that is prepared already: whether it is what is asked for, of the same images and labels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.data.archives.catalog import OWN
from orchestrator.data.archives.listing import as_text
from orchestrator.data.catalog import check_source
from orchestrator.data.changes import changes, refusal
from orchestrator.data.sources import read_source
from orchestrator.data.store import Store
from orchestrator.errors import DataError
from orchestrator.problems import Option, Problem


def existing_store(
    path: Path,
    importer: str,
    settings: dict[str, Any],
    asked: set[str],
    source: Path | str | None,
    tell: Callable[[str], None],
) -> Store:
    """The existing store; DataError if it was made with other settings, or from other images or labels."""
    store = Store.open(path)
    if importer in OWN and source is None:
        check_source(importer, None)
    made_of, origin = store.manifest.get("source"), source and Path(source).expanduser().absolute()
    if importer in OWN and not (made_of is None or _is_source(made_of, Path(str(origin)), importer)):
        made = f"{path}: already exists, made from {made_of}, not {origin}; delete that folder, or give another "
        raise DataError(Problem(rule=(made, Option("name"))))
    stored_settings = {"orientation": "stored", "transparency": "dropped"} | store.manifest.get("settings", {})
    earlier = []
    for key, value in settings.items():
        if stored_settings.get(key) == value:
            continue
        if key in ("orientation", "transparency") and key not in asked:  # the default of an earlier version
            earlier.append(f"{key} {stored_settings[key]}, not {value}")
            continue
        made = (
            f"{path}: already exists, with {key} {stored_settings.get(key)}, not {value}; delete that folder, or give "
        )
        raise DataError(Problem(rule=(f"{made}another ", Option("name"))))
    if earlier:
        tell(f"{path}: was made with {' and '.join(earlier)}, as it is today; another --name makes it anew")
    if importer == "csv" and origin and origin.is_dir() and made_of is not None:
        origin = Path(made_of)  # the table that was meant, if there are others beside it now
    if not origin or not origin.exists():  # without a source: packages, which are as they were
        return store
    try:
        listing = read_source(importer, origin, store.name, path.parent)
    except DataError as error:
        raise DataError(
            f"{path}: already exists, and what it was made of cannot be read any more: {error}; put that right, or "
            f"move {origin} away to use the data set as it is"
        ) from None
    if "source" in store.columns and (differences := changes(store, listing)):
        raise DataError(refusal(path, listing.origin, differences, len(store)))
    return store


def _is_source(made_of: str, origin: Path, importer: str) -> bool:
    """Whether a store was made of this folder or table, by whatever path it is reached."""
    places = [origin, origin.resolve()]
    earlier = {Path(made_of), Path(made_of).resolve()}
    earlier |= {path.parent for path in earlier} if importer == "csv" else set()
    return any(Path(as_text(str(place))) in earlier for place in places)
