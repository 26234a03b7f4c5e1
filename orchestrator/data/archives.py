"""The benchmarks as their authors publish them, and people's own images: what is in an unpacked archive.

A reader turns a folder into a `Listing`: the images, each with its class and split. It reads annotations only; classes
are keyed by their official ids, in ascending order, never by the order of folders. `Archive` adds what the full set
must amount to.
"""

import csv
import difflib
import io
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from orchestrator.data.encoding import Content
from orchestrator.data.store import SPLITS, DataError
from orchestrator.errors import suggestion

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")

Box = tuple[float, float, float, float]


class Picture(NamedTuple):
    """One image of an archive.

    `source`: its path relative to the listing's root, or a name where it is not a file of its own; then `pixels` has
    it. `class_id`: the official id. `box`: left, top, right and bottom edge in pixels.
    """

    source: str
    class_id: int
    split: str = "train"
    super_class: int | None = None
    box: Box | None = None
    pixels: Any = None  # uint8 (H, W, 3)


@dataclass(frozen=True)
class Listing:
    """What an archive holds. `class_names` by official id; label = rank of the id; `layout` is told and recorded.

    `table`: the file of one's own that lists the images; `beside`: images that lie outside the folders of classes;
    `loops`: links in these to a folder above them, or to one that was read already, which are not followed.
    """

    root: Path
    class_names: Mapping[int, str]
    pictures: Sequence[Picture]
    super_classes: Sequence[str] = ()
    layout: str = ""
    table: Path | None = None
    beside: Sequence[str] = ()
    loops: Sequence[str] = ()

    @property
    def origin(self) -> Path:
        """What the user named, or the archive's own folder in it."""
        return self.table or self.root

    def content(self, picture: Picture) -> Content:
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
    """What a full set amounts to: all of it, its own splits, and the images of the first half of its classes.

    `dense`: the official ids are 1 to the number of classes.
    """

    total: Count
    splits: Mapping[str, Count] = field(default_factory=dict)
    first_half: int | None = None
    dense: bool = True


@dataclass(frozen=True)
class Archive:
    """A benchmark: how to read it, what it must amount to, and whose terms it has."""

    name: str
    summary: str
    origin: str
    read: Callable[[Path], Listing]
    counts: Counts
    pixels: bool = False  # True: the images are pixels, kept as PNG at their size


# Birds -----------------------------------------------------------------------------------------------------


def read_cub(source: Path) -> Listing:
    """CUB-200-2011: text files of `<image id> <value>`, images in folders named as the classes."""
    root = _root(source, ["images.txt"], "CUB_200_2011")
    return _birds(root, "images", lambda class_id, name: name)


def read_nabirds(source: Path) -> Listing:
    """NABirds: as CUB, with UUIDs as image ids, sparse class ids, and a hierarchy whose parents are super-classes."""
    root = _root(source, ["images.txt"], "nabirds")
    listing = _birds(root, "images", lambda class_id, name: f"{class_id:04d}")
    names = _class_names(root)
    parents: dict[int, int] = {}
    for where, fields in _rows(root / "hierarchy.txt", 2):
        child, parent = (_integer(value, where, "class id") for value in fields)
        if parent not in names:
            raise DataError(f"{where}: parent class {parent} is not in classes.txt")
        parents[child] = parent
    orphans = sorted(set(listing.class_names) - set(parents))
    if orphans:
        raise DataError(f"{root / 'hierarchy.txt'}: no line for class {orphans[0]}")
    groups = sorted({parents[class_id] for class_id in listing.class_names})
    rank = {group: i for i, group in enumerate(groups)}
    pictures = [p._replace(super_class=rank[parents[p.class_id]]) for p in listing.pictures]
    return Listing(root, listing.class_names, pictures, [names[group] for group in groups])


