"""Reports as LaTeX, with booktabs."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from orchestrator.errors import visible
from orchestrator.evaluation.measures import metric_of
from orchestrator.report.comparison import Comparison, rows
from orchestrator.report.findings import Findings
from orchestrator.report.formats.base import Format
from orchestrator.report.formats.leaders import leaders, seed_rows
from orchestrator.report.significance import differences, resolution_of, tables_by_seed, tests_by_seed
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord


def _leaderboard(ledger: Ledger) -> str:
    """In each column of a test, the best trial in bold, and those that cannot be told from it; of held-out values the
    chosen trial's. Of a grid over seeds the points, the best in bold."""
    findings = Findings.of(ledger)
    if findings.points:
        heads, rows = seed_rows(findings)
        points = [(row, [place == 0] * len(row)) for place, row in enumerate(rows)]
        seeds = max(len(ranked.point.values) for ranked in findings.points)
        caption = f"{_subject(ledger)}: points of a grid, each over {seeds} seeds. Bold: the best by its mean."
        return _latex_table(list(map(_paper, heads)), points, caption, left=0)
    heads, leading = leaders(findings)
    leading = [entry for entry in leading if entry[0].best is not None or entry[0].test]
    alike = {
        head: _best({trial.trial_id: (ledger, trial) for trial, *_ in leading}, head.split()[1])
        for head in heads
        if head.startswith("test ")
    }
    columns = [place for place, head in enumerate(heads) if head != "state"]
    lines = []
    for trial, cells, is_bold in leading:
        bold = [trial.trial_id in alike[head] if head in alike else is_bold for head in heads]
        lines.append(([cells[place] for place in columns], [bold[place] for place in columns]))
    return _latex_table([_paper(heads[place]) for place in columns], lines, _caption(ledger), left=1)


def _best(tested: Mapping[str, tuple[Ledger, TrialRecord | None]], name: str) -> set[str]:
    """Of these trials the best by the mean of its tests of a metric, and those that a verdict does not tell from it:
    over classes and seeds where the tables of the classes were kept, as on pages. Those with one seed cannot be tested,
    and are left out."""
    metric = metric_of(name)
    values = {label: by_seed for label, one in tested.items() if (by_seed := tests_by_seed(*one, name))}
    if not values:
        return set()
    means = {label: fmean(by_seed.values()) for label, by_seed in values.items()}
    best = (max if metric is None or metric.larger_is_better else min)(means, key=lambda label: means[label])
    tables = {label: tables_by_seed(*tested[label], name) for label in values}
    weight = max(resolution_of(tested[label][0]) for label in values)
    looks = {label: tested[label][0].looks for label in values}
    compared = differences(values, tables, weight, looks)
    pairs = {frozenset((one.one, one.other)) for one in compared if one.is_tested and not one.real}
    return {best} | {label for label in means if frozenset((label, best)) in pairs}


def _subject(ledger: Ledger) -> str:
    """`pfml on cub200 (resnet50)`"""
    settings = next((trial.settings for trial in ledger.everyone()), {})
    return f"{ledger.method} on {ledger.dataset} ({settings.get('backbone', 'unknown backbone')})"


def _caption(ledger: Ledger) -> str:
    """What was measured on what, and how to read the table: two lines."""
    where = "selected on the test classes" if ledger.selection == "test" else "on classes never seen in training"
    return (
        f"{_subject(ledger)}: trials, tests {where}. "
        "Bold: the best test, and those not told apart from it by paired tests over seeds, and over classes where "
        "their tables were kept (5%); the chosen trial."
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
        escaped = [_latex_text(cell).replace("±", r"$\pm$") for cell in cells]
        marked = [*bold, *[False] * (len(escaped) - len(bold))]
        return (
            " & ".join(rf"\textbf{{{cell}}}" if b and cell else cell for cell, b in zip(escaped, marked, strict=True))
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
    tested = {member.label: (member.ledger, member.winner) for member in comparison.members}
    bold = {head: _best(tested, head[5:]) for head in heads if head.startswith("test ")}
    marked = [(line, [line[1] in bold.get(head, ()) for head in heads]) for line in lines]
    one = comparison.members[0].ledger
    where = "selected on the test classes" if one.selection == "test" else "on classes never seen in training"
    caption = (
        f"{one.dataset}: the best point of each search, tested {where} (mean ± deviation over seeds). Bold: the best, "
        "and those not told apart from it by paired tests over seeds, and over classes where their tables were kept "
        "(5%)."
    )
    return _latex_table(list(map(_paper, heads)), marked, caption, left=2)


FORMAT = Format(_leaderboard, _comparison)
