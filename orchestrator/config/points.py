"""A finite set of points of a space, and which of them is nearest to another."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.config.space import Parameter, Space, point_key


class PointTable:
    """The only points that a search may try."""

    def __init__(self, space: Space, points: Sequence[Mapping[str, Any]]) -> None:
        self.parameters = tuple(space.parameters())
        self.points = [dict(point) for point in points]
        self.keys = [point_key(point) for point in self.points]
        self.by_key = dict(zip(self.keys, self.points, strict=True))
        self.places = np.stack([self.place(point) for point in self.points])

    def __contains__(self, key: object) -> bool:
        """Whether one of them has this key (see `point_key`)."""
        return key in self.by_key

    def place(self, point: Mapping[str, Any]) -> NDArray[np.float64]:
        """Where a point lies in the unit cube, as `coordinates` says."""
        return np.array(coordinates(self.parameters, point))

    def nearest(self, point: Mapping[str, Any], without: Collection[str] = ()) -> dict[str, Any] | None:
        """The point nearest to this one, by Euclidean distance in the unit cube, the first of equal ones; None if all
        are among those `without` which it is sought (as `point_key` names them)."""
        distances = np.sum((self.places - self.place(point)) ** 2, axis=1)
        for index in np.argsort(distances, kind="stable"):
            if self.keys[index] not in without:
                return dict(self.points[index])
        return None


def coordinates(parameters: Iterable[Parameter], point: Mapping[str, Any]) -> list[float]:
    """A point's place in the unit cube: ranges from 0 to 1, on the scale on which they are searched; choices at a
    distance of 1 from each other. A setting that the point does not have is in the middle of its range."""
    return [x for parameter in parameters for x in _coordinates(parameter, point)]


def _coordinates(parameter: Parameter, point: Mapping[str, Any]) -> list[float]:
    value = point.get(parameter.key)
    if parameter.kind == "categorical":
        return [math.sqrt(0.5) * (value == choice) for choice in parameter.choices]
    if parameter.low == parameter.high:
        return [0.0]
    if value is None or not isinstance(value, int | float):
        return [0.5]
    return [parameter.place(value)]
