"""Descriptions of methods and settings."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from orchestrator.config.presets import presets_of
from orchestrator.plugins import Installed
from orchestrator.report.method_costs import method_costs


def describe_method(method: Installed) -> dict[str, Any]:
    """A method's name, documentation and hyperparameters, as plain values."""
    return {
        "name": method.name,
        "summary": method.documentation.splitlines()[0] if method.documentation else "",
        "paper": method.paper,
        "documentation": method.documentation,
        "latex": method.latex,
        "needs_validation": method.needs_validation,
        "sampler": method.sampler,
        "hyperparameters": describe_settings(method.fields),
        "presets": presets_of(method.name),
        "costs": {str(size): cost._asdict() for size, cost in method_costs().of.get(method.name, {}).items()},
    }


SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
"""Of pydantic's bounds, by their attribute."""


def describe_settings(settings: type[BaseModel]) -> list[dict[str, Any]]:
    """Name, type, default, range and description of each setting, as plain values."""
    rows = []
    for name, info in settings.model_fields.items():
        bounds = [
            f"{sign} {getattr(bound, attribute)}"
            for bound in info.metadata
            for attribute, sign in SIGNS.items()
            if hasattr(bound, attribute)
        ]
        rows.append(
            {
                "name": name,
                "type": _type(info.annotation),
                "default": info.default,
                "range": ", ".join(bounds),
                "description": info.description or "",
            }
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
