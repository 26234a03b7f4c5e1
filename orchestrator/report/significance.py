"""Which differences over seeds are real: paired tests over classes and seeds, corrected for their number."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Literal

from orchestrator.evaluation.claims import FEWEST_SEEDS, SIGNIFICANT
from orchestrator.report.class_tables import ClassTable, class_table, paired_differences
from orchestrator.report.learning import held_out_set, test_set
from orchestrator.report.tested import goals
from orchestrator.storage.leaderboard import Interval
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.outputs import Output
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import pluralize

if TYPE_CHECKING:
    from orchestrator.evaluation.verdicts import Estimate

NO_TEST = f"no test: it needs {FEWEST_SEEDS} common seeds or more, that are not all equal"

Unit = Literal["seed", "search"]
"""What is repeated: the training of one configuration, or the whole search for one."""

Values = Mapping[str, Mapping[int, float]]
"""For each group, its value with each seed."""
Tables = Mapping[str, Mapping[int, ClassTable]]
"""For each group, the table behind its value with each seed."""


class OnTheseClasses(Output):
    """The same difference over training seeds alone, on the classes that were tested."""

    low: float | None
    high: float | None
    p: float | None
    adjusted_p: float | None


class Apart(Output):
    """The paired difference of two searches or points over their common seeds."""

    one: str
    other: str
    seeds: int
    classes: int | None
    """Over which it was tested, with the seeds; none where no tables were kept, or nothing is claimed for others."""
    look: int | None
    """Where runs may be continued: how often they were looked at, which p pays for."""
    unit: Unit
    """What `seeds` counts: trainings of one configuration, or searches of one method."""
    difference: float
    low: float | None
    high: float | None
    p: float | None
    adjusted_p: float | None
    real: bool | None
    on_these_classes: OnTheseClasses | None


@dataclass(frozen=True)
class Difference:
    """How much larger `one` is than `other`, over the seeds that both have.

    `fixed` is the estimate on these classes, over training seeds; `crossed` the one over other classes of this kind,
    too. The verdict is of `crossed` where the tables of the classes are known, else of `fixed`.
    """

    one: str
    other: str
    seeds: int
    mean: float
    interval: Interval | None
    """Of the mean over the seeds; none with a single seed."""
    fixed: "Estimate | None" = None
    crossed: "Estimate | None" = None
    classes: int = 0
    """The number of classes of `crossed`."""
    adjusted: float = math.nan
    """The verdict's p, corrected for the number of comparisons; NaN where nothing was tested."""
    fixed_adjusted: float = math.nan
    """The same of `fixed`."""
    times: float = 1.0
    """How many times its p was taken, for comparisons and looks: its interval is at 5% divided by that."""
    fixed_times: float = 1.0
    """The same of `fixed`."""
    look: int = 0
    """Which look it is at runs that may be continued; 0 where they cannot."""
    unit: Unit = "seed"
    """What `seeds` counts."""

    @property
    def estimate(self) -> "Estimate | None":
        """What the verdict is of."""
        return self.fixed if self.crossed is None else self.crossed

    @property
    def p(self) -> float:
        """Of the verdict's test, two-sided; NaN where there is none."""
        return math.nan if self.estimate is None else self.estimate.p

    @property
    def fixed_p(self) -> float:
        """Of the test on these classes."""
        return math.nan if self.fixed is None else self.fixed.p

    @property
    def ends(self) -> tuple[float, float] | None:
        """The verdict's 95% interval, corrected as its p is, so that 0 is outside where p is below 5%; the one over
        seeds where there is no verdict."""
        if self.estimate is not None:
            return self.estimate.ends(1 - SIGNIFICANT / self.times)
        return None if self.interval is None else (self.interval.low, self.interval.high)

    @property
    def fixed_ends(self) -> tuple[float, float] | None:
        """The same on these classes."""
        return None if self.fixed is None else self.fixed.ends(1 - SIGNIFICANT / self.fixed_times)

    @property
    def real(self) -> bool:
        """Whether it is reported as a difference."""
        return self.adjusted < SIGNIFICANT

    @property
    def real_on_these(self) -> bool:
        """Whether it is one on these classes."""
        return self.fixed_adjusted < SIGNIFICANT

    @property
    def is_tested(self) -> bool:
        """Whether it was tested: this needs FEWEST_SEEDS, and values that are not all equal."""
        return not math.isnan(self.adjusted)

    @property
    def answer(self) -> str:
        """Whether it is real: `yes`, `no`, or `not tested`."""
        return ("yes" if self.real else "no") if self.is_tested else "not tested"

    @property
    def why_untested(self) -> str:
        """Why there is no verdict; empty if there is one."""
        if self.is_tested:
            return ""
        if self.seeds < FEWEST_SEEDS:
            return f"with {pluralize(self.seeds, 'common seed')}; {FEWEST_SEEDS} are needed"
        return "because every seed gives the same difference"

    @property
    def over(self) -> str:
        """What the verdict is over: `60 classes and 5 seeds`, `5 seeds`."""
        seeds = units(self.seeds, self.unit)
        return seeds if self.crossed is None else f"{pluralize(self.classes, 'class', 'classes')} and {seeds}"

    @property
    def text(self) -> str:
        """`+0.0120 (95%: 0.0080 to 0.0160), p 0.004`"""
        between = "" if self.ends is None else f" (95%: {self.ends[0]:+.4f} to {self.ends[1]:+.4f})"
        chance = "" if math.isnan(self.adjusted) else f", p {self.adjusted:.2g}"
        return f"{self.mean:+.4f}{between}{chance}"

    def verdict(self, how: str, other: str, *, better: bool) -> str:
        """Whether it confirms that the one is the better of the two, in a sentence or two after a colon; `how` it was
        tested, `other` what the other one is called."""
        judges = f"{'' if self.crossed is None else 'classes and '}{PLURAL[self.unit]}"
        if not self.is_tested:
            return f"they cannot be told apart, {self.why_untested}."
        how = f"({how}: p = {self.adjusted:.2g})"
        if not self.real:
            text = f"{judges} do not tell them apart {how}."
        elif better:
            text = f"{judges} confirm it {how}."
        else:
            text = f"over {judges} {other} is the better one {how}."
        return f"{text} {self.fixed_text}." if self.fixed_text else text

    @property
    def fixed_text(self) -> str:
        """The second sentence, where the verdict is over classes too; else empty."""
        if self.crossed is None or self.fixed_ends is None or math.isnan(self.fixed_adjusted):
            return ""
        low, high = self.fixed_ends
        apart = "they differ" if self.real_on_these else "they cannot be told apart either"
        if self.real_on_these and self.real:
            apart = "they differ, too"
        again = "training seeds" if self.unit == "seed" else PLURAL[self.unit]
        return (
            f"On these {pluralize(self.classes, 'class', 'classes')}, over {again}, {apart}: {self.mean:+.4f} "
            f"(95%: {low:+.4f} to {high:+.4f}), p {self.fixed_adjusted:.2g}"
        )

    @property
    def output(self) -> Apart:
        """For JSON."""
        low, high = (None, None) if self.ends is None else self.ends
        fixed = (None, None) if self.fixed_ends is None else self.fixed_ends
        return Apart(
            one=self.one,
            other=self.other,
            seeds=self.seeds,
            classes=self.classes or None,
            look=self.look or None,
            unit=self.unit,
            difference=self.mean,
            low=low,
            high=high,
            p=_number(self.p),
            adjusted_p=_number(self.adjusted),
            real=self.real if self.is_tested else None,
            on_these_classes=OnTheseClasses(
                low=fixed[0], high=fixed[1], p=_number(self.fixed_p), adjusted_p=_number(self.fixed_adjusted)
            ),
        )