def _birds(root: Path, folder: str, folder_of: Callable[[int, str], str]) -> Listing:
    images = _by_id(root / "images.txt")
    class_ids = _of_images(root / "image_class_labels.txt", images, 2)
    own = _of_images(root / "train_test_split.txt", images, 2)
    boxes = _of_images(root / "bounding_boxes.txt", images, 5)
    names = _class_names(root)
    pictures = []
    for image_id, (where, path) in images.items():
        place, (text,) = class_ids[image_id]
        class_id = _integer(text, place, "class id")
        if class_id not in names:
            raise DataError(f"{place}: class {class_id} is not in classes.txt")
        home = folder_of(class_id, names[class_id])
        if PurePosixPath(path).parts[:1] != (home,):
            raise DataError(f"{place}: class {class_id}, but the image is {path}, not in the folder {home}")
        place, (text,) = own[image_id]
        if text not in ("0", "1"):
            raise DataError(f"{place}: '{text}' should be 1 (training) or 0 (test)")
        split = "train" if text == "1" else "test"
        place, numbers = boxes[image_id]
        left, top, width, height = (_number(number, place) for number in numbers)
        box = (left, top, left + width, top + height)
        pictures.append(Picture(_inside(f"{folder}/{path}", where), class_id, split, box=box))
    used = {picture.class_id for picture in pictures}
    return Listing(root, {key: name for key, name in names.items() if key in used}, pictures)


def _class_names(root: Path) -> dict[int, str]:
    return {_integer(key, where, "class id"): name for key, (where, name) in _by_id(root / "classes.txt").items()}


# Cars ------------------------------------------------------------------------------------------------------


def read_cars(source: Path) -> Listing:
    """Cars196, in whichever of its three layouts is there."""
    for marker, read in _CARS_LAYOUTS.items():
        for root in (source, source / marker.split("/")[0]):
            if (root / marker).exists():
                return read(root)
    raise DataError(
        f"{source}: none of the three layouts of Cars196: cars_annos.mat with car_ims/, devkit/cars_meta.mat with "
        "cars_train/ and cars_test/, or names.csv with car_data/"
    )


def _cars_old(root: Path) -> Listing:
    path = root / "cars_annos.mat"
    names = _mat(path, "class_names")
    pictures = []
    for row in _annotations(path, names, ("relative_im_path", "test")):
        split = "test" if row.fields["test"] else "train"
        pictures.append(
            Picture(_inside(str(row.fields["relative_im_path"]), row.where), row.class_id, split, box=row.box)
        )
    return Listing(root, names, pictures, layout="cars_annos.mat")


def _cars_devkit(root: Path) -> Listing:
    names = _mat(root / "devkit" / "cars_meta.mat", "class_names")
    labelled = "cars_test_annos_withlabels.mat"
    inside = root / "devkit" / labelled
    files = {"train": root / "devkit" / "cars_train_annos.mat", "test": inside if inside.exists() else root / labelled}
    pictures = []
    for split, path in files.items():
        for row in _annotations(path, names, ("fname",)):
            image = _inside(f"cars_{split}/{row.fields['fname']}", row.where)
            pictures.append(Picture(image, row.class_id, split, box=row.box))
    return Listing(root, names, pictures, layout="devkit")


def _cars_folders(root: Path) -> Listing:
    names = {number: line.strip().strip('"') for number, (_, line) in enumerate(_lines(root / "names.csv"), start=1)}
    pictures = []
    for split in ("train", "test"):
        for where, line in _lines(root / f"anno_{split}.csv"):
            fields = next(csv.reader([line]))
            if len(fields) != 6:
                raise DataError(f"{where}: {len(fields)} fields, not 6 (file, left, top, right, bottom, class)")
            class_id = _integer(fields[5], where, "class id")
            if class_id not in names:
                raise DataError(f"{where}: class {class_id} is not in names.csv, which has {len(names)}")
            folder = names[class_id].replace("/", "-")  # Ram C/V Cargo Van Minivan 2012
            image = _inside(f"car_data/car_data/{split}/{folder}/{fields[0]}", where)
            pictures.append(Picture(image, class_id, split, box=_matlab_box([_number(x, where) for x in fields[1:5]])))
    return Listing(root, names, pictures, layout="class folders")


_CARS_LAYOUTS = {
    "cars_annos.mat": _cars_old,
    "devkit/cars_meta.mat": _cars_devkit,
    "names.csv": _cars_folders,
}


class _Annotation(NamedTuple):
    where: str
    class_id: int
    box: Box
    fields: dict[str, Any]


def _annotations(path: Path, names: Mapping[int, str], fields: Sequence[str]) -> Iterator[_Annotation]:
    table = np.atleast_1d(_mat_variable(path, "annotations"))
    edges = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
    for needed in (*fields, "class", *edges):
        if needed not in (table.dtype.names or ()):
            raise DataError(
                f"{path}: annotations have no field '{needed}'{suggestion(needed, table.dtype.names or ())}"
            )
    for number, row in enumerate(table, start=1):
        where = f"{path}, annotation {number}"
        class_id = _integer(str(row["class"]), where, "class id")
        if class_id not in names:
            raise DataError(f"{where}: class {class_id} has no name; there are {len(names)}")
        box = _matlab_box([_number(str(row[edge]), where) for edge in edges])
        yield _Annotation(where, class_id, box, {key: row[key] for key in fields})


