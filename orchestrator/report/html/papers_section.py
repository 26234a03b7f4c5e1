"""The section of a search's page beside the papers' tables, and how to reproduce it."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from orchestrator.config.search import recorded_search
from orchestrator.errors import InputError
from orchestrator.evaluation.measures import OF_PAPERS
from orchestrator.report.findings import Findings
from orchestrator.report.html.elements import Cell, Folded, Table, number_cell
from orchestrator.storage.ledger import Ledger
from orchestrator.text import value_text

BESIDE_SAME, BESIDE_OTHERS = 8, 12


def papers_table(findings: Findings) -> Folded | None:
    """The papers' rows on the same data set, below this search; None if there are none."""
    settings = findings.settings
    if not findings.published:
        return None
    metrics = {name for b in findings.published for name in b.row.values}
    columns = [name for name in OF_PAPERS if name in metrics and (name in findings.test or not findings.test)]
    columns = columns or [name for name in OF_PAPERS if name in metrics]
    heads = ["source", "method", "backbone", "dimension", *[f"{name} %" for name in columns], "settings that differ"]
    setup = [str(settings.get("backbone")), settings.get("embedding_dim")]
    own_cells = [_percent(*findings.test[name]) if name in findings.test else None for name in columns]
    rows: list[list[Any]] = [["this search", str(settings.get("method")), *setup, *own_cells, ""]]
    same = [b for b in findings.published if b.same_method][:BESIDE_SAME]
    others = [b for b in findings.published if not b.same_method]
    others.sort(key=lambda b: -max((v.value for n, v in b.row.values.items() if n in columns), default=0.0))
    for b in [*same, *others[:BESIDE_OTHERS]]:
        row = b.row
        cells = [
            _percent(row.values[name].value, row.values[name].deviation) if name in row.values else None
            for name in columns
        ]
        differ = "; ".join(f"{d.setting}: {_value_text(d.paper)}, here {_value_text(d.run)}" for d in b.differences)
        source = f"{row.paper}, Table {row.table}"
        rows.append([source, row.method, row.backbone or "", row.dimension, *cells, differ or "none stated"])
    title = f"The {len(rows) - 1} nearest published rows, and what differs"
    return Folded(title, Table("papers", heads, rows, best=0, wrap=[len(heads) - 1]))


def _value_text(value: Any) -> str:
    return "none" if value in (None, "") else value_text(value)


def _percent(value: float, deviation: float | None) -> Cell:
    return number_cell(f"{100 * value:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}"), value)


def _search_file(ledger: Ledger) -> str | None:
    """The search in YAML; None of a training, and of a search that this version does not understand."""
    try:
        search = recorded_search(ledger.config)
    except (ValidationError, InputError):
        return None
    return None if search.test_trials else search.file()


def reproduce_section(findings: Findings) -> dict[str, Any]:
    ledger = findings.ledger
    facts: Mapping[str, Any] = {
        "search": ledger.name,
        "algorithm": ledger.config.get("algorithm"),
        "trials asked for": ledger.config.get("num_trials"),
        "scheduler": (ledger.config.get("scheduler") or {}).get("name"),
        "seed of the search": ledger.config.get("seed"),
        "preset": ledger.config.get("preset"),
        **{str(key): value for key, value in ledger.tags.items()},
    }
    rows = [[key, str(value)] for key, value in facts.items() if value not in (None, "")]
    cells = [[key, "null" if value is None else str(value)] for key, value in findings.settings.items()]
    whose = "the winner" if findings.winner is not None else "the first trial: none has won"
    settings = Table("all-settings", ["setting", "value"], cells)
    return {
        "file": _search_file(ledger),
        "facts": Folded("What it ran on", Table("facts", ["what", "value"], rows, wrap=[1])),
        "settings": Folded(f"All settings of {whose}", settings) if cells else None,
    }
