"""What several commands say, print and write."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.status import Status

from orchestrator.errors import InputError

if TYPE_CHECKING:
    from orchestrator.comparison import Comparison


def say(line: str) -> None:
    """A line that is no result, on stderr."""
    typer.echo(line, err=True)


def waiting(doing: str) -> Status:
    """Something moves in the terminal while heavy libraries load."""
    return Console(stderr=True).status(f"{doing} ...")


def warn_of_plugins() -> None:
    """Plugins that were left out, each with its reason."""
    from orchestrator.method import plugin_problems

    for problem in plugin_problems():
        typer.echo(f"warning: {problem}", err=True)


def plain(value: object) -> str:
    """A value as a search file would have it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)


def show_comparison(comparison: "Comparison", *, as_json: bool) -> None:
    """The verdict on several searches, as tables or one JSON object."""
    from orchestrator.display import comparison_table

    if as_json:
        print(json.dumps(comparison.plain))
    else:
        Console().print(comparison_table(comparison))


def check_place(option: str, path: Path | None) -> None:
    """Before anything is computed: a file that could not be written at the end."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        reason = "is a folder" if path.is_dir() else f"the folder {path.absolute().parent} does not exist"
        raise InputError(f"{option}: {path}: {reason}; name another file")


def check_page(option: str, path: Path | None) -> None:
    """The same of a page, which takes no other file's place."""
    check_place(option, path)
    if path is not None and path.is_file() and path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{option}: {path} is there, and is no page: give a name that ends in .html")


def write_html(option: str, path: Path, write: Callable[[Path], None], what: str) -> None:
    """A page by its writer, which writes it whole or not at all; InputError names `option` if it cannot."""
    check_page(option, path)
    try:
        write(path.absolute())
    except OSError as error:
        raise InputError(f"{option}: {path} cannot be written ({error.strerror}): name another file") from None
    typer.echo(f"{what} written to {path}", err=True)
