"""A storage at `s3://bucket/prefix`, behind a folder of this machine that stands for it.

    working copy                                       object store, below the prefix
    searches/NAME/journal.jsonl                        searches/NAME/journal/00000042.jsonl, one record each
    searches/NAME/{driver,request}.json                the same, only there
    searches/NAME/{leaderboard.csv,report/...}         the same
    searches/NAME/trials/0003/*.pt, diagnostics/...    searches/NAME/trials/0003/FILE.WRITER.NUMBER, and manifest.json

A path beneath a working copy names its object; every other path is a file on a disk, and nothing here touches it.
An object store appends and renames nothing, and has no locks. So a record is an object of its own, made only if there
is none of its number yet: of two drivers that believe to be alone one is refused. A trial's files are objects that
never change, and the manifest, written last, says which of them count: an upload that was cut is never seen. Nothing
of a working copy is needed again: another machine, or this one without it, begins with an empty one.

Endpoint, region and credentials come from AWS's own environment variables and files. What the store refuses for a
while is asked again, for a minute; then it is an OSError that `storage_fault` knows, and the search stops in order.
"""

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import shutil
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar
from urllib.parse import quote, unquote, urlsplit

from orchestrator.errors import InputError
from orchestrator.files import parse_json, read_small
from orchestrator.records import Place, decode, go_on

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""How long a request that the store refuses for the moment is repeated."""
IMPATIENCE_SECONDS = 5.0
"""The same for the first request of a command, and for what comes again by itself."""
LONGEST_PAUSE_SECONDS = 5.0
CONNECT_SECONDS = 5.0
SILENT_SECONDS = 30.0
THREADS = 16
"""Records that are read at a time."""
BUNDLE = 500
MANIFEST = "manifest.json"
TRANSIENT = {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling", "ThrottlingException"}
TRANSIENT |= {"ConditionalRequestConflict", "OperationAborted", "RequestTimeTooSkewed"}
DENIED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "Forbidden"}
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")


# Names ------------------------------------------------------------------------------------------------------


def working_copy(address: str) -> Path:
    """The folder of this machine that stands for the storage at `s3://bucket/prefix`; it need not exist.

    InputError for what is no address, and for one with credentials, which it does not repeat."""
    from orchestrator.data.remote import Address

    where = Address.parse(address)
    name = quote(f"{_host()}/{where.bucket}/{where.prefix}", safe="")
    return _root() / name.replace("%", "=")  # MLflow would decode a per cent sign in its database's path


def address_of(path: Path) -> str | None:
    """The address that a path beneath a working copy stands for; None for a path on a disk."""
    found = _split(path)
    return None if found is None else f"s3://{'/'.join(filter(None, found))}"


def shown(path: Path) -> str:
    """A path as users know it, and as other machines find it: the address if it stands for one."""
    return address_of(path) or str(path)


def portable(path: Path) -> str:
    """A path as a cluster's other machines find it with `place`: as it is, or the storage's address, `//`, the rest."""
    found = _split(path)
    return str(path) if found is None else f"s3://{found[0]}//{found[1]}"


def place(name: str) -> Path:
    """What `portable` gave, on this machine."""
    storage, found, inner = name.removeprefix("s3://").partition("//")
    return working_copy(f"s3://{storage}") / inner if found and name.startswith("s3://") else Path(name)


def _split(path: Path) -> tuple[str, str] | None:
    """`bucket/prefix` and the rest, of a path beneath a working copy."""
    try:
        store, *rest = path.absolute().relative_to(_root()).parts
    except ValueError:  # on a disk, or all working copies themselves
        return None
    if ".." in rest:
        raise InputError(f"{'/'.join(rest)}: should not hold '..'")
    return unquote(store.replace("=", "%")).partition("/")[2], "/".join(rest)


def _root() -> Path:
    cache = os.environ.get("ORCHESTRATOR_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(cache) if cache else Path(home) / "orchestrator").resolve() / "storages"


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def _host() -> str:
    """Only host and port: an address may hold a password."""
    endpoint = _endpoint()
    return "AWS" if endpoint is None else urlsplit(endpoint).netloc.rpartition("@")[2] or "AWS_ENDPOINT_URL"


# Requests ---------------------------------------------------------------------------------------------------


class Bucket:
    """A bucket's objects, by key. What goes wrong is an OSError of one line with the address as its file name."""

    def __init__(self, name: str, host: str) -> None:
        import boto3
        from botocore.config import Config

        self.name, self.host = name, host
        endpoint = _endpoint()
        self.client = boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint,
            config=Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=SILENT_SECONDS,
                max_pool_connections=THREADS,
                retries={"mode": "standard", "total_max_attempts": 2},
                s3={"addressing_style": "path" if endpoint else "auto"},
                request_checksum_calculation="when_required",  # not every store knows the newer ones
                response_checksum_validation="when_required",
            ),
        )
        self.conditional = True
        """Whether the store makes an object only if there is none (If-None-Match)."""
        self.random = random.Random()

    @classmethod
    def of(cls, path: Path) -> tuple["Bucket", str] | None:
        """The bucket and the key of a path beneath a working copy; None for a path on a disk."""
        found = _split(path)
        if found is None:
            return None
        bucket, _, prefix = found[0].partition("/")
        return _bucket(bucket, _host()), "/".join(filter(None, (prefix, found[1])))

    def get(self, key: str, patience: float | None = None) -> bytes | None:
        """An object, None if there is none."""

        def ask() -> bytes:
            data: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
            return data

        return self._asked(ask, key, patience, missing=True)

    def put(self, key: str, data: bytes, patience: float | None = None) -> None:
        """Write or replace an object."""
        self._asked(lambda: self.client.put_object(Bucket=self.name, Key=key, Body=data), key, patience)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that must not be there; False if another is. What an attempt wrote whose answer was lost is
        recognised."""
        if not self.conditional and (there := self.get(key)) is not None:
            return there == data
        condition = {"IfNoneMatch": "*"} if self.conditional else {}

        def ask() -> bool:
            try:
                self.client.put_object(Bucket=self.name, Key=key, Body=data, **condition)
            except Exception as error:
                if _code(error) not in ("PreconditionFailed", "412"):
                    raise
                return False
            return True

        return bool(self._asked(ask, key)) or self.get(key) == data

    def remove(self, keys: Iterable[str], patience: float | None = None) -> None:
        """Delete objects; those that are not there need not be."""
        for key in keys:
            self._asked(lambda key=key: self.client.delete_object(Bucket=self.name, Key=key), key, patience)  # type: ignore[misc]

    def keys(self, prefix: str, after: str = "", patience: float | None = None) -> list[str]:
        """The keys with this prefix, those behind `after`, in order."""
        return self._listed(prefix, "Contents", "Key", patience, StartAfter=after)

    def folders(self, prefix: str, patience: float | None = None) -> list[str]:
        """The prefixes one level below this one, which ends in a slash; so do they."""
        return self._listed(prefix, "CommonPrefixes", "Prefix", patience, Delimiter="/")

    def _listed(self, prefix: str, kind: str, name: str, patience: float | None, **more: str) -> list[str]:
        def ask() -> list[str]:
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix, **more)
            return [found[name] for page in pages for found in page.get(kind, [])]

        return self._asked(ask, prefix, patience) or []

    def upload(self, path: Path, key: str) -> None:
        """A file as an object, in parts if it is large; it is there once all of it is."""

        def ask() -> None:
            with path.open("rb") as file:
                self.client.upload_fileobj(file, self.name, key)

        self._asked(ask, key)

    def download(self, key: str, file: BinaryIO) -> bool:
        """An object into an open file; False if there is none."""

        def ask() -> bool:
            file.seek(0)
            file.truncate()
            self.client.download_fileobj(self.name, key, file)
            return True

        return bool(self._asked(ask, key, missing=True))

    def _asked(
        self, ask: Callable[[], T], key: str, patience: float | None = None, *, missing: bool = False
    ) -> T | None:
        """The answer, after as many attempts as `patience` allows; None, if that may be, where nothing is."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        patience = PATIENCE_SECONDS if patience is None else patience
        begun, pause = time.monotonic(), 0.1
        while True:
            try:
                return ask()
            except (Boto3Error, BotoCoreError, ClientError) as error:
                if missing and _code(error) in ("NoSuchKey", "404"):
                    return None
                waited = time.monotonic() - begun
                if not _transient(error) or waited + pause > patience:
                    raise OSError(errno.EIO, self._reason(error, waited), f"s3://{self.name}/{key}") from None
            time.sleep(pause * self.random.uniform(0.5, 1))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _reason(self, error: Exception, waited: float) -> str:
        from botocore.exceptions import ConnectionError, HTTPClientError, NoCredentialsError, PartialCredentialsError

        code, look = _code(error), "look at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        text = " ".join(str(error).split())
        if code == "NoSuchBucket":
            return f"no bucket '{self.name}' at {self.host}"
        if code in DENIED or code in ("403", "401"):
            return f"access denied by {self.host}; {look}"
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return f"no credentials for {self.host}; {look}"
        if code in ("PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"):
            return f"the bucket is of another region; set AWS_REGION ({text})"
        if isinstance(error, HTTPClientError | ConnectionError):
            what = f"{type(error).__name__.removesuffix('Error')}, for {waited:.0f} s"
            return f"no connection to {self.host} ({what}); look at AWS_ENDPOINT_URL and the network"
        for secret in filter(None, map(os.environ.get, SECRETS)):
            text = text.replace(secret, "***")
        return f"{self.host} answers {code or type(error).__name__}, for {waited:.0f} s ({text[:200]})"


