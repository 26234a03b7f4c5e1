"""The median rule."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from orchestrator.config.limits import MAX_TRIALS
from orchestrator.config.schedulers.base import Grace, Scheduler
from orchestrator.text import pluralize


class Median(Scheduler):
    """Stops a trial that is below the median of the finished trials at the same validation.

    Source: Golovin et al., Google Vizier: A Service for Black-Box Optimization, KDD 2017.
    """

    name: ClassVar[str] = "median"
    grace_validations: Grace = 1
    startup_trials: Annotated[
        int, Field(ge=1, le=MAX_TRIALS, description="number of trials that end before any is stopped")
    ] = 5

    @property
    def first_stop(self) -> int:
        """After its grace."""
        return self.grace_validations

    def requirement(self, age: int, reached: Sequence[float], done: Sequence[float]) -> tuple[float, str] | None:
        """The median loss of the trials that had trained to their end, of which at least `startup_trials` had come so
        far."""
        if age < self.grace_validations or len(done) < self.startup_trials:
            return None
        middle = (done[(len(done) - 1) // 2] + done[len(done) // 2]) / 2
        return middle, f"the median of {pluralize(len(done), 'finished trial')}"
