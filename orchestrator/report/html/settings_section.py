"""The section of a search's page on its settings: importances, coverage, effects, maps."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from markupsafe import Markup

from orchestrator.report.findings import Findings
from orchestrator.report.html.elements import Figure, Folded, Plot, Table, number_cell, score_cell
from orchestrator.report.html.figures import (
    BELOW,
    axis_of,
    dimension_of,
    drawn_trials,
    interpolate,
    marks_of,
    plotted_value,
    star_trace,
    traces_by_state,
    value_axis,
)
from orchestrator.report.html.plots import plots_of
from orchestrator.report.html.points_section import seeds_plot
from orchestrator.report.importance import Importances
from orchestrator.report.settings import Searched
from orchestrator.report.standing import without_repeats
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import capitalize_first, pluralize, value_text

LEADERS = 300
"""The maximum number of trials in a table, the best; so the page of a large search opens at once."""
SLICES = 8
MAP_VALUES = 15
"""Settings with at most this many values are shown value by value."""
CONTOURED = 30
"""Contours are drawn between so many points at least: between few, they show islands that are none."""
MAPPED = 5
"""Any two of this many settings, those of the largest importance, can be chosen for a map."""
MAPS = (("pool_size", "proxies_per_class"), ("proximal_weight", "proxies_per_class"))
"""Pairs that CCP's paper shows; drawn whenever both were searched."""


def settings_section(findings: Findings) -> dict[str, Any]:
    """Figures and tables of the settings; empty if there is nothing to compare."""
    trials = [trial for trial in without_repeats(findings.ledger) if trial.best is not None]
    varied = [setting for setting in findings.searched if setting.varies]
    if not varied or len(trials) < 2:
        return {}
    ranked = sorted(varied, key=lambda s: -findings.importances.shares.get(s.key, (0.0, 0.0))[0])
    by_key = {s.key: s for s in varied if s.numeric}
    pairs = [pair for pair in MAPS if set(pair) <= set(by_key)]
    top = list(combinations([s.key for s in ranked if s.numeric][:MAPPED], 2))
    pairs = [*top[:1], *pairs, *top[1:]]
    pairs = list({frozenset(pair): pair for pair in pairs[::-1]}.values())[::-1]
    numbered = list(enumerate(ranked[:SLICES]))
    maps = [_map(findings, trials, by_key[x], by_key[y], f"map-{n}") for n, (x, y) in enumerate(pairs)]
    if findings.points:
        effects = [seeds_plot(findings, setting, f"effect-{n}") for n, setting in numbered]
    else:
        effects = [_effect(findings, trials, s, f"effect-{n}") for n, s in numbered]
    slices = {s.key: _slice(findings, trials, s, f"slice-{n}") for n, s in numbered}
    first = [key for key in slices if key in findings.evidence.real_effects] or list(slices)[:2]
    others = [plot for key, plot in slices.items() if key not in first]
    return {
        "basis": f"{findings.comparable.basis}; the rest of the point varies too. Star: the winner.",
        "importances": _importances(findings),
        "coverage": _coverage(findings),
        "parallel": _parallel(findings, trials, varied),
        "slices": [slices[key] for key in first],
        "maps": [plot for plot in maps if plot is not None],
        "more": [*others, *(plot for plot in effects if plot is not None), *plots_of(findings, "settings")],
    }


def _importances(findings: Findings) -> list[Plot]:
    """A figure for the objective, and one for each other metric that was recorded."""
    if not findings.importances.shares:
        return []
    others = findings.other_importances
    plots = [_importance(findings, findings.importances, findings.ledger.metric if others else "", "importances")]
    return plots + [
        _importance(findings, importances, metric, f"importances-{place}")
        for place, (metric, importances) in enumerate(others.items(), start=1)
    ]


def _importance(findings: Findings, importances: Importances, metric: str, name: str) -> Plot:
    keys = list(importances.shares)[::-1]
    colours = ["var(--best)" if key in importances.real_effects else "var(--line)" for key in keys]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": keys,
        "x": [importances.shares[key][0] for key in keys],
        "error_x": _share_error(importances, keys),
        "marker": {"color": colours},
        "hovertemplate": Markup("%{y}: %{x:.2f}<extra></extra>"),
    }
    layout = {
        "height": 130 + 34 * len(keys),
        "xaxis": {"range": [0, _share_end(importances)]},
        "yaxis": {"type": "category"},
    }
    labels = {setting.key: setting.label for setting in findings.searched}
    ticks = [Markup("{}<br>{}").format(labels[key], key) if labels[key] else key for key in keys]
    layout["yaxis"] = {"type": "category", "tickvals": keys, "ticktext": ticks}
    layout["margin"] = {"t": 16, "r": 16, "b": 40}
    rows = [
        [key, *share, _p_cell(importances, key), _said_of(findings, importances, key)]
        for key, share in importances.shares.items()
    ]
    table = Table(name, ["setting", "share", "deviation", "p", "remark"], rows)
    caption = f"{capitalize_first(importances.basis)}. Grey: not to be told from chance."
    return Plot(
        name, "Importance of each setting" + (f" for {metric}" if metric else ""), caption, [bars], layout, table
    )


