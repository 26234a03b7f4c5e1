"""`algorithm: auto`: which algorithm a search has that names none, and which early stops."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.config.algorithms.gp import GaussianProcess
from orchestrator.config.algorithms.grid import Grid
from orchestrator.config.algorithms.tpe import Tpe
from orchestrator.config.schedulers.base import Scheduler
from orchestrator.config.schedulers.none import NoStops
from orchestrator.config.schedulers.promotion import Promotion
from orchestrator.config.workers import in_group

if TYPE_CHECKING:
    from orchestrator.config.search import Search

AUTO = "auto"
MOST_POINTS = 200
"""Up to so many points the Gaussian process was compared with the others (benchmarks/scale.md)."""
FEW_TRAININGS = 15
"""With the epochs of ten whole trainings a search whose trials wait is ahead of one without stops, with those of twenty
it is not (benchmarks/scale.md); this is between them."""
FEWEST_VALIDATIONS = 3
"""A trial of fewer has no rung of `promotion` before its end but the first."""


@dataclass(frozen=True)
class Choice:
    """An algorithm and early stops, and why."""

    algorithm: str
    because: str
    scheduler: Scheduler = field(default_factory=NoStops)


def choose_algorithm(search: "Search", *, with_stops: bool = False) -> Choice:
    """The first of these that applies: `grid` for a union of spaces; `tpe` where a choice opens a space of its own, or
    with constraints; `gp` and `promotion` for the epochs of at most `FEW_TRAININGS` whole trainings; `tpe` for an
    unknown number of points or more than `MOST_POINTS`; else `gp`.

    `with_stops`: the search names no scheduler, so that one is chosen too. It is `promotion`, with `tpe` likewise, for
    so few epochs, if trials may wait; else `none`.
    """
    if len(search.space.alternatives) > 1:
        return Choice(Grid.name, "the space is a union of several")
    if with_stops:
        search = search.model_copy(update={"scheduler": NoStops()})
    scheduler = Promotion() if with_stops and _is_short(search) else NoStops()
    if opening := search.opening():
        return Choice(Tpe.name, f"space.{opening[0]} opens a space of its own", scheduler)
    if search.constraints:
        return Choice(Tpe.name, "the search has constraints", scheduler)
    if scheduler.promotes:
        few = f"its epochs are those of at most {FEW_TRAININGS} whole trainings"
        return Choice(GaussianProcess.name, few, scheduler)
    points = _points(search)
    if points == math.inf:
        return Choice(Tpe.name, "the number of trials is not known")
    if points > MOST_POINTS:
        return Choice(Tpe.name, f"it may try more than {MOST_POINTS} points")
    return Choice(GaussianProcess.name, f"it tries at most {MOST_POINTS} points of one space")


def with_choice(search: "Search", *, with_stops: bool) -> "Search":
    """The search with what the rule chooses for it."""
    choice = choose_algorithm(search, with_stops=with_stops)
    scheduler = choice.scheduler if with_stops else search.scheduler
    update = {"algorithm": choice.algorithm, "auto": True, "scheduler": scheduler, "auto_stops": with_stops}
    return search.model_copy(update=update)


def _is_short(search: "Search") -> bool:
    """Whether its epochs are those of few whole trainings, but of fewer than it may try, and its trials may wait."""
    may_wait = search.second_objective is None and search.seeds == 1 and not in_group(search.workers)
    long = search.max_validations is None or search.max_validations >= FEWEST_VALIDATIONS
    return may_wait and long and _trainings(search) <= min(FEW_TRAININGS, _most_points(search) - 1)


def _points(search: "Search") -> float:
    """How many points it can try at most."""
    return min(_most_points(search), _trainings(search))


def _most_points(search: "Search") -> float:
    """The same without its budget."""
    return min(search.space.size(), math.inf if search.max_points is None else search.max_points)


def _trainings(search: "Search") -> float:
    """Of how many whole trainings its budget has the epochs."""
    if search.budget.epochs is None or _lengths_differ(search):
        return math.inf
    return search.budget.epochs // search.most_epochs


def _lengths_differ(search: "Search") -> bool:
    """Whether some trials take fewer epochs than others, so that a budget of epochs does not say how many there are."""
    return search.scheduler.orders_trials or any(parameter.key == "epochs" for parameter in search.parameters())