@cache
def _bucket(name: str, host: str) -> Bucket:
    return Bucket(name, host)


def _code(error: Exception) -> str:
    """S3's own name of an error, or the number of its status."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _response(error: Exception) -> dict[str, Any]:
    return getattr(error, "response", None) or {}


def _transient(error: Exception) -> bool:
    from botocore.exceptions import ConnectionError, HTTPClientError, IncompleteReadError

    if isinstance(error, HTTPClientError | ConnectionError | IncompleteReadError):
        return True
    if _code(error) == "NotImplemented":
        return False
    status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return _code(error) in TRANSIENT or status in (408, 429) or status >= 500


# Small files ------------------------------------------------------------------------------------------------


def read(path: Path, patience: float | None = None) -> bytes | None:
    """A small file; None if there is none."""
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
    """Copy a file of a working copy, or all files of a folder, to their place; nothing on a disk."""
    if (found := Bucket.of(path)) is not None:
        for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
            found[0].upload(file, "/".join([found[1], *file.relative_to(path).parts]))


def bring(path: Path) -> None:
    """The other way round, of files that are not there yet; nothing where there are none."""
    if (found := Bucket.of(path)) is not None and not path.is_file() and not _download(*found, path):
        bucket, key = found
        for inner in bucket.keys(f"{key}/"):
            file = path / inner.removeprefix(f"{key}/")
            if not inner.endswith("/") and address_of(file) is not None and not file.exists():
                _download(bucket, inner, file)


def folders(path: Path) -> list[str] | None:
    """The names of the folders in a folder; None for one on a disk. InputError if the store cannot be asked."""
    if (found := Bucket.of(path)) is None:
        return None
    bucket, key = found
    with refused_in_one_line():
        return [name.removesuffix("/").rpartition("/")[2] for name in bucket.folders(f"{key}/", IMPATIENCE_SECONDS)]


def check_writable(path: Path, option: str) -> None:
    """InputError unless objects can be written below this path; nothing on a disk."""
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
    """What is wrong with the store behind a path, in one line; None if it answers, or the path is on a disk."""
    try:
        read(path / "any")
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


@contextlib.contextmanager
def refused_in_one_line(what: str | None = None) -> Iterator[None]:
    """At a command's beginning, what the store refuses is bad input."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what or error.filename}: {error.strerror or error}") from None


