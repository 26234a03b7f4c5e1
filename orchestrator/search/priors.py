"""What a search expects before it has seen anything: points that are good elsewhere, and their neighbours."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.config.space import Parameter, Space

WIDTH = 0.2
"""Standard deviation of a range around an expected value, as a share of the range on its scale."""
CERTAINTY = 0.5
"""How much of the probability of a choice lies on the expected one; the rest is shared by all."""
TRIED_FIRST = 3
"""How many expected points are tried themselves; afterwards points are drawn around them."""
LEAST = 0.02
"""Below this probability nothing is drawn any more."""


class Prior:
    """Draws some of a search's points around the expected ones: fewer the more trials there are, and fewer again if the
    best trials lie elsewhere.

    Trial number n is drawn with the probability s / (s + n) * min(1, r), with the strength s, and r how much nearer to
    the expected points the best third of the ended trials lies than all of them: the ratio of their means of
    exp(-d^2 / 2), where d is the distance to the nearest expected point in widths. So s ln(1 + n / s) of n trials are
    drawn at most, whatever is expected.

    Source of the idea, that a prior competes with what the search has seen: Mallik et al., PriorBand: Practical
    Hyperparameter Optimization in the Age of Deep Learning, NeurIPS 2023.
    """

    def __init__(self, space: Space, points: Sequence[Mapping[str, Any]], *, strength: float, seed: int) -> None:
        """`points` may leave settings out, which are then drawn from their whole range."""
        self.parameters = space.alternatives[0]
        own = space.expected()
        self.points = [own] if own else []
        self.points += [dict(point) for point in points if dict(point) != own]
        self.strength = strength
        self.seed = seed
        self.ended: list[tuple[float, float]] = []
        """Loss and nearness of each ended trial."""

    def tell(self, params: Mapping[str, Any], loss: float) -> None:
        """Add a trial that has ended with this best loss."""
        if self.points and self.strength / (self.strength + len(self.ended)) >= LEAST:
            self.ended.append((loss, max(self._nearness(params, point) for point in self.points)))

    def probability(self, number: int) -> float:
        """That trial number n (from 0) is drawn from it."""
        if not self.points:
            return 0.0
        return self.strength / (self.strength + number) * min(1.0, self._support())

    def draw(self, number: int) -> dict[str, Any] | None:
        """A point for this trial; None if the search's algorithm has to choose it. The same number after the same ended
        trials gives the same."""
        first = number < min(len(self.points), TRIED_FIRST)
        probability = 1.0 if first else self.probability(number)
        if probability < LEAST:
            return None
        random = np.random.default_rng((self.seed, number))
        if first:
            return self._around(self.points[number], 0.0, random)
        if random.uniform() >= probability:
            return None
        return self._around(self.points[int(random.integers(len(self.points)))], WIDTH, random)

    def _support(self) -> float:
        if len(self.ended) < 3:
            return 1.0
        ordered = [nearness for _, nearness in sorted(self.ended)]
        best = ordered[: len(ordered) // 3]
        return (sum(best) / len(best)) / max(sum(ordered) / len(ordered), 1e-12)

    def _nearness(self, params: Mapping[str, Any], point: Mapping[str, Any]) -> float:
        def squares(parameters: Sequence[Parameter], point: Mapping[str, Any]) -> float:
            total = 0.0
            for parameter in parameters:
                if parameter.key not in params:
                    continue
                value = params[parameter.key]
                if parameter.key in point:
                    if parameter.kind == "categorical":
                        total += 0.0 if value == point[parameter.key] else 4.0
                    else:
                        distance = parameter.place(value) - parameter.place(point[parameter.key])
                        total += (distance / WIDTH) ** 2
                total += squares(parameter.branches.get(value, ()), _opened(parameter, value, point))
            return total

        return math.exp(-squares(self.parameters, point) / 2)

    def _around(self, point: Mapping[str, Any], width: float, random: np.random.Generator) -> dict[str, Any]:
        def walk(parameters: Sequence[Parameter], point: Mapping[str, Any]) -> dict[str, Any]:
            values: dict[str, Any] = {}
            for parameter in parameters:
                value = _draw(parameter, point.get(parameter.key), parameter.key in point, width, random)
                branch = parameter.branches.get(value, ())
                values |= {parameter.key: value} | walk(branch, _opened(parameter, value, point))
            return values

        return walk(self.parameters, point)


def _opened(parameter: Parameter, value: Any, point: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a point expects of the settings that a choice opens. Where it expects another choice, whose settings may
    have the same names, that is what the space itself expects."""
    if point.get(parameter.key, value) == value:
        return point
    return {one.key: one.prior for one in parameter.branches.get(value, ()) if one.prior is not None}


def _draw(parameter: Parameter, expected: Any, is_expected: bool, width: float, random: np.random.Generator) -> Any:
    if parameter.kind == "categorical":
        if is_expected and (not width or random.uniform() < CERTAINTY):
            return expected
        return parameter.choices[int(random.integers(len(parameter.choices)))]
    if not is_expected:
        return parameter.at_place(random.uniform())
    if not width:
        return expected
    while True:
        place = random.normal(parameter.place(expected), width)
        if 0 <= place <= 1:
            return parameter.at_place(place)