PLURAL: Mapping[Unit, str] = {"seed": "seeds", "search": "searches"}


def units(number: int, unit: Unit) -> str:
    """`5 seeds`, `3 searches`"""
    return pluralize(number, unit, PLURAL[unit])


def _number(p: float) -> float | None:
    return None if math.isnan(p) else p


def differences(
    values: Values,
    tables: Tables | None = None,
    resolution: float = 0.0,
    looks: Mapping[str, int] | None = None,
    unit: Unit = "seed",
) -> list[Difference]:
    """Every pair of the groups compared by seed, in the groups' order; pairs without a common seed are left out.

    Tested by `verdicts.crossed` where `tables` has a table behind each value, else by `verdicts.over_seeds`, and
    corrected by Holm's method. `resolution` is the weight of one query in a recall. `looks` are the groups whose runs
    may be continued, and how often each was looked at: that is paid for, too (`verdicts.paid`).
    """
    pairs = (_difference(one, other, values, tables or {}, resolution) for one, other in combinations(values, 2))
    with_unit = [replace(difference, unit=unit) for difference in pairs if difference is not None]
    if not with_unit:
        return []
    from orchestrator.evaluation.verdicts import holm, paid

    if looks is not None:
        with_unit = [replace(one, look=max(1, looks.get(one.one, 1), looks.get(one.other, 1))) for one in with_unit]
    adjusted, fixed = (
        holm([paid(p, one.look) if one.look else p for p, one in zip(ps, with_unit, strict=True)])
        for ps in ([one.p for one in with_unit], [one.fixed_p for one in with_unit])
    )
    return [
        replace(
            one,
            adjusted=p,
            fixed_adjusted=q,
            times=_times(one.p, p, adjusted, one.look),
            fixed_times=_times(one.fixed_p, q, fixed, one.look),
        )
        for one, p, q in zip(with_unit, adjusted, fixed, strict=True)
    ]


