"""The state of a search, folded from its journal's events: the only source for what has happened so far."""

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import InputError
from orchestrator.storage.costs import COSTS, SYSTEM, violations
from orchestrator.storage.events import (
    MAY_PASS,
    Copied,
    Event,
    SearchEnded,
    SearchResumed,
    SearchStarted,
    TrialEnded,
    TrialResult,
    TrialStarted,
    Validation,
    check_journal_format,
    parse,
)
from orchestrator.storage.trial_record import FINISHED, STATES, TrialRecord

POPULATION = "population"
"""The scheduler that copies trials."""
BENCHMARK = "orchestrator.benchmark"
"""The tag of a search that names the benchmark it is part of."""


@dataclass
class Ledger:
    """All of a search. `apply` the events one by one, in the journal's order."""

    name: str = ""
    search_id: str = ""
    dataset: str = ""
    method: str = ""
    """Its method; `several` if it searches over methods."""
    config: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    """The sizes of the evaluated sets, from `measured.sizes`; empty in older records."""
    untrained: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The scores of networks before their training, by `shaping.untrained_key`."""
    metric: str = ""
    mode: str = "max"
    started: int = 0
    ended: int | None = None
    state: str = "running"
    reason: str | None = None
    """Why it ended before its number of trials."""
    elapsed: float = 0.0
    """Seconds of running time, without the time between an end and a resume."""
    epochs: float = 0.0
    hours: dict[str, float] = field(default_factory=lambda: {"CPU": 0.0, "GPU": 0.0})
    """The hours of its trials, without the final runs."""
    trials_without_improvement: int = 0
    """How many trials ended since the last one that was better than all before it (or joined the front)."""
    front: list[str] = field(default_factory=list)
    """The ended trials that no other beats in the objective, or in both objectives."""
    trials: dict[str, TrialRecord] = field(default_factory=dict)
    repeats: int = 0
    """How many of them train a leading point again, with another seed."""
    copies: int = 0
    """How many of them are copies, of a population."""
    finals: dict[str, TrialRecord] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list, compare=False)
    """Notes on what could not be checked in its journal, or was skipped."""
    looks: int = 0
    """How often it has ended with more tested final runs than before."""
    _tested: int = field(default=0, repr=False)
    folder: Path | None = field(default=None, compare=False, repr=False)
    """Where its journal and its trials' files lie; None for events alone."""
    _taken: int = field(default=0, repr=False)
    """The number of events so far."""
    # redundant with the above, so that the cost of an event does not grow with the number of trials
    _unfinished: dict[str, TrialRecord] = field(default_factory=dict, repr=False)
    _ranked: list[tuple[tuple[float, ...], int, str]] = field(default_factory=list, repr=False)
    """The trials that have a value, sorted by losses and numbers."""

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], where: str = "journal") -> "Ledger":
        """The ledger of a journal's records; InputError names the line of `where` that is invalid or inconsistent."""
        ledger = cls()
        ledger.take_all(records, where)
        return ledger

    def take_all(self, records: Iterable[Mapping[str, Any]], where: str) -> list[Event]:
        """`take` all records of a journal: its events."""
        events = [self.take(record, f"{where}:{number}") for number, record in enumerate(records, start=1)]
        if not self.search_id:
            raise InputError(f"{where}: holds no search: its first event is missing")
        return events

    def rename(self, name: str) -> None:
        """Take another name: a search is called as its folder, whatever name it began with."""
        self.name = name
        if "name" in self.config:
            self.config = {**self.config, "name": name}

    def take(self, record: Mapping[str, Any], where: str) -> Event:
        """`apply` the event of a record from a file; InputError names its place if it is invalid or inconsistent."""
        check_journal_format(record, where)
        try:
            event = parse(record)
            if isinstance(event, SearchStarted) == bool(self.search_id):
                raise InputError("a journal holds one search_started, as its first event")
            self.apply(event)
        except KeyError as error:
            raise InputError(f"{where}: corrupt: trial {error} was never started") from None
        except InputError as error:
            raise InputError(f"{where}: corrupt: {error}") from None
        return event

    def apply(self, event: Event) -> None:
        """Apply one event; a known validation changes nothing."""
        self._taken += 1
        self.elapsed = self.elapsed if event.elapsed is None else event.elapsed
        match event:
            case SearchStarted():
                self.name, self.search_id = event.name, event.search_id
                self.config, self.started = event.config, event.time
                self.dataset, self.method = event.dataset, event.method
                self.tags, self.sizes = event.tags, event.sizes or {}
                self.metric, self.mode = event.objective.metric, event.objective.mode
            case SearchResumed():
                self.state, self.ended, self.reason = "running", None, None
                self.config = self.config if event.config is None else event.config
            case SearchEnded():
                self.state, self.ended, self.reason = event.state, event.time, event.reason
                tested = sum(bool(run.test) for run in self.finals.values())
                self.looks, self._tested = self.looks + (tested > self._tested), max(tested, self._tested)
            case TrialStarted():
                self._start(event)
            case Validation():
                self._validate(self.find(event.trial_id), event)
            case TrialResult():
                trial = self.find(event.trial_id)
                trial.test |= {k.removeprefix("test/"): v for k, v in event.metrics.items() if k.startswith("test/")}
                trial.best_interval = event.best_interval or trial.best_interval
                trial.gain, trial.excess = event.gain or trial.gain, event.excess or trial.excess
                if costs := {name: cost for name, cost in event.metrics.items() if name in COSTS}:
                    self._take_costs(trial, costs)
                if event.untrained is not None:
                    self.untrained[event.untrained["key"]] = event.untrained
            case TrialEnded():
                self._close(self.find(event.trial_id), event)

    def _start(self, event: TrialStarted) -> None:
        trial_id = event.trial_id
        group = self.finals if event.kind == "final" else self.trials
        before = group.get(trial_id)
        if before is not None:
            self.trials_without_improvement -= before.state == "pruned"  # it is judged again
            before.state, before.reason, before.ended, before.failure = "running", None, None, None
            before.restarted.append(event.time)
            for name in {"resources", "note"} & event.model_fields_set:
                setattr(before, name, getattr(event, name))
            self._unfinished[trial_id] = before
            return
        trial = TrialRecord(trial_id, len(group), event.kind, event.params, event.time)
        trial.note, trial.source, trial.stop_after = event.note, event.source, event.stop_after
        if trial.source is not None and trial.source not in self.trials:
            raise InputError(f"its source '{trial.source}' was never started")
        trial.settings, trial.idle, trial.among = event.config, event.idle, len(self.trials)
        trial.resources, trial.epochs_planned = event.resources, trial.settings.get("epochs", 0)
        if (copied := event.copied) is not None:
            self._copy(trial, copied)
        group[trial_id] = self._unfinished[trial_id] = trial
        self.repeats += self._is_repeat(trial)
        self._take_costs(trial, {})

    def _copy(self, trial: TrialRecord, copied: Copied) -> None:
        """A trial begins as a copy of one that has come so far, in another one's place."""
        other = self.trials.get(copied.trial_id)
        if other is None or other.validations != copied.validation:
            raise InputError(
                f"it is a copy of '{copied.trial_id}' after validation {copied.validation}, which is not so"
            )
        trial.copied = copied
        self.copies += 1
        trial.take_over(other)
        if (former := self.trials.get(copied.replaces)) is not None and former.reason is None:
            former.reason = f"replaced by {trial.trial_id}, a copy of {copied.trial_id}"

    def _take_costs(self, trial: TrialRecord, costs: Mapping[str, float]) -> None:
        """Note the costs of a trial that are known now; one that breaks a constraint leaves the ranking."""
        trial.costs |= costs
        if trial.kind == "trial" and (constraints := self.constraints):
            before = self._minimised_values(trial)
            trial.violations = violations(trial, constraints)
            if before is not None and trial.violations:
                self._rank(trial, before)

    def _is_repeat(self, trial: TrialRecord) -> bool:
        several = self.config.get("seeds", 1) > 1 and self.config.get("algorithm") != "grid"
        return several and trial.kind == "trial" and "seed" in trial.params

    def _close(self, trial: TrialRecord, event: TrialEnded) -> None:
        trial.state, trial.reason, trial.ended = event.state, event.reason, event.time
        trial.ended_at, trial.failure = self._taken, event.failure
        trial.failures += event.failure in MAY_PASS
        if trial.state != "interrupted":
            self._unfinished.pop(trial.trial_id, None)
        if trial.kind == "trial" and not trial.goes_on and not self._is_repeat(trial):
            self._judge(trial)

    def _validate(self, trial: TrialRecord, event: Validation) -> None:
        if event.validation <= trial.validations:
            return
        metrics = event.metrics
        if used := {SYSTEM[name]: value for name, value in event.system.items() if name in SYSTEM}:
            self._take_costs(trial, {name: max(value, trial.costs.get(name, value)) for name, value in used.items()})
        trial.validations, trial.seconds, trial.last_metrics = event.validation, trial.seconds + event.seconds, metrics
        if "unordered" in event.model_fields_set:
            trial.unordered = tuple(event.unordered)
        if trial.first_loss is None:
            trial.first_loss = metrics.get("train/loss")
        hours = event.hours(trial.resources, self.config.get("workers"))
        trial.hours = {kind: trial.hours.get(kind, 0.0) + spent for kind, spent in hours.items()}
        epochs = metrics.get("epoch", trial.epochs) - trial.epochs
        trial.epochs += epochs
        if trial.kind == "trial":
            self.epochs += epochs
            self.hours |= {kind: self.hours.get(kind, 0.0) + spent for kind, spent in hours.items()}
        value = metrics.get(self.metric)
        if value is None:
            return
        trial.curve.append(value)
        trial.losses.append(metrics.get("train/loss"))
        trial.places.append(self._taken)
        if trial.best is None or self.better(value, trial.best):
            before = self._minimised_values(trial)
            trial.best, trial.best_validation, trial.best_metrics = value, trial.validations, metrics
            if (second := self.second) is not None:
                trial.second = COSTS[second].of(trial) if second in COSTS else metrics.get(second)
            if trial.kind == "trial" and not trial.violations:
                self._rank(trial, before)

    def _rank(self, trial: TrialRecord, before: tuple[float, ...] | None) -> None:
        """Move a trial, whose losses were `before`, to its new position in the ranking."""
        if before is not None:
            del self._ranked[bisect.bisect_left(self._ranked, (before, trial.number, trial.trial_id))]
        if (losses := self._minimised_values(trial)) is not None:
            bisect.insort(self._ranked, (losses, trial.number, trial.trial_id))

    def _judge(self, trial: TrialRecord) -> None:
        """Update the front with an ended trial, and remove the trials that it beats."""
        self.trials_without_improvement += 1
        losses = self._minimised_values(trial)
        if trial.state == "failed" or losses is None:
            return
        others = {key: self._minimised_values(self.trials[key]) or () for key in self.front if key != trial.trial_id}
        if any(all(a <= b for a, b in zip(other, losses, strict=True)) for other in others.values()):
            return
        self.trials_without_improvement = 0
        beaten = {key for key, other in others.items() if all(a <= b for a, b in zip(losses, other, strict=True))}
        self.front = [key for key in others if key not in beaten] + [trial.trial_id]

    def _minimised_values(self, trial: TrialRecord) -> tuple[float, ...] | None:
        """A trial's objective, or both, with lower as better; None if it has none, breaks a constraint, or is
        a copy that has nothing better than the trial that it is a copy of."""
        if trial.best is None or not trial.is_ranked or (self.second is not None and trial.second is None):
            return None
        first = -trial.best if self.mode == "max" else trial.best
        if trial.second is None:
            return (first,)
        return (first, -trial.second if self.config["second_objective"]["mode"] == "max" else trial.second)

    def find(self, trial_id: str) -> TrialRecord:
        """A trial by id, final runs included."""
        return self.finals[trial_id] if trial_id in self.finals else self.trials[trial_id]

    def better(self, value: float, other: float) -> bool:
        """Whether the objective prefers `value`."""
        return value > other if self.mode == "max" else value < other

    def best_of(self, values: Iterable[float]) -> float:
        """The best of these values by the objective."""
        return max(values) if self.mode == "max" else min(values)

    def running(self) -> list[TrialRecord]:
        """Trials that have begun and not ended, including final runs."""
        return [trial for trial in self._unfinished.values() if trial.state == "running"]

    def unfinished_trials(self) -> list[TrialRecord]:
        """Running and interrupted trials."""
        return list(self._unfinished.values())

    def trials_to_retry(self) -> list[TrialRecord]:
        """The failed trials, final runs included, that a resume tries again."""
        return [trial for trial in self.everyone() if trial.retryable]

    def one_query(self, metric: str) -> float:
        """The weight of one query in a metric of the held-out set (`val/NAME`) or of the test (`NAME`); 0 of others, as
        losses and diagnostics, and where the set's size is not recorded."""
        part = "validation" if metric.startswith("val/") else "test" if "/" not in metric else ""
        return float((self.sizes.get(part) or {}).get("one_query", 0.0))

    def everyone(self) -> list[TrialRecord]:
        """All trials, followed by the final runs."""
        return [*self.trials.values(), *self.finals.values()]

    @property
    def has_ended(self) -> bool:
        """Whether it came to its end: only more trials, another budget or `trials_to_retry` continue it."""
        return self.state in ("done", "failed")

    @property
    def is_complete(self) -> bool:
        """Whether a plain resume would train nothing."""
        return self.has_ended and not self.trials_to_retry()

    @property
    def yet(self) -> str:
        """` yet`, for sentences on missing values that may still come."""
        return "" if self.has_ended else " yet"

    @property
    def kind(self) -> str:
        """The user's term for it: a training of `orchestrator train` is not called a search."""
        return "training" if self.config.get("test_trials") else "search"

    @property
    def is_population(self) -> bool:
        """Whether its trials are the members of a population, and copies that replace some of them."""
        return dict(self.config.get("scheduler") or {}).get("name") == POPULATION

    @property
    def second(self) -> str | None:
        """The metric of the second objective, if there are two."""
        goal = self.config.get("second_objective")
        return None if goal is None else str(goal["metric"])

    @property
    def constraints(self) -> dict[str, float]:
        """The largest allowed value of each limited cost."""
        return dict(self.config.get("constraints") or {})

    @property
    def selection(self) -> str:
        """The classes that its trainings select on: `validation` or `test` classes."""
        return str(self.config.get("settings", {}).get("selection", "validation"))

    def final_runs_of(self, trial: TrialRecord | None) -> list[TrialRecord]:
        """The final runs that retrain a trial, whatever became of them; old records know them by their point."""
        if trial is None:
            return []
        by_point = [run for run in self.finals.values() if run.source is None and run.point == trial.point]
        return [run for run in self.finals.values() if run.source == trial.trial_id] + by_point

    def tests_of(self, trial: TrialRecord | None) -> list[TrialRecord]:
        """The tested runs of a trial, the only ones whose numbers are its test: its final runs; without final runs the
        trials of its point, which may differ from it in the seed. Another trial's test is never among them."""
        if trial is None:
            return []
        if runs := self.final_runs_of(trial):
            return [run for run in runs if run.test]
        return [run for run in self.trials.values() if run.test and run.point == trial.point]

    def ranking(self) -> list[TrialRecord]:
        """All trials of the search, best first; those without a value last, in their order, then those that break a
        constraint, the nearest first. With two objectives the front comes first; both parts are ordered by the first
        objective, then the second."""
        others = [trial for trial in self.trials.values() if self._minimised_values(trial) is None]
        return [*self.leaders(), *sorted(others, key=lambda trial: sum(trial.violations.values()))]

    def leaders(self) -> Iterator[TrialRecord]:
        """The trials that have a value, in the order of `ranking`; lazy, so that taking a few is fast. Where points
        have several seeds, those of the best point come first."""
        if self.over_seeds:
            return itertools.chain.from_iterable(self.points())
        front = set(self.front) if self.second is not None else set()
        first = sorted((self._minimised_values(self.trials[key]) or (), self.trials[key].number, key) for key in front)
        others = (entry for entry in self._ranked if entry[2] not in front)
        return (self.trials[key] for _, _, key in itertools.chain(first, others))

    @property
    def over_seeds(self) -> bool:
        """Whether points have trials with several seeds, each of a grid or the leading ones: then points are compared,
        by their mean. Not with two objectives, and not where nothing but the seed varies: that is one point."""
        if self.second is not None or self.config.get("algorithm") != "grid":
            return self.repeats > 0
        space = self.config.get("raw_space")
        keys = {key for alternative in (space if isinstance(space, list) else [space]) for key in alternative or ()}
        return bool(keys - {"seed"}) and (self.config.get("seeds", 1) > 1 or "seed" in keys)

    def points(self) -> list[list[TrialRecord]]:
        """The trials that have a value, by point (all but the seed), best point first, each point's best trial first.

        Points are ordered by the mean over their seeds of `comparison_value`; those with fewer ended seeds than others
        come later, since their mean may be luck, and those without one last, by their best value. Where only the
        leading points have several, those that were stopped early count as without one."""
        groups: dict[str, list[TrialRecord]] = {}
        for _, _, key in self._ranked:
            trial = self.trials[key]
            groups.setdefault(repr(sorted(trial.point.items())), []).append(trial)
        age, sign = None if self.repeats else self.equal_age(), -1.0 if self.mode == "max" else 1.0

        def order(trials: list[TrialRecord]) -> tuple[int, float]:
            whole = [trial for trial in trials if trial.state == "done" or not self.repeats]
            values = [value for trial in whole if (value := self.comparison_value(trial, age)) is not None]
            return (-len(values), sign * sum(values) / len(values)) if values else (0, 0.0)

        return sorted(groups.values(), key=order)

    def comparison_value(self, trial: TrialRecord, age: int | None) -> float | None:
        """An ended trial's value for a comparison, after `age` validations if some were stopped early; else None."""
        if trial.best is None or trial.state not in FINISHED:
            return None
        return trial.best if age is None else self.best_at(trial, age)

    def best_models(self, count: int) -> list[TrialRecord]:
        """The `count` best trials; without held-out classes, and so without values, the first that ended."""
        done = (trial for trial in self.trials.values() if trial.state == "done")
        return list(itertools.islice(self.leaders(), count)) or list(itertools.islice(done, count))

    def winner(self) -> TrialRecord | None:
        """The best trial; an unfinished or failed trial cannot win. Where points have several seeds, the best trial of
        the best point. Of a training that holds nothing out, and so has no values, the first that was tested."""
        won = next((t for t in self.leaders() if t.state in FINISHED), None) or next(iter(self.candidates()), None)
        if won is None and self.kind == "training":
            won = next((trial for trial in self.trials.values() if trial.state in FINISHED and trial.test), None)
        return won

    def first_so_far(self) -> TrialRecord | None:
        """While no trial has won: the best of those that have a value, which may still run or have failed. After that:
        the best that has not ended, if it already stands higher than the winner."""
        winner = self.winner()
        if winner is None:
            return next(iter(self.leaders()), None)
        if self.second is not None or self.over_seeds or winner.best is None:
            return None
        waiting = [trial for trial in self._unfinished.values() if trial.kind == "trial" and trial.is_ranked]
        higher = [trial for trial in waiting if self.better(trial.best or 0.0, winner.best)]
        return min(higher, key=lambda trial: (self._minimised_values(trial), trial.number), default=None)

    def candidates(self) -> list[TrialRecord]:
        """The trials that may win, best first."""
        return [trial for trial in self.ranking() if trial.is_ranked and trial.state in FINISHED]

    def nearest(self) -> TrialRecord | None:
        """Where no trial has won: of those that break a constraint the one that is least above its limits."""
        broken = [] if self.winner() else [trial for trial in self.trials.values() if trial.violations]
        return min(broken, key=lambda trial: (sum(trial.violations.values()), trial.number), default=None)

    def equal_age(self) -> int | None:
        """The number of validations of every ended trial; None if none was stopped early: then their bests compare."""
        ended = [trial for trial in self.trials.values() if trial.is_ranked and trial.state in FINISHED]
        stopped = any(trial.state == "pruned" for trial in ended)
        return min(len(trial.curve) for trial in ended) if stopped else None

    def best_at(self, trial: TrialRecord, age: int) -> float | None:
        """A trial's best value after so many validations; None if it has fewer."""
        return self.best_of(trial.curve[:age]) if len(trial.curve) >= age else None

    def counts(self) -> dict[str, int]:
        """How many trials are in each state."""
        return dict.fromkeys(STATES, 0) | Counter(trial.state for trial in self.trials.values())


def best_key(metric: str) -> str:
    """Where trackers find the best value of a metric: `best/val_map_at_r`."""
    return f"best/{metric.replace('/', '_')}"
