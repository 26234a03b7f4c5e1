"""Optimisers of timm.

Source: Chen et al., Symbolic Discovery of Optimization Algorithms, NeurIPS 2023 (Lion); Heo et al., AdamP: Slowing
Down the Slowdown for Momentum Optimizers on Scale-invariant Weights, ICLR 2021.
"""

from typing import TYPE_CHECKING, Any

from orchestrator.config.optimizers.base import EPSILON, Optimizer, Settings

if TYPE_CHECKING:
    import torch


def lion(groups: list[dict[str, Any]], settings: Settings, fused: bool) -> "torch.optim.Optimizer":
    """timm's, with beta1 = 0.9; on a GPU it treats many parameters at once."""
    from timm.optim import Lion

    beta2 = 0.99 if settings.optimizer_smoothing is None else settings.optimizer_smoothing
    optimizer: torch.optim.Optimizer = Lion(groups, betas=(0.9, beta2), weight_decay=settings.weight_decay)
    return optimizer


def adamp(groups: list[dict[str, Any]], settings: Settings, fused: bool) -> "torch.optim.Optimizer":
    """timm's, with beta1 = 0.9, one parameter at a time."""
    from timm.optim import AdamP

    optimizer: torch.optim.Optimizer = AdamP(
        groups,
        betas=(0.9, settings.beta2),
        eps=settings.optimizer_epsilon or EPSILON,
        weight_decay=settings.weight_decay,
    )
    return optimizer


LION = Optimizer("lion", "Lion", lion, reads=("optimizer_smoothing",))
ADAMP = Optimizer("adamp", "AdamP", adamp, reads=("optimizer_epsilon",))
