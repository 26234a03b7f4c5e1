"""What has to be the same on all machines of a search: the versions of some packages, and our code. Imports no Ray."""

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from orchestrator import parts
from orchestrator.contract import ENTRY_POINTS, entries
from orchestrator.storage.provenance import versions

COMPARED = ("ray", "torch", "torchvision", "timm", "numpy", "faiss-gpu", "faiss-cpu")
"""Packages that a node must have in the same version as the driver, so that its trainings are the same."""
TRAINING = tuple(name for name in COMPARED if name != "ray")
"""Those of them that a machine without Ray needs."""


def code() -> list[str]:
    """The code that the nodes of a cluster need, as Ray's `py_modules`: this package, the methods, and every plugin
    with its entry point metadata. So all trials run the driver's code, whatever is installed on the nodes."""
    folders: dict[str, None] = {}
    names = {"orchestrator": None, "methods": None, "search_spaces": None}
    for entry in (entry for group in (ENTRY_POINTS, *map(parts.group, parts.KINDS)) for entry in entries(group)):
        names[entry.module.partition(".")[0]] = None
        for file in (entry.dist.files or []) if entry.dist else []:
            if file.name == "entry_points.txt":
                folders[str(Path(str(file.locate())).resolve().parent)] = None
    for name in names:
        spec = find_spec(name)
        if spec is not None:  # a broken plugin is reported elsewhere
            folders |= dict.fromkeys(spec.submodule_search_locations or filter(None, [spec.origin]))
    return list(folders)


def code_digest() -> str:
    """SHA-256 of the Python files of `code()`, by their names under each package; the same wherever they lie."""
    lines = []
    for root in map(Path, code()):
        for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            name = (Path(root.name) / file.relative_to(root)).as_posix()
            lines.append(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str | None:
    """What another machine's packages (`there`) lack or have in another version, in words; None if nothing."""
    for package in here.keys() | there.keys():
        ours, theirs = (packages.get(package, "none").partition("+")[0] for packages in (here, there))
        if ours != theirs and not package.startswith("faiss"):
            return f"{package} {theirs}, here {ours}: install the same version on both"
    if _has_faiss(here) and not _has_faiss(there):
        return "faiss is missing: install the same packages as here"
    return None


def installed_versions() -> dict[str, str]:
    """The versions of those packages that trainings need and this machine has."""
    return versions(TRAINING)


def _has_faiss(packages: Mapping[str, str]) -> bool:
    return any(name.startswith("faiss") for name in packages)
