"""What a search says of its constraints."""

from collections.abc import Mapping

from orchestrator.storage.costs import COSTS, violation_text
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import pluralize

ROOM = 1.1
INFEASIBLE = "infeasible"
"""What a trial that breaks a constraint is called in tables."""


def constraint_lines(ledger: Ledger) -> list[str]:
    """Each limit, how many trials break it, and by how much: `cost/megabytes at most 50 MB: 3 of 20 trials break it, by
    4.4 to 10.8`."""
    lines = []
    for name, limit in ledger.constraints.items():
        above = sorted(limit * t.violations[name] for t in ledger.trials.values() if name in t.violations)
        line = f"{name} at most {limit:g} {COSTS[name].unit}"
        if above:
            ends = dict.fromkeys(f"{end:.3g}" for end in (above[0], above[-1]))
            line += f": {len(above)} of {pluralize(len(ledger.trials), 'trial')} above it, by {' to '.join(ends)}"
        lines.append(line)
    return lines


def within_words(trial: TrialRecord, constraints: Mapping[str, float]) -> list[str]:
    """The options of a search whose limits a trial holds to, with room for the noise of a latency."""
    limits = [f"{name}={ROOM * constraints[name] * (1 + excess):.3g}" for name, excess in trial.violations.items()]
    return [word for limit in limits for word in ("--constraints", limit)]


def no_feasible_trial(ledger: Ledger) -> str | None:
    """Where no trial has won because of the limits: that, and which was nearest."""
    if (nearest := ledger.nearest()) is None:
        return None
    above = violation_text(nearest, ledger.constraints)
    return f"no trial holds to its constraints; the nearest, {nearest.trial_id}: {above}"
