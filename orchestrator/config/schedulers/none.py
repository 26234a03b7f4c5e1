"""No early stops."""

from typing import ClassVar

from orchestrator.config.schedulers.base import Scheduler


class NoStops(Scheduler):
    """Every trial runs to its end."""

    name: ClassVar[str] = "none"
    orders_trials: ClassVar[bool] = False

    @property
    def first_stop(self) -> None:
        """No trial is stopped."""
