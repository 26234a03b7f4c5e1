"""A search as one page, of the parts in `elements.py`.

Whatever comes from a search (names, values, reasons) is escaped: in HTML, and in figures, whose texts plotly reads as a
little HTML too.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.checkpoint import IMAGES, write_whole
from orchestrator.effect import idle, training_images
from orchestrator.elements import (
    Figure,
    Html,
    answers_html,
    details_html,
    difference_table,
    document,
    empty_html,
    figure_html,
    idle_cell,
    number_cell,
    score_cell,
    sections_html,
    state_cell,
    table_html,
)
from orchestrator.errors import InputError
from orchestrator.findings import Findings
from orchestrator.ledger import (
    Ledger,
    TrialRecord,
    counted,
    duration,
    params_text,
    repeated_tests,
    value_columns,
    value_text,
)
from orchestrator.numbers_page import learned_cell, seeds_table, state_html, tests_html
from orchestrator.searched import Searched
from orchestrator.spec import Search

SYMBOLS = {"done": "circle", "pruned": "triangle-down", "failed": "x", "running": "diamond", "interrupted": "square"}
LEADERS = 300
"""So many trials stand in a table, the best; a large search keeps a page that opens at once."""
DRAWN = 1500
"""So many trials are drawn in a figure."""
WORDY = 300
"""With more trials than this, hovering over a point shows its numbers only."""
CURVES = 60
"""So many learning curves are drawn, the best."""
SLICES = 8
MAP_VALUES = 15
"""Settings with at most so many values are shown value by value."""
GRID = 60
"""Sides of an interpolated map."""
MAPS = (("pool_size", "proxies_per_class"), ("proximal_weight", "proxies_per_class"))
"""Pairs that CCP's paper shows; drawn whenever both were searched."""
BESIDE_SAME, BESIDE_OTHERS = 8, 12
PAPER_COLUMNS = ("recall_at_1", "map_at_r", "r_precision", "normalized_mutual_information", "recall_at_2")


def page(findings: Findings, images: str = "") -> str:
    """The HTML of a search's report; `images` is the address of its model's page, if there is one."""
    figures: dict[str, Figure] = {}
    body = "".join(_body(findings, figures, images))
    return document(findings.ledger.name, body, figures)


def write_page(findings: Findings, path: Path) -> None:
    """The report as a file, whole or not at all; the model's page is looked for beside it."""
    images = IMAGES if path.with_name(IMAGES).exists() else ""
    write_whole(path, page(findings, images).encode())


# The page ----------------------------------------------------------------------------------------------------


def _body(findings: Findings, figures: dict[str, Figure], images: str) -> Iterator[str]:
    ledger = findings.ledger
    yield '<a class="skip" href="#leaderboard">Skip to the leaderboard</a><main><header>'
    yield f"<h1>{escape(ledger.name)}</h1>" + _subtitle(findings)
    if len(ledger.trials) > DRAWN:
        yield (
            f'<p class="sub">Each figure draws at most {DRAWN:,} of the {len(ledger.trials):,} trials, the best and, '
            "evenly, of the others; what is said is of all.</p>"
        )
    first, second = findings.verdict
    yield f'<div class="verdict" role="note" aria-label="Verdict"><p>{escape(first)}</p><p>{escape(second)}</p></div>'
    yield _answers(findings, images)
    if findings.warnings:
        items = "".join(f"<li>{escape(line)}</li>" for line in findings.warnings)
        yield f'<ul class="warnings" aria-label="Warnings">{items}</ul>'
    sections = [
        *([("front", "The front", _front(findings, figures))] if ledger.second is not None else []),
        ("progress", "Progress", _progress(findings, figures)),
        ("leaderboard", "Leaderboard", _leaderboard(findings)),
        ("settings", "What mattered", _what_mattered(findings, figures)),
        ("curves", "Learning curves", _curves(findings, figures)),
        ("cost", "Cost", _cost(findings, figures)),
        ("papers", "The papers", _papers(findings)),
        ("reproduce", "Reproduce", _reproduce(findings)),
    ]
    yield f"</header>{sections_html(sections)}</main>"


def _subtitle(findings: Findings) -> str:
    ledger, settings = findings.ledger, findings.settings
    began = datetime.fromtimestamp(ledger.started / 1000, UTC)
    setup = [settings.get(key) for key in ("method", "dataset", "backbone")]
    parts = [state_html(ledger)]
    parts += [escape(str(part)) for part in setup if part]
    if "embedding_dim" in settings:
        parts.append(f"{escape(str(settings['embedding_dim']))}-D")
    parts += [escape(str(settings[key])) for key in ("protocol",) if key in settings]
    first = {"metric": ledger.metric, "mode": ledger.mode}
    for goal in filter(None, (first, ledger.config.get("second_objective"))):
        parts.append(f"{escape(goal['metric'])} ({'higher' if goal['mode'] == 'max' else 'lower'} is better)")
    parts.append(f"begun {began:%Y-%m-%d %H:%M} UTC")
    return f'<p class="sub">{" · ".join(parts)}</p>'


