"""HAPPIER: average precision in which images of the own super-class count in part.

Ramzi et al., "Hierarchical Average Precision Training for Pertinent Image Retrieval", ECCV 2022. The formulas are those
of the authors' program; the paper itself was not read.
"""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from methods.levels import RankedByLevel, exact_levels, supremum_ranks_by_level
from methods.ranks import one_minus_mean


@torch.no_grad()
def at_or_above(matrix: Tensor, counted: Tensor) -> Tensor:
    """For each entry of the matrix (Q, R) how many counted entries of its row are at least as large: (Q, R)."""
    ordered = torch.where(counted, matrix, -torch.inf).sort(1).values
    return matrix.shape[1] - torch.searchsorted(ordered, matrix.contiguous())


def hierarchical_ap(
    matrix: Tensor,
    shared: Sequence[Tensor],
    others: Tensor,
    *,
    alpha: float = 1.0,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
) -> Tensor:
    """1 - mean over queries of the hierarchical average precision on s, with ranks that are never better than the true:

        H-AP_q = sum over k of (H-rank_k / rank_k) / sum over k of r_k,  k the items that share a level l_k >= 1 with q
        H-rank_k = r_k + sum over such j of min(r_k, r_j) [s_qj >= s_qk],  without a gradient
        rank_k = 1 + number of j with l_j >= l_k and s_qj >= s_qk + sum over j with l_j < l_k of H^-(s_qj - s_qk)
        r_k = (l_k / L)^alpha / number of items of q at level l_k,  H^- as in ROADMAP (`rank_step`)

    Args:
        matrix: similarities (Q, R) of at least float32. shared: L masks (Q, R), of the pairs that share at least the
            coarsest level, at least the second, ..., all levels. others: mask of the pairs that share none.

    Queries that share nothing with any item are left out. Time is L (pairs that share a level) x R, memory linear in
    both (`positive_ranks`). With one level it is `sup_ap`.

    Ramzi et al., ECCV 2022; the relevances r and the defaults are the released code's.
    """
    exact = exact_levels(shared)
    levels = len(shared)
    counts = [mask.sum(1) for mask in exact]
    weights = [((level + 1) / levels) ** alpha for level in range(levels)]
    relevance = [weight / count.clamp(min=1).to(matrix.dtype) for weight, count in zip(weights, counts, strict=True)]
    above = [at_or_above(matrix, mask) for mask in exact]

    values = matrix.new_zeros(len(matrix))
    ranks_of = supremum_ranks_by_level(matrix, shared, others, tau=tau, rho=rho, delta=delta)
    for level, (mask, queries, ranks) in enumerate(ranks_of):
        hierarchical = torch.stack(
            [torch.minimum(relevance[level], relevance[m])[:, None] * above[m] for m in range(levels)]
        ).sum(0)
        values = values.index_add(0, queries, torch.where(exact[level], hierarchical, 0)[mask] / ranks)
    best = torch.stack([weight * (count > 0) for weight, count in zip(weights, counts, strict=True)]).sum(0)
    return one_minus_mean(values / best.clamp(min=torch.finfo(values.dtype).tiny), shared[0])


class HAPPIER(RankedByLevel):
    """HAPPIER: average precision in which images of the own super-class count in part, and a softmax on proxies.

    L = (1 - weight) (1 - mean over queries of H-AP) + weight L_proxies, L_proxies the cross-entropy of s / temperature
    over the proxies of the classes; H-AP = sum over k of (H-rank_k / rank_k) / sum over k of r_k, k the images of the
    query's class (l = 2) and the others of its super-class (l = 1), r_k = (l / 2)^alpha / the number of those;
    H-rank_k = sum over such j at or above k of min(r_k, r_j); rank_k counts images as relevant as k, and bounds those
    that are less by H^- (ROADMAP's).

    Super-classes are the data set's; without any, H-AP is the average precision, and L is that of the authors' later
    program (SupRank) for ROADMAP with proxies in place of the calibration. With `formula: released` a query is in its
    own list, as a further image of its class.

    Left out: a gradient of H-rank, which one released setting has (SOP with a weight of 0.5, in the first release; its
    successor has none), and the sampler of two super-classes per batch, which is used on SOP.
    """

    name = "happier"
    paper = "Ramzi et al., Hierarchical Average Precision Training for Pertinent Image Retrieval, ECCV 2022"
    latex = r"""
    L = (1 - \mathrm{weight}) \left(1 - \underset{\text{queries}}{\mathrm{mean}}\,\text{H-AP}\right)
    + \mathrm{weight}\,L_{\mathrm{proxies}}

    \text{H-AP} = \frac{\sum_k \text{H-rank}_k / \mathrm{rank}_k}{\sum_k r_k}

    r_k = \frac{(l / 2)^{\alpha}}{\text{number of images with this } l}

    \text{H-rank}_k = \sum_{j \text{ at or above } k} \min(r_k, r_j)
    """

    class Config(RankedByLevel.Config):
        alpha: float = Field(1.0, ge=0, le=100, description="how much less the super-class counts: half to this power")

    config: Config

    def rank_loss(self, matrix: Tensor, shared: Sequence[Tensor], others: Tensor) -> Tensor:
        config = self.config
        arguments = {"alpha": config.alpha, "tau": config.tau, "rho": config.rho, "delta": config.delta}
        return hierarchical_ap(matrix, shared, others, **arguments)
