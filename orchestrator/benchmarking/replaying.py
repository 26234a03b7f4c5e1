"""Searches over a task: the real conductor, journal, sampler and early stops, with recorded curves as trainings."""

import contextlib
import heapq
import itertools
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.benchmarking.table import TabularTask
from orchestrator.config.search import Objective, Search
from orchestrator.errors import InputError
from orchestrator.execution.protocol import Failed, Result, Runner, TrialSource, Validated, Work
from orchestrator.problems import Problem
from orchestrator.search.beginning import first_fields
from orchestrator.search.conductor import Conductor
from orchestrator.search.study import Study
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import JOURNAL

MEMORY = Path("/dev/shm")
"""Where journals of replays lie, if there is such a folder: in memory, no disk is waited for."""
SHARE = 0.99
"""What counts as the best: this share of the best value of the whole table."""


@dataclass(frozen=True)
class Progress:
    """What a search had spent and reached after one of its validations."""

    epochs: float
    """Of all trials so far together."""
    seconds: float
    """On the clock of the recorded trainings."""
    best: float
    """The best value of the objective so far."""


@dataclass(frozen=True)
class Replay:
    """A replayed search."""

    ledger: Ledger
    """All of it, as of a real search; its trials have the values that were recorded."""
    progress: tuple[Progress, ...]
    """After each validation, in the order in which they came."""
    mode: str

    def epochs_to(self, goal: float) -> float | None:
        """The epochs of all trials until one had reached this value; None if none has."""
        reached = (p.epochs for p in self.progress if (p.best >= goal if self.mode == "max" else p.best <= goal))
        return next(reached, None)


@dataclass(frozen=True)
class ReplayedSearches:
    """How soon a search algorithm comes to the best of a task, over seeds."""

    shares: tuple[float, ...]
    """For each seed the epochs until a validation had reached the goal, as a share of those of the whole table; 1 where
    the search ended without it."""
    missed: int
    """In how many searches none had."""
    trials: int
    """Of all searches together."""

    @property
    def median(self) -> float:
        return statistics.median(self.shares)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third."""
        if len(self.shares) == 1:
            return self.shares[0], self.shares[0]
        low, _, high = statistics.quantiles(self.shares, n=4)
        return low, high


class TableRunner:
    """Trains nothing: each result of a trial is that of its point's recorded curve, and comes when it would have come
    on a clock that counts the recorded seconds, where `slots` trials run at once."""

    own_processes = False
    stage = "starting"

    def __init__(self, task: TabularTask, *, slots: int = 1, goal: float | None = None) -> None:
        """With a `goal` the search ends when a validation has reached it."""
        self.task = task
        self.slots = slots
        self.goal = goal
        self.objective = task.objective
        self.now = 0.0
        self.progress: list[Progress] = []
        self._epochs: dict[str, float] = {}
        self._validations: dict[str, int] = {}
        """Of each trial; one that goes on does so from its last one, as from its checkpoint."""

    @contextlib.contextmanager
    def ready(self, search: Search, storage: Path) -> Iterator[int]:
        yield self.slots

    def resources(self, search: Search) -> dict[str, float]:
        return {"CPU": 1.0}

    def run(self, conductor: TrialSource) -> None:
        order = itertools.count()
        running: list[tuple[float, int, Iterator[tuple[float, Result]], Result]] = []

        def advance(trial: Iterator[tuple[float, Result]]) -> None:
            if (following := next(trial, None)) is not None:
                heapq.heappush(running, (self.now + following[0], next(order), trial, following[1]))

        while not conductor.is_finished:
            while len(running) < self.slots and (work := conductor.next()) is not None:
                advance(recorded_results(self.task, work, after=self._validations.get(work.trial_id, 0)))
            if not running:
                return
            self.now, _, trial, result = heapq.heappop(running)
            stop = conductor.report(result)
            if (isinstance(result, Validated) and self._reaches_goal(result)) or conductor.stopping:
                return
            if not stop:
                advance(trial)

    def _reaches_goal(self, result: Validated) -> bool:
        """Note the search's progress; whether its goal is reached."""
        self._validations[result.trial_id] = result.number
        last = self.progress[-1] if self.progress else Progress(0.0, 0.0, result.metrics[self.objective.metric])
        epochs = result.metrics["epoch"] - self._epochs.get(result.trial_id, 0.0)
        self._epochs[result.trial_id] = result.metrics["epoch"]
        best = better_of(self.objective, last.best, result.metrics[self.objective.metric])
        self.progress.append(Progress(last.epochs + epochs, self.now, best))
        return self.goal is not None and better_of(self.objective, best, self.goal) == best


def better_of(objective: Objective, one: float, other: float) -> float:
    return max(one, other) if objective.mode == "max" else min(one, other)


def recorded_results(task: TabularTask, work: Work, after: int = 0) -> Iterator[tuple[float, Result]]:
    """The results of a trial after so many validations, each with the seconds since the one before."""
    settings = work.experiment.flat()
    curve = task.curve(task.space.point(settings), settings["seed"])
    for number, seconds in enumerate(curve.seconds[after:], start=1 + after):
        metrics = {name: values[number - 1] for name, values in curve.metrics.items()}
        ended = number == len(curve) and curve.reason is None
        yield seconds, Validated(work.trial_id, number, metrics, seconds, finished=ended)
    if curve.reason is not None:
        yield 0.0, Failed(work.trial_id, curve.reason, failure="training")


