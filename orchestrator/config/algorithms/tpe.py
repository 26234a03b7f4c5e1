"""The tree-structured Parzen estimator."""

from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.algorithms.base import Algorithm, Draw


class Tpe(Algorithm):
    """Multivariate, and a running trial counts as a bad one (constant liar); any space.

    Source: Bergstra et al., Algorithms for Hyper-Parameter Optimization, NeurIPS 2011.
    """

    name: ClassVar[str] = "tpe"
    thins: ClassVar[bool] = True

    def sampler(self, optuna: ModuleType, draw: Draw) -> Any:
        """Optuna's."""
        return optuna.TPESampler(
            seed=draw.seed,
            multivariate=True,
            group=draw.conditional,
            constant_liar=True,
            n_startup_trials=draw.startup,
            **draw.constrained,
        )
