"""ROADMAP: average precision by ranks that are never better than the true ones, and a calibration of similarities.

Ramzi et al., "Robust and Decomposable Average Precision for Image Retrieval", NeurIPS 2021.
"""

import math

import torch
from pydantic import Field
from torch import Tensor

from methods.baselines import Baseline, Metric
from methods.objectives import contrastive
from methods.ranks import Formula, RanksConfig, mean_over_queries, one_minus_mean, positive_ranks, with_queries
from methods.reductions import Reduction, objective


def rank_step(gaps: Tensor, *, tau: float = 0.01, rho: float = 100.0, delta: float = 0.05) -> Tensor:
    """H^-(t): what a negative adds to a positive's rank, t = s_negative - s_positive, of any shape.

        sigma(t / tau)                                    t <= 0
        sigma(t / tau) + 1/2                              0 < t <= delta
        rho (t - delta) + sigma(delta / tau) + 1/2        delta < t

    sigma is the logistic function. Above 0 it is at least 1, and beyond delta its slope is rho, so that a negative far
    too close still has a gradient. The last line joins the second without a step, as in the released code where its
    `offset` is not given. Its settings give 1.44 in place of the constant, which is 1.493 at the defaults, so that H^-
    falls by 0.053 at delta; those for iNaturalist have no 1/2, and 1.
    """
    smooth = torch.sigmoid(gaps / tau)
    at_delta = 1 / (1 + math.exp(-delta / tau))
    beyond = rho * (gaps - delta) + at_delta + 0.5
    return torch.where(gaps > delta, beyond, smooth + 0.5 * (gaps > 0))


