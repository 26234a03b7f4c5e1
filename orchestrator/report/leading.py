"""Which trial of a search leads: the one chosen on held-out classes, unless tests over seeds favour another one.

What is trained again, exported, shown and compared with papers is the leading trial's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.significance import Difference, between_confirmed, how_tested
from orchestrator.report.tested import goals
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord


@dataclass(frozen=True)
class Favoured:
    """A trial that tests over seeds put before the one that was chosen."""

    trial: TrialRecord
    chosen: TrialRecord
    difference: Difference
    """Between the two, in either direction."""

    @property
    def text(self) -> str:
        """`the tests favour 0013 by 0.0480 (95%: 0.0310 to 0.0650, p 0.004)`"""
        difference = self.difference
        low, high = (None, None) if difference.ends is None else difference.ends
        if difference.mean < 0 and low is not None and high is not None:
            low, high = -high, -low
        ends = "" if low is None else f"95%: {low:.4f} to {high:.4f}, "
        return (
            f"the tests favour {self.trial.trial_id} by {abs(difference.mean):.4f} ({ends}p {difference.adjusted:.2g})"
        )

    def warning(self, between: Sequence[Difference]) -> str:
        """What choosing by the test costs, in two sentences."""
        return (
            f"Trial {self.trial.trial_id} leads because of its test ({how_tested(between)}), which is no longer a test "
            "of it: its value is more likely too high than too low. Confirm it on other seeds, and on classes that "
            "chose nothing."
        )


def find_favoured(ledger: Ledger, between: Sequence[Difference] | None = None) -> Favoured | None:
    """The trial whose tests are better than the chosen one's, beyond chance; of several the one with the best mean.

    None with two objectives, which have a front and no winner. Of a grid over seeds, one trial stands for each point.
    `between` are the differences between the confirmed trials, where these are known already.
    """
    winner = ledger.winner()
    if winner is None or ledger.second is not None or len(ledger.finals) < 2:
        return None
    goal, ahead = goals(ledger)[0], []
    for difference in between_confirmed(ledger) if between is None else between:
        if not difference.real or winner.trial_id not in (difference.one, difference.other):
            continue
        other, gain = (
            (difference.other, -difference.mean)
            if difference.one == winner.trial_id
            else (difference.one, difference.mean)
        )
        if (gain if goal.larger else -gain) > 0:
            ahead.append(Favoured(ledger.trials[other], winner, difference))
    return max(ahead, key=lambda one: abs(one.difference.mean), default=None)


def leading(ledger: Ledger) -> TrialRecord | None:
    """The trial to use: the favoured one, or the winner."""
    favourite = find_favoured(ledger)
    return ledger.winner() if favourite is None else favourite.trial


def final_of(ledger: Ledger) -> TrialRecord | None:
    """The leading trial's first final run, whatever became of it; None if it has none."""
    return next(iter(ledger.final_runs_of(leading(ledger))), None)
