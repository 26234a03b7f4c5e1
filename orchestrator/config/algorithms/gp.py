"""Bayesian optimisation with a Gaussian process."""

from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.algorithms.base import Algorithm, Draw


class GaussianProcess(Algorithm):
    """For few trials that cost much; learns from finished trials only. Of two objectives it improves the
    hypervolume of the front."""

    name: ClassVar[str] = "gp"
    thins: ClassVar[bool] = True
    conditional: ClassVar[bool] = False
    sees_stopped: ClassVar[bool] = False
    max_replacements: ClassVar[int] = 1

    def sampler(self, optuna: ModuleType, draw: Draw) -> Any:
        """Optuna's."""
        return optuna.GPSampler(seed=draw.seed, n_startup_trials=draw.startup, **draw.constrained)
