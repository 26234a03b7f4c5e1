"""The note that the tracker shows of a search, in Markdown."""

import re
from collections.abc import Sequence

from orchestrator.errors import visible
from orchestrator.report.comparison import Comparison
from orchestrator.report.findings import Findings
from orchestrator.report.next_steps import next_steps
from orchestrator.report.settings import Searched
from orchestrator.report.steps import ProposedStep
from orchestrator.storage.leaderboard import value_columns
from orchestrator.storage.ledger import BENCHMARK
from orchestrator.storage.paths import NAME
from orchestrator.text import value_text

TRIAL_LINK, SEARCH_LINK, BENCHMARK_LINK = "trial:", "search:", "benchmark:"
"""Links in a note go here; the tracker inserts the addresses of the runs."""
NOTE_CHARACTERS = 3900
"""Of at most 5,000: links to runs are longer than their names."""
LEADERS = 10


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the contents of cells are shown literally."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def markdown_text(text: object) -> str:
    """Text that Markdown, and the HTML in it, show literally."""
    escaped = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "\\`*_[]|#!":
        escaped = escaped.replace(mark, f"\\{mark}")
    return visible(" ".join(escaped.split()))


def markdown_code(text: str) -> str:
    """A block of code that no text in it can end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def search_note(findings: Findings) -> str:
    """The findings in Markdown, for the tracker: verdict first, the rest as far as it fits. Links read `trial:0003`."""
    text, ledger = markdown_text, findings.ledger
    keys, columns = findings.keys, value_columns(ledger)
    leaders = [trial for trial in ledger.ranking() if trial.is_ranked][:LEADERS]
    rows = [
        [str(rank), f"[{text(trial.trial_id)}]({TRIAL_LINK}{trial.trial_id})", trial.state]
        + ["" if (value := of(trial)) is None else f"{value:.4f}" for of in columns.values()]
        + [text(value_text(trial.params[key])) if key in trial.params else "" for key in keys]
        for rank, trial in enumerate(leaders, start=1)
    ]
    first = [text(line) for line in findings.verdict]
    if NAME.fullmatch(part_of := str(ledger.tags.get(BENCHMARK, ""))):
        # before the verdict: MLflow folds a note after some lines, and links there cannot be clicked
        first.insert(0, f"Part of the benchmark [{text(part_of)}]({BENCHMARK_LINK}{part_of}).")
    parts = ["\n\n".join(first)]
    parts.append(f"**What to run next?**\n\n{_steps(next_steps(findings))}")
    if findings.warnings:
        parts.append("**Warnings**\n\n" + "\n".join(f"- {text(line)}" for line in findings.warnings))
    parts.append(f"**How sure?** {text(findings.certainty)}\n\n**Widen the ranges?** {text(findings.widen)}")
    if findings.numbers:
        parts.append(f"**What are the numbers compared with?** {text(' '.join(findings.numbers))}")
    if findings.confused:
        parts.append(f"**Which classes are confused most?** {text(findings.confused)}")
    if findings.test:
        parts.append(f"**How far from the papers?** {text(findings.distance)}")
    if rows:
        heads = ["#", "trial", "state", *map(text, columns), *(text(key) for key in keys)]
        parts.append("**Leaderboard**\n\n" + markdown_table(heads, rows))
    finals = [f"[{text(run.trial_id)}]({TRIAL_LINK}{run.trial_id}) ({run.state})" for run in ledger.finals.values()]
    if finals:
        parts.append("Final runs: " + ", ".join(finals[:LEADERS]))
    parts.append(f"**What mattered?** {text(findings.what_mattered)}")
    if findings.searched:
        coverage = [[text(s.key), text(s.range_text), text(_range_tried(s))] for s in findings.searched]
        parts.append("**Coverage**\n\n" + markdown_table(["setting", "range", "tried"], coverage))
    if findings.command:
        parts.append(f"**Train the winner again**\n\n{markdown_code(findings.command)}")
    return _fitting(parts)


def benchmark_note(comparison: Comparison) -> str:
    """A comparison in Markdown, for the tracker: verdict first, then its searches. Links read `search:LABEL`."""
    text, rows = markdown_text, []
    for rank, member in enumerate(comparison.members, start=1):
        link = f"[{text(member.label)}]({SEARCH_LINK}{member.label})"
        rows.append([str(rank), link, member.ledger.state, member.text if member.tests else "", str(len(member.tests))])
    heads = ["#", "search", "state", f"test {text(comparison.metric)}", "seeds"]
    parts = ["\n\n".join(text(line) for line in comparison.verdict)]
    parts.append(f"**Its searches**\n\n{markdown_table(heads, rows)}")
    if comparison.outlook:
        parts.append("**What would decide it?**\n\n" + "\n".join(f"- {text(line)}" for line in comparison.outlook))
    return _fitting(parts)


def _fitting(parts: Sequence[str]) -> str:
    """The first part, and of the others those for which there is room."""
    whole = parts[0]
    for part in parts[1:]:
        if len(whole) + len(part) + 2 <= NOTE_CHARACTERS:
            whole += "\n\n" + part
    return whole


def _steps(steps: Sequence[ProposedStep]) -> str:
    """The next steps, and the command of the first: there is no room for more."""
    lines = [f"{step.what}{f' ({step.cost})' if step.cost else ''}: {step.why}" for step in steps]
    text = "\n".join(f"{number}. {markdown_text(line)}" for number, line in enumerate(lines, start=1))
    first = steps[0].command if steps else None
    return text if first is None else f"{text}\n\n{markdown_code(first)}"


def _range_tried(setting: Searched) -> str:
    if not setting.values:
        return "nothing"
    if setting.numeric and len(setting.values) > 5:
        ends = f"{value_text(setting.values[0])} to {value_text(setting.values[-1])}"
        return f"{len(setting.values)} values, {ends}"
    return ", ".join(value_text(value) for value in setting.values)