def _matlab_box(edges: Sequence[float]) -> Box:
    """From first and last pixel, counted from 1, to edges."""
    left, top, right, bottom = edges
    return (left - 1, top - 1, right, bottom)


def _mat(path: Path, variable: str) -> dict[int, str]:
    names = np.atleast_1d(_mat_variable(path, variable))
    return {number: str(name) for number, name in enumerate(names, start=1)}


def _mat_variable(path: Path, variable: str) -> Any:
    from scipy.io import loadmat

    try:
        with path.open("rb") as file:
            content = loadmat(file, squeeze_me=True)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file{_UNPACK}") from None
    except Exception as error:  # a damaged file raises anything: OSError, ValueError, TypeError, zlib.error ...
        raise DataError(f"{path}: not a whole MATLAB file ({_reason(error)}){_UNPACK}") from None
    if variable not in content:
        known = [name for name in content if not name.startswith("__")]
        raise DataError(f"{path}: no variable '{variable}'{suggestion(variable, known)}")
    return content[variable]


# Products and clothes --------------------------------------------------------------------------------------


def read_sop(source: Path) -> Listing:
    """Stanford Online Products: a table for each split; the super-class is the product's kind."""
    root = _root(source, ["Ebay_train.txt"], "Stanford_Online_Products")
    header = "image_id class_id super_class_id path"
    pictures: list[Picture] = []
    seen: dict[str, str] = {}
    kinds: dict[int, str] = {}
    for split in ("train", "test"):
        rows = _rows(root / f"Ebay_{split}.txt", 4)
        _expect_header(rows, header, root / f"Ebay_{split}.txt")
        for where, (image_id, class_text, super_text, path) in rows:
            _once(seen, image_id, where)
            image = _inside(path, where)
            kind = _integer(super_text, where, "super_class_id")
            name = PurePosixPath(image).parts[0].removesuffix("_final")
            if kinds.setdefault(kind, name) != name:
                raise DataError(f"{where}: super_class_id {kind} is {kinds[kind]} elsewhere, but the image is {path}")
            class_id = _integer(class_text, where, "class_id")
            pictures.append(Picture(image, class_id, split, kind))
    rank = {kind: i for i, kind in enumerate(sorted(kinds))}
    pictures = [p._replace(super_class=rank[p.super_class]) for p in pictures if p.super_class is not None]
    names = {class_id: f"{class_id}" for class_id in sorted({picture.class_id for picture in pictures})}
    return Listing(root, names, pictures, [kinds[kind] for kind in sorted(kinds)])


def read_inshop(source: Path) -> Listing:
    """In-Shop: a count, a header, and a table with uneven spaces; train, query and gallery."""
    partition = "list_eval_partition.txt"
    root = _root(source, [f"Eval/{partition}", partition], "In-shop Clothes Retrieval Benchmark")
    path = root / "Eval" / partition
    path = path if path.exists() else root / partition
    folders = [f"{parent}{name}" for name in ("img", "img_highres") for parent in ("Img/", "")]
    folder = next((name for name in folders if (root / name).is_dir()), None)
    if folder is None:
        raise DataError(f"{root}: no folder of images; needed is one of {', '.join(folders)}{_UNPACK}")
    lines = iter(_rows(path, 1))
    where, (text,) = next(lines, (f"{path} line 1", ("",)))
    announced = _integer(text, where, "number of images")
    rows = _rows(path, 3, skip=1)
    _expect_header(rows, "image_name item_id evaluation_status", path)
    pictures = []
    names: dict[int, str] = {}
    groups: dict[str, int] = {}
    for where, (image, item, split) in rows:
        if split not in ("train", "query", "gallery"):
            raise DataError(f"{where}: status '{split}'{suggestion(split, ('train', 'query', 'gallery'))}")
        class_id = _integer(item.removeprefix("id_"), where, "item_id")
        names[class_id] = item
        parts = PurePosixPath(image).parts
        if parts[:1] != ("img",) or len(parts) < 3:
            raise DataError(f"{where}: image '{image}' should be img/<group>/.../<file>")
        kind = groups.setdefault("/".join(parts[1:-2]) or parts[1], len(groups))
        pictures.append(Picture(_inside(f"{folder}/{'/'.join(parts[1:])}", where), class_id, split, kind))
    if len(pictures) != announced:
        raise DataError(f"{path}: {len(pictures)} images, but its first line says {announced}: the file is not whole")
    order = sorted(groups)
    rank = {groups[name]: i for i, name in enumerate(order)}
    pictures = [p._replace(super_class=rank[p.super_class]) for p in pictures if p.super_class is not None]
    return Listing(root, names, pictures, order, layout=folder)


