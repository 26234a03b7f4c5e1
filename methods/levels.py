"""Ranks of images that are relevant in degrees: of the own class, of its super-class, of neither."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from methods.distances import cosine_similarity, pair_masks
from methods.objectives import normalized_softmax
from methods.proxies import PROXY_SETTINGS, Proxies, ProxyInit, ProxySettings, proxy_init
from methods.ranks import Formula, with_queries
from methods.roadmap import supremum_ranks
from orchestrator.method import Method, Outputs, Task


def exact_levels(shared: Sequence[Tensor]) -> list[Tensor]:
    """Masks of the pairs that share exactly the coarsest level, exactly two, ..., of those that share at least so many:
    `shared`."""
    return [mask & ~finer for mask, finer in zip(shared, [*shared[1:], torch.zeros_like(shared[0])], strict=True)]


def supremum_ranks_by_level(
    matrix: Tensor, shared: Sequence[Tensor], others: Tensor, *, tau: float, rho: float, delta: float
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each level, from the coarsest on: the mask of the pairs that share at least it (Q, R), and their queries (N,)
    and ranks (N,), in the order of the mask's entries, on similarities s:

        rank_k = 1 + number of j with l_j >= l and s_qj >= s_qk + sum over j with l_j < l of H^-(s_qj - s_qk)

    l_j is the number of levels that an item shares with the query, l the level: the rank is the item's own where it
    shares exactly l. shared: masks of the pairs that share at least the coarsest level, at least two, ...; others: of
    those that share none. Entries in neither are not compared. H^- is ROADMAP's `rank_step`; no rank is better than the
    true one. Memory is linear in R and in the pairs.
    """
    for mask in shared:
        lower = others | (shared[0] & ~mask)
        queries, _, ranks = supremum_ranks(matrix, mask, lower, tau=tau, rho=rho, delta=delta)
        yield mask, queries, ranks


class RankedByLevel(Method, abstract=True):
    """A loss of ranks over the levels of relevance, beside a softmax on proxies of the classes."""

    class Config(ProxySettings):
        proxy_weight: float = Field(0.1, ge=0, le=1, description="share of the loss on proxies, lambda")
        temperature: float = Field(0.05, gt=0, description="temperature of the softmax over proxies")
        tau: float = Field(0.01, gt=0, description="temperature of the sigmoid in H^-")
        rho: float = Field(100.0, ge=0, description="slope of H^- beyond delta")
        delta: float = Field(0.05, ge=0, description="gap beyond which H^- is linear")
        proxy_init: ProxyInit = proxy_init("uniform")
        proxy_lr_multiplier: float = Field(10.0, gt=0, description="the proxies' learning rate over the network's")
        formula: Formula = Field("printed", description="released: a query is in its own list too")

        def idle(self) -> dict[str, tuple[str, ...]]:
            proxies = "temperature", *PROXY_SETTINGS
            ranked = tuple(name for name in type(self).model_fields if name not in ("proxy_weight", *proxies))
            return dict.fromkeys({0.0: proxies, 1.0: ranked}.get(self.proxy_weight, ()), ("proxy_weight",))

    config: Config
    super_classes: Tensor

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.proxies = Proxies(task, 1, config.proxy_init)
        self.register_buffer("super_classes", torch.tensor(task.super_classes or [-1] * task.num_classes))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return self.proxies.group(lr, self.config.proxy_lr_multiplier, self.config.proxy_weight_decay)

    def rank_loss(self, matrix: Tensor, shared: Sequence[Tensor], others: Tensor) -> Tensor:
        """The loss of ranks on similarities (B, B), with masks as `supremum_ranks_by_level`."""
        raise NotImplementedError

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        weight, z = self.config.proxy_weight, outputs["embedding"]
        positive, negative = pair_masks(labels, labels, same=True)
        shared = [positive]
        if self.task.super_classes:
            kinds = torch.where(labels >= 0, self.super_classes[labels.clamp(min=0)], -1)
            of_a_kind, _ = pair_masks(kinds, kinds, same=True)
            shared = [positive | of_a_kind, positive]
        lists = [with_queries(mask, self.config.formula) for mask in shared]
        ranked = self.rank_loss(cosine_similarity(z, z), lists, negative & ~shared[0])
        masks = pair_masks(labels, self.proxies.labels, same=False)
        similarity = cosine_similarity(z, self.proxies())
        proxies = normalized_softmax(similarity, *masks, temperature=self.config.temperature)
        return {"ranked": (1 - weight) * ranked, "proxies": weight * proxies}
