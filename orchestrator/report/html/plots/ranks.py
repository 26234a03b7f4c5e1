"""Which places of the space gave which ranks."""

from markupsafe import Markup

from orchestrator.report.findings import Findings
from orchestrator.report.html.elements import Figure, Plot, Table, score_cell, trial_cell
from orchestrator.report.html.figures import DRAWN, LISTED, WHOLE, axis_of, plotted_value


def rank_map(findings: Findings) -> Plot | None:
    """The trials over the two settings of the largest importance (without importances, the first two), coloured by
    their rank among trials of equal training. Ranks show where good points lie also where values span decades."""
    varied = [setting for setting in findings.searched if setting.varies]
    order = list(findings.importances.shares)
    varied.sort(key=lambda setting: order.index(setting.key) if setting.key in order else len(order))
    if len(varied) < 2:
        return None
    x, y = varied[:2]
    trials, values = findings.ledger.trials, findings.comparable.values
    names = [name for name in values if x.key in trials[name].params and y.key in trials[name].params]
    if len(names) < 3:
        return None
    best = sorted(names, key=lambda name: values[name], reverse=findings.ledger.mode == "max")
    places = [values[name] for name in best]
    rank = {name: places.index(values[name]) + 1 for name in best[:DRAWN]}
    first = best[:DRAWN]
    points: Figure = {
        "type": "scatter",
        "mode": "markers",
        "x": [plotted_value(x, trials[name].params[x.key]) for name in first],
        "y": [plotted_value(y, trials[name].params[y.key]) for name in first],
        "text": [f"trial {name}, rank {rank[name]} of {len(names)}" for name in first],
        "customdata": first,
        "marker": {
            "color": [rank[name] for name in first],
            "colorscale": "Viridis",
            "reversescale": True,
            "size": 10,
            "line": {"color": "var(--soft)", "width": 1},
            "colorbar": {"thickness": 12, "title": {"text": "rank"}} | ({"dtick": 1} if len(names) <= WHOLE else {}),
        },
        "showlegend": False,
        "hovertemplate": Markup("%{text}<extra></extra>"),
    }
    rows = [
        [rank[name], trial_cell(name), trials[name].params[x.key], trials[name].params[y.key], score_cell(values[name])]
        for name in best[:LISTED]
    ]
    table = Table("ranks", ["rank", "trial", x.key, y.key, findings.ledger.metric], rows)
    layout = {"height": 400, "xaxis": axis_of(x), "yaxis": axis_of(y), "margin": {"t": 20, "l": 60, "r": 16, "b": 44}}
    caption = "Each point is a trial, coloured by its rank."
    return Plot("ranks", f"Ranks over {x.key} and {y.key}", caption, [points], layout, table)
