"""Methods compared on several data sets: a comparison on each, and over all the mean difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.report.comparison import Comparison, ComparisonOutput
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.outputs import Output
from orchestrator.text import pluralize

if TYPE_CHECKING:
    from orchestrator.evaluation.verdicts import Estimate, OverSets


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


def _text(pair: "OverSets") -> str:
    """Both methods, the mean with its interval, and how much the data sets differ, as a sentence."""
    one, other, mean, (low, high) = pair.one, pair.other, pair.summary.estimate.mean, pair.ends
    ahead, behind = (one, other) if mean >= 0 else (other, one)
    text = f"{ahead} is better than {behind}" if pair.real else f"{one} and {other} are not told apart"
    text = (
        f"Over {pluralize(len(pair.by_set), 'data set')}, {text}: {mean:+.4f} of {one} less {other} "
        f"(95%: {low:+.4f} to {high:+.4f}, p {pair.adjusted:.2g}; random effects, each data set counts the same)."
    )
    if (deviation := pair.summary.deviation) is not None:
        text += f" True differences deviate by about {deviation:.4f} between data sets."
    return text


def _output(pair: "OverSets") -> OverDataSetsOutput:
    low, high = pair.ends
    return OverDataSetsOutput(
        one=pair.one,
        other=pair.other,
        by_data_set=dict(pair.by_set),
        difference=pair.summary.estimate.mean,
        low=low,
        high=high,
        p=pair.summary.estimate.p,
        adjusted_p=pair.adjusted,
        real=pair.real,
        deviation_between_data_sets=pair.summary.deviation,
    )


@dataclass(frozen=True)
class Across:
    """The answers."""

    comparisons: Mapping[str, Comparison]
    """By data set; its members are called as their methods."""
    over: Sequence["OverSets"]

    @property
    def verdict(self) -> list[str]:
        """Whole sentences."""
        if self.over:
            return [_text(pair) for pair in self.over]
        return ["No summary over data sets: no pair of methods was tested over common seeds on two of them."]

    @property
    def output(self) -> ComparedAcross:
        """For JSON."""
        return ComparedAcross(
            verdict=self.verdict,
            over_data_sets=[_output(pair) for pair in self.over],
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
    return Across(comparisons, _over(comparisons))


def _over(comparisons: Mapping[str, Comparison]) -> "list[OverSets]":
    from orchestrator.evaluation.verdicts import over_sets

    methods = dict.fromkeys(member.label for one in comparisons.values() for member in one.members)
    pairs: dict[tuple[str, str], dict[str, Estimate]] = {pair: {} for pair in combinations(methods, 2)}
    for pair, estimates in pairs.items():
        for name, comparison in comparisons.items():
            if (estimate := _estimate(comparison, *pair)) is not None:
                estimates[name] = estimate
    return over_sets(pairs)


def _estimate(comparison: Comparison, one: str, other: str) -> "Estimate | None":
    """The difference of two methods on one data set, over classes and seeds where the tables of the classes were kept;
    None without a test."""
    for difference in comparison.differences:
        if {difference.one, difference.other} == {one, other} and (estimate := difference.estimate) is not None:
            return estimate if difference.one == one else replace(estimate, mean=-estimate.mean)
    return None
