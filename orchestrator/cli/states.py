"""The states of searches as the terminal shows them; it imports nothing heavy, so that a look is quick."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from orchestrator.report.status import RunningTrial, Status, state_texts
from orchestrator.storage.places import Places
from orchestrator.storage.trial_record import ENDED
from orchestrator.text import pluralize, span

STYLES = {"done": "green", "pruned": "yellow", "failed": "red", "interrupted": "magenta", "running": "cyan"}


class Fitting:
    """The first of several tables that fits the terminal's width; the tables are ordered from wide to narrow."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(width=10_000)
        fitting = (t for t in self.tables if Measurement.get(console, unbounded, t).maximum <= options.max_width)
        yield next(fitting, self.tables[-1])


def short(metric: str) -> str:
    """`val/map_at_r` -> `map@r`, as the head of a narrow column."""
    return metric.removeprefix("val/").replace("_at_", "@")


def planned_trials(most: float, limits: Mapping[str, float]) -> str:
    """`40 trials`, `40 trials, at most 8 hours`, `trials for at most 100 epochs`"""
    ends = " and ".join(f"{limit:g} {key.replace('_', ' ')}" for key, limit in limits.items())
    if math.isinf(most):
        return f"trials until {ends}"
    return pluralize(int(most), "trial") + (f", until {ends} at most" if ends else "")


def status_text(state: Status, storage: Path) -> Group:
    """A search in a few lines: its state, its budget, the best so far, what runs."""
    counts = "   ".join(state_texts(state.counts, state.state == "lost"))
    head = Text.assemble((state.name, "bold"), ": ", (state.state, STYLES.get(state.state, "")))
    if state.reason:
        head.append(f" ({state.reason})")
    if state.driver:
        head.append(f", driven by {state.driver} (process {state.pid})")
    if state.asked_to:
        head.append(f", asked to {state.asked_to}")
    lines = [head, Text(f"  trials   {counts or 'none yet'}")]
    used = []
    for key, amount in state.budget.items():
        of = "" if amount.of is None else f" of {amount.of:g}"
        if key == "hours":
            of = "" if amount.of is None else f" of {span(amount.of * 3600)}"
            used.append(f"{span(amount.used * 3600)}{of}")
            continue
        unit = key.replace("_", " ")
        one = (amount.used if amount.of is None else amount.of) == 1
        used.append(f"{amount.used:.4g}{of} {unit.removesuffix('s') if one else unit}")
    if state.dataset:
        lines.insert(1, Text(f"  what     {state.method} on {state.dataset}"))
    lines.append(Text(f"  used     {', '.join(used)}"))
    if state.seconds_left is not None:
        lines.append(Text(f"  left     about {span(state.seconds_left)}"))
    if state.best and state.best.objective is not None:
        lines.append(Text(f"  best     {state.objective} {state.best.objective:.4f} by {state.best.trial_id}"))
    if state.so_far:
        first, after = state.so_far, pluralize(state.so_far.validations, "validation")
        value = f"{state.objective} {_four_digits(first)} by {first.trial_id} after {after}"
        lines.append(Text(f"  so far   {value}; {'it has not ended' if state.best else 'no trial has won yet'}"))
    if state.test:
        test, over = state.test, pluralize(state.test.seeds, "seed")
        lines.append(Text(f"  test     {test.metric} {test.mean:.4f} over {over}"))
    for trial in state.running:
        best = "" if trial.best is None else f", best {_four_digits(trial)}"
        word = "running" if state.driver else "was at "
        lines.append(Text(f"  {word}  {trial.trial_id}: {pluralize(trial.validations, 'validation')}{best}"))
    if state.tags:
        lines.append(Text(f"  tags     {', '.join(state.tags)}"))
    if state.note:
        lines.append(Text(f"  note     {state.note}"))
    if state.state in ("lost", "interrupted"):
        why = "its driver is gone; " if state.state == "lost" else ""
        lines.append(Text(f"  {why}continue with:  {Places(storage).resume_command(state.name)}"))
    return Group(*lines)


def _four_digits(trial: RunningTrial) -> str:
    return "" if trial.best is None else f"{trial.best:.4f}"


def by_comparability(states: Sequence[Status]) -> dict[tuple[str, str], list[Status]]:
    """The searches by their data set and objective: only scores of the same two can be compared."""
    groups: dict[tuple[str, str], list[Status]] = {}
    for one in states:
        groups.setdefault((one.dataset, one.objective), []).append(one)
    return groups


def _loss(one: Status) -> float:
    """Its best with less as better; of one without a value more than any."""
    loss = None if one.best is None else one.best.loss
    return math.inf if loss is None else loss


def sorted_states(states: Sequence[Status], sort: str) -> list[Status]:
    """The searches in an order: by a key's value, or the newest or the best first."""
    newest = sorted(states, key=lambda one: -one.started)
    if sort == "began":
        return newest
    if sort == "best":
        return sorted(newest, key=_loss)
    return sorted(newest, key=lambda one: str(getattr(one, sort)))


def status_table(states: Sequence[Status], *, listed: bool = False) -> Fitting:
    """One row per search: of a benchmark the newest first, and searches that have not begun last; `listed`: as they
    are, of one data set and of several methods perhaps. A narrow terminal has fewer columns, and at last the names are
    folded."""
    dropped = ["began (UTC)", "trials", "tags", "benchmark", "method"]
    tables = [_status_table(states, listed, dropped[:count]) for count in range(len(dropped) + 1)]
    return Fitting([*tables, _status_table(states, listed, dropped, fold="search")])


def _status_table(
    states: Sequence[Status], listed: bool, left_out: Sequence[str], fold: Literal["search", "others"] = "others"
) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    columns: dict[str, Callable[[Status], str]] = {}
    if listed:
        columns = {"method": lambda one: one.method or ""}
    if len({one.benchmark for one in states}) > 1:
        columns["benchmark"] = lambda one: one.benchmark or ""
    if listed and any(one.tags for one in states):
        columns["tags"] = lambda one: ", ".join(one.tags)
    heads = [head for head in ("search", *columns, "state", "trials", "best", "began (UTC)") if head not in left_out]
    for head in heads:
        right = head in ("trials", "best")
        table.add_column(
            head,
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=(head == "search") != (fold == "search"),
        )
    for one in states if listed else sorted_states(states, "began"):
        ended = sum(one.counts[state] for state in ENDED)
        of = one.budget["trials"].of
        value = None if one.best is None else one.best.objective
        best = "-" if value is None else f"{short(one.objective)} {value:.4f}"
        if (ahead := one.so_far) is not None:  # a trial that has not ended stands higher, or none has ended
            best = f"{short(one.objective)} {_four_digits(ahead)} so far"
        began = time.strftime("%Y-%m-%d %H:%M", time.gmtime(one.started / 1000)) if one.started else "-"
        trials = f"{ended}" + ("" if of is None else f" of {of}")
        state = Text(one.state, style=STYLES.get(one.state, ""))
        row: dict[str, str | Text] = {
            "search": one.name,
            **{head: value(one) for head, value in columns.items()},
            "state": state,
        }
        row |= {"trials": trials, "best": best, "began (UTC)": began}
        table.add_row(*(row[head] for head in heads))
    return table
