"""How the results are distributed."""

from markupsafe import Markup

from orchestrator.report.findings import Findings
from orchestrator.report.html.elements import Figure, Plot, Table, score_cell


def distribution(findings: Findings) -> Plot | None:
    """The empirical distribution function of the results: the share of trials that are at most this good,
    F(v) = #{values <= v} / n; of values that are comparable, after equal training."""
    values = sorted(findings.comparable.values.values())
    if len(values) < 3:
        return None
    count = len(values)
    steps: Figure = {
        "type": "scatter",
        "mode": "lines",
        "x": [values[0], *values],
        "y": [place / count for place in range(count + 1)],
        "line": {"shape": "hv", "color": "var(--best)", "width": 2},
        "showlegend": False,
        "hovertemplate": Markup("%{y:.0%} of the trials: at most %{x:.4f}<extra></extra>"),
    }
    quantiles = [(share, values[min(count - 1, int(share * count))]) for share in (0.1, 0.25, 0.5, 0.75, 0.9)]
    table = Table("distribution", ["share of trials", "at most"], [[share, score_cell(v)] for share, v in quantiles])
    layout = {
        "xaxis": {"title": {"text": findings.ledger.metric}},
        "yaxis": {"title": {"text": "share of trials"}, "range": [0, 1.02]},
    }
    caption = f"The share of trials whose result is at most the value below; {findings.comparable.basis}."
    return Plot("distribution", "Distribution of the results", caption, [steps], layout, table)
