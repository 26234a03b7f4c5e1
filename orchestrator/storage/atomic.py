"""Files that are either whole or absent."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from orchestrator.errors import storage_fault


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write to a temporary neighbour, flush to disk, rename: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            like = path if path.exists() else path.parent
            os.fchmod(descriptor, like.stat().st_mode & 0o666)  # mkstemp's files are the owner's alone
            write(file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """A file of these bytes, whole or not at all."""
    write_atomically(path, lambda file: file.writelines([content]))


def disk_fault(folder: Path) -> str | None:
    """What is wrong with the disk under a folder, in one line; None if it takes a file."""
    probe = folder / ".probe"
    try:
        write_whole(probe, bytes(1 << 16))
        probe.unlink()
    except OSError as error:
        return storage_fault(error)
    return None