def _download(bucket: Bucket, key: str, path: Path) -> str | None:
    """An object's SHA-256, once it is a file; None if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False) as file:
        try:
            if not bucket.download(key, file):  # type: ignore[arg-type]
                return None
            file.flush()
            digest = _sha256(Path(file.name))
            os.replace(file.name, path)
            return digest
        finally:
            Path(file.name).unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Journals ---------------------------------------------------------------------------------------------------


class Segments:
    """The records of a search, each an object of its own: `journal/00000042.jsonl` holds the line with `seq` 42.

    For readers that begin with nothing, every so many are written again together; a store answers request by request.
    """

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self.bucket, self.prefix = bucket, prefix
        self.tail: list[bytes] = []
        """The records since the last bundle."""

    @classmethod
    def of(cls, journal: Path) -> Self | None:
        """Of the journal with this path; None if it is on a disk."""
        found = Bucket.of(journal.with_suffix(""))
        return None if found is None else cls(found[0], f"{found[1]}/")

    def __str__(self) -> str:
        return f"s3://{self.bucket.name}/{self.prefix}"

    @property
    def search(self) -> str:
        """The name of the search."""
        return self.prefix.split("/")[-3]

    def key(self, number: int) -> str:
        """Of one record."""
        return f"{self.prefix}{number:08d}.jsonl"

    def bundle(self, first: int) -> str:
        """Of a copy of so many records together."""
        return f"{self.prefix}by-{BUNDLE}/{first:08d}.jsonl"

    def publish(self, number: int, line: bytes) -> bool:
        """Make a record known to all; False if another process wrote one with this number."""
        if not self.bucket.create(self.key(number), line):
            return False
        self.tail.append(line)
        if len(self.tail) == BUNDLE:
            with contextlib.suppress(OSError):  # readers can do without
                self.bucket.put(self.bundle(number + 1 - BUNDLE), b"".join(self.tail), IMPATIENCE_SECONDS)
            self.tail = []
        return True

    def extend(self, file: BinaryIO) -> None:
        """Bring the local copy, open for reading and writing, to all whole records that there are.

        InputError if one is missing or damaged; OSError if the store cannot be asked."""
        lines, end = self._kept(file)
        if lines and self.bucket.get(self.key(0), IMPATIENCE_SECONDS) != lines[0]:
            lines, end = [], Place()  # of another search that had this name
        keys = self._keys(len(lines) - 1)
        if lines and self.key(len(lines) - 1) not in keys:
            lines, end, keys = [], Place(), self._keys(0)
        file.seek(end.offset)
        file.truncate()
        with ThreadPoolExecutor(THREADS, "journal") as pool:
            wanted, missing = self._wanted(len(lines), keys)
            for key, data in zip(wanted, pool.map(self.bucket.get, wanted), strict=True):
                for line in (data or b"?").splitlines(keepends=True):
                    try:
                        _, end = decode(line, end)
                    except ValueError as error:
                        what = f"s3://{self.bucket.name}/{key}: damaged: not the journal's record {end.number}: {error}"
                        if f"/by-{BUNDLE}/" in key:
                            how = ": it is a copy of single ones: delete it, and they are read"
                        else:
                            how = go_on(self.search, end.number)
                        file.flush()
                        raise InputError(what + how) from None
                    lines.append(line)
                    file.write(line)
        file.flush()
        if missing:
            raise InputError(missing + go_on(self.search, end.number))
        self.tail = lines[len(lines) - len(lines) % BUNDLE :]

    def cut(self, first: int, aside: str) -> None:
        """Records from this number on do not count any more: they are put into a folder beside the journal's."""
        kept = f"{self.prefix.removesuffix('journal/')}{aside}/journal/"
        for key in self._keys(0):
            if (numbered := key in self._numbered([key])) and key < self.key(first):
                continue
            if numbered and (data := self.bucket.get(key)) is not None:
                self.bucket.put(kept + key.removeprefix(self.prefix), data)
            self.bucket.remove([key])  # a bundle is a copy

    def _keys(self, first: int) -> dict[str, None]:
        """The keys of all records from the one with this number on, and of all bundles, in order."""
        after = self.key(first - 1) if first > 0 else ""
        return dict.fromkeys(self.bucket.keys(self.prefix, after, IMPATIENCE_SECONDS))

    def _wanted(self, number: int, keys: Mapping[str, None]) -> tuple[list[str], str | None]:
        """What to fetch for all records from this number on, bundles where there are any, and what is missing."""
        wanted = []
        while (key := self.key(number)) in keys:
            bundled = self.bundle(number) in keys and self.key(number + BUNDLE - 1) in keys
            wanted.append(self.bundle(number) if bundled else key)
            number += BUNDLE if bundled else 1
        ends = [key for key in self._numbered(keys) if key > self.key(number)]
        missing = f"{self}: record {number} is missing, the next is {ends[0].rpartition('/')[2]}" if ends else None
        return wanted, missing

    def _numbered(self, keys: Iterable[str]) -> list[str]:
        """Those of single records."""
        return [key for key in keys if re.fullmatch(r"\d{8,}\.jsonl", key.removeprefix(self.prefix))]

    def _kept(self, file: BinaryIO) -> tuple[list[bytes], Place]:
        """The whole records of the local copy, and the place behind them."""
        file.seek(0)
        lines, end = [], Place()
        for line in file.read().splitlines(keepends=True):
            try:
                _, end = decode(line, end)
            except ValueError:
                break
            lines.append(line)
        return lines, end


