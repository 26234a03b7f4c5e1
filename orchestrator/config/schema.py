"""The JSON schema of search files (draft 7), for editors: every key, setting and bound, each with its meaning.

It is made of the classes that check the files, and says what can be said of one key at a time or of the keys of one
method. What depends on several values (a range whose low is above its high, a batch that is too large) is left to the
program.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from orchestrator import parts
from orchestrator.config.algorithms import ALGORITHMS
from orchestrator.config.algorithms.hub import HUB_PATTERN
from orchestrator.config.intervals import EVERY, EVERY_TIME
from orchestrator.config.keys import KEYS
from orchestrator.config.limits import AUTO
from orchestrator.config.schedulers import SCHEDULERS
from orchestrator.config.search import FILE_KEYS, VALIDATION_METRICS, Budget, Search
from orchestrator.config.training import Training
from orchestrator.contract import FAMILIES
from orchestrator.data.augmentations import ANNOUNCED as RECIPES_ELSEWHERE
from orchestrator.data.augmentations import AUGMENTATIONS
from orchestrator.networks.backbones import BACKBONES
from orchestrator.networks.backbones.timm_models import TIMM
from orchestrator.plugins import Installed
from orchestrator.storage.costs import COSTS

DRAFT = "http://json-schema.org/draft-07/schema#"
SCHEMA_FILE = "search.schema.json"
"""The usual name of its file, which the first line of a search file names."""
COMMENT = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"
"""The line of a search file by which editors find the schema beside it."""


def search_schema(methods: Mapping[str, Installed]) -> dict[str, Any]:
    """The schema of search files with these methods."""
    training = properties_of(Training)
    for name, more in _of_tables().items():
        training[name] |= more
    definitions: dict[str, Any] = {
        "training": {"properties": training},
        "training_names": {"enum": ["method", *training]},
        "training_space": {"properties": _space_of(training)},
        "parameter": _parameter({}),
        "goal": _goal(),
    }
    rules = []
    for name, method in methods.items():
        method_properties = properties_of(method.fields)
        names = {"anyOf": [{"$ref": "#/definitions/training_names"}, {"enum": list(method_properties)}]}
        definitions[f"{name}_settings"] = {
            "allOf": [{"$ref": "#/definitions/training"}],
            "properties": method_properties,
            "propertyNames": names,
        }
        definitions[f"{name}_space"] = {
            "allOf": [{"$ref": "#/definitions/training_space"}],
            "properties": _space_of(method_properties),
            "propertyNames": names,
        }
        space = {"$ref": f"#/definitions/{name}_space"}
        searched = {"if": {"type": "array"}, "then": {"items": space}, "else": space}
        then = {"settings": {"$ref": f"#/definitions/{name}_settings"}, "space": searched}
        condition = {"properties": {"method": {"const": name}}, "required": ["method"]}
        rules.append({"if": condition, "then": {"properties": then}})
    keys = _keys(list(methods))
    return {
        "$schema": DRAFT,
        "title": "A search file of dml-orchestrator",
        "type": "object",
        "properties": {key: {**keys[key], "description": KEYS[key].meaning} for key in FILE_KEYS},
        "required": ["space"],
        "additionalProperties": False,
        "allOf": [
            {"anyOf": [{"required": ["method"]}, *_method_elsewhere()]},
            {
                "anyOf": [
                    {"required": ["num_trials"]},
                    {"required": ["budget"]},
                    {"properties": {"algorithm": {"const": "grid"}}, "required": ["algorithm"]},
                    {"properties": {"space": {"type": "array"}}},
                ]
            },
            {"not": {"required": ["objective", "objectives"]}},
            *rules,
        ],
        "definitions": definitions,
    }


def _of_tables() -> dict[str, dict[str, Any]]:
    """The values of settings whose fields take any text, and check it elsewhere."""
    backbones = [*BACKBONES, *parts.names("backbones", BACKBONES)]
    return {
        "backbone": {"anyOf": [{"enum": backbones}, {"type": "string", "pattern": f"^{TIMM}."}]},
        "augmentation": {"enum": [*AUGMENTATIONS, *RECIPES_ELSEWHERE]},
        "validate_every": {"pattern": f"^{EVERY.pattern}$"},
        "checkpoint_every": {"pattern": f"^{EVERY_TIME.pattern}$"},
        "schedule": {"anyOf": [{"type": ["string", "null"]}, _changes()]},
    }


def _changes() -> dict[str, Any]:
    """The changes of a training's schedule."""
    value = {"type": ["number", "null"]}
    properties = {"from": {"type": "integer", "minimum": 1}}
    change = {"type": "object", "properties": properties, "required": ["from"], "additionalProperties": value}
    return {"type": "array", "items": change | {"minProperties": 2}, "minItems": 1}


def _goal() -> dict[str, Any]:
    """An objective: a metric alone, or with its mode."""
    metric = {"enum": [*VALIDATION_METRICS, *COSTS]}
    properties = {"metric": metric, "mode": {"enum": ["max", "min"]}}
    return {"anyOf": [metric, {"type": "object", "properties": properties, "additionalProperties": False}]}


