"""What a search found out: which point won, how sure that is, what mattered, and what to be wary of.

    ledger ──> Findings ──> note in the tracker (here), page (page.py), tables (report.py)

All of it comes from the journal's ledger alone, so that it can be asked of a search that runs, stopped, or ended.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from orchestrator.data.catalog import datasets
from orchestrator.errors import InputError
from orchestrator.ledger import (
    Ledger,
    Repeated,
    TrialRecord,
    counted,
    params_text,
    repeated_tests,
    value_columns,
    value_text,
)
from orchestrator.method import find_method
from orchestrator.presets import presets
from orchestrator.published import Beside, beside
from orchestrator.significance import Difference, between_confirmed, how_tested
from orchestrator.spec import VALIDATE_EVERY, Parameter, Search, Space, Training, resolve_experiment
from orchestrator.standing import side_by_side, standing
from orchestrator.study import importances

HEADLINES = ("map_at_r", "recall_at_1")
"""The metrics of a test that are told first."""
PAPER_METRICS = ("recall_at_1", "map_at_r")
"""Those that papers tell first."""
ENOUGH_TRIALS = 10
MOST_TRIALS = 200
"""The forests see so many at most: their time grows faster than the trials."""
TRIALS_PER_SETTING = 4
"""With fewer trials, or fewer for each searched setting, importances would be noise."""
EDGE = 0.05
"""The winner is at the edge of a range within this share of it."""
RISING = 0.01
"""The objective still rises if the last fifth of the validations gained this share of it."""
TRIAL_LINK = "trial:"
"""Links to trials in a note go here; the tracker puts the addresses of their runs in."""
NOTE_CHARACTERS = 3900
"""Of at most 5,000: links to runs are longer than their names."""
LEADERS = 10
STATE_ORDER = ("done", "pruned", "running", "interrupted", "failed")


@dataclass(frozen=True)
class Importances:
    """Each setting's share of the objective's variance, or why there is none."""

    shares: Mapping[str, tuple[float, float]]
    """Mean and deviation, largest first."""
    basis: str
    """What was explained, in words; or why nothing could be."""


@dataclass(frozen=True)
class Comparable:
    """Trials' values after equally much training: one that was stopped early would look bad for its age."""

    values: Mapping[str, float]
    """By trial, best first."""
    basis: str
    """Whose values they are, in words."""
    age: int | None
    """After so many validations; None where all of them trained to their end."""


@dataclass(frozen=True)
class Marked:
    """A value that a paper, or a method, stands for."""

    value: Any
    source: str


@dataclass(frozen=True)
class Searched:
    """One setting of the space, and what was tried of it."""

    key: str
    parameter: Parameter | None
    values: tuple[Any, ...]
    """All values that trials had, each once, sorted where they are numbers."""
    best: Any
    edge: Literal["low", "high"] | None
    """Where the winner sits at the end of a range that could be wider."""
    marked: Marked | None

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @property
    def varied(self) -> bool:
        """Whether trials differ in it."""
        return len(self.values) > 1

    @property
    def log(self) -> bool:
        """Whether it is looked at on a logarithmic axis."""
        return self.parameter is not None and self.parameter.log

    @property
    def range_text(self) -> str:
        """`0.1 to 0.35`, `1e-05 to 0.01 (logarithmic)`, `0.5, 1, 2`"""
        if self.parameter is not None and self.parameter.kind != "categorical":
            ends = f"{value_text(self.parameter.low)} to {value_text(self.parameter.high)}"
            return ends + (" (logarithmic)" if self.log else "")
        choices = self.parameter.choices if self.parameter is not None else self.values
        return ", ".join(value_text(choice) for choice in choices)


