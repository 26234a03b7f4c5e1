"""The figures of the record's page."""

import math
from typing import Any

from markupsafe import Markup

from orchestrator.report.html.comparison_page import COLOURS
from orchestrator.report.html.elements import Cell, Figure, Plot, Table, score_cell
from orchestrator.results.plan import Plan
from orchestrator.results.row import Row
from orchestrator.results.standings import Standings, TaskStandings, what_it_is_over
from orchestrator.text import params_text, pluralize

GROUPS_WIDTH, GROUP_STEP = 0.16, 0.018
"""The share of a figure's width in which the bars of groups stand: at least, and for each of them."""
DASHED = {"color": "var(--ink)", "width": 1, "dash": "dash"}
LABELLED = 16
"""Up to so many points of a figure have their names beside them."""


def differences(task: TaskStandings, plan: Plan) -> Plot:
    """A critical-difference picture: the methods by score, and bars over those that are not told apart."""
    rows, groups = list(task.rows), task.groups
    place = {row.facts.method: len(rows) - 1 - at for at, row in enumerate(rows)}
    data: list[Figure] = []
    cells: list[list[Any]] = []
    seeds = [(value, place[row.facts.method]) for row in rows for value in row.facts.test[task.metric]]
    dots: Figure = {"type": "scatter", "mode": "markers", "hoverinfo": "skip", "showlegend": False}
    dots |= {"x": [value for value, _ in seeds], "y": [at for _, at in seeds]}
    data.append(dots | {"marker": {"color": "var(--soft)", "size": 4, "opacity": 0.5}})
    for row in rows:
        method, score, interval = row.facts.method, row.mean(task.metric), task.interval(row)
        contrast, reference = task.contrast(method, plan.reference), method == plan.reference
        colour = "var(--ink)" if reference else _colour_of("" if contrast is None else contrast.verdict)
        real = contrast is not None and contrast.real
        point: Figure = {"type": "scatter", "mode": "markers", "x": [score], "y": [place[method]], "showlegend": False}
        symbol = "diamond" if reference else "circle" if real else "circle-open"
        point["marker"] = {"color": colour, "size": 10, "symbol": symbol}
        if interval is not None:
            bar: Figure = {"type": "data", "symmetric": False, "array": [interval.high - score]}
            point["error_x"] = bar | {"arrayminus": [score - interval.low], "color": colour, "thickness": 1.5}
        hover = Markup("{}: %{{x:.4f}}{}<extra></extra>").format(
            method, "" if interval is None else f", {interval.text}"
        )
        data.append(point | {"meta": row.label, "hovertemplate": hover})
        among = [str(number) for number, group in enumerate(groups, start=1) if method in group]
        cells.append([method, score_cell(score), *_ends_cells(interval), ", ".join(among)])
    width = min(0.4, max(GROUPS_WIDTH, GROUP_STEP * len(groups)))
    step = width / max(4, len(groups))
    bars = [1 - width + step * (number + 0.7) for number in range(len(groups))]
    shapes = [
        {
            "type": "line",
            "xref": "paper",
            "yref": "y",
            "x0": bars[number],
            "x1": bars[number],
            "y0": place[group[0]] + 0.25,
            "y1": place[group[-1]] - 0.25,
            "line": {"color": "var(--ink)", "width": 4 if len(groups) < 8 else 2},
        }
        for number, group in enumerate(groups)
    ]
    if task.network is not None:
        line: Figure = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "line": DASHED}
        shapes.append(line | {"x0": task.network.score, "x1": task.network.score})
    numbers = [
        {
            "xref": "paper",
            "yref": "y",
            "x": bars[number],
            "y": place[group[0]] + 0.55,
            "text": str(number + 1),
            "showarrow": False,
            "font": {"size": 10},
        }
        for number, group in enumerate(groups)
    ]
    layout = {
        "height": 110 + 26 * len(rows),
        "xaxis": {"title": {"text": f"test {task.metric}"}, "domain": [0, 1 - width]},
        "yaxis": {
            "tickvals": list(place.values()),
            "ticktext": list(place),
            "range": [-0.6, len(rows) - 0.4],
            "automargin": True,
        },
        "shapes": shapes,
        "annotations": numbers,
        "meta": {"beside": "groups"},  # left out on a telephone (page.js)
        "margin": {"l": 110, "r": 16, "t": 16, "b": 48},
    }
    caption = (
        f"The score with its 95% interval over {what_it_is_over(task)}; small dots: the seeds. A numbered bar on the "
        "right (in a wide window) joins neighbours of which no two are told apart; methods that share no bar may be so "
        f"too: the table above says which are told apart from {plan.reference} and from the best. Diamond: "
        f"{plan.reference}; filled: told apart from it; open: not. Two intervals may overlap where the paired "
        f"difference is real.{_dashed(task)}"
    )
    heads = ["method", f"test {task.metric}", "low", "high", "groups"]
    return Plot(
        f"differences-{task.name}",
        f"Which differences are real on {task.name}",
        caption,
        data,
        layout,
        Table(f"groups-{task.name}", heads, cells),
    )


