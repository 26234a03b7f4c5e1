"""R-precision, MAP@R and the mean average precision.

Source: R-precision and MAP@R as in Musgrave et al., A Metric Learning Reality Check, ECCV 2020.
"""

from orchestrator.evaluation.measures.base import Floats, Metric, RandomRanking, Ranked

DEPTH = 1000


def _r_precision(ranked: Ranked) -> Floats:
    return ranked.sums(ranked.place_H < ranked.relevant_Q[ranked.query_H]) / ranked.relevant_Q


def _map_at_r(ranked: Ranked) -> Floats:
    within = ranked.place_H < ranked.relevant_Q[ranked.query_H]
    return ranked.sums(ranked.precision_H * within) / ranked.relevant_Q


def _map_at_1000(ranked: Ranked) -> Floats:
    import numpy as np

    return ranked.sums(ranked.precision_H * (ranked.place_H < DEPTH)) / np.minimum(ranked.relevant_Q, DEPTH)


def _chance_of_map_at_1000(random: RandomRanking) -> float:
    return random.expected_precisions(min(DEPTH, random.gallery)) / min(random.relevant, DEPTH)


R_PRECISION = Metric(
    name="r_precision",
    label="R-precision",
    about="of the R nearest, with R same-class items in the gallery, the share of the query's class",
    by_class=True,
    of_paper=3,
    by_query=_r_precision,
    chance=lambda random: random.relevant / random.gallery,
)
MAP_AT_R = Metric(
    name="map_at_r",
    label="MAP@R",
    about="sum of precision@j over the right j <= R, divided by R",
    headline=True,
    by_class=True,
    of_paper=2,
    by_query=_map_at_r,
    chance=lambda random: random.expected_precisions(random.relevant) / random.relevant,
)
MAP_AT_1000 = Metric(
    name="mean_average_precision_at_1000",
    label="mAP@1000",
    about="sum of precision@j over the right j <= 1000, divided by min(R, 1000)",
    depth=DEPTH,
    by_query=_map_at_1000,
    chance=_chance_of_map_at_1000,
)
