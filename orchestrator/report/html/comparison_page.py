"""A comparison as one page."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from orchestrator.report.comparison import Comparison, Member
from orchestrator.report.html.elements import (
    Figure,
    details_html,
    difference_table,
    document,
    empty_html,
    figure_html,
    number_cell,
    score_cell,
    sections_html,
    state_cell,
    table_html,
)
from orchestrator.storage.atomic import write_whole
from orchestrator.text import duration, params_text

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a63d2", "#7f7f7f")
"""Okabe and Ito's colours, for colour-blind readers, on light and dark."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon")


def comparison_page(comparison: Comparison) -> str:
    """The HTML of the verdict over several searches."""
    figures: dict[str, Figure] = {}
    first, *rest = comparison.verdict
    verdict = "".join(f"<p>{escape(line)}</p>" for line in (first, *rest))
    notes = "".join(f"<li>{escape(line)}</li>" for line in comparison.notes)
    outlook = "".join(f"<li>{escape(line)}</li>" for line in comparison.outlook)
    sections = [
        ("methods", "Side by side", _table(comparison)),
        ("real", "Which differences are real", _differences(comparison, figures)),
        ("budget", "The budget", _budget(comparison, figures) + (f"<ul>{outlook}</ul>" if outlook else "")),
        ("cost", "Quality against cost", _cost(comparison, figures)),
        ("reproduce", "Reproduce", _reproduce(comparison)),
    ]
    head = (
        f'<a class="skip" href="#methods">Skip to the table</a><main><header><h1>{escape(comparison.name)}</h1>'
        f'<p class="sub">{escape(_subtitle(comparison))}</p>'
        f'<div class="verdict" role="note" aria-label="Verdict">{verdict}</div>'
        + (f'<ul class="warnings" aria-label="What differs">{notes}</ul>' if notes else "")
        + "</header>"
    )
    return document(comparison.name, f"{head}{sections_html(sections)}</main>", figures)


def write_comparison(comparison: Comparison, path: Path) -> None:
    """The page as a file, whole or not at all."""
    write_whole(path, comparison_page(comparison).encode())


def _subtitle(comparison: Comparison) -> str:
    settings = comparison.members[0].findings.settings
    parts = [f"{len(comparison.members)} searches"]
    parts += [str(settings[key]) for key in ("dataset", "backbone", "protocol") if key in settings]
    return " · ".join([*parts, f"test {comparison.metric} (higher is better)"])


def _table(comparison: Comparison) -> str:
    rows = []
    for rank, member in enumerate(comparison.members, start=1):
        winner, spread = member.winner, member.interval
        rows.append(
            [
                rank if member.tests else None,
                member.label,
                state_cell(member.ledger.state),
                score_cell(member.mean),
                score_cell(None if spread is None else spread.standard_deviation),
                len(member.tests),
                score_cell(None if winner is None else winner.best),
                len(member.ledger.trials),
                member.ledger.epochs,
                number_cell(duration(3600 * member.hours), member.hours),
                number_cell(duration(member.training_seconds), member.training_seconds),
                "" if winner is None else params_text(winner.params),
            ]
        )
    heads = ["#", "search", "state", f"test {comparison.metric}", "deviation", "seeds", "held-out best", "trials"]
    heads += ["epochs", "time of trials", "one training", "its best point"]
    best = 0 if comparison.members and comparison.members[0].tests else None
    return table_html("methods", heads, rows, best=best, wrap=[len(heads) - 1])


