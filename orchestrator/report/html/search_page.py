"""A search as one page."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from orchestrator.evaluation.measures import BESIDE, HEADLINES
from orchestrator.report.answers import answers_of
from orchestrator.report.effect import idle
from orchestrator.report.findings import Findings
from orchestrator.report.hours import hours_text
from orchestrator.report.html.connected import trials_data
from orchestrator.report.html.elements import (
    Cell,
    Figure,
    Folded,
    Plot,
    Table,
    difference_table,
    idle_cell,
    number_cell,
    score_cell,
    state_cell,
    trial_cell,
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
    value_axis,
    whole_axis,
)
from orchestrator.report.html.numbers_section import learned_cell, search_state, seeds_table, single_tables
from orchestrator.report.html.papers_section import papers_table, reproduce_section
from orchestrator.report.html.plots import plots_of
from orchestrator.report.html.plots.thresholds import ASKED, asked_trace
from orchestrator.report.html.points_section import points_table
from orchestrator.report.html.rendering import Live, render
from orchestrator.report.html.settings_section import LEADERS, settings_section
from orchestrator.report.limits import constraint_lines
from orchestrator.report.next_steps import next_steps
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.leaderboard import repeated_tests, value_columns
from orchestrator.storage.ledger import BENCHMARK, Ledger
from orchestrator.storage.places import BENCHMARK_PAGE, benchmark_of_search
from orchestrator.storage.trial_folder import IMAGES, INSIGHT
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import counted_amount, params_text, pluralize, span, value_text

CURVES = 60
"""The number of learning curves drawn, the best."""


def page(
    findings: Findings,
    images: str = "",
    pages: Mapping[str, str] | None = None,
    live: Live | None = None,
    benchmark: str = "",
) -> str:
    """The HTML of a search's report; `images` is the address of its model's page, if there is one, `pages` those of
    trials' own pages, `benchmark` that of the benchmark which it is part of."""
    ledger, steps = findings.ledger, next_steps(findings)
    compared_with = {"What are the numbers compared with?": " ".join(findings.numbers)} if findings.numbers else {}
    values = {
        "findings": findings,
        "first": answers_of(findings, steps),
        "steps": steps,
        "ledger": ledger,
        "images": images,
        "benchmark": {"name": str(ledger.tags.get(BENCHMARK, "")), "page": benchmark},
        "example": _example(findings),
        "drawn": DRAWN,
        "state": search_state(ledger, findings.lost),
        "facts": _facts(findings),
        "in_full": {"How sure is it?": findings.certainty, **compared_with},
        "questions": {
            "What mattered?": findings.what_mattered,
            "Should a range be widened?": findings.widen,
            "How far from the paper?": findings.distance,
        },
        "sections": {
            "front": None if ledger.second is None else _front(findings),
            "progress": {"figures": _progress(findings), "more": plots_of(findings, "progress")},
            "leaderboard": _leaderboard(findings),
            "settings": settings_section(findings),
            "curves": {"figure": _curves(findings), "more": plots_of(findings, "curves")},
            "cost": _cost(findings),
            "papers": {"table": papers_table(findings)},
            "reproduce": reproduce_section(findings),
        },
    }
    data = {"records": trials_data(findings, pages or {})} if ledger.trials else {}
    return render("search.html", values, more="connected" if ledger.trials else "", data=data, live=live)


def _example(findings: Findings) -> str:
    """A filter on a number of this search: `lr<0.01`."""
    for setting in findings.searched:
        values = [trial.params.get(setting.key) for trial in findings.ledger.trials.values()]
        numbers = sorted(value for value in values if isinstance(value, int | float) and not isinstance(value, bool))
        if numbers:
            return f"{setting.key}<{value_text(numbers[len(numbers) // 2])}"
    return "validations>1"


def write_page(findings: Findings, path: Path) -> None:
    """The report as a file, whole or not at all; the model's page is looked for beside it."""
    images = IMAGES if path.with_name(IMAGES).exists() else ""
    html = page(findings, images, pages_of(findings, path), benchmark=_benchmark_of(findings.ledger, path))
    write_whole(path, html.encode())


