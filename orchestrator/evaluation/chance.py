"""The exact expected value of each metric of a random ranking, or of random clusters."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.evaluation.measures import METRICS
from orchestrator.evaluation.measures.base import RandomRanking
from orchestrator.evaluation.measures.recall import DEFAULT_RECALL_AT, recall

Integers = NDArray[np.int64]


def chance_levels(
    relevant_Q: Sequence[int] | Integers,
    gallery: int,
    recall_at: Sequence[int] = DEFAULT_RECALL_AT,
) -> dict[str, float]:
    """The exact expected value of each retrieval metric if the gallery's n items were ranked at random.

    With R items of the query's class among n, place j is right with probability R / n, and given that, each other place
    with (R - 1) / (n - 1), so that E[precision@j | j is right] = (1 + (j - 1)(R - 1) / (n - 1)) / j. With
    H_K = 1 + 1/2 + ... + 1/K, the expected sum of the precisions at the right places up to K is
    S_K = (R / n) (H_K + (R - 1) / (n - 1) (K - H_K)). Then

        recall@k = 1 - C(n - R, k) / C(n, k),   R-precision = R / n,   MAP@R = S_R / R,
        mAP@1000 = S_min(1000, n) / min(R, 1000),

    each the mean over the queries with R > 0; without metrics of the table that give none.

    Args:
        relevant_Q: (Q,) R of each query, without itself.
        gallery: n, without the query itself where the queries are the gallery.
        recall_at: the k of each `recall_at_<k>`; clipped to n.

    Raises:
        ValueError: no query has R > 0, or one has more than n.
    """
    sizes, times = np.unique(np.asarray(relevant_Q, np.int64), return_counts=True)
    sizes, times = sizes[sizes > 0], times[sizes > 0]
    if not len(sizes) or sizes.max() > gallery:
        raise ValueError(f"relevant: need numbers up to the gallery's {gallery}, one above 0")
    metrics = [metric for metric in (*map(recall, recall_at), *METRICS) if metric.chance is not None]
    deepest = max(int(sizes.max()), *(metric.depth for metric in metrics))
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, deepest + 1))])
    levels: dict[str, list[float]] = {metric.name: [] for metric in metrics}
    for size in sizes.tolist():
        again = (size - 1) / (gallery - 1) if gallery > 1 else 0.0

        def expectation(places: int, size: int = size, again: float = again) -> float:
            return size / gallery * float(harmonic[places] + again * (places - harmonic[places]))

        for metric in metrics:
            if metric.chance is not None:
                levels[metric.name].append(metric.chance(RandomRanking(size, gallery, expectation)))
    return {name: float(np.average(values, weights=times)) for name, values in levels.items()}


def chance_of_clusters(labels_Q: Integers) -> dict[str, float]:
    """The exact expected value of each clustering metric if clusters of the classes' own sizes were drawn at random.
    Clusters of other sizes have others: the metric that is adjusted for chance is so for those that there are.

    Args:
        labels_Q: (Q,) the classes of the queries that are clustered: all of them.
    """
    _, sizes = np.unique(labels_Q, return_counts=True)
    return {one.name: float(one.chance_of_clusters(sizes)) for one in METRICS if one.chance_of_clusters is not None}
