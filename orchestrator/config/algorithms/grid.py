"""Every point."""

from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.algorithms.base import Algorithm, Draw


class Grid(Algorithm):
    """Every point of a finite space once, in order: for ablations."""

    name: ClassVar[str] = "grid"
    learns: ClassVar[bool] = False
    exhaustive: ClassVar[bool] = True

    def sampler(self, optuna: ModuleType, draw: Draw) -> Any:
        """Any one: the points are given to it."""
        return optuna.RandomSampler(seed=draw.seed)