# CIFAR -----------------------------------------------------------------------------------------------------


def read_cifar10(source: Path) -> Listing:
    """CIFAR-10, the Python version."""
    from torchvision.datasets import CIFAR10

    return _cifar(source, CIFAR10)


def read_cifar100(source: Path) -> Listing:
    """CIFAR-100, the Python version, with its fine labels."""
    from torchvision.datasets import CIFAR100

    return _cifar(source, CIFAR100)


def _cifar(source: Path, reader: Any) -> Listing:
    from torchvision.datasets.utils import check_integrity

    root = _root(source, [reader.meta["filename"]], reader.base_folder)
    checksums = [*reader.train_list, *reader.test_list, [reader.meta["filename"], reader.meta["md5"]]]
    broken = [name for name, md5 in checksums if not check_integrity(root / name, md5)]
    if broken:  # before anything is unpickled
        raise DataError(f"{root}: missing or not as published: {', '.join(broken)}{_UNPACK}")

    class Reader(reader):  # type: ignore[misc]
        base_folder = root.name

    pictures = []
    names: list[str] = []
    for split in ("train", "test"):
        part = Reader(root.parent, train=split == "train")
        names = part.classes
        pictures += [
            Picture(f"{split}/{number:05d}", int(label) + 1, split, pixels=pixels)
            for number, (pixels, label) in enumerate(zip(part.data, part.targets, strict=True))
        ]
    return Listing(root, dict(enumerate(names, start=1)), pictures)


# People's own ----------------------------------------------------------------------------------------------


def read_folder(source: Path) -> Listing:
    """A folder per class, with images in it, at any depth; or one such tree in each of train, test, query, gallery.

    Links to folders are followed, each folder of a class once; a link to one above it, or read already, is told and not
    followed.
    """
    children = _subfolders(source)
    if not children:
        raise DataError(f"{source}: no folders in it; there should be one per class")
    own = all(child.name in SPLITS for child in children)
    if not own and all(child.name in (*SPLITS, "val", "valid", "validation", "dev") for child in children):
        raise DataError(
            f"{source}: folders {', '.join(child.name for child in children)}: parts are called {', '.join(SPLITS)}; "
            "validation classes are held out of train: rename or merge them"
        )
    files: list[tuple[str, str, str]] = []  # class, path, split
    loops: list[Path] = []
    parents = [(child.name, child) for child in children] if own else [("train", source)]
    beside = [
        path.relative_to(source).as_posix()
        for folder in dict.fromkeys((source, *(parent for _, parent in parents)))
        for path in sorted(folder.iterdir())
        if _is_image(path.name) and path.is_file()
    ]
    for split, parent in parents:
        classes = _subfolders(parent)
        if not classes:
            raise DataError(f"{parent}: no folders in it; there should be one per class")
        for folder in classes:
            if problem := _no_name(folder.name):
                raise DataError(f"{parent}: the folder {folder.name!r}: {problem}; rename it")
            found = sorted(_images_under(folder, loops))
            if not found:
                raise DataError(f"{folder}: no images ({', '.join(IMAGE_SUFFIXES)}); every class needs one")
            files += [(folder.name, path.relative_to(source).as_posix(), split) for path in found]
    below = [loop.relative_to(source).as_posix() for loop in loops]
    return replace(_own(source, files), beside=beside, loops=below)


def read_csv(source: Path) -> Listing:
    """A CSV file, or the only one in a folder, with columns path (relative to it), label and perhaps split."""
    if source.is_dir():
        found = sorted(path for path in source.glob("*.csv") if not path.name.startswith("."))
        if len(found) != 1:
            which = f"{len(found)} CSV files; name the one that is meant" if found else "no CSV file in it"
            raise DataError(f"{source}: {which}")
        source = found[0]
    reader = csv.reader(io.StringIO(_text(source), newline=""))  # a cell in quotes may hold any end of a line
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
            raise DataError(f"{header[0]}: no column '{needed}'{suggestion(needed, columns)}")
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
        path = _inside(row["path"], where)
        _once(seen, path, where)
        files.append((row["label"], path, split))
    return replace(_own(source.parent, files), table=source)


