"""Covariance matrix adaptation."""

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.config.algorithms.base import Algorithm, Draw

if TYPE_CHECKING:
    from orchestrator.config.space import Parameter


class CmaEs(Algorithm):
    """For hundreds of trials over ranges that depend on each other.

    Source: Hansen, The CMA Evolution Strategy: A Tutorial, 2016.
    """

    name: ClassVar[str] = "cmaes"
    objectives: ClassVar[tuple[int, ...]] = (1,)
    conditional: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    def problem(self, parameters: "Sequence[Parameter]") -> str | None:
        """It needs two ranges, and no choices."""
        for parameter in parameters:
            if parameter.kind == "categorical":
                return (
                    f"searches ranges only, space.{parameter.key} has choices: give it low and high, or take "
                    "tpe, gp or qmc"
                )
        if sum(parameter.low < parameter.high for parameter in parameters) < 2:
            return "needs two ranges or more: take tpe or gp"
        return None

    def sampler(self, optuna: ModuleType, draw: Draw) -> Any:
        """Optuna's, which learns from stopped trials too if all were stopped at the same rungs: with the median rule
        their last values would mislead it."""
        return optuna.CmaEsSampler(seed=draw.seed, consider_pruned_trials=draw.comparable)
