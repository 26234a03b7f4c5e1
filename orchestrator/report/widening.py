"""Whether a range should be wider or narrower: where the objective gets better towards an end of it beyond chance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.report.evidence import Evidence
from orchestrator.report.settings import Searched, edge_of, is_bound, moot_of, place_text
from orchestrator.report.standing import Comparable, without_repeats
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import pluralize, value_text

CROWD, CORNER = 4, 0.2
"""A range is too wide if this many of the best trials, or a tenth of all if these are more, lie within this share of
it at one end."""
ENOUGH_TO_CROWD = 10
"""The minimum number of results for that."""


def beyond_chance(searched: Sequence[Searched], evidence: Evidence) -> tuple[Searched, ...]:
    """The settings; of their edges only those towards which the objective gets better beyond chance: of two values one
    is always the best, and the winner is at an end of a range without effect in a tenth of searches."""
    return tuple(
        setting
        if setting.edge is None or evidence.towards(setting.key, setting.edge)
        else replace(
            setting, edge=None, moot=f"{place_text(setting, setting.edge)}, but {evidence.why_not(setting.key)}"
        )
        for setting in searched
    )


def suggest_wider(
    ledger: Ledger,
    winner: TrialRecord | None,
    searched: Sequence[Searched],
    comparable: Comparable,
    evidence: Evidence,
    settings: Mapping[str, Any],
) -> str:
    """Where the winner, or the leader when all had the same age, is at the end of a range."""
    if winner is None:
        return f"No result{ledger.yet}."
    if not searched:
        return "Nothing was searched."
    if not any(setting.varies for setting in searched):
        return "One value of each setting was tried, which says nothing about the ranges."
    narrow = [crowded for setting in searched if (crowded := crowd(ledger, setting, comparable, evidence, settings))]
    answer = _wider(ledger, winner, searched, comparable, evidence, settings)
    return answer + "".join(f" But a narrower one would do: {crowded.text}" for crowded in narrow)


def _wider(
    ledger: Ledger,
    winner: TrialRecord,
    searched: Sequence[Searched],
    comparable: Comparable,
    evidence: Evidence,
    settings: Mapping[str, Any],
) -> str:
    answer = _of_the_winner(ledger, winner, searched, comparable)
    early = ledger.trials[next(iter(comparable.values), winner.trial_id)]
    if comparable.age is None or early is winner:
        return answer
    places = [(s, early.params[s.key], s.parameter) for s in searched if s.key in early.params]
    edges = [(s, best, edge_of(s.key, parameter, best, settings)) for s, best, parameter in places]
    others = [
        _beyond(s, best, edge)
        for s, best, edge in edges
        if edge and edge != s.edge and evidence.towards(s.key, edge)
        if not moot_of(ledger, s, early, edge, comparable.values, settings)
    ]
    if not others:
        return answer
    after = pluralize(comparable.age, "validation")
    return f"{answer} But after {after}, which all had, trial {early.trial_id} led, and would go {'; '.join(others)}."


def _of_the_winner(ledger: Ledger, winner: TrialRecord, searched: Sequence[Searched], comparable: Comparable) -> str:
    """What the best trial's place says about the ranges."""
    ended = without_repeats(ledger)
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
        f"No end of a range was reached{f', only {limits}' if limits else ''}; {pluralize(results, 'result')} "
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
    at_limit = [s for s in searched if _is_range(s) and s.parameter and s.best in (s.parameter.low, s.parameter.high)]
    return (
        f"the setting's own limit ({', '.join(f'{s.key} {value_text(s.best)}' for s in at_limit)})" if at_limit else ""
    )


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


def crowd(
    ledger: Ledger, setting: Searched, comparable: Comparable, evidence: Evidence, settings: Mapping[str, Any]
) -> Crowd | None:
    """Where the best trials crowd at one end of a range, to which the objective gets better; None where they do not.

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
    if not evidence.towards(setting.key, end):
        return None
    low, high = parameter.low, parameter.high
    if setting.log:
        corner = low * (high / low) ** (CORNER if end == "low" else 1 - CORNER)
    else:
        corner = low + (high - low) * (CORNER if end == "low" else 1 - CORNER)
    corner = float(f"{corner:.3g}")
    if parameter.kind == "int":
        corner = math.ceil(corner) if end == "low" else math.floor(corner)
    at_limit = is_bound(setting.key, low if end == "low" else high, settings)
    low, high = (low, corner) if end == "low" else (corner, high)
    return Crowd(setting, count, len(ranked), end, low, high, at_limit, values)
