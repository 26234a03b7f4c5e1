"""Files that are either complete or absent."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from orchestrator.errors import storage_fault
from orchestrator.storage.opening import make_folder, remove_file


def write_atomically(path: Path, write: Callable[[BinaryIO], None], *, sync: bool = True) -> None:
    """Write to a temporary file beside it, flush to disk (if `sync`), rename: a reader never sees a partial file.
    A link in its place is replaced; InputError if one leads to its folder inside a search's (`storage.opening`)."""
    make_folder(path.parent)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            like = path if path.is_file() and not path.is_symlink() else path.parent
            os.fchmod(descriptor, like.stat().st_mode & 0o666)  # mkstemp's files are accessible to their owner only
            write(file)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file of these bytes, completely or not at all."""
    write_atomically(path, lambda file: file.writelines([content]), sync=sync)


def disk_fault(folder: Path) -> str | None:
    """The fault of the disk under a folder, in one line; None if a file can be written."""
    probe = folder / ".probe"
    try:
        write_whole(probe, bytes(1 << 16))
        remove_file(probe)
    except OSError as error:
        return storage_fault(error, folder)
    return None
