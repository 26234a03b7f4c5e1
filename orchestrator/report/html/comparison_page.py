"""A comparison as one page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from orchestrator.report.comparison import Comparison
from orchestrator.report.deciding import deciding_steps
from orchestrator.report.html.connected import searches_data
from orchestrator.report.html.elements import (
    Cell,
    Figure,
    Plot,
    Table,
    difference_table,
    number_cell,
    score_cell,
    state_cell,
    trial_cell,
)
from orchestrator.report.html.rendering import Live, render
from orchestrator.report.member import Member
from orchestrator.report.power import SEEDS_TO_FORECAST
from orchestrator.report.significance import Difference, over_what
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.leaderboard import chosen_value
from orchestrator.text import params_text, span

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a63d2", "#7f7f7f")
"""Okabe and Ito's colours, for colour-blind readers, on light and dark."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon")
MAX_PAIRS = 15
"""The maximum number of differences in the figure, those from the best search first."""


def comparison_page(comparison: Comparison, pages: Mapping[str, str] | None = None, live: Live | None = None) -> str:
    """The HTML of the verdict over several searches; `pages` are the addresses of their own pages, by label."""
    pages = pages or {}
    values = {
        "comparison": comparison,
        "subtitle": _subtitle(comparison),
        "linked": bool(pages),
        "effects": _effects(comparison),
        "methods": _table(comparison, pages),
        "tests": _tests_by_seed(comparison),
        "differences": difference_table("differences", comparison.differences, _comparison_table(comparison)),
        "steps": deciding_steps(comparison),
        "course": _course(comparison),
        "spent": _cost_table(comparison),
        "quality": _quality(comparison),
    }
    data = {"records": searches_data(comparison, pages)}
    return render("comparison.html", values, more="connected", data=data, live=live)


def write_comparison(comparison: Comparison, path: Path, pages: Mapping[str, str] | None = None) -> None:
    """The page as a file, whole or not at all."""
    write_whole(path, comparison_page(comparison, pages).encode())


def _comparison_table(comparison: Comparison) -> str:
    return "method" if comparison.methods else "search"


def _subtitle(comparison: Comparison) -> str:
    settings = comparison.members[0].findings.settings
    parts = [f"{len(comparison.members)} searches"]
    parts += [str(settings[key]) for key in ("dataset", "backbone", "protocol") if key in settings]
    return " · ".join([*parts, f"test {comparison.metric} (higher is better)"])


def _table(comparison: Comparison, pages: Mapping[str, str]) -> Table:
    rows: list[list[Any]] = []
    for rank, member in enumerate(comparison.members, start=1):
        winner, spread = member.winner, member.interval
        ends = "" if spread is None else number_cell(f"{spread.low:.4f} to {spread.high:.4f}", spread.low)
        rows.append(
            [
                rank if member.tests else None,
                trial_cell(member.label),
                state_cell(member.ledger.state),
                None if member.mean is None else number_cell(member.text, member.mean),
                ends,
                len(member.tests),
                score_cell(None if winner is None else chosen_value(member.ledger, winner)),
                "" if winner is None else params_text(winner.params),
                Cell("open", member.label, link=pages[member.label]) if member.label in pages else "",
            ]
        )
    heads = ["#", "search", "state", f"test {comparison.metric}", "95% of the mean", "seeds"]
    heads += ["held-out", "its best point", "page"]
    best = 0 if comparison.members and comparison.members[0].tests else None
    return Table("methods", heads, rows, best=best, wrap=[len(heads) - 2], leads=[len(heads) - 1])


def _cost_table(comparison: Comparison) -> Table:
    rows: list[list[Any]] = [
        [
            trial_cell(member.label),
            len(member.ledger.trials),
            member.ledger.epochs,
            number_cell(span(3600 * member.hours), member.hours),
            number_cell(span(member.training_seconds), member.training_seconds),
        ]
        for member in comparison.members
    ]
    return Table("budgets", ["search", "trials", "epochs", "time of trials", "one training"], rows)


