"""Circle loss: each similarity is weighted by how far it is from its optimum.

Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", CVPR 2020.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from methods.baselines import Baseline, Metric, ReferencesConfig
from methods.derivatives import differentiable_once
from methods.reductions import Reduction, any_of, kept_terms, log_sum_exp, mean_of_terms, objective


@objective
def circle(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float = 0.4,
    gamma: float = 80.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Circle loss on s: mean over the rows with both kinds of pairs of

        log[1 + sum_neg e^(gamma [s + m]+ (s - m)) sum_pos e^(-gamma [1 + m - s]+ (s - 1 + m))], m the margin

    The weights [...]+ are constants of the gradient, as in pytorch-metric-learning, so that the loss can be
    differentiated once. ValueError if gamma is not above 0.

    Sun et al., CVPR 2020; by pytorch-metric-learning's documentation the defaults are theirs for fine-grained
    retrieval.
    """
    if not gamma > 0:
        raise ValueError(f"circle: gamma must be above 0, got {gamma}")

    def terms(matrix: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        matrix = torch.where(positive | negative, matrix, 0)
        constant = matrix.detach()
        pull = _Weighted.apply(matrix - (1 - margin), -gamma * (1 + margin - constant).relu())
        push = _Weighted.apply(matrix - margin, gamma * (constant + margin).relu())
        both = log_sum_exp(pull, positive, 1) + log_sum_exp(push, negative, 1)
        rows = torch.logaddexp(both, torch.zeros_like(both))
        return kept_terms(rows, any_of(positive, 1) & any_of(negative, 1))

    return mean_of_terms(terms, matrix, positive, negative, reduction=reduction)


class _Weighted(torch.autograd.Function):
    """x times a weight that depends on x, too, but not for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, on_product: Tensor) -> tuple[Tensor, None]:
        x, weight = ctx.saved_tensors
        return differentiable_once(on_product * weight, x, what="circle"), None


class Circle(Baseline):
    """Circle loss: a softplus over all pairs of a query, each weighted by its distance from the optimum.

    L = mean over rows of log[1 + sum_neg e^(gamma [s + m]+ (s - m)) sum_pos e^(-gamma [1 + m - s]+ (s - 1 + m))], m the
    margin; the factors [...]+ are constants of the gradient.
    """

    name = "circle"
    paper = "Sun et al., Circle Loss: A Unified Perspective of Pair Similarity Optimization, CVPR 2020"
    latex = r"""
    L = \underset{\text{rows}}{\mathrm{mean}}\,\log\left[1 + \sum_{\text{neg}} e^{\gamma\,[s + m]_+ (s - m)}
    \sum_{\text{pos}} e^{-\gamma\,[1 + m - s]_+ (s - 1 + m)}\right]
    """
    reads = "similarity"
    function = circle

    class Config(ReferencesConfig):
        schedulable = frozenset({"margin", "gamma"})
        metric: Metric = Field("cosine", description="similarity between embeddings")
        margin: float = Field(0.4, ge=-1, le=1, description="relaxation m of the optima 1 + m and -m")
        gamma: float = Field(80.0, gt=0, description="scale")
