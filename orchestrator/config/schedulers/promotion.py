"""Successive halving, asynchronous, in which no decision is final."""

from typing import ClassVar

from orchestrator.config.schedulers.asha import Asha


class Promotion(Asha):
    """As `asha`, but a trial that is not among the best waits with its checkpoint, and goes on once it is.

    A trial is compared again whenever another one has come to its rung, so that a good one among good ones is not lost.

    Source: Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020, algorithm 2, which promotes;
    there the first of a rung waits too.
    """

    name: ClassVar[str] = "promotion"
    promotes: ClassVar[bool] = True
    by_fronts: ClassVar[bool] = False

    def may_pass(self, place: int, trials: float) -> bool:
        """If it is among the best 1 / reduction_factor of all trials of the search, should the others be worse."""
        return place <= max(1, trials / self.reduction_factor)
