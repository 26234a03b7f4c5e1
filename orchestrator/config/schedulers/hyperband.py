"""Brackets of successive halving, from the most impatient to one that stops nothing."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field

from orchestrator.config.schedulers.asha import Asha
from orchestrator.config.schedulers.base import Requirement


class Hyperband(Asha):
    """floor(log_factor(validations / grace_validations)) + 1 brackets of ASHA.

    Source: Li et al., Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization, JMLR 2018.
    """

    name: ClassVar[str] = "hyperband"
    by_fronts: ClassVar[bool] = False
    max_validations: Annotated[
        int | None,
        Field(ge=1, le=10**9, description="validations of a whole trial; default: from epochs and validate_every"),
    ] = None

    @property
    def whole_trial(self) -> int | None:
        """As the file gives it."""
        return self.max_validations

    def problem(self, validations: int | None) -> str | None:
        """It has to know the validations of a trial, and they have to be enough for two brackets."""
        if validations is None:
            return "max_validations: unknown from epochs and validate_every; give those of a full trial, or take asha"
        if self.brackets(validations) < 2:
            return (
                f"{validations} validations make one bracket only: lower grace_validations or reduction_factor, "
                "validate more often, or take asha"
            )
        return None

    def requirement(self, age: int, reached: Sequence[float], done: Sequence[float]) -> None:
        """A trial is compared within its bracket, which the journal does not hold."""

    def requirements(self, validations: int | None) -> list[Requirement]:
        """Those of ASHA, the first rung of each bracket one later than that of the bracket before."""
        firsts = (self.grace_validations * self.reduction_factor**n for n in range(self.brackets(validations)))
        return [partial(self.rung_requirement, first) for first in firsts]

    def brackets(self, validations: int | None) -> int:
        """floor(log_factor(validations / grace_validations)) + 1"""
        count = 0
        while self.grace_validations * self.reduction_factor**count <= (validations or 0):
            count += 1
        return count

    def sizes(self, brackets: int) -> Sequence[int]:
        """The n of the paper's algorithm 1."""
        return [math.ceil(brackets * self.reduction_factor**s / (s + 1)) for s in reversed(range(brackets))]
