"""SupNDCG: the discounted cumulative gain by ranks that are never better than the true ones.

Ramzi et al., "Optimization of Rank Losses for Image Retrieval", TPAMI 2025. The formulas and defaults are those of the
authors' program (SupRank); the paper itself was not read.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.levels import RankedByLevel, exact_levels, supremum_ranks_by_level
from methods.ranks import one_minus_mean


def sup_ndcg(
    matrix: Tensor,
    shared: Sequence[Tensor],
    others: Tensor,
    *,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
) -> Tensor:
    """1 - mean over queries of the normalised discounted cumulative gain on s, with ranks never better than the true:

        NDCG_q = sum over k of g_k / log2(1 + rank_k) / the same with the best ranks,  g_k = 2^(l_k) - 1

    k are the items that share l_k >= 1 levels with q, rank_k as in `supremum_ranks_by_level`. The best ranks are 1, 2,
    ... in the order of the levels.

    Args:
        matrix: similarities (Q, R) of at least float32. shared: L masks (Q, R), of the pairs that share at least the
            coarsest level, at least two, ..., all levels. others: mask of the pairs that share none.

    Queries that share nothing with any item are left out. Time is (levels) (pairs that share one) x R, memory linear in
    both. Ramzi et al., TPAMI 2025.
    """
    steps = torch.arange(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    discounts = torch.cat([steps.new_zeros(1), torch.log2(2 + steps).reciprocal().cumsum(0)])  # of the first 0, 1, ...
    gain = best = matrix.new_zeros(len(matrix))
    exact = exact_levels(shared)
    ranks_of = supremum_ranks_by_level(matrix, shared, others, tau=tau, rho=rho, delta=delta)
    for level, (mask, queries, ranks) in enumerate(ranks_of):
        gains = (2 ** (level + 1) - 1) * exact[level][mask].to(ranks.dtype)
        gain = gain.index_add(0, queries, gains / torch.log2(1 + ranks))
        best = best + 2**level * discounts[mask.sum(1)]  # a gain is 1 + 2 + 4 + ..., of the levels it shares
    return one_minus_mean(gain / best.clamp(min=torch.finfo(best.dtype).tiny), shared[0])


class SupNDCG(RankedByLevel):
    """SupNDCG: the discounted cumulative gain with ranks bounded from above, and a softmax on proxies.

    L = (1 - weight) (1 - mean over queries of DCG / best DCG) + weight L_proxies, L_proxies the cross-entropy of s /
    temperature over the proxies of the classes; DCG = sum over k of (2^(l_k) - 1) / log2(1 + rank_k), k the images of
    the query's class (l = 2) and the others of its super-class (l = 1); rank_k counts images as relevant as k, and
    bounds those that are less by H^- (ROADMAP's).

    Super-classes are the data set's; without any, l is 1 for images of the class. With `formula: released` a query is
    in its own list, as a further image of its class. `happier` has the hierarchical average precision in place of the
    gain. A weight of 0.1 is that of the released settings for SOP, iNaturalist and DyML.
    """

    name = "sup_ndcg"
    paper = "Ramzi et al., Optimization of Rank Losses for Image Retrieval, TPAMI 2025"
    latex = r"""
    L = (1 - \mathrm{weight}) \left(1 - \underset{\text{queries}}{\mathrm{mean}}\,
    \frac{\mathrm{DCG}}{\text{best } \mathrm{DCG}}\right) + \mathrm{weight}\,L_{\mathrm{proxies}}

    \mathrm{DCG} = \sum_k \frac{2^{l_k} - 1}{\log_2(1 + \mathrm{rank}_k)}
    """

    def rank_loss(self, matrix: Tensor, shared: Sequence[Tensor], others: Tensor) -> Tensor:
        config = self.config
        return sup_ndcg(matrix, shared, others, tau=config.tau, rho=config.rho, delta=config.delta)
