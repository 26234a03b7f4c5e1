"""Points over their seeds: which is best by the mean, and which others can be told apart from it."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.claims import in_range
from orchestrator.report.class_tables import ClassTable, OverBoth, class_table, over_both
from orchestrator.report.significance import NO_TEST, Apart, Difference, from_the_first, over_what, resolution_of
from orchestrator.storage.leaderboard import GridPoint, Interval, points_over_seeds
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.outputs import Output, SettingValue
from orchestrator.text import params_text, pluralize

MAX_NAMED = 5
"""Points that cannot be told apart are named up to this number."""


class SeedValue(Output):
    seed: int
    value: float


class PointOutput(Output):
    """A point of a grid over seeds."""

    params: dict[str, SettingValue]
    trials: list[str]
    seeds: int
    values: list[SeedValue]
    mean: float
    over_seeds: Interval | None
    over_both: OverBoth | None
    """Over other classes and seeds, where the tables of the classes were kept."""
    best_less_this: Apart | None


@dataclass(frozen=True)
class Placed:
    """A point over its seeds, and the best point against it."""

    point: GridPoint
    against: Difference | None
    """The best point's mean less this one's, paired by seed; None for the best itself, and without common seeds."""
    both: OverBoth | None = None
    """The interval of its mean over other classes and seeds, where the tables of all its seeds were kept."""

    @property
    def name(self) -> str:
        return params_text(self.point.params)

    @property
    def answer(self) -> str:
        """Whether it can be told apart from the best one: `yes`, `no`, `not tested`; empty for the best itself."""
        return "" if self.against is None else self.against.answer

    @property
    def output(self) -> PointOutput:
        """For JSON."""
        point = self.point
        return PointOutput(
            params=point.params,
            trials=point.trial_ids,
            seeds=len(point.values),
            values=[SeedValue(seed=seed, value=value) for seed, value in point.values.items()],
            mean=point.mean,
            over_seeds=point.interval,
            over_both=self.both,
            best_less_this=None if self.against is None else self.against.output,
        )


def placed_points(ledger: Ledger) -> list[Placed]:
    """The points of a grid over seeds, or the leading points that have several, best first; empty for other
    searches."""
    points = points_over_seeds(ledger)
    if ledger.repeats:
        points = [point for point in points if len(point.values) > 1]
    if not points:
        return []
    values = {params_text(point.params): point.values for point in points}
    tables = {params_text(point.params): _tables(ledger, point) for point in points}
    against = from_the_first(values, tables, resolution_of(ledger, test=False))
    whole = (
        tables_of_point if len(tables_of_point) == len(point.values) else {}
        for point, tables_of_point in zip(points, tables.values(), strict=True)
    )
    boths = map(over_both, whole)
    return [Placed(point, apart, both) for point, apart, both in zip(points, [None, *against], boths, strict=True)]


def _tables(ledger: Ledger, point: GridPoint) -> dict[int, ClassTable]:
    """The tables behind a point's values, as far as they were kept: of its trials' best validations."""
    result = {}
    for trial_id in point.trial_ids if ledger.metric.startswith("val/") else ():
        trial = ledger.trials[trial_id]
        seed = trial.seed
        if trial.settings.get("protocol") == "classification" or seed not in point.values:
            continue
        table = class_table(ledger, trial, ledger.metric.removeprefix("val/"), point.values[seed])
        if table is not None:
            result[seed] = table
    return result


def seeds_text(points: Sequence[Placed]) -> str:
    """`5 seeds`, `3 to 5 seeds`"""
    few, many = min(len(p.point.values) for p in points), max(len(p.point.values) for p in points)
    return pluralize(many, "seed") if few == many else f"{few} to {many} seeds"


def spread_of(ledger: Ledger, ranked: Placed) -> Interval | None:
    """The interval of a point over its seeds as it is shown, within the metric's range."""
    interval = ranked.point.interval
    return None if interval is None else in_range(ledger.metric, interval)


def best_text(ledger: Ledger, points: Sequence[Placed], where: str) -> str:
    """Which point is best, in a sentence; `where` is ` on held-out classes`."""
    best, so_far = points[0].point, "" if ledger.state == "done" else " so far"
    number = pluralize(len(best.values), "seed")
    spread = f"{best.mean:.4f}"
    if (ends := spread_of(ledger, points[0])) is not None:
        spread += f" ± {ends.standard_deviation:.4f}"
        alone = f"95% of the mean over {number}: {ends.low:.4f} to {ends.high:.4f}"
        where += f" ({alone if points[0].both is None else points[0].both.text})"
    return (
        f"Best point{so_far} by the mean over {number}: {points[0].name}, {ledger.metric} {spread}{where}. Its "
        f"best trial is {best.trial_ids[0]}."
    )


def apart_text(points: Sequence[Placed]) -> str:
    """Which of the others the noise over seeds allows to tell apart from the best, in a sentence or two."""
    others = points[1:]
    if not others:
        return "There is one point only: nothing to compare it with."
    alike = [other.name for other in others if other.answer != "yes"]
    how, count = how_compared(points), pluralize(len(others), "point")
    if not alike:
        return f"It is better than each of the other {count}, beyond the noise ({how})."
    if len(alike) == len(others):
        return f"None of the other {count} can be told apart from it ({how}): the order may be chance."
    names = ", ".join(alike[:MAX_NAMED]) + (f" and {len(alike) - MAX_NAMED} more" if len(alike) > MAX_NAMED else "")
    return (
        f"Of the other {count}, {len(others) - len(alike)} can be told apart from it ({how}); not so {names}: among "
        "these the order may be chance."
    )


def how_compared(points: Sequence[Placed]) -> str:
    """`paired t-tests over 18 classes and 5 seeds, Bonferroni's correction for all 28 pairs`"""
    tested = [other.against for other in points[1:] if other.against is not None and other.against.is_tested]
    if not tested:
        return NO_TEST
    pairs = len(points) * (len(points) - 1) // 2
    corrected = f", Bonferroni's correction for all {pairs} pairs" if pairs > 1 else ""
    return f"paired t-tests over {over_what(tested)}{corrected}"


def seed_effect_text(ledger: Ledger) -> str:
    """What differs between the seeds, in a sentence."""
    fixed = ledger.config.get("settings", {})
    holds_out = fixed.get("selection", "validation") == "validation" and fixed.get("protocol", "conventional") != "mlrc"
    return f"Each seed has its own weights, batches{' and held-out set' if holds_out else ' and augmentation'}."
