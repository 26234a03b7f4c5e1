"""The store that every data set is written to: encoded images in one memory-mapped Arrow file, and a manifest.

A store is a folder:

    images.arrow    Arrow IPC file, uncompressed; columns image (binary: PNG, JPEG or PPM), label (int32: the official
                    class id, 0 to C - 1), split (train, test, query or gallery), and columns that only some data sets
                    have; class names in the schema's metadata
    manifest.json   counts, seed, settings, library versions, and a digest of images, labels and splits

It is written beside its place and renamed when complete, so that a folder of that name is always complete.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import socket
import struct
import tempfile
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import ArrayLike, NDArray

from orchestrator.data.encoding import as_mode, open_image
from orchestrator.data.locks import hold_manifest
from orchestrator.data.manifest import FORMAT_VERSION, IMAGES, MANIFEST, MODES, SPLITS, check_manifest
from orchestrator.errors import DataError
from orchestrator.problems import suggestion
from orchestrator.storage.files import read_json
from orchestrator.storage.opening import check_regular

ROWS_PER_BATCH = 1024
BYTES_PER_BATCH = 2**28  # Arrow's binary columns are limited to 2 GiB per batch, held in memory when written
LIBRARIES = ("pillow", "matplotlib")  # what the bytes of drawn images depend on
CACHE_BYTES = 512 * 2**20

SCHEMA = pa.schema([("image", pa.binary()), ("label", pa.int32()), ("split", pa.dictionary(pa.int8(), pa.string()))])

Column = Sequence[str] | NDArray[Any]


class Row(NamedTuple):
    """One image to be written to a store."""

    image: bytes
    label: int
    split: str


class Store:
    """A data set on disk, read at random; open it with `Store.open`.

    Attributes: `name`, `path`, `manifest`, `labels` (int64, (N,): the official class ids), `splits` (str, (N,)),
    `class_names`. It is pickled as its path and opened again when unpickled. Reading is thread-safe.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], table: pa.Table, cache_bytes: int) -> None:
        self.path = path
        self.manifest = manifest
        self.name: str = manifest["name"]
        self.channels: int = manifest["channels"]
        self.class_names: list[str] = json.loads(table.schema.metadata[b"class_names"].decode("utf-8"))
        if not isinstance(self.class_names, list) or not all(isinstance(name, str) for name in self.class_names):
            raise ValueError("the class names are not a list of texts")
        self.labels: NDArray[np.int64] = table["label"].to_numpy().astype(np.int64)
        self.splits: NDArray[np.str_] = np.array(table["split"].to_pylist(), dtype=np.str_)
        self._images: pa.ChunkedArray = table["image"]
        self._parts = [_map(part) for part in self._images.chunks]
        self._firsts = [0, *accumulate(len(part) for part in self._images.chunks)]
        self._extra = {name: table[name] for name in table.schema.names if name not in SCHEMA.names}
        self._cache_bytes = cache_bytes
        self._cache: torch.Tensor | None = None  # (N, C, H, W), filled row by row as images are asked for
        self._cached = np.zeros(len(self.labels), bool)
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path | str, *, cache_bytes: int = CACHE_BYTES) -> Self:
        """Map a store into memory and check that its parts agree.

        `cache_bytes`: decoded images are cached in memory if all of them together take no more than this.
        Raises DataError if a file is missing, not readable, or disagrees with the manifest.
        """
        path = Path(path).absolute()
        try:
            lock = hold_manifest(path / MANIFEST)
        except FileNotFoundError:
            reason = f"no such file, so {path} is not a data set"
            raise DataError(f"{path / MANIFEST}: {reason}; {_remedy(path)}") from None
        except OSError as error:
            raise DataError(f"{path / MANIFEST}: cannot be read ({_one_line(error)}); {_remedy(path)}") from None
        try:
            store = cls._load(path, cache_bytes)
        except BaseException:
            os.close(lock)
            raise
        weakref.finalize(store, os.close, lock)
        return store

    @classmethod
    def _load(cls, path: Path, cache_bytes: int) -> Self:
        manifest_path, images_path, remedy = path / MANIFEST, path / IMAGES, _remedy(path)
        try:
            manifest = read_json(manifest_path)
        except (OSError, ValueError) as error:
            raise DataError(f"{manifest_path}: not readable as JSON ({_one_line(error)}); {remedy}") from None
        check_manifest(manifest, manifest_path, remedy)
        check_regular(images_path)
        try:
            with pa.ipc.open_file(pa.memory_map(str(images_path))) as reader:
                table = reader.read_all()
        except FileNotFoundError:
            raise DataError(f"{images_path}: no such file; {remedy}") from None
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{images_path}: not a complete Arrow file ({_one_line(error)}); {remedy}") from None
        if not pa.schema(list(table.schema)[: len(SCHEMA)]).equals(SCHEMA) or b"class_names" not in (
            table.schema.metadata or {}
        ):
            raise DataError(f"{images_path}: columns {table.schema.names}, not those of this format; {remedy}")
        try:
            store = cls(path, manifest, table, cache_bytes)
            counts = _counts(store.labels, store.splits, store.num_classes)
        except (ValueError, TypeError, pa.ArrowException) as error:  # text that is not UTF-8, names that are not JSON
            raise DataError(f"{images_path}: damaged ({_one_line(error)}); {remedy}") from None
        for key, count in counts.items():
            if manifest[key] != count:
                raise DataError(f"{images_path}: {key} is {count}, but {MANIFEST} says {manifest[key]}; {remedy}")
        return store

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Store({self.name!r}, {len(self)} images, {self.num_classes} classes, {str(self.path)!r})"

    def __reduce__(self) -> tuple[Callable[..., "Store"], tuple[Path, int]]:
        return _reopen, (self.path, self._cache_bytes)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names for `column`."""
        return tuple(self._extra)

    def column(self, name: str) -> NDArray[Any]:
        """A column that not every data set has, (N,) or (N, k). Raises DataError if this one lacks it.

        `super_class`: index into the manifest's `super_classes`. `box`: left, top, right and bottom edge of the object
        in pixels of the original image. `original_size`: its width and height. `source`: its place in the archive.
        `vendor`: who drew or made it.
        `content`, `pixels`, `look`: digests of its file, see `encoding.Encoded`.
        """
        if name not in self._extra:
            raise DataError(f"{self.path / IMAGES}: no column '{name}'{suggestion(name, self._extra)}")
        column = self._extra[name].combine_chunks()
        if pa.types.is_fixed_size_list(column.type):
            return np.asarray(column.flatten()).reshape(len(self), column.type.list_size)
        return np.asarray(column.to_pylist() if pa.types.is_string(column.type) else column)

    def image_bytes(self, index: int) -> bytes:
        """The bytes of an image as they were written."""
        data: bytes = self._images[int(index)].as_py()
        return data

    def mapped_bytes(self, index: int) -> memoryview:
        """The same bytes where they are, in the file."""
        part = bisect_right(self._firsts, int(index)) - 1
        offsets, data = self._parts[part]
        place = int(index) - self._firsts[part]
        return data[offsets[place] : offsets[place + 1]]

    def image(self, index: int) -> NDArray[np.uint8]:
        """One image, uint8 (H, W, channels). Raises DataError if its bytes are not an image."""
        try:
            with open_image(self.image_bytes(index)) as image:
                pixels = np.asarray(as_mode(image, MODES[self.channels]))
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path / IMAGES}: image {index} cannot be decoded ({_one_line(error)})") from None
        return pixels.reshape(*pixels.shape[:2], self.channels)

    def images(self, indices: ArrayLike) -> torch.Tensor:
        """Several images, uint8 (N, channels, H, W), in the order of `indices`, which may repeat.

        Raises DataError if two of them differ in size.
        """
        rows = np.asarray(indices, dtype=np.int64).reshape(-1)
        if not len(rows):
            raise DataError(f"{self.path}: no images asked for; give at least one index")
        if self._cache is None:
            shape = self._decode(rows[:1]).shape[1:]
            if math.prod(shape) * len(self) > self._cache_bytes:
                return self._decode(rows)
        with self._lock:
            if self._cache is None:
                self._cache = torch.empty((len(self), *shape), dtype=torch.uint8)
            missing = np.unique(rows[~self._cached[rows]])
            if len(missing):
                self._cache[torch.from_numpy(missing)] = self._decode(missing, tuple(self._cache.shape[1:]))
                self._cached[missing] = True
            return self._cache[torch.from_numpy(rows)]

    def verify(self) -> None:
        """Compute the digest again. Raises DataError if an image, a label or a split differs from what was written."""
        digest = Digest()
        for index, (label, split) in enumerate(zip(self.labels, self.splits, strict=True)):
            digest.add(Row(self.image_bytes(index), int(label), str(split)))
        if digest.hex() != self.manifest["digest"]:
            raise DataError(
                f"{self.path / IMAGES}: digest {digest.hex()[:12]}... is not the {self.manifest['digest'][:12]}... of "
                f"{MANIFEST}: the data were changed; delete the folder {self.path} and make the data set again"
            )

    def _decode(self, rows: NDArray[np.int64], shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """Decode (N, C, H, W); all of `shape` (C, H, W), by default that of the first."""
        batch: NDArray[np.uint8] | None = None if shape is None else np.empty((len(rows), *shape), np.uint8)
        for position, row in enumerate(rows):
            pixels = self.image(row).transpose(2, 0, 1)
            if batch is None:
                batch = np.empty((len(rows), *pixels.shape), np.uint8)
            if pixels.shape != batch.shape[1:]:
                raise DataError(
                    f"{self.path / IMAGES}: image {row} is {pixels.shape[1]} x {pixels.shape[2]}, others are "
                    f"{batch.shape[2]} x {batch.shape[3]}; images of one batch must have one size"
                )
            batch[position] = pixels
        return torch.from_numpy(batch)


def _map(part: pa.Array) -> tuple[NDArray[np.int32], memoryview]:
    """Where the images of a part begin and end, and the bytes of all: a scalar of Arrow would be a copy."""
    _, offsets, data = part.buffers()
    ends = np.frombuffer(offsets, np.int32) if len(part) else np.zeros(1, np.int32)
    ends = ends[part.offset : part.offset + len(part) + 1]
    return ends, memoryview(data or b"").cast("B")  # of signed bytes: no comparison would hold


def writing_problem(path: Path, error: OSError) -> DataError:
    """The DataError for a failure to write the store at `path`; a full disk is distinguished from other reasons."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some space, or choose another storage folder" if full else "choose another storage folder"
    return DataError(f"{path}: cannot be written ({_one_line(error)}); {remedy}")


