"""Where a data set's images come from: its listing, checked before any image is read."""

import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from orchestrator.data.archives.catalog import ARCHIVES, OWN
from orchestrator.data.archives.listing import Listing, Picture, as_text, check_counts
from orchestrator.data.catalog import check_source
from orchestrator.errors import DataError

NAMED = 3
"""Files that a message names before it only counts them."""


def read_source(importer: str, source: Path, name: str, stores: Path | None = None) -> Listing:
    """The listing, with its counts checked and all its files present. `stores`: the folder of data sets."""
    check_source(importer, source)
    try:
        listing = ARCHIVES[importer].read(source) if importer in ARCHIVES else OWN[importer](source, stores)
    except OSError as error:
        raise DataError(f"{error.filename or source}: cannot be read ({error.strerror or error})") from None
    if not listing.pictures:
        raise DataError(f"{listing.origin}: no image is listed; give a source that has some")
    sources = Counter(picture.source for picture in listing.pictures)
    twice = [source for source, count in sources.items() if count > 1]
    if twice:
        raise DataError(f"{listing.origin}: {first_names(twice)} listed twice; every image has one class")
    texts = Counter(as_text(source) for source in sources if not source.isascii())
    if alike := [text for text, count in texts.items() if count > 1]:
        raise DataError(
            f"{listing.origin}: two files are called {alike[0]}, in an encoding other than UTF-8: rename them"
        )
    missing, same = _looked_up(listing)
    if missing:
        raise DataError(
            f"{name}: {len(missing):,} of {len(sources):,} images are missing in {listing.root}, or no regular files: "
            f"{first_names(missing)}; "
            f"{remedy(importer, listing)}"
        )
    for one, other in same:
        places = [f"{picture.source} ({_place(listing, picture)})" for picture in (one, other)]
        more = f"; so are {len(same) - 1:,} more" if len(same) > 1 else ""
        raise DataError(
            f"{listing.origin}: {' and '.join(places)} are the same file, through a link{more}; every image has one "
            "class and "
            "one part: remove one of the two"
        )
    if importer in ARCHIVES:
        check_counts(listing, ARCHIVES[importer].counts, importer)
    return listing


def _looked_up(listing: Listing) -> tuple[list[str], list[tuple[Picture, Picture]]]:
    """The missing files, and the pairs that are one file, reached by a link, in two classes or splits. Names of one
    file that are not links (hard links) may come from a tool that merges equal files: these are no such pairs."""
    missing: list[str] = []
    same: list[tuple[Picture, Picture]] = []
    first: dict[tuple[int, int], Picture] = {}
    for picture in listing.pictures if listing.pictures[0].pixels is None else ():
        try:
            status = (listing.root / picture.source).stat()
        except (OSError, ValueError):
            missing.append(picture.source)
            continue
        if not stat.S_ISREG(status.st_mode):
            missing.append(picture.source)
        elif status.st_nlink == 1:
            other = first.setdefault((status.st_dev, status.st_ino), picture)
            if (other.class_id, other.split) != (picture.class_id, picture.split):
                same.append((other, picture))
    return missing, same


def _place(listing: Listing, picture: Picture) -> str:
    splits = {other.split for other in listing.pictures}
    part = f", {picture.split}" if len(splits) > 1 else ""
    return f"class '{listing.class_names[picture.class_id]}'{part}"


def remedy(importer: str, listing: Listing) -> str:
    """What to do about images that are missing or cannot be read."""
    if importer in ARCHIVES:
        return "unpack the archive again"
    if listing.table is not None:
        return f"replace these files, or remove their lines from {listing.table}"
    return "replace or remove these files"


def first_names(things: Sequence[str]) -> str:
    """The first few of them."""
    more = f" and {len(things) - NAMED:,} more" if len(things) > NAMED else ""
    return ", ".join(things[:NAMED]) + more


LEFT_OUT = 0.05
"""The share of files in the folders of classes that may be no images without a decision of the user."""


def left_out_lines(listing: Listing) -> list[str]:
    """What is left out, counted. That of files comes first."""
    lines = []
    if count := sum(listing.left_out.values()):
        which = ", ".join(f"{number:,} {ending}" for ending, number in sorted(listing.left_out.items()))
        lines.append(f"{count:,} {'file is no image' if count == 1 else 'files are no images'} and left out: {which}")
    if listing.system:
        lines.append(f"{listing.system:,} hidden or system files and folders are left out")
    if listing.storages:
        count = len(listing.storages)
        one = "folder has searches and data sets in it and is"
        what = one if count == 1 else "folders have searches and data sets in them and are"
        lines.append(f"{count:,} {what} left out: {first_names(listing.storages)}")
    return lines


def check_left_out(listing: Listing, allowed: bool) -> None:
    """DataError if so many files are no images that the user should decide."""
    count, images = sum(listing.left_out.values()), len(listing.pictures)
    if not allowed and count > LEFT_OUT * (count + images):
        raise DataError(
            f"{listing.origin}: {left_out_lines(listing)[0]}, beside {images:,} images: more than {LEFT_OUT:.0%}; "
            "convert those that are pictures (JPEG, PNG, GIF, BMP, TIFF, WebP, PPM, JPEG 2000 and AVIF are read), or "
            "give --allow-left-out"
        )
