"""`algorithm: auto`: which algorithm a search has that names none."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.config.algorithms.gp import GaussianProcess
from orchestrator.config.algorithms.grid import Grid
from orchestrator.config.algorithms.tpe import Tpe

if TYPE_CHECKING:
    from orchestrator.config.search import Search

AUTO = "auto"
MOST_POINTS = 200
"""Up to so many points the Gaussian process was compared with the others (benchmarks/scale.md)."""


@dataclass(frozen=True)
class Choice:
    """An algorithm, and why it was chosen."""

    algorithm: str
    because: str


def choose_algorithm(search: "Search") -> Choice:
    """The first of these that applies: `grid` for a union of spaces; `tpe` where a choice opens a space of its own,
    with constraints, or for an unknown number of points or more than `MOST_POINTS`; else `gp`."""
    if len(search.space.alternatives) > 1:
        return Choice(Grid.name, "the space is a union of several")
    if opening := search.opening():
        return Choice(Tpe.name, f"space.{opening[0]} opens a space of its own")
    if search.constraints:
        return Choice(Tpe.name, "the search has constraints")
    points = _points(search)
    if points == math.inf:
        return Choice(Tpe.name, "the number of trials is not known")
    if points > MOST_POINTS:
        return Choice(Tpe.name, f"it may try more than {MOST_POINTS} points")
    return Choice(GaussianProcess.name, f"it tries at most {MOST_POINTS} points of one space")


def _points(search: "Search") -> float:
    """How many points it can try at most."""
    trials = math.inf if search.max_points is None else search.max_points
    epochs = math.inf
    if search.budget.epochs is not None and not _lengths_differ(search):
        epochs = search.budget.epochs // search.most_epochs
    return min(search.space.size(), trials, epochs)


def _lengths_differ(search: "Search") -> bool:
    """Whether some trials take fewer epochs than others, so that a budget of epochs does not say how many there are."""
    return search.scheduler.orders_trials or any(parameter.key == "epochs" for parameter in search.parameters())
