"""Which differences over seeds are real: paired tests, corrected for their number."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from orchestrator.report.tested import goals
from orchestrator.storage.leaderboard import Interval
from orchestrator.storage.ledger import Ledger, TrialRecord
from orchestrator.text import counted

SIGNIFICANT = 0.05
"""The maximum probability that any of the differences reported as real is not."""


@dataclass(frozen=True)
class Difference:
    """How much larger `one` is than `other`, over the seeds that both have."""

    one: str
    other: str
    seeds: int
    mean: float
    interval: Interval | None
    """Of the mean; none with a single seed."""
    p: float
    """Of the paired t-test, two-sided; NaN where it says nothing (one seed, or equal values)."""
    adjusted: float
    """The same by Holm's step-down method over all comparisons made."""

    @property
    def real(self) -> bool:
        """Whether it is reported as a difference."""
        return self.adjusted < SIGNIFICANT

    @property
    def tested(self) -> bool:
        """Whether it was tested: this needs two seeds, and values that are not all equal."""
        return not math.isnan(self.adjusted)

    @property
    def told(self) -> str:
        """Whether it is real: `yes`, `no`, or `not tested`."""
        return ("yes" if self.real else "no") if self.tested else "not tested"

    @property
    def text(self) -> str:
        """`+0.0120 (95%: 0.0080 to 0.0160), p 0.004`"""
        between = "" if self.interval is None else f" (95%: {self.interval.low:+.4f} to {self.interval.high:+.4f})"
        chance = "" if math.isnan(self.adjusted) else f", p {self.adjusted:.2g}"
        return f"{self.mean:+.4f}{between}{chance}"

    @property
    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "one": self.one,
            "other": self.other,
            "seeds": self.seeds,
            "difference": self.mean,
            "low": None if self.interval is None else self.interval.low,
            "high": None if self.interval is None else self.interval.high,
            "p": None if math.isnan(self.p) else self.p,
            "adjusted_p": None if math.isnan(self.adjusted) else self.adjusted,
            "real": self.real if self.tested else None,
        }


def differences(values: Mapping[str, Mapping[int, float]]) -> list[Difference]:
    """Every pair of the groups compared by seed, in the groups' order; pairs without a common seed are left out.

    With d the differences over n common seeds, t = mean(d) / (sd(d) / sqrt(n)) with n - 1 degrees of freedom. Where d
    does not vary, p is 0, or NaN if it is 0 throughout.

    Args:
        values: for each group, its value with each seed.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics, 1979.
    """
    pairs = (_difference(one, other, values) for one, other in combinations(values, 2))
    found = [difference for difference in pairs if difference is not None]
    adjusted = holm([difference.p for difference in found])
    return [replace(difference, adjusted=p) for difference, p in zip(found, adjusted, strict=True)]


def from_the_first(values: Mapping[str, Mapping[int, float]]) -> list[Difference | None]:
    """The first group, the best, against each other one; None where they have no common seed.

    Which group is the best is known from the same values, so that each p is multiplied by the number of all pairs,
    k (k - 1) / 2 (Bonferroni's correction, with which a statement on any pair holds, whichever is looked at).
    """
    names = list(values)
    pairs = len(names) * (len(names) - 1) // 2
    found = [_difference(names[0], other, values) for other in names[1:]]
    return [
        one if one is None else replace(one, adjusted=min(1.0, pairs * one.p)) if one.p == one.p else one
        for one in found
    ]


def _difference(one: str, other: str, values: Mapping[str, Mapping[int, float]]) -> Difference | None:
    """A pair over the seeds that both have, p not adjusted; None without such a seed."""
    seeds = sorted(values[one].keys() & values[other].keys())
    if not seeds:
        return None
    apart = [values[one][seed] - values[other][seed] for seed in seeds]
    mean, p, interval = statistics.fmean(apart), math.nan, None
    if len(seeds) > 1:
        interval = Interval.of(apart)
        error = interval.standard_deviation / math.sqrt(len(seeds))
        if error > 0:
            from scipy.special import stdtr  # of Student's t; scipy.stats, which calls it, takes long to import

            p = float(2 * stdtr(len(seeds) - 1, -abs(mean) / error))
        elif mean:
            p = 0.0
    return Difference(one, other, len(seeds), mean, interval, p, p)


def holm(ps: Sequence[float]) -> list[float]:
    """The adjusted p of each of m tests, in their order: the i-th smallest is max over j <= i of (m - j + 1) p_(j), at
    most 1. NaN stays and is not counted as a test."""
    adjusted = [math.nan] * len(ps)
    ranked = sorted((p, place) for place, p in enumerate(ps) if not math.isnan(p))
    largest = 0.0
    for rank, (p, place) in enumerate(ranked):
        largest = max(largest, min(1.0, (len(ranked) - rank) * p))
        adjusted[place] = largest
    return adjusted


def how_tested(compared: Sequence[Difference]) -> str:
    """`paired t-test over 5 seeds, Holm's correction for 3 comparisons`"""
    tests = [difference for difference in compared if not math.isnan(difference.p)]
    if not tests:
        return "no test: it needs two seeds or more that are not all equal"
    few, many = min(d.seeds for d in tests), max(d.seeds for d in tests)
    seeds = counted(many, "seed") if few == many else f"{few} to {many} seeds"
    corrected = f", Holm's correction for {len(tests)} comparisons" if len(tests) > 1 else ""
    return f"paired t-test over {seeds}{corrected}"


def tests_by_seed(ledger: Ledger, trial: TrialRecord | None, metric: str) -> dict[int, float]:
    """A trial's values of a metric in its tests (`Ledger.tests_of`), by seed."""
    return {int(run.settings.get("seed", 0)): run.test[metric] for run in ledger.tests_of(trial) if metric in run.test}


def between_confirmed(ledger: Ledger, metric: str | None = None) -> list[Difference]:
    """The differences between a search's trials that have final runs, on a metric of their tests; by default on that of
    what it selects on."""
    metric = metric or goals(ledger)[0].metric
    sources = {run.source for run in ledger.finals.values()}
    found = {
        trial.trial_id: tests_by_seed(ledger, trial, metric) for trial in ledger.ranking() if trial.trial_id in sources
    }
    return differences({trial_id: values for trial_id, values in found.items() if values})
