"""How the images that a data set was made of have changed since: by their names, classes, splits and contents."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.data.archives.listing import Listing, Picture, as_text
from orchestrator.data.encoding import Drawing, digest, read_image
from orchestrator.data.store import Store
from orchestrator.text import pluralize

READERS = 8
"""Threads that read files; the digests are computed without the interpreter's lock."""
NAMED = 3


@dataclass
class Changes:
    """What differs, as texts that name the images."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """The same content under another name."""
    relabelled: list[str] = field(default_factory=list)
    resplit: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    """Another content under the same name."""

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        """`2 of another class (1.jpg: cat, now dog; ...), 1 removed (3.jpg)`"""
        kinds = {
            "of another class": self.relabelled,
            "of another split": self.resplit,
            "moved or renamed": self.moved,
            "with another content": self.altered,
            "added": self.added,
            "removed": self.removed,
        }
        return ", ".join(f"{len(names):,} {kind} ({_some(names)})" for kind, names in kinds.items() if names)


def content_of(listing: Listing, picture: Picture) -> str:
    """The digest of a picture's content, as `encoding.encode` gives it; "" for a file that cannot be read."""
    content = listing.content(picture)
    if isinstance(content, Drawing):
        content = content.pixels
    if not isinstance(content, str):
        return digest(repr(content.shape).encode() + content.tobytes())
    try:
        return digest(read_image(Path(content)))
    except (OSError, ValueError):
        return ""


def changes(store: Store, listing: Listing) -> Changes:
    """What differs between the images that a store was made of and those that are listed now. Contents are read, unless
    the store is an older one, which does not know them."""
    contents: Sequence[str] = ()
    if "content" in store.columns:
        with ThreadPoolExecutor(READERS) as pool:
            contents = list(pool.map(lambda picture: content_of(listing, picture), listing.pictures))
    names = [as_text(picture.source) for picture in listing.pictures]
    classes = [as_text(listing.class_names[picture.class_id]) for picture in listing.pictures]
    splits = [picture.split for picture in listing.pictures]
    before = _rows(
        store.column("source").tolist(),
        [store.class_names[label] for label in store.labels],
        store.splits.tolist(),
        store.column("content").tolist() if contents else (),
    )
    now = _rows(names, classes, splits, contents)
    result = Changes()
    gone = {name: row for name, row in before.items() if name not in now}
    by_content = {row[2]: name for name, row in gone.items() if row[2]}
    for name, (label, split, content) in now.items():
        if name not in before:
            if (old := by_content.pop(content, None)) is not None:
                gone.pop(old)
                result.moved.append(f"{old}, now {name}")
            else:
                result.added.append(name)
            continue
        old_label, old_split, old_content = before[name]
        if label != old_label:
            result.relabelled.append(f"{name}: {old_label}, now {label}")
        if split != old_split:
            result.resplit.append(f"{name}: {old_split}, now {split}")
        if content != old_content:
            result.altered.append(name)
    result.removed = list(gone)
    return result


def _rows(
    names: Iterable[str], classes: Iterable[str], splits: Iterable[str], contents: Sequence[str]
) -> dict[str, tuple[str, str, str]]:
    """Class, split and content ("" if not known) by the name of the image."""
    digests = list(contents)
    rows = zip(names, classes, splits, strict=True)
    return {name: (label, split, digests[place] if digests else "") for place, (name, label, split) in enumerate(rows)}


def _some(names: Sequence[str]) -> str:
    more = f"; and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + more


def refusal(path: Path, origin: Path, found: Changes, images: int) -> str:
    """The refusal, with what to do."""
    return (
        f"{path}: already exists, and {origin} is no longer what its {pluralize(images, 'image')} were made "
        f"of: {found}; "
        "to use the new state give another --name (what uses this data set keeps it), or delete that folder first"
    )
