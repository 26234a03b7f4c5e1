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
FEW = f"its epochs are those of at most {FEW_TRAININGS} whole trainings"
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
    if _trainings(search) <= FEW_TRAININGS:
        return Choice(GaussianProcess.name, FEW)
    points = min(_most_points(search), _trainings(search))
    if points == math.inf:
        return Choice(Tpe.name, "the number of trials is not known")
    if points > MOST_POINTS:
        return Choice(Tpe.name, f"it may try more than {MOST_POINTS} points")
    return Choice(GaussianProcess.name, f"it tries at most {MOST_POINTS} points of one space")


def choose_scheduler(search: "Search") -> tuple[Scheduler, str]:
    """`promotion` where its budget has the epochs of at most `FEW_TRAININGS` whole trainings, and of fewer than it may
    try, and its trials may wait: one objective, one process and one seed each; else `none`. And why."""
    if search.budget.epochs is None:
        return NoStops(), "it has no budget of epochs"
    obstacles = {
        "its trials differ in their epochs": _trainings(search) == math.inf,
        f"its epochs are those of more than {FEW_TRAININGS} whole trainings": _trainings(search) > FEW_TRAININGS,
        "it has two objectives": search.second_objective is not None,
        "it has several seeds": search.seeds > 1,
        "a trial has several processes": in_group(search.workers),
        f"a trial has fewer than {FEWEST_VALIDATIONS} validations": (search.max_validations or math.inf)
        < FEWEST_VALIDATIONS,
        "every point of a grid is trained to its end": search.exhaustive,
    }
    if (obstacle := next((why for why, holds in obstacles.items() if holds), None)) is not None:
        return NoStops(), obstacle
    if _trainings(search) >= _most_points(search):
        return NoStops(), "it has the epochs for all that it may try"
    return Promotion(), FEW


def with_choices(search: "Search", *, algorithm: bool, scheduler: bool) -> "Search":
    """The search, in which those are chosen that are asked for: the algorithm before the early stops, which do not
    change how many whole trainings there are."""
    if scheduler:
        search = search.model_copy(update={"scheduler": NoStops(), "auto_stops": True})
    if algorithm:
        search = search.model_copy(update={"algorithm": choose_algorithm(search).algorithm, "auto": True})
    return search.model_copy(update={"scheduler": choose_scheduler(search)[0]}) if scheduler else search


def reasons(search: "Search") -> tuple[str, str]:
    """Why its algorithm and its early stops were chosen; empty for what was named."""
    free = search.model_copy(update={"scheduler": NoStops()}) if search.auto_stops else search
    stops = choose_scheduler(free)[1] if search.auto_stops else ""
    return choose_algorithm(free).because if search.auto else "", stops


def _most_points(search: "Search") -> float:
    """How many points it can try at most, whatever its budget."""
    return min(search.space.size(), math.inf if search.max_points is None else search.max_points)


def _trainings(search: "Search") -> float:
    """Of how many whole trainings its budget has the epochs; not known where some take fewer than others."""
    searched = any(parameter.key == "epochs" for parameter in search.parameters())
    if search.budget.epochs is None or search.scheduler.orders_trials or searched:
        return math.inf
    return search.budget.epochs // search.most_epochs
