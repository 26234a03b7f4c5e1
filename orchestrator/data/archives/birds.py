"""CUB-200-2011 and NABirds."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from orchestrator.data.archives.listing import (
    Archive,
    Count,
    Counts,
    Listing,
    Picture,
    archive_root,
    parsed_integer,
    parsed_number,
    path_inside,
    rows_by_id,
    rows_of_images,
    text_rows,
)
from orchestrator.errors import DataError


def read_cub(source: Path) -> Listing:
    """CUB-200-2011: text files of `<image id> <value>`, images in folders named as the classes."""
    root = archive_root(source, ["images.txt"], "CUB_200_2011")
    return _birds(root, "images", lambda class_id, name: name)


def read_nabirds(source: Path) -> Listing:
    """NABirds: as CUB, with UUIDs as image ids, sparse class ids, and a hierarchy whose parents are super-classes."""
    root = archive_root(source, ["images.txt"], "nabirds")
    listing = _birds(root, "images", lambda class_id, name: f"{class_id:04d}")
    names = _class_names(root)
    parents: dict[int, int] = {}
    for where, fields in text_rows(root / "hierarchy.txt", 2):
        child, parent = (parsed_integer(value, where, "class id") for value in fields)
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
    images = rows_by_id(root / "images.txt")
    class_ids = rows_of_images(root / "image_class_labels.txt", images, 2)
    train_flags = rows_of_images(root / "train_test_split.txt", images, 2)
    boxes = rows_of_images(root / "bounding_boxes.txt", images, 5)
    names = _class_names(root)
    pictures = []
    for image_id, (where, path) in images.items():
        place, (text,) = class_ids[image_id]
        class_id = parsed_integer(text, place, "class id")
        if class_id not in names:
            raise DataError(f"{place}: class {class_id} is not in classes.txt")
        home = folder_of(class_id, names[class_id])
        if PurePosixPath(path).parts[:1] != (home,):
            raise DataError(f"{place}: class {class_id}, but the image is {path}, not in the folder {home}")
        place, (text,) = train_flags[image_id]
        if text not in ("0", "1"):
            raise DataError(f"{place}: '{text}' should be 1 (training) or 0 (test)")
        split = "train" if text == "1" else "test"
        place, numbers = boxes[image_id]
        left, top, width, height = (parsed_number(number, place) for number in numbers)
        box = (left, top, left + width, top + height)
        pictures.append(Picture(path_inside(f"{folder}/{path}", where), class_id, split, box=box))
    used = {picture.class_id for picture in pictures}
    return Listing(root, {key: name for key, name in names.items() if key in used}, pictures)


def _class_names(root: Path) -> dict[int, str]:
    return {
        parsed_integer(key, where, "class id"): name for key, (where, name) in rows_by_id(root / "classes.txt").items()
    }


CUB200 = Archive(
    name="cub200",
    summary="CUB-200-2011, birds",
    origin="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    read=read_cub,
    counts=Counts(Count(11_788, 200), first_half=5_864),
)
NABIRDS = Archive(
    name="nabirds",
    summary="NABirds, North American birds",
    origin="https://dl.allaboutbirds.org/nabirds",
    read=read_nabirds,
    counts=Counts(Count(48_562, 555), dense=False),
)
