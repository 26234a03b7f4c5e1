"""Reports as CSV, for programs."""

import csv
import io

from orchestrator.report.comparison import Comparison, rows
from orchestrator.report.formats.base import Format
from orchestrator.storage.files import cell
from orchestrator.storage.leaderboard import write_csv
from orchestrator.storage.ledger import Ledger


def _leaderboard(ledger: Ledger) -> str:
    file = io.StringIO()
    write_csv(ledger, file)
    return file.getvalue()


def _comparison(comparison: Comparison) -> str:
    heads, lines = rows(comparison)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([cell(text) for text in line] for line in [heads, *lines])
    return file.getvalue()


FORMAT = Format(_leaderboard, _comparison)