def _no_name(name: str) -> str | None:
    """Why a class cannot be called so: its name is a line of tables, messages and files."""
    if not name.strip():
        return "a class's name is more than blanks"
    if name != " ".join(name.splitlines()) or any(unicodedata.category(letter) == "Cc" for letter in name):
        return "a class's name is one line, without control characters"
    return None


def _own(root: Path, files: Sequence[tuple[str, str, str]]) -> Listing:
    """Classes in the order of their names; where all are whole numbers, of these."""
    names = {name for name, _, _ in files}
    numeric = all(re.fullmatch(r"-?\d+", name) for name in names)
    ordered = sorted(names, key=lambda name: (int(name) if numeric else 0, name))
    ids = {name: number for number, name in enumerate(ordered, start=1)}
    pictures = [Picture(path, ids[name], split) for name, path, split in files]
    return Listing(root, {number: name for name, number in ids.items()}, pictures)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _images_under(folder: Path, loops: list[Path]) -> Iterator[Path]:
    """The images at any depth, each folder's once. Links to a folder above them, or read already, go to `loops`."""
    above = {_identity(parent) for path in (folder, folder.resolve()) for parent in path.parents}
    seen = {_identity(folder)}
    for parent, folders, files in os.walk(folder, followlinks=True):
        entered = []
        for name in sorted(folders):
            path = Path(parent, name)
            if name.startswith("."):
                continue
            if (identity := _identity(path)) in above:
                loops.append(path)
            elif identity in seen:
                loops.append(path)  # a folder has one place, so this is a link
            else:
                seen.add(identity)
                entered.append(name)
        folders[:] = entered
        for name in files:
            if _is_image(name):
                yield Path(parent, name)


def _identity(path: Path) -> tuple[int, int]:
    """What a file or folder is, by whatever name it is reached."""
    status = path.stat()
    return status.st_dev, status.st_ino


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")  # ._x.jpg is macOS's


# What the readers share ------------------------------------------------------------------------------------

_UNPACK = "; unpack the archive again"


def _root(source: Path, markers: Sequence[str], inside: str) -> Path:
    """The folder with one of `markers`: the source or the archive's own folder in it."""
    for root in (source, source / inside):
        if any((root / marker).exists() for marker in markers):
            return root
    raise DataError(f"{source}: no {markers[0]} in it, nor in {inside}/; name the folder that the archive unpacks to")


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """`FILE line N` and the line, for each that is not empty."""
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield f"{path} line {number}", line


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file{_UNPACK}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({_reason(error)})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file in UTF-8 ({_reason(error)})") from None


def _rows(path: Path, fields: int, *, skip: int = 0) -> Iterator[tuple[str, list[str]]]:
    """The same, in fields; the last one may hold spaces."""
    for number, (where, line) in enumerate(_lines(path)):
        if number < skip:
            continue
        row = [value.strip() for value in line.split(None, fields - 1)]
        if len(row) != fields:
            raise DataError(f"{where}: {len(row)} fields, not {fields}{_UNPACK}")
        yield where, row


def _expect_header(rows: Iterator[tuple[str, list[str]]], header: str, path: Path) -> None:
    _, row = next(rows, ("", []))
    if " ".join(row) != header:
        raise DataError(f"{path}: the header is '{' '.join(row)}', not '{header}'")


def _by_id(path: Path) -> dict[str, tuple[str, str]]:
    """id -> where its line is, and its value."""
    result: dict[str, tuple[str, str]] = {}
    seen: dict[str, str] = {}
    for where, (key, value) in _rows(path, 2):
        _once(seen, key, where)
        result[key] = (where, value)
    return result


def _of_images(path: Path, images: Iterable[str], fields: int) -> dict[str, tuple[str, list[str]]]:
    """image id -> where its line is, and its values; every image must have one."""
    result: dict[str, tuple[str, list[str]]] = {}
    seen: dict[str, str] = {}
    for where, (key, *values) in _rows(path, fields):
        _once(seen, key, where)
        result[key] = (where, values)
    missing = [key for key in images if key not in result]
    if missing:
        raise DataError(f"{path}: no line for image id {missing[0]} and {len(missing) - 1} more of images.txt{_UNPACK}")
    return result


