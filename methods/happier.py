"""HAPPIER: average precision in which images of the own super-class count in part.

Ramzi et al., "Hierarchical Average Precision Training for Pertinent Image Retrieval", ECCV 2022. The formulas are those
of the authors' program; the paper itself was not read.
"""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from methods.distances import cosine_similarity, pair_masks
from methods.objectives import normalized_softmax
from methods.proxies import Proxies
from methods.ranks import one_minus_mean, positive_ranks
from methods.roadmap import rank_step
from orchestrator.method import Method, MethodConfig, Outputs, Task


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
    exact = [mask & ~finer for mask, finer in zip(shared, [*shared[1:], torch.zeros_like(others)], strict=True)]
    levels = len(shared)
    counts = [mask.sum(1) for mask in exact]
    weights = [((level + 1) / levels) ** alpha for level in range(levels)]
    relevance = [weight / count.clamp(min=1).to(matrix.dtype) for weight, count in zip(weights, counts, strict=True)]
    above = [at_or_above(matrix, mask) for mask in exact]

    def step(gaps: Tensor, as_relevant: Tensor) -> Tensor:
        return torch.where(as_relevant, (gaps >= 0).to(gaps.dtype), rank_step(gaps, tau=tau, rho=rho, delta=delta))

    found = matrix.new_zeros(len(matrix))
    for level, mask in enumerate(shared):
        lower = others | (shared[0] & ~mask)
        queries, _, ranks = positive_ranks(matrix, mask, lower, step)
        hierarchical = torch.stack(
            [torch.minimum(relevance[level], relevance[m])[:, None] * above[m] for m in range(levels)]
        ).sum(0)
        terms = torch.where(exact[level], hierarchical, 0)[mask] / ranks
        found = found.index_add(0, queries, terms)
    best = torch.stack([weight * (count > 0) for weight, count in zip(weights, counts, strict=True)]).sum(0)
    return one_minus_mean(found / best.clamp(min=torch.finfo(found.dtype).tiny), shared[0])


class HAPPIER(Method):
    """HAPPIER: average precision in which images of the own super-class count in part, and a softmax on proxies.

    L = (1 - weight) (1 - mean over queries of H-AP) + weight L_proxies, L_proxies the cross-entropy of s / temperature
    over the proxies of the classes; H-AP = sum over k of (H-rank_k / rank_k) / sum over k of r_k, k the images of the
    query's class (l = 2) and the others of its super-class (l = 1), r_k = (l / 2)^alpha / the number of those;
    H-rank_k = sum over such j at or above k of min(r_k, r_j); rank_k counts images as relevant as k, and bounds those
    that are less by H^- (ROADMAP's).

    Super-classes are the data set's; without any, H-AP is the average precision, and L is that of the authors' later
    program (SupRank) for ROADMAP with proxies in place of the calibration. H-rank has no gradient, as in all released
    settings; the code's other form of it is not here. Nor is its sampler of two super-classes per batch, which it uses
    on SOP. A query is not in its own list; in the released code it is, as a further image of its class.
    """

    name = "happier"
    paper = "Ramzi et al., Hierarchical Average Precision Training for Pertinent Image Retrieval, ECCV 2022"

    class Config(MethodConfig):
        alpha: float = Field(1.0, ge=0, le=100, description="how much less the super-class counts: half to this power")
        proxy_weight: float = Field(0.1, ge=0, le=1, description="share of the loss on proxies, lambda")
        temperature: float = Field(0.05, gt=0, description="temperature of the softmax over proxies")
        tau: float = Field(0.01, gt=0, description="temperature of the sigmoid in H^-")
        rho: float = Field(100.0, ge=0, description="slope of H^- beyond delta")
        delta: float = Field(0.05, ge=0, description="gap beyond which H^- is linear")
        proxy_lr_multiplier: float = Field(100.0, gt=0, description="the proxies' learning rate over the network's")

        def idle(self) -> dict[str, tuple[str, ...]]:
            ranked, proxies = ("alpha", "tau", "rho", "delta"), ("temperature", "proxy_lr_multiplier")
            unused = {0.0: proxies, 1.0: ranked}.get(self.proxy_weight, ())
            return dict.fromkeys(unused, ("proxy_weight",))

    config: Config
    super_classes: Tensor

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.proxies = Proxies(task, per_class=1)
        self.register_buffer("super_classes", torch.tensor(task.super_classes or [-1] * task.num_classes))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return self.proxies.group(lr, self.config.proxy_lr_multiplier)

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        config, z = self.config, outputs["embedding"]
        positive, negative = pair_masks(labels, labels, same=True)
        shared = [positive]
        if self.task.super_classes:
            kinds = torch.where(labels >= 0, self.super_classes[labels.clamp(min=0)], -1)
            of_a_kind, _ = pair_masks(kinds, kinds, same=True)
            shared = [positive | of_a_kind, positive]
        ranked = hierarchical_ap(
            cosine_similarity(z, z),
            shared,
            negative & ~shared[0],
            alpha=config.alpha,
            tau=config.tau,
            rho=config.rho,
            delta=config.delta,
        )
        masks = pair_masks(labels, self.proxies.labels, same=False)
        similarity = cosine_similarity(z, self.proxies())
        proxies = normalized_softmax(similarity, *masks, temperature=config.temperature)
        return {"ranked": (1 - config.proxy_weight) * ranked, "proxies": config.proxy_weight * proxies}
