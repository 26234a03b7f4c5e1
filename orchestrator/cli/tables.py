"""Leaderboards, comparisons and closing lines as the terminal shows them."""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from orchestrator.cli.states import STYLES, Fitting, short
from orchestrator.config.search import Search
from orchestrator.errors import InputError, redact
from orchestrator.evaluation.measures import BESIDE, HEADLINES
from orchestrator.report import learning
from orchestrator.report.answers import Answers, answers_of
from orchestrator.report.claims import between, in_range, means, single_tests
from orchestrator.report.comparison import Comparison, rows
from orchestrator.report.findings import Findings
from orchestrator.report.leading import find_favoured
from orchestrator.report.limits import constraint_lines
from orchestrator.report.next_steps import next_steps
from orchestrator.report.points import Placed, apart_text, best_text, placed_points, seed_effect_text, seeds_text
from orchestrator.report.significance import Difference, between_confirmed, how_tested
from orchestrator.report.steps import ProposedStep
from orchestrator.report.tested import is_held_out, measured_on
from orchestrator.search.finish import Outcome
from orchestrator.storage import paths
from orchestrator.storage.cursors import recorded_runs
from orchestrator.storage.events import last_start
from orchestrator.storage.leaderboard import Interval, repeated_tests, value_columns
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import PAGE, Places
from orchestrator.storage.reading import read_journal
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import params_text, pluralize, value_text
from orchestrator.tracking.address import default_tracking_uri, web_address
from orchestrator.tracking.views import MAX_COMPARED, View, comparison_path, report_path, run_path, view_path

RECENT = 12
MAX_DIFFERENCES = 10


def trial_table(ledger: Ledger, trials: Sequence[TrialRecord], *, ranked: bool) -> Fitting:
    """One row per trial. In a narrow terminal, long heads are folded, then the less important columns are dropped,
    and finally the whole point is shown in one column."""
    keys = list(dict.fromkeys(key for trial in trials for key in trial.params))
    on_front = set(ledger.front) if ranked and ledger.second is not None else set()
    values = value_columns(ledger, compared=ranked)

    def table(*, fold: bool, leave_out: Sequence[str] = (), point: bool = False) -> Table:
        columns: dict[str, Callable[[TrialRecord], str | Text]] = {
            "trial": lambda trial: trial.trial_id,
            "state": lambda trial: _state(ledger, trial),
            **{short(name): partial(_value, of=of) for name, of in values.items()},
            **({} if not on_front else {"front": lambda trial: "*" if trial.trial_id in on_front else ""}),
            **{metric.label: partial(_beside, name=f"val/{metric.name}") for metric in BESIDE},
            "validations": lambda trial: str(trial.validations),
        }
        if point:
            columns["point"] = lambda trial: Text(params_text(trial.params), no_wrap=True, overflow="ellipsis")
        else:
            columns |= {key: partial(_param, key=key) for key in keys}
        visible_columns = {name: cell for name, cell in columns.items() if name not in leave_out}
        result = Table(box=SIMPLE_HEAD, pad_edge=False)
        if ranked:
            result.add_column("#", justify="right")
        for name in visible_columns:
            is_text = name in ("trial", "state", "point")
            head = _fold(name) if fold else name
            result.add_column(head, justify="left" if is_text else "right", no_wrap=name != "point")
        for place, trial in enumerate(trials, start=1):
            rank = [str(place) if trial.is_ranked else "-"] if ranked else []
            result.add_row(*rank, *[cell(trial) for cell in visible_columns.values()])
        return result

    lean = (*(metric.label for metric in BESIDE), "validations")
    return Fitting(
        [
            table(fold=False),
            table(fold=True),
            table(fold=True, leave_out=lean[:-1]),
            table(fold=True, leave_out=lean),
            table(fold=True, leave_out=lean, point=True),
        ]
    )


def _state(ledger: Ledger, trial: TrialRecord) -> Text:
    """The state in color: green for a trial that has learned something, as far as that is known."""
    word = learning.state_word(ledger, trial)
    return Text(word, style=STYLES.get(word, "red"))


def _beside(trial: TrialRecord, name: str) -> str:
    return _measured_line(trial.best_metrics.get(name))


