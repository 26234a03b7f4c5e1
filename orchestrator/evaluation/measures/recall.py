"""Recall at k."""

from orchestrator.evaluation.measures.base import Floats, Metric, RandomRanking, Ranked

DEFAULT_RECALL_AT = (1, 2, 4, 8)
RECALL_AT = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30)}
"""The k that the literature gives for a data set, by its name; for all others, and in validations, the default."""


def recall(k: int) -> Metric:
    """Whether a same-class item is among the k nearest, k clipped to the gallery."""

    def by_query(ranked: Ranked) -> Floats:
        return ranked.found(min(k, ranked.gallery))

    def chance(random: RandomRanking) -> float:
        """1 - C(n - R, k) / C(n, k)"""
        missed = 1.0
        for place in range(min(k, random.gallery)):
            missed *= max(0, random.gallery - random.relevant - place) / (random.gallery - place)
        return 1 - missed

    return Metric(
        name=f"recall_at_{k}",
        label=f"recall@{k}",
        about="share of queries with a same-class item among the k nearest (k clipped to the gallery)",
        headline=k == 1,
        beside=k == 1,
        by_class=k == 1,
        of_paper={1: 1, 2: 5}.get(k),
        depth=k,
        by_query=by_query,
        chance=chance,
    )
