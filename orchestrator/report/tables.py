"""The results of a search for programs: summaries, Markdown, CSV, LaTeX."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import visible
from orchestrator.evaluation.measures import HEADLINES, PAPER_HEADLINES
from orchestrator.report import learning
from orchestrator.report.claims import claim
from orchestrator.report.comparison import Comparison, rows
from orchestrator.report.findings import Findings
from orchestrator.report.note import markdown_code, markdown_table, markdown_text
from orchestrator.report.published import Value
from orchestrator.report.significance import Difference, between_confirmed, how_tested
from orchestrator.storage.cursors import recorded_runs
from orchestrator.storage.files import cell
from orchestrator.storage.leaderboard import Interval, repeated_tests, write_csv
from orchestrator.storage.ledger import Ledger, TrialRecord, value_columns
from orchestrator.text import value_text


def summary(ledger: Ledger, journal: Path) -> dict[str, Any]:
    """The search as one JSON object; ids are those of the tracker that it was last sent to, null if to none."""
    runs = recorded_runs(journal)

    def trial(record: TrialRecord) -> dict[str, Any]:
        return {
            "trial_id": record.trial_id,
            "run_id": runs.trials.get(record.trial_id),
            "state": record.state,
            "selection": ledger.selection,
            "objective": record.best,
            "learning": learning.judge(ledger, record).plain,
            **({"second_objective": record.second} if ledger.second is not None else {}),
            "params": record.params,
            "validations": record.validations,
            "best_validation": record.best_validation,
            "reason": record.reason,
            "metrics": {f"test/{name}": value for name, value in record.test.items()},
        }

    winner = ledger.winner()
    return {
        "name": ledger.name,
        "state": ledger.state,
        "experiment_id": runs.experiment_id,
        "parent_run_id": runs.parent_run_id,
        "objective": ledger.metric,
        "mode": ledger.mode,
        **({"second_objective": ledger.second, "front": sorted(ledger.front)} if ledger.second is not None else {}),
        **({"reason": ledger.reason} if ledger.reason else {}),
        "selection": ledger.selection,
        "numbers": learning.plain(ledger),
        "trials": [trial(record) for record in ledger.trials.values()],
        "best": trial(winner) if winner else None,
        "final": trial(ledger.final) if ledger.final else None,
        "finals": [trial(record) for record in ledger.finals.values()],
        "repeated": [asdict(repeated) for repeated in repeated_tests(ledger)],
        "differences": [difference.plain for difference in between_confirmed(ledger)],
    }


Format = Literal["table", "markdown", "csv", "latex"]


def exported(ledger: Ledger, form: Format) -> str:
    """The leaderboard as a file of that form."""
    if form == "csv":
        file = io.StringIO()
        write_csv(ledger, file)
        return file.getvalue()
    findings = Findings.of(ledger)
    return _latex(findings) if form == "latex" else _markdown(findings)


def _leaders(findings: Findings) -> tuple[list[str], list[tuple[TrialRecord, list[str], bool]]]:
    """Heads, and for each trial its cells and whether it is the winner; tests are those of its final runs."""
    ledger = findings.ledger
    keys, columns = [setting.key for setting in findings.searched], value_columns(ledger)
    tests: dict[str | None, Mapping[str, Interval | float]] = {}
    tests |= {run.source or run.trial_id: run.test for run in ledger.everyone() if run.test}
    tests |= {group.source or group.trial_ids[0]: group.metrics for group in repeated_tests(ledger)}
    tested = [name for name in HEADLINES if any(name in values for values in tests.values())]
    rows = []
    for trial in ledger.ranking():
        cells = [trial.trial_id, learning.state_word(ledger, trial)]
        cells += [value_text(trial.params[key]) if key in trial.params else "" for key in keys]
        cells += ["" if (value := of(trial)) is None else f"{value:.4f}" for of in columns.values()]
        cells += [] if ledger.second is None else ["*" if trial.trial_id in ledger.front else ""]
        cells += [_tested(ledger, tests.get(trial.trial_id, {}), name) for name in tested]
        rows.append((trial, cells, trial is findings.winner))
    heads = ["trial", "state", *keys, *columns, *(["front"] if ledger.second is not None else [])]
    return [*heads, *(f"test {name}{_over(ledger, name)}" for name in tested)], rows


def _tested(ledger: Ledger, test: Mapping[str, Interval | float], name: str) -> str:
    """`0.5440 (0.4970 to 0.5960)`, `0.5210 ± 0.0010 (0.4801 to 0.5619)`: the head says what the interval is over."""
    value = test.get(name)
    if value is None:
        return ""
    found = claim(ledger, {n: v.mean if isinstance(v, Interval) else v for n, v in test.items()}, name)
    ends = "" if found is None or found.low is None else f" ({found.low:.4f} to {found.high:.4f})"
    if isinstance(value, Interval):
        return f"{value.mean:.4f} ± {value.standard_deviation:.4f}{ends}"
    return f"{value:.4f}{ends}"


def _over(ledger: Ledger, name: str) -> str:
    """What the intervals of a leaderboard's tests are over, for the head of a metric."""
    tests = [claim(ledger, run.test, name) for run in ledger.everyone() if run.test]
    found = {one.over for one in tests if one is not None and one.low is not None}
    return f" (95% over {' or '.join(sorted(found))})" if found else ""


