"""Which settings have an effect beyond chance: one test for what mattered, for ranges and for what to run next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from orchestrator.evaluation.claims import SIGNIFICANT
from orchestrator.report.settings import Searched
from orchestrator.report.standing import Comparable
from orchestrator.text import pluralize

LEARNED = 1.5
"""The factor on each p of an algorithm that learns: it follows lucky results, so that points and results that have
nothing to do with each other agree too often (7.8% of 100 trials by TPE instead of 5%)."""
POWER = 0.8
LARGE = 0.25
"""Trials are too few where an effect of this share of the variance would be seen with a chance below POWER."""


@dataclass(frozen=True)
class Effect:
    """What the trials show of one setting's effect on the objective."""

    key: str
    p: float
    corrected: float
    """p, by Holm's method for all settings that were tested."""
    better: Literal["low", "high"] | None
    """At which end of a setting that has numbers the objective is better, by its correlation; None of words."""

    @property
    def is_shown(self) -> bool:
        """Whether there is one beyond chance; without any, one is shown in SIGNIFICANT of searches at most."""
        return self.corrected < SIGNIFICANT


@dataclass(frozen=True)
class Evidence:
    """Of all settings that could be tested, smallest p first."""

    effects: tuple[Effect, ...] = ()
    trials: int = 0

    @cached_property
    def by_key(self) -> Mapping[str, Effect]:
        return {effect.key: effect for effect in self.effects}

    @property
    def real_effects(self) -> list[str]:
        """The settings with an effect beyond chance; of the others nothing is known."""
        return [effect.key for effect in self.effects if effect.is_shown]

    def towards(self, key: str, end: Literal["low", "high"]) -> bool:
        """Whether it is shown that the objective is better at this end of a setting."""
        effect = self.by_key.get(key)
        return effect is not None and effect.is_shown and effect.better == end

    @property
    def smallest(self) -> float:
        """The share of the variance (of ranks) that a setting must explain to be seen with a chance of POWER: tanh^2 of
        (z(1 - SIGNIFICANT / 4m) + z(POWER)) / sqrt(N - 3), for m settings with two columns each."""
        if self.trials <= 3 or not self.effects:
            return 1.0
        z = NormalDist().inv_cdf
        quantiles = z(1 - SIGNIFICANT / (4 * len(self.effects))) + z(POWER)
        return math.tanh(quantiles / math.sqrt(self.trials - 3)) ** 2

    @property
    def few(self) -> bool:
        """Whether the trials are too few to see a large effect."""
        return self.smallest > LARGE

    @property
    def text(self) -> str:
        """What is said where no setting has an effect beyond chance, without a full stop: `12 trials are too few to
        tell; alpha comes nearest (p = 0.04, corrected for 3 settings 0.12)`."""
        nearest, tested = self.effects[0], len(self.effects)
        corrected = f", corrected for {tested} settings {nearest.corrected:.2g}" if tested > 1 else ""
        comes = f"{nearest.key} {'comes nearest' if tested > 1 else 'was varied'} (p = {nearest.p:.2g}{corrected})"
        if self.few:
            return f"{pluralize(self.trials, 'trial')} are too few to tell; {comes}"
        return (
            f"no effect is beyond chance; {comes}; one that explains {self.smallest:.0%} of the variance would be seen "
            f"in {pluralize(self.trials, 'trial')} with a chance of {POWER:.0%}"
        )

    def why_not(self, key: str) -> str:
        """Why the best value of a setting says nothing of its range, where `towards` is false."""
        effect = self.by_key.get(key)
        if effect is None:
            return "too few trials differ in it"
        if effect.is_shown:
            return "over all trials the other end is the better one"
        p = f"(p = {effect.corrected:.2g})"
        return f"{pluralize(self.trials, 'trial')} are too few to tell {p}" if self.few else f"that may be chance {p}"


class Direction(NamedTuple):
    """Whether larger results are better, and whether the algorithm learns from them."""

    larger: bool
    learned: bool = False


def evidence_of(
    searched: Sequence[Searched], comparable: Comparable, params: Mapping[str, Mapping[str, Any]], goal: Direction
) -> Evidence:
    """The evidence of trials after equal training, whose points are `params`. A setting is tested among the trials that
    have it and in which it has an effect."""
    by_key: dict[str, tuple[float, float]] = {}
    orders: dict[tuple[str, ...], Any] = {}
    for setting in searched:
        names = [name for name in comparable.values if name not in setting.idle and setting.key in params[name]]
        values = [params[name][setting.key] for name in names]
        if len({repr(value) for value in values}) < 2 or len({comparable.values[name] for name in names}) < 2:
            continue
        from orchestrator.evaluation import rank_tests  # numpy; a look at a search with one result needs none

        if len(names) > (most := rank_tests.MAX_TRIALS):
            evenly = [i * len(names) // most for i in range(most)]
            names, values = [names[i] for i in evenly], [values[i] for i in evenly]
        if (order := tuple(names)) not in orders:
            orders[order] = rank_tests.Shuffled([comparable.values[name] for name in names])
        if setting.numeric:
            test = orders[order].of_numbers(values)
        else:
            numbered = {value: place for place, value in enumerate(dict.fromkeys(map(repr, values)))}
            test = orders[order].of_groups([numbered[repr(value)] for value in values])
        factor = LEARNED if goal.learned else 1.0
        by_key[setting.key] = min(1.0, factor * test.p), test.correlation if goal.larger else -test.correlation
    if not by_key:
        return Evidence()
    from orchestrator.evaluation.verdicts import holm

    corrected = holm([p for p, _ in by_key.values()])
    effects = [
        Effect(key, p, holms, None if math.isnan(correlation) else "high" if correlation > 0 else "low")
        for (key, (p, correlation)), holms in zip(by_key.items(), corrected, strict=True)
    ]
    return Evidence(tuple(sorted(effects, key=lambda effect: effect.p)), len(comparable.values))