@dataclass(frozen=True)
class Findings:
    """The answers. `verdict` is two lines, best first; `warnings` are whole sentences."""

    ledger: Ledger
    winner: TrialRecord | None
    settings: Mapping[str, Any]
    """All settings of the winner; of the first trial before there is one."""
    searched: tuple[Searched, ...]
    comparable: Comparable
    importances: Importances
    verdict: tuple[str, str]
    certainty: str
    differences: tuple[Difference, ...]
    """Between the points that were trained again, test by test over their common seeds."""
    widen: str
    warnings: tuple[str, ...]
    published: tuple[Beside, ...]
    distance: str
    """How far the test is from the closest published row."""
    test: Mapping[str, tuple[float, float | None]]
    """The winner's test metrics; mean and deviation where they are of several seeds."""
    tested: Mapping[str, str]
    """The same as text, with their interval."""
    command: str | None
    """Trains the winner again."""
    confused: str = ""
    """Which classes its model confuses most; empty where that is not known."""

    @classmethod
    def of(cls, ledger: Ledger, confused: str = "") -> "Findings":
        """What a ledger says so far; `confused` is what the model's own insight does."""
        winner = ledger.winner()
        anyone = winner or next(iter(ledger.everyone()), None)
        settings = {} if anyone is None else anyone.settings
        space = _space(ledger)
        searched = tuple(_searched(ledger, space, winner, settings))
        comparable = _comparable(ledger, searched)
        shares = _importances(ledger, space, searched, comparable)
        tested, test = _tested(ledger, winner), _test(ledger, winner)
        published = tuple(beside(settings, [*test, *PAPER_METRICS]))
        between = between_confirmed(ledger)
        return cls(
            ledger=ledger,
            winner=winner,
            settings=settings,
            searched=searched,
            comparable=comparable,
            importances=shares,
            verdict=(_first_line(ledger, winner), _second_line(ledger, tested)),
            certainty=_certainty(ledger, winner, between),
            differences=tuple(between),
            widen=_widen(ledger, winner, searched, comparable, settings),
            warnings=tuple(_warnings(ledger, winner, searched, between)),
            published=published,
            distance=_distance(published, test, settings),
            test=test,
            tested=tested,
            command=_command(winner),
            confused=confused,
        )

    @property
    def seconds(self) -> float:
        """Of all trainings together."""
        return sum(trial.seconds for trial in self.ledger.everyone())

    @property
    def epochs_per_validation(self) -> float | None:
        """None where validations are counted in steps."""
        match = VALIDATE_EVERY.fullmatch(str(self.settings.get("validate_every", "")))
        return float(match[1]) if match and match[2] == "epoch" else None


# The space ---------------------------------------------------------------------------------------------------


def _space(ledger: Ledger) -> Space | None:
    """The searched space; None if this version, or this machine's plugins, do not understand it."""
    try:
        return Search.model_validate(ledger.config).space
    except (ValidationError, InputError):
        return None


def _searched(
    ledger: Ledger, space: Space | None, winner: TrialRecord | None, settings: Mapping[str, Any]
) -> Iterator[Searched]:
    by_key: dict[str, Parameter] = {}
    for parameter in space.parameters() if space is not None else ():
        known = by_key.setdefault(parameter.key, parameter)
        if known is not parameter:  # in several alternatives or branches: all that any of them allows
            by_key[parameter.key] = _joined(known, parameter)
    tried = list(dict.fromkeys(key for trial in ledger.trials.values() for key in trial.params))
    for key in dict.fromkeys([*by_key, *tried]):
        found = {repr(t.params[key]): t.params[key] for t in ledger.trials.values() if key in t.params}
        values = list(found.values())
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        values.sort(key=(lambda value: value) if numeric else str)
        best = None if winner is None else winner.params.get(key)
        edge = None if best is None or len(values) < 2 else _edge(key, by_key.get(key), best, settings)
        yield Searched(key, by_key.get(key), tuple(values), best, edge, _marked(key, ledger, settings))


def _joined(one: Parameter, other: Parameter) -> Parameter:
    if "categorical" in (one.kind, other.kind):
        choices = tuple(dict.fromkeys([*one.choices, *other.choices]))
        return Parameter(one.key, one.path, "categorical", choices=choices)
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Parameter(one.key, one.path, one.kind, low=low, high=high, log=one.log and other.log)


def _edge(
    key: str, parameter: Parameter | None, best: Any, settings: Mapping[str, Any]
) -> Literal["low", "high"] | None:
    """At which end of its range a value is, if the range could go on there."""
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


