"""Journals of a benchmark whose winner is known, and its description for the tracker."""

import json
from pathlib import Path

from support.made_pages import made, spread
from support.recorded import record

from orchestrator.report.comparison import Comparison
from orchestrator.report.findings import Findings
from orchestrator.report.html.comparison_page import write_comparison
from orchestrator.report.note import benchmark_note, search_note
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import BENCHMARK, Ledger
from orchestrator.storage.places import BENCHMARK_PAGE, Places
from orchestrator.tracking.benchmarks import Described

LABELS = {"pfml": 0.5, "proxy_anchor": 0.4}


WINNER = f"{max(range(4), key=lambda n: spread(4)[n]['delta']):04d}"


def journals_of(storage: Path) -> dict[str, Path]:
    """The journals of two searches of the benchmark `mine`, each with its note."""
    found = {}
    for label, level in LABELS.items():
        path = storage / "searches" / f"mine-{label}" / "journal.jsonl"
        path.parent.mkdir(parents=True)
        made(path.parent, spread(4), lambda p: p["delta"], finals={WINNER: [level, level + 0.01, level + 0.02]})
        events = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        events[0] |= {"name": f"mine-{label}", "search_id": f"{label}-id"}
        events[0]["tags"][BENCHMARK] = "mine"
        for event in events:
            del event["sum"]
        path.write_text("".join(f"{json.dumps(event)}\n" for event in events), encoding="utf-8")
        describe(path)
        found[label] = path
    return found


def describe(path: Path) -> None:
    findings = Findings.of(Ledger.of(Journal.read(path)))
    with Journal(path) as journal:
        record(journal, "note", text=search_note(findings), important=[], least=None)


def described(storage: Path, journals: dict[str, Path]) -> Described:
    """The benchmark's page and note, written as its driver does."""
    ledgers = {label: Ledger.of(Journal.read(path)) for label, path in journals.items()}
    comparison = Comparison.of("mine", ledgers)
    page = Places(storage).benchmark("mine") / BENCHMARK_PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    write_comparison(comparison, page, dict.fromkeys(ledgers, "search.html"))
    return Described("mine", 7, benchmark_note(comparison), page, 9)
