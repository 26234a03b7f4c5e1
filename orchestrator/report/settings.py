"""The settings that a search varied: what was tried of each, and whether the winner is at an end of its range."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from pydantic import ValidationError

from orchestrator.config.labels import label_of
from orchestrator.config.presets import presets_of
from orchestrator.config.search import recorded_search
from orchestrator.config.space import Parameter, Space
from orchestrator.config.training import Training
from orchestrator.errors import InputError
from orchestrator.plugins import find_installed
from orchestrator.report.standing import without_repeats
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import value_text

EDGE = 0.05
"""The winner is at the edge of a range within this share of it."""


@dataclass(frozen=True)
class Marked:
    """A value that a paper or a method gives."""

    value: Any
    source: str


@dataclass(frozen=True)
class Searched:
    """One setting of the space, and what was tried of it."""

    key: str
    parameter: Parameter | None
    values: tuple[Any, ...]
    """All values that trials had, each once, sorted if they are numbers."""
    best: Any
    edge: Literal["low", "high"] | None
    """At which end of a range that could be wider the winner is."""
    marked: Marked | None
    moot: str = ""
    """Why the winner's place at an end of the range, if it is there, says nothing of that end: a tie, or chance."""
    idle: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The trials in which it has no effect, each with the cause."""
    label: str = ""
    """What it is called in words; empty where the key says it."""

    @property
    def full_label(self) -> str:
        """`learning rate (lr)`"""
        return f"{self.label} ({self.key})" if self.label else self.key

    @cached_property
    def numeric(self) -> bool:
        """Whether its values are numbers; asked for each drawn trial, of which a search may have thousands."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @property
    def varies(self) -> bool:
        """Whether trials differ in it."""
        return len(self.values) > 1

    @property
    def log(self) -> bool:
        """Whether it is shown on a logarithmic axis."""
        return self.parameter is not None and self.parameter.log

    def place(self, value: float) -> float:
        """The position of a value in its range, 0 to 1; logarithmic if it is searched so."""
        if self.parameter is None or self.parameter.low == self.parameter.high:
            return 0.5
        low, high = self.parameter.low, self.parameter.high
        return math.log(value / low) / math.log(high / low) if self.log else (value - low) / (high - low)

    @property
    def range_text(self) -> str:
        """`0.1 to 0.35`, `1e-05 to 0.01 (logarithmic)`, `0.5, 1, 2`"""
        return self._range_text(" (logarithmic)")

    def _range_text(self, logarithmic: str) -> str:
        if self.parameter is not None and self.parameter.kind != "categorical":
            ends = f"{value_text(self.parameter.low)} to {value_text(self.parameter.high)}"
            return ends + (logarithmic if self.log else "")
        choices = self.parameter.choices if self.parameter is not None else self.values
        return ", ".join(value_text(choice) for choice in choices)

    @property
    def range_in_brackets(self) -> str:
        """The same where it stands in brackets already."""
        return self._range_text(", logarithmic")


def space_of(ledger: Ledger) -> Space | None:
    """The searched space; None if this version, or this machine's plugins, do not understand it."""
    try:
        return recorded_search(ledger.config).space
    except (ValidationError, InputError):
        return None


def searched_settings(
    ledger: Ledger,
    space: Space | None,
    winner: TrialRecord | None,
    settings: Mapping[str, Any],
    by_trial: Mapping[str, Mapping[str, str]],
) -> Iterator[Searched]:
    """What was tried of each setting; `by_trial` names the settings without effect (`idle_by_trial`)."""
    by_key: dict[str, Parameter] = {}
    for parameter in space.parameters() if space is not None else ():
        parameters = by_key.setdefault(parameter.key, parameter)
        if parameters is not parameter:  # in several alternatives or branches: everything that any of them allows
            by_key[parameter.key] = _join(parameters, parameter)
    methods = dict.fromkeys(
        str(trial.settings["method"]) for trial in ledger.trials.values() if "method" in trial.settings
    )
    results = {trial.trial_id: trial.best for trial in without_repeats(ledger)}
    tried = list(dict.fromkeys(key for trial in ledger.trials.values() if not trial.copied for key in trial.params))
    for key in dict.fromkeys([*by_key, *tried]):
        if key == "seed" and ledger.over_seeds:  # it is no setting to choose: points are compared over it
            continue
        distinct = {repr(t.params[key]): t.params[key] for t in ledger.trials.values() if key in t.params}
        values = list(distinct.values())
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        values.sort(key=(lambda value: value) if numeric else str)
        best = None if winner is None else winner.params.get(key)
        edge = None if best is None or len(values) < 2 else edge_of(key, by_key.get(key), best, settings)
        idle = {name: reasons[key] for name, reasons in by_trial.items() if key in reasons}
        marked, label = _mark(key, ledger, settings), label_of(key, methods)
        setting = Searched(key, by_key.get(key), tuple(values), best, edge, marked, idle=idle, label=label)
        moot = moot_of(ledger, setting, winner, edge, results, settings) if winner and edge else ""
        yield replace(setting, edge=None, moot=moot) if moot else setting