def _is_bound(key: str, value: float, settings: Mapping[str, Any]) -> bool:
    """Whether a setting takes nothing beyond this value."""
    try:
        fields = {**Training.model_fields, **find_method(str(settings.get("method"))).Config.model_fields}
    except InputError:
        return False
    limits = [getattr(rule, name, None) for rule in (fields[key].metadata if key in fields else ()) for name in BOUNDS]
    return value in limits


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
        info = find_method(str(settings.get("method"))).Config.model_fields.get(key)
    except InputError:
        return None
    if info is None or info.default is None or info.is_required():
        return None
    return Marked(info.default, f"default of {settings.get('method')}")


# What mattered -----------------------------------------------------------------------------------------------


def _needed(searched: Sequence[Searched]) -> int:
    """So many trials explain so many settings."""
    return max(ENOUGH_TRIALS, TRIALS_PER_SETTING * sum(setting.varied for setting in searched))


def _comparable(ledger: Ledger, searched: Sequence[Searched]) -> Comparable:
    """The trials that trained to their end, where they are enough or all; else all at the age that all reached."""
    ended = ledger.finished()
    done = [trial for trial in ended if trial.state == "done"]
    aged = [trial for trial in ended if trial.curve]
    age = min((len(trial.curve) for trial in aged), default=None)
    values: dict[str, float]
    if age is None or len(done) == len(ended) or len(done) >= _needed(searched):
        values = {trial.trial_id: trial.best for trial in done if trial.best is not None}
        early = "" if len(done) == len(ended) else " that were not stopped early"
        return Comparable(values, f"{ledger.metric} of the {len(done)} trials{early}", None)
    values = {trial.trial_id: ledger.best_of(trial.curve[:age]) for trial in aged}
    ordered = dict(sorted(values.items(), key=lambda item: item[1], reverse=ledger.mode == "max"))
    return Comparable(
        ordered, f"{ledger.metric} after {counted(age, 'validation')}, which {len(aged)} trials reached", age
    )