def _effects(comparison: Comparison) -> Plot | None:
    """How large the differences are, with their intervals: what is looked at before any test."""
    if not comparison.differences:
        return None
    tested = [member for member in comparison.members if member.tests]
    best = (comparison.methods or tested)[0].label
    ordered = sorted(comparison.differences, key=lambda d: d.one != best)
    pairs = ordered[:MAX_PAIRS]
    data: list[Figure] = []
    for place, d in enumerate(pairs[::-1]):
        ends = [] if d.ends is None else list(d.ends)
        point: Figure = {"type": "scatter", "mode": "markers", "x": [d.mean], "y": [place], "showlegend": False}
        colour = "var(--ink)" if d.real else "var(--soft)"
        point["marker"] = {"color": colour, "size": 10, "symbol": "circle" if d.real else "circle-open"}
        if ends:
            bar: Figure = {"type": "data", "symmetric": False, "array": [ends[1] - d.mean]}
            point["error_x"] = bar | {"arrayminus": [d.mean - ends[0]], "color": colour, "thickness": 2}
        hover = Markup("{} less {}, over {}: %{{x:+.4f}}").format(d.one, d.other, d.over)
        between = "" if d.ends is None else f" (95%: {d.ends[0]:+.4f} to {d.ends[1]:+.4f})"
        hover += between + Markup("<extra></extra>")
        data.append(point | {"meta": [d.one, d.other], "hovertemplate": hover})
    line = {"type": "line", "xref": "x", "yref": "paper", "x0": 0, "x1": 0, "y0": 0, "y1": 1}
    layout = {
        "height": 120 + 40 * len(pairs),
        "xaxis": {"title": {"text": f"difference in test {comparison.metric}"}, "rangemode": "tozero"},
        "yaxis": {
            "tickvals": list(range(len(pairs))),
            "ticktext": [f"{d.one} less {d.other}" for d in pairs[::-1]],
            "range": [-0.6, len(pairs) - 0.4],
            "automargin": True,
        },
        "shapes": [line | {"line": {"color": "var(--soft)", "dash": "dash", "width": 1}}],
        "margin": {"l": 150, "r": 16, "t": 16, "b": 48},
    }
    tests = [d for d in comparison.differences if d.is_tested]
    over = over_what(tests) if tests else "the seeds that both have"
    caption = f"The mean difference, and its 95% interval over {over} (Student's t, uncorrected)."
    caption += " Filled: the test below says that it is real."
    if len(pairs) < len(ordered):
        caption += f" {len(pairs)} of {len(ordered)} pairs are drawn; the table has all."
    rows = [_effect_row(d) for d in ordered]
    if any(row[-1] is not None for row in rows):
        over = "searches" if comparison.methods else "seeds"
        caption += f" In deviations: the mean difference divided by the standard deviation of the {over}' differences."
    heads = [_comparison_table(comparison), "against", "searches" if comparison.methods else "seeds"]
    heads += ["difference", "low", "high", "in deviations"]
    return Plot("effects", "Differences", caption, data, layout, Table("effects", heads, rows))


def _effect_row(d: Difference) -> list[Any]:
    """A difference, and as a multiple of the standard deviation of the pairs' differences where that can be known."""
    ends = (None, None) if d.ends is None else d.ends
    spread = 0.0 if d.interval is None else d.interval.standard_deviation
    can_forecast = spread > 0 and d.seeds >= SEEDS_TO_FORECAST
    relative = number_cell(f"{d.mean / spread:.2f}", d.mean / spread) if can_forecast else None
    return [d.one, d.other, d.seeds, *map(score_cell, (d.mean, *ends)), relative]