class Digest:
    """SHA-256 over the rows in order, each as length of the image, image, label, split."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, row: Row) -> None:
        self._hash.update(struct.pack("<q", len(row.image)))
        self._hash.update(row.image)
        self._hash.update(struct.pack("<ib", row.label, SPLITS.index(row.split)))

    def hex(self) -> str:
        return self._hash.hexdigest()


def _versions(more: Sequence[str]) -> dict[str, str]:
    """Of those of LIBRARIES and `more` that are here: where a library is not, no image was drawn by it."""
    versions = {}
    for library in (*LIBRARIES, *more):
        with contextlib.suppress(PackageNotFoundError):
            versions[library] = version(library)
    return versions


def write_store(
    path: Path | str,
    *,
    name: str,
    channels: int,
    class_names: Sequence[str],
    rows: Iterable[Row],
    seed: int | None,
    settings: Mapping[str, Any],
    facts: Mapping[str, Any] | None = None,
    columns: Mapping[str, Column] | None = None,
    drawn_by: Sequence[str] = (),
) -> Store:
    """Write a store at `path`, whole or not at all, and open it.

    `channels`: 1 or 3, what the images are decoded to; `seed`, `settings` and `facts` (more entries of the manifest)
    are recorded as they are (JSON values). `columns`: more about each image, (N,) strings or numbers, or (N, k)
    numbers. `drawn_by`: packages whose versions are recorded. If another process finished the same store first, that
    one is kept and opened. Raises DataError for an unknown split, a label without a name, a class without images, a
    folder that cannot be written.
    """
    path = Path(path).absolute()
    if channels not in MODES:
        raise DataError(f"{name}: channels is {channels}, not 1 (grey) or 3 (RGB)")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        # The name says whose folder it is, so that what a killed process leaves behind can be removed.
        draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.{_host()}.{os.getpid()}.", suffix=".tmp", dir=path.parent))
    except OSError as error:
        raise writing_problem(path, error) from None
    try:
        draft.chmod(path.parent.stat().st_mode & 0o777)  # mkdtemp's folders are private to the owner
        labels, splits, digest = _write_images(draft / IMAGES, name, list(class_names), rows, columns or {})
        manifest = {
            "format_version": FORMAT_VERSION,
            "name": name,
            **_counts(labels, splits, len(class_names)),
            "channels": channels,
            "seed": seed,
            "settings": dict(settings),
            **(facts or {}),
            "digest": digest,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": _versions(drawn_by),
        }
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", "utf-8")
        sync_to_disk(draft / MANIFEST)
        sync_to_disk(draft)
        try:
            draft.rename(path)  # fails if a non-empty folder is there
        except OSError:
            if not path.is_dir():
                raise DataError(f"{path}: is in the way of the data set {name!r}; move it elsewhere") from None
        sync_to_disk(path.parent)
    except OSError as error:
        raise writing_problem(path, error) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Store.open(path)


def _write_images(
    path: Path, name: str, class_names: list[str], rows: Iterable[Row], columns: Mapping[str, Column]
) -> tuple[NDArray[np.int64], NDArray[np.str_], str]:
    """Write the Arrow file; returns labels, splits and the digest."""
    digest = Digest()
    labels: list[int] = []
    splits: list[str] = []
    pending: list[Row] = []
    extra = {key: _arrow(column) for key, column in columns.items()}
    fields = [*SCHEMA, *(pa.field(key, column.type) for key, column in extra.items())]
    schema = pa.schema(fields, {"class_names": json.dumps(class_names, ensure_ascii=False)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:

        def flush() -> None:
            if pending:
                first = len(labels) - len(pending)
                codes = pa.array([SPLITS.index(row.split) for row in pending], pa.int8())
                batch = [
                    pa.array([row.image for row in pending], pa.binary()),
                    pa.array([row.label for row in pending], pa.int32()),
                    pa.DictionaryArray.from_arrays(codes, pa.array(SPLITS)),
                    *(column.slice(first, len(pending)) for column in extra.values()),
                ]
                writer.write_batch(pa.record_batch(batch, schema=schema))
                pending.clear()

        pending_bytes = 0
        for row in rows:
            if row.split not in SPLITS:
                raise DataError(f"{name}: image {len(labels)} has split '{row.split}'{suggestion(row.split, SPLITS)}")
            if not 0 <= row.label < len(class_names):
                raise DataError(
                    f"{name}: image {len(labels)} has label {row.label}, but there are {len(class_names)} class names; "
                    f"labels go from 0 to {len(class_names) - 1}"
                )
            digest.add(row)
            labels.append(row.label)
            splits.append(row.split)
            pending.append(row)
            pending_bytes += len(row.image)
            if len(pending) == ROWS_PER_BATCH or pending_bytes > BYTES_PER_BATCH:
                flush()
                pending_bytes = 0
        flush()
    sync_to_disk(path)
    empty = np.flatnonzero(np.bincount(labels, minlength=len(class_names)) == 0)
    if len(empty):
        raise DataError(f"{name}: no image of class {empty[0]} ({class_names[empty[0]]!r}); every class needs one")
    return np.array(labels, np.int64), np.array(splits, np.str_), digest.hex()


def _arrow(column: Column) -> pa.Array:
    array = column if isinstance(column, np.ndarray) else np.array(column, object)
    if array.ndim == 1:
        return pa.array(column)
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])


def _counts(labels: NDArray[np.int64], splits: NDArray[np.str_], num_classes: int) -> dict[str, Any]:
    """The counts on which manifest and images must agree."""
    present = np.unique(labels)
    contiguous = len(present) == num_classes and (not num_classes or present[-1] == num_classes - 1)
    return {
        "images": len(labels),
        "classes": num_classes if contiguous else -1,
        "splits": {split: int((splits == split).sum()) for split in SPLITS if (splits == split).any()},
    }


def _remove_leftovers(path: Path) -> None:
    """Remove the drafts of `path` that dead processes of this machine left behind."""
    prefix = f".{path.name}.{_host()}."
    for draft in path.parent.glob(f"{prefix}*.tmp"):
        pid = draft.name.removeprefix(prefix).split(".")[0]
        if pid.isdecimal() and not _alive(int(pid)):
            shutil.rmtree(draft, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _host() -> str:
    return socket.gethostname().replace(".", "-")


def sync_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remedy(path: Path) -> str:
    return f"delete the folder {path} and make the data set again"


def _reopen(path: Path, cache_bytes: int) -> Store:
    return Store.open(path, cache_bytes=cache_bytes)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