def _differences(comparison: Comparison, figures: dict[str, Figure]) -> str:
    tested = [member for member in comparison.members if member.tests]
    if not tested:
        return empty_html("No search has a test yet.")
    data: list[Figure] = []
    for place, member in enumerate(tested[::-1]):
        spread, colour = member.interval, _colour(comparison, member)
        seeds = list(member.tests.values())
        name = escape(member.label)
        marks = {"color": colour, "size": 7, "opacity": 0.5}
        points: Figure = {"type": "scatter", "mode": "markers", "x": seeds, "y": [place] * len(seeds), "marker": marks}
        points |= {"text": [f"seed {seed}" for seed in member.tests], "hovertemplate": f"{name}, %{{text}}: %{{x:.4f}}"}
        data.append(points | {"showlegend": False})
        mean: Figure = {"type": "scatter", "mode": "markers", "x": [member.mean], "y": [place], "showlegend": False}
        mean |= {"marker": {"color": colour, "size": 12, "symbol": "line-ns", "line": {"width": 3, "color": colour}}}
        if spread is not None:
            ends = {"type": "data", "symmetric": False, "array": [spread.high - spread.mean]}
            mean["error_x"] = ends | {"arrayminus": [spread.mean - spread.low], "color": colour, "thickness": 2}
        data.append(mean | {"hovertemplate": f"{name}: %{{x:.4f}}<extra></extra>"})
    ticks = {"tickvals": list(range(len(tested))), "ticktext": [escape(member.label) for member in tested[::-1]]}
    layout = {
        "height": 120 + 46 * len(tested),
        "xaxis": {"title": {"text": f"test {escape(comparison.metric)}"}},
        "yaxis": ticks | {"range": [-0.6, len(tested) - 0.4], "automargin": True},
        "margin": {"l": 150, "r": 16, "t": 16, "b": 48},
    }
    said = "A point for each seed, the mean, and the 95% interval of the mean (Student's t)."
    rows = [[m.label, seed, score_cell(value)] for m in tested for seed, value in sorted(m.tests.items())]
    table = details_html("tests", ["search", "seed", f"test {comparison.metric}"], rows)
    figure = figure_html(figures, "tests", "Tests over seeds", said, {"data": data, "layout": layout}, table)
    if not comparison.differences:
        return figure + empty_html("Nothing to test: no two searches have a seed in common.")
    return figure + difference_table("differences", comparison.differences, "search")


def _budget(comparison: Comparison, figures: dict[str, Figure]) -> str:
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
                "name": escape(member.label),
                "line": {"shape": "hv", "width": 2, "color": _colour(comparison, member), "dash": dash},
                "x": [spent for spent, _ in steps],
                "y": [best for _, best in steps],
                "hovertemplate": f"{escape(member.label)}: %{{y:.4f}} after %{{x:g}} epochs<extra></extra>",
            }
        )
        rows += [[member.label, spent, score_cell(best)] for spent, best in _changes(steps)]
    if not data:
        return empty_html("No trial has a value yet.")
    metric = comparison.members[0].ledger.metric
    layout = {
        "height": 400,
        "xaxis": {"title": {"text": "epochs spent"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": escape(metric)}},
    }
    said = "The best of each search on held-out classes, as its trials ended: whether more budget would have helped."
    table = details_html("course", ["search", "epochs spent", metric], rows)
    title = "Best so far against training spent"
    return figure_html(figures, "course", title, said, {"data": data, "layout": layout}, table)


def _changes(steps: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [step for n, step in enumerate(steps) if n == 0 or step[1] != steps[n - 1][1]]


def _cost(comparison: Comparison, figures: dict[str, Figure]) -> str:
    tested = [member for member in comparison.members if member.mean is not None]
    if not tested:
        return empty_html("No search has a test yet.")
    data = []
    for member in tested:
        deviation = 0.0 if member.interval is None else member.interval.standard_deviation
        symbol = SYMBOLS[comparison.members.index(member) % len(SYMBOLS)]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(member.label),
                "x": [member.training_seconds],
                "y": [member.mean],
                "error_y": {"type": "data", "array": [deviation], "color": "var(--soft)"},
                "marker": {"size": 12, "color": _colour(comparison, member), "symbol": symbol},
                "hovertemplate": f"{escape(member.label)}: %{{y:.4f}}, %{{x:.1f}} s<extra></extra>",
            }
        )
    layout = {
        "height": 380,
        "xaxis": {"title": {"text": "seconds of one training"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": f"test {escape(comparison.metric)}"}},
    }
    said = "Each search's best point: its test, with the deviation over seeds, and what training it once takes."
    return figure_html(figures, "quality", "Quality against cost", said, {"data": data, "layout": layout})


def _reproduce(comparison: Comparison) -> str:
    parts = [
        f"<h3>{escape(member.label)}</h3><pre><code>{escape(member.findings.command)}</code></pre>"
        for member in comparison.members
        if member.findings.command
    ]
    return "".join(parts) or empty_html("No search has a result yet.")


def _colour(comparison: Comparison, member: Member) -> str:
    return COLOURS[comparison.members.index(member) % len(COLOURS)]
