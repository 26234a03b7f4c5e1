"""Which point next, and who is stopped early: Optuna's ask and tell over a journaled search. The door to optuna.

The search's journal is the record; the Optuna study is a projection of it, rebuilt whenever a search goes on, so
the two cannot disagree. Each suggestion is seeded from (search seed, trial number): a search that was killed and
resumed suggests what an undisturbed one would.
"""

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from orchestrator.spec import Parameter, Search, Space

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

REPEATS = 20
"""How often a suggestion that was tried before is asked anew."""


class Study:
    """The sampler and pruner of one search, over trials known by their own ids."""

    def __init__(self, search: Search, path: Path | None = None) -> None:
        """`path` keeps the study as an Optuna journal (for optuna-dashboard, say); what it held is replaced."""
        self.search = search
        self.space = search.space
        self.grid = self.space.grid() if search.algorithm == "grid" else None
        storage = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            storage = JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))
        self.study = optuna.create_study(
            storage=storage,
            study_name=search.name,
            direction="maximize" if search.objective.mode == "max" else "minimize",
            sampler=RandomSampler(seed=0),
            pruner=self._pruner(),
        )
        self.trials: dict[str, optuna.Trial] = {}
        self.best: dict[str, float] = {}
        self.reported: dict[str, int] = {}
        self.seen: set[str] = set()

    @property
    def budget(self) -> int:
        """How many trials the search has at most."""
        size = self.space.size()
        limit = self.search.num_trials if self.search.num_trials is not None else math.inf
        return int(min(size, limit))

    def ask(self, trial_id: str, number: int) -> dict[str, Any] | None:
        """The next point, never one that was tried before; None when the space is exhausted."""
        if self.grid is not None:
            left = [point for point in self.grid if _key(point) not in self.seen]
            if not left:
                return None
            return self.enter(trial_id, left[0])
        for attempt in range(REPEATS):
            self.study.sampler = self._sampler(number, attempt)
            trial = self.study.ask()
            params = suggest(self.space, trial)
            if _key(params) not in self.seen:
                return self._keep(trial_id, trial, params)
            # closed at once: samplers take no notice of failed trials
            trial.set_user_attr("repeats a point", True)
            self.study.tell(trial, state=TrialState.FAIL)
        if self.space.size() == math.inf:
            return None
        left = [point for point in self.space.grid() if _key(point) not in self.seen]
        if not left:
            return None
        pick = np.random.default_rng((self.search.seed, number)).integers(len(left))
        return self.enter(trial_id, left[int(pick)])

    def enter(self, trial_id: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """A trial with this point, from a grid or from the journal."""
        self.study.sampler = RandomSampler(seed=0)
        self.study.enqueue_trial(_paths(self.space, params))
        trial = self.study.ask()
        if self.grid is None:
            suggest(self.space, trial)
        return self._keep(trial_id, trial, dict(params))

    def _keep(self, trial_id: str, trial: optuna.Trial, params: dict[str, Any]) -> dict[str, Any]:
        trial.set_user_attr("trial_id", trial_id)
        trial.set_user_attr("params", params)
        self.trials[trial_id] = trial
        self.seen.add(_key(params))
        return params

    def report(self, trial_id: str, validation: int, value: float) -> bool:
        """The objective at a validation; True if the trial should be stopped.

        The running best is what counts, for sampler and pruner alike. A validation is reported once.
        """
        if validation <= self.reported.get(trial_id, 0):
            return False
        self.reported[trial_id] = validation
        better = max if self.search.objective.mode == "max" else min
        self.best[trial_id] = better(value, self.best.get(trial_id, value))
        trial = self.trials[trial_id]
        trial.report(self.best[trial_id], validation)
        return trial.should_prune()

    def tell(self, trial_id: str, state: str) -> None:
        """The end of a trial: `done` with its best, `pruned` with its curve, anything else as failed."""
        trial = self.trials[trial_id]
        if trial_id not in self.best or state not in ("done", "pruned"):
            self.study.tell(trial, state=TrialState.FAIL)
        elif state == "pruned":
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, self.best[trial_id])

    def _sampler(self, number: int, attempt: int) -> BaseSampler:
        seed = int(np.random.SeedSequence((self.search.seed, number, attempt)).generate_state(1)[0])
        if self.search.algorithm == "random":
            return RandomSampler(seed=seed)
        startup = max(3, min(10, (self.search.num_trials or 40) // 4))
        conditional = any(parameter.branches for parameter in self.space.parameters())
        return TPESampler(seed=seed, multivariate=True, group=conditional, constant_liar=True, n_startup_trials=startup)

    def _pruner(self) -> BasePruner:
        scheduler = self.search.scheduler
        if scheduler.name == "none":
            return NopPruner()
        return SuccessiveHalvingPruner(
            min_resource=scheduler.grace_validations, reduction_factor=scheduler.reduction_factor
        )


def suggest(space: Space, trial: optuna.Trial) -> dict[str, Any]:
    """One value per active setting of the space."""

    def walk(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for p in parameters:
            value: Any
            if p.kind == "int":
                value = trial.suggest_int(p.path, int(p.low), int(p.high), step=int(p.step or 1), log=p.log)
            elif p.kind == "float":
                value = trial.suggest_float(p.path, p.low, p.high, step=p.step, log=p.log)
                value = round(value, 12) if p.step else value
            else:
                index = trial.suggest_categorical(p.path, [str(choice) for choice in p.choices])
                value = p.choices[[str(choice) for choice in p.choices].index(index)]
            values[p.key] = value
            values |= walk(p.branches.get(value, ()))
        return values

    return walk(space.alternatives[0])


def _paths(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """The point as Optuna knows it."""

    def walk(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for p in parameters:
            if p.key in params:
                value = params[p.key]
                values[p.path] = str(value) if p.kind == "categorical" else value
                values |= walk(p.branches.get(value, ()))
        return values

    return dict(itertools.chain.from_iterable(walk(alternative).items() for alternative in space.alternatives))


def _key(params: Mapping[str, Any]) -> str:
    return repr(sorted(params.items()))


FORESTS = 5
"""Over so many seeds an importance is averaged: it comes from random forests."""


def importances(space: Space, points: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, tuple[float, float]]:
    """By fANOVA, each setting's share of the objective's variance over the space: mean and standard deviation over
    forests of `FORESTS` seeds, largest first. Settings that not every point has are left out; none where the objective
    does not vary.

    Source: Hutter, Hoos and Leyton-Brown, An Efficient Approach for Assessing Hyperparameter Importance, ICML 2014.
    """
    if len({value for _, value in points}) < 2:
        return {}
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    distributions = {parameter.path: _distribution(parameter) for parameter in space.parameters()}
    for params, value in points:
        paths = _paths(space, params)
        own = {path: distributions[path] for path in paths}
        study.add_trial(optuna.trial.create_trial(params=paths, distributions=own, value=value))
    found: dict[str, list[float]] = {}
    for seed in range(FORESTS):
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=seed)
        for path, share in optuna.importance.get_param_importances(study, evaluator=evaluator).items():
            found.setdefault(path.rpartition("/")[2], []).append(share)
    spread = {key: (float(np.mean(shares)), float(np.std(shares, ddof=1))) for key, shares in found.items()}
    return dict(sorted(spread.items(), key=lambda item: -item[1][0]))


def _distribution(p: Parameter) -> BaseDistribution:
    if p.kind == "int":
        return IntDistribution(int(p.low), int(p.high), log=p.log, step=int(p.step or 1))
    if p.kind == "float":
        return FloatDistribution(p.low, p.high, log=p.log, step=p.step)
    return CategoricalDistribution([str(choice) for choice in p.choices])