def _share_end(importances: Importances) -> float:
    """Where the axis of shares ends: beyond the longest error bar, at most at 1."""
    return min(1.0, 1.05 * max(share + deviation for share, deviation in importances.shares.values()) or 1.0)


def _share_error(importances: Importances, keys: Sequence[str]) -> Figure:
    """Deviations of shares, of which no bar leaves the range of a share, 0 to 1."""
    shares = [importances.shares[key] for key in keys]
    up, down = [min(d, 1 - share) for share, d in shares], [min(d, share) for share, d in shares]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "color": "var(--soft)"}


def _p_cell(importances: Importances, key: str) -> Any:
    effect = importances.evidence.by_key.get(key)
    return "" if effect is None else number_cell(f"{effect.corrected:.2g}", effect.corrected)


def _said_of(findings: Findings, importances: Importances, key: str) -> str:
    verdict = "it mattered" if key in importances.real_effects else "may be chance"
    if key in findings.idle:
        count, of, because = findings.idle[key]
        verdict += f"; no effect in {count} of {pluralize(of, 'trial')} (with {because})"
    return verdict


def _coverage(findings: Findings) -> Folded:
    rows = []
    for s in findings.searched:
        ends = f"{len(s.values)} values" if len(s.values) != 1 else "1 value"
        if s.numeric and s.values:
            ends += f", {value_text(s.values[0])} to {value_text(s.values[-1])}"
        edge = {"low": "at the lower edge", "high": "at the upper edge", None: ""}[s.edge]
        mark = "" if s.marked is None else f"{value_text(s.marked.value)} ({s.marked.source})"
        best = "" if s.best is None else value_text(s.best)
        count, of, because = findings.idle.get(s.key, (0, 0, ""))
        effect = f"none in {count} of {pluralize(of, 'trial')} ({because})" if count else ""
        rows.append([s.key, s.label, s.range_text, ends, best, edge, mark, *([effect] if findings.idle else [])])
    heads = ["setting", "what it is", "range", "tried", "best", "edge", "paper or default"]
    heads += ["effect"] if findings.idle else []
    return Folded("What was searched", Table("coverage", heads, rows))


def _parallel(findings: Findings, trials: Sequence[TrialRecord], varied: Sequence[Searched]) -> Plot | None:
    ledger = findings.ledger
    at_age = findings.comparable.values
    plotted = [trial for trial in trials if trial.trial_id in at_age and all(s.key in trial.params for s in varied)]
    if len(plotted) < 2:
        return None
    plotted = drawn_trials(ledger, plotted)
    dimensions: list[Figure] = [dimension_of(s, [trial.params[s.key] for trial in plotted]) for s in varied]
    values = [at_age[trial.trial_id] for trial in plotted]
    age = findings.comparable.age
    label = ledger.metric + ("" if age is None else f" at {age}")  # there is no room for more
    dimensions.append({"label": label, "values": values})
    scale = [[0, "var(--soft)"], [0.8, "var(--pruned)"], [1, "var(--best)"]]
    line = {"color": values, "colorscale": scale, "reversescale": ledger.mode == "min", "showscale": False}
    lines: Figure = {"type": "parcoords", "line": line, "dimensions": dimensions}
    lines |= {"customdata": [trial.trial_id for trial in plotted]}
    data = [lines]
    layout = {"height": 380, "margin": {"l": 70, "r": 50, "t": 60, "b": 30}}
    caption = f"A line per trial ({len(plotted)}), blue the best; drag along an axis to select."
    return Plot("parallel", "Parallel coordinates", caption, data, layout)


def _points_measured(findings: Findings) -> str:
    """The objective, and the age at which the trials are compared."""
    age = findings.comparable.age
    return findings.ledger.metric + ("" if age is None else f" after {pluralize(age, 'validation')}")


