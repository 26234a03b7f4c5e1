"""The figures of a search's page that stand for themselves: each a file, and a line of the table."""

from collections.abc import Callable

from orchestrator.report.findings import Findings
from orchestrator.report.html.elements import Plot
from orchestrator.report.html.plots.distribution import distribution
from orchestrator.report.html.plots.ranks import rank_map
from orchestrator.report.html.plots.thresholds import thresholds
from orchestrator.report.html.plots.timeline import timeline

PLOTS: dict[str, tuple[str, Callable[[Findings], Plot | None]]] = {
    "distribution": ("progress", distribution),
    "timeline": ("progress", timeline),
    "ranks": ("settings", rank_map),
    "thresholds": ("curves", thresholds),
}
"""The section that a figure belongs to, and what draws it: None where there is nothing to draw."""


def plots_of(findings: Findings, section: str) -> list[Plot]:
    """The figures of a section."""
    figures = [draw(findings) for place, draw in PLOTS.values() if place == section]
    return [plot for plot in figures if plot is not None]
