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
    Leftovers,
    Listing,
    Picture,
    check_text_file,
    images_under,
    is_image,
    is_storage,
    path_inside,
    reason_of,
    refuse_twice,
    subfolders,
)
from orchestrator.data.manifest import SPLITS
from orchestrator.errors import DataError
from orchestrator.problems import suggestion
from orchestrator.text import pluralize

PARTS = (
    *(*SPLITS, "training", "testing", "tests", "val", "valid", "validation", "dev", "eval", "evaluation"),
    *("holdout", "held_out", "queries", "probe"),
)
"""Names of folders, in lower case, that are parts of a split."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""The marks that text in UTF-16 begins with."""
SEPARATORS = (",", ";", "\t")


def read_folder(source: Path, stores: Path | None = None) -> Listing:
    """One folder per class, with images at any depth; or one such tree in each of train, test, query, gallery, in upper
    or lower case.

    Links to folders are followed, each folder of a class once; a link to a folder above it, or to one already read, is
    reported and not followed. Folders in which searches and data sets are kept, as the one with `stores`, are left out.
    """
    others = Leftovers(stores)
    children = _of_images(source, others)
    if not children:
        raise DataError(f"{source}: no folders in it; there should be one per class")
    has_splits = all(child.name.casefold() in SPLITS for child in children)
    if not has_splits:
        _refuse_other_layouts(source, children)
    files: list[tuple[str, str, str]] = []  # class, path, split
    parents = [(child.name.casefold(), child) for child in children] if has_splits else [("train", source)]
    if len({split for split, _ in parents}) < len(parents):
        raise DataError(f"{source}: folders {', '.join(child.name for child in children)}: merge those of one part")
    beside = [
        path.relative_to(source).as_posix()
        for folder in dict.fromkeys((source, *(parent for _, parent in parents)))
        for path in sorted(folder.iterdir())
        if path.is_file() and is_image(path)
    ]
    for split, parent in parents:
        classes = _of_images(parent, others) if has_splits else children
        if not classes:
            raise DataError(f"{parent}: no folders in it; there should be one per class")
        for folder in classes:
            if problem := _no_name(folder.name):
                raise DataError(f"{parent}: the folder {folder.name!r}: {problem}; rename it")
            paths = sorted(images_under(folder, others))
            if not paths:
                raise DataError(f"{folder}: no images ({', '.join(IMAGE_SUFFIXES)}); every class needs one")
            files += [(folder.name, path.relative_to(source).as_posix(), split) for path in paths]
    loops, storages = (
        [path.relative_to(source).as_posix() for path in paths] for paths in (others.loops, others.storages)
    )
    listing = _own(source, files)
    return replace(
        listing, beside=beside, loops=loops, left_out=others.left_out, system=others.system, storages=storages
    )


def _of_images(folder: Path, others: Leftovers) -> list[Path]:
    """The folders in a folder, but for those in which searches and data sets are kept."""
    children = subfolders(folder)
    storages = [child for child in children if is_storage(child, others.stores)]
    others.storages += storages
    return [child for child in children if child not in storages]


def _refuse_other_layouts(source: Path, children: Sequence[Path]) -> None:
    """DataError where the folders are parts of a split, or a folder above the classes, and no classes."""
    names = [child.name for child in children]
    inside = [[folder.name for folder in subfolders(child)] for child in children]
    if len(children) == 1 and inside[0] and not _has_image(children[0]):
        raise DataError(
            f"{source}: one folder, {names[0]}, which has {pluralize(len(inside[0]), 'folder')} and no image in it: is "
            f"that the folder of the classes? Then --source {children[0]}"
        )
    parts = [name for name in names if name.casefold() in PARTS]
    if parts and len(parts) == len(names):
        raise DataError(
            f"{source}: folders {', '.join(names)}: parts are called {', '.join(SPLITS)}; "
            "validation classes are held out of train: rename or merge them"
        )
    deep = [child for child, folders in zip(children, inside, strict=True) if folders and not _has_image(child)]
    if len(parts) > 1 or (parts and len(deep) == len(children)):
        others = ", ".join(name for name in names if name not in parts)
        raise DataError(
            f"{source}: folders {', '.join(parts)} look like parts of a split, {others} like classes: keep one of the "
            "two kinds; if all are classes, name the images in a table (csv)"
        )
    if all(folders and all(name.casefold() in PARTS for name in folders) for folders in inside):
        raise DataError(
            f"{source}: the folders in {names[0]} are parts of a split ({', '.join(inside[0])}): put the parts above "
            f"the classes, as in {inside[0][0]}/{names[0]}"
        )


