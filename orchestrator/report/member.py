"""One of several searches that are compared: its winner, the winner's tests, and what the search spent."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.report.claims import in_range
from orchestrator.report.commands import train_command
from orchestrator.report.findings import Findings
from orchestrator.report.significance import tests_by_seed
from orchestrator.storage.leaderboard import Interval, chosen_value
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.outputs import Number, Output, SettingValue
from orchestrator.storage.trial_record import TrialRecord


class WinnerTests(Output):
    """The tests of a winner, by seed."""

    mean: float
    standard_deviation: float | None
    seeds: dict[str, float]


class MemberOutput(Output):
    """One of the searches that are compared."""

    label: str
    search: str
    state: str
    params: dict[str, SettingValue] | None
    objective: float | None
    test: WinnerTests | None
    trials: dict[str, int]
    epochs: Number
    hours: Number
    training_seconds: Number
    command: str | None


@dataclass(frozen=True)
class Member:
    """One of the searches compared."""

    label: str
    findings: Findings
    metric: str
    tests: Mapping[int, float]
    """The winner's test by seed."""

    @property
    def ledger(self) -> Ledger:
        """The whole search."""
        return self.findings.ledger

    @property
    def winner(self) -> TrialRecord | None:
        """Its best trial on held-out classes."""
        return self.findings.winner

    @property
    def command(self) -> str | None:
        """The command that trains its winner again: searches are compared by what they chose on held-out classes."""
        return None if self.winner is None else train_command(self.winner.settings)

    @property
    def mean(self) -> float | None:
        """The mean of its tests."""
        return statistics.fmean(self.tests.values()) if self.tests else None

    @property
    def interval(self) -> Interval | None:
        """The same with deviation and 95% interval, for two seeds or more."""
        if len(self.tests) < 2:
            return None
        return in_range(self.metric, Interval.of(list(self.tests.values()), self.ledger.one_query(self.metric)))

    @property
    def text(self) -> str:
        """`0.5121 ± 0.0040`"""
        return spread_text(self.tests) or "no test"

    def beside(self, metric: str) -> Mapping[int, float]:
        """The winner's test of another metric, by seed."""
        return tests_by_seed(self.ledger, self.winner, metric)

    @property
    def training_seconds(self) -> float:
        """The time of one training of its winner: of its tested runs, if it has some."""
        tested = [run.seconds for run in self.ledger.tests_of(self.winner) if run.seconds]
        if tested:
            return statistics.fmean(tested)
        return 0.0 if self.winner is None else self.winner.seconds

    @property
    def hours(self) -> float:
        """The hours of all its trials together, without its final runs."""
        return sum(trial.seconds for trial in self.ledger.trials.values()) / 3600

    @property
    def output(self) -> MemberOutput:
        """For JSON."""
        ledger, winner = self.ledger, self.winner
        return MemberOutput(
            label=self.label,
            search=ledger.name,
            state=ledger.state,
            params=None if winner is None else winner.params,
            objective=None if winner is None else chosen_value(ledger, winner),
            test=None
            if self.mean is None
            else WinnerTests(
                mean=self.mean,
                standard_deviation=None if self.interval is None else self.interval.standard_deviation,
                seeds={str(seed): value for seed, value in sorted(self.tests.items())},
            ),
            trials=ledger.counts(),
            epochs=ledger.epochs,
            hours=self.hours,
            training_seconds=self.training_seconds,
            command=self.command,
        )

    def progress(self) -> list[tuple[float, float]]:
        """Epochs spent and best so far, after each finished trial, in order of completion."""
        ledger, steps, spent = self.ledger, [], 0.0
        best: float | None = None
        for trial in sorted(ledger.trials.values(), key=lambda t: (t.ended is None, t.ended or 0, t.number)):
            spent += trial.own_epochs
            if trial.best is not None and (best is None or ledger.better(trial.best, best)):
                best = trial.best
            if best is not None:
                steps.append((spent, best))
        return steps

    @property
    def late_gain(self) -> float:
        """How much its best on held-out classes improved in the second half of the epochs that it spent."""
        steps = self.progress()
        if not steps:
            return 0.0
        before = [best for spent, best in steps if spent <= steps[-1][0] / 2]
        return abs(steps[-1][1] - (before[-1] if before else steps[0][1]))


def spread_text(tests: Mapping[int, float]) -> str:
    """`0.5121 ± 0.0040`, of one seed `0.5121`; empty for none."""
    if not tests:
        return ""
    spread = f" ± {statistics.stdev(tests.values()):.4f}" if len(tests) > 1 else ""
    return f"{statistics.fmean(tests.values()):.4f}{spread}"


def in_queries(one: Member, other: Member) -> list[str]:
    """What a difference means for a user, as a sentence: of 1,000 queries, how many more have a right nearest
    neighbour. None without common tests of recall@1."""
    one_recalls, other_recalls = one.beside("recall_at_1"), other.beside("recall_at_1")
    seeds = one_recalls.keys() & other_recalls.keys()
    if not seeds:
        return []
    more = round(1000 * statistics.fmean(one_recalls[seed] - other_recalls[seed] for seed in seeds))
    count = f"{abs(more)} {'more' if more >= 0 else 'fewer'}" if more else "as many"
    than = "than" if more else "as"
    return [f"Of 1,000 queries {count} have a right nearest neighbour with {one.label} {than} with {other.label}."]
