"""Probabilistic embedding learning: an objective on points that are drawn from a Gaussian of each image.

What the IDML paper compares itself with (Wang et al., TPAMI 2024, Table 6): the framework of Oh et al., "Modeling
Uncertainty with Hedged Instance Embedding", ICLR 2019, on other objectives.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from methods.baselines import (
    Contrastive,
    Margin,
    MultiSimilarity,
    NormalizedSoftmax,
    ProxyAnchor,
    ProxyNCA,
    Triplet,
)
from methods.bases import WITHOUT_MEMORY, OverConfig, OverObjective
from methods.fast_ap import FastAP
from methods.hib import Gaussians, deviations, draw, gaussians, log_variance_head, standard_normal_divergence
from methods.mixup import check_blocks, label_sets, mix
from orchestrator.method import Batch, Diagnostics, Embedded, Network, Task, unit


class PEL(OverObjective):
    """Probabilistic embedding learning (PEL): an objective on drawn points of images that are Gaussians.

    L = mean over draws k of J(z^(k) / ||z^(k)||) + beta mean over images of KL(N(m, diag(v)) || N(0, I)),
    z^(k) = m + sqrt(v) noise

    J is the base `objective`, m the raw embedding, log v the head "log_variance". Proxies are points. Images are ranked
    by the direction of m.

    The IDML paper says only that it "reproduced the framework on each loss", and with Mixup; so drawing each image K
    times for an objective on points is our reading; K and beta are as in the method `hib`. With `mixup` the objective
    sees one mixed image per original, with both labels, as IDML's does.
    """

    name = "pel"
    paper = (
        "Oh et al., Modeling Uncertainty with Hedged Instance Embedding, ICLR 2019; over objectives in IDML's Table 6"
    )
    latex = r"""
    L = \underset{k}{\mathrm{mean}}\,J\left(\frac{z^{(k)}}{\left\lVert z^{(k)}\right\rVert}\right)
    + \beta\,\underset{\text{images}}{\mathrm{mean}}\,\mathrm{KL}\left(N(m, \mathrm{diag}(v))
    \,\|\, N(0, I)\right)

    z^{(k)} = m + \sqrt{v}\,\mathrm{noise}
    """
    reads_raw = True
    expected_failures: ClassVar[Mapping[str, str]] = {"permutation": "points are drawn in the order of the batch"}

    class Config(
        OverConfig,
        over={
            ProxyAnchor: {},
            Margin: {"learn_beta": "no", "phi_form": "printed"},  # as IDML's
            MultiSimilarity: {},
            Contrastive: {},
            Triplet: {},
            FastAP: {},
            ProxyNCA: {},
            NormalizedSoftmax: {},
        },
        fixed=WITHOUT_MEMORY,
    ):
        draws: int = Field(8, ge=1, le=1024, description="K, points drawn of each image")
        divergence_weight: float = Field(1e-4, ge=0, description="beta, weight of the divergence from N(0, I)")
        deviation: float = Field(0.1, gt=0, description="deviation of the Gaussians in each dimension, at the start")
        mixup: bool = Field(False, description="train on mixed images too")
        mixup_alpha: float = Field(1.0, gt=0, description="lam is drawn from Beta(alpha, alpha), once per batch")
        mixup_blocks: int = Field(
            2,
            ge=1,
            le=65_536,
            description="parts of the batch inside which images are mixed: as many as the workers, or more",
        )

        def idle(self) -> dict[str, tuple[str, ...]]:
            names = () if self.mixup else ("mixup_alpha", "mixup_blocks")
            return super().idle() | dict.fromkeys(names, ("mixup",))

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        if config.mixup:
            check_blocks(task.batch_size, config.mixup_blocks)
            self.batch_parts = config.mixup_blocks

    def heads(self) -> nn.ModuleDict:
        """ "log_variance" (B, D): linear."""
        return log_variance_head(self.task, self.config.deviation)

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        config, labels = self.config, batch.labels
        images = gaussians(network(batch.images), "raw")
        if config.mixup:
            mixed = mix(batch, config.mixup_alpha, config.mixup_blocks, rng)
            both = zip(images, gaussians(network(mixed.images), "raw"), strict=True)
            images, labels = Gaussians(*map(torch.cat, both)), label_sets(labels, mixed.labels)
        points = unit(draw(images, config.draws, self.generator_on(rng, images.mean.device)))
        losses = [self.base.compare({"embedding": z}, labels, rng) for z in points.unbind(1)]
        return {
            "loss": torch.stack(losses).mean(),
            "divergence": config.divergence_weight * standard_normal_divergence(images).mean(),
        }

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """As those of the method `hib`, beside the base objective's."""
        of_base = self.base.diagnostics(trained, held_out)
        scalars = deviations(trained, held_out, dict(of_base.scalars))
        return replace(scalars, arrays=of_base.arrays, tables=of_base.tables | scalars.tables)
