"""How much better a network is than another one on the same classes, paired by class."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from orchestrator.evaluation.claims import FEWEST_CLASSES
from orchestrator.evaluation.verdicts import over_classes
from orchestrator.storage.events import Gain
from orchestrator.storage.opening import open_text


def paired_gain(tables: Sequence[Path], metric: str, others: Mapping[str, float]) -> Gain | None:
    """The gain of the network whose `classes.csv` this is (over folds, the networks) over one with these class means,
    by label: with d_c the difference of class c, which has n_c queries, sum of n_c d_c / sum of n_c, and its interval
    over classes (`verdicts.over_classes` of d_c; a difference is no share, so that its ends are not on the scale of log
    odds), from FEWEST_CLASSES on. None if a table cannot be read, or the two have not the same classes, each once."""
    try:
        rows = []
        for table in tables:
            with open_text(table) as file:
                rows += [row for row in csv.DictReader(file) if row[metric]]
        if not rows or len(rows) != len(others) or {row["label"] for row in rows} != set(others):
            return None
        apart_C = np.array([float(row[metric]) - others[row["label"]] for row in rows])
        counts_C = np.array([float(row["queries"]) for row in rows])
    except (OSError, KeyError, ValueError):
        return None
    ends = over_classes(apart_C, counts_C) if len(apart_C) >= FEWEST_CLASSES else None
    low, high = (None, None) if ends is None else ends.ends()
    difference = float(apart_C @ counts_C / counts_C.sum())
    up = int((apart_C > 0).sum())
    return Gain(metric=metric, difference=difference, low=low, high=high, up=up, classes=len(rows))
