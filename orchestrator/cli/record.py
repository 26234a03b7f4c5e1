"""The commands of the public record: its rows, a finished search as a row, its page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from orchestrator.cli.hints import command_hint
from orchestrator.cli.options import DEFAULT_STORAGE, Command, DiskStorage, Json, SearchName, local_path, places_of
from orchestrator.cli.output import print_json, waiting, write_html
from orchestrator.cli.states import Fitting
from orchestrator.cli.terminal import Terminal, echo
from orchestrator.errors import InputError
from orchestrator.text import join_names


class _ResultsGroup(TyperGroup):
    """`orchestrator results` is short for `orchestrator results show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """typer calls this first."""
        wrong = bool(args) and not args[0].startswith("-") and args[0] not in self.commands
        if wrong:
            raise InputError(command_hint(args[0], self.commands))
        short = not args or args[0] not in {*self.commands, "--help", "-h"}
        return super().parse_args(ctx, ["show", *args] if short else args)


app = typer.Typer(
    cls=_ResultsGroup,
    help="The public record of methods at an equal tuning budget; `orchestrator results` is short for "
    "`orchestrator results show`, with its options.",
    rich_markup_mode="markdown",
)
Record = Annotated[
    Path,
    typer.Option(
        "--record", metavar="DIR", help="Folder of the record, in a checkout of the project.", parser=local_path
    ),
]
DEFAULT_RECORD = "results"


@app.command("show", cls=Command)
def show_results(record: Record = Path(DEFAULT_RECORD), json_: Json = False) -> None:
    """Show the rows of the record with their verdicts.

    - `orchestrator results`
    """
    with waiting("reading the record"):
        from orchestrator.results.standings import read_standings

        standings = read_standings(record)
    if json_:
        print_json(standings.output)
        return
    for task, rows in standings.tables.items():
        Terminal().print(Text(task, style="bold"))
        Terminal().print(Fitting([_table(rows, left_out) for left_out in ((), ("recall@1",), ("recall@1", "95%"))]))
        if text := standings.network_lines[task]:
            Terminal().print(f"{text}\n")
    if standings.comparisons:
        Terminal().print(standings.note)
    for text in standings.empty_lines:
        echo(text)


def _table(rows: Sequence[Mapping[str, str]], left_out: Sequence[str]) -> Table:
    heads = [head for head in rows[0] if head not in left_out]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head, no_wrap=not head.startswith("against"))
    for row in rows:
        table.add_row(*(row[head] for head in heads))
    if left_out:
        table.caption = f"{join_names(left_out, ' and ')}: in a wider terminal, or with --json"
    return table


@app.command("add", cls=Command)
def add_result(
    name: SearchName,
    record: Record = Path(DEFAULT_RECORD),
    storage: DiskStorage = DEFAULT_STORAGE,
    json_: Json = False,
) -> None:
    """Add a finished search to the record; what does not compare with its other rows is refused.

    - `orchestrator results add glyphs-small.proxy_anchor`
    """
    with waiting("checking the search"):
        from orchestrator.results.adding import add_row

        added = add_row(name, places_of(storage), record)
    if json_:
        print_json(added)
        return
    echo(f"{added.name}: {'added' if added.new else 'is there already, of this journal'}: {added.folder}")


@app.command("page", cls=Command)
def write_results_page(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The page, which needs no network.", parser=local_path)],
    record: Record = Path(DEFAULT_RECORD),
    json_: Json = False,
) -> None:
    """Write the record as one page: every row, verdicts, critical differences, curves.

    - `orchestrator results page record.html`
    """
    from orchestrator.cli.written import Written
    from orchestrator.results.page import write_page
    from orchestrator.results.standings import read_standings

    with waiting("reading the record"):
        standings = read_standings(record)
    write_html("FILE", file, lambda path: write_page(standings, path), "record")
    if json_:
        print_json(Written(path=str(file)))
