"""The display of a running search: a live table, or one line per event without a terminal."""

import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Group
from rich.live import Live
from rich.status import Status
from rich.text import Text

from orchestrator.cli.states import STYLES, planned_trials, short
from orchestrator.cli.tables import RECENT, trial_table
from orchestrator.cli.terminal import Terminal
from orchestrator.config.workers import in_group
from orchestrator.evaluation.measures import HEADLINES
from orchestrator.report import learning
from orchestrator.report.selection import selection_text
from orchestrator.search.watcher import Watcher
from orchestrator.storage.leaderboard import chosen_value
from orchestrator.storage.trial_record import ENDED, TrialRecord
from orchestrator.text import duration, params_text, pluralize

if TYPE_CHECKING:
    from orchestrator.search.conductor import Conductor
    from orchestrator.storage.ledger import Ledger
    from orchestrator.tracking.trackers import Tracker


def test_scores(trial: TrialRecord) -> str:
    """The scores of a trial on the test classes: `, test map_at_r 0.4868, recall_at_1 0.9010`."""
    scores = ", ".join(f"{name} {trial.test[name]:.4f}" for name in HEADLINES if name in trial.test)
    return f", test {scores}" if scores else ""


def how_it_began(trial: TrialRecord) -> str:
    if trial.copied is not None and trial.validations == trial.copied.validation:
        return f"started as a {trial.note}, in place of {trial.copied.replaces}"
    return f"continues from validation {trial.validations}" if trial.validations else "started"