def _keys(methods: list[str]) -> dict[str, dict[str, Any]]:
    """The schema of each key, without its meaning."""
    of_families = [{"type": "string", "pattern": rf"^{family.prefix}/[A-Za-z_]\w*$"} for family in FAMILIES]
    method = {"anyOf": [{"enum": methods}, *of_families]}
    several = {"type": "array", "items": method, "minItems": 1, "uniqueItems": True}
    opened = {name: {"anyOf": [{"type": "null"}, _open_properties(name)]} for name in methods}
    mapped = {"type": "object", "properties": opened, "propertyNames": method, "minProperties": 1}
    choices = {"choices": {"anyOf": [several, mapped]}, "type": {"const": "categorical"}}
    searched = {"type": "object", "properties": choices, "required": ["choices"], "additionalProperties": False}
    space = {
        "type": "object",
        "properties": {"method": {"anyOf": [several, searched]}},
        "additionalProperties": {"$ref": "#/definitions/parameter"},
    }
    goal = {"$ref": "#/definitions/goal"}
    point = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}
    plain = properties_of(Search)
    properties = {key: plain.get(key, {}) for key in FILE_KEYS}
    return properties | {
        "description": {"type": "string"},
        "method": method,
        "dataset": {"type": "string", "minLength": 1},
        "settings": {"type": "object"},
        "space": {"anyOf": [space, {"type": "array", "items": {**space, "minProperties": 1}, "minItems": 1}]},
        "algorithm": {"anyOf": [{"enum": [AUTO, *ALGORITHMS]}, {"type": "string", "pattern": HUB_PATTERN}]},
        "budget": {"type": "object", "properties": properties_of(Budget), "additionalProperties": False},
        "constraints": {
            "type": "object",
            "properties": {
                name: {"type": "number", "exclusiveMinimum": 0, "description": cost.description}
                for name, cost in COSTS.items()
                if cost.limited
            },
            "additionalProperties": False,
        },
        "start_from": {"type": "array", "items": {"anyOf": [{"type": "string"}, point]}},
        "learn_from": {"type": "array", "items": {"anyOf": [{"type": "string"}, point]}},
        "scheduler": {"anyOf": [{"enum": [AUTO, *SCHEDULERS]}, *_schedulers()]},
        "objective": {"allOf": [goal]},
        "objectives": {"type": "array", "items": goal, "minItems": 2, "maxItems": 2},
    }


def _open_properties(method: str) -> dict[str, Any]:
    return {"type": "object", "allOf": [{"$ref": f"#/definitions/{method}_space"}]}


def _schedulers() -> Iterator[dict[str, Any]]:
    for name, kind in SCHEDULERS.items():
        yield {
            "type": "object",
            "properties": {"name": {"const": name}, **properties_of(kind)},
            "required": ["name"],
            "additionalProperties": False,
        }


def _method_elsewhere() -> Iterator[dict[str, Any]]:
    """The other places where a method may be named."""
    with_method = {"type": "object", "required": ["method"]}
    yield {"properties": {"settings": with_method}, "required": ["settings"]}
    yield {"properties": {"space": with_method}}
    yield {"properties": {"space": {"type": "array", "items": with_method}}}


def properties_of(kind: type[BaseModel]) -> dict[str, Any]:
    """Type, bounds, default and meaning of each field."""
    try:
        schema = kind.model_json_schema()
    except Exception:  # a type of a plugin's without a schema: the program checks its values
        return {name: {"description": field.description or ""} for name, field in kind.model_fields.items()}
    properties: dict[str, Any] = schema.get("properties", {})
    shared = schema.get("$defs", {})
    return {name: _plain(one, shared) for name, one in properties.items()}


def _plain(schema: Any, shared: Mapping[str, Any]) -> Any:
    """A field's schema without titles, and with what it refers to in its place."""
    if isinstance(schema, list):
        return [_plain(one, shared) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(shared[schema["$ref"].rpartition("/")[2]], shared)
    return {key: _plain(one, shared) for key, one in schema.items() if key != "title"}


def _space_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _parameter(schema) for name, schema in settings.items() if name != "method"}


def _parameter(setting: Mapping[str, Any]) -> dict[str, Any]:
    """What a space may say of a setting with this schema: a list of choices, choices with spaces of their own, or a
    range within its bounds."""
    value = {key: item for key, item in setting.items() if key not in ("default", "description")}
    plain = {"type": ["string", "number", "boolean", "null"]}
    end = _number(value)
    choices = {"type": "array", "items": value or plain, "minItems": 1, "uniqueItems": True}
    branches = {"type": "object", "minProperties": 1}
    chosen = {"choices": {"anyOf": [choices, branches]}, "type": {"const": "categorical"}, "prior": plain}
    schema: dict[str, Any] = {
        "anyOf": [
            choices,
            {
                "type": "object",
                "properties": chosen,
                "required": ["choices"],
                "additionalProperties": False,
            },
        ]
    }
    if end is not None:
        step = {"type": "number", "exclusiveMinimum": 0}
        ends = {"low": end, "high": end, "step": step, "log": {"type": "boolean"}, "type": {"enum": ["int", "float"]}}
        ends["prior"] = end
        ranged = {"type": "object", "properties": ends, "required": ["low", "high"], "additionalProperties": False}
        schema["anyOf"].append(ranged)
    if "description" in setting:
        schema["description"] = setting["description"]
    return schema


def _number(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema of an end of a range of such values; None if they are no numbers."""
    if not value:
        return {"type": "number"}
    for one in value.get("anyOf", [value]):
        if one.get("type") in ("integer", "number"):
            bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
            return {"type": one["type"], **{key: one[key] for key in bounds if key in one}}
    return None
