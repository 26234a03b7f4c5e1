"""From templates to pages that need no network, server or plugin.

Figures are plain plotly descriptions in a JSON element, tables are HTML; `page.js` draws figures and sorts tables,
`page.css` has the colours for light and dark. Colours in figures read `var(--name)` and are filled in by the browser.
All text is escaped, in templates and in figures, except what is `Markup`.
"""

import base64
import gzip
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from orchestrator.report.html.elements import Plot
from orchestrator.text import pluralize, span

HERE = Path(__file__).parent


@cache
def environment() -> Environment:
    """The environment of all templates."""
    folder = FileSystemLoader(HERE / "templates")
    result = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    result.filters |= {"counted": pluralize, "span": span, "json": as_json, "breakable": breakable, "words": words}
    return result


@dataclass(frozen=True)
class Live:
    """Where a served page asks for its version, and which it is."""

    address: str
    version: str
    seconds: float = 5.0
    """How often it asks."""
    quiet: float = 3.0
    """It is not loaded again while its reader has used it within these seconds."""


def render(
    template: str,
    values: Mapping[str, Any],
    *,
    more: str = "",
    data: Mapping[str, Any] | None = None,
    live: Live | None = None,
) -> str:
    """A whole page, with all that its figures and tables need: plotly only if there are figures.

    `more` names a style sheet and a script beside those of all pages; `data` goes into JSON elements, by their ids. A
    `live` page is loaded again when its version has changed."""
    names = ["page", *([more] if more else []), *(["live"] if live else [])]
    style, script = ("".join((HERE / f"{name}.{kind}").read_text("utf-8") for name in names) for kind in ("css", "js"))
    figures = {plot.name: plot.figure for plot in _plots(values)}
    plotly = ""
    if figures:
        plotly = packed_plotly()
    parts = {"style": Markup(style), "script": Markup(script), "plotly": Markup(plotly)}
    embedded = {"figures": as_json(figures, escape), **{name: as_json(value) for name, value in (data or {}).items()}}
    if live is not None:
        embedded["live"] = as_json(asdict(live))
    return environment().get_template(template).render(values, held=embedded, **parts)


@cache
def packed_plotly() -> str:
    """plotly's script as the page carries it: gzip, in base64; 1.9 MB instead of 4.8."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def breakable(text: str) -> Markup:
    """A name that may go on in a next line after each `_`, `/` and `@`."""
    return Markup(re.sub(r"([_/@])(?=\w)", r"\1<wbr>", str(escape(text))))


def words(command: str) -> Markup:
    """A command that goes on in a next line between its words alone: browsers would break one after `--` too."""
    return Markup(" ").join(Markup('<span class="word">{}</span>').format(word) for word in command.split(" "))


def _plots(part: Any) -> Iterator[Plot]:
    """All plots among the values of a page, in their order."""
    if isinstance(part, Plot):
        yield part
    elif isinstance(part, Mapping):
        for inner in part.values():
            yield from _plots(inner)
    elif isinstance(part, list | tuple):
        for inner in part:
            yield from _plots(inner)


def as_json(value: Any, text: Callable[[str], str] = str) -> Markup:
    """JSON that is safe inside a script element; numbers that are not finite become null.

    `text` makes each string what its reader expects: plotly reads HTML."""

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: plain(inner) for key, inner in part.items()}
        if isinstance(part, list | tuple):
            return [plain(inner) for inner in part]
        if isinstance(part, float):
            return float(f"{part:.6g}") if math.isfinite(part) else None
        return text(part) if isinstance(part, str) else part

    content = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return Markup(content.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
