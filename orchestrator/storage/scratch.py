"""A folder for what is temporary; the next process removes what a killed one left."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from orchestrator.storage.journal import lock

SCRATCH = "orchestrator-"
LONGEST_TEMPORARY = 16
"""Ray's sockets lie beneath the temporary folder, and a socket's path has 107 characters at most."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for all that is temporary here and in the processes begun from here; at the end it is removed.

    What a killed process left goes with the next one; see `sweep`.
    """
    base = Path(tempfile.gettempdir())
    if len(str(base)) > LONGEST_TEMPORARY:
        base = Path("/tmp")
    sweep(base)
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    try:
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=base, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            with open(folder / "new-lock", "w+b") as held:
                lock(held)
                (folder / "new-lock").rename(folder / "lock")  # from here on others see it, locked
                tempfile.tempdir = os.environ["TMPDIR"] = name
                try:
                    yield folder
                finally:
                    tempfile.tempdir = before[0]
                    os.environ.pop("TMPDIR")
                    if before[1] is not None:
                        os.environ["TMPDIR"] = before[1]
    finally:
        sweep(base)


def sweep(base: Path) -> None:
    """Remove the folders of killed processes: their lock is free. Ray's processes outlive a killed driver by a minute
    and may write there again when its folder is gone, and so may torch: then nothing is in it but their own, and no
    lock."""
    for folder in base.glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):  # others' folders are closed to us
            if (folder / "lock").exists():
                with open(folder / "lock", "r+b") as file:
                    if lock(file):
                        shutil.rmtree(folder, ignore_errors=True)
            elif (found := [*folder.iterdir()]) and all(map(_orphaned, found)):
                shutil.rmtree(folder, ignore_errors=True)


def _orphaned(folder: Path) -> bool:
    return folder.name.startswith("torchinductor_") or (folder.name == "ray" and any(folder.glob("session_*")))
