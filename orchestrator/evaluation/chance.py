"""The exact expected value of each retrieval metric of a random ranking."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

RECALL_AT = (1, 2, 4, 8)
"""The k of a validation's recall@k."""
DEPTH = 1000
"""Of the mean average precision."""


def chance_levels(
    relevant_Q: Sequence[int] | Integers,
    gallery: int,
    recall_at: Sequence[int] = RECALL_AT,
) -> dict[str, float]:
    """The exact expected value of each retrieval metric if the gallery's n items were ranked at random.

    With R items of the query's class among n, place j is right with probability R / n, and given that, each other place
    with (R - 1) / (n - 1), so that E[precision@j | j is right] = (1 + (j - 1)(R - 1) / (n - 1)) / j. With
    H_K = 1 + 1/2 + ... + 1/K, the expected sum of the precisions at the right places up to K is
    S_K = (R / n) (H_K + (R - 1) / (n - 1) (K - H_K)). Then

        recall@k = 1 - C(n - R, k) / C(n, k),   R-precision = R / n,   MAP@R = S_R / R,
        mAP@1000 = S_min(1000, n) / min(R, 1000),

    each the mean over the queries with R > 0. Clusters are not a ranking and have no such level.

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
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, max(int(sizes.max()), DEPTH) + 1))])
    levels: dict[str, list[float]] = {}
    for size in sizes.tolist():
        again = (size - 1) / (gallery - 1) if gallery > 1 else 0.0
        depth = min(DEPTH, gallery)

        def expected(places: int, size: int = size, again: float = again) -> float:
            return size / gallery * float(harmonic[places] + again * (places - harmonic[places]))

        found = {f"recall_at_{k}": 1 - _no_hit(size, gallery, min(k, gallery)) for k in recall_at}
        found["r_precision"] = size / gallery
        found["map_at_r"] = expected(size) / size
        found["mean_average_precision_at_1000"] = expected(depth) / min(size, DEPTH)
        for name, value in found.items():
            levels.setdefault(name, []).append(value)
    return {name: float(np.average(values, weights=times)) for name, values in levels.items()}


def _no_hit(size: int, gallery: int, k: int) -> float:
    """C(n - R, k) / C(n, k): the probability that none of k items is among the R."""
    missed = 1.0
    for place in range(k):
        missed *= max(0, gallery - size - place) / (gallery - place)
    return missed