def replay(
    task: TabularTask,
    *,
    seed: int = 0,
    training_seed: int | None = None,
    slots: int = 1,
    goal: float | None = None,
    folder: Path | None = None,
    **changes: Any,
) -> Replay:
    """Search a task: the search by which it was recorded, with other top-level keys of a search file (`algorithm`,
    `scheduler`, `num_trials`, `budget`, `start_from`, ...).

    The conductor, the journal, the sampler and the early stops are those of a real search; only trainings are looked up
    instead of run. A suggestion that is no point of the table is replaced by the nearest one not tried before (see
    `PointTable`), of which the sampler is told, so that what it knows is true.

    Args:
        seed: of the search.
        training_seed: that of the trainings, one of `task.seeds`, by default the first.
        slots: how many trials run at once, on the clock of the recorded seconds.
        goal: a value of the objective at which the search ends.
        folder: where its journal stays, by default nowhere.

    Raises:
        InputError: the search is refused, as a file with these keys would be; the folder holds a search; or a key needs
            what a table does not have.
    """
    if slots < 1:
        raise InputError(Problem(("slots",), slots, "should be at least 1"))
    if folder is not None and folder.exists() and not folder.is_dir():
        raise InputError(Problem(("folder",), str(folder), "is a file; it should be a new folder"))
    if folder is not None and (folder / JOURNAL).exists():
        raise InputError(Problem(("folder",), str(folder), "holds a search; it should be a new folder"))
    search = task.search(training_seed, seed=seed, **changes)
    check_recorded(task, search)
    runner = TableRunner(task, slots=slots, goal=goal)
    memory = MEMORY if MEMORY.is_dir() else None
    temporary = tempfile.TemporaryDirectory(dir=memory) if folder is None else contextlib.nullcontext(str(folder))
    with temporary as name:
        ledger = search_points(task, search, runner, Path(name))
    return Replay(ledger, tuple(runner.progress), search.objective.mode)


def check_recorded(task: TabularTask, search: Search) -> None:
    """InputError for keys of a search that need more than recorded curves: limits of costs, and of time."""
    if not task.points:
        raise InputError(f"task '{task.name}': has no points")
    columns = {name for curve in task.curves.values() for name in curve.metrics}
    problems = [
        Problem((key,), name, "is not recorded in the table")
        for key, names in (
            ("constraints", list(search.constraints)),
            ("objectives", [goal.metric for goal in search.goals]),
        )
        for name in names
        if name not in columns
    ]
    if search.trial_timeout is not None:
        problems.append(Problem(("trial_timeout",), search.trial_timeout, "needs trainings that run"))
    if problems:
        raise InputError(*problems)


def search_points(task: TabularTask, search: Search, runner: Runner, folder: Path, data: Path | None = None) -> Ledger:
    """Run a search that may only try the task's points, with its journal in a new `folder`. Another runner than the
    table's trains them, on the data sets in the folder `data`: the way to check a replay against trainings."""
    if search.scheduler.copies:
        rule = f"{search.scheduler.name}: changes settings while it trains, and a table has none of such trainings"
        raise InputError(Problem(("scheduler",), rule=rule))
    data = data or folder
    with Journal(folder / JOURNAL) as journal, runner.ready(search, folder) as slots:
        first = journal.append("search_started", sync=False, **first_fields(search), params={}, tags={})
        clock = (lambda: runner.now) if isinstance(runner, TableRunner) else None
        study = Study(search, points=task.table_points)
        conductor = Conductor(
            search,
            folder,
            data=data,
            journal=journal,
            events=[first],
            slots=slots,
            resources=runner.resources(search),
            study=study,
            clock=clock,
        )
        runner.run(conductor)
        conductor.end()
    return conductor.ledger


def goal_of(task: TabularTask, training_seed: int, share: float = SHARE) -> float:
    """The value that counts as the best of the whole table: within `share` of it."""
    best = task.best(training_seed)
    return share * best if task.objective.mode == "max" else best / share


def evaluate_algorithm(
    task: TabularTask, *, seeds: Iterable[int] = range(20), share: float = SHARE, **changes: Any
) -> ReplayedSearches:
    """Replay a search with each seed until a validation has reached `share` of the best value of the whole table.

    The seeds of the trainings take turns: search k has the (k mod n)th of the task's n. `changes` are those of
    `replay`; by default a search tries every point.
    """
    each_seed = list(seeds)
    if not each_seed:
        raise InputError(Problem(("seeds",), rule="is empty; give one seed or more"))
    shares, missed, trials = [], 0, 0
    for turn, seed in enumerate(each_seed):
        training_seed = task.seeds[turn % len(task.seeds)]
        goal = goal_of(task, training_seed, share)
        changes = {"num_trials": len(task.points), **changes}
        one = replay(task, seed=seed, training_seed=training_seed, goal=goal, **changes)
        epochs = one.epochs_to(goal)
        missed, trials = missed + (epochs is None), trials + len(one.ledger.trials)
        shares.append(1.0 if epochs is None else epochs / task.epochs)
    return ReplayedSearches(tuple(shares), missed, trials)
