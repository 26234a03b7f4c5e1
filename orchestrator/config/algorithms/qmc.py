"""A low-discrepancy sequence."""

from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.algorithms.base import Algorithm, Draw


class Qmc(Algorithm):
    """Scrambled Sobol points: a small budget spread evenly, which learns nothing."""

    name: ClassVar[str] = "qmc"
    learns: ClassVar[bool] = False
    conditional: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    def sampler(self, optuna: ModuleType, draw: Draw) -> Any:
        """Optuna's; one sequence for the whole search."""
        independent = optuna.RandomSampler(seed=draw.seed)
        return optuna.QMCSampler(seed=draw.search_seed, scramble=True, independent_sampler=independent)