# Trials -----------------------------------------------------------------------------------------------------


class DamagedError(OSError):
    """A trial's file is not the one that its manifest names."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class TrialFiles:
    """A trial's folder in the hands of the process that trains it. On a disk that is all; of a storage on an object
    store it is a temporary one, and `keep` makes what is in it count."""

    def __init__(self, name: str) -> None:
        self.path = place(name)
        self.found = Bucket.of(self.path)
        self.folder = self.path if self.found is None else Path(tempfile.mkdtemp(prefix="trial-"))
        self.manifest: dict[str, dict[str, Any]] = {}
        self.stamps: dict[str, tuple[int, int, int]] = {}
        self.writer, self.number = uuid.uuid4().hex[:8], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.found is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def fetch(self, agreed: Callable[[Any], Any], *, leader: bool) -> str | None:
        """Begin with the files that count. `agreed` gives all of a group's processes the leader's value.

        Where they are damaged there are none to begin with: then it gives the reason, else None."""
        if self.found is None:
            return None
        manifest: dict[str, dict[str, Any]] = {}
        reason = None
        if leader:
            try:
                manifest = _manifest(*self.found)
                _fetch(*self.found, manifest, self.folder)
            except (InputError, DamagedError) as error:
                manifest, reason = {}, str(error)
        manifest, reason = agreed((manifest, reason))
        if not leader or reason is not None:
            _fetch(*self.found, manifest, self.folder)
        return reason

    def share(self, agreed: Callable[[Any], Any], *, leader: bool, names: Collection[str]) -> None:
        """The leader's files of these names, which it has kept, for the other processes of its group."""
        manifest = agreed(self.manifest if leader else None)  # on a disk too: they wait until it is written
        if self.found is not None and not leader:
            wanted = {name: entry for name, entry in manifest.items() if name.rpartition("/")[2] in names}
            _fetch(*self.found, wanted, self.folder)

    def keep(self) -> None:
        """What is in the folder counts from here on, all of it or, if this fails, nothing. One process of a group."""
        if self.found is None:
            return
        bucket, prefix = self.found
        paths = {path.relative_to(self.folder).as_posix(): path for path in sorted(self.folder.rglob("[!.]*"))}
        files = {name: path for name, path in paths.items() if path.is_file()}
        stamps = {name: (s.st_ino, s.st_mtime_ns, s.st_size) for name, path in files.items() if (s := path.stat())}
        if stamps == self.stamps:
            return
        manifest, before = {}, self.manifest
        for name, path in files.items():
            if stamps[name] == self.stamps.get(name):
                manifest[name] = before[name]
                continue
            self.number += 1
            entry = {"object": f"{name}.{self.writer}.{self.number}", "size": path.stat().st_size}
            manifest[name] = entry | {"sha256": _sha256(path)}
            bucket.upload(path, f"{prefix}/{entry['object']}")
        _write_manifest(bucket, prefix, manifest)
        self.manifest, self.stamps = manifest, stamps
        # what others wrote is left to the trial's end: somebody may still count on it
        replaced = {entry["object"] for entry in before.values()} - {entry["object"] for entry in manifest.values()}
        with contextlib.suppress(OSError):
            bucket.remove([f"{prefix}/{name}" for name in sorted(replaced)], IMPATIENCE_SECONDS)


