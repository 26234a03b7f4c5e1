"""Users' own images: in one folder per class, or listed in a CSV file."""

import csv
import difflib
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.data.archives.listing import (
    IMAGE_SUFFIXES,
    Beside,
    Listing,
    Picture,
    checked_text,
    images_under,
    is_image,
    path_inside,
    refuse_twice,
    subfolders,
)
from orchestrator.data.manifest import SPLITS
from orchestrator.errors import DataError, suggestion

SEPARATORS = ((";", "semicolons"), ("\t", "tabs"))
"""What other tables than ours have between their columns: semicolons where a comma is the decimal sign."""


def read_folder(source: Path) -> Listing:
    """One folder per class, with images at any depth; or one such tree in each of train, test, query, gallery.

    Links to folders are followed, each folder of a class once; a link to a folder above it, or to one already read, is
    reported and not followed.
    """
    children = subfolders(source)
    if not children:
        raise DataError(f"{source}: no folders in it; there should be one per class")
    own = all(child.name in SPLITS for child in children)
    if not own and all(child.name in (*SPLITS, "val", "valid", "validation", "dev") for child in children):
        raise DataError(
            f"{source}: folders {', '.join(child.name for child in children)}: parts are called {', '.join(SPLITS)}; "
            "validation classes are held out of train: rename or merge them"
        )
    files: list[tuple[str, str, str]] = []  # class, path, split
    others = Beside()
    parents = [(child.name, child) for child in children] if own else [("train", source)]
    beside = [
        path.relative_to(source).as_posix()
        for folder in dict.fromkeys((source, *(parent for _, parent in parents)))
        for path in sorted(folder.iterdir())
        if path.is_file() and is_image(path)
    ]
    for split, parent in parents:
        classes = subfolders(parent)
        if not classes:
            raise DataError(f"{parent}: no folders in it; there should be one per class")
        for folder in classes:
            if problem := _no_name(folder.name):
                raise DataError(f"{parent}: the folder {folder.name!r}: {problem}; rename it")
            found = sorted(images_under(folder, others))
            if not found:
                raise DataError(f"{folder}: no images ({', '.join(IMAGE_SUFFIXES)}); every class needs one")
            files += [(folder.name, path.relative_to(source).as_posix(), split) for path in found]
    below = [loop.relative_to(source).as_posix() for loop in others.loops]
    listing = _own(source, files)
    return replace(listing, beside=beside, loops=below, left_out=others.left_out, system=others.system)


def read_csv(source: Path) -> Listing:
    """A CSV file, or the only one in a folder, with columns path (relative to it), label and perhaps split."""
    if source.is_dir():
        found = sorted(path for path in source.glob("*.csv") if not path.name.startswith("."))
        if len(found) != 1:
            which = f"{len(found)} CSV files; name the one that is meant" if found else "no CSV file in it"
            raise DataError(f"{source}: {which}")
        source = found[0]
    reader = csv.reader(io.StringIO(checked_text(source), newline=""))  # a quoted cell may contain any line ending
    try:
        rows = [(f"{source} line {reader.line_num}", [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise DataError(f"{source} line {reader.line_num}: {error}") from None
    if not rows:
        raise DataError(f"{source}: empty; it needs columns path, label and perhaps split")
    header, *table = rows
    columns = header[1]
    for column, times in Counter(columns).items():
        if times > 1:
            raise DataError(f"{header[0]}: column '{column}' is there {times} times; keep one of them")
        if column != "split" and difflib.get_close_matches(column.lower(), ["split"], cutoff=0.7):
            raise DataError(f"{header[0]}: column '{column}' (did you mean 'split'?)")
    if not table:
        raise DataError(f"{source}: it lists no image")
    for needed in ("path", "label"):
        if needed not in columns:
            hint = _other_separator(columns) or suggestion(needed, columns)
            raise DataError(f"{header[0]}: no column '{needed}'{hint}")
    files: list[tuple[str, str, str]] = []
    seen: dict[str, str] = {}
    for where, cells in table:
        if not cells:
            continue
        if len(cells) != len(columns):
            raise DataError(f"{where}: {len(cells)} fields, but the header has {len(columns)}")
        row = dict(zip(columns, cells, strict=True))
        split = row.get("split", "train")
        if split not in SPLITS:
            raise DataError(f"{where}: split '{split}'{suggestion(split, SPLITS)}")
        if not row["label"]:
            raise DataError(f"{where}: no label")
        if problem := _no_name(row["label"]):
            raise DataError(f"{where}: label {row['label']!r}: {problem}")
        path = path_inside(row["path"], where)
        refuse_twice(seen, path, where)
        files.append((row["label"], path, split))
    return replace(_own(source.parent, files), table=source)


def _other_separator(columns: list[str]) -> str:
    """What to do if all columns of a table were read as one."""
    if len(columns) == 1 and (other := next((name for sign, name in SEPARATORS if sign in columns[0]), None)):
        return f": the columns are separated by {other}; separate them by commas"
    return ""


def _no_name(name: str) -> str | None:
    """Why a class cannot have this name: it is written in one line of tables, messages and files."""
    if not name.strip():
        return "a class name must not be blank"
    if name != " ".join(name.splitlines()) or any(unicodedata.category(letter) == "Cc" for letter in name):
        return "a class name must be one line without control characters"
    return None


def _own(root: Path, files: Sequence[tuple[str, str, str]]) -> Listing:
    """Classes in the order of their names; in numeric order if all are whole numbers.

    Names that are one text in Unicode (composed or not) are one class. DataError for names that differ otherwise in
    what a reader hardly sees: case, blanks, invisible letters, forms of one letter.
    """
    files = [(unicodedata.normalize("NFC", name), path, split) for name, path, split in files]
    names = {name for name, _, _ in files}
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(_as_read(name), []).append(name)
    if doubtful := [those for those in alike.values() if len(those) > 1]:
        first = " and ".join(map(ascii, doubtful[0]))  # so that they look different
        more = f" (and {len(doubtful) - 1:,} more such names)" if len(doubtful) > 1 else ""
        raise DataError(
            f"{root}: the classes {first} differ only in case, blanks or forms of letters{more}: if they are one class "
            "give them one name, else names that differ"
        )
    numeric = all(re.fullmatch(r"-?\d+", name) for name in names)
    ordered = sorted(names, key=lambda name: (int(name) if numeric else 0, name))
    ids = {name: number for number, name in enumerate(ordered, start=1)}
    pictures = [Picture(path, ids[name], split) for name, path, split in files]
    return Listing(root, {number: name for name, number in ids.items()}, pictures)


def _as_read(name: str) -> str:
    """What a reader sees of a name."""
    letters = unicodedata.normalize("NFKC", name).casefold()
    return " ".join("".join(letter for letter in letters if unicodedata.category(letter) != "Cf").split())
