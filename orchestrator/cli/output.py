"""What several commands say, print and write."""

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
    """A line that is no result, on stderr."""
    echo(line, err=True)


def tell_notes(ledger: "Ledger") -> None:
    """What of a search's journal could not be checked, or was left out."""
    for note in ledger.notes:
        say(f"note: {note}")


def waiting(doing: str) -> Status:
    """Something moves in the terminal while heavy libraries load."""
    return Terminal(stderr=True).status(f"{doing} ...")


def warn_of_plugins() -> None:
    """Plugins that were left out, each with its reason."""
    from orchestrator.method import plugin_problems

    for problem in plugin_problems():
        echo(f"warning: {problem}", err=True)


def plain(value: object) -> str:
    """A value as a search file would have it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)


def show_comparison(comparison: "Comparison", *, as_json: bool) -> None:
    """The verdict on several searches, as tables or one JSON object."""
    from orchestrator.cli.tables import comparison_table

    if as_json:
        print(json.dumps(comparison.plain))
    else:
        Terminal().print(comparison_table(comparison))


def check_page(option: str, path: Path | None) -> None:
    """Before anything is computed: a page that could not be written at the end, or would take another file's place."""
    if path is not None:
        output_place(option, path, PAGES)


def write_output(
    option: str, path: Path, write: Callable[[Path], None], what: str, endings: Collection[str] = ()
) -> None:
    """A file by its writer, which writes it whole or not at all; InputError names `option` if it cannot."""
    place = output_place(option, path, endings)
    try:
        write(place)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{option}: {path} cannot be written ({reason}): name another file") from None
    echo(f"{what} written to {path}", err=True)


def write_html(option: str, path: Path, write: Callable[[Path], None], what: str) -> None:
    """The same of a page."""
    write_output(option, path, write, what, PAGES)
