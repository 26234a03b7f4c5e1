"""Which trial ranks higher, compared after equal training: one that was stopped early had less of it."""

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.evaluation.measures import BESIDE
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import pluralize


@dataclass(frozen=True)
class TrialPair:
    """Two trials' best values at the age that both have."""

    age: int | None
    """After this many validations; None if both trained to their end, however long that took."""
    one: float
    other: float


@dataclass(frozen=True)
class Comparable:
    """Trials' values after equal training: otherwise one that was stopped early would look worse than it is."""

    values: Mapping[str, float]
    """By trial, best first."""
    basis: str
    """Whose values they are, in words."""
    age: int | None
    """After this many validations; None if all of them trained to their end."""


def compare_trials(ledger: Ledger, one: TrialRecord, other: TrialRecord) -> TrialPair:
    """Two trials that have values, after min(validations of the one, of the other); at their best if neither was
    stopped early."""
    if one.state == other.state == "done" and one.best is not None and other.best is not None:
        return TrialPair(None, one.best, other.best)
    age = min(len(one.curve), len(other.curve))
    return TrialPair(age, ledger.best_of(one.curve[:age]), ledger.best_of(other.curve[:age]))


def standing(ledger: Ledger) -> list[TrialRecord]:
    """The trials that may win: the winner, then the others by how many trials stood higher at the age that both have,
    fewest first; of equals the one that trained longer, then the one with the better best value.

    With two objectives the order of the leaderboard. Where points have several seeds, the
    best trial of each point, in the order of the points.
    """
    ended = ledger.candidates()
    if ledger.over_seeds:
        firsts: dict[str, TrialRecord] = {}
        for trial in ended:
            firsts.setdefault(repr(sorted(trial.point.items())), trial)
        return list(firsts.values())
    if ledger.second is not None or len(ended) < 3:
        return ended
    beaten = _times_beaten(ledger, ended)
    others = sorted(range(1, len(ended)), key=lambda place: (beaten[place], -len(ended[place].curve), place))
    return [ended[0], *(ended[place] for place in others)]


def _times_beaten(ledger: Ledger, trials: Sequence[TrialRecord]) -> list[int]:
    """How many of the others stood higher than each; about k n log n steps for n trials of k lengths."""
    sign = -1.0 if ledger.mode == "max" else 1.0  # so that less is better
    courses = [list(itertools.accumulate((sign * value for value in trial.curve), min)) for trial in trials]
    beaten = [0] * len(trials)

    def compare(these: Iterable[int], others: Iterable[int], age: int | None) -> None:
        """Compare each of these with each of the others."""
        values = sorted(courses[place][-1 if age is None else age - 1] for place in others)
        for place in these:
            beaten[place] += bisect.bisect_left(values, courses[place][-1 if age is None else age - 1])

    done = [place for place, trial in enumerate(trials) if trial.state == "done"]
    compare(done, done, None)
    for age in sorted({len(course) for course in courses}):
        young = [place for place, course in enumerate(courses) if len(course) == age]
        stopped = [place for place in young if trials[place].state != "done"]
        ended = [place for place in young if trials[place].state == "done"]
        older = [place for place, course in enumerate(courses) if len(course) > age]
        old_stopped = [place for place in older if trials[place].state != "done"]
        # two completed ones have been compared already
        compare(stopped, [*young, *older], age)
        compare([*ended, *older], stopped, age)
        compare(ended, old_stopped, age)
        compare(old_stopped, ended, age)
    return beaten


def without_repeats(ledger: Ledger) -> list[TrialRecord]:
    """The trials that may win, without the repeats of leading points, and without the copies of a population, which
    change settings: what mattered follows from points tried once each."""
    points = [trial for trial in ledger.candidates() if trial.copied is None]
    return [trial for trial in points if not (ledger.repeats and "seed" in trial.params)]


def comparable(ledger: Ledger, number: int) -> Comparable:
    """The trials that trained to their end, if they are enough or all; else all at the age that all reached."""
    ended = without_repeats(ledger)
    done = [trial for trial in ended if trial.state == "done"]
    aged = [trial for trial in ended if trial.curve]
    age = min((len(trial.curve) for trial in aged), default=None)
    values: dict[str, float]
    if age is None or len(done) == len(ended) or len(done) >= number:
        values = {trial.trial_id: trial.best for trial in done if trial.best is not None}
        early = "" if len(done) == len(ended) else " that were not stopped early"
        return Comparable(values, f"{ledger.metric} of the {len(done)} trials{early}", None)
    values = {trial.trial_id: ledger.best_of(trial.curve[:age]) for trial in aged}
    ordered = dict(sorted(values.items(), key=lambda item: item[1], reverse=ledger.mode == "max"))
    return Comparable(
        ordered, f"{ledger.metric} after {pluralize(age, 'validation')}, which {len(aged)} trials reached", age
    )


def beside_values(ledger: Ledger) -> dict[str, Comparable]:
    """The second objective and the other recorded metrics of the trials that trained to their end, at the validation of
    their best objective: what else they had at other ages is not known."""
    ended = without_repeats(ledger)
    done = [trial for trial in ended if trial.state == "done"]
    early = "" if len(done) == len(ended) else " that were not stopped early"
    names = [f"val/{metric.name}" for metric in BESIDE if f"val/{metric.name}" not in (ledger.metric, ledger.second)]
    values = {name: {t.trial_id: t.best_metrics[name] for t in done if name in t.best_metrics} for name in names}
    if ledger.second is not None:
        values = {ledger.second: {t.trial_id: t.second for t in done if t.second is not None}} | values
    return {
        name: Comparable(value, f"{name} of the {len(value)} trials{early}, at their best {ledger.metric}", None)
        for name, value in values.items()
        if value
    }


def to_confirm(ledger: Ledger, count: int) -> list[TrialRecord]:
    """The trials that have final runs: the winner, and the next ones in order; of a search over methods the best of
    each method first, so that as many final trials as methods confirm one of each.

    Final runs that have begun are kept while no trial was added since, so that a resumed search has those that it had
    begun, whatever version chose them.
    """
    if count == 1:
        return ledger.candidates()[:1]
    sources = [run.source for run in ledger.finals.values() if run.among == len(ledger.trials) and run.source]
    trials = [ledger.trials[source] for source in dict.fromkeys(sources)][:count]
    if len(trials) < count:
        trials += [trial for trial in methods_first(ledger) if trial not in trials][: count - len(trials)]
    return trials


def methods_first(ledger: Ledger) -> list[TrialRecord]:
    """The `standing` with the first trial of each method before all others."""
    trials, firsts = standing(ledger), dict[Any, TrialRecord]()
    for trial in trials:
        firsts.setdefault(trial.settings.get("method", ledger.method), trial)
    leading = {trial.trial_id for trial in firsts.values()}
    return [*firsts.values(), *(trial for trial in trials if trial.trial_id not in leading)]
