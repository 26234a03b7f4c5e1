"""The provenance of a run: versions, commit, machine."""

import contextlib
import getpass
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "dml-orchestrator",
    "torch",
    "torchvision",
    "ray",
    "optuna",
    "mlflow",
    "faiss-gpu",
    "faiss-cpu",
    "numpy",
)


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """The versions of those packages that are installed."""
    return {name: version for name in packages if (version := _version(name))}


def provenance(start: Path | None = None) -> dict[str, str]:
    """Tags of a run: package versions, Python, host, the machine's GPUs, user, command, and the git commit, branch and
    dirty state of the folder the command was started in (where that is a git checkout)."""
    tags = {f"version.{name}": version for name, version in versions().items()}
    tags["version.python"] = platform.python_version()
    tags["host"] = socket.gethostname()
    tags["platform"] = platform.platform()
    tags["command"] = command()
    with contextlib.suppress(KeyError, OSError):
        tags["user"] = getpass.getuser()
    return tags | _gpu_names() | git_state(start or Path.cwd())


@cache
def _gpu_names() -> dict[str, str]:
    """`gpu`: the kinds of GPU of this machine, as their driver calls them; empty if there is none."""
    if shutil.which("nvidia-smi") is None:
        return {}
    names = _printed("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    kinds = dict.fromkeys(line.strip() for line in (names or "").splitlines() if line.strip())
    return {"gpu": ", ".join(kinds)} if kinds else {}


def command() -> str:
    """The command's name and its sub-command; no more, since an option's value may contain a password."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return shlex.join([name, *sys.argv[1:2]])


def git_state(folder: Path) -> dict[str, str]:
    """`git.commit`, `git.branch`, `git.dirty`; empty outside a checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    state = {"git.commit": commit, "git.branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD") or "?"}
    return state | {"git.dirty": str(bool(changes)).lower()}


def foreign_commits(commits: Iterable[str], folder: Path) -> list[str]:
    """Those that the repository of a folder does not have; none outside a checkout."""
    if not _git(folder, "rev-parse", "HEAD"):
        return []
    return [one for one in commits if _git(folder, "cat-file", "-t", one) != "commit"]


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; None if it fails."""
    return _printed("git", "-C", str(folder), *words)


def _printed(*words: str) -> str | None:
    """What a command prints; None if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
