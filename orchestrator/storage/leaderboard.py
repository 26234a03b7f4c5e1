"""The rows of a search's leaderboard, its repeated tests, and both as CSV."""

import csv
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.errors import visible
from orchestrator.storage.costs import COSTS
from orchestrator.storage.files import cell
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord

if TYPE_CHECKING:
    import pyarrow as pa


def value_columns(ledger: Ledger, *, compared: bool = True) -> dict[str, Callable[[TrialRecord], float | None]]:
    """The columns of a leaderboard on held-out classes: a trial's best, the second objective there, what is limited,
    and, if trials are `compared` and some were stopped early, its best after as many validations as all of them had."""
    columns: dict[str, Callable[[TrialRecord], float | None]] = {ledger.metric: lambda trial: trial.best}
    if ledger.second is not None:
        columns[ledger.second] = lambda trial: trial.second
    columns |= {name: COSTS[name].of for name in ledger.constraints}
    if compared and (age := ledger.equal_age()) is not None:
        columns[f"{ledger.metric} at {age}"] = lambda trial: (
            ledger.best_at(trial, age) if trial.kind == "trial" else None
        )
    return columns


def leaderboard_rows(ledger: Ledger) -> list[dict[str, Any]]:
    """One row per trial, best first, then the final runs: plain values for tables and files."""
    rows, columns, over_seeds = [], value_columns(ledger), point_columns(ledger)
    for rank, trial in enumerate(ledger.ranking(), start=1):
        row: dict[str, Any] = {"rank": rank if trial.is_ranked else None}
        rows.append(row | _row(trial, ledger, columns) | over_seeds.get(trial.trial_id, {}))
    rows += [{"rank": "final"} | _row(final, ledger, columns) for final in ledger.finals.values()]
    return rows


def leaderboard_table(ledger: Ledger) -> "pa.Table":
    """The same rows as an Arrow table."""
    import pyarrow as pa

    rows = leaderboard_rows(ledger)
    names = list(dict.fromkeys(key for row in rows for key in row))
    return pa.table({visible(name): _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> Any:
    """A column of one type; of several types as text."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):  # the last of names not in UTF-8
        if all(isinstance(value, int | float | None) for value in values):
            return pa.array([None if value is None else float(value) for value in values])
        return pa.array([None if value is None else visible(str(value)) for value in values])


@dataclass(frozen=True)
class Repeated:
    """The tests of one point over several seeds."""

    params: dict[str, Any]
    """The point, without its seed."""
    source: str | None
    """The trial that they retrain, if they are final runs."""
    trial_ids: list[str]
    metrics: dict[str, "Interval"]


@dataclass(frozen=True)
class Interval:
    """Mean and standard deviation (n - 1) of n values, and the 95% interval of the mean by Student's t."""

    mean: float
    standard_deviation: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], resolution: float = 0.0) -> "Interval":
        """mean +- t(0.975, n - 1) max(sd, resolution) / sqrt(n), of at least two values. `resolution` is the weight of
        one query: a recall is a count, and equal counts with a few seeds do not mean that others would be equal, too.
        """
        from scipy.special import stdtrit  # of Student's t; scipy.stats, which calls it, takes long to import

        mean, deviation = statistics.mean(values), statistics.stdev(values)
        half = float(stdtrit(len(values) - 1, 0.975)) * max(deviation, resolution) / math.sqrt(len(values))
        return cls(mean, deviation, mean - half, mean + half)


def repeated_tests(ledger: Ledger) -> list[Repeated]:
    """The tested runs of a trial, or of a point, over seeds, in groups of two or more, in the order of the search."""
    groups: dict[str, tuple[dict[str, Any], list[TrialRecord]]] = {}
    for trial in ledger.everyone():
        if trial.test:
            key = trial.source or f"{trial.kind} {sorted(trial.point.items())!r}"
            groups.setdefault(key, (trial.point, []))[1].append(trial)
    repeated = []
    for point, trials in groups.values():
        if len(trials) < 2:
            continue
        shared = [name for name in trials[0].test if all(name in trial.test for trial in trials)]
        values = {name: [trial.test[name] for trial in trials] for name in shared}
        metrics = {name: Interval.of(each, ledger.one_query(name)) for name, each in values.items()}
        repeated.append(Repeated(point, trials[0].source, [trial.trial_id for trial in trials], metrics))
    return repeated