def _benchmark_of(ledger: Ledger, path: Path) -> str:
    """The page of a search's benchmark, seen from the search's own page at `path`; empty where there is none."""
    above = Path("..", "..", "..")
    name = benchmark_of_search(ledger.tags, path.parent / above)
    return (above / "benchmarks" / name / BENCHMARK_PAGE).as_posix() if name else ""


def pages_of(findings: Findings, path: Path) -> dict[str, str]:
    """The pages of trials' images in the folder of a search, seen from its page at `path`."""
    pages = {}
    for trial in findings.ledger.trials:
        address = Path("..", "trials", trial, INSIGHT, IMAGES)
        if (path.parent / address).exists():
            pages[trial] = address.as_posix()
    return pages


def _facts(findings: Findings) -> list[str]:
    """What was searched, and towards what."""
    ledger, settings = findings.ledger, findings.settings
    facts = [str(settings[key]) for key in ("method", "dataset", "backbone") if settings.get(key)]
    facts += [f"{settings['embedding_dim']}-D"] if "embedding_dim" in settings else []
    facts += [str(settings["protocol"])] if "protocol" in settings else []
    first = {"metric": ledger.metric, "mode": ledger.mode}
    facts += [_goal(goal) for goal in (first, ledger.config.get("second_objective")) if goal]
    facts += constraint_lines(ledger)
    began = datetime.fromtimestamp(ledger.started / 1000, UTC)
    return [*facts, f"started {began:%Y-%m-%d %H:%M} UTC"]


def _goal(goal: Mapping[str, Any]) -> str:
    return f"{goal['metric']} ({'higher' if goal['mode'] == 'max' else 'lower'} is better)"


# Leaderboard -------------------------------------------------------------------------------------------------


def _leaderboard(findings: Findings) -> dict[str, Any]:
    ledger = findings.ledger
    keys = findings.keys
    tests = list(dict.fromkeys(name for run in ledger.everyone() for name in run.test))
    metrics = [name for name in HEADLINES if name in tests]
    age = ledger.equal_age()
    columns = _columns(ledger)
    heads = [
        "#",
        "trial",
        "state",
        *columns,
        *(f"test {name}" for name in metrics),
        *keys,
        "validations",
        "time",
        "note",
    ]
    rows, best = [], None
    ranking = ledger.ranking()
    for rank, trial in enumerate(ranking[:LEADERS], start=1):
        if trial is findings.winner:
            best = rank - 1
        state = learned_cell(ledger, trial)
        place = rank if trial.is_ranked else None
        because = {s.key: s.idle[trial.trial_id] for s in findings.searched if trial.trial_id in s.idle}
        rows.append(_trial_row(place, trial, state, keys, columns, metrics, because))
    finals = [(run, learned_cell(ledger, run)) for run in ledger.finals.values()]
    final_rows = [_trial_row(None, run, state, keys, columns, metrics, idle(run)) for run, state in finals]
    again = Folded("Final runs", Table("finals", heads, final_rows, wrap=[len(heads) - 1]))
    repeated: list[Folded] = []
    for group in repeated_tests(ledger):
        of = f"trial {group.source}" if group.source else "the point"
        title = f"Test of {of} over {pluralize(len(group.trial_ids), 'seed')}: mean, deviation, 95% intervals"
        repeated.append(Folded(title, seeds_table(f"seeds-{len(repeated) + 1}", ledger, group)))
    compared = findings.differences
    return {
        "points": points_table(findings),
        "ages": None if age is None else _ages(ledger, age),
        "table": Table("leaderboard", heads, rows, best=best, wrap=[len(heads) - 1]),
        "finals": again if finals else None,
        "shown": LEADERS,
        "of": len(ranking),
        "tests": [*repeated, *single_tables(ledger)],
        "differences": difference_table("differences", compared, "trial") if compared else None,
    }


Column = Callable[[TrialRecord], Any]


