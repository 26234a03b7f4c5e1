"""Output shared by several commands: messages, tables, files."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from rich.status import Status

from orchestrator.cli.terminal import Terminal, echo
from orchestrator.errors import InputError
from orchestrator.storage.files import output_place

if TYPE_CHECKING:
    from orchestrator.report.comparison import Comparison
    from orchestrator.storage.ledger import Ledger


PAGES = (".html", ".htm")


def say(line: str) -> None:
    """Print a line that is not a result to stderr."""
    echo(line, err=True)


def tell_notes(ledger: "Ledger") -> None:
    """Report what could not be checked in a search's journal, or was left out."""
    for note in ledger.notes:
        say(f"note: {note}")


def waiting(doing: str) -> Status:
    """An animation in the terminal while heavy libraries load."""
    return Terminal(stderr=True).status(f"{doing} ...")


def warn_of_plugins() -> None:
    """Warn of plugins that were left out, each with the reason."""
    from orchestrator.evaluation import measures  # noqa: F401 (which takes in those of plugins)
    from orchestrator.plugins import plugin_problems

    for problem in plugin_problems():
        echo(f"warning: {problem}", err=True)


def plain(value: object) -> str:
    """A value as written in a search file."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)


def show_comparison(comparison: "Comparison", *, as_json: bool) -> None:
    """Show the comparison of several searches, as tables or one JSON object."""
    from orchestrator.cli.tables import comparison_table

    if as_json:
        print(json.dumps(comparison.plain))
    else:
        Terminal().print(comparison_table(comparison))


def check_page(option: str, path: Path | None) -> None:
    """Refuse, before any computation, a page that could not be written at the end or would replace another file."""
    if path is not None:
        output_place(option, path, PAGES)


def write_output(
    option: str, path: Path, write: Callable[[Path], None], what: str, endings: Collection[str] = ()
) -> None:
    """Write a file by `write`, completely or not at all; InputError names `option` if that fails."""
    place = output_place(option, path, endings)
    try:
        write(place)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{option}: {path} cannot be written ({reason}): name another file") from None
    echo(f"{what} written to {path}", err=True)


def write_html(option: str, path: Path, write: Callable[[Path], None], what: str) -> None:
    """Write an HTML page; see `write_output`."""
    write_output(option, path, write, what, PAGES)
