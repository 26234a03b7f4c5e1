"""Smooth-AP: average precision with sigmoids in place of the comparisons that make a rank.

Brown et al., "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV 2020.
"""

import torch
from pydantic import Field
from torch import Tensor

from methods.baselines import Baseline, Metric
from methods.ranks import Formula, RanksConfig, mean_over_queries, one_minus_mean, positive_ranks, with_queries
from methods.reductions import Reduction, objective


@objective
def smooth_ap(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    temperature: float = 0.01,
    formula: Formula = "printed",
    reduction: Reduction = "mean",
) -> Tensor:
    """Smooth-AP on s: 1 - mean over rows of the smoothed average precision,

        AP_q = mean over positives p of (1 + sum_pos c_pj) / (1 + sum_pos c_pj + sum_neg c_pj)
        c_pj = 1 / (1 + e^(-(s_qj - s_qp) / temperature)), j other than p

    Rows without positives are left out; a row without negatives has AP 1. Equal similarities count half. A sample is
    not in its own list: the rest of the batch is, as the released code says in words. With formula="released" it is,
    as a further positive, whose term is about 1, as in that code's arithmetic. ValueError if temperature is not above
    0, and as `with_queries`.

    Time is (positive pairs) x R; memory is linear in R and in the positive pairs (`positive_ranks`).

    Brown et al., Smooth-AP, ECCV 2020; the temperature is the released code's.
    """
    if not temperature > 0:
        raise ValueError(f"smooth_ap: temperature must be above 0, got {temperature}")
    positive = with_queries(positive, formula)
    ranks = positive_ranks(matrix, positive, negative, lambda gaps, _: torch.sigmoid(gaps / temperature))
    queries, among, overall = ranks
    return one_minus_mean(mean_over_queries(among / overall, queries, positive), positive, reduction)


class SmoothAP(Baseline):
    """Smooth-AP: average precision, each comparison of its ranks a sigmoid.

    L = 1 - mean over rows of mean over positives p of (1 + sum_pos c_pj) / (1 + sum_pos c_pj + sum_neg c_pj),
    c_pj = sigmoid((s_qj - s_qp) / temperature), j other than p; the query is not in its own list. With
    `formula: released` it is, as a further positive.
    """

    name = "smooth_ap"
    paper = "Brown et al., Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, ECCV 2020"
    latex = r"""
    L = 1 - \underset{\text{rows}}{\mathrm{mean}}\,\underset{p}{\mathrm{mean}}\,
    \frac{1 + \sum_{\text{pos}} c_{pj}}{1 + \sum_{\text{pos}} c_{pj} + \sum_{\text{neg}} c_{pj}}

    c_{pj} = \mathrm{sigmoid}((s_{qj} - s_{qp}) / \mathrm{temperature})
    """
    reads = "similarity"
    function = smooth_ap

    class Config(RanksConfig):
        metric: Metric = Field("cosine", description="similarity between embeddings")
        temperature: float = Field(0.01, gt=0, description="temperature of the sigmoids")
