"""Writes docs/methods.md: `make methods-page`. Its table of checks takes minutes: with `--keep-checks` only methods
that have no row in it are checked."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from orchestrator.check import CHECKS, verdicts
from orchestrator.cli.describe import SettingFacts, describe_method, describe_settings
from orchestrator.config.training import Training
from orchestrator.evaluation.measures import METRICS
from orchestrator.evaluation.measures.recall import recall
from orchestrator.method import find_method, registry
from orchestrator.plugins import installed_methods
from orchestrator.report.method_costs import REFERENCE, method_costs

PAGE = Path(__file__).with_name("methods.md")
LEARNING = Path(__file__).parents[1] / "benchmarks" / "learning.json"
CONFORMANCE = "## Conformance\n"
BOUNDS = [
    "A step of `proxy_anchor` has 3 x 128 x classes x 512 multiplications: 20 million, or 2 billion with 10,000 "
    "classes. Methods above three times its time do more by their mathematics:",
    "",
    "- `hier` draws an ancestor of each triplet by a random number for each hierarchical proxy, twice: (128 + 512) x "
    "50 x 512 x 2, 33 million random numbers, whatever the classes.",
    "- `dada` trains two networks by three steps a batch, and a fourth through them: 1.7 billion multiplications with "
    "100 classes, 5.6 billion with 10,000, and as many steps of Adam.",
    "- Mean fields are compared with each other: with 10,000 classes 26 billion multiplications. `field_weight: 0`, as "
    "in the author's commands, leaves that out.",
    "- `hist` has three matrices of all classes where `proxy_anchor` has one; `idml` sees each image twice, as itself "
    "and mixed.",
]
PICTURES = {
    "ccp": "![CCP's first problems in the plane](pictures/ccp_problems.png)\n\n"
    "CCP's first problems on eight classes of glyphs, embedded in the plane as in the paper's Figure 2; each class has "
    "a line, and along it goes the angle of its embeddings. A problem ends with its converged proxies, and new ones, "
    "chosen where the old ones cover worst, begin the next ([how it is drawn](pictures/ccp_problems.py)).",
}


def documentation() -> str:
    """All methods: formula, source, hyperparameters with defaults and ranges."""
    described = [describe_method(method) for method in installed_methods().values()]
    lines = ["# Methods", "", "Written by `make methods-page`, from what each method says of itself.", ""]
    lines += ["| method | what | source |", "| --- | --- | --- |"]
    for method in described:
        name = method.name
        lines.append(f"| [{name}](#{name}) | {_cell(method.summary)} | {_cell(method.paper)} |")
    lines += ["", *costs()]
    for method in described:
        told = _paragraphs(method.documentation, method.latex)
        lines += ["", f"## {method.name}", "", *told, method.paper + ".", ""]
        if method.needs_validation:
            lines += ["Keeps its held-out classes in its final run too.", ""]
        if method.sampler != "class_balanced":
            lines += [f"Draws its batches by the {method.sampler} sampler.", ""]
        if method.name in PICTURES:
            lines += [PICTURES[method.name], ""]
        lines += _settings("hyperparameter", method.hyperparameters)
    lines += ["", "## Every training", "", "What any method is trained with, in the same files and options.", ""]
    lines += _settings("setting", describe_settings(Training))
    lines += [
        "",
        "## Metrics",
        "",
        "What a model is judged by, in a validation (`val/...`) and in a test (`test/...`).",
        "",
    ]
    lines += ["| metric | as an objective | definition |", "| --- | --- | --- |"]
    for metric in (replace(recall(1), name="recall_at_<k>"), *METRICS):
        goal = "max" if metric.larger_is_better else "min"
        lines.append(f"| `{metric.name}` | {goal if metric.by_query else ''} | {_cell(metric.about)} |")
    return "\n".join([*lines, "", *learning()]) + "\n\n"


def learning() -> list[str]:
    """What each method learns by its defaults, as benchmarks/learning.py has recorded it."""
    rows: dict[str, Any] = json.loads(LEARNING.read_text(encoding="utf-8"))
    measured = sorted({(row["machine"], row["date"]) for row in rows.values()})
    missing = sorted(installed_methods().keys() - rows.keys())
    lines = [
        "## Learning by default",
        "",
        "MAP@R on the 18 held-out classes of `glyphs-small` after the default 10 epochs, and of the untrained "
        "network: means over seeds, and in brackets the lowest and the highest "
        f"({'; '.join(f'{machine}, {date}' for machine, date in measured)}; `benchmarks/learning.py`)."
        + (f" Not measured: {', '.join(missing)}." if missing else ""),
        "",
        "| method | untrained | trained | seeds |",
        "| --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        lowest, highest = min(row["trained"]), max(row["trained"])
        trained = f"{fmean(row['trained']):.3f} ({lowest:.3f} to {highest:.3f})"
        lines.append(f"| {name} | {fmean(row['untrained']):.3f} | {trained} | {len(row['trained'])} |")
    return lines


def costs() -> list[str]:
    """The table of what a training step costs."""
    measured = method_costs()
    sizes = sorted({size for cost in measured.of.values() for size in cost})
    lines = [
        "## What a training step costs",
        "",
        f"Beside one of {REFERENCE}, by each method's defaults: seconds as multiples of its own (both "
        "timed in turn, by the processor's clock), and megabytes of all "
        "tensors at once. 128 images, 512 numbers an embedding, one thread; the network is one small layer, so that a "
        f"backbone's part comes on top of both ({measured.machine}, {measured.date}; "
        "[benchmarks/method_costs.py](../benchmarks/method_costs.py)). On a GPU: the median of five steps "
        f"([{measured.gpu}](../benchmarks/gpu/results.md)).",
        "",
        "| method | " + " | ".join(f"{size:,} classes: times | ms | MB | ms on a GPU" for size in sizes) + " |",
        "| --- |" + " ---: | ---: | ---: | ---: |" * len(sizes),
    ]
    for name, cost in sorted(measured.of.items(), key=lambda item: -item[1][sizes[0]].times):
        cells = [
            f"{of.times:.3g} | {1000 * of.seconds:,.1f} | {of.megabytes:,} | {1000 * (of.gpu_seconds or 0):,.1f}"
            if (of := cost.get(size))
            else " | | | "
            for size in sizes
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "With 10,000 classes a step of `pfml` and `cpml` takes minutes, and was not measured.", "", *BOUNDS]
    return lines


def _settings(head: str, rows: list[SettingFacts]) -> list[str]:
    lines = [f"| {head} | type | default | range | meaning |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        cells = [row.name, row.type, _plain(row.default), row.range, row.description]
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return lines


def conformance(known: dict[str, str]) -> str:
    """What the checks hold, and which method passes which; the rows of `known` methods stay."""
    names = sorted(registry())
    lines = [
        CONFORMANCE,
        "What `orchestrator check` found, by each method's defaults.",
        "",
    ]
    lines += ["| check | holds |", "| --- | --- |"]
    for name, check in CHECKS.items():
        lines.append(f"| {name} | {_cell((check.__doc__ or '').splitlines()[0])} |")
    lines += ["", "| method | passed | not passed |", "| --- | --- | --- |"]
    for method in names:
        if method in known:
            lines.append(known[method])
            continue
        found = list(verdicts(find_method(method)))
        others = [f"{v.name}: {v.state}: {v.reason}" for v in found if v.state != "passed"]
        passed = "all" if not others else f"{len(found) - len(others)} of {len(found)}"
        lines.append(f"| {method} | {passed} | {_cell('; '.join(others))} |")
    return "\n".join(lines) + "\n"


def _paragraphs(text: str, latex: str) -> list[str]:
    """A docstring as Markdown, with formulas in LaTeX after its summary: what begins with a formula is set as code."""
    summary, *others = text.split("\n\n")
    lines = [summary, ""]
    for formula in latex.split("\n\n") if latex else ():
        lines += ["```math", formula, "```", ""]
    for paragraph in others:
        plain = " = " in paragraph.splitlines()[0]
        lines += ["```text", paragraph, "```", ""] if plain else [paragraph, ""]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(value: Any) -> str:
    """A default as a search file would have it."""
    return json.dumps(value).strip('"')


if __name__ == "__main__":
    keep = "--keep-checks" in sys.argv[1:]
    old = PAGE.read_text(encoding="utf-8").split(CONFORMANCE)[1].split("| method |")[1].splitlines()[2:] if keep else []
    PAGE.write_text(documentation() + conformance({row.split("|")[1].strip(): row for row in old}), encoding="utf-8")
    print(f"{PAGE} written", file=sys.stderr)
