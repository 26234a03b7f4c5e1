"""Stochastic gradient descent with either momentum, and RMSprop.

Source: Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013; Tieleman and
Hinton, Lecture 6.5, COURSERA 2012.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.config.optimizers.base import EPSILON, OWN, Optimizer, Settings

if TYPE_CHECKING:
    import torch


def sgd(
    groups: list[dict[str, Any]], settings: Settings, fused: bool, *, nesterov: bool = False
) -> "torch.optim.Optimizer":
    """torch's."""
    import torch

    momentum = 0.9 if settings.optimizer_momentum is None else settings.optimizer_momentum
    return torch.optim.SGD(
        groups, momentum=momentum, nesterov=nesterov, weight_decay=settings.weight_decay, fused=fused
    )


def rmsprop(groups: list[dict[str, Any]], settings: Settings, fused: bool) -> "torch.optim.Optimizer":
    """torch's, which has no fused kernel: on a GPU it treats many parameters at once."""
    import torch

    alpha = 0.99 if settings.optimizer_smoothing is None else settings.optimizer_smoothing
    momentum = settings.optimizer_momentum or 0.0
    eps = settings.optimizer_epsilon or EPSILON
    return torch.optim.RMSprop(groups, alpha=alpha, eps=eps, momentum=momentum, weight_decay=settings.weight_decay)


SGD = Optimizer("sgd", "SGD with momentum", sgd, reads=("optimizer_momentum",))
NESTEROV = Optimizer(
    "nesterov", "SGD with Nesterov's momentum", partial(sgd, nesterov=True), reads=("optimizer_momentum",)
)
RMSPROP = Optimizer("rmsprop", "RMSprop", rmsprop, reads=OWN)