def place_text(setting: Searched, edge: str) -> str:
    return f"{setting.key} = {value_text(setting.best)} is at the {edge} end of its range"


def _join(one: Parameter, other: Parameter) -> Parameter:
    if "categorical" in (one.kind, other.kind):
        choices = tuple(dict.fromkeys([*one.choices, *other.choices]))
        return Parameter(one.key, one.path, "categorical", choices=choices)
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Parameter(one.key, one.path, one.kind, low=low, high=high, log=one.log and other.log)


def edge_of(
    key: str, parameter: Parameter | None, best: Any, settings: Mapping[str, Any]
) -> Literal["low", "high"] | None:
    """The end of its range at which a value is, if the range could be extended there."""
    if parameter is None or isinstance(best, bool | str) or best is None:
        return None
    low, high = parameter.low, parameter.high
    if parameter.kind == "categorical":
        numbers = [c for c in parameter.choices if isinstance(c, int | float) and not isinstance(c, bool)]
        if len(numbers) < len(parameter.choices):
            return None
        low, high = min(numbers), max(numbers)
        place = 0.0 if best == low else 1.0 if best == high else 0.5
    elif low == high:
        return None
    else:
        place = (best - low) / (high - low)
        if parameter.log:
            place = math.log(best / low) / math.log(high / low)
    end: Literal["low", "high"] | None = "low" if place < EDGE else "high" if place > 1 - EDGE else None
    at = low if end == "low" else high
    return end if end and not is_bound(key, at, settings) else None


def moot_of(
    ledger: Ledger,
    setting: Searched,
    best: TrialRecord,
    edge: Literal["low", "high"],
    results: Mapping[str, float | None],
    settings: Mapping[str, Any],
) -> str:
    """Why the best trial's place at an end of a range says nothing of the range: the setting has no effect there, or a
    trial that is not at this end has exactly the same result. Empty if it does say something."""
    key = setting.key
    place = f"{place_text(setting, edge)}, but"
    if because := setting.idle.get(best.trial_id):
        return f"{place} has no effect there (with {because})"
    for name, result in results.items():
        value = ledger.trials[name].params.get(key)
        if result != results[best.trial_id] or value is None:
            continue
        if edge_of(key, setting.parameter, value, settings) != edge:
            return f"{place} trial {name}, with {value_text(value)}, ties with it exactly"
    return ""


def limits(key: str, settings: Mapping[str, Any]) -> dict[str, float]:
    """What a setting allows, by pydantic's names: `ge`, `gt`, `le`, `lt`."""
    try:
        fields = {**Training.model_fields, **find_installed(str(settings.get("method"))).fields.model_fields}
    except InputError:
        return {}
    rules = fields[key].metadata if key in fields else ()
    return {name: limit for rule in rules for name in BOUNDS if (limit := getattr(rule, name, None)) is not None}


def is_bound(key: str, value: float, settings: Mapping[str, Any]) -> bool:
    """Whether a setting allows nothing beyond this value."""
    return value in limits(key, settings).values()


BOUNDS = ("ge", "gt", "le", "lt")


def _mark(key: str, ledger: Ledger, settings: Mapping[str, Any]) -> Marked | None:
    """The value of the preset for this data set and backbone, else of the search's preset, else the default."""
    place = "/".join(str(settings.get(part)) for part in ("method", "dataset", "backbone"))
    own = str(ledger.config.get("preset"))
    by_name = {**presets_of(own.partition("/")[0]), **presets_of(str(settings.get("method")))}
    names = [name for name in sorted(by_name) if name == place or name.startswith(f"{place}/")]
    for name in [own, *names]:
        if name in by_name and key in by_name[name].settings:
            return Marked(by_name[name].settings[key], f"paper ({name})")
    try:
        info = find_installed(str(settings.get("method"))).fields.model_fields.get(key)
    except InputError:
        return None
    if info is None or info.default is None or info.is_required():
        return None
    return Marked(info.default, f"default of {settings.get('method')}")