def _times(p: float, adjusted: float, all_adjusted: Sequence[float], look: int) -> float:
    """How many times p was taken; where that made it 1, as often as it could be: for all tests (Bonferroni)."""
    from orchestrator.evaluation.verdicts import share_of_look, times_taken

    most = sum(not math.isnan(one) for one in all_adjusted) / (share_of_look(look) if look else 1.0) or 1.0
    return times_taken(p, adjusted, most)


def from_the_first(values: Values, tables: Tables | None = None, resolution: float = 0.0) -> list[Difference | None]:
    """The first group, the best, against each other one; None where they have no common seed.

    Which group is the best is known from the same values, so that each p is multiplied by the number of all pairs,
    k (k - 1) / 2 (Bonferroni's correction, with which a statement on any pair holds, whichever is looked at).
    """
    names = list(values)
    pairs = len(names) * (len(names) - 1) // 2
    differences = [_difference(names[0], other, values, tables or {}, resolution) for other in names[1:]]
    return [
        None
        if one is None
        else replace(
            one,
            adjusted=_at_most_one(pairs * one.p),
            fixed_adjusted=_at_most_one(pairs * one.fixed_p),
            times=float(pairs),
            fixed_times=float(pairs),
        )
        for one in differences
    ]


def _at_most_one(p: float) -> float:
    return p if math.isnan(p) else min(1.0, p)


def _difference(one: str, other: str, values: Values, tables: Tables, resolution: float) -> Difference | None:
    """A pair over the seeds that both have, p not adjusted; None without such a seed."""
    seeds = sorted(values[one].keys() & values[other].keys())
    if not seeds:
        return None
    apart = [values[one][seed] - values[other][seed] for seed in seeds]
    interval = Interval.of(apart, resolution) if len(seeds) > 1 else None
    plain = Difference(one, other, len(seeds), statistics.fmean(apart), interval)
    if len(seeds) < FEWEST_SEEDS:
        return plain
    import numpy as np

    from orchestrator.evaluation.verdicts import crossed_estimate, over_seeds

    fixed = over_seeds(np.asarray(apart), resolution)
    cells = paired_differences(tables.get(one, {}), tables.get(other, {}), seeds)
    both = None if cells is None else crossed_estimate(*cells, resolution)
    return replace(plain, fixed=fixed, crossed=both, classes=0 if cells is None or both is None else len(cells[0]))


