"""Stores at `s3://bucket/prefix` and the like: fetched once per machine (`copies`), and published.

A store that is there is opened without network access: an address always means the same data, and `publish`
replaces none. Endpoint, region and credentials come from the provider's own environment variables and files;
they are never part of an address, and nothing here stores or prints them.
"""

import contextlib
import json
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from orchestrator.data.copies import copies_folder, delete_copy, find_copy, make_room, note_use
from orchestrator.data.locks import only_one
from orchestrator.data.manifest import IMAGES, MANIFEST, check_manifest
from orchestrator.data.store import Store, sync_to_disk, writing_problem
from orchestrator.errors import DataError
from orchestrator.storage.address import Address
from orchestrator.storage.buckets import open_bucket
from orchestrator.storage.files import parse_json

PIECE = 8 * 2**20
THREADS = 8

Say = Callable[[str], None]


def open_remote(address: str, root: Path | str, *, say: Say | None = None) -> Store:
    """The store at an address, from this machine's copies if it was fetched before.

    Of several processes one fetches and the others wait. An interrupted fetch resumes where it was, and nothing is kept
    whose digest is not the manifest's; a copy that was cut since is fetched again. While the store is open its copy is
    not deleted to make room for others. Raises DataError if it cannot be reached, read or written, or is incomplete.
    """
    where, say = Address.parse(address), say or (lambda line: None)
    path = find_copy(where, Path(root).absolute())
    while True:
        if (store := _open_copy(path, say)) is not None:
            return store
        _fetch_copy(where, path, say)


def _open_copy(path: Path, say: Say) -> Store | None:
    """The store at `path`; None if it is not there, or was damaged and is deleted."""
    while path.exists():
        note_use(path)
        try:
            return Store.open(path)
        except DataError:
            if not path.exists():
                return None  # deleted by another process in the meantime
            if not path.is_relative_to(copies_folder()) or not delete_copy(path):
                raise
            say(f"{path} is damaged and was deleted: it is fetched again")
    return None


def _fetch_copy(where: Address, path: Path, say: Say) -> None:
    """Fetch a store, unless another process does it meanwhile."""
    draft = path.with_name(f".{path.name}.fetch")
    try:
        with only_one(draft, lambda: say(f"waiting for another process that fetches {where}")):
            if not path.exists():
                remote = _RemoteStore(where)
                manifest = remote.manifest()
                try:
                    _fetch(remote, manifest, draft / "store", path, say)
                    (draft / "store").rename(path)
                except OSError:
                    if not path.exists():  # without locks another process may have been faster
                        raise
                sync_to_disk(path.parent)
    except OSError as error:
        raise writing_problem(path, error) from None


def remote_manifest(address: str) -> dict[str, Any]:
    """The manifest of a store at an address; nothing is fetched. Raises DataError as `open_remote` does."""
    manifest: dict[str, Any] = json.loads(_RemoteStore(Address.parse(address)).manifest())
    return manifest


def exists(address: str) -> bool:
    """Whether there is a store at an address. Raises DataError if the request fails."""
    return _RemoteStore(Address.parse(address)).read(MANIFEST) is not None


def publish_store(store: Store, address: str, *, say: Say | None = None) -> bool:
    """Copy a store to an address, its manifest last; False if it is there already.

    Raises DataError if another store is there, the store is damaged, or the address cannot be written to.
    """
    where = Address.parse(address)
    remote = _RemoteStore(where)
    there = remote.read(MANIFEST)
    if there is not None:
        if _manifest(there, f"{where}/{MANIFEST}")["digest"] == store.manifest["digest"]:
            return False
        raise DataError(f"{where}: another data set is there; choose another prefix, or delete that one")
    store.verify()
    if say is not None:
        say(f"publishing {_megabytes((store.path / IMAGES).stat().st_size)} to {where}")
    for name in (IMAGES, MANIFEST):
        remote.write(name, store.path / name)
    return True


def _bytes_of(path: Path) -> bytes | None:
    """A file's content; None if there is none."""
    return path.read_bytes() if path.is_file() else None


def _fetch(remote: "_RemoteStore", manifest: bytes, folder: Path, path: Path, say: Say) -> None:
    """Complete the store in `folder`, keeping what is already there."""
    size = remote.size()
    make_room(path, size, say)
    if _bytes_of(folder / MANIFEST) != manifest:  # of another store, published there before, or of none
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / MANIFEST).write_bytes(manifest)
        sync_to_disk(folder / MANIFEST)
    images = folder / IMAGES
    images.touch()
    done = min(images.stat().st_size, size) // PIECE * PIECE
    remainder = f", {_megabytes(done)} of it are there" if done else ""
    say(f"fetching {remote.where} ({_megabytes(size)}{remainder}) into {path} (once)")
    with images.open("r+b") as file, contextlib.closing(remote.pieces(done, size)) as pieces:
        file.seek(done)
        for piece in pieces:
            file.write(piece)
        file.truncate(size)
    sync_to_disk(images)
    try:
        Store.open(folder).verify()
    except DataError:
        shutil.rmtree(folder)
        raise DataError(
            f"{remote.where}: the fetched images are incomplete or do not have the digest of {MANIFEST}, and "
            "are deleted; fetch again, and if they are refused again, publish the data set again"
        ) from None


def _manifest(data: bytes, name: str) -> dict[str, Any]:
    remedy = "publish the data set again"
    try:
        manifest = parse_json(data)
    except ValueError as error:
        raise DataError(f"{name}: not readable as JSON ({error}); {remedy}") from None
    check_manifest(manifest, name, remedy)
    assert isinstance(manifest, dict)
    return manifest


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


class _RemoteStore:
    """The store at an address. A failure is a DataError of one line, after a bounded number of attempts."""

    def __init__(self, where: Address) -> None:
        self.where, self.bucket = where, open_bucket(where.scheme, where.bucket, anonymous=True)

    def manifest(self) -> bytes:
        """The manifest's bytes, checked to be a manifest."""
        data = self.read(MANIFEST)
        if data is None:
            if self._images() is not None:
                raise DataError(f"{self.where}: half a data set: {IMAGES} without {MANIFEST}; publish it (again)")
            raise DataError(f"{self.where}: no data set there (no {MANIFEST}); check the prefix")
        _manifest(data, f"{self.where}/{MANIFEST}")
        return data

    def size(self) -> int:
        """The size of the images in bytes."""
        size = self._images()
        if size is None:
            raise DataError(f"{self.where}: half a data set: {MANIFEST} without {IMAGES}; publish it again")
        return size

    def read(self, name: str) -> bytes | None:
        """An object; None if there is none."""
        with self._explain():
            return self.bucket.get(self._key(name), patient=False)

    def write(self, name: str, path: Path) -> None:
        """Upload a file."""
        with self._explain():
            self.bucket.upload(path, self._key(name))

    def pieces(self, done: int, size: int) -> Generator[bytes, None, None]:
        """The images from byte `done` on, in order, read ahead by several threads."""
        waiting: deque[Future[bytes]] = deque()
        pool = ThreadPoolExecutor(THREADS, "fetch")
        with self._explain():
            try:
                for offset in range(done, size, PIECE):
                    waiting.append(pool.submit(self.bucket.part, self._key(IMAGES), offset, min(PIECE, size - offset)))
                    if len(waiting) == THREADS:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _images(self) -> int | None:
        with self._explain():
            return self.bucket.size(self._key(IMAGES), patient=False)

    def _key(self, name: str) -> str:
        return f"{self.where.prefix}/{name}"

    @contextlib.contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(f"{self.where}: {error.strerror or error}") from None