def _columns(ledger: Ledger) -> dict[str, Column]:
    """The leaderboard's columns of values on held-out classes."""

    def score(of: Column) -> Column:
        return lambda trial: score_cell(of(trial))

    values = value_columns(ledger)
    plain = {ledger.second, *ledger.constraints}
    columns = {name: of if name in plain else score(of) for name, of in values.items()}
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
    after = pluralize(age, "validation")
    return (
        f"Ordered by the best value. All had {after}: the column {ledger.metric} at {age} compares them after equal "
        "training."
    )


def _trial_row(
    rank: Any,
    trial: TrialRecord,
    state: Cell,
    keys: Sequence[str],
    columns: Mapping[str, Column],
    tests: Sequence[str],
    because: Mapping[str, str],
) -> list[Any]:
    name = trial_cell(trial.trial_id) if trial.kind == "trial" else trial.trial_id
    row = [rank, name, state, *(cell(trial) for cell in columns.values())]
    row += [score_cell(trial.test.get(name)) for name in tests]
    row += [_param_cell(trial.params.get(key), because.get(key)) for key in keys]
    return [
        *row,
        trial.validations,
        number_cell(span(trial.seconds), trial.seconds),
        trial.remark,
    ]


# Progress and cost -------------------------------------------------------------------------------------------


def _progress(findings: Findings) -> list[Plot]:
    ledger = findings.ledger
    trials = [trial for trial in ledger.trials.values() if trial.is_ranked]
    if not trials:
        return []
    data = traces_by_state(drawn_trials(ledger, trials), lambda t: t.number, lambda t: t.best)
    steps = best_so_far(ledger, trials, lambda number, trial: trial.number)
    data.append(step_line(steps))
    axis = value_axis(ledger.metric, [trial.best for trial in trials if trial.best is not None])  # for both figures
    layout = {"xaxis": whole_axis("trial", len(trials)), "yaxis": axis}
    early = any(trial.state == "pruned" for trial in trials)
    younger = (
        " Those that were stopped early had less training: they cannot be compared with the others." if early else ""
    )
    caption = (
        f"Best value of each of {pluralize(len(trials), 'trial')}, by state; the line is the best so far.{younger}"
    )
    history = Plot("history", "Optimisation history", caption, data, layout)
    per = findings.epochs_per_validation
    unit = "epoch" if per else "validation"
    everyone = (trial for trial in ledger.trials.values() if trial.best is not None and not trial.violations)
    ended = sorted(everyone, key=lambda t: (t.ended is None, t.ended or 0, t.number))
    spent = best_so_far(ledger, ended, Total(per or 1))
    caption = f"Trials in the order in which they ended; {counted_amount(spent[-1][0], unit)} of training together."
    caption = " ".join(filter(None, (caption, hours_text(findings))))
    layout = {"xaxis": {"title": {"text": f"{unit}s spent"}}, "yaxis": axis}
    rows = [[x, score_cell(y), trial_cell(t.trial_id)] for x, y, t in improvements(spent)]
    table = Table("spent", [f"{unit}s spent", ledger.metric, "trial"], rows)
    return [history, Plot("spent", "Best so far against training spent", caption, [step_line(spent)], layout, table)]


def _front(findings: Findings) -> dict[str, Any]:
    """Both objectives of each trial, and the Pareto front."""
    ledger = findings.ledger
    trials = [trial for trial in ledger.trials.values() if trial.best is not None and trial.second is not None]
    if not trials:
        return {}
    front = sorted((ledger.trials[key] for key in ledger.front), key=lambda trial: trial.second or 0.0)
    second = ledger.config["second_objective"]
    data = traces_by_state(drawn_trials(ledger, trials), lambda trial: trial.second, lambda trial: trial.best)
    line = {"shape": "hv" if second["mode"] == "min" else "vh", "color": "var(--best)", "width": 2}
    trace: Figure = {"type": "scatter", "mode": "lines+markers", "name": "front", "line": line, "marker": {"size": 11}}
    trace |= {"x": [trial.second for trial in front], "y": [trial.best for trial in front]}
    trace["customdata"] = [trial.trial_id for trial in front]
    data.append(trace | {"hovertemplate": Markup("%{x:.4g}, %{y:.4f}<extra>front</extra>")})
    names = {goal["metric"]: _goal(goal) for goal in (ledger.config["objective"], second)}
    layout = {
        "height": 400,
        "xaxis": {"title": {"text": names[second["metric"]]}},
        "yaxis": {"title": {"text": names[ledger.metric]}},
    }
    rows = [[trial_cell(t.trial_id), score_cell(t.best), t.second, params_text(t.params)] for t in front]
    table = Table("front", ["trial", ledger.metric, second["metric"], "point"], rows, wrap=[3])
    caption = (
        f"{pluralize(len(front), 'trial')} that no other beats in both objectives; which of them to use is your choice."
    )
    return {"figure": Plot("front-figure", "Both objectives", caption, data, layout), "table": table}