def _importances(
    ledger: Ledger, space: Space | None, searched: Sequence[Searched], comparable: Comparable
) -> Importances:
    varied, basis = sum(setting.varied for setting in searched), comparable.basis
    if space is None or not searched:
        return Importances({}, "no importances: nothing was searched that this version can read")
    if not varied:
        return Importances({}, "no importances: one value of each setting was tried")
    points = [(ledger.trials[trial_id].params, value) for trial_id, value in comparable.values.items()]
    if len(points) < (needed := _needed(searched)):
        return Importances(
            {}, f"too few trials for importances: {len(points)}; {counted(varied, 'setting')} would take {needed}"
        )
    if len(points) > MOST_TRIALS:
        points = [points[i * len(points) // MOST_TRIALS] for i in range(MOST_TRIALS)]
        basis += f" ({MOST_TRIALS} of them, evenly from best to worst)"
    shares = importances(space, points)
    if not shares:
        return Importances({}, "no importances: the objective does not vary, or no setting is in every trial")
    return Importances(shares, f"share of the variance of {basis}; fANOVA, mean and deviation over five forests")


# The verdict -------------------------------------------------------------------------------------------------


def _first_line(ledger: Ledger, winner: TrialRecord | None) -> str:
    where = "the TEST classes (selection: test)" if ledger.selection == "test" else "held-out classes"
    if winner is None:
        return f"No trial of {ledger.name} has a result{ledger.yet} ({_states(ledger)})."
    so_far = "" if ledger.state == "done" else " so far"
    value = value_text(winner.best) if winner.best is None else f"{winner.best:.4f}"
    point = f", with {params_text(winner.params)}" if winner.params else ""
    if ledger.second is not None and winner.second is not None:
        return (
            f"On the front{so_far}: {counted(len(ledger.front), 'trial')}. Best in {ledger.metric}: trial "
            f"{winner.trial_id}, {value} on {where}, {ledger.config['second_objective']['metric']} "
            f"{value_text(winner.second)}{point}."
        )
    return f"Best{so_far}: trial {winner.trial_id}, {ledger.metric} {value} on {where}{point}."


def _second_line(ledger: Ledger, tested: Mapping[str, str]) -> str:
    where = "Test (selection: test)" if ledger.selection == "test" else "Test on unseen classes"
    test = ", ".join(f"{name} {tested[name]}" for name in HEADLINES if name in tested)
    seconds = sum(trial.seconds for trial in ledger.everyone())
    cost = f"{counted(len(ledger.trials), 'trial')} ({_states(ledger)}), {seconds / 3600:.2f} hours of training"
    if ledger.hours["GPU"]:
        cost += f", {ledger.hours['GPU']:.2f} GPU-hours"
    return f"{where}: {test}; {cost}." if test else f"Not tested{ledger.yet}; {cost}."


def _states(ledger: Ledger) -> str:
    counts = ledger.counts()
    return ", ".join(f"{counts[state]} {state}" for state in STATE_ORDER if counts[state]) or "none begun"


def _of_winner(ledger: Ledger, winner: TrialRecord | None) -> Repeated | None:
    """The repeated tests of the winner's point."""
    groups = repeated_tests(ledger)
    mine = (group for group in groups if winner is not None and winner.trial_id in (group.source, *group.trial_ids))
    return next(mine, None)


def _tested(ledger: Ledger, winner: TrialRecord | None) -> dict[str, str]:
    if (group := _of_winner(ledger, winner)) is not None:
        return {
            name: f"{spread.mean:.4f} ± {spread.standard_deviation:.4f} "
            f"({len(group.trial_ids)} seeds, 95%: {spread.low:.4f} to {spread.high:.4f})"
            for name, spread in group.metrics.items()
        }
    runs = [run for run in [*ledger.finals.values(), *([winner] if winner is not None else [])] if run.test]
    if not runs:
        return {}
    test = runs[0].test
    ends = {name: (test.get(f"{name}_low"), test.get(f"{name}_high")) for name in test}
    return {
        name: f"{value:.4f}" + ("" if None in ends[name] else f" (95%: {ends[name][0]:.4f} to {ends[name][1]:.4f})")
        for name, value in test.items()
        if not name.endswith(("_low", "_high"))
    }


def _test(ledger: Ledger, winner: TrialRecord | None) -> dict[str, tuple[float, float | None]]:
    if (group := _of_winner(ledger, winner)) is not None:
        return {name: (spread.mean, spread.standard_deviation) for name, spread in group.metrics.items()}
    runs = [run for run in [*ledger.finals.values(), *([winner] if winner is not None else [])] if run.test]
    test = runs[0].test if runs else {}
    return {name: (value, None) for name, value in test.items() if not name.endswith(("_low", "_high"))}


def _distance(
    published: Sequence[Beside], test: Mapping[str, tuple[float, float | None]], settings: Mapping[str, Any]
) -> str:
    """How far from the paper's number, and whether the comparison is fair."""
    of = f"{settings.get('method')} on {settings.get('dataset')}"
    closest = next((b for b in published if b.same_method), None)
    if closest is None:
        known = datasets().get(str(settings.get("dataset")))
        drawn = known is not None and known.build is not None
        why = ": these images are drawn here, to try methods out, and their numbers compare with no paper's"
        return f"None of the papers' tables here has {of}{why if drawn else ''}."
    row = closest.row
    metric = next((name for name in (*PAPER_METRICS, *row.values) if name in row.values and name in test), None)
    where = f"{row.paper}, Table {row.table}, {row.method}"
    if metric is None:
        return f"The closest published row is of {where}; there is no test to compare with it."
    gap = 100 * (test[metric][0] - row.values[metric].value)
    far = "equals" if abs(gap) < 0.05 else f"is {abs(gap):.1f} points {'above' if gap > 0 else 'below'}"
    differ = ", ".join(dict.fromkeys(d.setting for d in closest.differences))
    fair = f"Not like for like: {differ} differ." if differ else "No stated setting differs."
    return f"{metric} {100 * test[metric][0]:.1f} {far} {100 * row.values[metric].value:.1f} of {where}. {fair}"


def _certainty(ledger: Ledger, winner: TrialRecord | None, between: Sequence[Difference]) -> str:
    """How sure it is that the winner is better than the next, in one or two sentences."""
    if winner is None or winner.best is None:
        return f"Nothing to compare{ledger.yet}."
    others = standing(ledger)[1:]
    if not others:
        return "There is one result only: nothing to compare it with."
    if ledger.second is not None:
        return (
            "Of the trials on the front none is better than another in both objectives; with one seed each, their "
            "order may be chance."
        )
    metric = ledger.metric.removeprefix("val/")
    mine, rival, apart = _rival(ledger, winner, between)
    if mine is not None and rival is not None and apart is not None:
        ours, theirs = mine.metrics[metric], rival.metrics[metric]
        how = f"({how_tested(between)}: p = {apart.adjusted:.2g})"
        if math.isnan(apart.adjusted):
            verdict = "they cannot be told apart, for every seed gives the same"
        elif not apart.real:
            verdict = f"seeds do not tell them apart {how}"
        elif ledger.better(ours.mean, theirs.mean):
            verdict = f"seeds confirm it {how}"
        else:
            verdict = f"over seeds trial {rival.source} is the better one {how}"
        return (
            f"Test {metric} {ours.mean:.4f} ± {ours.standard_deviation:.4f} against "
            f"{theirs.mean:.4f} ± {theirs.standard_deviation:.4f} of trial {rival.source}: {verdict}."
        )
    alone = ""
    if mine is not None:
        noise = mine.metrics[metric].standard_deviation
        alone = f" Over {len(mine.trial_ids)} seeds its test has a deviation of {noise:.4f}."
    return (
        f"{_lead(ledger, winner, others[0])}{alone} Final runs of the best two over seeds would tell (--final-trials 2 "
        "--final-seeds 5)."
    )


def _lead(ledger: Ledger, winner: TrialRecord, rival: TrialRecord) -> str:
    """By how much the winner led the next trial at the age that both have."""
    pair, other = side_by_side(ledger, winner, rival), f"trial {rival.trial_id}"
    gap = f"{abs(pair.one - pair.other):.4f}"
    chance = "with one seed each: that may be chance."
    if pair.age is None:
        return f"It {f'leads {other} by {gap}' if pair.one != pair.other else f'ties with {other}'}, {chance}"
    after, against = counted(pair.age, "validation"), f"({pair.one:.4f} against {pair.other:.4f})"
    when = f"After {after}, where {other} was stopped"
    if len(rival.curve) > pair.age or rival.state == "done":
        when, other = f"After {after}, where it was stopped itself", f"trial {rival.trial_id}"
    else:
        other = "that one"
    if pair.one == pair.other:
        return f"{when}, it tied with {other} ({pair.one:.4f}), {chance}"
    if ledger.better(pair.one, pair.other):
        return f"{when}, it led {other} by {gap} {against}, {chance}"
    against = f"({pair.other:.4f} against {pair.one:.4f})"
    return f"{when}, {other} led by {gap} {against}: it might have won."


def _rival(
    ledger: Ledger, winner: TrialRecord, between: Sequence[Difference]
) -> tuple[Repeated | None, Repeated | None, Difference | None]:
    """The repeated tests of the winner and of the best other point, and what is between them."""
    metric = ledger.metric.removeprefix("val/")
    groups = [group for group in repeated_tests(ledger) if metric in group.metrics and group.source]
    mine = next((group for group in groups if group.source == winner.trial_id), None)
    pick = max if ledger.mode == "max" else min
    rival = pick((g for g in groups if g is not mine), key=lambda group: group.metrics[metric].mean, default=None)
    if mine is None or rival is None:
        return mine, rival, None
    pair = {winner.trial_id, rival.source}
    return mine, rival, next((d for d in between if {d.one, d.other} == pair), None)


def _widen(
    ledger: Ledger,
    winner: TrialRecord | None,
    searched: Sequence[Searched],
    comparable: Comparable,
    settings: Mapping[str, Any],
) -> str:
    """Where the winner, or who led when all were of one age, is at the end of a range."""
    if winner is None:
        return f"No result{ledger.yet}."
    if not searched:
        return "Nothing was searched."
    if not any(setting.varied for setting in searched):
        return "One value of each setting was tried: it says nothing of the ranges."
    ends = [_beyond(s, s.best, s.edge) for s in searched if s.edge]
    answer = f"Yes: {'; '.join(ends)}." if ends else "No: the best point lies inside every range."
    early = ledger.trials[next(iter(comparable.values), winner.trial_id)]
    if comparable.age is None or early is winner:
        return answer
    places = [(s, early.params[s.key], s.parameter) for s in searched if s.key in early.params]
    found = [(s, best, _edge(s.key, parameter, best, settings)) for s, best, parameter in places]
    others = [_beyond(s, best, edge) for s, best, edge in found if edge and edge != s.edge]
    if not others:
        return answer
    after = counted(comparable.age, "validation")
    return f"{answer} But after {after}, which all had, trial {early.trial_id} led, and would go {'; '.join(others)}."


def _beyond(setting: Searched, best: Any, edge: str | None) -> str:
    """`delta above 0.35 (best: 0.349 in 0.1 to 0.35)`"""
    parameter, end = setting.parameter, best
    if parameter is not None and parameter.kind != "categorical":
        end = parameter.low if edge == "low" else parameter.high
    side = "below" if edge == "low" else "above"
    return f"{setting.key} {side} {value_text(end)} (best: {value_text(best)} in {setting.range_text})"


def _warnings(
    ledger: Ledger, winner: TrialRecord | None, searched: Sequence[Searched], between: Sequence[Difference]
) -> Iterator[str]:
    if ledger.selection == "test":
        yield "selection: test: the best validation was chosen on the TEST classes; no number is of unseen classes."
    if ledger.state in ("interrupted", "failed"):
        yield f"The search {'failed' if ledger.state == 'failed' else 'was interrupted'}: {_states(ledger)}."
    failed = [trial for trial in ledger.everyone() if trial.state == "failed"]
    if failed:
        yield f"{counted(len(failed), 'training')} failed; the first: {failed[0].reason}."
    if winner is None:
        return
    with_value = len(ledger.finished())
    grid = ledger.config.get("algorithm") == "grid"
    if searched and not grid and with_value < ENOUGH_TRIALS * len(searched):
        yield (
            f"The budget is small: {counted(with_value, 'result')} for {counted(len(searched), 'searched setting')}; "
            f"{ENOUGH_TRIALS} for each is a usual minimum."
        )
    for setting in searched:
        if setting.edge:
            yield (
                f"{setting.key} = {value_text(setting.best)} is at the {setting.edge} edge of its range "
                f"({setting.range_text}): the optimum may lie outside."
            )
    if gain := _still_rising(ledger, winner):
        count = _last_fifth(winner.curve)
        yield (
            f"The winner's objective still rose by {gain:.4f} in the last{f' {count}' if count > 1 else ''} of its "
            f"{counted(winner.validations, 'validation')}: longer training may help, and may change the order."
        )
    metric = ledger.metric.removeprefix("val/")
    mine, _, apart = _rival(ledger, winner, between)
    others = standing(ledger)[1:]
    if mine is not None and others and winner.best is not None and not (apart is not None and apart.real):
        pair = side_by_side(ledger, winner, others[0])
        noise, lead = mine.metrics[metric].standard_deviation, abs(pair.one - pair.other)
        if noise > lead:
            at = "" if pair.age is None else f" after {counted(pair.age, 'validation')}"
            yield f"Unstable over seeds: the deviation, {noise:.4f}, is more than the winner's lead{at}, {lead:.4f}."


def _last_fifth(curve: Sequence[float]) -> int:
    return max(1, len(curve) // 5)


def _still_rising(ledger: Ledger, winner: TrialRecord) -> float:
    """What the last fifth of a full training gained, if it is much."""
    curve = winner.curve
    if winner.state != "done" or len(curve) < 3 or winner.best is None:
        return 0.0
    before = ledger.best_of(curve[: len(curve) - _last_fifth(curve)])
    gain = abs(winner.best - before) if ledger.better(winner.best, before) else 0.0
    return gain if gain > RISING * abs(winner.best) else 0.0


def _command(winner: TrialRecord | None) -> str | None:
    """`orchestrator train` with every setting of the winner that is not the default."""
    if winner is None or "method" not in winner.settings:
        return None
    settings = winner.settings
    try:
        default = resolve_experiment({"method": settings["method"]}, "default").flat()
    except InputError:
        return None
    words = ["orchestrator", "train", "--method", str(settings["method"]), "--dataset", str(settings.get("dataset"))]
    for key, value in settings.items():
        if key not in ("method", "dataset") and value != default.get(key):
            plain = json.dumps(value) if value is None or isinstance(value, bool) else value
            words += ["--set", f"{key}={plain}"]
    return shlex.join(words)


# The note ----------------------------------------------------------------------------------------------------


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; what cells hold is shown as it is."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def markdown_text(text: object) -> str:
    """Text that Markdown, and the HTML in it, take for nothing else."""
    escaped = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "\\`*_[]|#!":
        escaped = escaped.replace(mark, f"\\{mark}")
    return " ".join(escaped.split())


def markdown_code(text: str) -> str:
    """A block of code that nothing in it can end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def note(findings: Findings) -> str:
    """The findings in Markdown, for the tracker: verdict first, the rest as far as it fits. Links read `trial:0003`."""
    text, ledger = markdown_text, findings.ledger
    keys, columns = [setting.key for setting in findings.searched], value_columns(ledger)
    leaders = [trial for trial in ledger.ranking() if trial.best is not None][:LEADERS]
    rows = [
        [str(rank), f"[{text(trial.trial_id)}]({TRIAL_LINK}{trial.trial_id})", trial.state]
        + ["" if (value := of(trial)) is None else f"{value:.4f}" for of in columns.values()]
        + [text(value_text(trial.params[key])) if key in trial.params else "" for key in keys]
        for rank, trial in enumerate(leaders, start=1)
    ]
    parts = ["\n\n".join(text(line) for line in findings.verdict)]
    if findings.warnings:
        parts.append("**Warnings**\n\n" + "\n".join(f"- {text(line)}" for line in findings.warnings))
    parts.append(f"**How sure?** {text(findings.certainty)}\n\n**Widen the ranges?** {text(findings.widen)}")
    if findings.confused:
        parts.append(f"**Which classes are confused most?** {text(findings.confused)}")
    if findings.test:
        parts.append(f"**How far from the papers?** {text(findings.distance)}")
    if rows:
        heads = ["#", "trial", "state", *map(text, columns), *(text(key) for key in keys)]
        parts.append("**Leaderboard**\n\n" + markdown_table(heads, rows))
    finals = [f"[{text(run.trial_id)}]({TRIAL_LINK}{run.trial_id}) ({run.state})" for run in ledger.finals.values()]
    if finals:
        parts.append("Final runs: " + ", ".join(finals[:LEADERS]))
    if findings.importances.shares:
        shares = [
            [text(key), f"{mean:.2f} ± {spread:.2f}"] for key, (mean, spread) in findings.importances.shares.items()
        ]
        parts.append(
            f"**What mattered** ({text(findings.importances.basis)})\n\n" + markdown_table(["setting", "share"], shares)
        )
    else:
        parts.append(f"**What mattered** {text(findings.importances.basis)}")
    if findings.searched:
        coverage = [[text(s.key), text(s.range_text), text(_tried(s))] for s in findings.searched]
        parts.append("**Coverage**\n\n" + markdown_table(["setting", "range", "tried"], coverage))
    if findings.command:
        parts.append(f"**Train the winner again**\n\n{markdown_code(findings.command)}")
    whole = parts[0]
    for part in parts[1:]:
        if len(whole) + len(part) + 2 <= NOTE_CHARACTERS:
            whole += "\n\n" + part
    return whole


def _tried(setting: Searched) -> str:
    if not setting.values:
        return "nothing"
    if setting.numeric and len(setting.values) > 5:
        ends = f"{value_text(setting.values[0])} to {value_text(setting.values[-1])}"
        return f"{len(setting.values)} values, {ends}"
    return ", ".join(value_text(value) for value in setting.values)
