"""HIER: a tree of images, found by points of hyperbolic space that learn to be their common ancestors.

Kim et al., "HIER: Metric Learning Beyond Class Labels via Hierarchical Regularization", CVPR 2023. The formulas and
defaults are those of the authors' program; the paper itself was not read.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from methods.bases import OBJECTIVES, WITHOUT_MEMORY, OverConfig, OverObjective
from methods.derivatives import differentiable_once
from methods.distances import pair_masks
from methods.hyperbolic import exponential_map, hyperbolic_distance, hyperboloid
from orchestrator.method import Batch, Network, Outputs, Task, unit

TREE = "hierarchy_margin", "hierarchical_proxies", "hierarchical_lr_multiplier", "neighbours", "triplets", "tau"


def chosen(mask: Tensor, count: int, rng: Generator) -> Tensor:
    """`count` columns (Q, count) of each row of the mask (Q, R), drawn with equal chances, with replacement; some
    column for a row without any."""
    up_to = mask.cumsum(1)
    shares = torch.rand(len(mask), count, dtype=torch.float64, generator=rng, device=rng.device).to(mask.device)
    places = (shares * up_to[:, -1:]).long() + 1
    return torch.searchsorted(up_to, places).clamp(max=mask.shape[1] - 1)


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
    anchors = torch.arange(size, device=near.device)[:, None].expand(size, count)
    triplets = torch.stack([anchors, chosen(related, count, rng), chosen(others, count, rng)], 2)
    return triplets, related.sum(1) > 1


def ancestors(distance: Tensor, temperature: float, rng: Generator) -> tuple[Tensor, Tensor]:
    """An ancestor for each row of distances (N, P), drawn from the softmax of -d / temperature by Gumbel noise: which
    one, (N,), and the noisy softmax (N, P), which is largest there."""
    noise = _minus_exponential(distance, rng).neg_().log_().neg_()
    soft = noise.sub(distance, alpha=1 / temperature).softmax(1)
    return soft.argmax(1), soft


def _ancestors_by_weights(weights: Tensor, rng: Generator) -> tuple[Tensor, Tensor]:
    """`ancestors`, from the same draws, by e^(-d / temperature) in place of d: of Gumbel's -log E the softmax takes
    e^(-log E) = 1 / E, so that each number needs one logarithm only."""
    soft = torch.div(weights, _minus_exponential(weights, rng))  # below zero
    return soft.argmin(1), soft.div_(soft.sum(1, keepdim=True))


def _minus_exponential(like: Tensor, rng: Generator) -> Tensor:
    """Draws of the exponential distribution, negative, as many as these numbers and of their type."""
    uniform = torch.rand(like.shape, generator=rng, device=rng.device, dtype=torch.float32)
    return uniform.clamp_min_(torch.finfo(torch.float32).tiny).log_().to(like)


def hierarchy_loss(
    distance: Tensor, triplets: Tensor, counted: Tensor, *, margin: float, temperature: float, rng: Generator
) -> Tensor:
    """HIER's loss of triplets (N, T, 3) of points with distances (N, P) to the hierarchical proxies:

        mean over triplets (i, j, k) of [a != b] ([d_ia - d_ib + m]+ + [d_ja - d_jb + m]+ + [d_kb - d_ka + m]+)

    a is drawn from the softmax over proxies of -max(d_i, d_j) / temperature, b from that of -max(d_i, d_j, d_k) /
    temperature (`ancestors`). The mean is over the rows of triplets that are counted, (N,); zero without any. The
    gradient takes the noisy softmaxes in place of the draws: it is that of no function, so that the loss can be
    differentiated once. Memory is linear in the distances and in the triplets.

    Kim et al., HIER, CVPR 2023.
    """
    if distance.device.type == "cpu":  # a GPU would be waited for
        triplets, counted = triplets[counted], counted[counted]
    which = counted[:, None].expand(triplets.shape[:2]).flatten()
    total = cast(Tensor, _Triplets.apply(distance, triplets.flatten(0, 1), which, margin, temperature, rng))
    return total / (counted.sum() * triplets.shape[1]).clamp(min=1)


class _Triplets(torch.autograd.Function):
    """The sum of the loss of triplets (M, 3), those that count (M,) bool; computed with its gradient, some at a time:
    only they have a number for each proxy."""

    BLOCK, BLOCK_ON_ACCELERATOR = 2**18, 2**24
    """Triplets times proxies at a time."""
    REACH = 150.0  # from the smallest to the largest d / temperature; float32 has e^-87 to e^88

    @staticmethod
    def forward(
        ctx: Any, distance: Tensor, triplets: Tensor, counted: Tensor, margin: float, temperature: float, rng: Generator
    ) -> Tensor:
        gradient = torch.zeros_like(distance)
        block, weights = _Triplets.BLOCK_ON_ACCELERATOR, None
        if distance.device.type == "cpu":  # a GPU would be waited for
            block, (least, most) = _Triplets.BLOCK, distance.aminmax()
            if most - least <= _Triplets.REACH * temperature:
                weights = (((least + most) / 2 - distance) / temperature).exp()
        size = max(1, block // distance.shape[1])
        loss = distance.new_zeros(())
        for part, kept in zip(torch.split(triplets, size), torch.split(counted, size), strict=True):
            own, other, third = (distance.index_select(0, index) for index in part.unbind(1))
            pair = torch.maximum(own, other)
            three = torch.maximum(pair, third)
            if weights is None:
                (a, of_pair), (b, of_three) = (ancestors(far, temperature, rng) for far in (pair, three))
            else:  # the larger the distance, the smaller the weight
                low, last, end = (weights.index_select(0, index) for index in part.unbind(1))
                a, of_pair = _ancestors_by_weights(torch.minimum(low, last, out=low), rng)
                b, of_three = _ancestors_by_weights(torch.minimum(low, end, out=end), rng)
            both = torch.stack([a, b], 1)
            gaps = [near - far for near, far in (rows.gather(1, both).unbind(1) for rows in (own, other, third))]
            hinges = torch.stack([gaps[0] + margin, gaps[1] + margin, margin - gaps[2]], 1)
            active = ((a != b) & kept)[:, None] & (hinges > 0)
            loss += torch.where(active, hinges, 0).sum()
            slopes = active.to(distance.dtype)  # by the gaps
            slopes[:, 2].neg_()

            # by the softmaxes: of a those of its gaps, of b their negatives
            on_weights = (own * slopes[:, :1]).addcmul_(other, slopes[:, 1:2]).addcmul_(third, slopes[:, 2:])
            on_pair, on_three = (
                soft.mul_(on_weights - (soft * on_weights).sum(1, keepdim=True)).mul_(sign / temperature)
                for soft, sign in ((of_pair, -1), (of_three, 1))
            )
            on_third = on_three * _share(third, pair)
            on_pair += on_three - on_third
            on_own = on_pair * _share(own, other)
            for index, rows, slope in zip(
                part.unbind(1), (on_own, on_pair - on_own, on_third), slopes.unbind(1), strict=True
            ):
                rows.scatter_add_(1, both, torch.stack([slope, -slope], 1))
                gradient.index_add_(0, index, rows)
        ctx.save_for_backward(gradient, distance)
        return loss

    @staticmethod
    def backward(ctx: Any, on_loss: Tensor) -> tuple[Tensor | None, ...]:
        gradient, distance = ctx.saved_tensors
        return differentiable_once(gradient * on_loss, distance, what="hierarchy_loss"), None, None, None, None, None


def _share(rows: Tensor, others: Tensor) -> Tensor:
    """The share of the gradient of their maximum that the rows have: 1 where they are larger, a half where equal."""
    return (rows - others).sign_().add_(1).mul_(0.5)


class HIER(OverObjective):
    """HIER: an objective, and a tree in hyperbolic space whose inner points are learned.

    L = L_objective + hierarchy_weight (L_tree of the batch + L_tree of the hierarchical proxies), L_tree = mean over
    triplets (i, j, k) of [a != b] ([d_ia - d_ib + m]+ + [d_ja - d_jb + m]+ + [d_kb - d_ka + m]+)

    i and j are reciprocal neighbours (each among the other's nearest, those of its class first), k is not i's; a is
    drawn from the softmax over the hierarchical proxies of -max(d_i, d_j) / tau, b from that of -max(d_i, d_j, d_k) /
    tau. d is the distance in the Poincare ball of `hyperbolic`, where the embedding lies; it ranks images too. The
    objective reads unit rows along the ball's points.

    In the released code k may be i itself, a batch of fewer than two `neighbours` has as many all the same, and
    gradients on the ball's points are multiplied by (1 - c |x|^2)^2 / 4; not here. Its network is that of `layer_norm:
    features` and `head_init: orthogonal`, of vision transformers with `freeze_patch_embedding: true`, and its class
    proxies learn 10,000 times as fast. Time is (images and proxies) x triplets x proxies, with two random numbers for
    each: 33 million by default with 128 images, more than ProxyAnchor multiplies with 100 classes (20 million).
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
        on_sphere = unit(outputs["embedding"])
        points = outputs["embedding"].to(torch.promote_types(on_sphere.dtype, torch.float32))
        inner = self.normalize(self.inner)
        related, _ = pair_masks(batch.labels, batch.labels, same=True)
        tree, own_rng = [], self.generator_on(rng, points.device)
        # one matrix for all, whose near pairs are listed once: a GPU is waited for then
        distances = hyperbolic_distance(torch.cat([points, inner]), torch.cat([points, inner]), config.curvature)
        images = slice(0, len(points))
        others = slice(len(points), None)
        for own, same in ((images, related), (others, None)):
            with torch.no_grad():
                closeness = 1 / (1 + distances[own, own]) + (0 if same is None else same.to(distances))
            triplets, valid = reciprocal_triplets(closeness, config.neighbours, config.triplets, own_rng)
            arguments = {"margin": config.hierarchy_margin, "temperature": config.tau}
            tree.append(hierarchy_loss(distances[own, others], triplets, valid, **arguments, rng=own_rng))
        terms = {"loss": self.base.compare(outputs | {"embedding": on_sphere}, batch.labels, rng)}
        return terms | {"tree": config.hierarchy_weight * (tree[0] + tree[1])}
