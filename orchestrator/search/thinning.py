"""Which trials a sampler goes on with in a search of many."""

import math

import numpy as np
from optuna.trial import FrozenTrial, TrialState

MOST = 600
"""How many trials a study may have, where its sampler needs no more; then it is made anew with fewer."""
KEPT = 300
BEST = 100
"""How many of the kept are the best, and as many again the furthest stopped ones; the others are drawn."""
RUNNING = 100
"""How many running trials a study that is made anew has, the newest: a sampler avoids their points."""
LEARNT_FROM = (TrialState.COMPLETE, TrialState.PRUNED)


def choose_trials(trials: list[FrozenTrial], sign: float, seed: int) -> list[FrozenTrial]:
    """The ended trials that a sampler goes on with, in their order: the best, those that came furthest before they were
    stopped, as the tree-structured Parzen estimator orders them, and some of the rest."""

    def worth(trial: FrozenTrial) -> tuple[int, float]:
        if trial.state == TrialState.COMPLETE:
            return 0, sign * (trial.value or 0.0)
        last = max(trial.intermediate_values, default=0)
        return -last, sign * trial.intermediate_values.get(last, math.inf)

    kept: set[int] = set()
    for state in LEARNT_FROM:
        kept.update(trial.number for trial in sorted((t for t in trials if t.state == state), key=worth)[:BEST])
    rest = [trial.number for trial in trials if trial.number not in kept]
    drawn = np.random.default_rng((seed, len(trials))).permutation(rest)[: KEPT - len(kept)]
    return [trial for trial in trials if trial.number in kept or trial.number in drawn]
