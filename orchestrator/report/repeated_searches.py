"""Methods whose whole search was repeated with other seeds: what is said of a method, and not of one configuration.

A search draws its points and its trainings' seeds, and finds another configuration each time. So the result of a search
is one value: the mean test of its winner over the final seeds. Methods are compared by these values, classes and
searches crossed as `significance` crosses classes and seeds.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from orchestrator.evaluation.claims import FEWEST_SEEDS
from orchestrator.report.class_tables import ClassTable, mean_table
from orchestrator.report.member import Member
from orchestrator.report.significance import Difference, differences, how_tested, tables_by_seed
from orchestrator.storage.outputs import Output
from orchestrator.text import pluralize

MAX_NAMED = 5


class RepeatedMethod(Output):
    """A method whose search was repeated, by the mean test of each search's winner."""

    label: str
    searches: dict[str, float]
    mean: float
    deviation_of_searches: float | None
    deviation_by_seeds: float | None
    """That training seeds alone would give the searches' values."""


@dataclass(frozen=True)
class MethodSearches:
    """A method and its repeated searches."""

    label: str
    members: Mapping[int, Member]
    """Its searches that have a test, by their number from 1."""

    @property
    def values(self) -> dict[int, float]:
        """The mean test of each search's winner."""
        return {number: one.mean for number, one in self.members.items() if one.mean is not None}

    @property
    def mean(self) -> float:
        """Over its searches."""
        return statistics.fmean(self.values.values())

    @property
    def deviation(self) -> float | None:
        """Of its searches' values; None of one."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    @property
    def of_seeds(self) -> float | None:
        """The deviation that training seeds alone would give these values: sqrt(mean of s^2 / seeds), s the deviation
        of one winner's tests; None where no winner has two."""
        squares = [
            one.interval.standard_deviation**2 / len(one.tests)
            for one in self.members.values()
            if one.interval is not None
        ]
        return sqrt(statistics.fmean(squares)) if squares else None

    @property
    def text(self) -> str:
        """`0.5121 ± 0.0140 over 3 searches`"""
        spread = "" if self.deviation is None else f" ± {self.deviation:.4f}"
        return f"{self.mean:.4f}{spread} over {pluralize(len(self.values), 'search', 'searches')}"

    @property
    def output(self) -> RepeatedMethod:
        """For JSON."""
        return RepeatedMethod(
            label=self.label,
            searches={one.label: one.mean for one in self.members.values() if one.mean is not None},
            mean=self.mean,
            deviation_of_searches=self.deviation,
            deviation_by_seeds=self.of_seeds,
        )

    def tables(self, metric: str) -> dict[int, ClassTable]:
        """The tables of the classes behind its values: the mean over the winner's seeds."""
        tables = {}
        for number, one in self.members.items():
            by_seed = tables_by_seed(one.ledger, one.winner, metric)
            if by_seed.keys() == one.tests.keys() and (table := mean_table(list(by_seed.values()))) is not None:
                tables[number] = table
        return tables


def methods_of(members: Sequence[Member], searches: Mapping[str, tuple[str, int]], sign: float) -> list[MethodSearches]:
    """The methods that have a test, best first; `searches` gives each member's method and number."""
    by_method: dict[str, dict[int, Member]] = {}
    for member in members:
        method, number = searches[member.label]
        if member.tests:
            by_method.setdefault(method, {})[number] = member
    methods = [MethodSearches(label, dict(sorted(found.items()))) for label, found in by_method.items()]
    return sorted(methods, key=lambda method: sign * method.mean)


def between_methods(methods: Sequence[MethodSearches], metric: str, resolution: float) -> list[Difference]:
    """The differences of the methods over the searches that both have."""
    values = {method.label: method.values for method in methods}
    tables = {method.label: method.tables(metric) for method in methods}
    looks = {m.label: max(one.ledger.looks for one in m.members.values()) for m in methods}
    return differences(values, tables, resolution, looks, "search")


def verdict_of(metric: str, methods: Sequence[MethodSearches], compared: Sequence[Difference]) -> list[str]:
    """Which method is best, and what the repetition of its search says, as sentences."""
    best, others = methods[0], methods[1:]
    if not others:
        return [f"Only {best.label} has a test: nothing to compare it with."]
    how = how_tested(compared)
    with_best = {d.other: d for d in compared if d.one == best.label}
    behind = [f"{other.label} ({with_best[other.label].text})" for other in others if other.label in with_best]
    open_ = [other.label for other in others if other.label not in with_best or not with_best[other.label].real]
    text = f"{best.label}, {metric} {best.text}"
    if not open_:
        lines = [f"Best method: {text}, ahead of {', '.join(behind)} ({how})."]
    elif not any(one.is_tested for one in compared):
        few = f"a verdict on methods needs {FEWEST_SEEDS} searches of each"
        following = ", ".join(f"{other.label} {other.text}" for other in others)
        lines = [f"Ahead: {text}, before {following}; that may be chance ({few})."]
    else:
        lines = [f"Not distinguishable as methods: {text}, and {', '.join(behind)}; {how}."]
        if beaten := [o.label for o in others if o.label not in open_]:
            lines.append(f"{best.label} is better than {', '.join(beaten)}.")
    return [*lines, *(line for method in methods[:MAX_NAMED] if (line := what_repeating_adds(method)))]


def what_repeating_adds(method: MethodSearches) -> str:
    """How much a method's result depends on the search that found its configuration; empty with one search."""
    if method.deviation is None:
        return ""
    text = (
        f"Searched again with other seeds, {method.label} finds configurations whose tests have a deviation of "
        f"{method.deviation:.4f}"
    )
    if method.of_seeds is None:
        return f"{text}."
    beyond = "more than" if method.deviation > method.of_seeds else "no more than"
    return f"{text}; {beyond} the {method.of_seeds:.4f} that their training seeds account for."