def bring_trial(folder: Path, part: str | None = None) -> None:
    """A trial's files that count into the working copy, or those in the folders of this name; nothing on a disk.
    OSError if the store cannot be asked, or they are damaged."""
    if (found := Bucket.of(folder)) is not None:
        manifest = _manifest(*found)
        if part is not None:
            manifest = {name: entry for name, entry in manifest.items() if part in name.split("/")[:-1]}
        _fetch(*found, manifest, folder)


def drop(folder: Path, names: Iterable[str]) -> None:
    """The files with these names of an ended trial are not needed again, and what no manifest names is not either."""
    if (found := Bucket.of(folder)) is None:
        return
    bucket, prefix = found
    manifest = _manifest(bucket, prefix)
    kept = {name: entry for name, entry in manifest.items() if name.rpartition("/")[2] not in set(names)}
    if kept != manifest:
        _write_manifest(bucket, prefix, kept)
    counted = {f"{prefix}/{name}" for name in (MANIFEST, *(entry["object"] for entry in kept.values()))}
    bucket.remove([key for key in bucket.keys(f"{prefix}/") if key not in counted])


def _manifest(bucket: Bucket, prefix: str) -> dict[str, dict[str, Any]]:
    """The files of a trial that count, by name: `object`, `size` and `sha256` of each. Others may write to the store:
    no name leads out of the trial's folder."""
    data = bucket.get(f"{prefix}/{MANIFEST}")
    if data is None:
        return {}
    try:
        files: dict[str, dict[str, Any]] = parse_json(data)["files"]
        for name, entry in files.items():
            for part in (*name.split("/"), *entry["object"].split("/")):
                if not re.fullmatch(r"[\w-][\w.-]*", part):
                    raise ValueError(f"the name {part!r}")
            _ = int(entry["size"]), bytes.fromhex(entry["sha256"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"s3://{bucket.name}/{prefix}/{MANIFEST}: damaged ({error})") from None
    return files


def _write_manifest(bucket: Bucket, prefix: str, files: Mapping[str, Mapping[str, Any]]) -> None:
    bucket.put(f"{prefix}/{MANIFEST}", json.dumps({"files": files}, indent=1).encode())


def _fetch(bucket: Bucket, prefix: str, manifest: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Make a folder hold what a manifest names, and no other model."""
    for path in folder.rglob("*.pt"):
        if path.relative_to(folder).as_posix() not in manifest:
            path.unlink(missing_ok=True)
    for name, entry in manifest.items():
        path = folder / name
        if path.is_file() and path.stat().st_size == entry["size"] and _sha256(path) == entry["sha256"]:
            continue
        address = f"s3://{bucket.name}/{prefix}/{entry['object']}"
        if _download(bucket, f"{prefix}/{entry['object']}", path) != entry["sha256"]:
            path.unlink(missing_ok=True)
            raise DamagedError(errno.EIO, f"not what {MANIFEST} says: missing or damaged", address)
