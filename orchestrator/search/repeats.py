"""Which leading points are trained again with other seeds, once all points were tried, so that no lucky one wins."""

import math
import statistics
from collections.abc import Sequence

from orchestrator.config.search import Search
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord


def count_left(search: Search, ledger: Ledger, points: float) -> float:
    """How many points are left to try of so many: with a number of trials, some are kept for the repeats of these,
    after those of others."""
    if search.max_points is not None:
        points = min(points, search.max_points - ledger.repeats)
    return points - (len(ledger.trials) - ledger.repeats - ledger.copies)


def choose_repeat(search: Search, ledger: Ledger) -> TrialRecord | None:
    """The next trial of a leading point with another seed; None if there is none now.

    Successive halving over seeds. With S seeds the best 2^(S - 1) points by their first seed get the second one; the
    best half of these, by the mean over both, the third; and so on, until two points have all S. So points are compared
    over the same seeds, which differ in held-out classes too. Trials that were stopped early or failed take no part. It
    follows from the ledger alone, so that a resumed search goes on with the same trial.

    Source: Karnin, Koren and Somekh, Almost optimal exploration in multi-armed bandits, ICML 2013; here each round adds
    one seed.
    """
    if not search.rounds or len(ledger.trials) >= (search.num_trials or math.inf):
        return None
    unfinished = {trial.trial_id for trial in ledger.unfinished_trials()}
    if any("seed" not in ledger.find(trial_id).params for trial_id in unfinished):
        return None
    first, *further = search.each_seed
    by_seed: dict[int, dict[str, TrialRecord]] = {seed: {} for seed in search.each_seed}
    for trial in ledger.trials.values():
        by_seed[trial.seed][_key(trial)] = trial
    racing = [key for key, trial in by_seed[first].items() if trial.state == "done" and trial.best is not None]
    for size, seed in zip(search.rounds, further, strict=True):
        seeds = [one for one in search.each_seed if one < seed]
        racing = _best(ledger, racing, [by_seed[one] for one in seeds], size)
        if new := next((key for key in racing if key not in by_seed[seed]), None):
            number, point = len(ledger.trials), by_seed[first][new].point
            return TrialRecord(f"{number:04d}", number, "trial", point | {"seed": seed}, 0)
        trials = {key: by_seed[seed][key] for key in racing}
        if any(trial.trial_id in unfinished for trial in trials.values()):
            return None
        racing = [key for key, trial in trials.items() if trial.state == "done" and trial.best is not None]
    return None


def _key(trial: TrialRecord) -> str:
    return repr(sorted(trial.point.items()))


def _best(ledger: Ledger, keys: Sequence[str], trials: Sequence[dict[str, TrialRecord]], size: int) -> list[str]:
    """The points with the best means over these seeds; of equal ones those that were tried first."""
    sign = -1.0 if ledger.mode == "max" else 1.0
    means = {key: statistics.fmean(of_seed[key].best or 0.0 for of_seed in trials) for key in keys}
    return sorted(keys, key=lambda key: (sign * means[key], trials[0][key].number))[:size]
