"""The settings that a search varied: what was tried of each, and how much it mattered."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from pydantic import ValidationError

from orchestrator.config.labels import label_of
from orchestrator.config.presets import presets
from orchestrator.config.search import Search
from orchestrator.config.space import Parameter, Space
from orchestrator.config.training import Training
from orchestrator.errors import InputError
from orchestrator.plugins import find_installed
from orchestrator.report.standing import Comparable
from orchestrator.storage.ledger import Ledger, TrialRecord
from orchestrator.text import counted, value_text

EDGE = 0.05
"""The winner is at the edge of a range within this share of it."""
CROWD, CORNER = 4, 0.2
"""A range is too wide if this many of the best trials, or a tenth of all if these are more, lie within this share of
it at one end."""
ENOUGH_TO_CROWD = 10
"""The minimum number of results for that."""


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
    """Why the winner's place at an end of the range, if it is there, says nothing of that end: a tie, or no effect."""
    idle: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The trials in which it has no effect, each with the cause."""
    label: str = ""
    """What it is called in words; empty where the key says it."""

    @property
    def named(self) -> str:
        """`learning rate (lr)`"""
        return f"{self.label} ({self.key})" if self.label else self.key

    @cached_property
    def numeric(self) -> bool:
        """Whether its values are numbers; asked for each drawn trial, of which a search may have thousands."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @property
    def varied(self) -> bool:
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
        if self.parameter is not None and self.parameter.kind != "categorical":
            ends = f"{value_text(self.parameter.low)} to {value_text(self.parameter.high)}"
            return ends + (" (logarithmic)" if self.log else "")
        choices = self.parameter.choices if self.parameter is not None else self.values
        return ", ".join(value_text(choice) for choice in choices)

    @property
    def range_in_brackets(self) -> str:
        """The same where it stands in brackets already."""
        return self.range_text.replace(" (logarithmic)", ", logarithmic")


def space_of(ledger: Ledger) -> Space | None:
    """The searched space; None if this version, or this machine's plugins, do not understand it."""
    try:
        return Search.model_validate(ledger.config).space
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
        known = by_key.setdefault(parameter.key, parameter)
        if known is not parameter:  # in several alternatives or branches: everything that any of them allows
            by_key[parameter.key] = _joined(known, parameter)
    methods = dict.fromkeys(
        str(trial.settings["method"]) for trial in ledger.trials.values() if "method" in trial.settings
    )
    results = {trial.trial_id: trial.best for trial in ledger.finished()}
    tried = list(dict.fromkeys(key for trial in ledger.trials.values() for key in trial.params))
    for key in dict.fromkeys([*by_key, *tried]):
        if key == "seed" and ledger.over_seeds:  # it is no setting to choose: points are compared over it
            continue
        found = {repr(t.params[key]): t.params[key] for t in ledger.trials.values() if key in t.params}
        values = list(found.values())
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        values.sort(key=(lambda value: value) if numeric else str)
        best = None if winner is None else winner.params.get(key)
        edge = None if best is None or len(values) < 2 else _edge(key, by_key.get(key), best, settings)
        idle = {name: reasons[key] for name, reasons in by_trial.items() if key in reasons}
        marked, label = _marked(key, ledger, settings), label_of(key, methods)
        setting = Searched(key, by_key.get(key), tuple(values), best, edge, marked, idle=idle, label=label)
        moot = _moot(ledger, setting, winner, edge, results, settings) if winner and edge else ""
        yield replace(setting, edge=None, moot=moot) if moot else setting


def _joined(one: Parameter, other: Parameter) -> Parameter:
    if "categorical" in (one.kind, other.kind):
        choices = tuple(dict.fromkeys([*one.choices, *other.choices]))
        return Parameter(one.key, one.path, "categorical", choices=choices)
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Parameter(one.key, one.path, one.kind, low=low, high=high, log=one.log and other.log)


