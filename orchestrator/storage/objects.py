"""Reading, writing, publishing and fetching the files of a storage, on a disk or in an object store."""

import contextlib
import hashlib
import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.storage.files import read_small
from orchestrator.storage.paths import address_of, shown
from orchestrator.storage.s3 import IMPATIENCE_SECONDS, Bucket


def read(path: Path, patience: float | None = None) -> bytes | None:
    """Read a small file; None if there is none."""
    if (found := Bucket.of(path)) is not None:
        return found[0].get(found[1], patience)
    try:
        return read_small(path)
    except FileNotFoundError:
        return None


def write(path: Path, data: bytes, patience: float | None = None) -> None:
    """Write or replace a small file."""
    if (found := Bucket.of(path)) is not None:
        found[0].put(found[1], data, patience)
    else:
        path.write_bytes(data)


def remove(path: Path, patience: float | None = None) -> None:
    """Delete a small file, if it is there."""
    if (found := Bucket.of(path)) is not None:
        found[0].remove([found[1]], patience)
    else:
        path.unlink(missing_ok=True)


def publish(path: Path) -> None:
    """Copy a file of a working copy, or all files of a folder, to the object store; does nothing for a disk."""
    if (found := Bucket.of(path)) is not None:
        for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
            found[0].upload(file, "/".join([found[1], *file.relative_to(path).parts]))


def bring(path: Path) -> None:
    """Fetch the files that are not in the working copy yet; does nothing if there are none."""
    if (found := Bucket.of(path)) is not None and not path.is_file() and not download(*found, path):
        bucket, key = found
        for inner in bucket.keys(f"{key}/"):
            file = path / inner.removeprefix(f"{key}/")
            if not inner.endswith("/") and address_of(file) is not None and not file.exists():
                download(bucket, inner, file)


def folders(path: Path) -> list[str] | None:
    """The names of the folders in a folder; None for one on a disk. InputError if the store does not answer."""
    if (found := Bucket.of(path)) is None:
        return None
    bucket, key = found
    with refused_in_one_line():
        return [name.removesuffix("/").rpartition("/")[2] for name in bucket.folders(f"{key}/", IMPATIENCE_SECONDS)]


def check_writable(path: Path, option: str) -> None:
    """InputError unless objects can be written below this path; does nothing for a disk."""
    if (found := Bucket.of(path)) is None:
        return
    bucket, key = found
    probe = f"{key}/.write-test-{uuid.uuid4().hex}"
    with refused_in_one_line(f"{option}: {shown(path)}"):
        bucket.put(probe, b"", IMPATIENCE_SECONDS)
        if bucket.create(probe, b"second"):
            bucket.conditional = False
            warnings.warn(
                f"{bucket.host} takes no conditional writes (If-None-Match): see to it that no search has two drivers",
                stacklevel=2,
            )
        bucket.remove([probe])


def fault(path: Path) -> str | None:
    """The fault of the store behind a path, in one line; None if it answers, or if the path is on a disk."""
    try:
        read(path / "any")
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


@contextlib.contextmanager
def refused_in_one_line(what: str | None = None) -> Iterator[None]:
    """At the start of a command, a refusal by the store is reported as bad input."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what or error.filename}: {error.strerror or error}") from None


def download(bucket: Bucket, key: str, path: Path) -> str | None:
    """Download an object to a file and return its SHA-256; None if there is no object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False) as file:
        try:
            if not bucket.download(key, file):  # type: ignore[arg-type]
                return None
            file.flush()
            digest = sha256(Path(file.name))
            os.replace(file.name, path)
            return digest
        finally:
            Path(file.name).unlink(missing_ok=True)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