def supremum_ranks(
    matrix: Tensor, positive: Tensor, negative: Tensor, *, tau: float, rho: float, delta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each positive p its query, its rank among the positives and its rank among all, as `positive_ranks`:

        rank+_p = 1 + the number of other positives j with s_qj >= s_qp, which has no gradient
        rank_p = rank+_p + sum over negatives j of H^-(s_qj - s_qp) (`rank_step`)

    ValueError if tau is not above 0, or rho or delta is below 0.
    """
    if not (tau > 0 and rho >= 0 and delta >= 0):
        raise ValueError(f"ranks: tau must be above 0, rho and delta at least 0, got {tau}, {rho}, {delta}")

    def step(gaps: Tensor, of_positive: Tensor) -> Tensor:
        above = (gaps >= 0).to(gaps.dtype)
        return torch.where(of_positive, above, rank_step(gaps, tau=tau, rho=rho, delta=delta))

    return positive_ranks(matrix, positive, negative, step)


@objective
def sup_ap(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
    formula: Formula = "printed",
    reduction: Reduction = "mean",
) -> Tensor:
    """SupAP on s: 1 - mean over rows of mean over positives p of rank+_p / (rank+_p + rank-_p),

        rank+_p = 1 + the number of other positives j with s_qj >= s_qp, which has no gradient
        rank-_p = sum over negatives j of H^-(s_qj - s_qp) (`rank_step`)

    Rows without positives are left out; a row without negatives has AP 1. A sample is not in its own list; with
    formula="released" it is, as a further positive. ValueError if tau is not above 0, or rho or delta is below 0, and
    as `with_queries`.

    Time is (positive pairs) x R; memory is linear in R and in the positive pairs (`positive_ranks`).

    Ramzi et al., NeurIPS 2021; the defaults are those of the released code.
    """
    positive = with_queries(positive, formula)
    queries, among, overall = supremum_ranks(matrix, positive, negative, tau=tau, rho=rho, delta=delta)
    return one_minus_mean(mean_over_queries(among / overall, queries, positive), positive, reduction)


@objective
def calibration(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    alpha: float = 0.9,
    beta: float = 0.6,
    reduction: Reduction = "mean",
) -> Tensor:
    """The calibration loss on s: mean over positives of [alpha - s]+ plus mean over negatives of [s - beta]+.

    Each mean is over its terms above zero, as in the released code: the contrastive loss on 1 - s. The defaults are
    the released code's.

    Ramzi et al., NeurIPS 2021.
    """
    return contrastive(1 - matrix, positive, negative, pos_margin=1 - alpha, neg_margin=1 - beta, reduction=reduction)


@objective
def roadmap(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
    calibration_weight: float = 0.5,
    alpha: float = 0.9,
    beta: float = 0.6,
    formula: Formula = "printed",
    reduction: Reduction = "mean",
) -> Tensor:
    """(1 - weight) `sup_ap` + weight `calibration`, on s. Ramzi et al., NeurIPS 2021."""
    ranked = sup_ap(matrix, positive, negative, tau=tau, rho=rho, delta=delta, formula=formula, reduction=reduction)
    calibrated = calibration(matrix, positive, negative, alpha=alpha, beta=beta, reduction=reduction)
    return (1 - calibration_weight) * ranked + calibration_weight * calibrated


class Roadmap(Baseline):
    """ROADMAP: average precision whose ranks are bounded from above, and calibrated similarities.

    L = (1 - weight) L_AP + weight L_cal, L_AP = 1 - mean over rows of mean over positives p of rank+ / (rank+ + rank-),
    rank+ = 1 + number of other positives at or above p, rank- = sum over negatives j of H^-(s_qj - s_qp); H^-(t) is
    sigmoid(t/tau) up to t = 0, that plus 1/2 up to delta, and rises by rho beyond; L_cal = mean of [alpha - s]+ over
    positives + mean of [s - beta]+ over negatives, both of the terms above zero.

    The released code adds both terms with weight 1, which is twice the loss at weight 0.5. With `formula: released` a
    query is in its own list, as a further positive.
    """

    name = "roadmap"
    paper = "Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021"
    latex = r"""
    L = (1 - \mathrm{weight})\,L_{\mathrm{AP}} + \mathrm{weight}\,L_{\mathrm{cal}}

    L_{\mathrm{AP}} = 1 - \underset{\text{rows}}{\mathrm{mean}}\,\underset{p}{\mathrm{mean}}\,
    \frac{\mathrm{rank}^+}{\mathrm{rank}^+ + \mathrm{rank}^-}

    \mathrm{rank}^+ = 1 + \text{number of other positives at or above } p

    \mathrm{rank}^- = \sum_j H^-(s_{qj} - s_{qp})

    H^-(t) = \begin{cases} \mathrm{sigmoid}(t / \tau) & t \le 0 \\
    \mathrm{sigmoid}(t / \tau) + 1/2 & 0 < t \le \delta \\
    \mathrm{sigmoid}(\delta / \tau) + 1/2 + \rho\,(t - \delta) & t > \delta \end{cases}

    L_{\mathrm{cal}} = \underset{\text{positives}}{\mathrm{mean}}\,[\alpha - s]_+
    + \underset{\text{negatives}}{\mathrm{mean}}\,[s - \beta]_+
    """
    reads = "similarity"
    function = roadmap

    class Config(RanksConfig):
        metric: Metric = Field("cosine", description="similarity between embeddings")
        tau: float = Field(0.01, gt=0, description="temperature of the sigmoid in H^-")
        rho: float = Field(100.0, ge=0, description="slope of H^- beyond delta")
        delta: float = Field(0.05, ge=0, description="gap beyond which H^- is linear")
        calibration_weight: float = Field(0.5, ge=0, le=1, description="share of the calibration loss, lambda")
        alpha: float = Field(0.9, ge=-1, le=1, description="similarity above which positives rest")
        beta: float = Field(0.6, ge=-1, le=1, description="similarity below which negatives rest")

        def idle(self) -> dict[str, tuple[str, ...]]:
            unused = {0.0: ("alpha", "beta"), 1.0: ("tau", "rho", "delta", "formula")}.get(self.calibration_weight, ())
            return super().idle() | dict.fromkeys(unused, ("calibration_weight",))
