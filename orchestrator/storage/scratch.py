"""A folder for temporary files; the next process removes those of a killed one."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from orchestrator.storage.journal import lock

SCRATCH = "orchestrator-"
MATPLOTLIB = "MPLCONFIGDIR"
"""The variable that says where matplotlib keeps its files."""
LONGEST_TEMPORARY = 16
"""Ray's sockets are in the temporary folder, and a socket's path has at most 107 characters."""


_ours: Path | None = None


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for all temporary files of this process and its children; removed at the end of the outermost block.

    The next process removes the folder of a killed one; see `sweep`.
    """
    global _ours
    if _ours is not None:
        yield _ours
        return
    base = Path(tempfile.gettempdir())
    if len(str(base)) > LONGEST_TEMPORARY:
        base = Path("/tmp")
    sweep(base)
    before = tempfile.tempdir, {name: os.environ.get(name) for name in ("TMPDIR", MATPLOTLIB)}
    try:
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=base, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            with open(folder / "new-lock", "w+b") as lock_file:
                lock(lock_file)
                (folder / "new-lock").rename(folder / "lock")  # now visible to others, and locked
                tempfile.tempdir = os.environ["TMPDIR"] = name
                if not os.environ.get(MATPLOTLIB) and not _has_writable_home():
                    os.environ[MATPLOTLIB] = name  # else it warns, and removes its own folder in this one too late
                _ours = folder
                try:
                    yield folder
                finally:
                    _ours = None
                    tempfile.tempdir = before[0]
                    for variable, value in before[1].items():
                        os.environ.pop(variable, None)
                        if value is not None:
                            os.environ[variable] = value
    finally:
        sweep(base)


def _has_writable_home() -> bool:
    """Whether matplotlib can keep its files where it does by default."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))  # noqa: PTH111 (a user may have no home)
    return os.access(next(place for place in (folder, *folder.parents) if place.exists()), os.W_OK)


def sweep(base: Path) -> None:
    """Remove the folders of killed processes: their lock is free. Ray's processes survive a killed driver by a minute
    and may recreate its removed folder, and so may torch: such a folder has only their files, and no lock."""
    for folder in base.glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):  # folders of other users are not accessible
            if (folder / "lock").exists():
                with open(folder / "lock", "r+b") as file:
                    if lock(file):
                        shutil.rmtree(folder, ignore_errors=True)
            elif (content := [*folder.iterdir()]) and all(map(_is_orphaned, content)):
                shutil.rmtree(folder, ignore_errors=True)


def _is_orphaned(folder: Path) -> bool:
    return folder.name.startswith("torchinductor_") or (folder.name == "ray" and any(folder.glob("session_*")))
