"""A reduction whenever the validations' score stops getting better: torch's."""

from typing import TYPE_CHECKING, Literal

from orchestrator.config.lr_schedules.base import LRSchedule, Moment, Settings

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import ReduceLROnPlateau

PATIENCE = 10
"""torch's."""


def factor(settings: Settings, moment: Moment) -> float:
    """1: all is left to the follower."""
    return 1.0


def follower(settings: Settings, mode: Literal["max", "min"]) -> "ReduceLROnPlateau":
    """torch's, over an optimiser of its own whose learning rate begins at 1."""
    import torch
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    factor_of = torch.optim.SGD([torch.zeros(())], lr=1.0)
    patience = PATIENCE if settings.lr_patience is None else settings.lr_patience
    return ReduceLROnPlateau(factor_of, mode=mode, factor=settings.lr_gamma, patience=patience, threshold=0.0)


PLATEAU = LRSchedule(
    "plateau",
    "times lr_gamma after more than lr_patience validations without a better score",
    factor,
    follower,
    reads=("lr_patience",),
)