def over_tasks(standings: Standings, protocol: str) -> Plot:
    """A critical-difference picture over the tasks of a protocol: each method's mean difference from the reference with
    its interval, and the differences that it is of."""
    ones = sorted((one for one in standings.over_outputs if one.protocol == protocol), key=lambda one: one.difference)
    tasks = list(dict.fromkeys(name for one in ones for name in one.by_task))
    reach = 1.15 * max(abs(value) for one in ones for value in (*one.by_task.values(), one.difference))
    wide = {one.method for one in ones if one.low < -reach and one.high > reach}  # a line over all says nothing
    data: list[Figure] = []
    for place, one in enumerate(ones):
        colour = _colour_of(one.verdict)
        ends = {"array": [min(one.high, reach) - one.difference], "arrayminus": [one.difference - max(one.low, -reach)]}
        bar: Figure = {"type": "data", "symmetric": False, "color": colour, "thickness": 1, **ends}
        bar["width"] = 0  # no cap, as an interval may reach out of the picture
        symbol = "diamond-open" if one.verdict == "not told apart" else "diamond"
        point: Figure = {"type": "scatter", "mode": "markers", "x": [one.difference], "y": [place]}
        point |= {} if one.method in wide else {"error_x": bar}
        point |= {"marker": {"color": colour, "size": 9, "symbol": symbol}, "showlegend": False}
        ends_text = f"{one.low:+.4f} to {one.high:+.4f}"
        hover = Markup("{}: mean %{{x:+.4f}}, {}<extra></extra>").format(one.method, ends_text)
        data.append(point | {"hovertemplate": hover})
    for number, task in enumerate(tasks):
        of_task = [(place, one) for place, one in enumerate(ones) if task in one.by_task]
        marks: Figure = {"type": "scatter", "mode": "markers", "name": task}
        marks |= {"x": [one.by_task[task] for _, one in of_task], "y": [place for place, _ in of_task]}
        marks |= {"marker": {"color": COLOURS[number % len(COLOURS)], "size": 7}}
        hover = Markup("%{{text}} on {}: %{{x:+.4f}}<extra></extra>").format(task)
        data.append(marks | {"text": [one.method for _, one in of_task], "hovertemplate": hover})
    title = f"test {standings.plan.metric} less {standings.plan.reference}'s"
    layout = {
        "height": 130 + 22 * len(ones),
        "xaxis": {"title": {"text": title}, "range": [-reach, reach], "zeroline": True, "zerolinecolor": "var(--soft)"},
        "yaxis": {
            "tickvals": list(range(len(ones))),
            "ticktext": [one.method for one in ones],
            "range": [-0.6, len(ones) - 0.4],
            "automargin": True,
        },
        "margin": {"l": 110, "r": 16, "t": 40, "b": 48},
    }
    counts = sorted({len(one.by_task) for one in ones})
    some = f"the {counts[0]} to {counts[-1]} tasks that it has rows of"
    how_many = pluralize(counts[0], "task") if len(counts) == 1 else some
    caption = (
        f"Diamond: a method's mean difference over {how_many}, with its interval; filled: told apart from 0. Dots: the "
        "differences that it is of."
    )
    if wide:
        whose = f"of all {len(ones)} methods" if len(wide) == len(ones) else f"of {len(wide)} of {len(ones)} methods"
        caption += f" The intervals {whose} are wider than the picture, and not drawn."
    return Plot(f"over-{protocol}", f"Over tasks, {protocol} protocol", caption, data, layout)


