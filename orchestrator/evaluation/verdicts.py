"""From tables of classes and seeds to an interval and a verdict. Everything that is said about a difference comes
from here; pages, notes, `compare` and MLflow render it.

    x[c, s], n[c, s]: a metric's mean over the n queries of class c with training seed s, or a difference of two
    t = sum of n x / sum of n: the mean over queries

- `over_seeds`: on these classes, over training seeds;
- `over_classes`: over other classes of this kind, for one training;
- `crossed`: over both;
- `holm`, `paid`: what several comparisons, and several looks at one, cost;
- `p_equal`: whether a difference is smaller than a margin;
- `summarise`, `over_sets`: one difference from those on several data sets, of one pair and of a family;
- `kendall_tau`: how alike two rankings are.

`benchmarks/verdicts.py` simulates each, into benchmarks/verdicts.md. Suffixes of array names: C classes, S seeds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.evaluation.claims import CONFIDENCE, FEWEST_SEEDS, SIGNIFICANT, Ends
from orchestrator.evaluation.rising import ROUNDING

Floats = NDArray[np.float64]

SMALLEST = 1e-12
"""The smallest p of several parts."""


@dataclass(frozen=True)
class Estimate:
    """A mean, and its variance in independent parts, each with the degrees of freedom that it is known with.

    The half width of an interval is sqrt(sum of t(f_i)^2 V_i): at any level, and whichever part is the largest, it
    covers at least as often as it claims, if the values are normal. Of one part it is Student's.

    Source: Banerjee, Approximate confidence interval for linear functions of means of k populations when the population
    variances are not equal, Sankhya 1960.
    """

    mean: float
    parts: tuple[tuple[float, float], ...]
    """Variance, degrees of freedom."""

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return math.sqrt(sum(variance for variance, _ in self.parts))

    def half(self, confidence: float = CONFIDENCE) -> float:
        """Half the width of the interval."""
        return float(half_width([(np.float64(v), np.float64(f)) for v, f in self.parts], confidence))

    def ends(self, confidence: float = CONFIDENCE) -> Ends:
        """The interval of the mean."""
        return self.mean - self.half(confidence), self.mean + self.half(confidence)

    def share_ends(self, confidence: float = CONFIDENCE) -> Ends:
        """The same for a mean between 0 and 1, on the scale log(t / (1 - t)), whose slope is 1 / (t (1 - t)): the
        ends stay in the range, and the side to its middle is the longer one, as it is in truth."""
        if not 0 < self.mean < 1:
            low, high = self.ends(confidence)
            return max(0.0, low), min(1.0, high)
        middle = math.log(self.mean / (1 - self.mean))
        half = self.half(confidence) / (self.mean * (1 - self.mean))
        low, high = (1 / (1 + math.exp(-max(-700.0, min(700.0, end)))) for end in (middle - half, middle + half))
        return low, high

    @property
    def p(self) -> float:
        """Of the two-sided test against 0; NaN without an error."""
        return self.p_against(0.0)

    def p_against(self, value: float) -> float:
        """Of the two-sided test against a value: 1 less the confidence of the interval that ends there; NaN without an
        error."""
        if not self.error:
            return math.nan
        parts = [(np.float64(variance), np.float64(freedom)) for variance, freedom in self.parts]
        return float(two_sided(np.float64(self.mean - value), parts))


Parts = Sequence[tuple[Floats | np.float64, Floats | np.float64]]
"""Variances and degrees of freedom, of one estimate or of many."""


def half_width(parts: Parts, confidence: float | Floats) -> Floats:
    """sqrt(sum of t((1 + confidence) / 2, f)^2 V), of each of many estimates."""
    from scipy.special import stdtrit  # of Student's t; scipy.stats, which calls it, takes long to import

    squares = [stdtrit(freedom, (1 - confidence) / 2) ** 2 * variance for variance, freedom in parts]
    return np.asarray(np.sqrt(sum(squares)))


def two_sided(apart: Floats | np.float64, parts: Parts) -> Floats:
    """The p of each of many differences from what is tested: for which `half_width` is as large; by bisection."""
    if len(parts) == 1:
        from scipy.special import stdtr

        ((variance, freedom),) = parts
        return np.asarray(2 * stdtr(freedom, -np.abs(apart) / np.sqrt(variance)))
    low, high = np.full(np.shape(apart), math.log(SMALLEST)), np.zeros(np.shape(apart))
    for _ in range(40):
        middle = (low + high) / 2
        beyond = half_width(parts, 1 - np.exp(middle)) < np.abs(apart)
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return np.asarray(np.exp((low + high) / 2))


def over_seeds(values_S: Floats, resolution: float = 0.0) -> Estimate | None:
    """The mean over training seeds, on the classes that were tested; None with fewer than FEWEST_SEEDS.

    error = max(sd, resolution) / sqrt(S), with S - 1 degrees of freedom. `resolution` is the weight of one query: a
    recall is a count, and equal counts with a few seeds do not mean that others would be equal, too.
    """
    if len(values_S) < FEWEST_SEEDS:
        return None
    return _estimate(*over_seeds_of(values_S, resolution))


def over_classes(values_C: Floats, counts_C: Floats) -> Estimate | None:
    """The mean over queries of one training, over other classes of this kind; None with fewer than two classes.

    The variance is that of the jackknife without one class at a time, and as many degrees of freedom as it has: with
    the class's share of the queries h, h' = h / (1 - h) and r = h' (x - t),

        error^2 = (C - 1) / C sum of r^2,   freedom = (sum of h'^2)^2 / sum of h'^4 - 1.

    With classes of one size this is Student's interval of the class means. A few classes that have most of the queries
    count as the few that they are, which a bootstrap does not see: where sizes go with difficulty, it covers 77 to 92%.

    Sources: Efron and Stein, The jackknife estimate of variance, Annals of Statistics 1981; Bell and McCaffrey, Bias
    reduction in standard errors for linear regression with multi-stage samples, Survey Methodology 2002.
    """
    if len(values_C) < 2:
        return None
    mean, part = _one_way(values_C[:, None], counts_C[:, None], axis=-1)
    return _estimate(mean, [part])


def crossed_estimate(values_CS: Floats, counts_CS: Floats, resolution: float = 0.0) -> Estimate | None:
    """The mean over queries, over other classes of this kind and other training seeds; None with fewer than
    FEWEST_SEEDS seeds or two classes. A class that a seed did not test has a count of 0 there.

    Classes and seeds are two crossed samples. The variance has two parts, each by the jackknife as in `over_classes`:
    of the classes' means over seeds, and of the seeds' means over classes (at least resolution^2 / S). It is that of
    Owen's pigeonhole bootstrap, which draws classes and seeds independently, but for what is left in the cells when
    both effects are taken out; that is in each of the two parts already, and in the truth once. The bootstrap's own
    percentiles fail with so few seeds: of three drawn with replacement, a ninth are one and the same.

    Source: Owen, The pigeonhole bootstrap, Annals of Applied Statistics 2007.
    """
    classes, seeds = values_CS.shape
    if seeds < FEWEST_SEEDS or classes < 2 or not counts_CS.any():
        return None
    return _estimate(*crossed_of(values_CS, counts_CS, resolution))


def _estimate(mean: Floats, parts: Parts) -> Estimate:
    parts_known = tuple(
        (float(variance) if variance > ROUNDING**2 else 0.0, float(freedom)) for variance, freedom in parts
    )
    return Estimate(float(mean), parts_known)


def over_seeds_of(values_S: Floats, resolution: float = 0.0) -> tuple[Floats, Parts]:
    """Mean and variance of `over_seeds`, for any number of tables (..., S) at once."""
    count = values_S.shape[-1]
    variance = np.var(values_S, axis=-1, ddof=1)
    variance = np.maximum(np.where(variance > ROUNDING**2, variance, 0.0), resolution**2) / count
    return values_S.mean(axis=-1), [(variance, np.float64(count - 1))]


def crossed_of(values_CS: Floats, counts_CS: Floats, resolution: float = 0.0) -> tuple[Floats, Parts]:
    """Mean and parts of the variance of `crossed`, for any number of tables (..., C, S) at once."""
    values_CS = np.where(counts_CS > 0, values_CS, 0.0)
    mean, (v_classes, f_classes) = _one_way(values_CS, counts_CS, axis=-1)
    _, (v_seeds, f_seeds) = _one_way(values_CS, counts_CS, axis=-2)
    v_seeds = np.maximum(v_seeds, resolution**2 / values_CS.shape[-1])
    return mean, [(v_classes, f_classes), (v_seeds, f_seeds)]


def _one_way(values_CS: Floats, counts_CS: Floats, axis: int) -> tuple[Floats, tuple[Floats, Floats]]:
    """The mean over queries, and the jackknife's variance and degrees of freedom over rows (`axis` -1) or columns."""
    h_CS = counts_CS / counts_CS.sum(axis=(-2, -1), keepdims=True)
    mean = (h_CS * values_CS).sum(axis=(-2, -1))
    h = h_CS.sum(axis=axis)
    r = (h_CS * (values_CS - mean[..., None, None])).sum(axis=axis)
    rest = np.where(h < 1, 1 - h, 1.0)
    count = (h > 0).sum(axis=-1)
    g = (h / rest) ** 2
    freedom = np.maximum(1.0, g.sum(axis=-1) ** 2 / (g**2).sum(axis=-1) - 1)
    return mean, ((count - 1) / count * ((r / rest) ** 2).sum(axis=-1), freedom)


# Several comparisons, several looks ------------------------------------------------------------------------------


def holm(ps: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """The adjusted p of each of m tests, in their order: the i-th smallest is max over j <= i of (m - j + 1) p_(j), at
    most 1. NaN stays and is not counted as a test.

    With `weights`, which say how the error is shared out, tests are ordered by p / w, and p_(j) is taken
    (sum of the weights from the j-th on) / w_(j) times; all equal they change nothing.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics, 1979
    (the weights in its Section 4).
    """
    shares = [1.0] * len(ps) if weights is None else list(weights)
    adjusted = [math.nan] * len(ps)
    ranked = sorted((p / shares[place], place) for place, p in enumerate(ps) if not math.isnan(p))
    largest, left = 0.0, math.fsum(shares[place] for _, place in ranked)
    for ratio, place in ranked:
        largest = max(largest, min(1.0, left * ratio))
        adjusted[place] = largest
        left -= shares[place]
    return adjusted


FIRST_LOOK, NEXT_LOOK = 0.7, 0.4
"""The first look at runs that may be continued has this share of SIGNIFICANT, each further one this share of the one
before. Looks see the same runs, and so agree mostly: all together err in at most 5.1%, while without it they err in 9
to 27% (after 5 and 10 seeds; after 3, 5, 10, 20 and 60; after each number from 3 to 30)."""


def times_taken(p: float, adjusted: float, most: float) -> float:
    """How many times a correction took a p, by which its interval is widened; `most` where p and the adjusted p do not
    say it."""
    return max(1.0, adjusted / p) if p > 0 and adjusted < 1 else most


def share_of_look(look: int) -> float:
    """The share of SIGNIFICANT that a look, counted from 1, may spend."""
    return FIRST_LOOK * NEXT_LOOK ** (look - 1)


def paid(p: float, look: int) -> float:
    """The p of a test that is made for the `look`-th time on a growing number of runs: at most 1; NaN stays."""
    return p if math.isnan(p) else min(1.0, p / share_of_look(look))


def p_equal(estimate: Estimate, margin: float) -> float:
    """Of two one-sided tests: how likely so small a difference is if the true one is `margin` or more, up or down.

    Below 5% the two are equal within the margin; above, that is not known, which does not mean that they differ.

    Source: Schuirmann, A comparison of the two one-sided tests procedure and the power approach, J. Pharmacokinetics
    and Biopharmaceutics 1987.
    """
    if abs(estimate.mean) >= margin:
        return 1.0
    return max(estimate.p_against(margin), estimate.p_against(-margin)) / 2


FEWEST_SETS = 5
"""With fewer data sets nothing is said of how much they differ."""


@dataclass(frozen=True)
class MeanDifference:
    """A difference over data sets of this kind."""

    estimate: Estimate
    deviation: float | None
    """tau: of the true differences between data sets; None for fewer than FEWEST_SETS."""


def summarise(estimates: Sequence[Estimate]) -> MeanDifference | None:
    """The mean difference over data sets, whose true differences vary; None with fewer than two.

    Every data set counts the same: m = sum of y / K, with the variance max(s^2, mean of error^2) / K, where s^2 is that
    of the y, and K - 1 degrees of freedom. tau^2 = s^2 - mean of error^2, at least 0. Weights by the errors would need
    tau^2, which few data sets do not show: where it comes out as 0, the most exact one would decide alone.

    Sources: Hedges and Olkin, Statistical Methods for Meta-Analysis, 1985, chapter 9; Bonett, Meta-analytic interval
    estimation for standardized and unstandardized mean differences, Psychological Methods 2009.
    """
    sets = len(estimates)
    if sets < 2:
        return None
    spread = float(np.var([one.mean for one in estimates], ddof=1))
    errors = float(np.mean([max(one.error**2, ROUNDING**2) for one in estimates]))
    estimate = Estimate(float(np.mean([one.mean for one in estimates])), ((max(spread, errors) / sets, sets - 1.0),))
    return MeanDifference(estimate, math.sqrt(max(0.0, spread - errors)) if sets >= FEWEST_SETS else None)


@dataclass(frozen=True)
class OverSets:
    """How much larger one method's mean is than another's, over data sets of this kind, in a family of such pairs."""

    one: str
    other: str
    by_set: Mapping[str, float]
    """The difference on each."""
    summary: MeanDifference
    adjusted: float
    """The p of the mean, corrected for the family by Holm's method."""
    times: float
    """How many times its p was taken."""

    @property
    def real(self) -> bool:
        """Whether the two are told apart."""
        return self.adjusted < SIGNIFICANT

    @property
    def ends(self) -> Ends:
        """The 95% interval of the mean, widened as its p is."""
        return self.summary.estimate.ends(1 - SIGNIFICANT / self.times)


def over_sets(pairs: Mapping[tuple[str, str], Mapping[str, Estimate]]) -> list[OverSets]:
    """The pairs of methods that were compared on two data sets or more, as one family; from their differences on each
    data set, by its name."""
    summaries = {pair: summarise(list(estimates.values())) for pair, estimates in pairs.items()}
    family = {pair: summary for pair, summary in summaries.items() if summary is not None}
    adjusted = holm([summary.estimate.p for summary in family.values()])
    return [
        OverSets(
            *pair,
            {name: estimate.mean for name, estimate in pairs[pair].items()},
            summary,
            p,
            times_taken(summary.estimate.p, p, len(family)),
        )
        for (pair, summary), p in zip(family.items(), adjusted, strict=True)
    ]


def kendall_tau(first: Floats, second: Floats) -> Floats:
    """Kendall's tau-b of two rankings of A entries, shapes (A, ...) to (...): the sum over pairs of
    sign(a_i - a_j) sign(b_i - b_j), over the root of the numbers of pairs not tied in a, and in b; 0 if all are tied.

    Source: Kendall, The treatment of ties in ranking problems, Biometrika 33, 1945."""
    above, below = np.triu_indices(len(first), 1)
    one, other = (np.sign(values[above] - values[below]) for values in (first, second))
    untied = np.sqrt(np.abs(one).sum(axis=0) * np.abs(other).sum(axis=0))
    return np.asarray((one * other).sum(axis=0) / np.where(untied > 0, untied, 1.0))
