"""No early stops."""

from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.schedulers.base import Scheduler


class NoStops(Scheduler):
    """Every trial runs to its end."""

    name: ClassVar[str] = "none"
    orders_trials: ClassVar[bool] = False

    @property
    def first_stop(self) -> None:
        """No trial is stopped."""

    def pruners(self, optuna: ModuleType, validations: int | None) -> list[Any]:
        """One that stops nothing."""
        return [optuna.NopPruner()]
