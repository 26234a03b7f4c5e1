"""Buckets of an object store, of storages and of data sets: what every kind of store has in common.

A storage at `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix` is behind a local folder that
represents it.

    working copy                                       object store, below the prefix
    searches/NAME/journal.jsonl                        searches/NAME/journal/00000042.jsonl, one record each
    searches/NAME/{driver,request}.json                the same, only there
    searches/NAME/{leaderboard.csv,report/...}         the same
    searches/NAME/trials/0003/*.pt, diagnostics/...    searches/NAME/trials/0003/FILE.WRITER.NUMBER, and manifest.json

A path in a working copy names its object; every other path is a file on a disk, and this module does not touch it.
An object store cannot append or rename, and has no locks. So each record is a separate object, created only if its
number is not used yet: of two drivers that both believe to be alone, one is refused. A trial's files are objects that
never change, and the manifest, written last, lists the valid ones: an incomplete upload is never visible. A working
copy can be lost: another machine, or this one without it, begins with an empty one.

Endpoint and credentials come from each provider's own environment variables and files. A request that the store refuses
temporarily is retried for a minute; then it is an OSError known to `storage_fault`, and the search stops cleanly.
"""

import errno
import os
import random
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, ClassVar, TypeVar

from orchestrator.storage.files import sha256
from orchestrator.storage.opening import open_file

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""How long a temporarily refused request is retried."""
IMPATIENCE_SECONDS = 5.0
"""The same for the first request of a command, and for periodic requests: those that are not `patient`."""
LONGEST_PAUSE_SECONDS = 5.0
CONNECT_SECONDS = 5.0
SILENT_SECONDS = 30.0
THREADS = 16
"""How many records are read in parallel."""


class Bucket(ABC):
    """A bucket's objects, by key. Failures are OSErrors of one line with the address as file name.

    A kind of store sends single requests (`_get` and so on, of which each either succeeds or raises one of its
    `failures`), and says of a failure what it means.
    """

    scheme: ClassVar[str]
    failures: tuple[type[Exception], ...]
    """What its requests raise."""

    def __init__(self, name: str, host: str) -> None:
        self.name, self.host = name, host
        self.conditional = True
        """Whether the store can create an object only if there is none."""
        self.random = random.Random()

    def address(self, key: str) -> str:
        """The address of an object."""
        return f"{self.scheme}://{self.name}/{key}"

    def get(self, key: str, *, patient: bool = True) -> bytes | None:
        """An object, None if there is none."""
        return self._ask(lambda: self._get(key), key, patient, missing=True)

    def part(self, key: str, offset: int, length: int) -> bytes:
        """These bytes of an object."""
        return self._ask(lambda: self._part(key, offset, length), key) or b""

    def size(self, key: str, *, patient: bool = True) -> int | None:
        """The size of an object in bytes; None if there is none."""
        return self._ask(lambda: self._size(key), key, patient, missing=True)

    def put(self, key: str, data: bytes, *, patient: bool = True) -> None:
        """Write or replace an object."""
        self._ask(lambda: self._put(key, data), key, patient)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that must not exist; False if another one does. An earlier attempt whose response was lost
        is recognised."""
        if not self.conditional and (there := self.get(key)) is not None:
            return there == data
        create = self._create if self.conditional else self._put

        def ask() -> bool:
            return create(key, data) is not False

        return bool(self._ask(ask, key)) or self.get(key) == data

    def remove(self, keys: Iterable[str], *, patient: bool = True) -> None:
        """Delete objects; missing ones are ignored."""
        for key in keys:
            self._ask(lambda key=key: self._remove(key), key, patient, missing=True)  # type: ignore[misc]

    def copy(self, key: str, new: str) -> None:
        """Copy an object within the bucket."""
        self._ask(lambda: self._copy(key, new), key)

    def keys(self, prefix: str, after: str = "", *, patient: bool = True) -> list[str]:
        """The keys with this prefix, which ends in a slash, that come after `after`, in order."""
        return self._ask(lambda: self._keys(prefix, after), prefix, patient) or []

    def folders(self, prefix: str, *, patient: bool = True) -> list[str]:
        """The prefixes one level below this one; all end in a slash."""
        return self._ask(lambda: self._folders(prefix), prefix, patient) or []

    def upload(self, path: Path, key: str) -> None:
        """Upload a file, in parts if it is large; the object exists only once it is complete."""
        path.stat()  # a missing file is no failure of the store

        def ask() -> None:
            with open_file(path) as file:
                self._upload(file, key)

        self._ask(ask, key)

    def download(self, key: str, path: Path) -> str | None:
        """Download an object to a file, whole or not at all, and return its SHA-256; None if there is no object."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False) as file:

            def ask() -> bool:
                file.seek(0)
                file.truncate()
                self._download(key, file)
                return True

            try:
                if not self._ask(ask, key, missing=True):
                    return None
                file.flush()
                digest = sha256(Path(file.name))
                os.replace(file.name, path)
                return digest
            finally:
                Path(file.name).unlink(missing_ok=True)

    def _ask(self, ask: Callable[[], T], key: str, patient: bool = True, *, missing: bool = False) -> T | None:
        """The response, after as many attempts as patience allows; with `missing`, None for a missing object."""
        patience = PATIENCE_SECONDS if patient else IMPATIENCE_SECONDS
        start, pause = time.monotonic(), 0.1
        while True:
            try:
                return ask()
            except self.failures as error:
                if missing and self._is_missing(error):
                    return None
                waited = time.monotonic() - start
                if not self._is_transient(error) or waited + pause > patience:
                    raise OSError(errno.EIO, self._reason(error, waited), self.address(key)) from None
            time.sleep(pause * self.random.uniform(0.5, 1))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    @abstractmethod
    def _get(self, key: str) -> bytes: ...

    @abstractmethod
    def _part(self, key: str, offset: int, length: int) -> bytes: ...

    @abstractmethod
    def _size(self, key: str) -> int: ...

    @abstractmethod
    def _put(self, key: str, data: bytes) -> None: ...

    @abstractmethod
    def _create(self, key: str, data: bytes) -> bool:
        """Write an object; False, and nothing is written, if there is one."""

    @abstractmethod
    def _remove(self, key: str) -> None: ...

    @abstractmethod
    def _copy(self, key: str, new: str) -> None: ...

    @abstractmethod
    def _keys(self, prefix: str, after: str) -> list[str]: ...

    @abstractmethod
    def _folders(self, prefix: str) -> list[str]: ...

    @abstractmethod
    def _upload(self, file: IO[bytes], key: str) -> None: ...

    @abstractmethod
    def _download(self, key: str, file: IO[bytes]) -> None: ...

    @abstractmethod
    def _is_missing(self, error: Exception) -> bool:
        """Whether a failure means that there is no such object."""

    @abstractmethod
    def _is_transient(self, error: Exception) -> bool:
        """Whether a failure may pass."""

    @abstractmethod
    def _reason(self, error: Exception, waited: float) -> str:
        """A failure in one line, without secrets, after so many seconds of retries."""
