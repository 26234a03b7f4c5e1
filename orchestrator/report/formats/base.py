"""What a format of reports is."""

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.report.comparison import Comparison
from orchestrator.storage.ledger import Ledger


@dataclass(frozen=True)
class Format:
    """A format of the table: its name, and a leaderboard and a comparison as a file's text."""

    name: str
    leaderboard: Callable[[Ledger], str]
    comparison: Callable[[Comparison], str]
