"""Descriptions of methods and settings."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from orchestrator.config.presets import presets_of
from orchestrator.plugins import Installed
from orchestrator.report.method_costs import MethodCost, method_costs
from orchestrator.storage.outputs import Output, SettingValue


class SettingFacts(Output):
    name: str
    type: str
    default: SettingValue
    range: str
    description: str


SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
"""Of pydantic's bounds, by their attribute."""


class MethodFacts(Output):
    name: str
    summary: str
    paper: str
    documentation: str
    latex: str
    needs_validation: bool
    sampler: str
    hyperparameters: list[SettingFacts]
    presets: list[str]
    costs: dict[str, MethodCost]
    """Of a training step, by the number of classes; none of a plugin's method."""


def describe_method(method: Installed) -> MethodFacts:
    """A method's name, documentation and hyperparameters."""
    return MethodFacts(
        name=method.name,
        summary=method.documentation.splitlines()[0] if method.documentation else "",
        paper=method.paper,
        documentation=method.documentation,
        latex=method.latex,
        needs_validation=method.needs_validation,
        sampler=method.sampler,
        hyperparameters=describe_settings(method.fields),
        presets=list(presets_of(method.name)),
        costs={str(size): cost for size, cost in method_costs().of.get(method.name, {}).items()},
    )


def describe_settings(settings: type[BaseModel]) -> list[SettingFacts]:
    """Name, type, default, range and description of each setting."""
    rows = []
    for name, info in settings.model_fields.items():
        bounds = [
            f"{sign} {getattr(bound, attribute)}"
            for bound in info.metadata
            for attribute, sign in SIGNS.items()
            if hasattr(bound, attribute)
        ]
        rows.append(
            SettingFacts(
                name=name,
                type=_type(info.annotation),
                default=info.default,
                range=", ".join(bounds),
                description=info.description or "",
            )
        )
    return rows


def _type(annotation: Any) -> str:
    """`float`, `float or null`, `one of no, one, per_class`."""
    parts = list(_parts(annotation))
    literals = [part for part in parts if get_origin(part) is Literal]
    values = list(dict.fromkeys(str(value) for literal in literals for value in get_args(literal)))
    names = [f"one of {', '.join(values)}" if len(values) > 1 else values[0]] if values else []
    plain = [part for part in parts if part not in literals and part is not NoneType]
    names += [getattr(part, "__name__", str(part)) for part in plain]
    return " or ".join(dict.fromkeys(names + ["null"] * (NoneType in parts)))


def _parts(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the annotation itself."""
    if get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _parts(part)
    else:
        yield annotation
