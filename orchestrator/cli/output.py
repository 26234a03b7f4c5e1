"""Output shared by several commands: messages, tables, files."""

import contextlib
import json
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.status import Status

from orchestrator.cli.terminal import Terminal, echo
from orchestrator.errors import InputError
from orchestrator.storage.files import output_place

if TYPE_CHECKING:
    from orchestrator.report.across import Across
    from orchestrator.report.comparison import Comparison
    from orchestrator.storage.ledger import Ledger
    from orchestrator.storage.outputs import Output


PAGES = (".html", ".htm")
QUIET_SECONDS = 1.0
"""How long a command says nothing of what it waits for, where there is no terminal."""


def say(line: str) -> None:
    """Print a line that is not a result to stderr."""
    echo(line, err=True)


def print_json(output: "Output | Sequence[Output]") -> None:
    """Print what a command gives with `--json`, in one line."""
    from orchestrator.storage.outputs import Output

    plain_output = output.plain if isinstance(output, Output) else [one.plain for one in output]
    print(json.dumps(plain_output), flush=True)


def tell_notes(ledger: "Ledger") -> None:
    """Report what could not be checked in a search's journal, or was left out."""
    for note in ledger.notes:
        say(f"note: {note}")


class Waiting(Status):
    """An animation in the terminal; elsewhere a line to stderr for each thing that takes longer than a moment."""

    _later: threading.Timer | None = None

    def start(self) -> None:
        super().start()
        self._tell_later()

    def update(self, status: Any = None, **how: Any) -> None:
        super().update(status, **how)
        if self._later is not None:
            self._tell_later()

    def stop(self) -> None:
        super().stop()
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _tell_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
        if not self.console.is_terminal:
            self._later = threading.Timer(QUIET_SECONDS, self._tell)
            self._later.daemon = True
            self._later.start()

    def _tell(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it: the command's own next line finds that out
            say(str(self.status))


def waiting(doing: str) -> Waiting:
    """What is shown while something takes its time, such as loading heavy libraries."""
    return Waiting(f"{doing} ...", console=Terminal(stderr=True))


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
        print_json(comparison.output)
    else:
        Terminal().print(comparison_table(comparison))


def show_across(found: "Across", *, as_json: bool) -> None:
    """Show comparisons on several data sets, and what they say together."""
    from rich.text import Text

    if as_json:
        print_json(found.output)
        return
    for name, comparison in found.comparisons.items():
        Terminal().print(Text(f"== {name}", style="bold"))
        show_comparison(comparison, as_json=False)
    for line in found.verdict:
        Terminal().print(Text(line), soft_wrap=True)


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
