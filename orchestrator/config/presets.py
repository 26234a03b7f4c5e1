"""The papers' own settings, by METHOD/DATASET/BACKBONE, and a variant if a paper has several.

The files of `search_spaces/presets/` hold them, one file per paper. A file is a layer: settings; `source`; `readings`,
the decisions where a paper is ambiguous; `unstated`, the settings that no source states, which keep their default;
`where`, the places in the paper, its supplement or its released code that state settings (place -> settings).
`methods`, `datasets`, `backbones` and `variants` contain further layers, which apply to that name only and override
what is above them; of these four, a later one overrides an earlier one. A layer that has one of the four exists only
for the names in it (with a variant `null`: without a variant too). A layer that changes a setting says anew where it
stands.
"""

import io
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from orchestrator.config.files import SEARCH_SPACES, read_yaml
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError
from orchestrator.problems import Bare, Option, Problem, suggestion
from orchestrator.storage.outputs import Output, SettingValue

FOLDER = SEARCH_SPACES / "presets"
PRESET = Option("preset")
AXES = ("methods", "datasets", "backbones", "variants")


class PresetName(Output):
    name: str
    source: str


class PresetFacts(Output):
    name: str
    source: str
    settings: dict[str, SettingValue]
    where: dict[str, str]
    readings: dict[str, str]
    unstated: dict[str, str]
    defaults: dict[str, SettingValue]


@dataclass(frozen=True)
class Preset:
    """A paper's settings for one data set and backbone, and where each of them stands."""

    name: str
    source: str
    settings: dict[str, Any]
    where: dict[str, str]
    readings: dict[str, str]
    unstated: dict[str, str]


@cache
def presets() -> Mapping[str, Preset]:
    """All presets by name, sorted; InputError if two files have the same one."""
    by_name: dict[str, Preset] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        for preset in _of_file(path):
            if preset.name in by_name:
                raise InputError(f"{path}: {preset.name}: another file has a preset of this name")
            by_name[preset.name] = preset
    return dict(sorted(by_name.items()))


@cache
def presets_of(method: str) -> Mapping[str, Preset]:
    """Those of a method, sorted, from the files that name it: a look at a search reads no others."""
    every = (preset for path, text in _texts().items() if method in text for preset in _of_file(path))
    of_method = {preset.name: preset for preset in every if preset.settings["method"] == method}
    return dict(sorted(of_method.items()))


@cache
def _texts() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(FOLDER.glob("*.yaml"))}


@cache
def _of_file(path: Path) -> list[Preset]:
    return list(read_presets(path))


KINDS = (("method", "methods"), ("dataset", "data sets"), ("backbone", "backbones"), ("variant", "variants"))
"""The parts of a name, and their plurals."""


def find_preset(name: str, where: Option | str = PRESET) -> Preset:
    """The preset of a name; InputError says which part of the name is wrong and what would be right."""
    by_name = presets()
    if name in by_name:
        return by_name[name]
    names = [other.split("/") for other in by_name]
    parts = name.split("/")
    for place, (kind, kinds) in enumerate(KINDS):
        names = [other for other in names if other[:place] == parts[:place]]
        options = list(dict.fromkeys(other[place] for other in names if len(other) > place))
        example = f"for example {'/'.join(names[0])}"
        if place >= len(parts) or not parts[place]:
            form = "/".join(other.upper() for other, _ in KINDS[: len(names[0])])
            rule = f"should read {form}, {example} ({kinds}: {', '.join(options)})"
            raise InputError(Problem((where,), Bare(name), rule))
        if not options:
            rule = f"'{'/'.join(parts[place:])}' should be left out, {example}"
            raise InputError(Problem((where,), Bare(name), rule))
        if parts[place] not in options:
            of = f" of {'/'.join(parts[:place])}" if place else ""
            rule, hint = f"no presets{of} with {kind} '{parts[place]}'", suggestion(parts[place], options)
            raise InputError(Problem((where,), Bare(name), rule, hint))
    rule = f"'{'/'.join(parts[len(KINDS) :])}' should be left out, {example}"
    raise InputError(Problem((where,), Bare(name), rule))