def _slice(findings: Findings, trials: Sequence[TrialRecord], setting: Searched, name: str) -> Plot:
    ledger = findings.ledger
    values = findings.comparable.values
    plotted = [trial for trial in trials if trial.trial_id in values and setting.key in trial.params]
    data = traces_by_state(
        drawn_trials(ledger, plotted),
        lambda t: plotted_value(setting, t.params[setting.key]),
        lambda t: values[t.trial_id],
    )
    winner = findings.winner
    if winner is not None and setting.key in winner.params and winner.trial_id in values:
        data.append(star_trace(plotted_value(setting, winner.params[setting.key]), values[winner.trial_id], "winner"))
    shapes, notes = marks_of(setting, findings)
    layout: Figure = {"xaxis": axis_of(setting), "height": 320}
    layout |= {"yaxis": value_axis(_points_measured(findings), [values[trial.trial_id] for trial in plotted])}
    layout |= {"shapes": shapes, "annotations": notes, "margin": {"t": 48, "l": 56, "r": 16, "b": 44}}
    layout["legend"] = BELOW
    return Plot(name, f"Over {setting.key}", "", data, layout)


def _effect(findings: Findings, trials: Sequence[TrialRecord], setting: Searched, name: str) -> Plot | None:
    """Mean and deviation at each value, if there are few values with several trials each."""
    values = findings.comparable.values
    groups: dict[str, tuple[Any, list[float]]] = {}
    for trial in (trial for trial in trials if trial.trial_id in values):
        if setting.key in trial.params:
            value = trial.params[setting.key]
            groups.setdefault(repr(value), (value, []))[1].append(values[trial.trial_id])
    by_value = {repr(value): groups[repr(value)] for value in setting.values if repr(value) in groups}
    several = sum(len(values_there) > 1 for _, values_there in by_value.values())
    if not 2 <= len(by_value) <= MAP_VALUES or several * 2 < len(by_value):
        return None
    cells = [
        (
            value,
            statistics.fmean(values_there),
            statistics.stdev(values_there) if len(values_there) > 1 else None,
            len(values_there),
        )
        for value, values_there in by_value.values()
    ]
    trace = {
        "type": "scatter",
        "mode": "lines+markers" if setting.numeric else "markers",
        "x": [plotted_value(setting, value) for value, *_ in cells],
        "y": [mean for _, mean, *_ in cells],
        "error_y": {"type": "data", "array": [spread or 0.0 for _, _, spread, _ in cells], "color": "var(--soft)"},
        "marker": {"color": "var(--best)", "size": 9},
        "line": {"color": "var(--best)"},
        "text": [pluralize(number, "trial") for *_, number in cells],
        "hovertemplate": Markup("%{y:.4f}, %{text}<extra></extra>"),
        "showlegend": False,
    }
    shapes, notes = marks_of(setting, findings)
    layout = {"xaxis": axis_of(setting), "yaxis": {"title": {"text": _points_measured(findings)}}, "height": 320}
    layout |= {"shapes": shapes, "annotations": notes, "margin": {"t": 48, "l": 56, "r": 16, "b": 44}}
    rows = [[value, score_cell(mean), score_cell(spread), number] for value, mean, spread, number in cells]
    table = Table(name, [setting.key, "mean", "deviation", "trials"], rows)
    caption = "Mean and standard deviation at each value."
    return Plot(name, f"Effect of {setting.key}", caption, [trace], layout, table)


