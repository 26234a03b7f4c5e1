"""Stores at `s3://bucket/prefix`: fetched once into the folder of data sets, and published from there.

    s3/<address>          the store, in the folder of data sets; slashes of the address are %2F there
    s3/.<address>.fetch   beside it, until all of it is there and has the digest of its manifest

A store that is there is opened without network access: an address always means the same data, and `publish`
replaces none. Endpoint, region and credentials come from AWS's own environment variables and files; they are never
part of an address, and nothing here stores or prints them.
"""

import contextlib
import json
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from orchestrator.data.store import IMAGES, MANIFEST, Store, check_manifest, only_one, sync, writing_problem
from orchestrator.errors import DataError
from orchestrator.storage.address import FOLDER, Address
from orchestrator.storage.files import parse_json

PIECE = 8 * 2**20
THREADS = 8
CONNECT_SECONDS = 5.0
SILENT_SECONDS = 30.0
"""How long a connection may deliver nothing."""
ATTEMPTS = 3
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

Say = Callable[[str], None]


def fetched(root: Path | str) -> dict[str, Path]:
    """The stores that were fetched into a folder of data sets, by address."""
    manifests = sorted((Path(root) / FOLDER).glob(f"[!.]*/{MANIFEST}"))
    return {f"s3://{unquote(path.parent.name)}": path.parent for path in manifests}


def open_remote(address: str, root: Path | str, *, say: Say | None = None) -> Store:
    """The store at an address, from `root` if it was fetched before.

    Of several processes one fetches and the others wait. An interrupted fetch resumes where it was, and nothing is kept
    whose digest is not the manifest's. Raises DataError if it cannot be reached, read or written, or is incomplete.
    """
    where, say = Address.parse(address), say or (lambda line: None)
    root = Path(root).absolute()
    path = where.place(root)
    if path.exists():
        return Store.open(path)
    draft = path.with_name(f".{path.name}.fetch")
    try:
        with only_one(draft, lambda: say(f"waiting for another process that fetches {where}")):
            if not path.exists():
                bucket = _Bucket(where)
                manifest = bucket.manifest()
                try:
                    _fetch(bucket, manifest, draft / "store", path, say)
                    (draft / "store").rename(path)
                except OSError:
                    if not path.exists():  # without locks another process may have been faster
                        raise
                sync(path.parent)
    except OSError as error:
        raise writing_problem(path, error) from None
    return Store.open(path)


def remote_manifest(address: str) -> dict[str, Any]:
    """The manifest of a store at an address; nothing is fetched. Raises DataError as `open_remote` does."""
    manifest: dict[str, Any] = json.loads(_Bucket(Address.parse(address)).manifest())
    return manifest


def exists(address: str) -> bool:
    """Whether there is a store at an address. Raises DataError if the request fails."""
    return _Bucket(Address.parse(address)).read(MANIFEST) is not None


def publish(store: Store, address: str, *, say: Say | None = None) -> bool:
    """Copy a store to an address, its manifest last; False if it is there already.

    Raises DataError if another store is there, the store is damaged, or the address cannot be written to.
    """
    where = Address.parse(address)
    bucket = _Bucket(where)
    there = bucket.read(MANIFEST)
    if there is not None:
        if _manifest(there, f"{where}/{MANIFEST}")["digest"] == store.manifest["digest"]:
            return False
        raise DataError(f"{where}: another data set is there; choose another prefix, or delete that one")
    store.verify()
    if say is not None:
        say(f"publishing {_megabytes((store.path / IMAGES).stat().st_size)} to {where}")
    for name in (IMAGES, MANIFEST):
        bucket.write(name, store.path / name)
    return True


