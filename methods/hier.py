"""HIER: a tree of images, found by points of hyperbolic space that learn to be their common ancestors.

Kim et al., "HIER: Metric Learning Beyond Class Labels via Hierarchical Regularization", CVPR 2023. The formulas and
defaults are those of the authors' program; the paper itself was not read.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor, nn

from methods.bases import OBJECTIVES, WITHOUT_MEMORY, OverConfig, OverObjective
from methods.distances import pair_masks
from methods.hyperbolic import exponential_map, hyperbolic_distance, hyperboloid
from orchestrator.method import Batch, Network, Outputs, Task

TREE = "hierarchy_margin", "hierarchical_proxies", "hierarchical_lr_multiplier", "neighbours", "triplets", "tau"


def chosen(mask: Tensor, count: int, rng: Generator) -> Tensor:
    """`count` columns (Q, count) of each row of the mask (Q, R), drawn with equal chances, with replacement; some
    column for a row without any."""
    up_to = mask.cumsum(1)
    shares = torch.rand(len(mask), count, dtype=torch.float64, generator=rng, device=rng.device).to(mask.device)
    wanted = (shares * up_to[:, -1:]).long() + 1
    return torch.searchsorted(up_to, wanted).clamp(max=mask.shape[1] - 1)


def reciprocal_triplets(closeness: Tensor, neighbours: int, count: int, rng: Generator) -> tuple[Tensor, Tensor]:
    """Triplets (N, count, 3) of N points, and the rows that count, (N,) bool. Row i holds i, one of its reciprocal
    neighbours, and a point that is none, each drawn `count` times.

    Two points are reciprocal neighbours if each is among the `neighbours` closest of the other, or the closest half of
    all if that is less, by `closeness` (N, N), where a point is its own closest. A row counts if it has two of them.
    """
    size = len(closeness)
    closest = closeness.fill_diagonal_(torch.inf).topk(max(1, min(neighbours, size // 2)), 1).indices
    near = torch.zeros_like(closeness, dtype=torch.bool).scatter_(1, closest, True)
    itself = torch.eye(size, dtype=torch.bool, device=near.device)
    related, others = near & near.T & ~itself, ~(near & near.T) & ~itself
    own = torch.arange(size, device=near.device)[:, None].expand(size, count)
    triplets = torch.stack([own, chosen(related, count, rng), chosen(others, count, rng)], 2)
    return triplets, related.sum(1) > 1


def ancestors(distance: Tensor, temperature: float, rng: Generator) -> tuple[Tensor, Tensor]:
    """An ancestor for each row of distances (N, P), drawn from the softmax of -d / temperature by Gumbel noise: which
    one, (N,), and weights (N, P) that are 1 there and 0 elsewhere, with the gradient of the noisy softmax."""
    uniform = torch.rand(distance.shape, generator=rng, device=rng.device, dtype=torch.float32)
    noise = uniform.clamp_min(torch.finfo(torch.float32).tiny).log_().neg_().log_().neg_().to(distance)
    soft = (noise - distance / temperature).softmax(1)
    which = soft.argmax(1)
    hard = torch.zeros_like(soft).scatter_(1, which[:, None], 1)
    return which, hard + (soft - soft.detach())


def hierarchy_loss(
    distance: Tensor, triplets: Tensor, counted: Tensor, *, margin: float, temperature: float, rng: Generator
) -> Tensor:
    """HIER's loss of triplets (N, T, 3) of points with distances (N, P) to the hierarchical proxies:

        mean over triplets (i, j, k) of [a != b] ([d_ia - d_ib + m]+ + [d_ja - d_jb + m]+ + [d_kb - d_ka + m]+)

    a is drawn from the softmax over proxies of -max(d_i, d_j) / temperature, b from that of -max(d_i, d_j, d_k) /
    temperature (`ancestors`). The mean is over the rows of triplets that are counted, (N,); zero without any.

    Kim et al., HIER, CVPR 2023.
    """
    of = [distance[part.flatten()] for part in triplets.unbind(2)]
    pair = torch.maximum(of[0], of[1])
    (which_a, a), (which_b, b) = (ancestors(far, temperature, rng) for far in (pair, torch.maximum(pair, of[2])))
    gaps = [(rows * a).sum(1) - (rows * b).sum(1) for rows in of]
    terms = (gaps[0] + margin).relu() + (gaps[1] + margin).relu() + (margin - gaps[2]).relu()
    terms = torch.where(which_a != which_b, terms, 0).view(triplets.shape[:2])
    return torch.where(counted[:, None], terms, 0).sum() / (counted.sum() * triplets.shape[1]).clamp(min=1)


class HIER(OverObjective):
    """HIER: an objective, and a tree in hyperbolic space whose inner points are learned.

    L = L_objective + hierarchy_weight (L_tree of the batch + L_tree of the hierarchical proxies), L_tree = mean over
    triplets (i, j, k) of [a != b] ([d_ia - d_ib + m]+ + [d_ja - d_jb + m]+ + [d_kb - d_ka + m]+)

    i and j are reciprocal neighbours (each among the other's nearest, those of its class first), k is not i's; a is
    drawn from the softmax over the hierarchical proxies of -max(d_i, d_j) / tau, b from that of -max(d_i, d_j, d_k) /
    tau. d is the distance in the Poincare ball of `hyperbolic`, where the embedding lies; it ranks images too. The
    objective reads unit rows along the ball's points.

    In the released code k may be i itself, a batch of fewer than two `neighbours` has as many all the same, and
    gradients on the ball's points are multiplied by (1 - c |x|^2)^2 / 4; not here. Its class proxies learn 10,000 times
    as fast as the network. Time and memory are (images and proxies) x triplets x proxies.
    """

    name = "hier"
    paper = "Kim et al., HIER: Metric Learning Beyond Class Labels via Hierarchical Regularization, CVPR 2023"
    latex = r"""
    L = L_{\mathrm{objective}} + \mathrm{hierarchy\_weight}\,\left(L_{\mathrm{tree}}(\text{batch})
    + L_{\mathrm{tree}}(\text{hierarchical proxies})\right)

    L_{\mathrm{tree}} = \underset{(i, j, k)}{\mathrm{mean}}\,[a \ne b] \left([d_{ia} - d_{ib} + m]_+
    + [d_{ja} - d_{jb} + m]_+ + [d_{kb} - d_{ka} + m]_+\right)
    """
    expected_failures: ClassVar[Mapping[str, str]] = {"permutation": "triplets are drawn in the order of the batch"}

    class Config(OverConfig, over=OBJECTIVES, fixed=WITHOUT_MEMORY):
        hierarchy_weight: float = Field(0.5, ge=0, description="weight of the tree, lambda_2")
        hierarchy_margin: float = Field(0.1, ge=0, description="by how much the other ancestor is farther, m")
        hierarchical_proxies: int = Field(512, ge=1, le=100_000, description="inner points of the tree")
        hierarchical_lr_multiplier: float = Field(50.0, gt=0, description="their learning rate over the network's")
        neighbours: int = Field(20, ge=2, le=100_000, description="nearest ones that may be reciprocal, itself counted")
        triplets: int = Field(50, ge=1, le=10_000, description="triplets of each image and of each inner point")
        tau: float = Field(0.1, gt=0, description="temperature at which ancestors are drawn")
        curvature: float = Field(0.1, gt=0, le=100, description="c; the ball's radius is 1 / sqrt(c)")
        clip_radius: float = Field(2.3, gt=0, description="length r to which the network's vectors are shortened")

        def idle(self) -> dict[str, tuple[str, ...]]:
            without = () if self.hierarchy_weight else TREE
            return super().idle() | dict.fromkeys(without, ("hierarchy_weight",))

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        vectors = torch.randn(config.hierarchical_proxies, task.embedding_dim) / math.sqrt(max(1, task.embedding_dim))
        self.inner = nn.Parameter(0.9 * config.clip_radius * vectors)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        rate = lr * self.config.hierarchical_lr_multiplier
        return [*super().parameter_groups(lr), {"params": [self.inner], "lr": rate}]

    def normalize(self, embedding: Tensor) -> Tensor:
        return exponential_map(embedding, self.config.curvature, self.config.clip_radius)

    def retrieval(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        return hyperboloid(outputs["embedding"], self.config.curvature)

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        config, outputs = self.config, network(batch.images)
        unit = F.normalize(outputs["embedding"], dim=1)
        points = outputs["embedding"].to(torch.promote_types(unit.dtype, torch.float32))
        inner = self.normalize(self.inner)
        related, _ = pair_masks(batch.labels, batch.labels, same=True)
        tree, own_rng = [], self.generator_on(rng, points.device)
        for own, same in ((points, related), (inner, None)):
            distance = hyperbolic_distance(own, inner, config.curvature)
            with torch.no_grad():
                apart = hyperbolic_distance(own, own, config.curvature)
                closeness = 1 / (1 + apart) + (0 if same is None else same.to(apart))
            triplets, counted = reciprocal_triplets(closeness, config.neighbours, config.triplets, own_rng)
            given = {"margin": config.hierarchy_margin, "temperature": config.tau}
            tree.append(hierarchy_loss(distance, triplets, counted, **given, rng=own_rng))
        terms = {"loss": self.base.compare(outputs | {"embedding": unit}, batch.labels, rng)}
        return terms | {"tree": config.hierarchy_weight * (tree[0] + tree[1])}