def _tests_by_seed(comparison: Comparison) -> Plot | None:
    tested = [member for member in comparison.members if member.tests]
    if not tested:
        return None
    data: list[Figure] = []
    for place, member in enumerate(tested[::-1]):
        spread, colour = member.interval, _colour(comparison, member)
        seeds = list(member.tests.values())
        marks = {"color": colour, "size": 7, "opacity": 0.5}
        points: Figure = {"type": "scatter", "mode": "markers", "x": seeds, "y": [place] * len(seeds), "marker": marks}
        points |= {
            "text": [f"seed {seed}" for seed in member.tests],
            "hovertemplate": Markup("{}, %{{text}}: %{{x:.4f}}").format(member.label),
        }
        data.append(points | {"showlegend": False, "meta": member.label})
        mean: Figure = {"type": "scatter", "mode": "markers", "x": [member.mean], "y": [place], "showlegend": False}
        mean |= {"marker": {"color": colour, "size": 12, "symbol": "line-ns", "line": {"width": 3, "color": colour}}}
        if spread is not None:
            ends = {"type": "data", "symmetric": False, "array": [spread.high - spread.mean]}
            mean["error_x"] = ends | {"arrayminus": [spread.mean - spread.low], "color": colour, "thickness": 2}
        mean |= {"hovertemplate": Markup("{}: %{{x:.4f}}<extra></extra>").format(member.label)}
        data.append(mean | {"meta": member.label})
    ticks = {"tickvals": list(range(len(tested))), "ticktext": [member.label for member in tested[::-1]]}
    layout = {
        "height": 120 + 46 * len(tested),
        "xaxis": {"title": {"text": f"test {comparison.metric}"}},
        "yaxis": ticks | {"range": [-0.6, len(tested) - 0.4], "automargin": True},
        "margin": {"l": 150, "r": 16, "t": 16, "b": 48},
    }
    caption = "A point for each seed, the mean, and the 95% interval of the mean (Student's t)."
    rows = [[m.label, seed, score_cell(value)] for m in tested for seed, value in sorted(m.tests.items())]
    table = Table("tests", ["search", "seed", f"test {comparison.metric}"], rows)
    return Plot("tests", "Tests of the winners over seeds", caption, data, layout, table)


def _course(comparison: Comparison) -> Plot | None:
    data, rows = [], []
    for place, member in enumerate(comparison.members):
        steps = member.progress()
        if not steps:
            continue
        dash = ("solid", "dash", "dot", "dashdot")[place // len(COLOURS) % 4]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": member.label,
                "line": {"shape": "hv", "width": 2, "color": _colour(comparison, member), "dash": dash},
                "x": [spent for spent, _ in steps],
                "y": [best for _, best in steps],
                "hovertemplate": Markup("{}: %{{y:.4f}} after %{{x}} epochs<extra></extra>").format(member.label),
                "meta": member.label,
            }
        )
        rows += [[member.label, spent, score_cell(best)] for spent, best in _changes(steps)]
    if not data:
        return None
    metric = comparison.members[0].ledger.metric
    layout = {
        "height": 400,
        "xaxis": {"title": {"text": "epochs spent"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": metric}},
    }
    caption = "The best of each search on held-out classes, as its trials ended: whether more budget would have helped."
    table = Table("course", ["search", "epochs spent", metric], rows)
    return Plot("course", "Best so far against training spent", caption, data, layout, table)


def _changes(steps: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [step for n, step in enumerate(steps) if n == 0 or step[1] != steps[n - 1][1]]


def _quality(comparison: Comparison) -> Plot | None:
    tested = [member for member in comparison.members if member.mean is not None]
    if not tested:
        return None
    data = []
    for member in tested:
        deviation = 0.0 if member.interval is None else member.interval.standard_deviation
        symbol = SYMBOLS[comparison.members.index(member) % len(SYMBOLS)]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": member.label,
                "x": [member.training_seconds],
                "y": [member.mean],
                "error_y": {"type": "data", "array": [deviation], "color": "var(--soft)"},
                "marker": {"size": 12, "color": _colour(comparison, member), "symbol": symbol},
                "hovertemplate": Markup("{}: %{{y:.4f}}, %{{x:.1f}} s<extra></extra>").format(member.label),
                "meta": member.label,
            }
        )
    layout = {
        "height": 380,
        "xaxis": {"title": {"text": "seconds of one training"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": f"test {comparison.metric}"}},
    }
    caption = "Each search's best point: its test, with the deviation over seeds, and what training it once takes."
    return Plot("quality", "Quality against cost", caption, data, layout)


def _colour(comparison: Comparison, member: Member) -> str:
    return COLOURS[comparison.members.index(member) % len(COLOURS)]
