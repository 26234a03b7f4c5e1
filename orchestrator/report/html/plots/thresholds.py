"""Where trials were stopped early, and what it took to go on."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from orchestrator.report.findings import Findings
from orchestrator.report.html.elements import Figure, Plot, Table, score_cell
from orchestrator.report.html.figures import DRAWN, drawn_trials
from orchestrator.report.stopping import Stop
from orchestrator.text import pluralize

MOST = 12
"""The maximum number of validations at which stops are shown, those with the most."""


ASKED = "Short lines: what a stopped one would have had to have, among those that had come as far by then."


def asked_trace(stops: Sequence[Stop], per: float = 1.0) -> Figure:
    """What was asked of trials that were stopped, over their validations, or over epochs with `per` of them each."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "asked of a stopped one",
        "x": [per * stop.age for stop in stops],
        "y": [stop.asked for stop in stops],
        "text": [
            f"trial {stop.trial_id} had {stop.value:.4f} and was asked for {stop.asked:.4f}, {stop.of}"
            for stop in stops
        ],
        "customdata": [stop.trial_id for stop in stops],
        "marker": {"symbol": "line-ew-open", "size": 14, "color": "var(--failed)", "line": {"width": 2}},
        "hovertemplate": Markup("%{text}<extra></extra>"),
    }


def thresholds(findings: Findings) -> Plot | None:
    """At each validation after which trials were stopped: the best values so far of the stopped ones, and of those that
    went on, all at this validation, and what was asked of each stopped one, where the journal tells. A scheduler that
    decides while trials come in may ask for more later, so that stopped ones and others overlap. None of a population,
    which compares last values."""
    ledger = findings.ledger
    if ledger.is_population:
        return None
    ended = [trial for trial in ledger.candidates() if trial.curve]
    early = Counter(len(trial.curve) for trial in ended if trial.state == "pruned")
    if not early:
        return None
    data: list[Figure] = []
    rows: list[list[Any]] = []
    trials_drawn = drawn_trials(ledger, ended)
    ages = sorted(age for age, _ in early.most_common(MOST))
    for state, label in (("pruned", "stopped there"), ("done", "went on")):
        x, y, text = [], [], []
        for age in ages:
            for trial in trials_drawn:
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
    stops = [stop for stop in findings.stops if stop.age in ages]
    if stops:
        data.append(asked_trace(stops[:: -(-len(stops) // DRAWN)]))
    worst_of = min if ledger.mode == "max" else max
    bounds: list[tuple[int, float]] = []
    for age in ages:
        ends = [ledger.best_of(t.curve) for t in ended if t.state == "pruned" and len(t.curve) == age]
        went = [ledger.best_of(t.curve[:age]) for t in ended if len(t.curve) > age]
        bounds += [(age, worst_of(went))] if went else []
        least = score_cell(worst_of(went)) if went else None
        then = [stop.asked for stop in stops if stop.age == age]
        bar = map(score_cell, (then[0], then[-1])) if then else (None, None)
        rows.append([age, len(ends), len(went), score_cell(ledger.best_of(ends)), least, *bar])
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
    heads = [
        "validations",
        "stopped",
        "went on",
        "best stopped",
        "worst that went on",
        "asked of the first",
        "of the last",
    ]
    count = pluralize(sum(early.values()), "stop")
    caption = (
        f"The best value so far at each validation after which trials were stopped ({count}): all values of one column "
        "are of the same age. "
    )
    if ledger.second is None:
        caption += (
            "Where a stopped one is above one that went on, the scheduler knew fewer trials when it let that one go on."
        )
    else:
        caption += f"They were compared by {ledger.second} too, which is not shown."
    caption += f" {ASKED}" if stops else ""
    layout = {"height": 380, "xaxis": {"title": {"text": "validation"}, "tickvals": ages}}
    layout["yaxis"] = {"title": {"text": ledger.metric}}
    return Plot("thresholds", "What it took to go on", caption, data, layout, Table("thresholds", heads, rows))