class Display(Watcher):
    """Shows what the conductor does. Everything goes to stderr: stdout is for results."""

    def __init__(
        self,
        stream: TextIO | None = None,
        status: Status | None = None,
        results: Callable[["Ledger"], None] | None = None,
    ) -> None:
        """`status` is an animation that runs where no trial does; `results` shows the results, and raises nothing."""
        self.console = Terminal(file=stream or sys.stderr)
        self.status = status
        self.live: Live | None = None
        self.show = results

    def stage(self, doing: str) -> None:
        if self.status is not None:
            self.status.update(f"{doing} ...")
            self.status.start()

    def begin(self, conductor: "Conductor", tracker: "Tracker") -> None:
        if self.status is not None:
            self.status.stop()
        self.conductor, self.tracker = conductor, tracker
        self.started = time.monotonic()
        self.known = sum(trial.validations for trial in conductor.ledger.trials.values())
        held_out = learning.held_out_set(conductor.ledger)
        if held_out is not None and conductor.ledger.selection != "test":
            self.line(selection_text(held_out))
        if self.console.is_terminal:
            self.live = Live(get_renderable=self.render, console=self.console, refresh_per_second=2, transient=True)
            self.live.start()
        else:
            trials = planned_trials(self.conductor.study.budget, conductor.search.budget.limits())
            at_once = f", {conductor.slots} at a time" if conductor.slots else ""  # none: processes will join
            self.line(f"{conductor.ledger.kind} {conductor.search.name}: {trials}{at_once}")
            if conductor.ledger.trials:
                ended = len(conductor.ledger.everyone()) - len(conductor.waiting)
                what = "training" if conductor.ledger.finals else "trial"
                self.line(
                    f"resumed: {pluralize(ended, what)} ended, {len(conductor.waiting)} continue where they stopped"
                )
            self.stage("starting to train")

    def end(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
            for trial in self.conductor.ledger.finals.values():
                if trial.test:
                    self.line(f"{self.label(trial)} {trial.state}{test_scores(trial)}")

    def results(self, ledger: "Ledger") -> None:
        if self.show is not None:
            self.show(ledger)

    def __call__(self, event: str, trial: TrialRecord) -> None:
        if self.live is not None and event not in ("restarted", "anew"):
            return
        if event == "started":
            search, params = self.conductor.search, params_text(trial.params)
            in_a_group = in_group(search.workers_of_final if trial.kind == "final" else search.workers)
            how = "starting" if in_a_group else how_it_began(trial)
            self.line(f"{self.label(trial)} {how}" + (f": {params}" if params else ""))
        elif event == "training":
            self.line(f"{self.label(trial)} {how_it_began(trial)}")
        elif event == "restarted":
            why = f" ({lost[-1]})" if (lost := self.conductor.lost_workers.get(trial.trial_id)) else ""
            self.line(f"{self.label(trial)} lost a process{why} and continues from validation {trial.validations}")
        elif event == "anew":
            self.line(f"warning: {self.label(trial)}: {trial.note}")
        elif event == "validated" and trial.curve and trial.last_metrics:
            value = trial.last_metrics.get(self.conductor.search.objective.metric)
            score = f"{value:.4f} (best {trial.best:.4f}){self.selection_remark()}"
            self.line(f"{self.label(trial)} validation {trial.validations}: {score}")
        elif event == "ended":
            # of a single training the last line of the command says why
            alone = self.conductor.ledger.kind == "training" and self.conductor.search.num_trials == 1
            failed = trial.state == "failed" or trial.failure or trial in self.conductor.waiting  # or is begun again
            said = failed or trial.violations
            why = f": {trial.reason}" if trial.reason and said and not alone else ""
            best = f", best {trial.best:.4f}{self.selection_remark()}" if trial.best is not None else ""
            after = pluralize(trial.validations, "validation")
            self.line(f"{self.label(trial)} {trial.state} after {after}{best}{why}{test_scores(trial)}")

    def line(self, text: str) -> None:
        """Print one event as a single unwrapped line: a program may read it."""
        if self.status is not None:
            self.status.stop()
        self.console.print(Text(text), soft_wrap=True)

    def selection_remark(self) -> str:
        """The remark on each number of a search that selects on the test classes."""
        return " (selection: test)" if self.conductor.ledger.selection == "test" else ""

    def label(self, trial: TrialRecord) -> str:
        """`trial 0007`, `final run`, `final run of trial 0007, seed 3`"""
        if trial.kind != "final":
            return f"trial {trial.trial_id}"
        seed = f", seed {trial.params['seed']}" if self.conductor.search.final_seeds > 1 else ""
        several = self.conductor.search.final_trials > 1 or seed
        return f"final run of trial {trial.source}{seed}" if several else "final run"

    def time_left(self) -> str:
        """An estimate from the validations so far: future trials are assumed to cost the average so far."""
        ledger = self.conductor.ledger
        ended = [trial for trial in ledger.trials.values() if trial.state in ENDED]
        seconds = [trial.seconds for trial in ended if trial.seconds]
        if not seconds:
            return "-"
        remaining = 0 if self.conductor.exhausted else self.conductor.study.budget - len(ended)
        mean = sum(seconds) / len(seconds)
        trials = remaining / max(1, self.conductor.slots) * mean
        if (hours := self.conductor.search.budget.hours) is not None:
            trials = min(trials, max(0.0, hours * 3600 - self.conductor.elapsed_seconds))
        if math.isinf(trials):
            return "-"
        winner = ledger.winner()
        final = winner.seconds if winner is not None else max(seconds)
        final_waves = math.ceil(self.conductor.search.final_runs / self.conductor.final_slots)
        return duration(trials + final_waves * final)

    def render(self) -> Group:
        """Counts, the best value so far, and the latest trials."""
        ledger, search = self.conductor.ledger, self.conductor.search
        counts = ledger.counts()
        planned = self.conductor.study.budget
        waiting = counts["interrupted"] + (
            max(0, int(planned) - len(ledger.trials) + ledger.copies) if math.isfinite(planned) else 0
        )
        head = Text.assemble(
            (f" {search.name} ", "bold reverse"),
            f"  {duration(time.monotonic() - self.started)} elapsed, {self.time_left()} left",
        )
        states = Text(f" {waiting} waiting   ")
        for state in ("running", "pruned", "done", "failed"):
            states.append(f"{counts[state]} {state}   ", style=STYLES[state])
        winner = next(ledger.leaders(), None)
        best = Text(" best so far: none yet")
        if winner is not None:
            best = Text.assemble(
                " best so far: ",
                (f"{short(search.objective.metric)} {chosen_value(ledger, winner):.4f}", "bold green"),
                f" by trial {winner.trial_id}{self.selection_remark()}",
            )
        room = max(3, min(RECENT, self.console.height - 11))
        trials = list(ledger.trials.values())
        running = [trial for trial in trials if trial.state == "running"][:room]
        others = [trial for trial in trials if trial.state != "running"]
        latest = running + others[max(0, len(others) - room + len(running)) :]
        rows = sorted(latest, key=lambda trial: trial.number) + list(ledger.finals.values())[-room:]
        parts: list[Any] = [head, states, best]
        if rows:
            parts.append(trial_table(ledger, rows, ranked=False))
        else:
            parts.append(Text("\n the first trial is starting"))
        if self.conductor.stopping:
            parts.append(Text("stopping; press Ctrl-C again to stop immediately", style="magenta"))
        elif self.conductor.pausing:
            parts.append(Text("pausing: running trials finish, no new ones start", style="magenta"))
        elif not self.conductor.slots:
            parts.append(Text("waiting: there is no room for a trial now", style="yellow"))
        if self.tracker.problem:
            parts.append(
                Text(f"tracker: {self.tracker.problem} (everything is in the journal; nothing is lost)", style="yellow")
            )
        return Group(*parts)