def _cost(findings: Findings) -> dict[str, Any]:
    ledger = findings.ledger
    trials = [trial for trial in ledger.trials.values() if trial.best is not None]
    rows = []
    for state in SYMBOLS:
        of_state = [trial for trial in ledger.trials.values() if trial.state == state]
        if of_state:
            seconds = sum(trial.seconds for trial in of_state)
            time = number_cell(span(seconds), seconds)
            rows.append([state_cell(state), len(of_state), sum(trial.own_validations for trial in of_state), time])
    for run in ledger.finals.values():
        time = number_cell(span(run.seconds), run.seconds)
        rows.append([f"final run {run.trial_id}", 1, run.validations, time])
    table = Table("cost", ["what", "trials", "validations", "training"], rows)
    if not trials:
        return {"table": table, "figure": None}
    layout = {
        "xaxis": {"title": {"text": "seconds of training"}, "rangemode": "tozero"},
        "yaxis": value_axis(ledger.metric, [trial.best for trial in trials if trial.best is not None]),
    }
    data = traces_by_state(drawn_trials(ledger, trials), lambda t: t.seconds, lambda t: t.best)
    caption = "Each trial's best value over the seconds that it trained, which are not the same for all."
    return {"table": table, "figure": Plot("quality", "Quality against cost", caption, data, layout)}


# Curves ------------------------------------------------------------------------------------------------------


def _curves(findings: Findings) -> Plot | None:
    ledger = findings.ledger
    trials = [trial for trial in ledger.ranking() if trial.curve]
    if not trials:
        return None
    per = findings.epochs_per_validation or 1.0
    unit = "epoch" if findings.epochs_per_validation else "validation"
    plotted = trials[:CURVES]
    data, legend_names = [], set()
    for trial in plotted[::-1]:  # the best on top
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
                "showlegend": label not in legend_names,
                "meta": trial.trial_id,
                "hovertemplate": Markup("trial %{{meta}}, {}<br>{} %{{x}}: <b>%{{y:.4f}}</b><extra></extra>").format(
                    trial.state, unit
                ),
            }
        )
        legend_names.add(label)
    names_plotted = {trial.trial_id for trial in plotted}
    stops = [stop for stop in findings.stops if stop.trial_id in names_plotted]
    if stops:
        data.append(asked_trace(stops, per))
    longest = per * max(len(trial.curve) for trial in plotted)
    axis = whole_axis(unit, longest) if per == int(per) else {"title": {"text": unit}}
    values = [value for trial in plotted for value in trial.curve] + [stop.asked for stop in stops]
    layout = {"height": 420, "xaxis": axis, "yaxis": value_axis(ledger.metric, values)}
    many = "" if len(plotted) == len(trials) else f"The best {len(plotted)} of {len(trials)}. "
    caption = f"{many}Dotted lines that end in a triangle were stopped early; the thick one won."
    caption += f" {ASKED}" if stops else ""
    rows = [
        [
            trial_cell(t.trial_id),
            state_cell(t.state),
            len(t.curve),
            *map(score_cell, (t.curve[0], t.best, t.curve[-1])),
            t.best_validation,
        ]
        for t in trials[:LEADERS]
    ]
    heads = ["trial", "state", "validations", "first", "best", "last", "best at"]
    table = Table("curve", heads, rows)
    return Plot("learning", "Learning curves", caption, data, layout, table)
