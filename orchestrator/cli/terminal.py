"""Output to the terminal. Only this module emits control characters; those in names and texts are escaped."""

import os
import sys
from collections.abc import Iterable

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from orchestrator.errors import visible


class Terminal(Console):
    """rich's console; brackets in a text are not styles, and control characters in it are not commands."""

    def __init__(self, **how: object) -> None:
        super().__init__(**{"markup": False, "emoji": False, **how})  # type: ignore[arg-type]

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of the renderable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def echo(text: str, *, err: bool = False) -> None:
    """Print a line; to standard error if it is not a result."""
    typer.echo(visible(text), err=err)


def has_screen() -> bool:
    """Whether a browser can be opened; without a screen a text browser would occupy the terminal."""
    return sys.platform in ("darwin", "win32") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
