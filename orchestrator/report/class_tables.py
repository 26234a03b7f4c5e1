"""The classes of a test or a validation, from the table that every training keeps: what intervals over classes need."""

import contextlib
import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.evaluation.claims import FEWEST_CLASSES, FEWEST_SEEDS
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.opening import open_text
from orchestrator.storage.trial_files import fetch_trial
from orchestrator.storage.trial_folder import INSIGHT, TrialPaths
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import pluralize

if TYPE_CHECKING:
    from orchestrator.evaluation.verdicts import Floats

CONCATENATED = "concatenated_"
"""What the names of metrics begin with that are of the embeddings of all folds' models side by side."""
NEAR = 1e-6
"""A table belongs to a value if its mean over queries is as near: another evaluation's table is not used."""


@dataclass(frozen=True)
class ClassTable:
    """The mean of a metric over the queries of each class, and how many these are, by the class's name."""

    means: Mapping[str, float]
    counts: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Over all queries."""
        total = math.fsum(self.counts[name] * mean for name, mean in self.means.items())
        return total / math.fsum(self.counts.values())


def class_table(ledger: Ledger, run: TrialRecord, name: str, value: float) -> ClassTable | None:
    """The table behind a run's value of a metric (`map_at_r`). Of a training over folds, the mean of the folds' tables,
    or of `concatenated_map_at_r` that of their embeddings side by side. None where none was kept, or none of that
    value."""
    return None if ledger.folder is None else table_in(ledger.folder / "trials" / run.trial_id, name, value)


def table_in(place: Path, name: str, value: float) -> ClassTable | None:
    """The same from a trial's folder."""
    with contextlib.suppress(OSError):
        fetch_trial(place, INSIGHT)
    tables, column = [], name.removeprefix(CONCATENATED)
    try:
        for model in TrialPaths(place).models if column == name else [TrialPaths(place)]:
            with open_text(model.class_table) as file:
                rows = [row for row in csv.DictReader(file) if row[column]]
            means = {row["class"]: float(row[column]) for row in rows}
            counts = {row["class"]: float(row["queries"]) for row in rows}
            if len(means) < max(2, len(rows)) or min(counts.values()) <= 0:
                return None
            tables.append(ClassTable(means, counts))
    except (OSError, KeyError, ValueError, TypeError, csv.Error):
        return None
    table = tables[0] if len(tables) == 1 else mean_table(tables)
    return table if table is not None and abs(table.mean - value) <= NEAR else None


def mean_table(tables: Sequence[ClassTable]) -> ClassTable | None:
    """Of tables of the same queries; None of none, or of others."""
    if not tables:
        return None
    first = tables[0].counts
    if any(dict(table.counts) != dict(first) for table in tables):
        return None
    means = {name: math.fsum(table.means[name] for table in tables) / len(tables) for name in first}
    return ClassTable(means, first)


def paired_differences(
    one: Mapping[int, ClassTable], other: Mapping[int, ClassTable], seeds: Sequence[int]
) -> "tuple[Floats, Floats] | None":
    """The differences of two points and the numbers of queries, (C, S), over the classes that they were tested on with
    these seeds; a count is 0 where a seed did not test a class. None where a table is missing, or with a seed the two
    were tested on different queries."""
    if not all(seed in one and seed in other for seed in seeds):
        return None
    if any(dict(one[seed].counts) != dict(other[seed].counts) for seed in seeds):
        return None
    apart = {
        seed: ClassTable(
            {name: mean - other[seed].means[name] for name, mean in one[seed].means.items()}, one[seed].counts
        )
        for seed in seeds
    }
    return cells_of(apart, seeds)


def cells_of(tables: Mapping[int, ClassTable], seeds: Sequence[int]) -> "tuple[Floats, Floats]":
    """The means and the numbers of queries, (C, S), of the tables of these seeds; a count is 0 where a seed did not
    test a class."""
    import numpy as np

    names = sorted({name for seed in seeds for name in tables[seed].counts})
    values, counts = (np.zeros((len(names), len(seeds))) for _ in range(2))
    for column, seed in enumerate(seeds):
        for row, name in enumerate(names):
            if name in tables[seed].counts:
                values[row, column], counts[row, column] = tables[seed].means[name], tables[seed].counts[name]
    return values, counts


@dataclass(frozen=True)
class OverBoth:
    """The 95% interval of a mean over other classes and other training seeds."""

    low: float
    high: float
    classes: int
    seeds: int

    @property
    def text(self) -> str:
        """`95% over 60 classes and 3 seeds: 0.4970 to 0.5960`"""
        over = f"{pluralize(self.classes, 'class', 'classes')} and {pluralize(self.seeds, 'seed')}"
        return f"95% over {over}: {self.low:.4f} to {self.high:.4f}"


def over_both(tables: Mapping[int, ClassTable], share: bool = True) -> OverBoth | None:
    """By `verdicts.crossed_estimate`, of a metric that is a `share`, between 0 and 1, or not; None with fewer than
    FEWEST_SEEDS seeds or FEWEST_CLASSES classes. Seeds that come out equal still differ by one query: the resolution
    of a share."""
    from orchestrator.evaluation.verdicts import crossed_estimate

    if len(tables) < FEWEST_SEEDS:
        return None
    values, counts = cells_of(tables, list(tables))
    resolution = 1 / max(1.0, counts.sum(axis=0).max()) if share else 0.0
    ends = crossed_estimate(values, counts, resolution) if len(values) >= FEWEST_CLASSES else None
    if ends is None:
        return None
    low, high = ends.share_ends() if share else ends.ends()
    return OverBoth(low, high, len(values), len(tables))
