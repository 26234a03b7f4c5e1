"""What trials were compared with when they were stopped early: recomputed from the journal, in its order."""

import itertools
from dataclasses import dataclass

from orchestrator.config.schedulers import restored_scheduler
from orchestrator.config.schedulers.base import Bracket
from orchestrator.errors import InputError
from orchestrator.storage.ledger import Ledger


@dataclass(frozen=True)
class Stop:
    """A trial that was stopped."""

    trial_id: str
    age: int
    """Its validations."""
    value: float
    """Its best until then."""
    asked: float
    """What it would have had to have."""
    of: str
    """What that is, in words."""


def stops(ledger: Ledger) -> list[Stop]:
    """The early stops, in their order. Those of which the journal does not hold what they were compared with are left
    out: of Hyperband's brackets, of two objectives, of schedulers that this version does not know."""
    if ledger.second is not None:
        return []
    try:
        scheduler = restored_scheduler(ledger.config.get("scheduler") or {})
    except InputError:
        return []
    sign = -1.0 if ledger.mode == "max" else 1.0  # so that less is better
    courses = {
        trial.trial_id: list(itertools.accumulate((sign * value for value in trial.curve), min))
        for trial in ledger.trials.values()
    }
    happened = [(at, trial, age) for trial in ledger.trials.values() for age, at in enumerate(trial.places, start=1)]
    happened += [(t.ended_at, t, 0) for t in ledger.trials.values() if t.ended_at is not None and t.state == "done"]
    bracket = Bracket(scheduler.requirement)
    result = []
    for _, trial, age in sorted(happened, key=lambda event: event[0]):
        course = courses[trial.trial_id]
        if not age:
            bracket.finish(dict(enumerate(course, start=1)))
            continue
        loss = course[age - 1]
        required = bracket.validate(age, loss)
        if trial.state == "pruned" and age == len(course) and required is not None:  # else something else stopped it
            result.append(Stop(trial.trial_id, age, sign * loss, sign * required[0], required[1]))
    return result
