"""All searches of a storage as one page."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from orchestrator.report.html.elements import Cell, Table, number_cell, score_cell, state_cell
from orchestrator.report.html.rendering import Live, render
from orchestrator.report.status import Status
from orchestrator.storage.trial_record import ENDED, STATES
from orchestrator.text import pluralize, span


def storage_page(
    states: Sequence[Status],
    storage: str,
    *,
    waiting: int = 0,
    of_claims: int = 0,
    problems: Sequence[str] = (),
    benchmarks: Collection[str] = (),
    live: Live | None = None,
) -> str:
    """The HTML of the searches in these states, the newest first: a table for each data set and metric, because
    scores of others cannot be compared. `waiting`: how many journals are not read yet; `of_claims`:
    how many belong to claims and are not shown; `benchmarks` have a page."""
    groups: dict[tuple[str, str], list[Status]] = {}
    for one in sorted(states, key=lambda state: -state.started):
        groups.setdefault((one.dataset, one.objective), []).append(one)
    running = sum(one.state == "running" for one in states)
    summary = f"{pluralize(len(states), 'search', 'searches')}, {running} running"
    if waiting:
        summary += f"; {waiting} more are being read"
    if of_claims:
        summary += f"; without {of_claims} of claims"
    values = {
        "storage": storage,
        "said": summary,
        "problems": problems,
        "groups": [
            {
                "title": f"{dataset}, {metric}" if dataset else "not begun",
                "table": _table(f"group-{place}", group, benchmarks),
            }
            for place, ((dataset, metric), group) in enumerate(groups.items(), start=1)
        ],
    }
    return render("storage.html", values, live=live)


def _table(name: str, states: Sequence[Status], benchmarks: Collection[str]) -> Table:
    heads = ["search", "method", "benchmark", "state", "trials", "best", "time", "GPU hours", "started (UTC)", "note"]
    rows = []
    for one in states:
        ended, budget = sum(one.counts[state] for state in ENDED), one.budget
        of = budget["trials"].of
        part_of = one.benchmark or ""
        best = None if one.best is None else one.best.objective
        began = datetime.fromtimestamp(one.started / 1000, UTC)
        rows.append(
            [
                Cell(one.name, one.name, link=f"searches/{one.name}/"),
                one.method,
                Cell(part_of, part_of, link=f"benchmarks/{part_of}/" if part_of in benchmarks else ""),
                state_cell(one.state, one.state if one.state in STATES else "failed", one.reason or ""),
                number_cell(str(ended) if of is None else f"{ended} of {of}", ended),
                score_cell(best),
                number_cell(span(one.seconds), one.seconds),
                budget["gpu_hours"].used if "gpu_hours" in budget else None,
                Cell(f"{began:%Y-%m-%d %H:%M}", str(one.started)) if one.started else "",
                one.note or "",
            ]
        )
    return Table(name, heads, rows, wrap=[0, len(heads) - 1])