def equal_texts(compared: Sequence[Difference], margin: float) -> dict[tuple[str, str], str]:
    """Whether each two are equal within a margin, by two one-sided tests, as sentences by the two; those without a
    verdict are left out. Each p is corrected for their number, and for looks, as those of differences are."""
    from orchestrator.evaluation.verdicts import holm, p_equal, paid

    estimated = [(one, one.estimate) for one in compared if one.estimate is not None and one.estimate.error]
    ps = [
        paid(p_equal(estimate, margin), one.look) if one.look else p_equal(estimate, margin)
        for one, estimate in estimated
    ]
    texts = {}
    for (one, _), p in zip(estimated, holm(ps), strict=True):
        verdict = "are" if p < SIGNIFICANT else "are not known to be"
        test = f"two one-sided tests, p {p:.2g}"
        sentence = f"{one.one} and {one.other} {verdict} equal within {margin:g} over {one.over} ({test})."
        texts[one.one, one.other] = sentence
    return texts


def how_tested(compared: Sequence[Difference]) -> str:
    """`paired t-test over 60 classes and 5 seeds, Holm's correction for 3 comparisons`"""
    tests = [difference for difference in compared if not math.isnan(difference.p)]
    if not tests:
        return NO_TEST
    corrected = f", Holm's correction for {len(tests)} comparisons" if len(tests) > 1 else ""
    return f"paired t-test over {over_what(tests)}{corrected}{_paid_text(max(one.look for one in tests))}"


def _paid_text(look: int) -> str:
    """`; look 2, so that p is taken 3.6 times`"""
    from orchestrator.evaluation.verdicts import share_of_look

    return f"; look {look}, so that p is taken {1 / share_of_look(look):.1f} times" if look else ""


def over_what(tests: Sequence[Difference]) -> str:
    """`60 classes and 3 to 5 seeds`, `5 seeds on these classes`"""
    few, many, unit = min(d.seeds for d in tests), max(d.seeds for d in tests), tests[0].unit
    seeds = units(many, unit) if few == many else f"{few} to {units(many, unit)}"
    classes = [d.classes for d in tests if d.crossed is not None]
    if not classes:
        return f"{seeds} on these classes"
    few, many = min(classes), max(classes)
    among = pluralize(many, "class", "classes") if few == many else f"{few} to {many} classes"
    some = "" if len(classes) == len(tests) else " (where their tables were kept)"
    return f"{among}{some} and {seeds}"


def tests_by_seed(ledger: Ledger, trial: TrialRecord | None, metric: str) -> dict[int, float]:
    """A trial's values of a metric in its tests (`Ledger.tests_of`), by seed."""
    return {_seed(run): run.test[metric] for run in ledger.tests_of(trial) if metric in run.test}


def tables_by_seed(ledger: Ledger, trial: TrialRecord | None, metric: str) -> dict[int, ClassTable]:
    """The tables of the classes behind `tests_by_seed`, as far as they were kept. None where a test is of new images
    of the classes trained on: nothing is claimed for other classes then."""
    runs = [run for run in ledger.tests_of(trial) if metric in run.test and _of_classes(run)]
    tables = {_seed(run): class_table(ledger, run, metric, run.test[metric]) for run in runs}
    return {seed: table for seed, table in tables.items() if table is not None}


def _seed(run: TrialRecord) -> int:
    return int(run.settings.get("seed", 0))


def _of_classes(run: TrialRecord) -> bool:
    return run.settings.get("protocol") != "classification"


def resolution_of(ledger: Ledger, *, test: bool = True) -> float:
    """The weight of one query of the test, or of the held-out set; 0 where its size is not known."""
    of = test_set(ledger) if test else held_out_set(ledger, ledger.winner())
    return 0.0 if of is None else of.one_query


def between_confirmed(ledger: Ledger, metric: str | None = None) -> list[Difference]:
    """The differences between a search's trials that have final runs, on a metric of their tests; by default on that of
    what it selects on."""
    metric = metric or goals(ledger)[0].metric
    sources = {run.source for run in ledger.finals.values()}
    confirmed = [trial for trial in ledger.ranking() if trial.trial_id in sources]
    values = {trial.trial_id: tests_by_seed(ledger, trial, metric) for trial in confirmed}
    tables = {trial.trial_id: tables_by_seed(ledger, trial, metric) for trial in confirmed} if len(values) > 1 else {}
    tested = {name: tests for name, tests in values.items() if tests}
    return differences(tested, tables, resolution_of(ledger), dict.fromkeys(tested, ledger.looks))