def _measured_line(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _value(trial: TrialRecord, of: Callable[[TrialRecord], float | None]) -> str:
    return _measured_line(of(trial))


def _param(trial: TrialRecord, key: str) -> str:
    return value_text(trial.params[key]) if key in trial.params else ""


def _fold(head: str) -> str:
    """`proxies_per_class` on two lines of similar length; short heads are not folded."""
    if len(head) <= 8:
        return head
    if head == "validations":
        return "valid-\nations"
    if " " in head:
        return head.replace(" ", "\n", 1)
    cuts = [i + 1 for i, letter in enumerate(head) if letter in "_@"]
    cut = min(cuts, key=lambda i: abs(2 * i - len(head)), default=len(head))
    return f"{head[:cut]}\n{head[cut:]}".strip()


def leaderboard(ledger: Ledger, *, most: int = 20) -> Group:
    """The table at the end of a search and of `orchestrator report`."""
    ranking = ledger.ranking()
    on_test = ledger.selection == "test"
    kind = "images" if ledger.config.get("settings", {}).get("protocol") == "classification" else "classes"
    selected_on = f"TEST {kind} (selection: test)" if on_test else f"held-out {kind}"
    tested_on = selected_on if on_test else f"{kind} never seen before"
    where = f" on {selected_on}" if is_held_out(ledger.metric) else ""
    title = Text.assemble((ledger.name, "bold"), f": {ledger.metric}{where}")
    if ledger.state != "done":
        states = ", ".join(f"{count} {state}" for state, count in ledger.counts().items() if count)
        why = f" ({ledger.reason})" if ledger.reason else ""
        title.append(f"\n{ledger.state}{why}: {states or 'no trial yet'}", style=STYLES.get(ledger.state, ""))
    elif ledger.reason:
        title.append(f"\nended by its {ledger.reason}, after {pluralize(len(ranking), 'trial')}")
    if ledger.second is not None:
        count = len(ledger.front)
        title.append(f"\n{pluralize(count, 'trial')} on the front (*) of {ledger.metric} and {ledger.second}")
    for line in constraint_lines(ledger):
        title.append(f"\n{line}")
    points = placed_points(ledger)
    parts: list[Any] = [
        title,
        *_points(ledger, points, most, where),
        trial_table(ledger, ranking[:most], ranked=True),
    ]
    if line := learning.verdict_line(ledger):
        parts.insert(1, Text(line, style="bold red"))
    if len(ranking) > most:
        parts.append(Text(f"and {len(ranking) - most} more: orchestrator report {ledger.name} --format csv"))
    if (ahead := find_favoured(ledger)) is not None:
        parts.append(Text(f"chosen{measured_on(ledger)}: {ahead.chosen.trial_id}; {ahead.text}", style="bold yellow"))
    repeated = repeated_tests(ledger)
    for group in repeated:
        what = f"final test of trial {group.source}" if group.source else "test"
        head = f"{what} over {pluralize(len(group.trial_ids), 'seed')}"
        parts.append(Text.assemble((head, "bold"), f", on {tested_on}"))
        parts += [
            _spread(name, group.metrics[name], between(ledger, means(group), name))
            for name in HEADLINES
            if name in group.metrics
        ]
    compared = between_confirmed(ledger)
    if compared:
        parts.append(Text.assemble(("which differences are real", "bold"), f" ({how_tested(compared)})"))
        parts += [difference_line(difference) for difference in compared[:MAX_DIFFERENCES]]
        if len(compared) > MAX_DIFFERENCES:
            parts.append(
                Text(f"  and {len(compared) - MAX_DIFFERENCES} more: orchestrator report {ledger.name} --json")
            )
    for trial in single_tests(ledger, repeated):
        what = f" ({trial.note}, {pluralize(trial.validations, 'validation')})" if trial.note else ""
        names = [name for name in HEADLINES if name in trial.test]
        scores = "  ".join(f"{name} {trial.test[name]:.4f}" for name in names)
        head = "final test: " if trial.kind == "final" else "test: "
        parts.append(Text.assemble((head, "bold"), (scores, "bold green"), f"  on {tested_on}{what}"))
        intervals = {name: between(ledger, trial.test, name) for name in names}
        if any(intervals.values()):
            parts.append(_indent("; ".join(f"{name} {ends}" for name, ends in intervals.items() if ends)))
    if numbers := learning.yardstick_lines(ledger):
        parts.append(Text("what the numbers are compared with", style="bold"))
        parts += [_indent(line) for line in numbers]
    parts += [Text(f"warning: {line}", style="yellow") for line in learning.warnings_of(ledger)]
    done = sum(final.state == "done" for final in ledger.finals.values())
    planned = Search.model_construct(**ledger.config).final_runs
    if done < planned and ledger.finals:
        parts.append(Text(f"{done} of {planned} final runs are done", style="yellow"))
    failed = [final for final in ledger.finals.values() if final.state == "failed"]
    parts += [Text(f"final run failed: {final.reason}", style="red") for final in failed]
    return Group(*parts)


def _points(ledger: Ledger, points: Sequence[Placed], most: int, where: str) -> list[Any]:
    """The points of a grid over their seeds, and which of them the noise allows to tell apart."""
    if not points:
        return []
    keys = list(dict.fromkeys(key for one in points for key in one.point.params))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head in ("#", *map(_fold, keys), "seeds", "mean", "devi-\nation", "95% of\nthe mean", "told\napart"):
        table.add_column(head, justify="right", no_wrap=True)
    for number, one in enumerate(points[:most], start=1):
        params, spread = one.point.params, one.point.interval
        row = [value_text(params[key]) if key in params else "" for key in keys]
        row += [str(len(one.point.values)), f"{one.point.mean:.4f}"]
        row += ["-", "-"] if spread is None else _spread_cells(in_range(ledger.metric, spread))
        table.add_row(str(number), *row, one.answer or "best")
    title = Text.assemble((f"points by the mean over {seeds_text(points)}", "bold"), f" of {ledger.metric}")
    parts: list[Any] = [title, table]
    if len(points) > most:
        parts.append(Text(f"and {len(points) - most} more: orchestrator report {ledger.name} --format csv"))
    parts.append(Text(f"{best_text(ledger, points, where)} {apart_text(points)} {seed_effect_text(ledger)}"))
    return [*parts, Text("trials", style="bold")]


def _spread_cells(spread: Interval) -> list[str]:
    return [f"{spread.standard_deviation:.4f}", f"{spread.low:.4f} to {spread.high:.4f}"]


def first_and_last(ledger: Ledger, storage: Path, width: int, folder: Path | None = None) -> tuple[Text, Text]:
    """What stands before the leaderboard, the first answers, and after it, what to run next; each wrapped, but its
    commands."""
    findings = Findings.of(ledger, storage=paths.option(storage), folder=folder)
    steps = next_steps(findings)
    return _first_answers(answers_of(findings, steps), width), _steps(steps, width)


def _first_answers(answers: Answers, width: int) -> Text:
    text = Text()
    for answer in answers.each:
        said, head = fill(f"{answer.question} {answer.whole}", width, subsequent_indent="  "), len(answer.question)
        text.append(said[:head], style="bold").append(f"{said[head:]}\n")
    if answers.command is not None:
        text.append(f"  {answers.command}\n", style="cyan")
    return text


def _steps(steps: Sequence[ProposedStep], width: int) -> Text:
    """With costs and reasons, and commands, each on one line to copy."""
    text = Text.assemble(("what to run next", "bold"))
    for number, step in enumerate(steps, start=1):
        cost = f" ({step.cost})" if step.cost else ""
        said = f"{step.what}{cost}: {step.why}"
        text.append("\n" + fill(said, width, initial_indent=f"  {number}. ", subsequent_indent="     "))
        if step.command is not None:
            text.append(f"\n       {step.command}", style="cyan")
    return text


def comparison_table(comparison: Comparison) -> Group:
    """The comparison of several searches, and the data behind it."""
    heads, lines = rows(comparison)
    beside = [head for head in heads if head.startswith("test ") and head != f"test {comparison.metric}"]

    def table(leave_out: Sequence[str] = ()) -> Table:
        result = Table(box=SIMPLE_HEAD, pad_edge=False)
        visible_columns = [column for column, head in enumerate(heads) if head not in leave_out]
        for column in visible_columns:
            result.add_column(short(heads[column]), justify="left" if column == 1 else "right", no_wrap=True)
        for line in lines:
            result.add_row(*(line[column] for column in visible_columns))
        return result

    lean = ("seconds per training", "hours", "trials", "epochs", "held-out", *beside, "seeds")
    fitting = Fitting([table(lean[:count]) for count in range(len(lean) + 1)])
    parts: list[Any] = [Text(comparison.name, style="bold"), fitting]
    parts += [Text(line, style="" if n else "bold") for n, line in enumerate(comparison.verdict)]
    parts += [difference_line(difference) for difference in comparison.differences[:MAX_DIFFERENCES]]
    parts += [Text(line) for line in comparison.outlook]
    parts += [Text(f"note: {line}", style="yellow") for line in comparison.notes]
    return Group(*parts)


def difference_line(difference: Difference) -> Text:
    """`  0003 - 0007  +0.0120 (95%: 0.0080 to 0.0160), p 0.004: real`"""
    verdict = ("real", "bold green") if difference.real else ("not distinguishable", "yellow")
    verdict = verdict if difference.is_tested else ("not tested", "yellow")
    return Text.assemble(f"  {difference.one} - {difference.other}  {difference.text}: ", verdict)


def _indent(line: str) -> Padding:
    """A line two columns in, and what is left of it where it is wrapped too."""
    return Padding(Text(line), (0, 0, 0, 2), expand=False)


def _spread(name: str, interval: Interval, classes: str) -> Text:
    """`map_at_r 0.5121 +- 0.0040 (mean, 95%: 0.5071 to 0.5171)`, and the interval over classes."""
    interval = in_range(name, interval)
    spread = f"{interval.mean:.4f} \N{PLUS-MINUS SIGN} {interval.standard_deviation:.4f}"
    return Text.assemble(
        f"  {name:12s} ",
        (spread, "bold green"),
        f"  (mean, 95% over seeds: {interval.low:.4f} to {interval.high:.4f}{f'; {classes}' if classes else ''})",
    )


def closing(outcome: Outcome, storage: Path, port: int) -> list[str]:
    """The lines after the leaderboard: how the search ended, and where to look at it (its page, MLflow)."""
    name, uri, place = outcome.ledger.name, redact(outcome.tracking_uri), paths.in_command(storage)
    lines = []
    if outcome.state == "interrupted":
        again = Places(storage).resume_command(name)
        lines.append(f"{outcome.ledger.reason or 'interrupted'}; continue with:  {again}")
    if outcome.problem:
        lines.append(f"tracker: {redact(outcome.problem)}")
        lines.append(f"everything is in the journal; send it with:  orchestrator sync {name}{place}")
    if outcome.refused:
        lines.append(f"tracker: {redact(outcome.refused)}; all else is there")
    if (outcome.journal.parent / PAGE).exists():
        lines.append(f"on a page:  {storage / 'searches' / name / PAGE}")
    if outcome.experiment_id is not None and outcome.parent_run_id is not None:
        if not uri.startswith("http"):
            is_default = outcome.tracking_uri == default_tracking_uri(storage.expanduser())
            elsewhere = "" if is_default else f" --tracking-uri {shlex.quote(uri)}"
            lines.append(f"in MLflow:  orchestrator ui {name}{place}{elsewhere}  (while it runs, these addresses work)")
        lines += [f"  {what + ':':<15}{address}" for what, address in links(outcome, port).items()]
        if outcome.no_views:
            lines.append(f"warning: {redact(outcome.no_views)}")
    return lines


def landing(journal: Path, tracking_uri: str, port: int) -> str:
    """Where MLflow shows a search; InputError if it is not there."""
    runs, (events, ledger) = recorded_runs(journal), read_journal(journal)
    # the storage's own database moves with it; the cursor still has the old address
    moved = last_start(events).tracking_uri is None and tracking_uri == default_tracking_uri(journal.parents[2])
    if runs.experiment_id is None or not (moved or runs.tracking_uri == redact(tracking_uri)):
        raise InputError(
            f"search '{journal.parent.name}' was not sent to {redact(tracking_uri)}: send it with "
            f"orchestrator sync {journal.parent.name} --tracking-uri {redact(tracking_uri)}"
        )
    return f"{web_address(tracking_uri, port)}/{view_path(runs.experiment_id, ledger.search_id, 'table')}"


def links(outcome: Outcome, port: int) -> dict[str, str]:
    """Names and addresses of a few views in MLflow, the others are near these; for a database, those once it is served
    at `port`."""
    if outcome.experiment_id is None or outcome.parent_run_id is None:
        return {}
    base, experiment = web_address(outcome.tracking_uri, port), outcome.experiment_id
    ledger = outcome.ledger
    runs = recorded_runs(outcome.journal).trials
    best = [runs[trial.trial_id] for trial in ledger.candidates() if trial.trial_id in runs][:MAX_COMPARED]
    addresses: dict[str, str] = {}
    if (outcome.journal.parent / PAGE).exists():
        addresses["the report"] = report_path(experiment, outcome.parent_run_id, PAGE)
    if outcome.no_views is None:
        views: dict[str, View] = {"leaderboard": "table", "charts": "charts"}
        addresses |= {what: view_path(experiment, ledger.search_id, view) for what, view in views.items()}
    if len(best) > 1:
        viewed = outcome.no_views is None and ledger.second is None
        path = view_path(experiment, ledger.search_id, "best") if viewed else comparison_path(experiment, best)
        addresses[f"the best {len(best)}"] = path
    if outcome.no_views is not None:
        addresses["the search"] = run_path(experiment, outcome.parent_run_id)
    return {what: f"{base}/{path}" for what, path in addresses.items()}
