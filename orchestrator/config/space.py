"""Search spaces: parameters, their ranges and conditions, and the points in them."""

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator.config.limits import MAX_TRIALS
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.errors import InputError, Problems
from orchestrator.plugins import find_installed
from orchestrator.problems import Inner, KeyPath, Problem, Step, as_path, complaints, suggestion

MAX_POINTS = MAX_TRIALS
"""The maximum number of points of a grid."""
LARGEST_INTEGER = 2**53
"""Up to here a float, as samplers have it, is the integer."""


@dataclass(frozen=True)
class Parameter:
    """One searched setting. `path` is unique in the space; a branch is active for its choice only."""

    key: str
    path: str
    kind: Literal["int", "float", "categorical"]
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()
    branches: Mapping[Any, tuple["Parameter", ...]] = field(default_factory=dict)
    prior: Any = None
    """The value that is expected to be good, if one is."""

    def count(self) -> float:
        """How many values it has; infinitely many in a continuous range."""
        if self.kind == "categorical":
            return len(self.choices)
        step = self.step or (1.0 if self.kind == "int" else 0.0)
        if not step:
            return 1 if self.low == self.high else math.inf
        steps = (Decimal(repr(self.high)) - Decimal(repr(self.low))) / Decimal(repr(step))
        return math.floor(float(steps) + 1e-9) + 1

    def values(self) -> list[Any]:
        """All its values; ValueError if there are infinitely many."""
        if self.kind == "categorical":
            return list(self.choices)
        if not math.isfinite(count := self.count()):
            raise ValueError(f"{self.key} has infinitely many values")
        if self.kind == "int":
            return [int(self.low) + i * int(self.step or 1) for i in range(int(count))]
        return [self._at(place) for place in range(int(count))]

    def _at(self, place: int) -> float:
        """The value this many steps above the low end, to its decimals: 0.1 + 2 x 0.1 is 0.3."""
        return float(Decimal(repr(self.low)) + place * Decimal(repr(self.step or 0.0)))

    def on_grid(self, value: float) -> float:
        """The grid value nearest to this one; without steps the value itself."""
        return self._at(round((value - self.low) / self.step)) if self.step else value

    def place(self, value: float) -> float:
        """Where a value of the range lies on its scale, from 0 to 1."""
        if self.low == self.high:
            return 0.0
        scale = math.log if self.log else float
        low, high = scale(self.low), scale(self.high)
        return (scale(value) - low) / (high - low)

    def at_place(self, place: float) -> int | float:
        """The value at a place from 0 to 1, or the step nearest to it."""
        if self.log:
            value = math.exp(math.log(self.low) + place * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + place * (self.high - self.low)
        value = min(max(value, self.low), self.high)
        if self.kind == "int":
            step = int(self.step or 1)
            return int(self.low) + step * min(round((value - self.low) / step), int(self.count()) - 1)
        return min(self.on_grid(value), self.high)

    def nearest(self, value: Any) -> Any:
        """The step nearest to a value of the range; a choice itself. InputError for another value."""
        if self.kind == "categorical" or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return self.take(value)
        return self.at_place(self.place(value)) if self.kind == "int" or self.step else float(value)

    def take(self, value: Any) -> Any:
        """This value as the parameter stores it; InputError says what would be right."""
        if self.kind == "categorical":
            same = [c for c in self.choices if c == value and isinstance(c, bool) == isinstance(value, bool)]
            if not same:
                hint = suggestion(value, map(str, self.choices))
                raise InputError(Problem((), value, "is not one of the choices", hint, begins_rule=True))
            return same[0]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InputError(Problem((), value, "should be a number", begins_rule=True))
        if not self.low <= value <= self.high:
            raise InputError(f"{value:g} is outside of the space ({self.low:g} to {self.high:g})")
        step = self.step or (1 if self.kind == "int" else None)
        if step is not None:
            nearest = self.on_grid(value) if self.step else round(value)
            if abs(nearest - value) > max(1e-6 * step, 4 * math.ulp(value)):
                raise InputError(f"{value:g} is not a step of {step:g} from {self.low:g}")
            value = nearest
        return int(value) if self.kind == "int" else float(value)


@dataclass(frozen=True)
class Space:
    """A union of alternatives (nearly always one), each a list of parameters."""

    alternatives: tuple[tuple[Parameter, ...], ...]

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter, branches included."""

        def walk(parameters: tuple[Parameter, ...]) -> Iterator[Parameter]:
            for parameter in parameters:
                yield parameter
                for branch in parameter.branches.values():
                    yield from walk(branch)

        for alternative in self.alternatives:
            yield from walk(alternative)

    def expected(self) -> dict[str, Any]:
        """The values that the space itself expects to be good."""
        return {parameter.key: parameter.prior for parameter in self.parameters() if parameter.prior is not None}

    def over(self, choices: Mapping[str, list[Any]]) -> "Space":
        """The same space with these settings too, each with its choices, the first in every alternative."""
        added = tuple(Parameter(key, key, "categorical", choices=tuple(values)) for key, values in choices.items())
        return Space(tuple((*added, *alternative) for alternative in self.alternatives))

    def size(self) -> float:
        """How many points it has; infinite with a continuous parameter. Beyond MAX_POINTS, which no search
        tries, points that are the same in several alternatives or branches are counted several times."""

        def product(parameters: tuple[Parameter, ...]) -> float:
            return math.prod(expand(parameter) for parameter in parameters)

        def expand(parameter: Parameter) -> float:
            rest = parameter.count() - len(parameter.branches)
            return rest + sum(product(branch) for branch in parameter.branches.values())

        most = sum(product(alternative) for alternative in self.alternatives)
        return most if most > MAX_POINTS else len(self.grid())

    def first(self) -> dict[str, Any]:
        """One of its points: every range at its low end, every choice the first."""

        def point(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
            values: dict[str, Any] = {}
            for parameter in parameters:
                value = parameter.choices[0] if parameter.kind == "categorical" else parameter.low
                values[parameter.key] = int(value) if parameter.kind == "int" else value
                values |= point(parameter.branches.get(value, ()))
            return values

        return point(self.alternatives[0])

    def point(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The point with these values, where extra values are allowed; InputError if one is missing or out of place."""

        def walk(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
            values_taken: dict[str, Any] = {}
            for parameter in parameters:
                if parameter.key not in values:
                    rule = "is missing; a point gives every setting that is searched"
                    raise InputError(Problem((parameter.key,), rule=rule))
                try:
                    value = parameter.take(values[parameter.key])
                except InputError as error:
                    raise error.under(parameter.key) from None
                values_taken |= {parameter.key: value} | walk(parameter.branches.get(value, ()))
            return values_taken

        return walk(self.alternatives[0])

    def part(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the values that are searched, each within its range or among its choices; of a setting that a choice
        opens only with that choice."""

        def walk(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
            taken: dict[str, Any] = {}
            for parameter in parameters:
                with contextlib.suppress(InputError, KeyError):
                    value = parameter.nearest(values[parameter.key])
                    taken |= {parameter.key: value} | walk(parameter.branches.get(value, ()))
            return taken

        return walk(self.alternatives[0])

    def grid(self) -> list[dict[str, Any]]:
        """Every point once, the last parameter varying fastest; needs finitely many values."""

        def expand(parameter: Parameter) -> list[dict[str, Any]]:
            points = []
            for value in parameter.values():
                branch = product(parameter.branches.get(value, ()))
                points += [{parameter.key: value} | point for point in branch]
            return points

        def product(parameters: tuple[Parameter, ...]) -> list[dict[str, Any]]:
            combinations = itertools.product(*(expand(parameter) for parameter in parameters))
            return [{k: v for part in parts for k, v in part.items()} for parts in combinations]

        by_key: dict[str, dict[str, Any]] = {}
        for alternative in self.alternatives:
            for point in product(alternative):
                by_key.setdefault(repr(sorted(point.items())), point)
        return list(by_key.values())


class _Range(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    type: Literal["int", "float", "categorical"] | None = None
    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = Field(None, gt=0)
    choices: list[Any] | dict[Any, Any] | None = None
    prior: Any = None

    @field_validator("choices", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        if not isinstance(value, list | dict | None):
            raise ValueError("should be a list of values, or a mapping of words to spaces of their own")
        return value


def _parse_parameters(raw: Any, where: KeyPath, fixed: Mapping[str, Any], prefix: str = "") -> tuple[Parameter, ...]:
    if not isinstance(raw, dict):
        raise InputError(Problem(where, rule=f"should map settings to ranges, not be a {type(raw).__name__}"))
    problems, parsed = Problems(), []
    for key, raw_parameter in raw.items():
        with problems.collect():
            parsed.append(_parse_parameter(str(key), raw_parameter, (*where, Inner(key)), fixed, prefix))
    problems.tell()
    return tuple(parsed)


def _parse_parameter(key: str, raw: Any, where: KeyPath, fixed: Mapping[str, Any], prefix: str) -> Parameter:
    parameter = _without_prior(key, raw, where, fixed, prefix)
    prior = raw.get("prior") if isinstance(raw, dict) else None
    if prior is None:
        return parameter
    try:
        return replace(parameter, prior=parameter.take(prior))
    except InputError as error:
        raise error.under((*where, "prior")) from None


def _without_prior(key: str, raw: Any, where: KeyPath, fixed: Mapping[str, Any], prefix: str) -> Parameter:
    if isinstance(raw, list):
        raw = {"choices": raw}
    if not isinstance(raw, dict):
        rule = "should be a list of choices or a range such as {low: 0.1, high: 0.35}"
        raise InputError(Problem(where, raw, rule, begins_rule=True))
    if unknown := [word for word in raw if word not in _Range.model_fields]:
        hints = {word: suggestion(word, _Range.model_fields) for word in unknown}
        raise InputError(*(Problem((*where, str(word)), rule="no such key", suggestion=hints[word]) for word in hints))
    try:
        bounds = _Range(**raw)
    except ValidationError as error:
        raise InputError(*complaints(error)).under(where) from None
    path = prefix + key
    if bounds.choices is not None or bounds.type == "categorical":
        if bounds.low is not None or bounds.high is not None or bounds.log or bounds.step is not None:
            raise InputError(Problem(where, rule="a categorical setting has choices only, no low, high, log or step"))
        if not bounds.choices:
            raise InputError(Problem((*where, "choices"), rule="an empty list; name at least one value"))
        branches: dict[Any, tuple[Parameter, ...]] = {}
        problems = Problems()
        for choice in bounds.choices:
            with problems.collect():
                if not isinstance(choice, str | int | float | None):
                    rule = f"should be a single value, not a {type(choice).__name__}"
                    raise InputError(Problem((*where, "choices"), choice, rule, begins_rule=True))
                if isinstance(bounds.choices, dict) and not isinstance(choice, str):
                    raise InputError(Problem((*where, "choices"), choice, "only a word can open a space of its own"))
                sub = bounds.choices[choice] if isinstance(bounds.choices, dict) else None
                rest = dict(fixed) | {key: choice}
                _check_value(key, choice, where, fixed)
                branches[choice] = _parse_parameters(sub or {}, (*where, Inner(choice)), rest, f"{path}={choice}/")
        problems.tell()
        choices = tuple(bounds.choices)
        if len({repr(choice) for choice in choices}) < len(choices):
            raise InputError(Problem((*where, "choices"), list(choices), "names a value twice", begins_rule=True))
        return Parameter(key, path, "categorical", choices=choices, branches=branches)
    if bounds.low is None or bounds.high is None:
        raise InputError(Problem(where, rule="a range needs both low and high (or give a list of choices)"))
    if bounds.low > bounds.high:
        raise InputError(Problem(where, rule=f"low {bounds.low:g} is above high {bounds.high:g}"))
    if bounds.log and bounds.low <= 0:
        raise InputError(Problem(where, rule=f"low {bounds.low:g}: a logarithmic range starts above 0"))
    if bounds.log and bounds.step is not None:
        raise InputError(Problem((*where, "step"), rule="cannot be combined with log"))
    if bounds.step is not None and 0 < bounds.high - bounds.low < bounds.step:
        rule = f"{bounds.step:g} is more than the whole range, {bounds.low:g} to {bounds.high:g}"
        raise InputError(Problem((*where, "step"), rule=rule))
    kind = bounds.type or ("int" if _is_integer_setting(key, fixed) else "float")
    low, high, step = bounds.low, bounds.high, bounds.step
    if kind == "int":
        for name, value in (("low", low), ("high", high), ("step", step or 1)):
            if value != int(value):
                raise InputError(Problem((*where, name), rule=f"{value:g} should be a whole number"))
            if abs(value) > LARGEST_INTEGER:
                raise InputError(Problem((*where, name), rule=f"{value:g} should be at most {LARGEST_INTEGER}"))
        _check_value(key, int(low), where, fixed)
        _check_value(key, int(high), where, fixed)
    else:
        _check_value(key, low, where, fixed)
        _check_value(key, high, where, fixed)
    return Parameter(key, path, kind, low=low, high=high, log=bounds.log, step=step)


def _check_value(key: str, value: Any, where: KeyPath, fixed: Mapping[str, Any]) -> None:
    """Check that a value of the space is one that the experiment would accept."""
    settings = dict(fixed) | {key: value}
    if "method" not in settings:
        # the method is searched elsewhere in this space: only training settings can be checked here
        settings["method"] = next(iter(settings.pop("_methods", [])), None)
    if settings["method"] is None:
        raise InputError(Problem(where, rule="no method is named: add the key method: NAME"))
    settings.pop("_methods", None)
    resolve_experiment(settings, where)


def _is_integer_setting(key: str, fixed: Mapping[str, Any]) -> bool:
    fields = dict(Training.model_fields)
    names = [fixed["method"]] if "method" in fixed else list(fixed.get("_methods", []))
    for name in names:
        fields |= find_installed(name).fields.model_fields
    annotation = fields[key].annotation if key in fields else None
    return annotation is int or (int in get_args(annotation) and float not in get_args(annotation))


def parse_space(raw: Any, where: Step | KeyPath, settings: Mapping[str, Any]) -> Space:
    """The space of a search file, each bound and choice checked against the method's config."""
    if raw == {}:
        return Space(((),))  # a single training
    alternatives, where = raw if isinstance(raw, list) else [raw], as_path(where)
    problems, parsed = Problems(), []
    if not alternatives or any(not alternative for alternative in alternatives):
        raise InputError(Problem(where, rule="the space is empty; give at least one setting a range or choices"))
    for number, alternative in enumerate(alternatives):
        place: KeyPath = (*where, number) if isinstance(raw, list) else where
        fixed = dict(settings)
        with problems.collect():
            if isinstance(alternative, dict) and isinstance(alternative.get("method"), dict | list):
                choices = alternative["method"]
                choices = choices.get("choices") if isinstance(choices, dict) else choices
                if not isinstance(choices, list | dict) or not choices or not all(isinstance(c, str) for c in choices):
                    rule = "should be a list of methods' names"
                    raise InputError(Problem((*place, Inner("method")), choices, rule, begins_rule=True))
                fixed.pop("method", None)
                fixed["_methods"] = list(choices)
            parsed.append(_parse_parameters(alternative, place, fixed))
    problems.tell()
    return Space(tuple(parsed))


def point_by_path(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """The point as Optuna knows it."""

    def walk(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for p in parameters:
            if p.key in params:
                value = params[p.key]
                values[p.path] = str(value) if p.kind == "categorical" else value
                values |= walk(p.branches.get(value, ()))
        return values

    return dict(itertools.chain.from_iterable(walk(alternative).items() for alternative in space.alternatives))


def point_key(params: Mapping[str, Any]) -> str:
    return repr(sorted(params.items()))
