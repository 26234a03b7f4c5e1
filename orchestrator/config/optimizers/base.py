"""What an optimiser is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

OWN = ("optimizer_momentum", "optimizer_smoothing", "optimizer_epsilon")
"""The settings that are refused beside an optimiser which does not read them."""

EPSILON = 1e-8
"""Of Adam's kind and of rmsprop, as torch has it."""


class Settings(Protocol):
    """The settings of a training that an optimiser may read; learning rates are in its groups."""

    @property
    def beta2(self) -> float:
        """Adam's second-moment decay."""

    @property
    def optimizer_momentum(self) -> float | None:
        """Momentum; None: the optimiser's own."""

    @property
    def optimizer_smoothing(self) -> float | None:
        """Decay of a moving average that is not Adam's; None: the optimiser's own."""

    @property
    def optimizer_epsilon(self) -> float | None:
        """What is added to the root of the second moment; None: EPSILON."""

    @property
    def weight_decay(self) -> float:
        """Of all parameters."""


@dataclass(frozen=True)
class Optimizer:
    """An optimiser of the table.

    Attributes:
        name: as in settings.
        about: what it is, as the setting's description says it.
        build: from parameter groups with their learning rates; `fused`: one kernel for all parameters, on a GPU.
        reads: those of OWN that it reads; the others are refused beside it.
    """

    name: str
    about: str
    build: Callable[[list[dict[str, Any]], Settings, bool], "torch.optim.Optimizer"]
    reads: tuple[str, ...] = OWN
