"""Methods compared on several data sets: a comparison on each, and over all the mean difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.evaluation.claims import SIGNIFICANT, Ends
from orchestrator.report.comparison import Comparison, ComparisonOutput
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.outputs import Output
from orchestrator.text import pluralize

if TYPE_CHECKING:
    from orchestrator.evaluation.verdicts import Estimate, MeanDifference


class OverDataSetsOutput(Output):
    """The mean difference over data sets, with random effects."""

    one: str
    other: str
    by_data_set: dict[str, float]
    difference: float
    low: float
    high: float
    p: float
    adjusted_p: float
    real: bool
    deviation_between_data_sets: float | None
    """None for too few data sets to say."""


class ComparedAcross(Output):
    """Methods on several data sets."""

    verdict: list[str]
    over_data_sets: list[OverDataSetsOutput]
    data_sets: dict[str, ComparisonOutput]


@dataclass(frozen=True)
class OverDataSets:
    """How much larger one method's test is than another's, over data sets of this kind."""

    one: str
    other: str
    by_data_set: Mapping[str, float]
    summary: "MeanDifference"
    adjusted: float
    """The p of the mean, corrected for the number of pairs by Holm's method."""
    pairs: int = 1
    """That number."""

    @property
    def real(self) -> bool:
        """Whether it is reported as a difference."""
        return self.adjusted < SIGNIFICANT

    @property
    def ends(self) -> Ends:
        """The 95% interval of the mean, corrected as its p is."""
        from orchestrator.evaluation.verdicts import times_taken

        times = times_taken(self.summary.estimate.p, self.adjusted, self.pairs)
        return self.summary.estimate.ends(1 - SIGNIFICANT / times)

    @property
    def text(self) -> str:
        """Both methods, the mean with its interval, and how much the data sets differ, as a sentence."""
        mean, (low, high) = self.summary.estimate.mean, self.ends
        ahead, behind = (self.one, self.other) if mean >= 0 else (self.other, self.one)
        text = f"{ahead} is better than {behind}" if self.real else f"{self.one} and {self.other} are not told apart"
        text = (
            f"Over {pluralize(len(self.by_data_set), 'data set')}, {text}: {mean:+.4f} of {self.one} less {self.other} "
            f"(95%: {low:+.4f} to {high:+.4f}, p {self.adjusted:.2g}; random effects, each data set counts the same)."
        )
        if (deviation := self.summary.deviation) is not None:
            text += f" True differences deviate by about {deviation:.4f} between data sets."
        return text

    @property
    def output(self) -> OverDataSetsOutput:
        """For JSON."""
        low, high = self.ends
        return OverDataSetsOutput(
            one=self.one,
            other=self.other,
            by_data_set=dict(self.by_data_set),
            difference=self.summary.estimate.mean,
            low=low,
            high=high,
            p=self.summary.estimate.p,
            adjusted_p=self.adjusted,
            real=self.real,
            deviation_between_data_sets=self.summary.deviation,
        )


@dataclass(frozen=True)
class Across:
    """The answers."""

    comparisons: Mapping[str, Comparison]
    """By data set; its members are called as their methods."""
    over: tuple[OverDataSets, ...]

    @property
    def verdict(self) -> list[str]:
        """Whole sentences."""
        if self.over:
            return [one.text for one in self.over]
        return ["No summary over data sets: no pair of methods was tested over common seeds on two of them."]

    @property
    def output(self) -> ComparedAcross:
        """For JSON."""
        return ComparedAcross(
            verdict=self.verdict,
            over_data_sets=[one.output for one in self.over],
            data_sets={name: comparison.output for name, comparison in self.comparisons.items()},
        )


def data_sets_of(ledgers: Mapping[str, Ledger]) -> list[str]:
    """The data sets of some searches, in their order."""
    return list(dict.fromkeys(ledger.dataset for ledger in ledgers.values()))


def compare_searches(
    name: str, ledgers: Mapping[str, Ledger], storage: str = "", margin: float | None = None
) -> Comparison | Across:
    """Compare searches, known by their names: on one data set as `Comparison.of`, on several as `across`."""
    if len(data_sets_of(ledgers)) > 1:
        return across(ledgers, storage, margin)
    return Comparison.of(name, ledgers, storage=storage, margin=margin)


def across(ledgers: Mapping[str, Ledger], storage: str = "", margin: float | None = None) -> Across:
    """Compare searches on several data sets, one of each method on each.

    Raises:
        InputError: a data set has two searches of a method, or one search only; or those of one data set do not measure
            the same thing.
    """
    groups: dict[str, dict[str, Ledger]] = {name: {} for name in data_sets_of(ledgers)}
    problems = []
    for label, ledger in ledgers.items():
        group = groups[ledger.dataset]
        if ledger.method in group:
            problems.append(f"{label}: {ledger.dataset} has two searches of {ledger.method}: name one of each method")
        group[ledger.method] = ledger
    problems += [
        f"{next(iter(group))}: it is the only search on {name}: name two methods or more on each data set"
        for name, group in groups.items()
        if len(group) < 2
    ]
    if problems:
        raise InputError(*problems)
    comparisons = {name: Comparison.of(name, group, storage=storage, margin=margin) for name, group in groups.items()}
    if len({comparison.metric for comparison in comparisons.values()}) > 1:
        names = ", ".join(f"{comparison.metric} on {name}" for name, comparison in comparisons.items())
        raise InputError(f"their numbers cannot be compared: tests are judged by {names}")
    return Across(comparisons, tuple(_over(comparisons)))


def _over(comparisons: Mapping[str, Comparison]) -> Sequence[OverDataSets]:
    from orchestrator.evaluation.verdicts import holm, summarise

    methods = list(dict.fromkeys(member.label for one in comparisons.values() for member in one.members))
    summaries = []
    for one, other in combinations(methods, 2):
        by_data_set = {name: _estimate(comparison, one, other) for name, comparison in comparisons.items()}
        estimates = {name: estimate for name, estimate in by_data_set.items() if estimate is not None}
        summary = summarise(list(estimates.values()))
        if summary is not None:
            summaries.append((one, other, {name: estimate.mean for name, estimate in estimates.items()}, summary))
    adjusted = holm([summary.estimate.p for *_, summary in summaries])
    return [OverDataSets(*pair, p, len(summaries)) for pair, p in zip(summaries, adjusted, strict=True)]


def _estimate(comparison: Comparison, one: str, other: str) -> "Estimate | None":
    """The difference of two methods on one data set, over classes and seeds where the tables of the classes were kept;
    None without a test."""
    for difference in comparison.differences:
        if {difference.one, difference.other} == {one, other} and (estimate := difference.estimate) is not None:
            return estimate if difference.one == one else replace(estimate, mean=-estimate.mean)
    return None
