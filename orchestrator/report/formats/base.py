"""What a format of reports is."""

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.report.comparison import Comparison
from orchestrator.storage.ledger import Ledger


@dataclass(frozen=True)
class Format:
    """A leaderboard and a comparison as the text of a file."""

    leaderboard: Callable[[Ledger], str]
    comparison: Callable[[Comparison], str]
