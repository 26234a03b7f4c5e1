"""Which point is tried next, and which trial is stopped early: Optuna's ask and tell over a journaled search."""

import copy
import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from orchestrator.config.algorithms import ALGORITHMS, BUILT_IN
from orchestrator.config.algorithms.base import Draw
from orchestrator.config.points import PointTable, coordinates
from orchestrator.config.schedulers.front import FrontBracket
from orchestrator.config.search import Search
from orchestrator.config.space import Parameter, Space, point_by_path, point_key
from orchestrator.errors import AlgorithmFailed
from orchestrator.search import thinning
from orchestrator.search.priors import Prior
from orchestrator.storage.events import Copied
from orchestrator.storage.opening import make_folder, open_file, remove_file
from orchestrator.storage.trial_record import FINISHED

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

REPEATS = 20
"""How often a suggestion that was already tried is requested again."""
DRAWS = 100
"""How many random points are drawn for one that breaks no limit."""
DIRECTIONS = {"max": StudyDirection.MAXIMIZE, "min": StudyDirection.MINIMIZE}


SETS_CONSTRAINTS = hasattr(optuna.Trial, "set_constraint")
"""Whether trials hold their constraints; before Optuna 5 samplers ask a function for them."""


def set_constraint(trial: optuna.Trial, name: str, excess: float) -> None:
    """Tell samplers by how much a trial is above a limit."""
    if SETS_CONSTRAINTS:
        trial.set_constraint(name, excess)
    else:
        trial.set_user_attr(f"constraint {name}", excess)


def worst_values(study: optuna.Study) -> list[float] | None:
    """The worst value of each objective among the completed trials; None if there is none."""
    values = [trial.values for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))]
    worst = {StudyDirection.MAXIMIZE: min, StudyDirection.MINIMIZE: max}
    goals = zip(study.directions, zip(*values, strict=True), strict=False)
    return [worst[direction](several) for direction, several in goals] or None


def read_constraints(trial: FrozenTrial) -> list[float]:
    """The same for the samplers of earlier versions."""
    return [value for name, value in trial.user_attrs.items() if name.startswith("constraint ")]


def _plain(value: object) -> Any:
    """Of what samplers keep: numpy's numbers and arrays."""
    return np.asarray(value).tolist()


