"""Where trials were stopped early, and what it took to go on."""

from collections import Counter
from typing import Any

from markupsafe import Markup

from orchestrator.report.findings import Findings
from orchestrator.report.html.elements import Figure, Plot, Table, score_cell
from orchestrator.text import counted

MOST = 12
"""The maximum number of validations at which stops are shown, those with the most."""


def thresholds(findings: Findings) -> Plot | None:
    """At each validation after which trials were stopped: the best values so far of the stopped ones, and of those that
    went on, all at this validation. What the scheduler asked for lies between the worst that went on and the best that
    was stopped; a scheduler that decides while trials come in may have asked for more later, so that they overlap."""
    ledger = findings.ledger
    ended = [trial for trial in ledger.finished() if trial.curve]
    stops = Counter(len(trial.curve) for trial in ended if trial.state == "pruned")
    if not stops:
        return None
    data: list[Figure] = []
    rows: list[list[Any]] = []
    ages = sorted(age for age, _ in stops.most_common(MOST))
    for state, label in (("pruned", "stopped there"), ("done", "went on")):
        x, y, text = [], [], []
        for age in ages:
            for trial in ended:
                stopped = trial.state == "pruned" and len(trial.curve) == age
                if stopped if state == "pruned" else len(trial.curve) > age:
                    x.append(age)
                    y.append(ledger.best_of(trial.curve[:age]))
                    text.append(trial.trial_id)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label,
                "x": x,
                "y": y,
                "text": [f"trial {name}" for name in text],
                "customdata": text,
                "marker": {
                    "color": f"var(--{state})",
                    "symbol": "triangle-down" if state == "pruned" else "circle-open",
                    "size": 8,
                },
                "hovertemplate": Markup("%{text}: <b>%{y:.4f}</b><extra></extra>"),
            }
        )
    worst_of = min if ledger.mode == "max" else max
    bounds: list[tuple[int, float]] = []
    for age in ages:
        ends = [ledger.best_of(t.curve) for t in ended if t.state == "pruned" and len(t.curve) == age]
        went = [ledger.best_of(t.curve[:age]) for t in ended if len(t.curve) > age]
        bounds += [(age, worst_of(went))] if went else []
        least = score_cell(worst_of(went)) if went else None
        rows.append([age, len(ends), len(went), score_cell(ledger.best_of(ends)), least])
    data.append(
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "the worst that went on",
            "x": [age for age, _ in bounds],
            "y": [value for _, value in bounds],
            "line": {"color": "var(--ink)", "dash": "dash", "width": 1.5},
            "marker": {"symbol": "line-ew-open", "size": 16, "color": "var(--ink)"},
            "hovertemplate": Markup("the worst that went on: %{y:.4f}<extra></extra>"),
        }
    )
    heads = ["validations", "stopped", "went on", "best stopped", "worst that went on"]
    count = counted(sum(stops.values()), "stop")
    said = (
        f"The best value so far at each validation after which trials were stopped ({count}): all values of one column "
        "are of the same age. Where a stopped one is above one that went on, the scheduler knew fewer trials when it "
        "let that one go on."
    )
    layout = {"height": 380, "xaxis": {"title": {"text": "validation"}, "tickvals": ages}}
    layout["yaxis"] = {"title": {"text": ledger.metric}}
    return Plot("thresholds", "What it took to go on", said, data, layout, Table("thresholds", heads, rows))