def _map(findings: Findings, trials: Sequence[TrialRecord], x: Searched, y: Searched, name: str) -> Plot | None:
    """The objective over two settings: value by value where there are few, else interpolated between the trials."""
    ledger = findings.ledger
    values = findings.comparable.values
    plotted = [t for t in trials if t.trial_id in values and x.key in t.params and y.key in t.params]
    cells: dict[tuple[Any, Any], list[float]] = {}
    for trial in plotted:
        cells.setdefault((trial.params[x.key], trial.params[y.key]), []).append(values[trial.trial_id])
    xs, ys = sorted({at for at, _ in cells}), sorted({at for _, at in cells})
    data: list[Figure]
    z: list[Any]
    scale: Figure = {"colorscale": "Viridis", "reversescale": ledger.mode == "min", "colorbar": {"thickness": 12}}
    xaxis, yaxis = axis_of(x), axis_of(y)
    if len(xs) <= MAP_VALUES and len(ys) <= MAP_VALUES and 2 * len(cells) >= len(xs) * len(ys):
        means = {at: statistics.fmean(values_there) for at, values_there in cells.items()}
        z = [[means.get((a, b)) for a in xs] for b in ys]
        starred, numbered = (x.best, y.best), len(cells) <= 60
        text = [
            [f"{means[a, b]:.4f}{' ★' if (a, b) == starred else ''}" if (a, b) in means else "" for a in xs] for b in ys
        ]
        trace: Figure = {
            "type": "heatmap",
            "x": [value_text(a) for a in xs],
            "y": [value_text(b) for b in ys],
            "z": z,
        } | scale
        if numbered:
            trace |= {"text": text, "texttemplate": "%{text}"}
        data = [trace]
        xaxis |= {"type": "category"}
        yaxis |= {"type": "category"}
        caption = "Mean at each pair of values."
        draws_best = not numbered and x.best is not None and y.best is not None
        point = [value_text(place) for place in (x.best, y.best)] if draws_best else None
    else:
        drawn_ones = drawn_trials(ledger, plotted)
        between = dict.fromkeys((t.params[x.key], t.params[y.key]) for t in drawn_ones)
        means = {at: statistics.fmean(cells[at]) for at in between}
        grid = interpolate([*means], [*means.values()], log=(x.log, y.log)) if len(means) >= CONTOURED else None
        if len(means) >= CONTOURED and grid is None:
            return None
        if grid is None:
            data, caption = (
                [_colour(drawn_ones, x, y, values, scale)],
                f"Contours are drawn from {CONTOURED} points on.",
            )
        else:
            at_x, at_y, z = grid
            trace = {"type": "contour", "x": at_x, "y": at_y, "z": z, "contours": {"coloring": "heatmap"}} | scale
            data = [trace | {"line": {"width": 0.5}, "hovertemplate": Markup("%{z:.4f}<extra></extra>")}]
            data += traces_by_state(drawn_ones, lambda t: t.params[x.key], lambda t: t.params[y.key], legend=False)
            for points in data[1:]:
                points["marker"] |= {"size": 6, "line": {"color": "var(--paper)", "width": 1}}
                points["hovertemplate"] = Markup("%{text}<extra></extra>")
            some = len(drawn_ones) < len(plotted)
            caption = (
                f"Interpolated between {pluralize(len(drawn_ones), 'trial')} of {len(plotted)}."
                if some
                else "Interpolated."
            )
        point = [x.best, y.best] if x.best is not None and y.best is not None else None
    if point is not None:
        data.append(star_trace(point[0], point[1], "winner") | {"showlegend": False})
    if x.marked is not None and y.marked is not None and not isinstance(x.marked.value, str):
        best_point = [x.marked.value, y.marked.value]
        if data[0]["type"] == "heatmap":
            best_point = [value_text(value) for value in best_point]
            inside = best_point[0] in data[0]["x"] and best_point[1] in data[0]["y"]
        else:
            inside = all(isinstance(value, int | float) for value in best_point)
        if inside:
            marker = {"symbol": "x-open", "size": 12, "color": "var(--published)", "line": {"width": 3}}
            data.append(
                {"type": "scatter", "mode": "markers", "x": best_point[:1], "y": best_point[1:], "marker": marker}
            )
            data[-1] |= {"showlegend": False, "hovertemplate": Markup("{}<extra></extra>").format(x.marked.source)}
            caption += f" Cross: {x.marked.source}."
    layout = {"xaxis": xaxis, "yaxis": yaxis, "height": 400, "margin": {"t": 20, "l": 60, "r": 16, "b": 44}}
    rows = [
        [a, b, score_cell(statistics.fmean(values_there)), len(values_there)]
        for (a, b), values_there in sorted(cells.items())[:LEADERS]
    ]
    table = Table(name, [x.key, y.key, ledger.metric, "trials"], rows)
    return Plot(name, f"Over {x.key} and {y.key}", caption, data, layout, table, f"{x.key} and {y.key}")


def _colour(
    trials: Sequence[TrialRecord], x: Searched, y: Searched, values: Mapping[str, float], scale: Figure
) -> Figure:
    """A point for each trial, coloured by its value."""
    marker = {"color": [values[t.trial_id] for t in trials], "size": 10, "line": {"color": "var(--soft)", "width": 1}}
    marker |= {**scale, "showscale": True}
    trace: Figure = {"type": "scatter", "mode": "markers", "marker": marker, "showlegend": False}
    trace |= {"x": [t.params[x.key] for t in trials], "y": [t.params[y.key] for t in trials]}
    trace |= {"customdata": [t.trial_id for t in trials], "text": [f"trial {t.trial_id}" for t in trials]}
    return trace | {"hovertemplate": Markup("%{text}: %{marker.color:.4f}<extra></extra>")}
