"""Working copies: local folders that represent storages in an object store; addresses of their files."""

import contextlib
import os
import re
import shlex
from pathlib import Path
from urllib.parse import quote, unquote

from orchestrator.errors import InputError
from orchestrator.storage.address import PROVIDERS, Address, endpoint_host, split_scheme

DEFAULT_STORAGE = Path("runs")
"""The storage where none is named."""
VARIABLE = "ORCHESTRATOR_STORAGE"
"""Its variable in the environment."""

LAB_VARIABLE = "ORCHESTRATOR_CONFIG"
"""The variable that names the file with a lab's defaults."""
LAB_FILE = "orchestrator.yaml"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""The names of searches and trials."""


def working_copy(address: str) -> Path:
    """The local folder that represents the storage at an address, `s3://bucket/prefix`; it need not exist.

    InputError for an invalid address or one with credentials, which the message does not repeat."""
    where = Address.parse(address)
    store = endpoint_host(where.scheme)
    store = store if where.scheme == "s3" else f"{where.scheme}://{store}"
    name = quote(f"{store}/{where.bucket}/{where.prefix}", safe="")
    return _root() / name.replace("%", "=")  # MLflow would decode a percent sign in its database's path


def address_of(path: Path) -> str | None:
    """The address represented by a path in a working copy; None for a path on a disk."""
    parts = split_path(path)
    return None if parts is None else "/".join(filter(None, parts))


def display_path(path: Path) -> str:
    """A path as users and other machines know it: the address if it represents one."""
    return address_of(path) or str(path)


def option(storage: Path) -> str:
    """What `--storage` takes for a storage; empty for the default, `runs` in the working directory, unless a variable
    names another one."""
    is_default = storage.expanduser().resolve() == DEFAULT_STORAGE.resolve() and not os.environ.get(VARIABLE)
    is_default = is_default and lab_file() is None  # it may name another one
    return "" if is_default else display_path(storage)


def in_command(storage: Path) -> str:
    """` --storage PLACE`, as a printed command needs it; empty for the default."""
    place = option(storage)
    return f" --storage {shlex.quote(place)}" if place else ""


def portable(path: Path) -> str:
    """A path for `local` on a cluster's other machines: unchanged, or the storage's address, `//`, the rest."""
    parts = split_path(path)
    return str(path) if parts is None else f"{parts[0]}//{parts[1]}"


def local(name: str) -> Path:
    """The path on this machine for a result of `portable`."""
    scheme, rest = split_scheme(name)
    storage, separator, inner = rest.partition("//")
    return working_copy(f"{scheme}://{storage}") / inner if separator and scheme in PROVIDERS else Path(name)


def split_path(path: Path) -> tuple[str, str] | None:
    """The storage's address and the rest of a path in a working copy."""
    try:
        store, *rest = path.absolute().relative_to(_root()).parts
    except ValueError:  # on a disk, or the folder of all working copies itself
        return None
    if ".." in rest:
        raise InputError(f"{'/'.join(rest)}: should not hold '..'")
    scheme, name = split_scheme(unquote(store.replace("=", "%")))
    return f"{scheme or 's3'}://{name.partition('/')[2]}", "/".join(rest)


def lab_folders() -> list[str]:
    """Where the file with a lab's defaults is looked for, if its variable names none: this user's, this machine's."""
    own = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111 (a user may have no home)
    return [own, "/etc"]


def lab_file() -> Path | None:
    """The file with a lab's defaults that is in force, the first that there is; an empty one stands for none."""
    given = os.environ.get(LAB_VARIABLE)
    names = [given] if given else [os.path.join(folder, LAB_FILE) for folder in lab_folders()]  # noqa: PTH118
    path = next((Path(name).expanduser() for name in names if given or os.path.exists(name)), None)  # noqa: PTH110
    with contextlib.suppress(OSError):  # told where it is read
        return path if path is None or path.stat().st_size else None
    return path


def cache_folder() -> Path:
    """The folder of this machine's copies, which may be deleted while nothing runs."""
    cache = os.environ.get("ORCHESTRATOR_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(cache) if cache else Path(home) / "orchestrator").resolve()


def _root() -> Path:
    return cache_folder() / "storages"