def _answers(findings: Findings, images: str) -> str:
    answers = {
        "How sure is it?": findings.certainty,
        "What mattered?": findings.importances.answer,
        "Should a range be widened?": findings.widen,
        "How far from the paper?": findings.distance,
    }
    link = f' The images: <a href="{escape(images)}">{escape(images)}</a>, beside this page.' if images else ""
    numbers = {"What are the numbers held against?": " ".join(findings.numbers)} if findings.numbers else {}
    confused = f"{escape(findings.confused)}{link}" if findings.confused else ""
    return (answers_html(numbers) if numbers else "") + answers_html(answers, confused)


# Leaderboard -------------------------------------------------------------------------------------------------


def _leaderboard(findings: Findings) -> str:
    ledger = findings.ledger
    keys = [setting.key for setting in findings.searched]
    tests = list(dict.fromkeys(name for run in ledger.everyone() for name in run.test))
    shown = [name for name in ("map_at_r", "recall_at_1") if name in tests]
    also = "" if ledger.metric == "val/recall_at_1" else "val/recall_at_1"
    age = ledger.equal_age()
    columns = _columns(ledger, also)
    heads = ["#", "trial", "state", *columns, *(f"test {name}" for name in shown), *keys, "validations", "time", "note"]
    rows, best = [], None
    ranking = ledger.ranking()
    for rank, trial in enumerate(ranking[:LEADERS], start=1):
        if trial is findings.winner:
            best = rank - 1
        state = learned_cell(ledger, trial)
        place, because = rank if trial.best is not None else None, idle(trial, training_images(ledger))
        rows.append(_trial_row(place, trial, state, keys, columns, shown, because))
    finals = [(run, learned_cell(ledger, run)) for run in ledger.finals.values()]
    rows += [_trial_row("final", run, state, keys, columns, shown, idle(run)) for run, state in finals]
    parts = [] if age is None else [f"<p>{escape(_ages(ledger, age))}</p>"]
    parts += [table_html("leaderboard", heads, rows, best=best, wrap=[len(heads) - 1])]
    if len(ranking) > LEADERS:
        parts.append(
            empty_html(f"The best {LEADERS} of {len(ranking)}; all: orchestrator report {ledger.name} --format csv")
        )
    for group in repeated_tests(ledger):
        of = f"trial {group.source}" if group.source else "the point"
        title = f"Test of {of} over {counted(len(group.trial_ids), 'seed')}: mean, deviation, 95% intervals"
        table = seeds_table(f"seeds-{len(parts)}", ledger, group)
        parts.append(f"<details><summary>{escape(title)}</summary>{table}</details>")
    parts += tests_html(ledger)
    if findings.differences:
        parts.append(difference_table("differences", findings.differences, "trial"))
    return "".join(parts)


Column = Callable[[TrialRecord], Any]


def _columns(ledger: Ledger, also: str) -> dict[str, Column]:
    """The leaderboard's columns of values on held-out classes."""

    def score(of: Column) -> Column:
        return lambda trial: score_cell(of(trial))

    values = value_columns(ledger)
    columns = {name: of if name == ledger.second else score(of) for name, of in values.items()}
    if ledger.second is not None:
        columns["front"] = lambda trial: "on the front" if trial.trial_id in ledger.front else ""
    if also:
        columns[also] = lambda trial: score_cell(trial.best_metrics.get(also))
    return columns


def _param_cell(value: Any, because: str | None) -> Any:
    """A searched value; greyed, with the reason, where it had no effect."""
    return value if because is None or value is None else idle_cell(value, f"no effect with {because}")


def _ages(ledger: Ledger, age: int) -> str:
    """How trials of unequal length are to be read."""
    after = counted(age, "validation")
    return (
        f"Ordered by the best value; trials that were stopped early trained less for theirs. All had {after}: the "
        f"column {ledger.metric} at {age} has the best until then, and compares them after equally much training."
    )


def _trial_row(
    rank: Any,
    trial: TrialRecord,
    state: Html,
    keys: Sequence[str],
    columns: Mapping[str, Column],
    tests: Sequence[str],
    because: Mapping[str, str],
) -> list[Any]:
    row = [rank, trial.trial_id, state, *(cell(trial) for cell in columns.values())]
    row += [score_cell(trial.test.get(name)) for name in tests]
    row += [_param_cell(trial.params.get(key), because.get(key)) for key in keys]
    return [
        *row,
        trial.validations,
        number_cell(duration(trial.seconds), trial.seconds),
        trial.reason or trial.note or "",
    ]


# Progress and cost -------------------------------------------------------------------------------------------


