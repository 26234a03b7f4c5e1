"""What a schedule of the learning rate is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import ReduceLROnPlateau

OWN = ("lr_step_epochs", "lr_milestones", "lr_patience")
"""The settings that are refused beside a schedule which does not read them."""


class Settings(Protocol):
    """The settings of a training that a schedule may read."""

    @property
    def lr_gamma(self) -> float:
        """Factor of one reduction."""

    @property
    def lr_step_epochs(self) -> int:
        """Epochs between reductions; 0: never."""

    @property
    def lr_milestones(self) -> str | None:
        """Epochs of reductions, separated by commas."""

    @property
    def lr_patience(self) -> int | None:
        """Validations without a better score before a reduction; None: the schedule's own."""


@dataclass(frozen=True)
class Moment:
    """Where a training is: the epoch and the step, both from 0, the steps of the linear warm-up, and all steps."""

    epoch: int
    step: int
    warmup: int
    total: int


@dataclass(frozen=True)
class LRSchedule:
    """A schedule of the table.

    Attributes:
        name: as in settings.
        about: what it is, as the setting's description says it.
        factor: what all learning rates are multiplied by; of settings and the moment alone, so it has no state.
        follower: of a schedule that follows the validations' scores, what turns them into a further factor, the
            learning rate of its optimiser, given whether larger scores are better; it is saved in checkpoints.
        reads: those of OWN that it reads; the others are refused beside it.
    """

    name: str
    about: str
    factor: Callable[[Settings, Moment], float]
    follower: "Callable[[Settings, Literal['max', 'min']], ReduceLROnPlateau] | None" = None
    reads: tuple[str, ...] = ()
