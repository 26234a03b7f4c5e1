"""A next step, and what its command costs.

Costs are sums of training time (not of a clock, where trainings run at the same time), from the seconds that this
search's own validations took; tests and start-up are not in them.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.findings import Findings
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.outputs import Output
from orchestrator.storage.places import address_words
from orchestrator.text import span

TRAINING = ("search", "resume", "benchmark", "train")
"""The commands that take `--address`."""
CONTENDERS = 3
"""The maximum number of trials that are confirmed, or that begin a next search."""
CONTENDING_METHODS = 6
"""The most methods of which one trial each is confirmed in a search over them."""


class NextStep(Output):
    rule: str
    what: str
    reason: str
    command: str | None
    seconds_of_training: float | None
    expected_gain: float | None


@dataclass(frozen=True)
class ProposedStep:
    """One thing to do next. `command` is None where that is to run nothing."""

    rule: str
    what: str
    why: str
    command: str | None = None
    seconds: float | None = None
    """Of training, all of the command's together; None if that is not known."""
    gain: float | None = None
    """By how much it is expected to better the objective; None where it betters nothing, or that is not known."""

    @property
    def rate(self) -> float:
        """The expected gain per second of training."""
        return (self.gain or 0.0) / max(1.0, self.seconds or 0.0)

    @property
    def cost(self) -> str:
        """`about 2 h 5 min of training`; empty for no command."""
        if self.command is None:
            return ""
        return "cost not known" if self.seconds is None else f"about {span(self.seconds)} of training"

    @property
    def output(self) -> NextStep:
        """For JSON."""
        return NextStep(
            rule=self.rule,
            what=self.what,
            reason=self.why,
            command=self.command,
            seconds_of_training=self.seconds,
            expected_gain=self.gain,
        )


def line(findings: Findings, words: Sequence[str]) -> str:
    """A command, in the storage of this search; one that trains, where those that join this search look for it too."""
    place = ["--storage", findings.storage] if findings.storage else []
    folder = findings.ledger.folder
    if words[1] in TRAINING and folder is not None:
        place += address_words(folder)
    return shlex.join([*words, *place])


def _per_validation(ledger: Ledger) -> float | None:
    validations = sum(trial.own_validations for trial in ledger.everyone())
    return sum(trial.seconds for trial in ledger.everyone()) / validations if validations else None


def of_trials(findings: Findings, count: int) -> float | None:
    """So many trials like this search's, early stops included, and its final runs."""
    ledger = findings.ledger
    ended = ledger.candidates()
    if not ended:
        return None
    trial = sum(t.seconds for t in ended) / len(ended)
    return count * trial + of_finals(findings, count_final_runs(ledger))


def left_of(findings: Findings) -> float | None:
    """The seconds of the trials that have not ended; None if their number is not known."""
    ledger, planned = findings.ledger, findings.ledger.config.get("num_trials")
    if planned is None:
        return None
    if not ledger.is_population or not ledger.epochs:
        return of_trials(findings, max(0, planned - len(ledger.candidates())))
    whole = planned * max(float(trial.epochs_planned) for trial in ledger.trials.values())
    left: float = max(0.0, whole / ledger.epochs - 1) * sum(trial.seconds for trial in ledger.trials.values())
    return left + of_finals(findings, count_final_runs(ledger))


def of_finals(findings: Findings, runs: int) -> float:
    """So many final runs, each as long as the winner's training was until its best validation."""
    each, winner = _per_validation(findings.ledger), findings.winner
    return 0.0 if each is None or winner is None else runs * each * (winner.best_validation or 0)


def count_final_runs(ledger: Ledger) -> int:
    """The number of final runs of a search like this one."""
    config = ledger.config
    return config.get("final_trials", 1) * config.get("final_seeds", 1) if config.get("final", True) else 0
