"""Reports as LaTeX, with booktabs."""

from collections.abc import Sequence

from orchestrator.errors import visible
from orchestrator.report.comparison import Comparison, rows
from orchestrator.report.findings import Findings
from orchestrator.report.formats.base import Format
from orchestrator.report.formats.leaders import leaders, over_seeds
from orchestrator.storage.ledger import Ledger


def _leaderboard(ledger: Ledger) -> str:
    """The winner in bold; of a grid over seeds the points, the best in bold."""
    findings = Findings.of(ledger)
    if findings.points:
        heads, rows = over_seeds(findings)
        points = [(row, place == 0) for place, row in enumerate(rows)]
        return _latex_table(heads, points, " ".join([*findings.verdict, findings.certainty]), left=0)
    heads, leading = leaders(findings)
    lines = [(cells, best) for trial, cells, best in leading if trial.best is not None]
    return _latex_table(heads, lines, " ".join([*findings.verdict, *findings.numbers]), left=2)


def _latex_table(heads: Sequence[str], lines: Sequence[tuple[list[str], bool]], caption: str, *, left: int) -> str:
    """A table for LaTeX with booktabs: lines, some of them in bold, whose first columns are left-aligned."""

    def line(cells: list[str], bold: bool = False) -> str:
        shown = [_latex_text(cell).replace("±", r"$\pm$") for cell in cells]
        return " & ".join(rf"\textbf{{{cell}}}" if bold and cell else cell for cell in shown) + r" \\"

    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex_text(caption)}}}",
            rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(heads) - left)}}}",
            r"\toprule",
            line(list(heads)),
            r"\midrule",
            *(line(cells, bold) for cells, bold in lines),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


ESCAPED = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def _latex_text(text: str) -> str:
    return "".join(ESCAPED.get(letter, letter) for letter in visible(" ".join(text.split())))


def _comparison(comparison: Comparison) -> str:
    """The first in bold."""
    heads, lines = rows(comparison)
    tested = [line[0] == "1" for line in lines]
    return _latex_table(heads, list(zip(lines, tested, strict=True)), " ".join(comparison.verdict), left=2)


FORMAT = Format(_leaderboard, _comparison)
