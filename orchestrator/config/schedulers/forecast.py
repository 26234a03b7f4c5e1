"""Promotion by what trials are expected to come to."""

import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from orchestrator.config.limits import MAX_TRIALS
from orchestrator.config.schedulers.base import Bracket
from orchestrator.config.schedulers.promotion import Promotion

GROWTH = 1.3
"""The scales of a forecast are fitted again when so many times as many trials have ended."""
MOST = 200
"""From how many ended trials is forecast: the last ones."""


class Forecast(Promotion):
    """As `promotion`, but trials are compared by the best values that they are expected to have at their ends.

    At each rung a Gaussian process maps a trial's point and its best value so far to its best value at its end. It
    learns from the trials that came to their own ends; until there are `startup_trials` of them, values so far are
    compared.

    Source: Swersky, Snoek and Adams, Freeze-Thaw Bayesian Optimization, 2014, for a Gaussian process over points that
    says which of the trials that wait goes on; Li et al., MLSys 2020, algorithm 2, for the rungs.
    """

    name: ClassVar[str] = "forecast"
    startup_trials: Annotated[
        int, Field(ge=3, le=MAX_TRIALS, description="number of trials that end before any is forecast")
    ] = 8

    def requirement(self, age: int, reached: Sequence[float], done: Sequence[float]) -> None:
        """It depends on the points of the trials too."""

    def may_pass(self, place: int, trials: float) -> bool:
        """A forecast may change with each trial that ends."""
        return True

    def make_brackets(self, validations: int | None, objectives: int = 1, trials: float = math.inf) -> list[Bracket]:
        """One."""
        return [ForecastBracket(self)]


class ForecastBracket(Bracket):
    """Trials that are compared by forecasts: functions of the trials so far, in the order of the journal."""

    def __init__(self, scheduler: Forecast) -> None:
        super().__init__(scheduler.requirement)
        self.scheduler = scheduler
        self.places: dict[str, Sequence[float]] = {}
        """Of each trial its point's place in the unit cube."""
        self.losses: defaultdict[int, dict[str, float]] = defaultdict(dict)
        """At each age the best loss so far of each trial that has come there."""
        self.ended: list[tuple[str, Mapping[int, float]]] = []
        """The trials that came to their own ends: their best losses so far by age."""
        self.kernels: dict[tuple[int, int], Any] = {}
        """By rung and number of ended trials."""
        self.orders: dict[int, tuple[tuple[int, int], list[str]]] = {}
        """Of each rung how many trials had come there, how many had ended, and their order then."""

    def enter(self, trial_id: str, place: Sequence[float]) -> None:
        """Add a trial with its point's place in the unit cube."""
        self.places[trial_id] = place

    def validate(self, age: int, loss: float, trial_id: str = "") -> tuple[float, str] | None:
        """Add the best loss of a trial after `age` validations; what it had to have, if that is less."""
        self.losses[age][trial_id] = loss
        if not self.scheduler.is_rung(age, self.scheduler.grace_validations) or trial_id in self.passing(age):
            return None
        return loss, "a better forecast"

    def finish(self, course: Mapping[int, float], trial_id: str = "") -> None:
        """Add a trial that came to its own end: its best loss so far after each validation."""
        self.ended.append((trial_id, dict(course)))

    def promotion(self) -> str | None:
        """The waiting trial that is among the best now: of several the oldest, of these the best."""
        for age in sorted(self.waiting, reverse=True):
            waiting = {trial_id for _, trial_id in self.waiting[age]}
            chosen = next((one for one in self.passing(age) if one in waiting), None) if waiting else None
            if chosen is not None:
                return chosen
        return None

    def passing(self, age: int) -> list[str]:
        """The trials of a rung that go on, best first."""
        counts = len(self.losses[age]), len(self.ended)
        if age not in self.orders or self.orders[age][0] != counts:
            forecasts = self.forecasts(age)
            self.orders[age] = counts, sorted(forecasts, key=lambda trial_id: (forecasts[trial_id], trial_id))
        return self.orders[age][1][: max(1, counts[0] // self.scheduler.reduction_factor)]

    def forecasts(self, age: int) -> Mapping[str, float]:
        """Of each trial of a rung the best loss that it is expected to have at its end."""
        here = self.losses[age]
        examples = [(trial_id, course) for trial_id, course in self.ended if age in course]
        fitted = self.scheduler.startup_trials
        if len(examples) < fitted:
            return here
        while math.ceil(GROWTH * fitted) <= len(examples):
            fitted = math.ceil(GROWTH * fitted)
        if (age, fitted) not in self.kernels:
            kernel = new_kernel(1 + len(self.places[examples[0][0]]))
            self.kernels[age, fitted] = self._process(kernel, age, examples[:fitted], here)[0].kernel_
        process, features = self._process(self.kernels[age, fitted], age, examples, here, optimizer=None)
        return dict(zip(here, process.predict(features).tolist(), strict=True))

    def _process(
        self,
        kernel: Any,
        age: int,
        examples: Sequence[tuple[str, Mapping[int, float]]],
        here: Mapping[str, float],
        **how: Any,
    ) -> tuple[Any, Any]:
        """A Gaussian process of the last examples, and what it has to know of the trials `here` to forecast them."""
        import numpy as np
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor

        examples = examples[-MOST:]
        losses = np.array([course[age] for _, course in examples])
        middle, scale = losses.mean(), 3 * losses.std() + 1e-12  # as wide as the unit cube

        def features(trial_ids: Sequence[str], values: Any) -> Any:
            return np.column_stack([[self.places[one] for one in trial_ids], (np.asarray(values) - middle) / scale])

        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0, **how)
        ends = [course[max(course)] for _, course in examples]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a scale at its bound is one that does not matter
            process.fit(features([trial_id for trial_id, _ in examples], losses), ends)
        return process, features(list(here), list(here.values()))


def new_kernel(dimensions: int) -> Any:
    """A scale for each dimension, and noise."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    return ConstantKernel(1.0) * RBF([1.0] * dimensions, (0.1, 20.0)) + WhiteKernel(0.05, (1e-3, 1.0))
