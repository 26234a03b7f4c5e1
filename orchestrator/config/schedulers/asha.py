"""Successive halving, asynchronous."""

import math
from collections.abc import Sequence
from typing import ClassVar

from orchestrator.config.schedulers.base import Bracket, Factor, Grace, Scheduler
from orchestrator.config.schedulers.front import FrontBracket


class Asha(Scheduler):
    """At each rung only the best 1 / reduction_factor of the trials go on; with two objectives in the order of
    `FrontBracket`.

    Source: Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020.
    """

    name: ClassVar[str] = "asha"
    comparable: ClassVar[bool] = True
    by_fronts: ClassVar[bool] = True
    grace_validations: Grace = 1
    reduction_factor: Factor = 3

    @property
    def first_stop(self) -> int:
        """After its grace."""
        return self.grace_validations

    def make_brackets(self, validations: int | None, objectives: int = 1, trials: float = math.inf) -> list[Bracket]:
        """One for each requirement, or for both objectives."""
        if objectives == 1:
            return super().make_brackets(validations)
        return [FrontBracket(lambda age: self.is_rung(age, self.grace_validations), self.reduction_factor)]

    def requirement(self, age: int, reached: Sequence[float], done: Sequence[float]) -> tuple[float, str] | None:
        """The loss of place max(1, n // reduction_factor) among the n that had come to this rung."""
        return self.rung_requirement(self.grace_validations, age, reached, done)

    def rung_requirement(
        self, first: int, age: int, reached: Sequence[float], done: Sequence[float]
    ) -> tuple[float, str] | None:
        """The same, where the `first` rung is after so many validations."""
        if not self.is_rung(age, first) or not reached:
            return None
        place = max(1, len(reached) // self.reduction_factor)
        return reached[place - 1], f"place {place} of the {len(reached)} that had come there"

    def is_rung(self, age: int, first: int) -> bool:
        """Whether trials are compared at this age, if the `first` rung is after so many validations."""
        while first < age:
            first *= self.reduction_factor
        return first == age
