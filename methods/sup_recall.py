"""SupRecall: recall at k by ranks that are never better than the true ones, and a calibration of similarities.

Ramzi et al., "Optimization of Rank Losses for Image Retrieval", TPAMI 2025. The formulas and defaults are those of the
authors' program (SupRank); the paper itself was not read.
"""

from collections.abc import Sequence
from typing import Any

from torch import Generator, Tensor

from methods.ranks import Formula, one_minus_recall, with_queries
from methods.recall_at_k import CutoffsConfig
from methods.reductions import Reduction, objective
from methods.roadmap import Roadmap, calibration, supremum_ranks


@objective
def sup_recall(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    ks: Sequence[int] = (1, 2, 4, 8, 16),
    k_temperature: float = 1.0,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
    calibration_weight: float = 0.5,
    alpha: float = 0.9,
    beta: float = 0.6,
    formula: Formula = "printed",
    reduction: Reduction = "mean",
) -> Tensor:
    """(1 - weight) (1 - R) + weight L_cal on s, L_cal ROADMAP's `calibration`, R the mean over rows and over the k of

        min(k, sum over positives p of sigma((k - rank_p) / k_temperature)) / min(k, number of positives)
        rank_p = 1 + the number of other positives j with s_qj >= s_qp, which has no gradient,
                   + sum over negatives j of H^-(s_qj - s_qp) (`rank_step`)

    Rows without positives are left out. A sample is not in its own list; with formula="released" it is, as a further
    positive, which shifts every k by about one. The minimum with k of the sum is not in the released code, and has no
    effect at its temperature. ValueError as `sup_ap` and `recall_at_k_surrogate`.

    Time is (positive pairs) x R; memory is linear in R and in the positive pairs (`positive_ranks`).

    Ramzi et al., TPAMI 2025.
    """
    listed = with_queries(positive, formula)
    queries, _, overall = supremum_ranks(matrix, listed, negative, tau=tau, rho=rho, delta=delta)
    ranked = one_minus_recall(overall, queries, listed, ks, k_temperature, reduction)
    calibrated = calibration(matrix, positive, negative, alpha=alpha, beta=beta, reduction=reduction)
    return (1 - calibration_weight) * ranked + calibration_weight * calibrated


class SupRecall(Roadmap):
    """SupRecall: recall at several k whose ranks are bounded from above, and calibrated similarities.

    L = (1 - weight) (1 - mean over rows and k of min(k, sum over positives p of sigmoid((k - rank_p) / k_temperature))
    / min(k, P)) + weight L_cal, rank_p = 1 + number of other positives at or above p + sum over negatives j of
    H^-(s_qj - s_qp), P the row's positives; H^- and L_cal are those of `roadmap`, which has the average precision in
    place of recall.

    Weights of one half are those of the released setting ROADRatk. With `formula: released` a query is in its own list,
    as a further positive.
    """

    name = "sup_recall"
    paper = "Ramzi et al., Optimization of Rank Losses for Image Retrieval, TPAMI 2025"
    latex = r"""
    L = (1 - \mathrm{weight}) \left(1 - \underset{\text{rows}, k}{\mathrm{mean}}\,\frac{\min\left(k, \sum_p
    \mathrm{sigmoid}((k - \mathrm{rank}_p) / \mathrm{k\_temperature})\right)}{\min(k, P)}\right)
    + \mathrm{weight}\,L_{\mathrm{cal}}

    \mathrm{rank}_p = 1 + \text{number of other positives at or above } p + \sum_j H^-(s_{qj} - s_{qp})
    """
    function = sup_recall

    class Config(CutoffsConfig, Roadmap.Config):
        def idle(self) -> dict[str, tuple[str, ...]]:
            unused = ("ks", "k_temperature") if self.calibration_weight == 1 else ()
            return super().idle() | dict.fromkeys(unused, ("calibration_weight",))

    config: Config

    def _hyperparameters(self, labels: Tensor, rng: Generator) -> dict[str, Any]:
        return super()._hyperparameters(labels, rng) | {"ks": self.config.numbers()}
