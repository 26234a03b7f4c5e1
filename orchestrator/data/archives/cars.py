"""Cars196, in each form in which it is distributed."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.data.archives.listing import (
    UNPACK_AGAIN,
    Archive,
    Box,
    Count,
    Counts,
    Listing,
    Picture,
    parsed_integer,
    parsed_number,
    path_inside,
    reason_of,
    text_lines,
)
from orchestrator.errors import DataError
from orchestrator.problems import suggestion


def read_cars(source: Path) -> Listing:
    """Cars196, in the first of its three layouts that is there with all its files, else the first that has some."""
    there = [
        (sum(not (root / name).exists() for name in layout.needs), root, layout)
        for layout in _LAYOUTS
        for root in (source, source / layout.needs[0].split("/")[0])
        if (root / layout.needs[0]).exists()
    ]
    for lacks in (0, None):
        for missing, root, layout in there:
            if lacks in (missing, None):
                return layout.read(root)
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
            Picture(path_inside(str(row.fields["relative_im_path"]), row.where), row.class_id, split, box=row.box)
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
            image = path_inside(f"cars_{split}/{row.fields['fname']}", row.where)
            pictures.append(Picture(image, row.class_id, split, box=row.box))
    return Listing(root, names, pictures, layout="devkit/cars_meta.mat")


def _cars_folders(root: Path) -> Listing:
    names = {
        number: line.strip().strip('"') for number, (_, line) in enumerate(text_lines(root / "names.csv"), start=1)
    }
    pictures = []
    for split in ("train", "test"):
        for where, line in text_lines(root / f"anno_{split}.csv"):
            fields = next(csv.reader([line]))
            if len(fields) != 6:
                raise DataError(f"{where}: {len(fields)} fields, not 6 (file, left, top, right, bottom, class)")
            class_id = parsed_integer(fields[5], where, "class id")
            if class_id not in names:
                raise DataError(f"{where}: class {class_id} is not in names.csv, which has {len(names)}")
            folder = names[class_id].replace("/", "-")  # Ram C/V Cargo Van Minivan 2012
            image = path_inside(f"car_data/car_data/{split}/{folder}/{fields[0]}", where)
            pictures.append(
                Picture(image, class_id, split, box=_matlab_box([parsed_number(x, where) for x in fields[1:5]]))
            )
    return Listing(root, names, pictures, layout="names.csv")


class _Layout(NamedTuple):
    needs: tuple[str, ...]
    """Files and folders, the one that marks it first."""
    read: Callable[[Path], Listing]


_LAYOUTS = (
    _Layout(("cars_annos.mat", "car_ims"), _cars_old),
    _Layout(("devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_train", "cars_test"), _cars_devkit),
    _Layout(("names.csv", "anno_train.csv", "anno_test.csv", "car_data"), _cars_folders),
)


class _Annotation(NamedTuple):
    where: str
    class_id: int
    box: Box
    fields: dict[str, Any]


def _annotations(path: Path, names: Mapping[int, str], fields: Sequence[str]) -> Iterator[_Annotation]:
    import numpy as np

    table = np.atleast_1d(_mat_variable(path, "annotations"))
    edges = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
    for field_name in (*fields, "class", *edges):
        if field_name not in (table.dtype.names or ()):
            raise DataError(
                f"{path}: annotations have no field '{field_name}'{suggestion(field_name, table.dtype.names or ())}"
            )
    for number, row in enumerate(table, start=1):
        where = f"{path}, annotation {number}"
        class_id = parsed_integer(str(row["class"]), where, "class id")
        if class_id not in names:
            raise DataError(f"{where}: class {class_id} has no name; there are {len(names)}")
        box = _matlab_box([parsed_number(str(row[edge]), where) for edge in edges])
        yield _Annotation(where, class_id, box, {key: row[key] for key in fields})


def _matlab_box(edges: Sequence[float]) -> Box:
    """From first and last pixel, counted from 1, to edges."""
    left, top, right, bottom = edges
    return (left - 1, top - 1, right, bottom)


def _mat(path: Path, variable: str) -> dict[int, str]:
    import numpy as np

    names = np.atleast_1d(_mat_variable(path, variable))
    return {number: str(name) for number, name in enumerate(names, start=1)}


def _mat_variable(path: Path, variable: str) -> Any:
    from scipy.io import loadmat

    try:
        with path.open("rb") as file:
            content = loadmat(file, squeeze_me=True)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file{UNPACK_AGAIN}") from None
    except Exception as error:  # a damaged file can raise anything: OSError, ValueError, TypeError, zlib.error ...
        raise DataError(f"{path}: not a complete MATLAB file ({reason_of(error)}){UNPACK_AGAIN}") from None
    if variable not in content:
        names = [name for name in content if not name.startswith("__")]
        raise DataError(f"{path}: no variable '{variable}'{suggestion(variable, names)}")
    return content[variable]


CARS196 = Archive(
    name="cars196",
    summary="Stanford Cars",
    origin="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    read=read_cars,
    counts=Counts(Count(16_185, 196), first_half=8_054),
)
