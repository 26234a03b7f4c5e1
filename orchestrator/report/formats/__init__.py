"""The formats of reports for files, each in the file of this folder that is called like it, and a line of the table."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.report.formats.base import Format

FORMATS = (
    "markdown",
    "csv",
    "latex",
)
"""Their names: `--help` shows them without loading what they need."""


def format_of(name: str) -> "Format":
    """What the file of this name gives as `FORMAT`."""
    result: Format = importlib.import_module(f"{__name__}.{name}").FORMAT
    return result
