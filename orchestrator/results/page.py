"""The page."""

from pathlib import Path
from orchestrator.results.standings import Standings


def write_page(standings: Standings, path: Path) -> None:
    """To be."""
