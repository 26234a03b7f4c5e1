"""Pages that need no network, server or plugin: the parts that they are built from.

Figures are plain plotly descriptions in a JSON element, tables are HTML; `page.js` draws figures and sorts tables,
`page.css` has the colours for light and dark. Colours in figures read `var(--name)` and are filled in by the browser.
All text given here is escaped, except what is named HTML.
"""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from orchestrator.report.significance import Difference, how_tested
from orchestrator.text import value_text

HERE = Path(__file__).parent
Figure = dict[str, Any]
Cells = Sequence[Sequence[Any]]


def document(
    title: str, body: str, figures: Mapping[str, Figure], *, more: str = "", data: Mapping[str, Any] | None = None
) -> str:
    """A whole page around this HTML, with all that its figures and tables need: plotly only if there are figures.

    `more` names a style sheet and a script beside those of all pages; `data` goes into JSON elements, by their ids."""
    names = ["page", *([more] if more else [])]
    style, script = ("".join((HERE / f"{name}.{kind}").read_text("utf-8") for name in names) for kind in ("css", "js"))
    held = "".join(
        f'<script type="application/json" id="{name}">{as_json(value)}</script>\n'
        for name, value in {"figures": figures, **(data or {})}.items()
    )
    plotly = ""
    if figures:
        from plotly.offline import get_plotlyjs

        plotly = f"<script>{get_plotlyjs()}</script>\n"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>\n{style}</style></head>\n<body>{body}"
        f"{held}{plotly}<script>\n{script}</script></body></html>\n"
    )


def as_json(value: Any) -> str:
    """JSON that is safe inside a script element; numbers that are not finite become null."""

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: plain(inner) for key, inner in part.items()}
        if isinstance(part, list | tuple):
            return [plain(inner) for inner in part]
        if isinstance(part, float):
            return float(f"{part:.6g}") if math.isfinite(part) else None
        return part

    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def sections_html(sections: Sequence[tuple[str, str, str]]) -> str:
    """The links to some sections (id, title, HTML), and the sections."""
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections)
    parts = [
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>{inner}</section>\n'
        for name, title, inner in sections
    ]
    return f'<nav aria-label="Sections">{links}</nav>{"".join(parts)}'


def answers_html(answers: Mapping[str, str], confused: str = "") -> str:
    """A card for each question; the answer on confused classes contains names and needs the full width, and
    may contain HTML."""
    cards = {escape(question): escape(answer) for question, answer in answers.items()}
    rows = [cards, *([{"Which classes are confused most?": confused}] if confused else [])]
    return "".join(
        f'<dl class="answers">{"".join(f"<div><dt>{q}</dt><dd>{a}</dd></div>" for q, a in row.items())}</dl>'
        for row in rows
    )


def figure_html(figures: dict[str, Figure], name: str, title: str, said: str, figure: Figure, table: str = "") -> str:
    """One figure with its caption and, for readers who cannot see it, the same as a table."""
    figures[name] = figure
    height = figure["layout"].setdefault("height", 340)
    caption = f"{escape(title)}<span>{escape(said)}</span>"
    return (
        f'<figure><figcaption id="{name}-caption">{caption}</figcaption>'
        f'<div class="plot" id="{name}" role="img" aria-labelledby="{name}-caption" style="height:{height}px"></div>'
        f"{table}</figure>"
    )


def details_html(name: str, heads: Sequence[str], rows: Cells) -> str:
    return f"<details><summary>As a table</summary>{table_html(name, heads, rows)}</details>"


def table_html(
    name: str, heads: Sequence[str], rows: Cells, *, best: int | None = None, wrap: Sequence[int] = ()
) -> str:
    """A sortable table; cells are text, numbers, or HTML marked as such."""

    def cell(value: Any, column: int) -> str:
        if isinstance(value, Html):
            kind = ' class="number"' if value.number else ""
            return f'<td{kind} data-value="{escape(value.key)}">{value}</td>'
        if value is None:
            return '<td class="number" data-value=""></td>'
        if isinstance(value, bool | str):
            return f"<td{' class=wrap' if column in wrap else ''}>{escape(str(value))}</td>"
        shown = value_text(value) if isinstance(value, int) or abs(value) >= 1e4 else f"{value:.4g}"
        return f'<td class="number" data-value="{value}">{escape(shown)}</td>'

    def head(text: str, column: int) -> str:
        numbers = any(_is_number(row[column]) for row in rows)
        kind = ' class="number"' if numbers else ""
        return f'<th scope="col"{kind}><button type="button">{escape(text)}</button></th>'

    top = "".join(head(text, column) for column, text in enumerate(heads))
    lines = []
    for number, row in enumerate(rows):
        mark = ' class="best"' if number == best else ""
        lines.append(f"<tr{mark}>{''.join(cell(value, column) for column, value in enumerate(row))}</tr>")
    return (
        f'<button type="button" class="copy" data-of="{name}-table">Copy the table</button>'
        f'<div class="table" tabindex="0" role="region" aria-label="{name} table">'
        f'<table class="sortable" id="{name}-table"><thead><tr>{top}</tr></thead><tbody>'
        f"{''.join(lines)}</tbody></table></div>"
    )


class Html(str):
    """A cell that is HTML already, and its sort key."""

    key = ""
    number = False


def _is_number(value: Any) -> bool:
    return value.number if isinstance(value, Html) else isinstance(value, int | float) and not isinstance(value, bool)


def state_cell(state: str) -> Html:
    cell = Html(f'<span class="state {escape(state)}">{escape(state)}</span>')
    cell.key = state
    return cell


def number_cell(text: str, value: float) -> Html:
    cell = Html(escape(text))
    cell.key, cell.number = repr(value), True
    return cell


def score_cell(value: float | None) -> Html | None:
    """A metric, always to four places."""
    return None if value is None else number_cell(f"{value:.4f}", value)


def idle_cell(value: Any, why: str) -> Html:
    """A setting's value that had no effect, greyed, and why."""
    cell = Html(f'<span class="idle" title="{escape(why)}">{escape(value_text(value))}</span>')
    cell.key, cell.number = str(value), isinstance(value, int | float) and not isinstance(value, bool)
    return cell


def empty_html(why: str) -> str:
    return f'<p class="empty">{escape(why)}</p>'


def difference_table(name: str, compared: Sequence[Difference], what: str) -> str:
    """Which differences over seeds are real."""
    rows = []
    for d in compared:
        ends = (None, None) if d.interval is None else (d.interval.low, d.interval.high)
        chance = None if math.isnan(d.adjusted) else number_cell(f"{d.adjusted:.2g}", d.adjusted)
        rows.append([d.one, d.other, d.seeds, *map(score_cell, (d.mean, *ends)), chance, d.told])
    heads = [what, "against", "seeds", "difference", "low", "high", "p", "real"]
    title = f"Which differences are real: {how_tested(compared)}; intervals of 95%, uncorrected"
    return f"<details open><summary>{escape(title)}</summary>{table_html(name, heads, rows)}</details>"
