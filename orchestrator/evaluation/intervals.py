"""How reliable a measured mean is: its intervals, over the classes and over the queries.

An interval accounts only for what it is over. The one over classes supports claims about classes never seen; the
one over queries says only what more images of the same classes would give.

Suffixes of array names: Q queries, C classes, M metrics, B resamples.
"""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchestrator.evaluation.claims import CONFIDENCE, FEWEST_CLASSES, SUFFIXES, Ends, Over
from orchestrator.evaluation.verdicts import over_classes as mean_over_classes
from orchestrator.storage.opening import open_text

if TYPE_CHECKING:  # it loads faiss, which reading a journal does not need
    from orchestrator.evaluation.metrics import Evaluation
    from orchestrator.evaluation.rows import ArrayLike

Floats = NDArray[np.float64]

RESAMPLES = 1000
ENTRIES = 1 << 20  # bounds a block of resamples x units


def over_queries(
    evaluation: "Evaluation",
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Ends]:
    """Interval (low, high) of each retrieval mean over the queries: percentiles of the means of resampled queries.

    It covers the sampling of the queries only. Queries of one class are correlated, so it is too narrow for unseen
    classes. It does not cover the gallery or the seeds of the training.

    Raises:
        ValueError: confidence is not between 0 and 1, or resamples is not a whole number from 1.

    Source: Efron, Bootstrap Methods: Another Look at the Jackknife, Annals of Statistics 1979.
    """
    _check(confidence, resamples)
    values_QM = np.column_stack([evaluation.queries[name].drop_null().to_numpy() for name in evaluation.names])
    means_BM = _resample(values_QM, np.ones(len(values_QM)), resamples, seed)
    low, high = np.quantile(means_BM, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0).tolist()
    return dict(zip(evaluation.names, zip(low, high, strict=True), strict=True))


def class_intervals(evaluation: "Evaluation", *, confidence: float = CONFIDENCE) -> dict[str, Ends]:
    """Interval (low, high) of each retrieval mean over the classes; none with fewer than `FEWEST_CLASSES`.

    By `verdicts.over_classes`: Student's t with the jackknife's error, without one class at a time, on the scale of log
    odds. Classes bring all of their queries, and a few that have most of the queries count as the few that they are.

    The gallery and the model are held fixed: a query keeps the value that it has among all classes of the test,
    whichever are drawn, and training seeds are not resampled. Other classes also change the gallery: with 30
    classes drawn anew, embeddings included, 95% intervals contained the mean in 92 of 100 cases, those over queries in
    44 to 53.

    Raises:
        ValueError: confidence is not between 0 and 1.
    """
    classes = evaluation.classes()
    counts_C = (classes["queries"].to_numpy() - classes["left_out"].to_numpy()).astype(np.float64)
    with_queries = counts_C > 0
    means_CM = np.column_stack(
        [classes[name].to_numpy(zero_copy_only=False)[with_queries] for name in evaluation.names]
    )
    ends = of_class_means(means_CM, counts_C[with_queries], confidence=confidence)
    return dict(zip(evaluation.names, ends, strict=True)) if ends else {}


def evaluated_classes(evaluation: "Evaluation") -> int:
    """How many classes have a query that is in the means."""
    classes = evaluation.classes()
    return int((classes["queries"].to_numpy() > classes["left_out"].to_numpy()).sum())


def of_class_means(means_CM: Floats, counts_C: Floats, *, confidence: float = CONFIDENCE) -> list[Ends]:
    """The interval of `over_classes` for each column, from the classes' means and numbers of queries; empty with fewer
    classes than `FEWEST_CLASSES`."""
    _check(confidence)
    if len(counts_C) < FEWEST_CLASSES:
        return []
    ends = [mean_over_classes(means_C, counts_C) for means_C in means_CM.T]
    return [one.share_ends(confidence) for one in ends if one is not None]


def _expand(count: int, confidence: float) -> list[float]:
    from scipy.stats import norm, t

    tail = float(norm.cdf(-math.sqrt(count / (count - 1)) * t.ppf((1 + confidence) / 2, count - 1)))
    return [tail, 1 - tail]