def _has_image(folder: Path) -> bool:
    """Whether images lie in a folder itself."""
    return any(path.is_file() and is_image(path) for path in folder.iterdir())


def read_csv(source: Path, _: Path | None = None) -> Listing:
    """A CSV file, or the only one in a folder, with columns path (relative to it), label and perhaps split.

    As spreadsheets write it: UTF-8 or UTF-16 with its mark, separated by commas, semicolons or tabs, with backslashes.
    """
    if source.is_dir():
        tables = sorted(path for path in source.glob("*.csv") if not path.name.startswith("."))
        if len(tables) != 1:
            which = f"{len(tables)} CSV files; name the one that is meant" if tables else "no CSV file in it"
            raise DataError(f"{source}: {which}")
        source = tables[0]
    text, separator, above = _table_text(source)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)  # a quoted cell may have any line ending
    try:
        rows = [(f"{source} line {above + reader.line_num}", [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise DataError(f"{source} line {above + reader.line_num}: {error}") from None
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
    for required in ("path", "label"):
        if required not in columns:
            raise DataError(f"{header[0]}: no column '{required}'{suggestion(required, columns)}")
    files: list[tuple[str, str, str]] = []
    lines_by_path: dict[str, str] = {}
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
        path = path_inside(_relative(row["path"], source.parent, where), where)
        refuse_twice(lines_by_path, path, where)
        files.append((row["label"], path, split))
    return replace(_own(source.parent, files), table=source)


def _table_text(path: Path) -> tuple[str, str, int]:
    """A table's text, what separates its cells (that of Excel's first line `sep=;`, else what the header has), and how
    many lines are above it."""
    check_text_file(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({reason_of(error)})") from None
    encoding = "utf-16" if data[:2] in UTF_16 else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path} line {line}: not in {encoding.removesuffix('-sig').upper()}, perhaps in Windows' own encoding; "
            "save it as 'CSV UTF-8'"
        ) from None
    if "\0" in text:
        raise DataError(f"{path}: has bytes of 0, as UTF-16 without its mark; save it as 'CSV UTF-8'")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    header, _, rest = text.partition("\n")
    if declared := re.fullmatch(r"sep=(.)\s*", header):
        return rest, declared[1], 1
    return text, next((mark for mark in SEPARATORS if mark in header), ","), 0


def _relative(path: str, root: Path, where: str) -> str:
    """A path relative to the table's folder: one in it may be absolute. With slashes, unless there is a file of that
    name."""
    if Path(path).is_absolute() and Path(path).is_relative_to(root):
        return str(Path(path).relative_to(root))
    if path.startswith("/") or re.match(r"[A-Za-z]:[/\\]|\\\\", path):
        raise DataError(f"{where}: path '{path}' is absolute; give one relative to the table's folder")
    if path.isascii() or (root / path).exists():
        return path if "\\" not in path or (root / path).exists() else path.replace("\\", "/")
    slashed = path.replace("\\", "/")
    forms = [unicodedata.normalize(form, slashed) for form in ("NFC", "NFD")]  # as other systems write it
    return next((form for form in forms if (root / form).exists()), slashed)


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
    numeric = all(re.fullmatch(r"-?\d{1,18}", name) for name in names)
    ordered = sorted(names, key=lambda name: (int(name) if numeric else 0, name))
    ids = {name: number for number, name in enumerate(ordered, start=1)}
    pictures = [Picture(path, ids[name], split) for name, path, split in files]
    return Listing(root, {number: name for name, number in ids.items()}, pictures)


def _as_read(name: str) -> str:
    """What a reader sees of a name."""
    letters = unicodedata.normalize("NFKC", name).casefold()
    return " ".join("".join(letter for letter in letters if unicodedata.category(letter) != "Cf").split())
