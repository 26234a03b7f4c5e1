"""The terminal of a running search: a live table, or a line per event where there is no terminal."""

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.conductor import Conductor
from orchestrator.ledger import Ledger, TrialRecord
from orchestrator.search import Outcome, Watcher
from orchestrator.tracking import Tracker, redact

STYLES = {"done": "green", "pruned": "yellow", "failed": "red", "interrupted": "magenta", "running": "cyan"}
RECENT = 12


def params_text(params: Mapping[str, Any]) -> str:
    """`alpha 3.1, delta 0.24`"""
    return ", ".join(f"{key} {_value(value)}" for key, value in params.items())


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """`1:02:03` or `2:03`"""
    minutes, rest = divmod(int(max(0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Display(Watcher):
    """Shows what the conductor does. Everything goes to stderr: stdout is for results."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.console = Console(file=stream or sys.stderr)
        self.live: Live | None = None

    def begin(self, conductor: Conductor, tracker: Tracker) -> None:
        self.conductor, self.tracker = conductor, tracker
        self.started = time.monotonic()
        self.known = sum(trial.validations for trial in conductor.ledger.trials.values())
        if self.console.is_terminal:
            self.live = Live(get_renderable=self.render, console=self.console, refresh_per_second=2, transient=True)
            self.live.start()
        else:
            self.line(f"search {conductor.search.name}: {self.budget()} trials, {conductor.slots} at a time")

    def end(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def __call__(self, event: str, trial: TrialRecord) -> None:
        if self.live is not None:
            return
        if event == "started":
            self.line(f"{self.label(trial)} started: {params_text(trial.params)}")
        elif event == "validated" and trial.curve and trial.last_metrics:
            value = trial.last_metrics.get(self.conductor.search.objective.metric)
            self.line(f"{self.label(trial)} validation {trial.validations}: {value:.4f} (best {trial.best:.4f})")
        elif event == "ended":
            why = f": {trial.reason}" if trial.reason and trial.state == "failed" else ""
            best = f", best {trial.best:.4f}" if trial.best is not None else ""
            self.line(f"{self.label(trial)} {trial.state} after {trial.validations} validations{best}{why}")

    def line(self, text: str) -> None:
        """One event. Written whole, unwrapped: it may be read by a program."""
        self.console.print(Text(text), soft_wrap=True)

    def label(self, trial: TrialRecord) -> str:
        """`trial 0007` or `final run`"""
        return "final run" if trial.kind == "final" else f"trial {trial.trial_id}"

    def budget(self) -> int:
        """Trials of the whole search."""
        return self.conductor.study.budget

    def time_left(self) -> str:
        """An estimate from the validations so far: trials to come cost what the average trial did."""
        ledger = self.conductor.ledger
        ended = [trial for trial in ledger.trials.values() if trial.state in ("done", "pruned", "failed")]
        seconds = [trial.seconds for trial in ended if trial.seconds]
        if not seconds:
            return "-"
        left = self.budget() - len(ended)
        mean = sum(seconds) / len(seconds)
        waves = left / self.conductor.slots
        winner = ledger.winner()
        final = winner.seconds if winner is not None else max(seconds)
        return duration(waves * mean + final)

    def render(self) -> Group:
        """Counts, the best so far, and the latest trials."""
        ledger, search = self.conductor.ledger, self.conductor.search
        counts = ledger.counts()
        waiting = max(0, self.budget() - len(ledger.trials)) + counts["interrupted"]
        head = Text.assemble(
            (f" {search.name} ", "bold reverse"),
            f"  waiting {waiting}  ",
            *[(f"{state} {counts[state]}  ", STYLES[state]) for state in ("running", "pruned", "done", "failed")],
            f"  {duration(time.monotonic() - self.started)} gone, {self.time_left()} left",
        )
        winner = ledger.ranking()[0] if ledger.trials and ledger.ranking()[0].best is not None else None
        best = Text("best so far: none yet")
        if winner is not None:
            best = Text.assemble(
                "best so far: ",
                (f"{search.objective.metric} {winner.best:.4f}", "bold green"),
                f"  trial {winner.trial_id}: {params_text(winner.params)}",
            )
        table = Table(box=None, pad_edge=False, expand=False)
        for column in ("trial", "state", "validations", search.objective.metric, "point"):
            table.add_column(column, justify="right" if column == "validations" else "left", no_wrap=True)
        shown = list(ledger.trials.values())[-RECENT:] + ([ledger.final] if ledger.final else [])
        for trial in shown:
            value = f"{trial.best:.4f}" if trial.best is not None else "-"
            if trial.test:
                value = f"test {trial.test.get('map_at_r', float('nan')):.4f}"
            state = Text(trial.state, style=STYLES[trial.state])
            table.add_row(trial.trial_id, state, str(trial.validations), value, params_text(trial.params))
        parts: list[Any] = [head, best, Text(""), table]
        if self.conductor.stopping:
            parts.append(Text("stopping in order; Ctrl-C again to stop at once", style="magenta"))
        if self.tracker.problem:
            parts.append(Text(f"tracker: {self.tracker.problem} (all is journaled; nothing is lost)", style="yellow"))
        return Group(*parts)


def leaderboard(ledger: Ledger, *, most: int = 20) -> Group:
    """The table at the end of a search and of `orchestrator report`."""
    keys = list(dict.fromkeys(key for trial in ledger.trials.values() for key in trial.params))
    table = Table(title=f"{ledger.name}: {ledger.metric} on held-out classes", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("trial")
    table.add_column("state")
    table.add_column(ledger.metric, justify="right")
    table.add_column("recall@1", justify="right")
    table.add_column("validations", justify="right")
    for key in keys:
        table.add_column(key, justify="right")
    ranking = ledger.ranking()
    for place, trial in enumerate(ranking[:most], start=1):
        recall = trial.best_metrics.get("val/recall_at_1")
        table.add_row(
            str(place) if trial.best is not None else "-",
            trial.trial_id,
            Text(trial.state, style=STYLES[trial.state]),
            f"{trial.best:.4f}" if trial.best is not None else "-",
            f"{recall:.4f}" if recall is not None else "-",
            str(trial.validations),
            *[_value(trial.params[key]) if key in trial.params else "" for key in keys],
        )
    parts: list[Any] = [table]
    if len(ranking) > most:
        parts.append(Text(f"and {len(ranking) - most} more: orchestrator report {ledger.name} --csv FILE"))
    if ledger.final is not None and ledger.final.test:
        test = ledger.final.test
        parts.append(
            Text.assemble(
                ("final test: ", "bold"),
                (f"map_at_r {test['map_at_r']:.4f}  recall_at_1 {test['recall_at_1']:.4f}", "bold green"),
                f"  on classes never seen before ({ledger.final.note}, {ledger.final.validations} validations)",
            )
        )
    elif ledger.final is not None and ledger.final.state == "failed":
        parts.append(Text(f"final run failed: {ledger.final.reason}", style="red"))
    return Group(*parts)


def closing(outcome: Outcome, storage: str) -> list[str]:
    """The lines after the leaderboard: how it ended, and where to look."""
    name = outcome.ledger.name
    lines = []
    if outcome.state == "interrupted":
        lines.append(f"interrupted: go on with   orchestrator resume {name} --storage {storage}")
    if outcome.problem:
        lines.append(f"tracker: {outcome.problem}")
        lines.append(f"all is journaled; send it with   orchestrator sync {name} --storage {storage}")
    return [redact(line) if "://" in line else line for line in lines]