def _resample(sums_UM: Floats, counts_U: Floats, resamples: int, seed: int) -> Floats:
    """(B, M): over as many units drawn with replacement, the sum of their sums over the sum of their counts."""
    count = len(counts_U)
    rng = np.random.default_rng(seed)
    means_BM = np.empty((resamples, sums_UM.shape[1]))
    block = max(1, ENTRIES // count)
    for start in range(0, resamples, block):
        part = means_BM[start : start + block]
        resample = rng.integers(count, size=(len(part), count)) + count * np.arange(len(part))[:, None]
        times = np.bincount(resample.ravel(), minlength=resample.size).reshape(resample.shape).astype(np.float64)
        part[:] = times @ sums_UM / (times @ counts_U)[:, None]
    return means_BM


def of_auroc(
    inside: "ArrayLike",
    outside: "ArrayLike",
    groups: "tuple[ArrayLike, ArrayLike] | None" = None,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Ends | None:
    """Interval (low, high) of `metrics.auroc` of scores (I,) and (O,): percentiles over resampled sides.

    With `groups`, the classes (I,) and (O,) of the images, classes are resampled on both sides, each with all its
    images, and the percentiles are expanded by the smaller number of classes; None if that is below `FEWEST_CLASSES`.
    """
    _check(confidence, resamples)
    sides = [np.asarray(scores, np.float64) for scores in (inside, outside)]
    units = [np.arange(len(scores)) for scores in sides]
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    if groups is not None:
        units = [np.unique(np.asarray(labels), return_inverse=True)[1] for labels in groups]
        fewest = min(int(unit.max()) + 1 for unit in units)
        if fewest < FEWEST_CLASSES:
            return None
        tails = _expand(fewest, confidence)
    values, place = np.unique(np.concatenate(sides), return_inverse=True)
    places = place[: len(sides[0])], place[len(sides[0]) :]
    rng = np.random.default_rng(seed)
    areas = np.empty(resamples)
    for number in range(resamples):
        weights = []
        for unit, where in zip(units, places, strict=True):
            count = int(unit.max()) + 1
            times = np.bincount(rng.integers(count, size=count), minlength=count)
            weights.append(np.bincount(where, times[unit], len(values)))
        below = np.cumsum(weights[0]) - weights[0] / 2
        areas[number] = weights[1] @ below / (weights[0].sum() * weights[1].sum())
    low, high = np.quantile(areas, tails).tolist()
    return low, high


def mean_interval(ends: Sequence[Ends]) -> Ends:
    """The interval of the mean of independent means, from theirs: each side is the root of the sum of their squared
    sides, divided by their number."""
    low, high = zip(*ends, strict=True)
    middle = [(a + b) / 2 for a, b in ends]
    half = math.sqrt(sum(((b - a) / 2) ** 2 for a, b in zip(low, high, strict=True))) / len(ends)
    return fmean(middle) - half, fmean(middle) + half


def of_class_tables(paths: Sequence[Path], name: str) -> Ends | None:
    """The interval over classes of a metric, from the files `classes.csv` that a training left of its validation: one
    file, or one for each fold and then the mean. None if one is missing, or has too few classes."""
    intervals = []
    for path in paths:
        try:
            with open_text(path) as file:
                rows = [row for row in csv.DictReader(file) if row[name]]
            means_C1 = np.array([[float(row[name])] for row in rows])
            ends = of_class_means(means_C1, np.array([float(row["queries"]) for row in rows])) if rows else []
        except (OSError, KeyError, ValueError):
            return None
        if not ends:
            return None
        intervals += ends
    return mean_interval(intervals) if intervals else None


def _check(confidence: float, resamples: int = 1) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: need a number between 0 and 1, got {confidence!r}")
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 1:
        raise ValueError(f"resamples: need whole numbers from 1, got {resamples!r}")


def interval_metrics(evaluation: "Evaluation", prefix: str = "") -> dict[str, float]:
    """Both intervals of an evaluation, for a journal: `<prefix><metric>_over_classes_low` and so on."""
    both: dict[Over, dict[str, Ends]] = {"classes": class_intervals(evaluation), "queries": over_queries(evaluation)}
    return {
        f"{prefix}{name}_over_{over}{suffix}": end
        for over, intervals in both.items()
        for name, ends in intervals.items()
        for suffix, end in zip(SUFFIXES, ends, strict=True)
    }
