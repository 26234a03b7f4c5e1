"""The files of a trial in an object store, and the manifest that lists the valid ones."""

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from orchestrator.errors import InputError
from orchestrator.storage.atomic import write_atomically
from orchestrator.storage.buckets import find_bucket
from orchestrator.storage.files import parse_json, sha256
from orchestrator.storage.object_store import Bucket
from orchestrator.storage.opening import check_regular, make_folder, open_file, remove_file
from orchestrator.storage.paths import local
from orchestrator.storage.trial_folder import CHECKPOINT

MANIFEST = "manifest.json"


class DamagedError(OSError):
    """A trial's file differs from its entry in the manifest."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class TrialFiles:
    """A trial's folder, as used by the process that trains it. On a disk it is the trial's own folder; with an object
    store it is a temporary one, and `keep` publishes its content."""

    def __init__(self, name: str) -> None:
        self.path = local(name)
        self.found = find_bucket(self.path)
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
        """Fetch the valid files. `agreed` gives all of a group's processes the leader's value.

        If they are damaged the folder starts empty, and the reason is returned, else None."""
        if self.found is None:
            return None
        manifest: dict[str, dict[str, Any]] = {}
        reason = None
        if leader:
            try:
                manifest = _manifest(*self.found)
                _fetch(*self.found, manifest, self.folder, manifest)
            except (InputError, DamagedError) as error:
                manifest, reason = {}, str(error)
        manifest, reason = agreed((manifest, reason))
        if not leader or reason is not None:
            _fetch(*self.found, manifest, self.folder, manifest)
        return reason

    def share(self, agreed: Callable[[Any], Any], *, leader: bool, names: Collection[str]) -> None:
        """Give the leader's kept files with these names to the other processes of its group."""
        manifest = agreed(self.manifest if leader else None)  # on a disk too: this waits until the files are written
        if self.found is not None and not leader:
            entries = {name: entry for name, entry in manifest.items() if name.rpartition("/")[2] in names}
            _fetch(*self.found, entries, self.folder, entries)

    def keep(self) -> None:
        """Publish the content of the folder, all of it or, on failure, nothing. Called by one process of a group."""
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
            manifest[name] = entry | {"sha256": sha256(path)}
            bucket.upload(path, f"{prefix}/{entry['object']}")
        _write_manifest(bucket, prefix, manifest)
        self.manifest, self.stamps = manifest, stamps
        # objects of other writers stay until the trial's end: they may still be in use
        replaced = {entry["object"] for entry in before.values()} - {entry["object"] for entry in manifest.values()}
        with contextlib.suppress(OSError):
            bucket.remove([f"{prefix}/{name}" for name in sorted(replaced)], patient=False)


def fetch_trial(folder: Path, part: str | None = None) -> None:
    """Fetch a trial's valid files, or those in folders named `part`, into the working copy; does nothing for a disk.
    OSError if the store does not answer, or if the files are damaged."""
    if (bucket := find_bucket(folder)) is not None:
        manifest = _manifest(*bucket)
        wanted = {name: entry for name, entry in manifest.items() if part is None or part in name.split("/")[:-1]}
        _fetch(*bucket, wanted, folder, manifest)


def copy_files(folder: Path, new: Path) -> None:
    """Give a trial the files of another one, the one that says that they are complete last; none if it has files.

    OSError if they cannot be read or written."""
    if (place := find_bucket(folder)) is not None and (target := find_bucket(new)) is not None:
        (bucket, prefix), (_, new_prefix) = place, target
        manifest = _manifest(bucket, prefix)
        if not _manifest(bucket, new_prefix):
            for entry in manifest.values():
                bucket.copy(f"{prefix}/{entry['object']}", f"{new_prefix}/{entry['object']}")
            _write_manifest(bucket, new_prefix, manifest)
        return
    paths = [path for path in folder.rglob("[!.]*") if path.is_file()]
    for path in sorted(paths, key=lambda path: (path.name == CHECKPOINT, path)):
        if not (copy := new / path.relative_to(folder)).exists():
            make_folder(copy.parent)
            _link(path, copy)


def _link(path: Path, copy: Path) -> None:
    """Make a copy of a file: a link to a model or a checkpoint, which is replaced but never changed, where the disk has
    links."""
    check_regular(path)
    if path.suffix == Path(CHECKPOINT).suffix:
        with contextlib.suppress(OSError):
            os.link(path, copy)
            return
    with open_file(path) as file:
        write_atomically(copy, lambda new: shutil.copyfileobj(file, new))


def drop(folder: Path, names: Iterable[str]) -> None:
    """Delete the files with these names of an ended trial, and all objects that are not in its manifest."""
    if (place := find_bucket(folder)) is None:
        return
    bucket, prefix = place
    manifest = _manifest(bucket, prefix)
    remaining = {name: entry for name, entry in manifest.items() if name.rpartition("/")[2] not in set(names)}
    if remaining != manifest:
        _write_manifest(bucket, prefix, remaining)
    referenced = {f"{prefix}/{name}" for name in (MANIFEST, *(entry["object"] for entry in remaining.values()))}
    bucket.remove([key for key in bucket.keys(f"{prefix}/") if key not in referenced])


def _manifest(bucket: Bucket, prefix: str) -> dict[str, dict[str, Any]]:
    """The valid files of a trial, by name: `object`, `size` and `sha256` of each. Others may write to the store, so
    names that lead out of the trial's folder are refused."""
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
        raise InputError(f"{bucket.address(prefix)}/{MANIFEST}: damaged ({error})") from None
    return files


def _write_manifest(bucket: Bucket, prefix: str, files: Mapping[str, Mapping[str, Any]]) -> None:
    bucket.put(f"{prefix}/{MANIFEST}", json.dumps({"files": files}, indent=1).encode())


Entries = Mapping[str, Mapping[str, Any]]


def _fetch(bucket: Bucket, prefix: str, wanted: Entries, folder: Path, manifest: Entries) -> None:
    """Make a folder contain the wanted files of a manifest, and no model that is not in it."""
    for path in folder.rglob("*.pt"):
        if path.relative_to(folder).as_posix() not in manifest:
            remove_file(path)
    for name, entry in wanted.items():
        path = folder / name
        if path.is_file() and path.stat().st_size == entry["size"] and sha256(path) == entry["sha256"]:
            continue
        address = bucket.address(f"{prefix}/{entry['object']}")
        if bucket.download(f"{prefix}/{entry['object']}", path) != entry["sha256"]:
            remove_file(path)
            raise DamagedError(errno.EIO, f"not what {MANIFEST} says: missing or damaged", address)
