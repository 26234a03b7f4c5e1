"""The rows of a search's leaderboard, its repeated tests, and both as CSV."""

import csv
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from orchestrator.storage.files import cell
from orchestrator.storage.ledger import Ledger, TrialRecord, value_columns


def leaderboard_rows(ledger: Ledger) -> list[dict[str, Any]]:
    """One row per trial, best first, then the final runs: plain values for tables and files."""
    rows, columns = [], value_columns(ledger)
    for rank, trial in enumerate(ledger.ranking(), start=1):
        row: dict[str, Any] = {"rank": rank if trial.best is not None else None}
        rows.append(row | _row(trial, ledger, columns))
    rows += [{"rank": "final"} | _row(final, ledger, columns) for final in ledger.finals.values()]
    return rows


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
    def of(cls, values: Sequence[float]) -> "Interval":
        """mean +- t(0.975, n - 1) sd / sqrt(n), of at least two values."""
        from scipy.special import stdtrit  # of Student's t; scipy.stats, which calls it, takes long to import

        mean, deviation = statistics.mean(values), statistics.stdev(values)
        half = float(stdtrit(len(values) - 1, 0.975)) * deviation / math.sqrt(len(values))
        return cls(mean, deviation, mean - half, mean + half)


def repeated_tests(ledger: Ledger) -> list[Repeated]:
    """The tested runs that differ only in their seed, in groups of two or more, in the order of the search."""
    groups: dict[str, tuple[dict[str, Any], list[TrialRecord]]] = {}
    for trial in ledger.everyone():
        if trial.test:
            point = {key: value for key, value in trial.params.items() if key != "seed"}
            groups.setdefault(f"{trial.kind} {sorted(point.items())!r}", (point, []))[1].append(trial)
    found = []
    for point, trials in groups.values():
        if len(trials) < 2:
            continue
        shared = [name for name in trials[0].test if all(name in trial.test for trial in trials)]
        metrics = {name: Interval.of([trial.test[name] for trial in trials]) for name in shared}
        found.append(Repeated(point, trials[0].source, [trial.trial_id for trial in trials], metrics))
    return found


def _row(
    trial: TrialRecord, ledger: Ledger, columns: Mapping[str, Callable[[TrialRecord], float | None]]
) -> dict[str, Any]:
    metric = ledger.metric
    row: dict[str, Any] = {"trial_id": trial.trial_id, "state": trial.state}
    row |= {name: value(trial) for name, value in columns.items()}
    if ledger.second is not None:
        row["on_front"] = trial.trial_id in ledger.front
    row |= {"selection": ledger.selection}
    row |= {"validations": trial.validations, "best_validation": trial.best_validation}
    row |= trial.params
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
