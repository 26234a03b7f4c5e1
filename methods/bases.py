"""Objectives as the base of other methods: a method's hyperparameters, and its base objective's beside them."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, create_model, model_validator

from methods.baselines import BASELINES, ComparisonConfig
from orchestrator.method import MethodConfig


class OverConfig(MethodConfig):
    """The hyperparameters of a method over a base objective: its name, and the objective's own beside the method's.

    A hyperparameter left out has the base objective's default, one that the base objective does not have is refused.
    """

    bases: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Base objectives by name, each with the defaults that differ from its own."""
    taken: ClassVar[frozenset[str]]
    """All their hyperparameters."""
    objective: str

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        objective = given.get("objective", cls.model_fields["objective"].default)
        if objective not in cls.bases:
            return given  # refused by its own field
        own = {key: value for key, value in _defaults(cls, objective).items() if key in cls.taken}
        for key in cls.taken - own.keys():
            if given.get(key) is not None:
                raise ValueError(f"{key}: {objective} has no such hyperparameter; it has {', '.join(sorted(own))}")
        return own | given

    @model_validator(mode="after")
    def _checked(self) -> Self:
        try:
            self.base_config()
        except ValidationError as error:
            first = error.errors()[0]
            message = first["msg"].replace("Input should", "should")
            raise ValueError(f"{first['loc'][0]}: {first['input']!r}: {message}, with {self.objective}") from None
        return self

    def idle(self) -> dict[str, tuple[str, ...]]:
        idle = self.base_config().idle()
        return {key: (*because, "objective") for key, because in idle.items() if key in self.taken}

    def base_config(self) -> ComparisonConfig:
        """The base objective's configuration."""
        baseline = BASELINES[self.objective]
        chosen = _defaults(type(self), self.objective)
        chosen |= {key: getattr(self, key) for key in chosen if key in self.taken}
        return baseline.Config(**chosen)


def _whose(defaults: Mapping[str, str], count: int) -> str:
    """The base objectives that have a hyperparameter, and their defaults."""
    if len(defaults) == count and len(set(defaults.values())) == 1:
        return f"of every base objective; default {next(iter(defaults.values()))}"
    return "of the base objective; defaults: " + ", ".join(f"{name} {value}" for name, value in defaults.items())


def _defaults(config: type[OverConfig], objective: str) -> dict[str, Any]:
    fields = BASELINES[objective].Config.model_fields
    return {name: field.default for name, field in fields.items()} | dict(config.bases[objective])


def over(bases: Mapping[str, Mapping[str, Any]], *, fixed: tuple[str, ...] = ()) -> Any:
    """A Config class to derive from: `objective` among `bases`, and their hyperparameters but for the `fixed` ones.

    `bases` gives for each baseline the defaults that differ from its own; the first one is the default objective.
    """
    annotations: dict[str, Any] = {}
    defaults: dict[str, dict[str, str]] = {}
    for name, others in bases.items():
        for key, field in BASELINES[name].Config.model_fields.items():
            if key not in fixed:
                defaults.setdefault(key, {})[name] = str(others.get(key, field.default)).replace("None", "null")
                known = annotations.get(key)
                annotations[key] = field.annotation if known is None else known | field.annotation
    fields: dict[str, Any] = {
        key: (annotation | None, Field(None, description=_whose(defaults[key], len(bases))))
        for key, annotation in annotations.items()
    }
    names = tuple(bases)
    fields["objective"] = (Literal[names], Field(names[0], description="base objective"))
    config = create_model("Over", __base__=OverConfig, **fields)
    config.bases, config.taken = dict(bases), frozenset(annotations)
    config.dependent = {"objective": config.taken}
    return config