class Unhurried(JournalFileBackend):
    """Optuna's journal for readers: rewritten at every resume, so it need not wait for the disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), lock_obj=(lock := JournalFileOpenLock(str(path))))
        self.path, self.lock = path, lock

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.lock.acquire()
        try:
            with open_file(self.path, "ab") as file:
                # samplers may give numpy's numbers
                file.writelines(
                    f"{json.dumps(log, default=lambda value: np.asarray(value).tolist())}\n".encode() for log in logs
                )
        finally:
            self.lock.release()


class Study:
    """The sampler and pruner of one search, over trials known by their own ids.

    There is one Optuna study per bracket of Hyperband, so that its sampler only compares trials of one budget;
    otherwise a single one.
    """

    def __init__(self, search: Search, path: Path | None = None, points: PointTable | None = None) -> None:
        """`path` keeps the ended trials as an Optuna journal (e.g. for optuna-dashboard); it is not read, and its old
        content is replaced. With `points` no others are tried: the nearest new one takes the place of a suggestion
        that is none of them."""
        self.search = search
        self.points = points
        self.space = search.space
        self.algorithm = ALGORITHMS[search.algorithm]
        self.grid = iter(self.space.grid()) if search.exhaustive else None
        self.directions = [DIRECTIONS[goal.mode] for goal in search.goals]
        self.pruners = search.scheduler.pruners(optuna.pruners, search.max_validations)
        self.max_points = min(self.space.size(), math.inf if search.max_points is None else search.max_points)
        """How many points the search tries at most; infinite if only other budgets end it."""
        self.brackets = search.scheduler.make_brackets(search.max_validations, len(search.goals), self.max_points)
        self.studies = [self._create(bracket) for bracket in range(len(self.pruners or self.brackets))]
        self.sign = -1.0 if search.objective.mode == "max" else 1.0
        """Of a value in a loss, which is less the better."""
        self.cycle = self._cycle()
        self.stored: optuna.Study | None = None
        if path is not None:
            make_folder(path.parent)
            remove_file(path)
            self.stored = optuna.create_study(
                storage=JournalStorage(Unhurried(path)), study_name=search.name, directions=self.directions
            )
        self.samplers: dict[int, BaseSampler] = {}
        """Each bracket's first sampler, for what it knows about the points so far, or its only one."""
        self.numbers: dict[str, int] = {}
        """Of each trial."""
        self.running: list[dict[str, optuna.Trial]] = [{} for _ in self.studies]
        """The running trials of each bracket."""
        self.sizes = [0] * len(self.studies)
        """How many trials each bracket's study holds."""
        self.courses: dict[str, dict[int, float]] = {}
        """Of each running or waiting trial the best value so far at each validation."""
        self.waiting: dict[str, FrozenTrial] = {}
        """The trials that were stopped early and may go on, as they were then."""
        self.again: dict[str, FrozenTrial] = {}
        """Those that went on after that, likewise."""
        self.replacements: list[dict[str, FrozenTrial]] = [{} for _ in self.studies]
        """Of each bracket what became of such trials; its study is made anew with them before the next suggestion."""
        self.prior = Prior(self.space, search.learn_from, strength=search.prior_strength, seed=search.seed)
        self.seen: set[str] = set()
        self.attempts: dict[str, int] = {}
        """How often a trial's suggestion repeated a point before it was new."""
        self.budget = self.max_points + sum(search.rounds)
        """How many trials it has at most."""

    def ask(
        self, trial_id: str, number: int, holds: Callable[[Mapping[str, Any]], bool] = lambda params: True
    ) -> dict[str, Any] | None:
        """The next point, never a point that was tried before; None if the space is exhausted. A suggested one for
        which `holds` is false is replaced: so often as the algorithm's `max_replacements`, then by a random one."""
        if number < len(self.search.start_from):
            return self.enter(trial_id, number, self.search.start_from[number])
        if (expected := self._expect(number)) is not None:
            return self._enter(trial_id, number, expected, 0)
        if self.search.algorithm in BUILT_IN:
            return self._suggest(trial_id, number, holds)
        try:
            return self._suggest(trial_id, number, holds)
        except Exception as error:  # of another package
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise AlgorithmFailed(f"algorithm '{self.search.algorithm}' failed at a suggestion: {reason}") from error

    def _expect(self, number: int) -> dict[str, Any] | None:
        """A new point of the prior, if this trial, which is none of those that are tried first, is to have one."""
        point = self.prior.draw(number - len(self.search.start_from))
        if point is not None and self.points is not None and point_key(point) not in self.points:
            return self.points.nearest(point, without=self.seen)
        return None if point is None or point_key(point) in self.seen else point

    def _suggest(self, trial_id: str, number: int, holds: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any] | None:
        if self.grid is not None:
            point = next((point for point in self.grid if point_key(point) not in self.seen), None)
            return None if point is None else self.enter(trial_id, number, point)
        refused: dict[str, Any] | None = None
        attempt = 0
        while attempt < REPEATS and (refused is None or attempt <= self.algorithm.max_replacements):
            trial = self._new(number, attempt)
            params = suggest(self.space, trial)
            attempt += 1
            allowed = self.points is None or point_key(params) in self.points
            if allowed and point_key(params) not in self.seen:
                if holds(params):
                    return self._keep(trial_id, number, trial, params, attempt - 1)
                refused = params
            # closed at once: samplers ignore failed trials
            trial.study.tell(trial, state=TrialState.FAIL)
            if self.points is not None and not allowed:
                nearest = self.points.nearest(params, without=self.seen)
                return None if nearest is None else self._enter(trial_id, number, nearest, attempt)
        if refused is not None:
            return self._enter(trial_id, number, self._draw(number, holds) or refused, attempt)
        if self.points is None and self.space.size() == math.inf:
            return None
        points = self.space.grid() if self.points is None else self.points.points
        remaining = [point for point in points if point_key(point) not in self.seen]
        if not remaining:
            return None
        pick = np.random.default_rng((self.search.seed, number)).integers(len(remaining))
        return self._enter(trial_id, number, remaining[int(pick)], REPEATS)

    def _draw(self, number: int, holds: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any] | None:
        """A random new point for which `holds` is true, where one is soon found."""
        seed = int(np.random.SeedSequence((self.search.seed, number, REPEATS)).generate_state(1)[0])
        study = optuna.create_study(sampler=RandomSampler(seed=seed))
        points = (suggest(self.space, study.ask()) for _ in range(DRAWS))
        return next((point for point in points if point_key(point) not in self.seen and holds(point)), None)

    def enter(self, trial_id: str, number: int, params: Mapping[str, Any], attempts: int = 0) -> dict[str, Any]:
        """Add a trial with this point, given, from a grid or from the journal, which records the `attempts` before."""
        for attempt in range(attempts):
            self._close(self._new(number, attempt))
        suggested = self.algorithm.kept and len(self.search.start_from) <= number and attempts < REPEATS
        if suggested and self._expect(number) != params:
            trial = self._new(number, attempts)
            if point_key(suggest(self.space, trial)) == point_key(params):
                return self._keep(trial_id, number, trial, dict(params), attempts)
            trial.study.tell(trial, state=TrialState.FAIL)  # it would be another point today
        return self._enter(trial_id, number, params, attempts)

    def _close(self, trial: optuna.Trial) -> None:
        """Samplers ignore failed trials."""
        if self.algorithm.kept:
            suggest(self.space, trial)
        trial.study.tell(trial, state=TrialState.FAIL)

    def _enter(self, trial_id: str, number: int, params: Mapping[str, Any], attempts: int) -> dict[str, Any]:
        trial = self._new(number, attempts, params)
        if self.grid is None:
            suggest(self.space, trial)
        return self._keep(trial_id, number, trial, dict(params), attempts)

    def _new(self, number: int, attempt: int, params: Mapping[str, Any] | None = None) -> optuna.Trial:
        bracket = self.bracket(number)
        if self.algorithm.thins and len(self.directions) == 1:
            if self.sizes[bracket] >= thinning.MOST:
                self._renew(bracket, thin=True)
            elif self.replacements[bracket]:
                self._renew(bracket, thin=False)
        self.sizes[bracket] += 1
        study = self.studies[bracket]
        if not self.algorithm.kept or bracket not in self.samplers:
            study.sampler = self._sampler(number, attempt)
        if params is not None:
            study.enqueue_trial(point_by_path(self.space, params))
        trial = study.ask()
        if self.algorithm.remembers:
            _ = trial.relative_params  # advances the sampler, even if its answer is known or not used
        return trial

    def _keep(
        self, trial_id: str, number: int, trial: optuna.Trial, params: dict[str, Any], attempts: int
    ) -> dict[str, Any]:
        trial.set_user_attr("trial_id", trial_id)
        trial.set_user_attr("params", params)
        self.numbers[trial_id] = number
        self.running[self.bracket(number)][trial_id] = trial
        if not self.pruners:
            self.brackets[self.bracket(number)].enter(trial_id, coordinates(self.space.parameters(), params))
        self.attempts[trial_id] = attempts
        self.seen.add(point_key(params))
        return params

    def check(self, trial_id: str, validation: int, value: float) -> None:
        """ValueError unless the value is finite."""
        if not math.isfinite(value):
            raise ValueError(f"trial {trial_id}, validation {validation}: {value} is not finite")

    def report(self, trial_id: str, validation: int, value: float, second: float | None = None) -> bool:
        """Report the first objective at a validation, and what the second is by then; True if the trial should be
        stopped. Sampler and scheduler use the running best of the first. A validation is reported once.

        Raises:
            ValueError: the value is not finite.
        """
        self.check(trial_id, validation, value)
        course = self.courses.setdefault(trial_id, {})
        last = next(reversed(course), 0)
        if validation <= last:
            return False
        better = max if self.search.objective.mode == "max" else min
        course[validation] = best = better(value, course.get(last, value))
        bracket = self.bracket(self.numbers[trial_id])
        if (goal := self.search.second_objective) is not None:
            fronts, sign = self.brackets[bracket], -1.0 if goal.mode == "max" else 1.0
            if second is None or not isinstance(fronts, FrontBracket):
                return False
            return fronts.is_behind(validation, (self.sign * best, sign * second))
        if trial_id not in self.again:
            trial = self.running[bracket][trial_id]
            trial.report(best, validation)
            if self.pruners:
                return trial.should_prune()
        loss = self.sign * (value if self.search.scheduler.by_last else best)
        return self.brackets[bracket].validate(validation, loss, trial_id) is not None

    def copy_due(self) -> Copied | None:
        """The copy that is to begin next, before anyone goes on, if one is."""
        return next((one for bracket in self.brackets if (one := bracket.copy_due()) is not None), None)

    def enter_copy(self, trial_id: str, number: int, params: Mapping[str, Any], copied: Copied) -> None:
        """Add the copy that is due, which goes on from another trial's course. No sampler learns of it."""
        self.numbers[trial_id] = number
        self.courses[trial_id] = dict(self.courses[copied.trial_id])
        self.again[trial_id] = copy.copy(self.waiting[copied.trial_id])
        self.again[trial_id].user_attrs = {"trial_id": trial_id, "params": dict(params)}
        self.brackets[self.bracket(number)].enter_copy(trial_id)

    def promotion(self) -> str | None:
        """The waiting trial that is to go on next, if one is."""
        return next((one for bracket in self.brackets if (one := bracket.promotion()) is not None), None)

    def resume(self, trial_id: str) -> None:
        """Let a waiting trial go on."""
        self.again[trial_id] = self.waiting.pop(trial_id)
        self.brackets[self.bracket(self.numbers[trial_id])].resume(trial_id)

    def give_up(self) -> None:
        """Let no trial wait any more: the search has ended."""
        for trial_id in list(self.waiting):
            self._give_up(trial_id)

    def _give_up(self, trial_id: str) -> None:
        self._store(self.waiting.pop(trial_id))
        del self.courses[trial_id]

    def tell(
        self,
        trial_id: str,
        state: str,
        second: float | None = None,
        excesses: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Record the end of a trial: `done` with its best, `pruned` with its curve, anything else as failed. If the
        scheduler promotes, one that is `pruned` waits.

        `second` is the second objective at its best validation, if the search has two; `excesses` by how much it is
        above its limits (`costs.excesses`). One that breaks a limit does not wait; for samplers that do not see stopped
        trials it has the worst values so far.
        """
        bracket = self.bracket(self.numbers[trial_id])
        course = self.courses.pop(trial_id, {})
        best = course[next(reversed(course))] if course else None
        values = [best, *([second] if len(self.directions) > 1 else [])]
        known = [value for value in values if value is not None]
        told = TrialState.PRUNED if state == "pruned" else TrialState.COMPLETE
        holds = all(excess <= 0 for excess in excesses.values())
        if state not in FINISHED or (holds and len(known) < len(values)):
            told = TrialState.FAIL
        elif len(known) < len(values):  # it was not trained
            told = TrialState.PRUNED
        if told == TrialState.COMPLETE and not self.pruners:
            self.brackets[bracket].finish({age: self.sign * value for age, value in course.items()}, trial_id)
        if (before := self.again.pop(trial_id, None)) is not None:
            ended = _ended_again(before, told, course, best)
            self.replacements[bracket][trial_id] = ended
        else:
            trial = self.running[bracket].pop(trial_id)
            if best is not None:
                self.prior.tell(trial.user_attrs["params"], self.sign * best)
            for name, excess in excesses.items() if told != TrialState.FAIL else ():
                set_constraint(trial, name, excess)
            stands_for = told == TrialState.PRUNED and not holds and not self.algorithm.sees_stopped
            worst = worst_values(trial.study) if stands_for else None
            if worst is not None:
                ended = trial.study.tell(trial, worst, state=TrialState.COMPLETE)
            else:
                ended = trial.study.tell(trial, known if told == TrialState.COMPLETE else None, state=told)
            if ended.state != TrialState.FAIL and trial.study is not self.studies[bracket]:
                self.studies[bracket].add_trial(ended)  # it began before this study was made
                self.sizes[bracket] += 1
            if worst is not None:
                ended = copy.copy(ended)
                ended.state, ended.values = TrialState.PRUNED, None
        if told == TrialState.PRUNED and self.search.scheduler.promotes and best is not None and holds:
            self.waiting[trial_id], self.courses[trial_id] = ended, course
            age = next(reversed(course))
            gone = self.brackets[bracket].wait(trial_id, age, self.sign * best, self._may_pass)
        else:
            self._store(ended)
            gone = self.brackets[bracket].leave(trial_id) if self.brackets else []
        for one in gone:
            self._give_up(one)

    def _may_pass(self, place: int) -> bool:
        return self.search.scheduler.may_pass(place, self.budget)

    def _store(self, trial: FrozenTrial) -> None:
        if self.stored is not None:
            copy_of_trial = copy.copy(trial)
            copy_of_trial._system_attrs = {}  # the state of samplers and pruners is of no use to a reader
            self.stored.add_trial(copy_of_trial)

    def _create(self, bracket: int) -> optuna.Study:
        pruner = self.pruners[bracket] if self.pruners else optuna.pruners.NopPruner()
        return optuna.create_study(directions=self.directions, sampler=RandomSampler(seed=0), pruner=pruner)

    def _renew(self, bracket: int, *, thin: bool) -> None:
        """Make a bracket's study anew, of what became of its trials. With `thin` only of the trials that matter most: a
        suggestion costs in proportion to those that a sampler looks at. Trials that run and are left out are added when
        they end."""
        changed = self.replacements[bracket]
        ended = self.studies[bracket].get_trials(deepcopy=False, states=thinning.LEARNT_FROM)
        chosen = [changed.get(trial.user_attrs["trial_id"], trial) for trial in ended]
        chosen = [trial for trial in chosen if trial.state in thinning.LEARNT_FROM]
        if thin:
            chosen = thinning.choose_trials(chosen, self.sign, self.search.seed)
        study = self.studies[bracket] = self._create(bracket)
        self.replacements[bracket] = {}
        self.samplers.pop(bracket, None)
        study.add_trials(chosen)
        running = list(self.running[bracket].items())[-thinning.RUNNING if thin else 0 :]
        self.sizes[bracket] = len(chosen) + len(running)
        for trial_id, trial in running:
            study.enqueue_trial(point_by_path(self.space, trial.user_attrs["params"]))
            again = self.running[bracket][trial_id] = study.ask()
            suggest(self.space, again)
            for name, value in trial.user_attrs.items():
                again.set_user_attr(name, value)
            for validation, best in self.courses.get(trial_id, {}).items():
                again.report(best, validation)

    def bracket(self, number: int) -> int:
        """The bracket of Hyperband that a trial belongs to."""
        return self.cycle[number % len(self.cycle)]

    def _cycle(self) -> list[int]:
        """Brackets in the order in which they get trials: as many of each as the scheduler says, in a random order from
        the seed; the cycle is repeated."""
        if len(self.studies) == 1:
            return [0]
        sizes = self.search.scheduler.sizes(len(self.studies))
        brackets = [bracket for bracket, size in enumerate(sizes) for _ in range(size)]
        return [int(b) for b in np.random.default_rng(self.search.seed).permutation(brackets)]

    def _sampler(self, number: int, attempt: int) -> BaseSampler:
        draw = Draw(
            seed=int(np.random.SeedSequence((self.search.seed, number, attempt)).generate_state(1)[0]),
            search_seed=self.search.seed,
            trials=self.search.max_points or 40,
            conditional=any(parameter.branches for parameter in self.space.parameters()),
            comparable=self.search.scheduler.comparable,
            constraints=read_constraints if self.search.constraints and not SETS_CONSTRAINTS else None,
        )
        sampler: BaseSampler = self.algorithm.sampler(optuna.samplers, draw)
        first = self.samplers.setdefault(self.bracket(number), sampler)
        if isinstance(sampler, TPESampler):
            # the common space of all points is updated per trial, not recomputed from all trials for every suggestion
            for name in ("_search_space", "_group_decomposed_search_space"):
                if hasattr(first, name):  # else each suggestion takes longer
                    setattr(sampler, name, getattr(first, name))
        return sampler


def _ended_again(before: FrozenTrial, state: TrialState, course: dict[int, float], best: float | None) -> FrozenTrial:
    """A trial that was stopped early, went on and has ended now."""
    return optuna.trial.create_trial(
        state=state,
        value=None if state == TrialState.FAIL else best,
        params=before.params,
        distributions=before.distributions,
        user_attrs=before.user_attrs,
        system_attrs=before.system_attrs,
        intermediate_values=course,
    )


def suggest(space: Space, trial: optuna.Trial) -> dict[str, Any]:
    """One value per active setting of the space."""

    def walk(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for p in parameters:
            value: Any
            if p.kind == "int":
                value = int(trial.suggest_int(p.path, int(p.low), int(p.high), step=int(p.step or 1), log=p.log))
            elif p.kind == "float":
                value = p.on_grid(float(trial.suggest_float(p.path, p.low, p.high, step=p.step, log=p.log)))
            else:
                index = trial.suggest_categorical(p.path, [str(choice) for choice in p.choices])
                value = p.choices[[str(choice) for choice in p.choices].index(index)]
            values[p.key] = value
            values |= walk(p.branches.get(value, ()))
        return values

    return walk(space.alternatives[0])