def _markdown(findings: Findings) -> str:
    text = markdown_text
    heads, leaders = _leaders(findings)
    rows = [[f"**{text(cell)}**" if best and cell else text(cell) for cell in cells] for _, cells, best in leaders]
    parts = [f"# {text(findings.ledger.name)}", "\n\n".join(text(line) for line in findings.verdict)]
    if findings.warnings:
        parts.append("\n".join(f"- {text(line)}" for line in findings.warnings))
    if findings.numbers:
        parts.append(f"What are the numbers held against? {text(' '.join(findings.numbers))}")
    parts.append(f"How sure? {text(findings.certainty)}\n\nWiden a range? {text(findings.widen)}")
    parts.append(f"How far from the paper? {text(findings.distance)}")
    parts.append(markdown_table([text(head) for head in heads], rows))
    if findings.differences:
        parts.append(f"Which differences are real ({how_tested(findings.differences)}):")
        parts.append("\n".join(f"- {_difference(difference)}" for difference in findings.differences))
    parts.append(f"What mattered? {text(findings.importances.answer)}")
    if same := [b for b in findings.published if b.same_method]:
        cells = [
            [f"{b.row.paper}, Table {b.row.table}", text(b.row.method)]
            + [text(_published(b.row.values.get(name))) for name in PAPER_HEADLINES]
            + [text("; ".join(f"{d.setting}: {d.paper}, here {d.run}" for d in b.differences))]
            for b in same
        ]
        parts.append(markdown_table(["paper", "method", *map(text, PAPER_HEADLINES), "settings that differ"], cells))
    if findings.command:
        parts.append(markdown_code(findings.command))
    return "\n\n".join(parts) + "\n"


def _difference(difference: Difference) -> str:
    verdict = {"yes": "real", "no": "not distinguishable"}.get(difference.told, difference.told)
    return markdown_text(f"{difference.one} - {difference.other}: {difference.text}: {verdict}")


def _published(value: Value | None) -> str:
    if value is None:
        return ""
    return f"{value.value:.4f}" + ("" if value.deviation is None else f" ± {value.deviation:.4f}")


def _latex(findings: Findings) -> str:
    """The leaderboard for LaTeX; the winner in bold."""
    heads, leaders = _leaders(findings)
    lines = [(cells, best) for trial, cells, best in leaders if trial.best is not None]
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


LATEX = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def _latex_text(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in visible(" ".join(text.split())))


def comparison_exported(comparison: Comparison, form: Format) -> str:
    """The comparison's table, with its verdict, as a file of that form."""
    heads, lines = rows(comparison)
    if form == "csv":
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([cell(text) for text in line] for line in [heads, *lines])
        return file.getvalue()
    if form == "latex":
        tested = [line[0] == "1" for line in lines]
        return _latex_table(heads, list(zip(lines, tested, strict=True)), " ".join(comparison.verdict), left=2)
    text = markdown_text
    parts = [f"# {text(comparison.name)}", "\n\n".join(map(text, comparison.verdict))]
    parts.append(markdown_table([text(head) for head in heads], [[text(cell) for cell in line] for line in lines]))
    if comparison.differences:
        parts.append("\n".join(f"- {_difference(difference)}" for difference in comparison.differences))
    parts += ["\n".join(f"- {text(line)}" for line in told) for told in (comparison.outlook, comparison.notes) if told]
    return "\n\n".join(parts) + "\n"
