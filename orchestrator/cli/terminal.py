"""What goes to the terminal: its own control characters come from here alone, those in names and texts are shown."""

from collections.abc import Iterable

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from orchestrator.errors import visible


class Terminal(Console):
    """rich's console, to which brackets in a text are no styles, and control characters in it no commands."""

    def __init__(self, **how: object) -> None:
        super().__init__(**{"markup": False, "emoji": False, **how})  # type: ignore[arg-type]

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of what is shown."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def echo(text: str, *, err: bool = False) -> None:
    """A line, to standard error if it is no result."""
    typer.echo(visible(text), err=err)
