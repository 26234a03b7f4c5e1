"""The one opener of a search's files: inside a search's folder no link is followed, and only regular files are opened.

Others may have written to a storage, or it may be a stranger's. So the border is a search's (or a benchmark's) folder:
what leads to it may be a link, as a `searches` or a `data` that its owner keeps on another disk; what lies in it may
not, for a link there would read, write or delete files that are no part of the search. A file outside of every such
folder is one that the user named, and its links are followed.

The folders on the way are looked at before a file is opened: a link that is planted in between, by a process that
writes to the storage at this moment, is detected in the file's own place only (O_NOFOLLOW).
"""

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal, TextIO

from orchestrator.errors import InputError
from orchestrator.storage.paths import display_path

HOLDERS = ("searches", "benchmarks")
"""The folders of a storage that hold a folder for each search, or benchmark."""
TRIALS = "trials"
"""The folder of a search that holds a folder for each trial."""
Mode = Literal["rb", "wb", "ab", "a+b", "r+b", "xb"]


def border(path: Path) -> Path | None:
    """The folder of the search or benchmark that a path lies in; None for a path outside of all."""
    parts = path.absolute().parts
    holders = [place for place, part in enumerate(parts[:-2]) if part in HOLDERS]
    if not holders:
        return None
    place = holders.pop()
    while holders:  # a search or a trial may itself be called so
        if place - 1 in holders:
            place -= 1
        elif place - 3 in holders and parts[place - 1] == TRIALS:
            place -= 3
        else:
            break
        holders = [other for other in holders if other < place]
    return Path(*parts[: place + 2])


def check_no_link(path: Path, inside: Path | None = None) -> None:
    """InputError if a link lies between the search's folder and this path, or at the path itself; `inside`: between
    this folder and it. Does nothing for a path outside of every search's folder, or one that does not exist."""
    folder = inside or border(path)
    if folder is None:
        return
    place = folder
    for part in path.absolute().relative_to(folder.absolute()).parts:
        place /= part
        if part == ".." or place.is_symlink():
            raise InputError(f"{display_path(path)}: {_LINK if place == path else f'{place.name} {_LINK}'}")


_LINK = "is a link, and none is followed in a search's folder: replace it by what it leads to"


def check_regular(path: Path) -> None:
    """InputError if a path leads over a link, or to anything but a file; for libraries that open a path themselves.
    Does nothing if nothing is there."""
    check_no_link(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise InputError(f"{display_path(path)}: is {_kind(mode)}, and should be a file")


def check_tree(path: Path, inside: Path) -> None:
    """InputError if a file, or anything in a folder, is a link, or leads out of the folder `inside`."""
    place = Path(os.path.normpath(path))
    if not place.is_relative_to(inside):
        raise InputError(f"{path} is not in the search's folder")
    check_no_link(place, inside)
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            one = Path(folder, name)
            mode = one.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise InputError(f"{one}: {_LINK if stat.S_ISLNK(mode) else f'is {_kind(mode)}'}")


def open_file(path: Path, mode: Mode = "rb") -> BinaryIO:
    """A file of a search, or one that a user named. FileNotFoundError or another OSError; InputError for a link inside
    a search's folder, and for anything that is no regular file."""
    inner = border(path) is not None
    if inner:
        check_no_link(path)

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK | (os.O_NOFOLLOW if inner else 0), 0o666)

    try:
        file: BinaryIO = open(path, mode, buffering=0 if mode == "a+b" else -1, opener=opener)  # noqa: SIM115
    except IsADirectoryError:
        raise InputError(f"{display_path(path)}: is a folder, and should be a file") from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
            raise InputError(f"{display_path(path)}: is a device or a pipe, and should be a file") from None
        if inner and error.errno in (errno.ELOOP, errno.EMLINK):
            raise InputError(f"{display_path(path)}: {_LINK}") from None
        raise
    if not stat.S_ISREG(kind := os.fstat(file.fileno()).st_mode):
        file.close()
        raise InputError(f"{display_path(path)}: is {_kind(kind)}, and should be a file")
    return file


def open_text(path: Path) -> TextIO:
    """The same, to read a table as text."""
    return io.TextIOWrapper(open_file(path), encoding="utf-8", newline="")


def remove_file(path: Path) -> None:
    """Delete a file, if it is there; a link is deleted, and not what it leads to."""
    check_no_link(path.parent)
    path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create a folder with those above it, where they are missing."""
    check_no_link(path)
    path.mkdir(parents=True, exist_ok=True)


def _kind(mode: int) -> str:
    return "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
