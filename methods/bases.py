"""Objectives as the base of other methods: a method's hyperparameters, and its base objective's beside them."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from methods.baselines import (
    Baseline,
    ComparisonConfig,
    Contrastive,
    MultiSimilarity,
    NormalizedSoftmax,
    ProxyAnchor,
)
from methods.circle import Circle
from methods.cos_face import CosFace
from methods.sup_con import SupCon
from orchestrator.method import InputError, Method, MethodConfig, Task, complaints

WITHOUT_MEMORY = ("references", "memory_size", "memory_start")
"""What is fixed where each base objective keeps the references that it has by default, or is given."""

Bases = Mapping[type[Baseline], Mapping[str, Any]]
"""Base objectives, each with the defaults that differ from its own."""

OBJECTIVES: Bases = {
    ProxyAnchor: {},
    MultiSimilarity: {},
    NormalizedSoftmax: {},
    Contrastive: {},
    Circle: {},
    SupCon: {},
    CosFace: {},
}
"""For methods that stand on any: each is compared with what it was made for, proxies or the batch."""


class OverConfig(MethodConfig):
    """The hyperparameters of a method over a base objective: its name, and the objective's own beside the method's.

        class Config(OverConfig, over={ProxyAnchor: {}, Contrastive: {"references": "batch"}}, fixed=("metric",)):
            rho: float = Field(0.05, gt=0, description="...")

    `over` are objectives to choose from by `objective`, each with the defaults that differ from its own; the first one
    is the default. Their hyperparameters become fields of the class, but for the `fixed` ones, which keep their
    defaults. A hyperparameter left out has the base objective's default, one that the base objective does not have is
    refused. The method builds its objective by `config.base_objective(task)`.
    """

    bases: ClassVar[Mapping[str, type[Baseline]]] = {}
    others: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The defaults that differ from a base's own, by its name."""
    taken: ClassVar[frozenset[str]] = frozenset()
    """All hyperparameters of the base objectives."""
    objective: str = ""

    def __init_subclass__(cls, *, over: Bases | None = None, fixed: Iterable[str] = (), **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if over is None:
            return
        cls.bases = {baseline.name: baseline for baseline in over}
        cls.others = {baseline.name: dict(defaults) for baseline, defaults in over.items()}
        annotations: dict[str, Any] = {}
        defaults: dict[str, dict[str, str]] = {}
        for name, baseline in cls.bases.items():
            for key, field in baseline.Config.model_fields.items():
                if key not in fixed:
                    default = cls.others[name].get(key, field.default)
                    defaults.setdefault(key, {})[name] = str(default).replace("None", "null")
                    known = annotations.get(key)
                    annotations[key] = field.annotation if known is None else known | field.annotation
        cls.taken = frozenset(annotations)
        before = {key: value for baseline in over for key, value in baseline.Config.earlier.items()}
        before = {key: value for key, value in before.items() if key in cls.taken}
        cls.earlier = {**before, **vars(cls).get("earlier", {})}
        cls.dependent = {"objective": cls.taken}
        # pydantic reads annotations and defaults after this; the class's own fields stand above those of its bases
        annotations_here, cls.__annotations__ = cls.__annotations__, {}
        fields: dict[str, Any] = {key: Field(None, description=_whose(defaults[key], len(over))) for key in annotations}
        fields["objective"] = Field(next(iter(cls.bases)), description="base objective")
        annotations = {key: annotation | None for key, annotation in annotations.items()}
        annotations["objective"] = Literal[tuple(cls.bases)]
        for key, annotation in annotations.items():
            if key not in annotations_here:
                cls.__annotations__[key] = annotation
                setattr(cls, key, fields[key])
        cls.__annotations__ |= annotations_here

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        objective = given.get("objective", cls.model_fields["objective"].default)
        if objective not in cls.bases:
            return given  # refused by its own field
        defaults = {key: value for key, value in _defaults(cls, objective).items() if key in cls.taken}
        for key in cls.taken - defaults.keys():
            if given.get(key) is not None:
                raise ValueError(f"{key}: {objective} has no such hyperparameter; it has {', '.join(sorted(defaults))}")
        return defaults | given

    @model_validator(mode="after")
    def _check_base(self) -> Self:
        try:
            self.base_config()
        except ValidationError as error:
            raise InputError(complaints(error)[0].with_advice(f", with {self.objective}")) from None
        return self

    def idle(self) -> dict[str, tuple[str, ...]]:
        idle = self.base_config().idle()
        keys = self.taken
        return {key: (*(b for b in because if b in keys), "objective") for key, because in idle.items() if key in keys}

    def base_config(self) -> ComparisonConfig:
        """The base objective's configuration."""
        baseline = self.bases[self.objective]
        values = _defaults(type(self), self.objective)
        values |= {key: getattr(self, key) for key in values if key in self.taken}
        return baseline.Config(**values)

    def base_objective(self, task: Task) -> Baseline:
        """The base objective itself."""
        return self.bases[self.objective](self.base_config(), task)


class OverObjective(Method, abstract=True):
    """A method over one base objective, `self.base`, whose parameters are all it has until it adds its own."""

    config: OverConfig

    def __init__(self, config: OverConfig, task: Task) -> None:
        super().__init__(config, task)
        self.base = config.base_objective(task)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return self.base.parameter_groups(lr)


def _whose(defaults: Mapping[str, str], count: int) -> str:
    """The base objectives that have a hyperparameter, and their defaults."""
    if len(defaults) == count and len(set(defaults.values())) == 1:
        return f"of every base objective; default {next(iter(defaults.values()))}"
    return "of the base objective; defaults: " + ", ".join(f"{name} {value}" for name, value in defaults.items())


def _defaults(config: type[OverConfig], objective: str) -> dict[str, Any]:
    fields = config.bases[objective].Config.model_fields
    return {name: field.default for name, field in fields.items()} | dict(config.others[objective])
