"""`algorithm: auto` and `scheduler: auto`: which algorithm and which early stops a search has that names none."""

import math
from dataclasses import dataclass
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

MOST_POINTS = 200
"""Up to so many points the Gaussian process was compared with the others (benchmarks/scale.md)."""
FEW_TRAININGS = 15
"""With the epochs of ten whole trainings a search whose trials wait is ahead of one without stops, with those of twenty
that depends on the task (benchmarks/scale.md)."""
FEWEST_VALIDATIONS = 9
"""The third rung of `promotion`. It was measured with 18."""


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
    points = min(_most_points(search), _trainings(search))
    if points == math.inf:
        return Choice(Tpe.name, "the number of trials is not known")
    if points > MOST_POINTS:
        return Choice(Tpe.name, f"it may try more than {MOST_POINTS} points")
    return Choice(GaussianProcess.name, f"it tries at most {MOST_POINTS} points of one space")


def choose_scheduler(search: "Search") -> Scheduler:
    """`promotion` where its budget has the epochs of at most `FEW_TRAININGS` whole trainings, and of fewer than it may
    try, and its trials may wait: one objective, one process and one seed each; else `none`."""
    if search.budget.epochs is None:
        return NoStops()
    short = _trainings(search) <= min(FEW_TRAININGS, _most_points(search) - 1)
    one_each = search.second_objective is None and search.seeds == 1 and not in_group(search.workers)
    long = search.max_validations is None or search.max_validations >= FEWEST_VALIDATIONS
    return Promotion() if short and one_each and long and not search.exhaustive else NoStops()


def with_choices(search: "Search", *, algorithm: bool, scheduler: bool) -> "Search":
    """The search, in which those are chosen that are asked for: the algorithm before the early stops, which do not
    change how many whole trainings there are."""
    if scheduler:
        search = search.model_copy(update={"scheduler": NoStops(), "auto_stops": True})
    if algorithm:
        search = search.model_copy(update={"algorithm": choose_algorithm(search).algorithm, "auto": True})
    return search.model_copy(update={"scheduler": choose_scheduler(search)}) if scheduler else search


def reasons(search: "Search") -> tuple[str, str]:
    """Why its algorithm and its early stops were chosen; empty for what was named, or not stopped."""
    free = search.model_copy(update={"scheduler": NoStops()}) if search.auto_stops else search
    few = f"its epochs are those of at most {FEW_TRAININGS} whole trainings"
    stops = search.auto_stops and search.scheduler == Promotion()
    return choose_algorithm(free).because if search.auto else "", few if stops else ""


def _most_points(search: "Search") -> float:
    """How many points it can try at most, whatever its budget."""
    return min(search.space.size(), math.inf if search.max_points is None else search.max_points)


def _trainings(search: "Search") -> float:
    """Of how many whole trainings its budget has the epochs; not known where some take fewer than others."""
    searched = any(parameter.key == "epochs" for parameter in search.parameters())
    if search.budget.epochs is None or search.scheduler.orders_trials or searched:
        return math.inf
    return search.budget.epochs // search.most_epochs
