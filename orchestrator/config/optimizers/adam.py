"""Adam, with either weight decay.

Source: Kingma and Ba, ICLR 2015; Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019.
"""

from functools import partial
from typing import Any

import torch

from orchestrator.config.optimizers.base import Optimizer, Settings


def build(
    groups: list[dict[str, Any]], settings: Settings, fused: bool, *, kind: type[torch.optim.Adam]
) -> torch.optim.Optimizer:
    """torch's."""
    return kind(groups, betas=(0.9, settings.beta2), weight_decay=settings.weight_decay, fused=fused)


ADAM = Optimizer("adam", "Adam", partial(build, kind=torch.optim.Adam))
ADAMW = Optimizer("adamw", "AdamW (decoupled weight decay)", partial(build, kind=torch.optim.AdamW))
