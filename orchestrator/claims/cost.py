"""What a claim would cost, timed on this machine."""

from collections.abc import Callable
from pathlib import Path

from orchestrator.claims.design import own_trainings, seeds, training, tuning_search
from orchestrator.claims.hypothesis import Claim
from orchestrator.search.plan import plan


def claim_seconds(claim: Claim, storage: Path, say: Callable[[str], None]) -> float | None:
    """Seconds of all that it runs, one after another, if no data set is decided before the budget is spent, from a few
    steps of each arm on each data set; None if a data set is not prepared. `say` receives each line about the data."""
    hypothesis, total = claim.hypothesis, 0.0
    several = len(seeds(hypothesis))
    for dataset in hypothesis.datasets:
        for cell in own_trainings(claim, dataset, hypothesis.seeds.first):
            search = tuning_search(claim, cell.arm, dataset)
            tuned_to = {} if search is None else {**search.settings, **search.space.first()}
            trained = plan(training(claim, cell, tuned_to), storage, new=False, say=say).cost
            if trained is None:
                return None
            total += several * trained.seconds_per_trial
        for arm in {hypothesis.trains_as(arm): arm for arm in hypothesis.trained_arms}:
            search = tuning_search(claim, arm, dataset)
            tuned = None if search is None else plan(search, storage, new=False, say=say).cost
            total += 0.0 if tuned is None else tuned.seconds_of_all_trials or 0.0
    return total
