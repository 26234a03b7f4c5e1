"""Plotly figures, and the parts that several sections of a search's page share."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from markupsafe import Markup

from orchestrator.report.findings import Findings
from orchestrator.report.html.elements import Figure
from orchestrator.report.settings import Searched
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import value_text

SYMBOLS = {"done": "circle", "pruned": "triangle-down", "failed": "x", "running": "diamond", "interrupted": "square"}
DRAWN = 1500
"""The maximum number of trials drawn in a figure."""
LISTED = 100
"""The maximum number of trials in a figure's own table."""
BELOW = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0}
"""A legend at the lower end, below the axis's title however many lines that has."""
GRID = 60
"""Sides of an interpolated map."""


class Total:
    """Epochs of all trials so far."""

    def __init__(self, per_validation: float) -> None:
        self.per_validation, self.spent = per_validation, 0.0

    def __call__(self, number: int, trial: TrialRecord) -> float:
        self.spent += trial.own_validations * self.per_validation
        return self.spent


Step = tuple[float, float, TrialRecord]


def best_so_far(
    ledger: Ledger, trials: Iterable[TrialRecord], place: Callable[[int, TrialRecord], float]
) -> list[Step]:
    steps: list[Step] = []
    best: TrialRecord | None = None
    for number, trial in enumerate(trials):
        if best is None or ledger.better(_best(trial), _best(best)):
            best = trial
        steps.append((place(number, trial), _best(best), best))
    return steps


def improvements(steps: Iterable[Step]) -> Iterator[Step]:
    last = None
    for step in steps:
        if step[1] != last:
            last = step[1]
            yield step


def _best(trial: TrialRecord) -> float:
    return math.nan if trial.best is None else trial.best


def step_line(steps: Sequence[Step]) -> Figure:
    steps = [*improvements(steps), steps[-1]]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "best so far",
        "line": {"shape": "hv", "color": "var(--best)", "width": 2},
        "x": [x for x, _, _ in steps],
        "y": [y for _, y, _ in steps],
        "hovertemplate": Markup("%{y:.4f}<extra>best so far</extra>"),
    }