@dataclass(frozen=True)
class GridPoint:
    """One point over its seeds, by the objective on held-out classes."""

    params: dict[str, Any]
    """The point, without its seed."""
    trial_ids: list[str]
    """Of its ended trials, best first."""
    values: dict[int, float]
    """The best value of each ended trial, by seed; after equal training if some were stopped early."""
    mean: float
    interval: Interval | None
    """Over its seeds; None with one."""


def points_over_seeds(ledger: Ledger) -> list[GridPoint]:
    """The points of a search some of whose points have several seeds, best first (`Ledger.points`); those without an
    ended trial are left out. Empty for other searches."""
    if not ledger.over_seeds:
        return []
    points, age = [], None if ledger.repeats else ledger.equal_age()
    for trials in ledger.points():
        whole = [trial for trial in trials if trial.state == "done" or not ledger.repeats]
        ended = [(trial, value) for trial in whole if (value := ledger.comparison_value(trial, age)) is not None]
        if ended:
            values = dict(sorted((trial.seed, value) for trial, value in ended))
            several = list(values.values())
            interval = Interval.of(several, ledger.one_query(ledger.metric)) if len(several) > 1 else None
            ids = [trial.trial_id for trial, _ in ended]
            points.append(GridPoint(trials[0].point, ids, values, statistics.fmean(several), interval))
    return points


def chosen_value(ledger: Ledger, trial: TrialRecord) -> float | None:
    """What a trial was chosen by: the mean over its point's seeds where it has several, else its best value."""
    points = points_over_seeds(ledger)
    return next((point.mean for point in points if trial.trial_id in point.trial_ids), trial.best)


def point_columns(ledger: Ledger) -> dict[str, dict[str, float | int | None]]:
    """What a leaderboard's file says of each trial's point over its seeds, by trial."""
    columns: dict[str, dict[str, float | int | None]] = {}
    for point in points_over_seeds(ledger):
        row: dict[str, float | int | None] = {"seeds": len(point.values), "mean_over_seeds": point.mean}
        if (over := point.interval) is not None:
            row |= {"deviation_over_seeds": over.standard_deviation}
            row |= {"mean_low_over_seeds": over.low, "mean_high_over_seeds": over.high}
        columns |= dict.fromkeys(point.trial_ids, row)
    return columns


def _row(
    trial: TrialRecord, ledger: Ledger, columns: Mapping[str, Callable[[TrialRecord], float | None]]
) -> dict[str, Any]:
    metric = ledger.metric
    row: dict[str, Any] = {"trial_id": trial.trial_id, "state": trial.state}
    row |= {name: value(trial) for name, value in columns.items()}
    if ledger.second is not None:
        row["on_front"] = trial.trial_id in ledger.front
    if ledger.constraints:
        row["feasible"] = not trial.violations
    row |= {"selection": ledger.selection}
    row |= {"validations": trial.validations, "best_validation": trial.best_validation}
    row |= trial.params | ({"seed": trial.seed} if ledger.repeats else {})
    row |= {"seconds": round(trial.seconds, 2)}
    row |= {k: v for k, v in trial.best_metrics.items() if k.startswith("val/") and k != metric}
    row |= {f"test/{name}": value for name, value in trial.test.items()}
    if trial.reason:
        row["reason"] = trial.reason
    return row


def write_csv(ledger: Ledger, file: TextIO) -> None:
    """Write the leaderboard to an open file."""
    rows = leaderboard_rows(ledger)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(cell, columns))
    writer.writerows([cell(row.get(key, "")) for key in columns] for row in rows)
