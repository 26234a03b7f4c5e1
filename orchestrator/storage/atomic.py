"""Files that are either complete or absent."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from orchestrator.errors import storage_fault


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write to a temporary file beside it, flush to disk, rename: a reader never sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            like = path if path.exists() else path.parent
            os.fchmod(descriptor, like.stat().st_mode & 0o666)  # mkstemp's files are accessible to their owner only
            write(file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file of these bytes, completely or not at all."""
    write_atomically(path, lambda file: file.writelines([content]))


def disk_fault(folder: Path) -> str | None:
    """The fault of the disk under a folder, in one line; None if a file can be written."""
    probe = folder / ".probe"
    try:
        write_whole(probe, bytes(1 << 16))
        probe.unlink()
    except OSError as error:
        return storage_fault(error, folder)
    return None