def _progress(findings: Findings, figures: dict[str, Figure]) -> str:
    ledger = findings.ledger
    trials = [trial for trial in ledger.trials.values() if trial.best is not None]
    if not trials:
        return empty_html(f"No trial has a value{ledger.yet}.")
    data = _by_state(_drawn(ledger, trials), lambda t: t.number, lambda t: t.best)
    steps = _best_so_far(ledger, trials, lambda number, trial: trial.number)
    data.append(_step_line(steps))
    values = [trial.best for trial in trials if trial.best is not None]
    lowest, highest = min(values), max(values)
    margin = 0.05 * (highest - lowest or abs(highest) or 1)
    # one scale for both figures; by itself plotly draws a single value between -1 and 1 around it
    axis = {"title": {"text": escape(ledger.metric)}, "range": [lowest - margin, highest + margin]}
    layout = {"xaxis": {"title": {"text": "trial"}}, "yaxis": axis}
    early = any(trial.state == "pruned" for trial in trials)
    younger = " Those that were stopped early had less training: they do not compare with the others." if early else ""
    said = f"Best value of each of {counted(len(trials), 'trial')}, by state; the line is the best so far.{younger}"
    history = figure_html(figures, "history", "Optimisation history", said, {"data": data, "layout": layout})
    per = findings.epochs_per_validation
    unit = "epochs" if per else "validations"
    ended = sorted(trials, key=lambda t: (t.ended is None, t.ended or 0, t.number))
    spent = _best_so_far(ledger, ended, _Total(per or 1))
    said = f"Trials in the order in which they ended; {spent[-1][0]:g} {unit} of training together."
    figure = {
        "data": [_step_line(spent)],
        "layout": {"xaxis": {"title": {"text": f"{unit} spent"}}, "yaxis": axis},
    }
    rows = [[x, score_cell(y), t.trial_id] for x, y, t in _improvements(spent)]
    table = details_html("spent", [f"{unit} spent", ledger.metric, "trial"], rows)
    budget = figure_html(figures, "spent", "Best so far against training spent", said, figure, table)
    return f'<div class="pair">{history}{budget}</div>'


def _front(findings: Findings, figures: dict[str, Figure]) -> str:
    """Both objectives of each trial, and those that none beats in both."""
    ledger = findings.ledger
    trials = [trial for trial in ledger.trials.values() if trial.best is not None and trial.second is not None]
    if not trials:
        return empty_html(f"No trial has a value of both objectives{ledger.yet}.")
    front = sorted((ledger.trials[key] for key in ledger.front), key=lambda trial: trial.second or 0.0)
    second = ledger.config["second_objective"]
    data = _by_state(_drawn(ledger, trials), lambda trial: trial.second, lambda trial: trial.best)
    line = {"shape": "hv" if second["mode"] == "min" else "vh", "color": "var(--best)", "width": 2}
    trace: Figure = {"type": "scatter", "mode": "lines+markers", "name": "front", "line": line, "marker": {"size": 11}}
    trace |= {"x": [trial.second for trial in front], "y": [trial.best for trial in front]}
    data.append(trace | {"hovertemplate": "%{x:.4g}, %{y:.4f}<extra>front</extra>"})
    names = {
        goal["metric"]: f"{escape(goal['metric'])} ({'higher' if goal['mode'] == 'max' else 'lower'} is better)"
        for goal in (ledger.config["objective"], second)
    }
    layout = {
        "height": 400,
        "xaxis": {"title": {"text": names[second["metric"]]}},
        "yaxis": {"title": {"text": names[ledger.metric]}},
    }
    rows = [[t.trial_id, score_cell(t.best), t.second, params_text(t.params)] for t in front]
    table = table_html("front", ["trial", ledger.metric, second["metric"], "point"], rows, wrap=[3])
    said = (
        f"{counted(len(front), 'trial')} that no other beats in both objectives; which of them to take is yours to say."
    )
    return figure_html(figures, "front-figure", "Both objectives", said, {"data": data, "layout": layout}) + table


class _Total:
    """Epochs of all trials so far."""

    def __init__(self, per_validation: float) -> None:
        self.per_validation, self.spent = per_validation, 0.0

    def __call__(self, number: int, trial: TrialRecord) -> float:
        self.spent += trial.validations * self.per_validation
        return self.spent


Step = tuple[float, float, TrialRecord]


def _best_so_far(
    ledger: Ledger, trials: Iterable[TrialRecord], place: Callable[[int, TrialRecord], float]
) -> list[Step]:
    found: list[Step] = []
    best: TrialRecord | None = None
    for number, trial in enumerate(trials):
        if best is None or ledger.better(_best(trial), _best(best)):
            best = trial
        found.append((place(number, trial), _best(best), best))
    return found


def _improvements(steps: Iterable[Step]) -> Iterator[Step]:
    last = None
    for step in steps:
        if step[1] != last:
            last = step[1]
            yield step


def _best(trial: TrialRecord) -> float:
    return math.nan if trial.best is None else trial.best


def _step_line(steps: Sequence[Step]) -> Figure:
    steps = [*_improvements(steps), steps[-1]]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "best so far",
        "line": {"shape": "hv", "color": "var(--best)", "width": 2},
        "x": [x for x, _, _ in steps],
        "y": [y for _, y, _ in steps],
        "hovertemplate": "%{y:.4f}<extra>best so far</extra>",
    }


