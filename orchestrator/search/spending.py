"""What a search has used of its budgets."""

from collections.abc import Mapping

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


def spent_limit(ledger: Ledger, limits: Mapping[str, float], most_epochs: float, hours: float) -> str | None:
    """The limit that leaves no room for one more trial of `most_epochs`, in words; None if there is room.

    Epochs include what running and interrupted trials may still take, so that this budget is never exceeded; the
    other budgets are only checked for being reached, and running trials then continue to their end. `hours` are those
    so far.
    """
    if not limits:
        return None
    if "epochs" in limits:
        unfinished = [trial for trial in ledger.unfinished_trials() if trial.kind == "trial"]
        promised = sum(max(0.0, trial.epochs_planned - trial.epochs) for trial in unfinished)
        if ledger.epochs + promised + most_epochs > limits["epochs"] + 1e-6:
            return f"budget: {counted_amount(limits['epochs'], 'epoch')}"
    used = budget_used(ledger) | {"hours": hours}
    reached = [key for key, limit in limits.items() if key != "epochs" and used[key] >= limit]
    return f"budget: {limits[reached[0]]:g} {reached[0].replace('_', ' ')}" if reached else None
