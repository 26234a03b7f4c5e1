"""A training's schedule: settings that have other values after some of its validations.

One rule says which settings these are. Every step reads them anew, and nothing that a checkpoint holds depends on them
but the optimiser's groups, which are set again: of every training those of SCHEDULABLE, of a method those that its
configuration names as `schedulable`. All others (sizes, batches, the network, the kind of the optimiser, epochs) shape
the training as a whole.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.config.limits import MAX_EPOCHS
from orchestrator.contract import MethodConfig
from orchestrator.errors import InputError
from orchestrator.problems import Problem, complaints, suggestion
from orchestrator.text import join_names, pluralize

SCHEDULABLE = ("lr", "weight_decay", "clip_value", "clip_norm")
"""The settings of every training that may change while it runs."""
EXAMPLE = "from 2 lr=0.008 alpha=16, from 4 lr=0.004"
FORM = f"should be a list like [{{from: 2, lr: 0.008}}], or read like '{EXAMPLE}'"
AnyTraining = TypeVar("AnyTraining", bound=BaseModel)
CHANGE = re.compile(r"from ([0-9]{1,9})((?: \w+=\S+)+)")


@dataclass(frozen=True)
class Change:
    """After so many validations (`start`) settings have these values, until a later change."""

    start: int
    values: Mapping[str, float | None]


def parse_schedule(given: Any) -> tuple[Change, ...]:
    """The changes of a setting, a list of mappings or a text, in order. InputError says what is wrong."""
    items = [_read_text(part.strip()) for part in given.split(",")] if isinstance(given, str) else given
    if not isinstance(items, list | tuple) or not items:
        raise InputError(Problem(rule=FORM))
    changes: list[Change] = []
    for place, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise InputError(Problem((place,), item, FORM, begins_rule=True))
        start, values = item.get("from"), {str(key): value for key, value in item.items() if key != "from"}
        if isinstance(start, bool) or not isinstance(start, int) or not 1 <= start <= MAX_EPOCHS:
            rule = "should be the number of validations after which it holds, from 1 on"
            advice = ": what holds from the start are the settings themselves" if start == 0 else ""
            raise InputError(Problem((place, "from"), start, rule, advice=advice, begins_rule=True))
        if changes and start <= changes[-1].start:
            rule = f"should be above {changes[-1].start}, the one before"
            raise InputError(Problem((place, "from"), start, rule, begins_rule=True))
        if not values:
            raise InputError(Problem((place,), rule=f"from {start}: names no setting"))
        for key, value in values.items():
            if not key.isidentifier():
                raise InputError(Problem((place,), key, "should be the name of a setting", begins_rule=True))
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise InputError(Problem((place, key), value, "should be a number", begins_rule=True))
        changes.append(Change(start, values))
    return tuple(changes)


def _read_text(part: str) -> dict[str, Any]:
    match = CHANGE.fullmatch(part)
    if match is None:
        raise InputError(Problem(rule=FORM))
    pairs = [pair.partition("=") for pair in match[2].split()]
    return {"from": int(match[1])} | {key: _read_number(text) for key, _, text in pairs}


def _read_number(text: str) -> Any:
    if text in ("null", "none"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def schedule_text(changes: Iterable[Change]) -> str:
    """As a setting holds them: parsed again, they are the same."""
    return ", ".join(f"from {change.start} {values_text(change.values)}" for change in changes)


def values_text(values: Mapping[str, float | None]) -> str:
    """`lr=0.008 alpha=16`, to the last digit."""
    return " ".join(f"{key}={'null' if value is None else repr(value)}" for key, value in values.items())


def checked_schedule(given: Any) -> str:
    """A setting as it is kept. InputError says what is wrong."""
    return schedule_text(parse_schedule(given))


def later_settings(
    schedule: str | None, training: AnyTraining, config: MethodConfig
) -> Iterator[tuple[int, AnyTraining, MethodConfig]]:
    """After which validations a training and its method have other settings, and all that they have then."""
    for change in parse_schedule(schedule) if schedule else ():
        of_training: dict[str, float | None] = {}
        of_method: dict[str, float | None] = {}
        for key, value in change.values.items():
            model, values = (training, of_training) if key in SCHEDULABLE else (config, of_method)
            values[key] = value if value is None or isinstance(getattr(model, key), int) else float(value)
        training, config = training.model_copy(update=of_training), config.model_copy(update=of_method)
        yield change.start, training, config


def wrong_changes(schedule: str | None, method: str, training: BaseModel, config: MethodConfig) -> list[Problem]:
    """What is wrong with the settings that a schedule changes, and with their values."""
    problems: list[Problem] = []
    values = config.model_dump()
    for place, change in enumerate(parse_schedule(schedule) if schedule else ()):
        for key, value in change.values.items():
            if (refused := _refused(key, method, type(training), type(config))) is not None:
                problems.append(refused.under(("schedule", place)))
                continue
            ours = key in SCHEDULABLE
            try:
                if ours:
                    type(training)(**{key: value})
                else:
                    type(config)(**values | {key: value})
                    values[key] = value
            except ValidationError as error:
                problems += [one.under(("schedule", place)) for one in complaints(error)]
    return problems


def _refused(key: str, method: str, training: type[BaseModel], config: type[MethodConfig]) -> Problem | None:
    allowed = (*SCHEDULABLE, *sorted(config.schedulable))
    if key in allowed:
        return None
    if key in training.model_fields or key in config.model_fields:
        rule = f"cannot change during a training: with '{method}' {join_names(allowed)} can"
        return Problem((key,), rule=rule)
    return Problem((key,), rule=f"no such setting of '{method}'", suggestion=suggestion(key, allowed))


def late_changes(schedule: str | None, validations: int) -> str | None:
    """The changes that a training of so many validations never comes to, in words; None if it comes to all."""
    changes = parse_schedule(schedule) if schedule else ()
    late = [f"from {change.start}" for change in changes if change.start >= validations]
    return f"{join_names(late, ' and ')}: a training has {pluralize(validations, 'validation')}" if late else None