def drawn_trials(ledger: Ledger, trials: list[TrialRecord]) -> list[TrialRecord]:
    """These trials, or the best and an even sample of the others: half of what is drawn each, in their order."""
    if len(trials) <= DRAWN:
        return trials
    rank = {trial.trial_id: place for place, trial in enumerate(ledger.ranking())}
    ranked = sorted(trials, key=lambda trial: rank[trial.trial_id])
    best, others = ranked[: DRAWN // 2], ranked[DRAWN // 2 :]
    count = DRAWN - len(best)
    names = {t.trial_id for t in [*best, *(others[i * len(others) // count] for i in range(count))]}
    return [trial for trial in trials if trial.trial_id in names]


def traces_by_state(
    trials: Sequence[TrialRecord], x: Callable[[TrialRecord], Any], y: Callable[[TrialRecord], Any], legend: bool = True
) -> list[Figure]:
    """Points, one trace per state."""
    traces = []
    for state, symbol in SYMBOLS.items():
        of_state = [trial for trial in trials if trial.state == state]
        if of_state:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": state,
                    "showlegend": legend,
                    "marker": {"color": f"var(--{state})", "symbol": symbol, "size": 8, "opacity": 0.85},
                    "x": [x(trial) for trial in of_state],
                    "y": [y(trial) for trial in of_state],
                    "customdata": [trial.trial_id for trial in of_state],
                    "hovertemplate": Markup("%{text}<br><b>%{y:.4f}</b><extra></extra>"),  # the page fills in the text
                }
            )
    return traces


def dimension_of(setting: Searched, values: Sequence[Any]) -> Figure:
    label = Markup("{}<br>{}").format(setting.label, setting.key) if setting.label else setting.key
    if not setting.numeric:
        names = [str(value) for value in dict.fromkeys(setting.values)]
        places = [names.index(str(value)) for value in values]
        ticks = {"tickvals": list(range(len(names))), "ticktext": names}
        return {"label": label, "values": places, **ticks}
    if setting.log and min(values) > 0:
        low, high = math.log10(min(values)), math.log10(max(values))
        at = [low + (high - low) * i / 4 for i in range(5)]
        ticks = {"tickvals": at, "ticktext": [value_text(10**tick) for tick in at]}
        return {"label": label, "values": [math.log10(v) for v in values], **ticks}
    return {"label": label, "values": list(values)}


def axis_of(setting: Searched) -> Figure:
    axis: Figure = {"title": {"text": setting.full_label}}
    if not setting.numeric:
        return axis | {"type": "category"}
    if not setting.log:
        return axis
    ticks = log_ticks([value for value in setting.values if value > 0])
    return axis | {"type": "log", "tickvals": ticks, "ticktext": [value_text(float(tick)) for tick in ticks]}


def log_ticks(values: Sequence[float]) -> list[float]:
    """1, 2, 5, 10, ... around these values, or powers of ten where those are many; plotly writes 20 as a lone 2."""
    if not values:
        return []
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if high - low <= 2 else (1,)
    return [float(f"{step}e{power}") for power in range(low, high + 1) for step in steps]


def value_axis(title: str, values: Sequence[float]) -> Figure:
    """An axis of values; plotly would draw a single one between -1 and 1 around it."""
    if not values:
        return {"title": {"text": title}}
    lowest, highest = min(values), max(values)
    margin = 0.05 * (highest - lowest or abs(highest) or 1)
    return {"title": {"text": title}, "range": [lowest - margin, highest + margin]}


WHOLE = 12
"""Up to so many whole numbers are all marked on an axis; plotly would mark fractions between few of them."""


def whole_axis(title: str, most: float) -> Figure:
    """An axis of whole numbers, such as trials or epochs."""
    axis: Figure = {"title": {"text": title}}
    return axis | ({"dtick": 1} if most <= WHOLE else {})


def plotted_value(setting: Searched, value: Any) -> Any:
    return value if setting.numeric else str(value)


def marks_of(setting: Searched, findings: Findings) -> tuple[list[Figure], list[Figure]]:
    """The paper's value as a line across a plot of one setting."""
    mark = setting.marked
    numeric = mark is not None and isinstance(mark.value, int | float) and not isinstance(mark.value, bool)
    if mark is None or numeric != setting.numeric or (setting.log and numeric and mark.value <= 0):
        return [], []
    x = plotted_value(setting, mark.value)
    if not setting.numeric and mark.value not in setting.values:
        return [], []
    line = {"color": "var(--published)", "dash": "dash", "width": 1.5}
    shape = {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}
    text = f"{value_text(mark.value)}: {mark.source}"
    note = {"x": math.log10(x) if setting.log else x, "y": 1, "xref": "x", "yref": "paper", "yanchor": "bottom"}
    note |= {"text": text, "showarrow": False, "font": {"size": 11, "color": "var(--published)"}}
    return [shape], [note]


def star_trace(x: Any, y: Any, name: str) -> Figure:
    marker = {"symbol": "star", "size": 15, "color": "var(--best)", "line": {"color": "var(--paper)", "width": 1}}
    return {"type": "scatter", "mode": "markers", "name": name, "marker": marker, "x": [x], "y": [y]} | {
        "hovertemplate": Markup("{}<extra></extra>").format(name)
    }


def interpolate(
    places: Sequence[tuple[float, float]], values: Sequence[float], *, log: tuple[bool, bool]
) -> tuple[list[float], list[float], list[list[float]]] | None:
    """Linear interpolation between points, over a grid; None if they span no area."""
    import numpy as np
    from scipy.interpolate import griddata
    from scipy.spatial import QhullError

    points = np.asarray(places, dtype=float)
    for axis, is_log in enumerate(log):
        if is_log:
            points[:, axis] = np.log10(points[:, axis])
    low, high = points.min(axis=0), points.max(axis=0)
    if len(points) < 6 or (high == low).any():
        return None
    sides = [np.linspace(low[axis], high[axis], GRID) for axis in range(2)]
    mesh = np.meshgrid(*[(side - a) / (b - a) for side, a, b in zip(sides, low, high, strict=True)])
    try:
        z = griddata((points - low) / (high - low), np.asarray(values), tuple(mesh), method="linear")
    except QhullError:
        return None
    axes = [10**side if is_log else side for side, is_log in zip(sides, log, strict=True)]
    return axes[0].tolist(), axes[1].tolist(), z.tolist()
