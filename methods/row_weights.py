"""Weights on what each image adds to an objective: by its loss alone."""

import torch
from pydantic import Field
from torch import Generator, Tensor

from methods.baselines import Contrastive, MultiSimilarity, NormalizedSoftmax
from methods.bases import WITHOUT_MEMORY, Bases, OverConfig, OverObjective
from methods.cos_face import CosFace
from orchestrator.method import Batch, Network, Outputs

BASES: Bases = {NormalizedSoftmax: {}, CosFace: {}, MultiSimilarity: {}, Contrastive: {}}  # whose shares are of images


class RowWeights(OverObjective, abstract=True):
    """An objective of which each image has its share l_i: L = sum over images of w_i l_i."""

    def shares(self, outputs: Outputs, labels: Tensor, rng: Generator) -> Tensor:
        """Each image's share (B,) of the objective, whose mean is the objective."""
        return self.base.compare(outputs, labels, rng, reduction="rows")

    def weights(self, shares: Tensor, batch: Batch) -> Tensor:
        """The weights (B,) of these shares (B,)."""
        raise NotImplementedError

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        shares = self.shares(network(batch.images), batch.labels, rng)
        return {"loss": (self.weights(shares, batch) * shares).sum()}


def focal_weights(shares: Tensor, gamma: float) -> Tensor:
    """(1 - e^-l)^gamma of each share l (B,), negative ones taken as 0. ValueError for a negative gamma.

    With l = -log p, the cross-entropy of the own class, it is the paper's (1 - p)^gamma, and has a gradient as there.
    At l = 0 it is 0 with gradient 0, and 1 for gamma 0.

    Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, Eq. 4.
    """
    if gamma < 0:
        raise ValueError(f"focal_weights: gamma must be at least 0, got {gamma}")
    if gamma == 0:
        return torch.ones_like(shares)
    wrong = shares > 0
    return torch.where(wrong, (-torch.expm1(-torch.where(wrong, shares, 1))).pow(gamma), 0)


class Focal(RowWeights):
    """Focal weighting: images that are already right count less.

    L = mean over images of (1 - e^-l_i)^focus l_i, l_i the image's share of the objective; on a softmax it is the focal
    loss -(1 - p)^focus log p. Other objectives have no p: e^-l stands for it there, which the paper does not say.
    """

    name = "focal"
    paper = "Lin et al., Focal Loss for Dense Object Detection, ICCV 2017"
    latex = r"L = \underset{i}{\mathrm{mean}}\,\left(1 - e^{-l_i}\right)^{\mathrm{focus}} l_i"

    class Config(OverConfig, over=BASES, fixed=WITHOUT_MEMORY):
        focus: float = Field(2.0, ge=0, le=100, description="how much right images are turned down, gamma in the paper")

    config: Config

    def weights(self, shares: Tensor, batch: Batch) -> Tensor:
        return focal_weights(shares, self.config.focus) / max(1, len(shares))


def easiest(shares: Tensor, share: float) -> Tensor:
    """Weights (B,) of the images up to the quantile `share` of the shares (B,), all alike with sum 1; 0 for the others.

    At least one image counts; equal shares count together.
    """
    if not len(shares):
        return torch.zeros_like(shares)
    count = max(1, round(share * len(shares)))
    is_easy = (shares <= shares.detach().sort().values[count - 1]).to(shares.dtype)
    return is_easy / is_easy.sum()


class SelfPaced(RowWeights):
    """Self-paced learning: the easy images first, then all.

    L = sum over images of v_i l_i / sum of v_i, v_i = 1 where the image's share l_i of the objective is among the
    easiest part of its batch; that part grows in a straight line from `easy_share` to all images over the first
    `growth` of the training.

    The paper's v_i compares l_i with a threshold that is raised from round to round; a share of the batch keeps the
    pace the same for objectives of any scale.
    """

    name = "self_paced"
    paper = "Kumar et al., Self-Paced Learning for Latent Variable Models, NIPS 2010"
    latex = r"""
    L = \frac{\sum_i v_i l_i}{\sum_i v_i}

    v_i = \begin{cases} 1 & \text{where } l_i \text{ is among the easiest part of its batch} \\
    0 & \text{elsewhere} \end{cases}
    """

    class Config(OverConfig, over=BASES, fixed=WITHOUT_MEMORY):
        easy_share: float = Field(0.5, gt=0, le=1, description="share of each batch that counts at the start")
        growth: float = Field(0.5, gt=0, le=1, description="share of the training after which all images count")

        def idle(self) -> dict[str, tuple[str, ...]]:
            return super().idle() | ({"growth": ("easy_share",)} if self.easy_share == 1 else {})

    config: Config

    def weights(self, shares: Tensor, batch: Batch) -> Tensor:
        config, length = self.config, self.task.total_steps
        progress = min(1.0, batch.step / (config.growth * length)) if length else 1.0
        return easiest(shares, config.easy_share + (1 - config.easy_share) * progress)