def _fetch(bucket: "_Bucket", manifest: bytes, folder: Path, path: Path, say: Say) -> None:
    """Complete the store in `folder`, keeping what is already there."""
    size = bucket.size()
    if not folder.is_dir() or (folder / MANIFEST).read_bytes() != manifest:  # of another store, published there before
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / MANIFEST).write_bytes(manifest)
        sync(folder / MANIFEST)
    images = folder / IMAGES
    images.touch()
    done = min(images.stat().st_size, size) // PIECE * PIECE
    kept = f", {_megabytes(done)} of it are there" if done else ""
    say(f"fetching {bucket.where} ({_megabytes(size)}{kept}) into {path} (once)")
    with images.open("r+b") as file, contextlib.closing(bucket.pieces(done, size)) as pieces:
        file.seek(done)
        for piece in pieces:
            file.write(piece)
        file.truncate(size)
    sync(images)
    try:
        Store.open(folder).verify()
    except DataError:
        shutil.rmtree(folder)
        raise DataError(
            f"{bucket.where}: the images that were fetched do not have the digest of {MANIFEST}, or are not whole, and "
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


class _Bucket:
    """The objects below an address. A failure is a DataError of one line, after a bounded number of attempts."""

    def __init__(self, where: Address) -> None:
        from pyarrow import fs

        self.where = where
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
        # show only host and port: an address may contain a password
        self.host = "AWS" if endpoint is None else urlsplit(endpoint).netloc.rpartition("@")[2] or "AWS_ENDPOINT_URL"
        with self._explained():
            self.files = fs.S3FileSystem(
                endpoint_override=endpoint,
                connect_timeout=CONNECT_SECONDS,
                request_timeout=SILENT_SECONDS,
                retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
            )

    def manifest(self) -> bytes:
        """The manifest's bytes, checked to be a manifest."""
        data = self.read(MANIFEST)
        if data is None:
            with self._explained():
                bucket, images = self.files.get_file_info([self.where.bucket, self._key(IMAGES)])
            if not bucket.type:
                raise DataError(f"{self.where}: no bucket '{self.where.bucket}' at {self.host}")
            if images.type:
                raise DataError(f"{self.where}: half a data set: {IMAGES} without {MANIFEST}; publish it (again)")
            raise DataError(f"{self.where}: no data set there (no {MANIFEST}); look at the prefix")
        _manifest(data, f"{self.where}/{MANIFEST}")
        return data

    def size(self) -> int:
        """The size of the images in bytes."""
        with self._explained():
            info = self.files.get_file_info(self._key(IMAGES))
        if not info.is_file:
            raise DataError(f"{self.where}: half a data set: {MANIFEST} without {IMAGES}; publish it again")
        return int(info.size)

    def read(self, name: str) -> bytes | None:
        """An object; None if there is none, or perhaps no bucket."""
        with self._explained():
            try:
                with self.files.open_input_file(self._key(name)) as file:
                    data: bytes = file.read()
            except FileNotFoundError:
                return None
        return data

    def write(self, name: str, path: Path) -> None:
        """Upload a file."""
        with path.open("rb") as source, self._explained(), self.files.open_output_stream(self._key(name)) as file:
            while piece := source.read(PIECE):
                file.write(piece)

    def pieces(self, done: int, size: int) -> Generator[bytes, None, None]:
        """The images from byte `done` on, in order, read ahead by several threads."""
        waiting: deque[Future[bytes]] = deque()
        with self._explained(), self.files.open_input_file(self._key(IMAGES)) as file:
            pool = ThreadPoolExecutor(THREADS, "fetch")
            try:
                for offset in range(done, size, PIECE):
                    waiting.append(pool.submit(file.read_at, min(PIECE, size - offset), offset))
                    if len(waiting) == THREADS:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _key(self, name: str) -> str:
        return f"{self.where.bucket}/{self.where.prefix}/{name}"

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.where}: {self._reason(str(error))}") from None

    def _reason(self, text: str) -> str:
        """The reason in plain words; Arrow's message contains AWS's own name of the error."""
        text = " ".join(text.split())
        if "NO_SUCH_BUCKET" in text:
            return f"no bucket '{self.where.bucket}' at {self.host}"
        if re.search(r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|TOKEN|CREDENTIAL|HTTP status 40[13]", text):
            return f"access denied by {self.host}; look at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        if re.search(r"HTTP status 301|PermanentRedirect|AuthorizationHeaderMalformed", text):
            return f"the bucket is of another region; set AWS_REGION ({text})"
        if "NETWORK_CONNECTION" in text or "curlCode" in text or "TIMEOUT" in text:
            detail = text.rpartition("curlCode: ")[2].partition("; ")[0].partition(", ")[2] or "it does not answer"
            return f"no connection to {self.host} ({detail.lower()}); look at AWS_ENDPOINT_URL and the network"
        for secret in filter(None, map(os.environ.get, SECRETS)):
            text = text.replace(secret, "***")
        return text
