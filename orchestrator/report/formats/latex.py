"""Reports as LaTeX, with booktabs."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from orchestrator.errors import visible
from orchestrator.evaluation.measures import metric_of
from orchestrator.evaluation.measures.base import Metric
from orchestrator.report.comparison import Comparison, rows
from orchestrator.report.findings import Findings
from orchestrator.report.formats.base import Format
from orchestrator.report.formats.leaders import leaders, over_seeds
from orchestrator.report.significance import differences, tests_by_seed
from orchestrator.storage.ledger import Ledger


def _leaderboard(ledger: Ledger) -> str:
    """In each column of a test, the best trial in bold, and those that cannot be told from it; of held-out values the
    chosen trial's. Of a grid over seeds the points, the best in bold."""
    findings = Findings.of(ledger)
    if findings.points:
        heads, rows = over_seeds(findings)
        points = [(row, [place == 0] * len(row)) for place, row in enumerate(rows)]
        seeds = max(len(placed.point.values) for placed in findings.points)
        caption = f"{_subject(ledger)}: points of a grid, each over {seeds} seeds. Bold: the best by its mean."
        return _latex_table(list(map(_paper, heads)), points, caption, left=0)
    heads, leading = leaders(findings)
    leading = [found for found in leading if found[0].best is not None or found[0].test]
    values = {
        head: {trial.trial_id: spread for trial, *_ in leading if (spread := tests_by_seed(ledger, trial, name))}
        for head in heads
        if head.startswith("test ") and (name := head.split()[1])
    }
    alike = {head: _best(tests, metric_of(head.split()[1])) for head, tests in values.items()}
    kept = [place for place, head in enumerate(heads) if head != "state"]
    lines = []
    for trial, cells, chosen in leading:
        bold = [trial.trial_id in alike[head] if head in alike else chosen for head in heads]
        lines.append(([cells[place] for place in kept], [bold[place] for place in kept]))
    return _latex_table([_paper(heads[place]) for place in kept], lines, _caption(ledger), left=1)


def _best(tests: Mapping[str, Mapping[int, float]], metric: Metric | None) -> set[str]:
    """Which of these tests by seed is best by the mean, and which differ from it by no more than chance; those with one
    seed cannot be tested, and are left out unless all have one."""
    larger = metric is None or metric.larger_is_better
    means = {name: fmean(values.values()) for name, values in tests.items()}
    if not means:
        return set()
    best = (max if larger else min)(means, key=lambda name: means[name])
    apart = {frozenset((d.one, d.other)) for d in differences(tests) if d.tested and not d.real}
    return {best} | {name for name in means if frozenset((name, best)) in apart}


def _subject(ledger: Ledger) -> str:
    """`pfml on cub200 (resnet50)`"""
    settings = next((trial.settings for trial in ledger.everyone()), {})
    return f"{ledger.method} on {ledger.dataset} ({settings.get('backbone', 'unknown backbone')})"


def _caption(ledger: Ledger) -> str:
    """What was measured on what, and how to read the table: two lines."""
    where = "selected on the test classes" if ledger.selection == "test" else "on classes never seen in training"
    return (
        f"{_subject(ledger)}: trials, tests {where}. "
        "Bold: the best test, and those not told apart from it on these classes by paired tests over seeds (5%); the "
        "chosen trial."
    )


def _paper(head: str) -> str:
    """The head of a column as a paper has it: `MAP@R, test (95% over classes)`, `proxies per class`."""
    where, _, rest = ("test", "", head[5:]) if head.startswith("test ") else ("", "", head)
    if rest.startswith("val/"):
        where, rest = "held-out", rest.removeprefix("val/")
    name, _, more = rest.partition(" ")
    metric = metric_of(name)
    if metric is None or not where:
        return head.replace("train/loss", "training loss").replace("_", " ")
    age = more.removeprefix("at ")
    more = f" after {age} validations" if age != more else f" {more}" if more else ""
    return f"{metric.label}, {where}{more}"


def _latex_table(
    heads: Sequence[str], lines: Sequence[tuple[list[str], Sequence[bool]]], caption: str, *, left: int
) -> str:
    """A table for LaTeX with booktabs: lines, some cells of them in bold, whose first columns are left-aligned."""

    def line(cells: list[str], bold: Sequence[bool] = ()) -> str:
        shown = [_latex_text(cell).replace("±", r"$\pm$") for cell in cells]
        marked = [*bold, *[False] * (len(shown) - len(bold))]
        return (
            " & ".join(rf"\textbf{{{cell}}}" if b and cell else cell for cell, b in zip(shown, marked, strict=True))
            + r" \\"
        )

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
    """In each column of a test, the best in bold, and those that cannot be told from it."""
    heads, lines = rows(comparison)
    bold: dict[str, set[str]] = {}
    for head in heads:
        if head.startswith("test "):
            tests = {member.label: member.beside(head[5:]) for member in comparison.members}
            bold[head] = _best({label: found for label, found in tests.items() if found}, metric_of(head[5:]))
    marked = [(line, [line[1] in bold.get(head, ()) for head in heads]) for line in lines]
    one = comparison.members[0].ledger
    where = "selected on the test classes" if one.selection == "test" else "on classes never seen in training"
    caption = (
        f"{one.dataset}: the best point of each search, tested {where} (mean ± deviation over seeds). Bold: the best, "
        "and those not told apart from it on these classes by paired tests over seeds (5%)."
    )
    return _latex_table(list(map(_paper, heads)), marked, caption, left=2)


FORMAT = Format(_leaderboard, _comparison)
