"""This machine's copies of the data sets at addresses: one folder for all storages and processes, bounded in size.

    data/s3/<host>%2F<bucket>%2F<prefix>          a store, in the folder of this machine's copies
    data/s3/.<host>%2F<bucket>%2F<prefix>.fetch   beside it, until all of it is there and has its manifest's digest

Where a copy does not fit, those that were not used for the longest time are deleted. A process that has a store open
holds a shared lock on its manifest (a fetching one, its draft's lock), and what is locked is not deleted.
"""

import contextlib
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from orchestrator.data.locks import LOCK
from orchestrator.data.manifest import MANIFEST
from orchestrator.errors import InputError
from orchestrator.problems import Problem
from orchestrator.storage.address import PROVIDERS, Address, endpoint_host
from orchestrator.storage.paths import cache_folder

VARIABLE = "ORCHESTRATOR_CACHE_SIZE"
"""The variable with the size that the copies may have together."""
DEFAULT_SIZE = "100 GB"
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
DELETED = ".deleted-"
"""How the names of folders begin that are about to be deleted."""

Say = Callable[[str], None]


def copies_folder() -> Path:
    """The folder of the copies."""
    return cache_folder() / "data"


def find_copy(where: Address, root: Path) -> Path:
    """Where the copy of a store is, or would be: in this machine's folder, unless an earlier version put it into the
    folder of data sets `root`."""
    earlier = where.place(root)
    name = quote(f"{endpoint_host(where.scheme)}/{where.bucket}/{where.prefix}", safe="")
    return earlier if earlier.exists() else copies_folder() / where.scheme / name


def list_copies(root: Path | str) -> dict[str, Path]:
    """The whole copies by address: of the stores at the endpoints of the environment, and in `root`."""
    copies = {}
    for scheme in PROVIDERS:
        for path in sorted((copies_folder() / scheme).glob(f"[!.]*/{MANIFEST}")):
            host, _, rest = unquote(path.parent.name).partition("/")
            if host == endpoint_host(scheme):
                copies[f"{scheme}://{rest}"] = path.parent
        for path in sorted((Path(root) / scheme).glob(f"[!.]*/{MANIFEST}")):
            copies[f"{scheme}://{unquote(path.parent.name)}"] = path.parent
    return copies


def max_bytes() -> int:
    """How large the copies may be together. InputError if the variable is no size."""
    text = os.environ.get(VARIABLE) or DEFAULT_SIZE
    size = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", text, re.IGNORECASE)
    if size is None:
        raise InputError(Problem((VARIABLE,), value=text, rule="should be a size such as 100 GB"))
    return int(float(size[1]) * UNITS[size[2].upper()])


def make_room(path: Path, size: int, say: Say) -> None:
    """Delete copies, the longest unused first, until `size` bytes more fit beside them, into the bound and onto the
    disk. Does nothing for a store outside of the folder of the copies.

    What is in use stays, also if the bound is then exceeded: a training that waits for room would wait for ever.
    """
    folder = copies_folder()
    if not path.is_relative_to(folder):
        return
    for leftover in folder.glob(f"*/{DELETED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    own = path.with_name(f".{path.name}.fetch")
    copies = [copy for copy in folder.glob("*/*") if copy not in (path, own)]
    sizes = {copy: _size(copy) for copy in copies}
    present = sum(sizes.values())
    room = min(max_bytes(), present + shutil.disk_usage(folder).free)
    for copy in sorted(copies, key=_last_use):
        if present + size <= room:
            return
        if delete_copy(copy):
            present -= sizes[copy]
            say(f"deleted {copy}, to make room ({VARIABLE} is {os.environ.get(VARIABLE) or DEFAULT_SIZE})")


def delete_copy(path: Path) -> bool:
    """Delete a copy, or what there is of one, unless a process uses it; whether it is gone."""
    deleted = path.with_name(f"{DELETED}{uuid.uuid4().hex}")
    lock = path / (LOCK if path.name.startswith(".") else MANIFEST)
    try:
        with _hold_lock(lock):
            path.rename(deleted)
    except OSError:  # it is in use, or gone
        return not path.exists()
    shutil.rmtree(deleted, ignore_errors=True)
    return True


def note_use(path: Path) -> None:
    """A copy is used now."""
    with contextlib.suppress(OSError):  # another user's
        os.utime(path)


@contextlib.contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """A lock for this process alone, taken at once, or an OSError. No file, no lock: nobody can use it."""
    if not path.exists():
        yield
        return
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # deleted by another process
            size += path.lstat().st_size
    return size
