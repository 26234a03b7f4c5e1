"""A trained model applied to image files: a table of embeddings, and the nearest of them to an image."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.data.archives.listing import images_of
from orchestrator.errors import InputError
from orchestrator.evaluation.neighbours import nearest_neighbours
from orchestrator.problems import Bare, Option, Problem
from orchestrator.storage.atomic import write_atomically, write_whole
from orchestrator.storage.files import sha256
from orchestrator.storage.opening import check_regular
from orchestrator.training.embed_files import EmbeddedFiles, embed_files

ABOUT = b"orchestrator"
"""The key of a table's facts in its metadata."""


def write_embeddings(embedded: EmbeddedFiles, model: Path, folder: Path, path: Path) -> None:
    """Parquet: a row per image, `path` (relative to the folder) and `embedding` (float32), with the model and the
    folder in its metadata; bytes of a path that are not UTF-8 are escaped (`\\xe9`). NPY: the matrix (N, D), and beside
    it the paths as they are, a line each."""
    names = [str(one.relative_to(folder)) for one in embedded.paths]
    if path.suffix.lower() == ".npy":
        text = "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")
        write_whole(path.with_suffix(".paths.txt"), text)
        write_atomically(path, lambda file: np.save(file, embedded.embedding))
        return
    import pyarrow as pa
    from pyarrow import parquet

    width = embedded.embedding.shape[1]
    rows = pa.FixedSizeListArray.from_arrays(pa.array(embedded.embedding.ravel()), width)
    about = {"model": str(model), "sha256": sha256(model), "folder": str(folder.absolute())}
    printable = [os.fsencode(name).decode("utf-8", "backslashreplace") for name in names]
    table = pa.table({"path": pa.array(printable), "embedding": rows})
    table = table.replace_schema_metadata({ABOUT: json.dumps(about).encode()})
    write_atomically(path, lambda file: parquet.write_table(table, file))


@dataclass(frozen=True)
class Gallery:
    """Images that are searched: their files, their names, and their embeddings (N, D)."""

    paths: list[Path]
    names: list[str]
    embedding: NDArray[np.float32]


def read_embeddings(path: Path, model: Path) -> Gallery:
    """The table that `write_embeddings` wrote as Parquet. InputError if it is none, or of another model."""
    from pyarrow import ArrowException, parquet

    check_regular(path)
    try:
        table = parquet.read_table(path)
        about: dict[str, Any] = json.loads((table.schema.metadata or {})[ABOUT])
        embedding = np.stack(table["embedding"].to_numpy())
        names = [str(name) for name in table["path"].to_pylist()]
        folder, digest = Path(about["folder"]), about["sha256"]
    except FileNotFoundError:
        raise InputError(Problem((Option("among"),), Bare(path), "no such file")) from None
    except (OSError, ValueError, KeyError, TypeError, ArrowException):
        how = "orchestrator embed RUN FOLDER --output FILE.parquet"
        raise InputError(
            Problem((Option("among"),), Bare(path), f"is no table of embeddings: write one with {how}")
        ) from None
    if digest != sha256(model):
        rule = f"was embedded by another model, {about.get('model')}: embed the folder again"
        raise InputError(Problem((Option("among"),), Bare(path), rule))
    return Gallery([folder / name for name in names], names, embedding.astype(np.float32))


@dataclass(frozen=True)
class Neighbour:
    """A found image, and its distance from the query, or the product of their rows."""

    path: Path
    name: str
    value: float


def query(
    model: Path,
    image: Path,
    among: Path,
    count: int,
    device: str = "auto",
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Neighbour], str]:
    """The nearest images to one, in a folder or in a table of embeddings, and what they are measured by. The image
    itself, where it is among them, is left out."""
    query_rows = embed_files(model, [image], device)
    if among.is_dir():
        searched = embed_files(model, images_of(among), device, progress=progress)
        gallery = Gallery(searched.paths, [str(path.relative_to(among)) for path in searched.paths], searched.embedding)
    else:
        gallery = read_embeddings(among, model)
    candidates = _others(gallery.paths, image)
    if not candidates:
        raise InputError(Problem((Option("among"),), Bare(among), "holds no image but the query"))
    values, rows = nearest_neighbours(
        query_rows.query, gallery.embedding[candidates], min(count, len(candidates)), by_product=query_rows.by_product
    )
    neighbours = [(candidates[row], float(value)) for row, value in zip(rows[0], values[0], strict=True)]
    measure = "product" if query_rows.by_product else "distance"
    return [Neighbour(gallery.paths[row], gallery.names[row], value) for row, value in neighbours], measure


def _others(paths: Sequence[Path], image: Path) -> list[int]:
    itself = image.resolve()
    return [row for row, path in enumerate(paths) if path.resolve() != itself]
