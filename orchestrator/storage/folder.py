"""A folder of a storage, on a disk or in an object store: its files are read, written, listed and removed here."""

import contextlib
import errno
import os
import shutil
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.problems import KeyPath, Option, Problem
from orchestrator.storage.atomic import disk_fault, write_whole
from orchestrator.storage.buckets import find_bucket
from orchestrator.storage.files import read_small
from orchestrator.storage.opening import make_folder, remove_file
from orchestrator.storage.paths import NAME, address_of, display_path

DELETED = ".deleted"
"""Where folders are moved to be deleted, beside the folder of searches."""


@dataclass(frozen=True)
class Folder:
    """A folder of a storage: a search's, a trial's, a benchmark's, or the storage itself.

    On a disk it is the folder at `path`. Of a storage in an object store, `path` is in the working copy, and `read`,
    `write` and `remove` mean the objects there. A failed request is an OSError of one line; unless `patient`, a
    temporarily refused one is retried for seconds only.
    """

    path: Path
    patient: bool = True

    def __str__(self) -> str:
        return display_path(self.path)

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None if there is none."""
        if (place := find_bucket(self.path / name)) is not None:
            return place[0].get(place[1], patient=self.patient)
        try:
            return read_small(self.path / name)
        except (FileNotFoundError, NotADirectoryError):  # the latter beneath a file
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a small file, whole or not at all."""
        if (place := find_bucket(self.path / name)) is not None:
            place[0].put(place[1], data, patient=self.patient)
        else:
            write_whole(self.path / name, data)

    def remove(self, name: str) -> None:
        """Delete a small file, if it is there."""
        if (place := find_bucket(self.path / name)) is not None:
            place[0].remove([place[1]], patient=self.patient)
        else:
            remove_file(self.path / name)

    @contextlib.contextmanager
    def output(self, name: str) -> Iterator[Path]:
        """Where to write an output, a file or a folder of files; at the end it is copied to the object store too."""
        path = self.path / name
        make_folder(path.parent)
        yield path
        if (place := find_bucket(path)) is not None:
            for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
                place[0].upload(file, "/".join([place[1], *file.relative_to(path).parts]))

    def fetch(self, name: str) -> None:
        """Fetch an output into the working copy, as far as it is not there; does nothing if there is none."""
        path = self.path / name
        if (place := find_bucket(path)) is not None and not path.is_file() and not place[0].download(place[1], path):
            bucket, key = place
            for inner in bucket.keys(f"{key}/"):
                file = path / inner.removeprefix(f"{key}/")
                if not inner.endswith("/") and address_of(file) is not None and not file.exists():
                    bucket.download(inner, file)

    def folders(self) -> list[str]:
        """The names of the folders in it, in order. InputError if the store does not answer."""
        if (place := find_bucket(self.path)) is None:
            paths = (path for path in self.path.glob("*") if path.is_dir() and os.access(path, os.X_OK))
            return sorted(path.name for path in paths)
        with faults_as_input_errors():
            prefixes = place[0].folders(f"{place[1]}/", patient=False)
        names = [prefix.removesuffix("/").rpartition("/")[2] for prefix in prefixes]
        return [name for name in names if NAME.fullmatch(name)]  # others may write to the store

    def is_empty(self) -> bool:
        """Whether nothing is in it, or it does not exist."""
        if (place := find_bucket(self.path)) is not None:
            with faults_as_input_errors():
                return not place[0].keys(f"{place[1]}/", patient=False)
        return not self.path.is_dir() or next(self.path.iterdir(), None) is None

    def delete(self) -> None:
        """Delete it with all that is in it. On a disk it is gone at once: it is moved into a folder of deleted ones,
        which is then emptied; of a folder that is a link, the link is deleted. In an object store a search's journal
        goes first, its last record first."""
        if (place := find_bucket(self.path)) is not None:
            bucket, key = place
            shutil.rmtree(self.path, ignore_errors=True)
            bucket.remove(_journal_first(bucket.keys(f"{key}/"), key))
            return
        deleted = self.path.parent.with_name(DELETED)
        if deleted.is_symlink():  # nothing is moved to where it leads
            deleted.unlink()
        deleted.mkdir(exist_ok=True)
        try:
            self.path.rename(deleted / f"{self.path.name}-{uuid.uuid4().hex}")
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.rmtree(self.path)  # `searches` is a link to another disk
        shutil.rmtree(deleted, ignore_errors=True)  # also what a kill left

    def move(self, to: Path) -> None:
        """Rename it, with all that is in it. In an object store it is copied, a search's journal last, and then
        deleted. OSError if there is such a folder already."""
        if (place := find_bucket(self.path)) is None:
            self.path.rename(to)
            return
        bucket, key = place
        _, new = find_bucket(to) or (bucket, "")
        for one in reversed(_journal_first(bucket.keys(f"{key}/"), key)):
            bucket.copy(one, new + one.removeprefix(key))
        if self.path.exists() and not to.exists():
            self.path.rename(to)  # with the record of what was sent to a tracker, which is in no store
        self.delete()

    def fault(self) -> str | None:
        """The fault of the disk, or of the store behind it, in one line; None if both work."""
        if (fault := disk_fault(self.path)) is not None:
            return fault
        try:
            self.read("any")
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        return None

    def check_writable(self, option: Option) -> None:
        """InputError unless objects can be written in it; does nothing for a disk."""
        if (place := find_bucket(self.path)) is None:
            return
        bucket, key = place
        probe = f"{key}/.write-test-{uuid.uuid4().hex}"
        with faults_as_input_errors((option, str(self))):
            bucket.put(probe, b"", patient=False)
            if bucket.create(probe, b"second"):
                bucket.conditional = False
                warnings.warn(
                    f"{bucket.host} does not support conditional writes (If-None-Match): make sure that no search "
                    "has two drivers",
                    stacklevel=2,
                )
            bucket.remove([probe])


def _journal_first(keys: list[str], folder: str) -> list[str]:
    """The objects of a folder in an order in which they can be deleted one by one: the journal that remains is always
    whole to its end."""
    journal = [key for key in keys if key.startswith(f"{folder}/journal/")]
    return [*reversed(journal), *(key for key in keys if key not in set(journal))]


@contextlib.contextmanager
def faults_as_input_errors(where: KeyPath = ()) -> Iterator[None]:
    """At the start of a command, a refusal by the store is reported as bad input."""
    try:
        yield
    except OSError as error:
        problem = Problem(where or (str(error.filename),), rule=f"{error.strerror or error}")
        raise InputError(problem) from None