def _once(seen: dict[str, str], key: str, where: str) -> None:
    if key in seen:
        raise DataError(f"{where}: '{key}' is there twice, first on {seen[key].rpartition('/')[2]}")
    seen[key] = where


def _inside(path: str, where: str) -> str:
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts:
        raise DataError(f"{where}: path '{path}' leaves the source folder; give one below it")
    return parts.as_posix()


def _integer(text: str, where: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise DataError(f"{where}: {what} '{text}' should be a whole number") from None


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise DataError(f"{where}: bounding box '{text}' should be a number")
    return number


def _reason(error: Exception) -> str:
    text = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return " ".join(text.split())


def check_counts(listing: Listing, counts: Counts, what: str) -> None:
    """Raise DataError, naming the first number that is not that of the full set."""
    remedy = f"the archive in {listing.root} is not whole, or not the one meant; get it again"
    ids = sorted(listing.class_names)
    found: list[tuple[str, object, object]] = []
    for split, expected in counts.splits.items():
        of_split = [picture.class_id for picture in listing.pictures if picture.split == split]
        found.append((f"{what}, {split}", Count(len(of_split), len(set(of_split))), expected))
    of_class = Counter(picture.class_id for picture in listing.pictures)
    found.append((what, Count(len(listing.pictures), len(of_class)), counts.total))
    if counts.first_half is not None:
        half = counts.total.classes // 2
        number = sum(of_class[class_id] for class_id in ids[:half])
        found.append((f"{what}, classes 1 to {half}", f"{number:,} images", f"{counts.first_half:,} images"))
    for name, is_, should in found:
        if is_ != should:
            raise DataError(f"{name}: {is_}, not {should}: {remedy}")
    if counts.dense and ids != list(range(1, len(ids) + 1)):
        absent = next(i for i in range(1, len(ids) + 1) if i not in listing.class_names)
        raise DataError(f"{what}: no class {absent}, but ids go up to {ids[-1]}, not {len(ids)}: {remedy}")


ARCHIVES = {
    archive.name: archive
    for archive in (
        Archive(
            name="cub200",
            summary="CUB-200-2011, birds",
            origin="https://www.vision.caltech.edu/datasets/cub_200_2011/",
            read=read_cub,
            counts=Counts(Count(11_788, 200), first_half=5_864),
        ),
        Archive(
            name="cars196",
            summary="Stanford Cars",
            origin="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
            read=read_cars,
            counts=Counts(Count(16_185, 196), first_half=8_054),
        ),
        Archive(
            name="sop",
            summary="Stanford Online Products",
            origin="https://cvgl.stanford.edu/projects/lifted_struct/",
            read=read_sop,
            counts=Counts(Count(120_053, 22_634), {"train": Count(59_551, 11_318), "test": Count(60_502, 11_316)}),
        ),
        Archive(
            name="inshop",
            summary="DeepFashion In-Shop clothes, with query and gallery",
            origin="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
            read=read_inshop,
            counts=Counts(
                Count(52_712, 7_982),
                {"train": Count(25_882, 3_997), "query": Count(14_218, 3_985), "gallery": Count(12_612, 3_985)},
                dense=False,
            ),
        ),
        Archive(
            name="nabirds",
            summary="NABirds, North American birds",
            origin="https://dl.allaboutbirds.org/nabirds",
            read=read_nabirds,
            counts=Counts(Count(48_562, 555), dense=False),
        ),
        Archive(
            name="cifar10",
            summary="CIFAR-10, for tests on foreign images",
            origin="https://www.cs.toronto.edu/~kriz/cifar.html",
            read=read_cifar10,
            counts=Counts(Count(60_000, 10), {"train": Count(50_000, 10), "test": Count(10_000, 10)}),
            pixels=True,
        ),
        Archive(
            name="cifar100",
            summary="CIFAR-100, for tests on foreign images",
            origin="https://www.cs.toronto.edu/~kriz/cifar.html",
            read=read_cifar100,
            counts=Counts(Count(60_000, 100), {"train": Count(50_000, 100), "test": Count(10_000, 100)}),
            pixels=True,
        ),
    )
}

OWN: dict[str, Callable[[Path], Listing]] = {"folder": read_folder, "csv": read_csv}
"""Readers of people's own images; nothing is known of their counts."""