def _drawn(ledger: Ledger, trials: list[TrialRecord]) -> list[TrialRecord]:
    """These trials, or the best of them and, evenly, of the others: half of what is drawn each, in their order."""
    if len(trials) <= DRAWN:
        return trials
    rank = {trial.trial_id: place for place, trial in enumerate(ledger.ranking())}
    ranked = sorted(trials, key=lambda trial: rank[trial.trial_id])
    best, others = ranked[: DRAWN // 2], ranked[DRAWN // 2 :]
    count = DRAWN - len(best)
    chosen = {t.trial_id for t in [*best, *(others[i * len(others) // count] for i in range(count))]}
    return [trial for trial in trials if trial.trial_id in chosen]


def _by_state(
    trials: Sequence[TrialRecord], x: Callable[[TrialRecord], Any], y: Callable[[TrialRecord], Any], legend: bool = True
) -> list[Figure]:
    """Points, a trace per state."""
    traces = []
    for state, symbol in SYMBOLS.items():
        own = [trial for trial in trials if trial.state == state]
        if own:
            words = {"text": [_hover(t) for t in own], "hovertemplate": "%{text}<br><b>%{y:.4f}</b><extra></extra>"}
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": state,
                    "showlegend": legend,
                    "marker": {"color": f"var(--{state})", "symbol": symbol, "size": 8, "opacity": 0.85},
                    "x": [x(trial) for trial in own],
                    "y": [y(trial) for trial in own],
                    "hovertemplate": f"%{{x}}<br><b>%{{y:.4f}}</b><extra>{state}</extra>",
                }
                | (words if len(trials) <= WORDY else {})
            )
    return traces


def _hover(trial: TrialRecord) -> str:
    point = "<br>".join(f"{escape(str(k))}: {escape(value_text(v))}" for k, v in list(trial.params.items())[:12])
    return f"trial {escape(trial.trial_id)}, {escape(trial.state)}<br>{point}"


def _cost(findings: Findings, figures: dict[str, Figure]) -> str:
    ledger = findings.ledger
    trials = [trial for trial in ledger.trials.values() if trial.best is not None]
    rows = []
    for state in SYMBOLS:
        own = [trial for trial in ledger.trials.values() if trial.state == state]
        if own:
            seconds = sum(trial.seconds for trial in own)
            time = number_cell(duration(seconds), seconds)
            rows.append([state_cell(state), len(own), sum(trial.validations for trial in own), time])
    for run in ledger.finals.values():
        time = number_cell(duration(run.seconds), run.seconds)
        rows.append([f"final run {run.trial_id}", 1, run.validations, time])
    table = table_html("cost", ["what", "trials", "validations", "training"], rows)
    wall = "" if ledger.ended is None else f" {duration((ledger.ended - ledger.started) / 1000)} from beginning to end."
    said = f"<p>{duration(findings.seconds)} of training, all runs together.{wall}</p>"
    if not trials:
        return said + table
    layout = {
        "xaxis": {"title": {"text": "seconds of training"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": escape(ledger.metric)}},
    }
    figure = {"data": _by_state(_drawn(ledger, trials), lambda t: t.seconds, lambda t: t.best), "layout": layout}
    what = "Each trial's best value over the seconds that it trained; its numbers are in the leaderboard."
    return said + figure_html(figures, "quality", "Quality against cost", what, figure) + table


# Settings ----------------------------------------------------------------------------------------------------


def _what_mattered(findings: Findings, figures: dict[str, Figure]) -> str:
    ledger = findings.ledger
    trials = [trial for trial in ledger.finished() if trial.best is not None]
    varied = [setting for setting in findings.searched if setting.varied]
    if not varied or len(trials) < 2:
        return empty_html("Nothing to compare: fewer than two values of a setting have a result.")
    ranked = sorted(varied, key=lambda s: -findings.importances.shares.get(s.key, (0.0, 0.0))[0])
    parts = [_importance(findings, figures), _coverage(findings), _parallel(findings, trials, varied, figures)]
    slices = [_slice(findings, trials, s, f"slice-{n}", figures) for n, s in enumerate(ranked[:SLICES])]
    parts.append(f'<div class="pair">{"".join(slices)}</div>')
    effects = [_effect(findings, trials, s, f"effect-{n}", figures) for n, s in enumerate(ranked[:SLICES])]
    parts.append(f'<div class="pair">{"".join(effects)}</div>')
    by_key = {s.key: s for s in varied if s.numeric}
    pairs = [pair for pair in MAPS if set(pair) <= set(by_key)]
    top = [s.key for s in ranked if s.numeric][:2]
    if len(top) == 2 and not any(set(pair) == set(top) for pair in pairs):
        pairs.insert(0, (top[0], top[1]))
    maps = [_map(findings, trials, by_key[x], by_key[y], f"map-{n}", figures) for n, (x, y) in enumerate(pairs)]
    parts.append(f'<div class="pair">{"".join(maps)}</div>')
    return "".join(parts)


def _importance(findings: Findings, figures: dict[str, Figure]) -> str:
    found = findings.importances
    if not found.shares:
        return empty_html(found.answer)
    keys = list(found.shares)[::-1]
    colours = ["var(--best)" if key in found.mattered else "var(--line)" for key in keys]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": [escape(key) for key in keys],
        "x": [found.shares[key][0] for key in keys],
        "error_x": {"type": "data", "array": [found.shares[key][1] for key in keys], "color": "var(--soft)"},
        "marker": {"color": colours},
        "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
    }
    line = {"color": "var(--soft)", "dash": "dash", "width": 1.5}
    shape = {"type": "line", "xref": "x", "yref": "paper", "x0": found.noise, "x1": found.noise, "y0": 0, "y1": 1}
    note = {"x": found.noise, "y": 1, "xref": "x", "yref": "paper", "yanchor": "bottom", "showarrow": False}
    note |= {"text": f"noise level {found.noise:.2f}", "font": {"size": 11, "color": "var(--soft)"}}
    layout = {"height": 130 + 34 * len(keys), "xaxis": {"rangemode": "tozero"}, "yaxis": {"type": "category"}}
    layout |= {"shapes": [shape | {"line": line}], "annotations": [note], "margin": {"t": 28, "r": 16, "b": 40}}
    rows = [[key, *share, _said_of(findings, key)] for key, share in found.shares.items()]
    table = details_html("importances", ["setting", "share", "deviation", "what is said of it"], rows)
    said = (
        f"{found.basis[0].upper()}{found.basis[1:]}. Dashed: the most that chance explained, with the objective "
        "shuffled among the trials; of a setting below it (grey) nothing is said."
    )
    figure: Figure = {"data": [bars], "layout": layout}
    return figure_html(figures, "importances", "Importance of each setting", said, figure, table)


def _said_of(findings: Findings, key: str) -> str:
    said = "it mattered" if key in findings.importances.mattered else "below the noise level"
    if key in findings.idle:
        count, of, because = findings.idle[key]
        said += f"; no effect in {count} of {counted(of, 'trial')} (with {because})"
    return said


def _coverage(findings: Findings) -> str:
    rows = []
    for s in findings.searched:
        ends = f"{len(s.values)} values" if len(s.values) != 1 else "1 value"
        if s.numeric and s.values:
            ends += f", {value_text(s.values[0])} to {value_text(s.values[-1])}"
        edge = {"low": "at the lower edge", "high": "at the upper edge", None: ""}[s.edge]
        mark = "" if s.marked is None else f"{value_text(s.marked.value)} ({s.marked.source})"
        best = "" if s.best is None else value_text(s.best)
        count, of, because = findings.idle.get(s.key, (0, 0, ""))
        effect = f"none in {count} of {counted(of, 'trial')} ({because})" if count else ""
        rows.append([s.key, s.range_text, ends, best, edge, mark, *([effect] if findings.idle else [])])
    heads = ["setting", "range", "tried", "best", "edge", "paper or default"]
    heads += ["effect"] if findings.idle else []
    return f"<details open><summary>What was searched</summary>{table_html('coverage', heads, rows)}</details>"


def _parallel(
    findings: Findings, trials: Sequence[TrialRecord], varied: Sequence[Searched], figures: dict[str, Figure]
) -> str:
    ledger = findings.ledger
    at_age = findings.comparable.values
    own = [trial for trial in trials if trial.trial_id in at_age and all(s.key in trial.params for s in varied)]
    if len(own) < 2:
        return ""
    own = _drawn(ledger, own)
    dimensions: list[Figure] = [_dimension(s, [trial.params[s.key] for trial in own]) for s in varied]
    values = [at_age[trial.trial_id] for trial in own]
    age = findings.comparable.age
    label = ledger.metric + ("" if age is None else f" at {age}")  # there is no room for more
    dimensions.append({"label": escape(label), "values": values})
    scale = [[0, "var(--line)"], [0.8, "var(--pruned)"], [1, "var(--best)"]]
    line = {"color": values, "colorscale": scale, "reversescale": ledger.mode == "min", "showscale": False}
    data = [{"type": "parcoords", "line": line, "dimensions": dimensions, "labelangle": -12 if len(varied) > 5 else 0}]
    layout = {"height": 380, "margin": {"l": 70, "r": 50, "t": 60, "b": 30}}
    said = (
        f"A line per trial ({len(own)}), blue the best; drag along an axis to select. "
        f"The last axis: {findings.comparable.basis}."
    )
    return figure_html(figures, "parallel", "Parallel coordinates", said, {"data": data, "layout": layout})


def _dimension(setting: Searched, values: Sequence[Any]) -> Figure:
    label = escape(setting.key)
    if not setting.numeric:
        names = [str(value) for value in dict.fromkeys(setting.values)]
        places = [names.index(str(value)) for value in values]
        ticks = {"tickvals": list(range(len(names))), "ticktext": [escape(name) for name in names]}
        return {"label": label, "values": places, **ticks}
    if setting.log and min(values) > 0:
        low, high = math.log10(min(values)), math.log10(max(values))
        at = [low + (high - low) * i / 4 for i in range(5)]
        ticks = {"tickvals": at, "ticktext": [value_text(10**tick) for tick in at]}
        return {"label": label, "values": [math.log10(v) for v in values], **ticks}
    return {"label": label, "values": list(values)}


def _axis(setting: Searched) -> Figure:
    axis: Figure = {"title": {"text": escape(setting.key)}}
    if not setting.numeric:
        return axis | {"type": "category"}
    return axis | ({"type": "log", "dtick": "D2"} if setting.log else {})


def _measured(findings: Findings) -> str:
    """The objective, and at which age the trials are compared."""
    age = findings.comparable.age
    return findings.ledger.metric + ("" if age is None else f" after {counted(age, 'validation')}")


def _place(setting: Searched, value: Any) -> Any:
    return value if setting.numeric else escape(str(value))


def _marks(setting: Searched, findings: Findings) -> tuple[list[Figure], list[Figure]]:
    """The paper's value as a line across a plot of one setting."""
    mark = setting.marked
    numeric = mark is not None and isinstance(mark.value, int | float) and not isinstance(mark.value, bool)
    if mark is None or numeric != setting.numeric or (setting.log and numeric and mark.value <= 0):
        return [], []
    x = _place(setting, mark.value)
    if not setting.numeric and mark.value not in setting.values:
        return [], []
    line = {"color": "var(--published)", "dash": "dash", "width": 1.5}
    shape = {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}
    text = f"{escape(value_text(mark.value))}: {escape(mark.source)}"
    note = {"x": math.log10(x) if setting.log else x, "y": 1, "xref": "x", "yref": "paper", "yanchor": "bottom"}
    note |= {"text": text, "showarrow": False, "font": {"size": 11, "color": "var(--published)"}}
    return [shape], [note]


def _slice(
    findings: Findings, trials: Sequence[TrialRecord], setting: Searched, name: str, figures: dict[str, Figure]
) -> str:
    ledger = findings.ledger
    values = findings.comparable.values
    own = [trial for trial in trials if trial.trial_id in values and setting.key in trial.params]
    data = _by_state(
        _drawn(ledger, own), lambda t: _place(setting, t.params[setting.key]), lambda t: values[t.trial_id]
    )
    winner = findings.winner
    if winner is not None and setting.key in winner.params and winner.trial_id in values:
        data.append(_star(_place(setting, winner.params[setting.key]), values[winner.trial_id], "winner"))
    shapes, notes = _marks(setting, findings)
    layout = {"xaxis": _axis(setting), "yaxis": {"title": {"text": escape(_measured(findings))}}, "height": 320}
    layout |= {"shapes": shapes, "annotations": notes, "margin": {"t": 48, "l": 56, "r": 16, "b": 44}}
    layout["legend"] = {"orientation": "h", "y": -0.25, "yanchor": "top", "x": 0}
    dashed = (
        f" Dashed: {value_text(setting.marked.value)}, {setting.marked.source}." if shapes and setting.marked else ""
    )
    said = f"{findings.comparable.basis}; the rest of the point varies too. Star: the winner.{dashed}"
    return figure_html(
        figures, name, f"{_measured(findings)}, over {setting.key}", said, {"data": data, "layout": layout}
    )


def _star(x: Any, y: Any, name: str) -> Figure:
    marker = {"symbol": "star", "size": 15, "color": "var(--best)", "line": {"color": "var(--paper)", "width": 1}}
    return {"type": "scatter", "mode": "markers", "name": name, "marker": marker, "x": [x], "y": [y]} | {
        "hovertemplate": f"{name}<extra></extra>"
    }


def _effect(
    findings: Findings, trials: Sequence[TrialRecord], setting: Searched, name: str, figures: dict[str, Figure]
) -> str:
    """Mean and deviation at each value, where there are few values and several trials of them."""
    values = findings.comparable.values
    groups: dict[str, tuple[Any, list[float]]] = {}
    for trial in (trial for trial in trials if trial.trial_id in values):
        if setting.key in trial.params:
            value = trial.params[setting.key]
            groups.setdefault(repr(value), (value, []))[1].append(values[trial.trial_id])
    known = {repr(value): groups[repr(value)] for value in setting.values if repr(value) in groups}
    several = sum(len(found) > 1 for _, found in known.values())
    if not 2 <= len(known) <= MAP_VALUES or several * 2 < len(known):
        return ""
    cells = [
        (value, statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))
        for value, found in known.values()
    ]
    trace = {
        "type": "scatter",
        "mode": "lines+markers" if setting.numeric else "markers",
        "x": [_place(setting, value) for value, *_ in cells],
        "y": [mean for _, mean, *_ in cells],
        "error_y": {"type": "data", "array": [spread or 0.0 for _, _, spread, _ in cells], "color": "var(--soft)"},
        "marker": {"color": "var(--best)", "size": 9},
        "line": {"color": "var(--best)"},
        "text": [counted(number, "trial") for *_, number in cells],
        "hovertemplate": "%{y:.4f}, %{text}<extra></extra>",
        "showlegend": False,
    }
    shapes, notes = _marks(setting, findings)
    layout = {"xaxis": _axis(setting), "yaxis": {"title": {"text": escape(_measured(findings))}}, "height": 320}
    layout |= {"shapes": shapes, "annotations": notes, "margin": {"t": 48, "l": 56, "r": 16, "b": 44}}
    rows = [[value, score_cell(mean), score_cell(spread), number] for value, mean, spread, number in cells]
    table = details_html(name, [setting.key, "mean", "deviation", "trials"], rows)
    said = f"Mean and standard deviation at each value, all other settings averaged over: {findings.comparable.basis}."
    return figure_html(figures, name, f"Effect of {setting.key}", said, {"data": [trace], "layout": layout}, table)


def _map(
    findings: Findings,
    trials: Sequence[TrialRecord],
    x: Searched,
    y: Searched,
    name: str,
    figures: dict[str, Figure],
) -> str:
    """The objective over two settings: value by value where there are few, else interpolated between the trials."""
    ledger = findings.ledger
    values = findings.comparable.values
    own = [t for t in trials if t.trial_id in values and x.key in t.params and y.key in t.params]
    cells: dict[tuple[Any, Any], list[float]] = {}
    for trial in own:
        cells.setdefault((trial.params[x.key], trial.params[y.key]), []).append(values[trial.trial_id])
    xs, ys = sorted({at for at, _ in cells}), sorted({at for _, at in cells})
    data: list[Figure]
    z: list[Any]
    scale: Figure = {"colorscale": "Viridis", "reversescale": ledger.mode == "min", "colorbar": {"thickness": 12}}
    xaxis, yaxis = _axis(x), _axis(y)
    places = list(cells)
    if len(xs) <= MAP_VALUES and len(ys) <= MAP_VALUES and 2 * len(cells) >= len(xs) * len(ys):
        means = {at: statistics.fmean(found) for at, found in cells.items()}
        z = [[means.get((a, b)) for a in xs] for b in ys]
        text = [[f"{means[a, b]:.4f}" if (a, b) in means else "" for a in xs] for b in ys]
        trace: Figure = {
            "type": "heatmap",
            "x": [value_text(a) for a in xs],
            "y": [value_text(b) for b in ys],
            "z": z,
        } | scale
        if len(cells) <= 60:
            trace |= {"text": text, "texttemplate": "%{text}"}
        data = [trace]
        xaxis |= {"type": "category"}
        yaxis |= {"type": "category"}
        said = f"Mean at each pair of values: {findings.comparable.basis}."
        point = [value_text(place) for place in (x.best, y.best)] if x.best is not None and y.best is not None else None
    else:
        grid = _interpolated(places, [statistics.fmean(found) for found in cells.values()], log=(x.log, y.log))
        if grid is None:
            return ""
        at_x, at_y, z = grid
        trace = {"type": "contour", "x": at_x, "y": at_y, "z": z, "contours": {"coloring": "heatmap"}} | scale
        data = [trace | {"line": {"width": 0.5}, "hovertemplate": "%{z:.4f}<extra></extra>"}]
        data += _by_state(_drawn(ledger, own), lambda t: t.params[x.key], lambda t: t.params[y.key], legend=False)
        for points in data[1:]:
            points["marker"] |= {"size": 6, "line": {"color": "var(--paper)", "width": 1}}
            points["hovertemplate"] = "%{text}<extra></extra>" if "text" in points else "%{x}, %{y}<extra></extra>"
        said = f"Interpolated between the trials, and left blank outside of them: {findings.comparable.basis}."
        point = [x.best, y.best] if x.best is not None and y.best is not None else None
    if point is not None:
        data.append(_star(point[0], point[1], "winner") | {"showlegend": False})
    if x.marked is not None and y.marked is not None and not isinstance(x.marked.value, str):
        known = [x.marked.value, y.marked.value]
        if data[0]["type"] == "heatmap":
            known = [value_text(value) for value in known]
            inside = known[0] in data[0]["x"] and known[1] in data[0]["y"]
        else:
            inside = all(isinstance(value, int | float) for value in known)
        if inside:
            marker = {"symbol": "x-open", "size": 12, "color": "var(--published)", "line": {"width": 3}}
            data.append({"type": "scatter", "mode": "markers", "x": known[:1], "y": known[1:], "marker": marker})
            data[-1] |= {"showlegend": False, "hovertemplate": f"{escape(x.marked.source)}<extra></extra>"}
            said += f" Cross: {x.marked.source}."
    layout = {"xaxis": xaxis, "yaxis": yaxis, "height": 400, "margin": {"t": 20, "l": 60, "r": 16, "b": 44}}
    rows = [
        [a, b, score_cell(statistics.fmean(found)), len(found)] for (a, b), found in sorted(cells.items())[:LEADERS]
    ]
    table = details_html(name, [x.key, y.key, ledger.metric, "trials"], rows)
    title = f"{_measured(findings)}, over {x.key} and {y.key}"
    return figure_html(figures, name, title, f"{said} Star: the winner.", {"data": data, "layout": layout}, table)


def _interpolated(
    places: Sequence[tuple[float, float]], values: Sequence[float], *, log: tuple[bool, bool]
) -> tuple[list[float], list[float], list[list[float]]] | None:
    """Linear between points, over a grid; None where they span no area."""
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


# Curves ------------------------------------------------------------------------------------------------------


def _curves(findings: Findings, figures: dict[str, Figure]) -> str:
    ledger = findings.ledger
    trials = [trial for trial in ledger.ranking() if trial.curve]
    if not trials:
        return empty_html(f"No validation has been recorded{ledger.yet}.")
    per = findings.epochs_per_validation or 1.0
    unit = "epoch" if findings.epochs_per_validation else "validation"
    shown = trials[:CURVES]
    data, named = [], set()
    for trial in shown[::-1]:  # the best on top
        best = trial is findings.winner
        label = "best" if best else trial.state
        line = {"color": "var(--best)" if best else f"var(--{trial.state})", "width": 3 if best else 1.2}
        line |= {"dash": "dot"} if trial.state == "pruned" and not best else {}
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(trial.curve) == 1 or trial.state == "pruned" else "lines",
                "x": [per * (i + 1) for i in range(len(trial.curve))],
                "y": trial.curve,
                "line": line,
                "opacity": 1 if best else 0.75,
                "marker": {
                    "symbol": SYMBOLS[trial.state],
                    "size": [0] * (len(trial.curve) - 1) + [8],
                    "color": line["color"],
                },
                "name": label,
                "legendgroup": label,
                "showlegend": label not in named,
                "text": [f"trial {escape(trial.trial_id)}, {escape(trial.state)}"] * len(trial.curve),
                "hovertemplate": "%{text}<br>" + unit + " %{x}: <b>%{y:.4f}</b><extra></extra>",
            }
        )
        named.add(label)
    layout = {"height": 420, "xaxis": {"title": {"text": unit}}, "yaxis": {"title": {"text": escape(ledger.metric)}}}
    many = "" if len(shown) == len(trials) else f"The best {len(shown)} of {len(trials)}. "
    said = f"{many}Dotted lines that end in a triangle were stopped early; the thick one won."
    rows = [
        [
            t.trial_id,
            state_cell(t.state),
            len(t.curve),
            *map(score_cell, (t.curve[0], t.best, t.curve[-1])),
            t.best_validation,
        ]
        for t in trials[:LEADERS]
    ]
    heads = ["trial", "state", "validations", "first", "best", "last", "best at"]
    table = details_html("curve", heads, rows)
    return figure_html(figures, "learning", "Learning curves", said, {"data": data, "layout": layout}, table)


# The papers --------------------------------------------------------------------------------------------------


def _papers(findings: Findings) -> str:
    settings = findings.settings
    if not findings.published:
        return empty_html(f"None of the papers' tables has the data set {settings.get('dataset')}.")
    known = {name for b in findings.published for name in b.row.values}
    columns = [name for name in PAPER_COLUMNS if name in known and (name in findings.test or not findings.test)]
    columns = columns or [name for name in PAPER_COLUMNS if name in known]
    heads = ["source", "method", "backbone", "dimension", *[f"{name} %" for name in columns], "settings that differ"]
    setup = [str(settings.get("backbone")), settings.get("embedding_dim")]
    ours = [_percent(*findings.test[name]) if name in findings.test else None for name in columns]
    rows: list[list[Any]] = [["this search", str(settings.get("method")), *setup, *ours, ""]]
    same = [b for b in findings.published if b.same_method][:BESIDE_SAME]
    others = [b for b in findings.published if not b.same_method]
    others.sort(key=lambda b: -max((v.value for n, v in b.row.values.items() if n in columns), default=0.0))
    for b in [*same, *others[:BESIDE_OTHERS]]:
        row = b.row
        cells = [
            _percent(row.values[name].value, row.values[name].deviation) if name in row.values else None
            for name in columns
        ]
        differ = "; ".join(f"{d.setting}: {_said(d.paper)}, here {_said(d.run)}" for d in b.differences)
        source = f"{row.paper}, Table {row.table}"
        rows.append([source, row.method, row.backbone or "", row.dimension, *cells, differ or "none that is stated"])
    table = table_html("papers", heads, rows, best=0, wrap=[len(heads) - 1])
    return f"<p>{escape(findings.distance)}</p>{table}"


def _said(value: Any) -> str:
    return "none" if value in (None, "") else value_text(value)


def _percent(value: float, deviation: float | None) -> Html:
    return number_cell(f"{100 * value:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}"), value)


