"""What a search has used of its budgets."""

from orchestrator.storage.ledger import Ledger


def budget_used(ledger: Ledger) -> dict[str, float]:
    """How much of each budget a search has used, by the budget's name in a search file."""
    return {
        "epochs": ledger.epochs,
        "hours": ledger.elapsed / 3600,
        "gpu_hours": ledger.hours["GPU"],
        "cpu_hours": ledger.hours["CPU"],
        "trials_without_improvement": ledger.trials_without_improvement,
    }
