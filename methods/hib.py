"""Hedged instance embeddings: an image is a Gaussian, from which points are drawn and compared.

Oh et al., "Modeling Uncertainty with Hedged Instance Embedding" (HIB), ICLR 2019.

Shapes: Q queries, R references, N images, K draws of each, D dimensions.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint

from methods.distances import euclidean_distance, pair_masks
from orchestrator.method import Batch, Diagnostics, Embedded, Method, MethodConfig, Network, Outputs, Task

BLOCK = 2**22
"""Pairs of draws that are compared at once."""


class Gaussians(NamedTuple):
    """One Gaussian per image, with a diagonal covariance: its mean and the logarithm of its variances, (N, D) each."""

    mean: Tensor
    log_variance: Tensor


def draw(images: Gaussians, count: int, rng: Generator) -> Tensor:
    """`count` points of each Gaussian, mean + e^(log_variance / 2) noise: (N, K, D), with gradients to both."""
    mean, log_variance = images
    shape = len(mean), count, mean.shape[1]
    noise = torch.randn(shape, dtype=torch.float64, generator=rng, device=rng.device).to(mean)
    return mean[:, None] + (log_variance / 2).exp()[:, None] * noise


def standard_normal_divergence(images: Gaussians) -> Tensor:
    """KL(N(mean, variance) || N(0, I)) = 1/2 sum over dimensions of (variance + mean^2 - 1 - log variance): (N,)."""
    mean, log_variance = images
    return (log_variance.exp() + mean.square() - 1 - log_variance).sum(1) / 2


def log_match_probabilities(
    queries: Tensor, references: Tensor, *, a: float | Tensor, b: float | Tensor
) -> tuple[Tensor, Tensor]:
    """log p and log(1 - p), (Q, R) each, of the probability that two images match,

        p = 1/K^2 sum over draws k, l of sigma(b - a ||z_q^(k) - z_r^(l)||)

    of `queries` (Q, K, D) and `references` (R, K, D). The number of draws may differ. Memory is that of the results and
    of one block of queries; blocks are computed again in the backward pass.
    """
    rows = max(1, BLOCK // max(1, queries.shape[1] * references.shape[0] * references.shape[1]))
    a, b = (torch.as_tensor(value, dtype=queries.dtype, device=queries.device) for value in (a, b))

    def block(part: Tensor, references: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        distance = euclidean_distance(part.flatten(0, 1), references.flatten(0, 1))
        logits = (b - a * distance).view(*part.shape[:2], *references.shape[:2])
        share = math.log(part.shape[1] * references.shape[1])
        match, mismatch = (
            F.logsigmoid(signed_logits).logsumexp(dim=(1, 3)) - share for signed_logits in (logits, -logits)
        )
        return match, mismatch

    if rows >= len(queries):
        return block(queries, references, a, b)
    parts = [checkpoint(block, part, references, a, b, use_reentrant=False) for part in torch.split(queries, rows)]
    match, mismatch = (torch.cat(blocks) for blocks in zip(*parts, strict=True))
    return match, mismatch


def soft_contrastive(log_match: Tensor, log_mismatch: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """(mean over positives of -log p + mean over negatives of -log(1 - p)) / 2; all (Q, R).

    Both kinds weigh the same, whatever their numbers. Without pairs of a kind its mean is 0.
    """
    kinds = ((log_match, positive), (log_mismatch, negative))
    means = [-torch.where(mask, log, 0).sum() / mask.sum().clamp(min=1) for log, mask in kinds]
    return torch.stack(means).sum() / 2


class HIB(Method):
    """Hedged instance embedding (HIB): images are Gaussians; points drawn of two images match with a probability.

    L = (mean over positives of -log p + mean over negatives of -log(1 - p)) / 2 + 2 beta mean over images of
    KL(N(m, diag(v)) || N(0, I)),  p = 1/K^2 sum over draws k, l of sigma(b - a ||z_i^(k) - z_j^(l)||)

    The mean m is the embedding, not normalised; the head "log_variance" gives log v; a > 0 (as the exponential of a
    parameter) and b are learned, without weight decay. In the paper's sum each pair has the divergence of its two
    images, hence the 2. Images are ranked by the distance of their means.

    Read: the abstract, the introduction and p with its learned a and b. K and beta are those of public
    re-implementations. Not read: how pairs of a batch are chosen (here all, matches and mismatches weigh the same), and
    where a, b and the variances start. Unit variances, those of the prior, would hide the means in 128 dimensions. The
    paper's mixture of Gaussians and its ranking by p are left out.
    """

    name = "hib"
    paper = "Oh et al., Modeling Uncertainty with Hedged Instance Embedding, ICLR 2019"
    latex = r"""
    L = \frac{1}{2} \left(\underset{\text{positives}}{\mathrm{mean}}\,(-\log\,p)
    + \underset{\text{negatives}}{\mathrm{mean}}\,(-\log(1 - p))\right)
    + 2 \beta\,\underset{\text{images}}{\mathrm{mean}}\,\mathrm{KL}\left(N(m, \mathrm{diag}(v))
    \,\|\, N(0, I)\right)

    p = \frac{1}{K^2} \sum_{k, l} \sigma\left(b - a \left\lVert z_i^{(k)} - z_j^{(l)}\right\rVert\right)
    """
    expected_failures: ClassVar[Mapping[str, str]] = {"permutation": "points are drawn in the order of the batch"}

    class Config(MethodConfig):
        draws: int = Field(8, ge=1, le=1024, description="K, points drawn of each image")
        beta: float = Field(1e-4, ge=0, description="weight of the divergence from N(0, I)")
        deviation: float = Field(0.1, gt=0, description="deviation of the Gaussians in each dimension, at the start")
        slope: float = Field(1.0, gt=0, description="a, the slope of the probability of a match, at the start")
        offset: float = Field(5.0, ge=-1000, le=1000, description="b, its logit at a distance of zero, at the start")
        match_lr_multiplier: float = Field(1.0, gt=0, description="learning rate of a and b, in that of the network")

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.log_a = nn.Parameter(torch.tensor(math.log(config.slope)))
        self.b = nn.Parameter(torch.tensor(config.offset))

    def heads(self) -> nn.ModuleDict:
        """ "log_variance" (B, D): linear."""
        return log_variance_head(self.task, self.config.deviation)

    def normalize(self, embedding: Tensor) -> Tensor:
        return embedding

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": [self.log_a, self.b], "lr": lr * self.config.match_lr_multiplier, "weight_decay": 0.0}]

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        images = gaussians(network(batch.images), "embedding")
        points = draw(images, self.config.draws, self.generator_on(rng, images.mean.device))
        logs = log_match_probabilities(points, points, a=self.log_a.exp(), b=self.b)
        return {
            "match": soft_contrastive(*logs, *pair_masks(batch.labels, batch.labels, same=True)),
            "divergence": 2 * self.config.beta * standard_normal_divergence(images).mean(),
        }

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """`slope` and `offset`; the mean over images of the geometric mean of the deviations; of each held-out image
        its own, as `uncertainty`."""
        scalars = {"slope": self.log_a.exp().item(), "offset": self.b.item()}
        return deviations(trained, held_out, scalars)


def log_variance_head(task: Task, deviation: float) -> nn.ModuleDict:
    """A linear head "log_variance" (B, D), which is about log deviation^2 at the start."""
    head = nn.Linear(task.feature_dim, task.embedding_dim)
    nn.init.constant_(head.bias, 2 * math.log(deviation))
    return nn.ModuleDict({"log_variance": head})


def gaussians(outputs: Outputs, mean: str) -> Gaussians:
    """The Gaussians of a network's outputs `mean` and "log_variance", at least in float32."""
    rows = outputs[mean], outputs["log_variance"]
    return Gaussians(*(row.to(torch.promote_types(row.dtype, torch.float32)) for row in rows))


def deviations(trained: Embedded | None, held_out: Embedded | None, scalars: dict[str, float]) -> Diagnostics:
    """`deviation_trained` and `deviation_held_out`, the mean over images of e^(mean of log_variance / 2), beside
    `scalars`; and each held-out image's own."""
    tables: dict[str, dict[str, list[Any]]] = {}
    for name, embedded in (("trained", trained), ("held_out", held_out)):
        if embedded is None:
            continue
        level = (embedded.outputs["log_variance"].double().mean(1) / 2).exp()
        scalars[f"deviation_{name}"] = level.mean().item()
        if embedded is held_out:
            columns = {"sample": embedded.samples, "label": embedded.labels, "uncertainty": level}
            tables["uncertainty"] = {column: values.tolist() for column, values in columns.items()}
    return Diagnostics(scalars, {}, tables)