def _search_file(ledger: Ledger) -> str | None:
    """The search in YAML; None of a training, and of a search that this version does not understand."""
    try:
        search = Search.model_validate(ledger.config)
    except (ValidationError, InputError):
        return None
    return None if search.test_trials else search.file()


def _reproduce(findings: Findings) -> str:
    ledger = findings.ledger
    parts = []
    if findings.command:
        finals = " It repeats the trial, not its final runs: these trained on the held-out classes too."
        again = "Train the winner again, with the same seed and the same classes held out."
        parts.append(f"<p>{again}{finals if ledger.finals else ''}</p>")
        parts.append('<button type="button" class="copy" data-of="command">Copy the command</button>')
        parts.append(f'<pre id="command" tabindex="0"><code>{escape(findings.command)}</code></pre>')
    if (file := _search_file(ledger)) is not None:
        parts.append(
            "<details><summary>The whole search, as a file</summary><p>Keep it as search.yaml, and run it by "
            "<code>orchestrator search search.yaml --name NAME</code>; its trials draw the same points where one runs "
            'at a time.</p><button type="button" class="copy" data-of="search-file">Copy the file</button>'
            f'<pre id="search-file" tabindex="0"><code>{escape(file)}</code></pre></details>'
        )
    facts: Mapping[str, Any] = {
        "search": ledger.name,
        "algorithm": ledger.config.get("algorithm"),
        "trials asked for": ledger.config.get("num_trials"),
        "scheduler": (ledger.config.get("scheduler") or {}).get("name"),
        "seed of the search": ledger.config.get("seed"),
        "preset": ledger.config.get("preset"),
        **{str(key): value for key, value in ledger.tags.items()},
    }
    rows = [[key, str(value)] for key, value in facts.items() if value not in (None, "")]
    parts.append(table_html("facts", ["what", "value"], rows, wrap=[1]))
    if findings.settings:
        cells = [[key, "null" if value is None else str(value)] for key, value in findings.settings.items()]
        table = table_html("all-settings", ["setting", "value"], cells)
        whose = "the winner" if findings.winner is not None else "the first trial: none has won"
        parts.append(f"<details><summary>All settings of {whose}</summary>{table}</details>")
    return "".join(parts)
