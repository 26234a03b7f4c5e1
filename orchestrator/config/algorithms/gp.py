"""Bayesian optimisation with a Gaussian process."""

from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.algorithms.base import Algorithm, Draw


class GaussianProcess(Algorithm):
    """For few trials that cost much; learns from finished trials only."""

    name: ClassVar[str] = "gp"
    thins: ClassVar[bool] = True
    objectives: ClassVar[tuple[int, ...]] = (1,)
    conditional: ClassVar[bool] = False

    def sampler(self, optuna: ModuleType, draw: Draw) -> Any:
        """Optuna's."""
        return optuna.GPSampler(seed=draw.seed, n_startup_trials=draw.startup)
