"""Successive halving, asynchronous."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.schedulers.base import Factor, Grace, Scheduler


class Asha(Scheduler):
    """At each rung only the best 1 / reduction_factor of the trials go on.

    Source: Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020.
    """

    name: ClassVar[str] = "asha"
    comparable: ClassVar[bool] = True
    grace_validations: Grace = 1
    reduction_factor: Factor = 3

    @property
    def first_stop(self) -> int:
        """After its grace."""
        return self.grace_validations

    def requirement(self, age: int, reached: Sequence[float], done: Sequence[float]) -> tuple[float, str] | None:
        """The loss of place max(1, n // reduction_factor) among the n that had come to this rung."""
        rung = self.grace_validations
        while rung < age:
            rung *= self.reduction_factor
        if rung != age or not reached:
            return None
        place = max(1, len(reached) // self.reduction_factor)
        return reached[place - 1], f"place {place} of the {len(reached)} that had come there"

    def pruners(self, optuna: ModuleType, validations: int | None) -> list[Any]:
        """Of each bracket, the first with a rung after `grace_validations`, each later one a rung later."""
        return [
            optuna.SuccessiveHalvingPruner(
                min_resource=self.grace_validations,
                reduction_factor=self.reduction_factor,
                min_early_stopping_rate=bracket,
            )
            for bracket in range(self.brackets(validations))
        ]
