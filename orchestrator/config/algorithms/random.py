"""Independent random points."""

from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.algorithms.base import Algorithm, Draw


class Random(Algorithm):
    """The baseline."""

    name: ClassVar[str] = "random"
    learns: ClassVar[bool] = False

    def sampler(self, optuna: ModuleType, draw: Draw) -> Any:
        """Optuna's."""
        return optuna.RandomSampler(seed=draw.seed)