def _edge(
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
    return end if end and not _is_bound(key, at, settings) else None


def _moot(
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
    place = f"{key} = {value_text(best.params[key])} is at the {edge} end of its range, but"
    if because := setting.idle.get(best.trial_id):
        return f"{place} has no effect there (with {because})"
    for name, result in results.items():
        value = ledger.trials[name].params.get(key)
        if result != results[best.trial_id] or value is None:
            continue
        if _edge(key, setting.parameter, value, settings) != edge:
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


def _is_bound(key: str, value: float, settings: Mapping[str, Any]) -> bool:
    """Whether a setting allows nothing beyond this value."""
    return value in limits(key, settings).values()


BOUNDS = ("ge", "gt", "le", "lt")


def _marked(key: str, ledger: Ledger, settings: Mapping[str, Any]) -> Marked | None:
    """The value of the preset for this data set and backbone, else of the search's preset, else the default."""
    place = "/".join(str(settings.get(part)) for part in ("method", "dataset", "backbone"))
    known = presets()
    names = [name for name in known if name == place or name.startswith(f"{place}/")]
    for name in [str(ledger.config.get("preset")), *names]:
        if name in known and key in known[name].settings:
            return Marked(known[name].settings[key], f"paper ({name})")
    try:
        info = find_installed(str(settings.get("method"))).fields.model_fields.get(key)
    except InputError:
        return None
    if info is None or info.default is None or info.is_required():
        return None
    return Marked(info.default, f"default of {settings.get('method')}")


def widen(
    ledger: Ledger,
    winner: TrialRecord | None,
    searched: Sequence[Searched],
    comparable: Comparable,
    settings: Mapping[str, Any],
) -> str:
    """Where the winner, or the leader when all had the same age, is at the end of a range."""
    if winner is None:
        return f"No result{ledger.yet}."
    if not searched:
        return "Nothing was searched."
    if not any(setting.varied for setting in searched):
        return "One value of each setting was tried, which says nothing about the ranges."
    narrow = [found for setting in searched if (found := crowd(ledger, setting, comparable, settings))]
    answer = _wider(ledger, winner, searched, comparable, settings)
    return answer + "".join(f" But a narrower one would do: {found.text}" for found in narrow)


def _wider(
    ledger: Ledger,
    winner: TrialRecord,
    searched: Sequence[Searched],
    comparable: Comparable,
    settings: Mapping[str, Any],
) -> str:
    answer = _of_the_winner(ledger, winner, searched, comparable)
    early = ledger.trials[next(iter(comparable.values), winner.trial_id)]
    if comparable.age is None or early is winner:
        return answer
    places = [(s, early.params[s.key], s.parameter) for s in searched if s.key in early.params]
    found = [(s, best, _edge(s.key, parameter, best, settings)) for s, best, parameter in places]
    others = [
        _beyond(s, best, edge)
        for s, best, edge in found
        if edge and edge != s.edge
        if not _moot(ledger, s, early, edge, comparable.values, settings)
    ]
    if not others:
        return answer
    after = counted(comparable.age, "validation")
    return f"{answer} But after {after}, which all had, trial {early.trial_id} led, and would go {'; '.join(others)}."


def _of_the_winner(ledger: Ledger, winner: TrialRecord, searched: Sequence[Searched], comparable: Comparable) -> str:
    """What the best trial's place says about the ranges."""
    ended = ledger.finished()
    if len(ended) == 1:
        return "There is one result, which says nothing about the ranges."
    moot = "; ".join(setting.moot for setting in searched if setting.moot)
    if ends := [_beyond(s, s.best, s.edge) for s in searched if s.edge]:
        return f"Yes: {'; '.join(ends)}." + (f" The results do not show it for others: {moot}." if moot else "")
    if moot:
        return f"The results do not show it: {moot}."
    tied = next((t for t in ended if t is not winner and t.best == winner.best and t.params != winner.params), None)
    equal = "" if tied is None else f" Trials {winner.trial_id} and {tied.trial_id}, the two best, tie exactly."
    limits, results = _at_limits(searched), len(comparable.values)
    ranges = [s for s in searched if _is_range(s)]
    if not ranges or max(len(_effective(ledger, s, comparable)) for s in ranges) >= ENOUGH_TO_CROWD:
        return f"No: the best point lies inside every range{f', or at {limits}' if limits else ''}.{equal}"
    return (
        f"No end of a range was reached{f', only {limits}' if limits else ''}; {counted(results, 'result')} "
        f"{'is' if results == 1 else 'are'} too few to tell whether the best ones crowd at an end "
        f"({ENOUGH_TO_CROWD} are needed).{equal}"
    )


def _is_range(setting: Searched) -> bool:
    """Whether it was searched between two ends."""
    parameter = setting.parameter
    return parameter is not None and parameter.kind != "categorical" and parameter.low != parameter.high


def _effective(ledger: Ledger, setting: Searched, comparable: Comparable) -> list[tuple[Any, float]]:
    """The setting's value and the result of each trial in which it has an effect, best first."""
    trials = ((ledger.trials[name], result) for name, result in comparable.values.items() if name not in setting.idle)
    return [(t.params[setting.key], result) for t, result in trials if setting.key in t.params]


def _at_limits(searched: Sequence[Searched]) -> str:
    """`the setting's own limit (alpha 0)`: where nothing lies beyond the end that the best value is at; else empty."""
    found = [s for s in searched if _is_range(s) and s.parameter and s.best in (s.parameter.low, s.parameter.high)]
    return f"the setting's own limit ({', '.join(f'{s.key} {value_text(s.best)}' for s in found)})" if found else ""


def _beyond(setting: Searched, best: Any, edge: str | None) -> str:
    """`delta above 0.35 (best: 0.349 in 0.1 to 0.35)`"""
    parameter, end = setting.parameter, best
    if parameter is not None and parameter.kind != "categorical":
        end = parameter.low if edge == "low" else parameter.high
    side = "below" if edge == "low" else "above"
    return f"{setting.key} {side} {value_text(end)} (best: {value_text(best)} in {setting.range_in_brackets})"


@dataclass(frozen=True)
class Crowd:
    """The best trials of a range, which lie together at one of its ends, and the part of it to search instead."""

    setting: Searched
    count: int
    of: int
    end: Literal["low", "high"]
    low: float
    high: float
    at_limit: bool
    """Whether that end is the setting's own limit."""
    values: tuple[float, ...]
    """Of the setting, in these trials, best first."""

    @property
    def logarithmic(self) -> bool:
        """Whether a logarithmic scale may be right: the end is a limit that numbers come close to."""
        kind = None if self.setting.parameter is None else self.setting.parameter.kind
        return self.end == "low" and self.at_limit and not self.setting.log and kind == "float"

    @property
    def text(self) -> str:
        """What to search instead, in a sentence or two."""
        key, at = self.setting.key, self.low if self.end == "low" else self.high
        limit = f", where {value_text(at)} is the setting's own limit" if self.at_limit else ""
        logarithmic = ", or on a logarithmic scale from above it" if self.logarithmic else ""
        return (
            f"the best {self.count} of {self.of} trials have {key} in the "
            f"{'lowest' if self.end == 'low' else 'highest'} fifth of {self.setting.range_text}{limit}. Search {key} "
            f"from {value_text(self.low)} to {value_text(self.high)}{logarithmic}."
        )


def crowd(ledger: Ledger, setting: Searched, comparable: Comparable, settings: Mapping[str, Any]) -> Crowd | None:
    """Where the best trials crowd at one end of a range; None where they do not.

    The best CROWD trials, or the best tenth, at equal age, lie in the outer fifth of the range. If trials are spread
    evenly over a range without effect, the probability of that is 2 * 0.2 ** 4 = 0.3%.
    """
    parameter = setting.parameter
    if parameter is None or not _is_range(setting) or setting.edge or setting.moot:
        return None
    ranked = _effective(ledger, setting, comparable)
    if len(ranked) < ENOUGH_TO_CROWD or len({setting.place(value) for value, _ in ranked}) < CROWD:
        return None
    last = ranked[max(CROWD, len(ranked) // 10) - 1][1]
    count = max(place for place, (_, result) in enumerate(ranked, start=1) if result == last)  # including ties
    values = tuple(value for value, _ in ranked[:count])
    places = [setting.place(value) for value in values]
    end: Literal["low", "high"]
    if max(places) <= CORNER:
        end = "low"
    elif min(places) >= 1 - CORNER:
        end = "high"
    else:
        return None
    low, high = parameter.low, parameter.high
    if setting.log:
        corner = low * (high / low) ** (CORNER if end == "low" else 1 - CORNER)
    else:
        corner = low + (high - low) * (CORNER if end == "low" else 1 - CORNER)
    corner = float(f"{corner:.3g}")
    if parameter.kind == "int":
        corner = math.ceil(corner) if end == "low" else math.floor(corner)
    at_limit = _is_bound(setting.key, low if end == "low" else high, settings)
    low, high = (low, corner) if end == "low" else (corner, high)
    return Crowd(setting, count, len(ranked), end, low, high, at_limit, values)
