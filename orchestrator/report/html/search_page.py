"""A search as one page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from orchestrator.evaluation.measures import BESIDE, HEADLINES
from orchestrator.report.effect import idle
from orchestrator.report.findings import Findings
from orchestrator.report.html.elements import (
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
from orchestrator.report.html.figures import (
    DRAWN,
    SYMBOLS,
    Total,
    best_so_far,
    drawn_trials,
    improvements,
    step_line,
    traces_by_state,
)
from orchestrator.report.html.numbers_section import learned_cell, seeds_table, state_html, tests_html
from orchestrator.report.html.papers_section import papers_section, reproduce_section
from orchestrator.report.html.settings_section import LEADERS, settings_section
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.leaderboard import repeated_tests
from orchestrator.storage.ledger import Ledger, TrialRecord, value_columns
from orchestrator.storage.trial_folder import IMAGES
from orchestrator.text import counted, duration, params_text

CURVES = 60
"""The number of learning curves drawn, the best."""


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
        ("settings", "What mattered", settings_section(findings, figures)),
        ("curves", "Learning curves", _curves(findings, figures)),
        ("cost", "Cost", _cost(findings, figures)),
        ("papers", "The papers", papers_section(findings)),
        ("reproduce", "Reproduce", reproduce_section(findings)),
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
    shown = [name for name in HEADLINES if name in tests]
    age = ledger.equal_age()
    columns = _columns(ledger)
    heads = ["#", "trial", "state", *columns, *(f"test {name}" for name in shown), *keys, "validations", "time", "note"]
    rows, best = [], None
    ranking = ledger.ranking()
    for rank, trial in enumerate(ranking[:LEADERS], start=1):
        if trial is findings.winner:
            best = rank - 1
        state = learned_cell(ledger, trial)
        place = rank if trial.best is not None else None
        because = {s.key: s.idle[trial.trial_id] for s in findings.searched if trial.trial_id in s.idle}
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


def _columns(ledger: Ledger) -> dict[str, Column]:
    """The leaderboard's columns of values on held-out classes."""

    def score(of: Column) -> Column:
        return lambda trial: score_cell(of(trial))

    values = value_columns(ledger)
    columns = {name: of if name == ledger.second else score(of) for name, of in values.items()}
    if ledger.second is not None:
        columns["front"] = lambda trial: "on the front" if trial.trial_id in ledger.front else ""
    beside = [f"val/{metric.name}" for metric in BESIDE if f"val/{metric.name}" != ledger.metric]
    return columns | {name: partial(_beside_cell, name=name) for name in beside}


def _beside_cell(trial: TrialRecord, name: str) -> Any:
    return score_cell(trial.best_metrics.get(name))


def _param_cell(value: Any, because: str | None) -> Any:
    """A searched value; greyed, with the reason, where it had no effect."""
    return value if because is None or value is None else idle_cell(value, f"no effect with {because}")


def _ages(ledger: Ledger, age: int) -> str:
    """How to read trials of unequal length."""
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
    data = traces_by_state(drawn_trials(ledger, trials), lambda t: t.number, lambda t: t.best)
    steps = best_so_far(ledger, trials, lambda number, trial: trial.number)
    data.append(step_line(steps))
    values = [trial.best for trial in trials if trial.best is not None]
    lowest, highest = min(values), max(values)
    margin = 0.05 * (highest - lowest or abs(highest) or 1)
    # one scale for both figures; otherwise plotly draws a single value between -1 and 1 around it
    axis = {"title": {"text": escape(ledger.metric)}, "range": [lowest - margin, highest + margin]}
    layout = {"xaxis": {"title": {"text": "trial"}}, "yaxis": axis}
    early = any(trial.state == "pruned" for trial in trials)
    younger = " Those that were stopped early had less training: they do not compare with the others." if early else ""
    said = f"Best value of each of {counted(len(trials), 'trial')}, by state; the line is the best so far.{younger}"
    history = figure_html(figures, "history", "Optimisation history", said, {"data": data, "layout": layout})
    per = findings.epochs_per_validation
    unit = "epochs" if per else "validations"
    ended = sorted(trials, key=lambda t: (t.ended is None, t.ended or 0, t.number))
    spent = best_so_far(ledger, ended, Total(per or 1))
    said = f"Trials in the order in which they ended; {spent[-1][0]:g} {unit} of training together."
    figure = {
        "data": [step_line(spent)],
        "layout": {"xaxis": {"title": {"text": f"{unit} spent"}}, "yaxis": axis},
    }
    rows = [[x, score_cell(y), t.trial_id] for x, y, t in improvements(spent)]
    table = details_html("spent", [f"{unit} spent", ledger.metric, "trial"], rows)
    budget = figure_html(figures, "spent", "Best so far against training spent", said, figure, table)
    return f'<div class="pair">{history}{budget}</div>'


def _front(findings: Findings, figures: dict[str, Figure]) -> str:
    """Both objectives of each trial, and the Pareto front."""
    ledger = findings.ledger
    trials = [trial for trial in ledger.trials.values() if trial.best is not None and trial.second is not None]
    if not trials:
        return empty_html(f"No trial has a value of both objectives{ledger.yet}.")
    front = sorted((ledger.trials[key] for key in ledger.front), key=lambda trial: trial.second or 0.0)
    second = ledger.config["second_objective"]
    data = traces_by_state(drawn_trials(ledger, trials), lambda trial: trial.second, lambda trial: trial.best)
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
    figure = {
        "data": traces_by_state(drawn_trials(ledger, trials), lambda t: t.seconds, lambda t: t.best),
        "layout": layout,
    }
    what = "Each trial's best value over the seconds that it trained; its numbers are in the leaderboard."
    return said + figure_html(figures, "quality", "Quality against cost", what, figure) + table


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
