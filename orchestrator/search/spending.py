"""What a search has used of its budgets."""

import itertools
import math
import statistics

from orchestrator.config.search import Search
from orchestrator.storage.ledger import Ledger
from orchestrator.text import counted_amount


def budget_used(ledger: Ledger) -> dict[str, float]:
    """How much of each budget a search has used, by the budget's name in a search file."""
    return {
        "epochs": ledger.epochs,
        "hours": ledger.elapsed / 3600,
        "gpu_hours": ledger.hours["GPU"],
        "cpu_hours": ledger.hours["CPU"],
        "trials_without_improvement": ledger.trials_without_improvement,
    }


def spent_limit(
    search: Search, ledger: Ledger, hours: float, slots: int, epochs: float, *, repeat: bool = False
) -> str | None:
    """The limit that leaves no room for so many `epochs` more of a point, in words, as what the rounds of repeats take
    is kept free; or none for one more `repeat` of a leading point. None if there is room.

    Epochs include what running and interrupted trials may still take, so that this budget is never exceeded; the
    other budgets are only checked for being reached, and running trials then continue to their end. `hours` are those
    so far.
    """
    if not (limits := search.budget.limits()):
        return None
    kept = {} if repeat else cost_of_rounds(search, ledger, slots)
    if "epochs" in limits:
        unfinished = [trial for trial in ledger.unfinished_trials() if trial.kind == "trial"]
        promised = sum(max(0.0, trial.epochs_planned - trial.epochs) for trial in unfinished)
        if ledger.epochs + promised + epochs + kept.get("epochs", 0.0) > limits["epochs"] + 1e-6:
            return f"budget: {counted_amount(limits['epochs'], 'epoch')}"
    used = budget_used(ledger) | {"hours": hours}
    others = [key for key in limits if key != "epochs" and not (repeat and key == "trials_without_improvement")]
    reached = [key for key in others if used[key] + kept.get(key, 0.0) >= limits[key]]
    return f"budget: {limits[reached[0]]:g} {reached[0].replace('_', ' ')}" if reached else None


def cost_of_rounds(search: Search, ledger: Ledger, slots: int) -> dict[str, float]:
    """What the rounds of repeats take of each budget: epochs at most, hours as the leading trials took on average, of
    which `slots` train at once, and as those take that run until then."""
    if not (rounds := search.rounds):
        return {}
    cost, slots = {"epochs": float(search.most_epochs * sum(rounds))}, max(1, slots)
    leading = list(itertools.islice((trial for trial in ledger.leaders() if trial.state == "done"), rounds[0]))
    if leading:
        waves = 1 + sum(math.ceil(size / slots) for size in rounds)
        cost["hours"] = waves * statistics.fmean(trial.seconds for trial in leading) / 3600
        for kind in ("GPU", "CPU"):
            mean = statistics.fmean(trial.hours.get(kind, 0.0) for trial in leading)
            cost[f"{kind.lower()}_hours"] = (slots + sum(rounds)) * mean
    return cost
