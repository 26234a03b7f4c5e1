"""What a part of `gpu.py` found, kept by part in results.json, and the page about it."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_parts import PARTS, Part

PASSED, TRIED, INCOMPLETE, FAILED, NOT_RUN = "passed", "tried on a CPU", "incomplete", "failed", "not run"


@dataclass(frozen=True)
class Result:
    """Of a part: its outcome, why it is no better, and what was found. `tests` counts them by outcome."""

    name: str
    outcome: str
    why: str = ""
    tests: dict[str, int] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    where: dict[str, Any] = field(default_factory=dict)


# What a part's processes left behind ---------------------------------------------------------------------------


def of_tests(part: Part, code: int, report: Path) -> Result:
    """From pytest's exit status and its JUnit report."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    reasons: dict[str, list[str]] = {}
    seen: set[str] = set()
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        cases = []
    for case in cases:
        bad, skipped = case.find("failure"), case.find("skipped")
        bad = case.find("error") if bad is None else bad
        kind = "failed" if bad is not None else "skipped" if skipped is not None else "passed"
        counts[kind] += 1
        seen.add(case.get("name", "").partition("[")[0])
        if (found := bad if bad is not None else skipped) is not None:
            message = " ".join((found.get("message") or "no reason given").split())[:200]
            reasons.setdefault(message, []).append(case.get("name", ""))
    if counts["failed"] or code not in (0, 5):
        return Result(part.name, FAILED, shortened(reasons) or f"pytest ended with status {code}", counts)
    if not counts["passed"]:
        return Result(part.name, NOT_RUN, shortened(reasons) or "no test was found", counts)
    if missing := [name for name in part.tests if name not in seen]:
        reasons["not found"] = missing
    if counts["skipped"] or missing:
        return Result(part.name, INCOMPLETE, shortened(reasons), counts)
    return Result(part.name, PASSED, "", counts)


def of_script(part: Part, code: int, output: str) -> Result:
    """From a script's exit status and its lines of JSON, of figures or of `not run`; figures of one that failed too."""
    figures = figures_in(output)
    last = (output.strip().splitlines() or [""])[-1]
    why = str(figures.pop(NOT_RUN, ""))
    if code:
        return Result(part.name, FAILED, last[:300] or f"it ended with status {code}", {}, figures)
    if why:
        return Result(part.name, INCOMPLETE if figures else NOT_RUN, why, {}, figures)
    if not figures:
        return Result(part.name, FAILED, f"no figures in its lines; the last: {last[:200]!r}")
    wrong = {name: value for name, value in figures.items() if name.endswith(": failed")}
    if wrong:
        first, reason = next(iter(wrong.items()))
        return Result(
            part.name, FAILED, f"{len(wrong)} failed; {first.removesuffix(': failed')}: {reason}", {}, figures
        )
    return Result(part.name, PASSED, "", {}, figures)


def figures_in(output: str) -> dict[str, Any]:
    """Of all lines that are a JSON object; other lines are left out."""
    found: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                found |= json.loads(line)
            except ValueError:
                continue
    return found


def shortened(reasons: dict[str, list[str]], most: int = 3) -> str:
    """A few of the reasons, each with the first test that it is of, and how many more there are."""
    told = [
        f"{reason} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
        for reason, names in reasons.items()
    ]
    return "; ".join(told[:most]) + (f"; and {len(told) - most} more reasons" if len(told) > most else "")


# The report --------------------------------------------------------------------------------------------------------


def kept(path: Path) -> dict[str, Result]:
    """The results of earlier runs by part; none if they cannot be read."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return {part["name"]: Result(**part) for part in saved["parts"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save(folder: Path, results: dict[str, Result]) -> None:
    """Both files, parts in order."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered = [results[part.name] for part in PARTS if part.name in results]
    content = {"parts": [asdict(result) for result in ordered]}
    (folder / "results.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(page(results), encoding="utf-8")


def page(results: dict[str, Result]) -> str:
    """All parts, those without a result too."""
    lines = ["# On a GPU", "", "Written by `make gpu` from results.json.", ""]
    if any(result.where.get("device") == "cpu" for result in results.values()):
        lines += [
            "**Parts of this report ran on a CPU, in small, to try the script: no figure of theirs is a GPU's.**",
            "",
        ]
    lines += ["| part | what | outcome | seconds | where |", "| --- | --- | --- | ---: | --- |"]
    details = []
    for number, part in enumerate(PARTS, 1):
        result = results.get(part.name, Result(part.name, NOT_RUN, "no run asked for it yet"))
        tests = ", ".join(f"{count} {kind}" for kind, count in result.tests.items() if count)
        outcome = result.outcome if result.outcome == PASSED else f"**{result.outcome}**: {result.why}".rstrip(": ")
        where = ", ".join(str(result.where[key]) for key in ("machine", "date", "commit") if key in result.where)
        outcome = f"{outcome} ({tests})" if tests else outcome
        outcome = outcome.replace("|", "\\|")
        lines.append(f"| {number} {part.name} | {part.what} | {outcome} | {result.seconds:g} | {where} |")
        if result.figures:
            details += ["", f"## {part.name}: {part.what}", ""]
            details += [f"- {name}: {shown(value)}" for name, value in result.figures.items()]
    wheres = [result.where for result in results.values() if result.where]
    if wheres:
        versions = ", ".join(f"{name} {version}" for name, version in wheres[-1]["versions"].items())
        details += ["", f"Last with Python {wheres[-1]['python']}, {wheres[-1]['cores']} cores; {versions}."]
    return "\n".join(lines + details) + "\n"


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
