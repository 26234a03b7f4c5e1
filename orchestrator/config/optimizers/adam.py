"""Adam, with either weight decay.

Source: Kingma and Ba, ICLR 2015; Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.config.optimizers.base import EPSILON, Optimizer, Settings

if TYPE_CHECKING:
    import torch


def build(
    groups: list[dict[str, Any]], settings: Settings, fused: bool, *, kind: Literal["Adam", "AdamW"]
) -> "torch.optim.Optimizer":
    """torch's."""
    import torch

    optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(
        groups,
        betas=(0.9, settings.beta2),
        eps=settings.optimizer_epsilon or EPSILON,
        weight_decay=settings.weight_decay,
        fused=fused,
    )
    return optimizer


ADAM = Optimizer("adam", "Adam", partial(build, kind="Adam"), reads=("optimizer_epsilon",))
ADAMW = Optimizer("adamw", "AdamW (decoupled weight decay)", partial(build, kind="AdamW"), reads=("optimizer_epsilon",))
