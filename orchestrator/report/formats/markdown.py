"""Reports as Markdown."""

from orchestrator.evaluation.measures import PAPER_HEADLINES
from orchestrator.report.answers import Answer, answers_of
from orchestrator.report.comparison import Comparison, rows
from orchestrator.report.findings import Findings
from orchestrator.report.formats.base import Format
from orchestrator.report.formats.leaders import difference_text, leaders, seed_rows
from orchestrator.report.next_steps import next_steps
from orchestrator.report.note import markdown_code, markdown_table, markdown_text
from orchestrator.report.published import Value
from orchestrator.report.significance import how_tested
from orchestrator.storage import paths
from orchestrator.storage.ledger import Ledger


def _leaderboard(ledger: Ledger) -> str:
    findings = Findings.of(ledger, storage="" if ledger.folder is None else paths.option(ledger.folder.parents[1]))
    text = markdown_text
    heads, leading = leaders(findings)
    rows = [[f"**{text(cell)}**" if best and cell else text(cell) for cell in cells] for _, cells, best in leading]
    first = answers_of(findings, next_steps(findings))
    parts = [f"# {text(findings.ledger.name)}", "\n".join(f"- {_answer(one)}" for one in first.each)]
    parts += [] if first.command is None else [markdown_code(first.command)]
    parts.append("\n\n".join(text(line) for line in findings.verdict))
    if findings.warnings:
        parts.append("\n".join(f"- {text(line)}" for line in findings.warnings))
    if findings.numbers:
        parts.append(f"What are the numbers compared with? {text(' '.join(findings.numbers))}")
    parts.append(f"How sure? {text(findings.certainty)}\n\nWiden a range? {text(findings.widen)}")
    parts.append(f"How far from the paper? {text(findings.distance)}")
    if findings.points:
        names, points = seed_rows(findings)
        parts.append(markdown_table([text(name) for name in names], [[text(cell) for cell in row] for row in points]))
    parts.append(markdown_table([text(head) for head in heads], rows))
    if findings.differences:
        parts.append(f"Which differences are real ({how_tested(findings.differences)}):")
        parts.append("\n".join(f"- {text(difference_text(difference))}" for difference in findings.differences))
    parts.append(f"What mattered? {text(findings.what_mattered)}")
    if same := [b for b in findings.published if b.same_method]:
        cells = [
            [f"{b.row.paper}, Table {b.row.table}", text(b.row.method)]
            + [text(_published_lines(b.row.values.get(name))) for name in PAPER_HEADLINES]
            + [text("; ".join(f"{d.setting}: {d.paper}, here {d.run}" for d in b.differences))]
            for b in same
        ]
        parts.append(markdown_table(["paper", "method", *map(text, PAPER_HEADLINES), "settings that differ"], cells))
    if findings.command:
        parts.append(f"Train the winner again:\n\n{markdown_code(findings.command)}")
    return "\n\n".join(parts) + "\n"


def _answer(answer: Answer) -> str:
    caveat = f"*{markdown_text(answer.caveat)}* " if answer.caveat else ""
    return f"**{markdown_text(answer.question)}** {caveat}{markdown_text(answer.text)}"


def _published_lines(value: Value | None) -> str:
    if value is None:
        return ""
    return f"{value.value:.4f}" + ("" if value.deviation is None else f" ± {value.deviation:.4f}")


def _comparison(comparison: Comparison) -> str:
    heads, lines = rows(comparison)
    text = markdown_text
    parts = [f"# {text(comparison.name)}", "\n\n".join(map(text, comparison.verdict))]
    parts.append(markdown_table([text(head) for head in heads], [[text(cell) for cell in line] for line in lines]))
    if comparison.differences:
        parts.append("\n".join(f"- {text(difference_text(difference))}" for difference in comparison.differences))
    parts += ["\n".join(f"- {text(line)}" for line in part) for part in (comparison.outlook, comparison.notes) if part]
    return "\n\n".join(parts) + "\n"


FORMAT = Format(_leaderboard, _comparison)
