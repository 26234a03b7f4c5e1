"""Small files that are read back, and output files named by a user."""

import hashlib
import json
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any

from orchestrator.errors import InputError, visible
from orchestrator.problems import Bare, Option, Problem
from orchestrator.storage.opening import open_file

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""The characters that begin a spreadsheet formula."""
SMALL_BYTES = 1 << 24
"""The maximum size of a small file: records of drivers, requests, benchmarks, cursors, manifests."""


def what_is(path: Path) -> str | None:
    """What exists at a path instead of a file; None for a file or for nothing. Links are followed."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    return None if stat.S_ISREG(mode) else "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"


def read_small(path: Path) -> bytes:
    """The content of a small file. FileNotFoundError or another OSError; ValueError if it is not a small file."""
    with open_file(path) as file:
        return check_size(file.read(SMALL_BYTES + 1))


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto


def check_size(content: bytes) -> bytes:
    """The content, or ValueError if it is too large for a small file."""
    if len(content) > SMALL_BYTES:
        raise ValueError(f"is larger than {SMALL_BYTES >> 20} MiB")
    return content


def parse_json(content: bytes | str) -> Any:
    """The value of a JSON text; ValueError for any error in it."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    """The value of a small JSON file. FileNotFoundError or another OSError; ValueError for any error in it."""
    return parse_json(read_small(path))


def cell(value: Any) -> Any:
    """A value for a cell of a CSV file: a text that a spreadsheet would read as a formula gets a leading `'`."""
    if not isinstance(value, str):
        return value
    try:
        float(value)
    except ValueError:
        return visible(f"'{value}" if value.startswith(FORMULA) else value)
    return value


def output_place(option: Option | str, path: Path, endings: Collection[str] = ()) -> Path:
    """Where to write an output requested by a user: a new file, or one to be replaced; for a link, its target.

    InputError for a folder, a device or a pipe, for a file that is read-only or has none of the given `endings`, and
    for a path in a folder that does not exist.
    """
    try:
        place = path.absolute().resolve()
        what = what_is(place)
        exists, folder = place.exists(), place.parent.is_dir()
    except (OSError, RuntimeError) as error:  # e.g. a loop of links, a name that is too long
        rule = f"{getattr(error, 'strerror', None) or error}; name another file"
        raise InputError(Problem((option,), Bare(path), rule)) from None
    if what is not None:
        raise InputError(Problem((option,), Bare(path), f"is {what}; name another file"))
    if not folder:
        rule = f"the folder {place.parent} does not exist; name another file"
        raise InputError(Problem((option,), Bare(path), rule))
    if exists and endings and place.suffix.lower() not in endings:
        rule = f"exists and is of another kind; give a name that ends in {min(endings)}"
        raise InputError(Problem((option,), Bare(place), rule, begins_rule=True))
    if exists and not os.access(place, os.W_OK):
        raise InputError(Problem((option,), Bare(place), "is read-only; name another file", begins_rule=True))
    return place
