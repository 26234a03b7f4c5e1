"""The points of a grid over their seeds, on a search's page: a table, and a figure with error bars for each setting."""

from typing import Any

from markupsafe import Markup

from orchestrator.report.findings import Findings
from orchestrator.report.html.elements import Figure, Folded, Plot, Table, score_cell
from orchestrator.report.html.figures import BELOW, axis_of, marks_of, plotted_value
from orchestrator.report.points import Placed, how_compared, seed_effect_text, seeds_text, spread_of
from orchestrator.report.settings import Searched
from orchestrator.text import params_text, pluralize

MAX_LINES = 8
"""The maximum number of lines in a figure: one for each combination of the other settings, the best first."""
COLOURS = ("--best", "--pruned", "--published", "--running", "--failed", "--interrupted", "--soft", "--line")
ROWS = 300


def points_table(findings: Findings) -> Folded | None:
    """Mean, deviation and interval of each point over its seeds, best first."""
    points = findings.points
    if not points:
        return None
    keys = [setting.key for setting in findings.searched]
    rows = []
    for place, ranked in enumerate(points[:ROWS], start=1):
        point, spread = ranked.point, spread_of(findings.ledger, ranked)
        ends = (None, None, None) if spread is None else (spread.standard_deviation, spread.low, spread.high)
        cells = [point.params.get(key) for key in keys]
        apart = ranked.against
        less = (None, None, None) if apart is None else (apart.mean, *_ends(ranked))
        cells += [len(point.values), *map(score_cell, (point.mean, *ends)), *map(score_cell, less), ranked.answer]
        rows.append([place, *cells])
    heads = [
        "#",
        *keys,
        "seeds",
        "mean",
        "deviation",
        "mean: low",
        "high",
        "best less this",
        "low",
        "high",
        "told apart",
    ]
    title = (
        f"Points by the mean of {findings.ledger.metric} over {seeds_text(points)}; 95% intervals over seeds, "
        f"uncorrected; {how_compared(points)}"
    )
    return Folded(title, Table("points", heads, rows, best=0), opened=True)


def _ends(ranked: Placed) -> tuple[float | None, float | None]:
    between = None if ranked.against is None else ranked.against.ends
    return (None, None) if between is None else between


def seeds_plot(findings: Findings, setting: Searched, name: str) -> Plot | None:
    """Mean and deviation over seeds against a setting, a line for each combination of the others; None where no two
    points differ in it alone."""
    lines: dict[str, tuple[dict[str, Any], list[Placed]]] = {}
    for ranked in findings.points:  # best first, so that the lines of the best points are drawn
        params = ranked.point.params
        if setting.key in params:
            others = {key: value for key, value in params.items() if key != setting.key}
            lines.setdefault(repr(sorted(others.items())), (others, []))[1].append(ranked)
    several = [(others, points) for others, points in lines.values() if len(points) > 1]
    if not several:
        return None
    order = {repr(value): place for place, value in enumerate(setting.values)}
    data: list[Figure] = []
    rows: list[list[Any]] = []
    for (others, points), colour in zip(several, COLOURS, strict=False):
        points = sorted(points, key=lambda placed: order[repr(placed.point.params[setting.key])])
        spreads = [spread_of(findings.ledger, ranked) for ranked in points]
        label = params_text(others)
        error = [0.0 if spread is None else spread.standard_deviation for spread in spreads]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if setting.numeric else "markers",
                "x": [plotted_value(setting, ranked.point.params[setting.key]) for ranked in points],
                "y": [ranked.point.mean for ranked in points],
                "error_y": {"type": "data", "array": error, "color": f"var({colour})"},
                "marker": {"color": f"var({colour})", "size": 8},
                "line": {"color": f"var({colour})"},
                "text": [pluralize(len(ranked.point.values), "seed") for ranked in points],
                "name": label,
                "showlegend": len(several) > 1,
                "hovertemplate": Markup("%{y:.4f}, mean of %{text}<extra></extra>"),
            }
        )
        for ranked, spread in zip(points, spreads, strict=True):
            ends = (None, None, None) if spread is None else (spread.standard_deviation, spread.low, spread.high)
            numbers = map(score_cell, (ranked.point.mean, *ends))
            rows.append([ranked.point.params[setting.key], label, len(ranked.point.values), *numbers])
    table = Table(name, [setting.key, "with", "seeds", "mean", "deviation", "mean: low", "high"], rows)
    shapes, notes = marks_of(setting, findings)
    layout = {"xaxis": axis_of(setting), "yaxis": {"title": {"text": findings.ledger.metric}}, "height": 340}
    layout |= {"shapes": shapes, "annotations": notes, "margin": {"t": 48, "l": 56, "r": 16, "b": 44}}
    layout["legend"] = BELOW
    omitted = len(several) - len(data)
    caption = (
        f"Mean over {seeds_text([ranked for _, points in several for ranked in points])}; the bars are the standard "
        f"deviation over seeds. {seed_effect_text(findings.ledger)}"
    )
    caption += f" The lines of the best points; {omitted} more are not drawn." if omitted else ""
    return Plot(name, f"{findings.ledger.metric} over {setting.key}, with seeds", caption, data, layout, table)
