"""What tables and figures hold; `templates/parts.html` shows them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from orchestrator.report.significance import Difference, how_tested
from orchestrator.text import value_text

Figure = dict[str, Any]
"""A part of a figure as plotly describes it."""


@dataclass(frozen=True)
class Cell:
    """A text in a table: what it is sorted by, its style, and the reason of the style."""

    text: str
    key: str | None = None
    number: bool = False
    style: str = ""
    why: str = ""
    trial: str = ""
    """The trial, or the search, that the cell selects on the page."""
    link: str = ""
    """Where the cell leads."""
    picture: tuple[int, int] | None = None
    """Where the page's sheet of images has one of what the text names, in pixels from the left and the top."""


@dataclass(frozen=True)
class Table:
    """A sortable table of texts, numbers and cells; `best` is a row, `wrap` are columns of long texts, `leads` columns
    of nothing but links, for which paper has no use. Columns without values are not shown."""

    name: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    best: int | None = None
    wrap: Sequence[int] = ()
    leads: Sequence[int] = ()

    @cached_property
    def _all(self) -> list[list[Cell]]:
        return [[_cell(value) for value in row] for row in self.rows]

    @cached_property
    def _show(self) -> list[int]:
        """The columns that have a value in some row; all of a table without rows."""
        return [at for at in range(len(self.heads)) if not self.rows or any(row[at].text for row in self._all)]

    @property
    def titles(self) -> list[str]:
        """The heads of the columns that are shown."""
        return [self.heads[at] for at in self._show]

    @property
    def cells(self) -> list[list[Cell]]:
        """The cells of these columns."""
        return [[row[at] for at in self._show] for row in self._all]

    @property
    def wrapped_columns(self) -> list[int]:
        """Which of these columns have long texts."""
        return [place for place, at in enumerate(self._show) if at in self.wrap]

    @property
    def leading(self) -> list[int]:
        """Which of these columns have only links."""
        return [place for place, at in enumerate(self._show) if at in self.leads]


@dataclass(frozen=True)
class Folded:
    """A table under its title, which opens and closes it."""

    title: str
    table: Table
    opened: bool = False


@dataclass(frozen=True)
class Plot:
    """A figure with its caption and, for readers who cannot see it, the same as a table."""

    name: str
    title: str
    said: str
    data: Sequence[Figure]
    layout: Figure
    table: Table | None = None
    choice: str = ""
    """What it is called where one of several is chosen."""

    @property
    def height(self) -> int:
        return int(self.layout.get("height", 340))

    @property
    def figure(self) -> Figure:
        return {"data": self.data, "layout": self.layout | {"height": self.height}}


def _cell(value: Any) -> Cell:
    if isinstance(value, Cell):
        return value
    if value is None:
        return Cell("", "", number=True)
    if isinstance(value, bool | str):
        return Cell(str(value))
    text = value_text(value) if isinstance(value, int) or abs(value) >= 1e4 else f"{value:.4g}"
    return Cell(text, str(value), number=True)


def state_cell(state: str, style: str = "", why: str = "") -> Cell:
    """A state in its colour, or in that of another state."""
    return Cell(state, state, style=f"state {style or state}", why=why)


def trial_cell(trial_id: str) -> Cell:
    """The name of a trial, or of a search, which selects it."""
    return Cell(trial_id, trial_id, trial=trial_id)


def number_cell(text: str, value: float) -> Cell:
    return Cell(text, repr(value), number=True)


def score_cell(value: float | None) -> Cell | None:
    """A metric, always to four places."""
    return None if value is None else number_cell(f"{value:.4f}", value)


def idle_cell(value: Any, why: str) -> Cell:
    """A setting's value that had no effect, greyed, and why."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(value_text(value), str(value), number=number, style="idle", why=why)


def difference_table(name: str, compared: Sequence[Difference], what: str) -> Folded:
    """Which differences over seeds are real."""
    rows = []
    for d in compared:
        ends = (None, None) if d.ends is None else d.ends
        chance = None if math.isnan(d.adjusted) else number_cell(f"{d.adjusted:.2g}", d.adjusted)
        rows.append([d.one, d.other, d.seeds, *map(score_cell, (d.mean, *ends)), chance, d.answer])
    repeated = "searches" if any(d.unit == "search" for d in compared) else "seeds"
    heads = [what, "against", repeated, "difference", "low", "high", "p", "real"]
    title = f"Which differences are real: {how_tested(compared)}; intervals of 95%, uncorrected"
    return Folded(title, Table(name, heads, rows), opened=True)
