"""The schedulers, each a file of this folder and a line of the table; what a search file says of one is read here."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from orchestrator import parts
from orchestrator.config.limits import AUTO
from orchestrator.config.schedulers.asha import Asha
from orchestrator.config.schedulers.base import Scheduler
from orchestrator.config.schedulers.forecast import Forecast
from orchestrator.config.schedulers.hyperband import Hyperband
from orchestrator.config.schedulers.median import Median
from orchestrator.config.schedulers.none import NoStops
from orchestrator.config.schedulers.population import Population
from orchestrator.config.schedulers.promotion import Promotion
from orchestrator.errors import InputError
from orchestrator.problems import KeyPath, Problem, Step, as_path, complaints, suggestion, unknown

BUILT_IN: dict[str, type[Scheduler]] = {
    kind.name: kind
    for kind in (
        Asha,
        Promotion,
        Forecast,
        Median,
        Hyperband,
        Population,
        NoStops,
    )
}
SCHEDULERS: Mapping[str, type[Scheduler]] = parts.PartTable("schedulers", BUILT_IN, Scheduler)
"""By name, in the order in which messages list them."""

ALWAYS_STORED = {"grace_validations": 1, "reduction_factor": 3, "startup_trials": 5, "max_validations": None}
"""Journals hold these keys with every scheduler, since before each had its own."""


def parse_scheduler(given: str | Mapping[Any, Any], where: Step | KeyPath) -> Scheduler:
    """A name, or a mapping with `name` and the scheduler's own keys. InputError lists all that is wrong with it."""
    values = {"name": given} if isinstance(given, str) else {str(key): value for key, value in given.items()}
    name = values.pop("name", NoStops.name)
    kind = SCHEDULERS.get(name) if isinstance(name, str) else None
    where = as_path(where)
    place: KeyPath = where if isinstance(given, str) else (*where, "name")
    problems = [] if kind else [unknown(name, (AUTO, *SCHEDULERS)).under(place)]
    if name == AUTO:
        raise InputError(Problem(place, rule="`auto` takes no keys: name the scheduler that they are of"))
    kinds = [kind] if kind else SCHEDULERS.values()
    keys = dict.fromkeys(["name", *(key for kind in kinds for key in kind.model_fields)])
    for key, value in list(values.items()):
        owners = [other for other in SCHEDULERS.values() if key in other.model_fields]
        if not owners:
            problems.append(Problem((*where, key), rule="no such key", suggestion=suggestion(key, keys)))
        elif kind is not None and kind not in owners:
            others = ", ".join(other.name for other in owners)
            problems.append(Problem((*where, key), rule=f"has no meaning for '{name}' (it is for {others})"))
        else:
            problems += [one.under(where) for one in _complaints(kind or owners[0], {key: value})]
    if problems or kind is None:
        raise InputError(*problems)
    return kind(**values)


def _complaints(kind: type[Scheduler], values: Mapping[str, Any]) -> list[Problem]:
    try:
        kind(**values)
    except ValidationError as error:
        return complaints(error)
    return []


def stored_scheduler(scheduler: Scheduler) -> dict[str, Any]:
    """As a journal holds it."""
    return {"name": scheduler.name, **ALWAYS_STORED, **scheduler.model_dump()}


def restored_scheduler(stored: Mapping[str, Any]) -> Scheduler:
    """The scheduler that a journal holds. InputError for one that this version does not know."""
    kind = SCHEDULERS.get(stored.get("name", NoStops.name))
    fields = kind.model_fields if kind else {}
    return parse_scheduler({k: v for k, v in stored.items() if k in fields or k not in ALWAYS_STORED}, "scheduler")
