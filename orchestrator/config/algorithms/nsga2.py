"""A genetic algorithm for two objectives."""

from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.algorithms.base import Algorithm, Draw


class Nsga2(Algorithm):
    """Generations of a fifth of the planned trials, 4 to 50.

    Source: Deb et al., A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II, IEEE TEC 2002.
    """

    name: ClassVar[str] = "nsga2"
    objectives: ClassVar[tuple[int, ...]] = (2,)
    conditional: ClassVar[bool] = False
    sees_stopped: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    def sampler(self, optuna: ModuleType, draw: Draw) -> Any:
        """Optuna's."""
        size = max(4, min(50, draw.trials // 5))
        return optuna.NSGAIISampler(seed=draw.seed, population_size=size, **draw.constrained)
