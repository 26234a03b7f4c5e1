"""Sigmoid loss on pairs: each pair is classified by itself, with a learned scale and bias.

Zhai et al., "Sigmoid Loss for Language Image Pre-Training" (SigLIP), ICCV 2023, on the pairs of a batch of images.
"""

import math
from typing import Any

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from methods.baselines import Baseline, Metric, ReferencesConfig
from methods.proxies import optimizer_groups
from methods.reductions import Reduction, kept_terms, mean_of_terms, objective
from orchestrator.method import Task


@objective
def sigmoid_pairs(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    scale: float | Tensor = 10.0,
    bias: float | Tensor = -10.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Sigmoid loss on s (Q, R): 1/Q times the sum over pairs of

        log(1 + e^(-(scale s + bias))) for positives,  log(1 + e^(scale s + bias)) for negatives

    The paper's has one positive in each row, the text of an image; a row may have any number here, each of them a term
    of its own. Scale and bias are numbers or scalar tensors, which get gradients. All Q rows count in the mean.

    Zhai et al., Sigmoid Loss for Language Image Pre-Training, ICCV 2023.
    """
    is_pair = positive | negative
    logits = scale * torch.where(is_pair, matrix, 0) + bias  # outside the blocks, so that scale and bias get gradients

    def terms(logits: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.where(positive, -logits, logits)
        rows, _ = kept_terms(torch.logaddexp(wrong, torch.zeros_like(wrong)), positive | negative)
        return rows, torch.ones_like(rows)

    return mean_of_terms(terms, logits, positive, negative, reduction=reduction)


class SigmoidPairs(Baseline):
    """Sigmoid loss on pairs: whether two images share a class, as a logistic regression on their similarity.

    L = 1/B sum over pairs i != j of log(1 + e^(-y_ij (t s_ij + b))), y_ij = 1 for positives and -1 for negatives.

    The scale t and the bias b are learned, t as the exponential of a parameter; both without weight decay. The paper's
    pairs are images and texts with one positive each; here an image has all others of its class.
    """

    name = "sigmoid_pairs"
    paper = "Zhai et al., Sigmoid Loss for Language Image Pre-Training, ICCV 2023"
    latex = r"""
    L = \frac{1}{B} \sum_{i \ne j} \log\left(1 + e^{-y_{ij} (t\,s_{ij} + b)}\right)

    y_{ij} = \begin{cases} 1 & \text{for positives} \\ -1 & \text{for negatives} \end{cases}
    """
    reads = "similarity"
    function = sigmoid_pairs

    class Config(ReferencesConfig):
        metric: Metric = Field("cosine", description="similarity between embeddings")
        proxy_lr_multiplier: float = Field(
            1.0, gt=0, description="learning rate of t and b (or proxies) over the network's"
        )
        scale: float = Field(10.0, gt=0, description="scale t of the similarities, at the start")
        bias: float = Field(-10.0, ge=-1000, le=1000, description="bias b of the logits, at the start")
        learned: bool = Field(True, description="whether scale and bias are learned")

        def idle(self) -> dict[str, tuple[str, ...]]:
            idle = super().idle()
            if idle.pop("proxy_lr_multiplier", None) and not self.learned:
                idle["proxy_lr_multiplier"] = ("references", "learned")
            return idle

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        if config.learned:
            self.log_scale = nn.Parameter(torch.tensor(math.log(config.scale)))
            self.bias = nn.Parameter(torch.tensor(config.bias))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        lr = lr * self.config.proxy_lr_multiplier
        groups: list[dict[str, Any]] = []
        if self.config.references == "proxies":
            groups += optimizer_groups(list(self.proxies.parameters()), lr, self.config.proxy_weight_decay)
        if self.config.learned:
            groups.append({"params": [self.log_scale, self.bias], "lr": lr, "weight_decay": 0.0})
        return groups

    def _hyperparameters(self, labels: Tensor, rng: Generator) -> dict[str, Any]:
        config = self.config
        scale, bias = (self.log_scale.exp(), self.bias) if config.learned else (config.scale, config.bias)
        return {"scale": scale, "bias": bias}