def describe_preset(preset: Preset) -> PresetFacts:
    """A preset, with every other setting at its default."""
    settings = resolve_experiment(preset.settings, preset.name).flat()
    return PresetFacts(
        name=preset.name,
        source=preset.source,
        settings={key: settings[key] for key in preset.settings},
        where=preset.where,
        readings=preset.readings,
        unstated=preset.unstated,
        defaults={key: value for key, value in settings.items() if key not in preset.settings},
    )


def preset_text(preset: Preset) -> str:
    """The same as YAML; its `settings`, with where they stand, may be copied into a search file."""
    parts = {key: value for key, value in describe_preset(preset).plain.items() if value}
    defaults, settings, where = parts.pop("defaults"), parts.pop("settings"), parts.pop("where")
    head = {key: parts.pop(key) for key in ("name", "source")}
    lines = to_yaml({"settings": settings}, flow=False).splitlines()
    width = max(map(len, lines)) + 2
    header = [
        f"{line:<{width}}# {where[key]}" if (key := line.split(":")[0].strip()) in where else line for line in lines
    ]
    return "".join(
        (
            to_yaml(head, flow=False),
            *(f"{line}\n" for line in header),
            to_yaml(parts, flow=False) if parts else "",
            to_yaml({"defaults": defaults}, flow=None),
        )
    )


def to_yaml(content: Any, *, flow: bool | None) -> str:
    """Text that `read_yaml` reads; `flow` None: the innermost mappings in braces."""
    writer: Any = YAML(typ="safe", pure=True)
    writer.default_flow_style = flow
    writer.width = 100 if flow is None else 1000  # notes are single lines, settings in braces are wrapped
    writer.sort_base_mapping_type_on_output = False
    text = io.StringIO()
    writer.dump(content, text)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


# Reading ---------------------------------------------------------------------------------------------------


def read_presets(path: Path) -> Iterator[Preset]:
    """The presets of a file."""
    root = read_yaml(path)
    names = [list(root.get(axis, {})) for axis in AXES[:3]]
    for *base, variant in itertools.product(*names, dict.fromkeys([None, *_variants(root)])):
        layers = _layers(root, dict(zip(AXES, [*base, variant], strict=True)))
        if layers is not None:
            yield _preset(layers, [part for part in (*base, variant) if part is not None])


def _variants(layer: Mapping[str, Any]) -> Iterator[str | None]:
    yield from layer.get("variants", {})
    for axis in AXES:
        for inner in layer.get(axis, {}).values():
            yield from _variants(inner or {})


def _layers(layer: Mapping[str, Any], axes: Mapping[str, str | None]) -> list[Mapping[str, Any]] | None:
    """The layers that apply to a choice, from general to special; None if one of them does not exist for it."""
    every = _beneath(layer, axes)
    without = axes["variants"] is not None and not any("variants" in layer_above for layer_above in every or ())
    return None if without else every


def _beneath(layer: Mapping[str, Any], axes: Mapping[str, str | None]) -> list[Mapping[str, Any]] | None:
    layers = [layer]
    for axis in AXES:
        if axis in layer:
            if axes[axis] not in layer[axis]:
                return None
            inner = _beneath(layer[axis][axes[axis]] or {}, axes)
            if inner is None:
                return None
            layers += inner
    return layers


def _preset(layers: list[Mapping[str, Any]], parts: list[str]) -> Preset:
    source = ""
    settings: dict[str, Any] = dict(zip(("method", "dataset", "backbone"), parts, strict=False))
    notes: dict[str, dict[str, str]] = {"readings": {}, "unstated": {}}
    where: dict[str, str] = {}
    coming: set[str] = set()  # whose place is said, and whose value a later layer brings
    for layer in layers:
        values = {key: value for key, value in layer.items() if key not in (*AXES, *notes, "source", "where")}
        unstated = layer.get("unstated", {})
        place_of = {key: place for place, keys in layer.get("where", {}).items() for key in keys}
        where = {key: place for key, place in where.items() if key not in values or key in coming} | place_of
        coming = (coming | place_of.keys()) - values.keys()
        settings = {key: value for key, value in (settings | values).items() if key not in unstated}
        source = layer.get("source", source)
        notes["readings"] |= layer.get("readings", {})
        notes["unstated"] |= unstated
        notes["unstated"] = {key: why for key, why in notes["unstated"].items() if key not in values}
    stand = {key: where[key] for key in settings if key in where}
    return Preset("/".join(parts), source, settings, stand, **notes)