def _dashed(task: TaskStandings) -> str:
    return "" if task.network is None else f" Dashed: {task.network.scores.label}, without training."


def _ends_cells(interval: Any) -> list[Cell | None]:
    return [None, None] if interval is None else [score_cell(interval.low), score_cell(interval.high)]


def _colour_of(word: str) -> str:
    return {"better": "var(--done)", "worse": "var(--failed)"}.get(word, "var(--soft)")


def costs(task: TaskStandings) -> Plot:
    """What a training of each method's winner takes, and its score."""
    data: list[Figure] = []
    cells: list[list[Any]] = []
    labelled = len(task.rows) <= LABELLED
    front: list[str] = []
    cheapest = math.inf
    for at, row in enumerate(task.rows):  # the best first
        cost, score = row.facts.cost, row.mean(task.metric)
        on_cpu = cost.training_core_seconds if not cost.gpu_hours else None  # beside a GPU the processor's say little
        seconds = cost.training_seconds if on_cpu is None else on_cpu
        if seconds < cheapest:
            front.insert(0, f"{row.facts.method} ({seconds:.1f} s)")
            cheapest = seconds
        mode = "markers+text" if labelled else "markers"
        point: Figure = {"type": "scatter", "mode": mode, "x": [seconds], "y": [score], "showlegend": False}
        point |= {"text": [row.facts.method], "textposition": "middle right", "cliponaxis": False}
        point |= {"marker": {"size": 10, "color": COLOURS[at % len(COLOURS)]}, "meta": row.label}
        hover = Markup("{}: %{{y:.4f}}, %{{x:.1f}} s<extra></extra>").format(row.facts.method)
        data.append(point | {"hovertemplate": hover})
        cells.append([row.facts.method, seconds, score_cell(score)])
    layout = {
        "height": 360,
        "xaxis": {"title": {"text": "core-seconds of one training"}, "type": "log"},
        "yaxis": {"title": {"text": f"test {task.metric}"}},
        "margin": {"r": 110 if labelled else 16},
    }
    if task.network is not None:
        line: Figure = {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "line": DASHED}
        layout["shapes"] = [line | {"y0": task.network.score, "y1": task.network.score}]
    caption = "Each method's winner: its score, and what training it once takes of one core (of the clock, on a GPU)."
    caption += f"{_dashed(task)} No cheaper one scores higher than: {', '.join(front)}."
    heads = ["method", "core-seconds", f"test {task.metric}"]
    table = Table(f"costs-table-{task.name}", heads, cells)
    return Plot(f"costs-{task.name}", task.name, caption, data, layout, table)


def curves(row: Row) -> Plot:
    """The trials of a row's search, its winner in front."""
    facts, data = row.facts, []
    cells: list[list[Any]] = []
    trials = sorted(facts.trials, key=lambda trial: trial == facts.winner)
    for trial in trials:
        curve, wins = row.curves.get(trial), trial == facts.winner
        if curve is None:
            continue
        line = {"color": "var(--best)" if wins else "var(--line)", "width": 3 if wins else 1.5}
        one: Figure = {"type": "scatter", "mode": "lines+markers", "x": curve.epochs, "y": curve.values, "line": line}
        settings = params_text(facts.trials[trial].params)
        hover = Markup("trial {}: %{{y:.4f}} after %{{x:g}} epochs<br>{}<extra></extra>").format(trial, settings)
        data.append(one | {"marker": {"size": 4}, "showlegend": False, "hovertemplate": hover})
    for trial, about in sorted(facts.trials.items(), key=lambda item: -(item[1].best or 0.0)):
        cells.append([trial, about.state, score_cell(about.best), params_text(about.params)])
    layout = {"height": 320, "xaxis": {"title": {"text": "epochs"}}, "yaxis": {"title": {"text": facts.objective}}}
    caption = f"{pluralize(len(facts.trials), 'trial')} on held-out classes; trial {facts.winner} won, thick."
    table = Table(f"trials-{facts.name}", ["trial", "state", facts.objective, "settings"], cells, wrap=[3])
    return Plot(f"curves-{facts.name}", "The search", caption, data, layout, table)
