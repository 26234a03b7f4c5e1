"""Searches of other libraries on the tasks of the tabular benchmark, beside ours in one run.

    uv pip install neural-pipeline-search syne-tune      # those that are missing are left out, with a line
    python benchmarks/peers.py [--tasks margin ...] [--ways ours neps/ifbo ...] [--seeds 20] [--slots 1] [--held-out]

A line for each task and way: epochs until a validation has reached 99% of the table's best, as a share of those of the
whole table: median and quartiles over seeds (`tabular.py compare` says more of this). A suggestion is trained as the
nearest point of the table that was not tried before, as ours is; another library is not told so. Trials run `slots` at
a time, on a clock that counts the recorded seconds; a trial that waited goes on from where it was, and pays for what is
new alone. All have the spaces without priors; of a space with conditions others see all settings.
"""

import heapq
import itertools
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol

from tabular import task_parser, tasks_of

from orchestrator.benchmarking import TabularCurve, TabularTask, evaluate_algorithm, suggest
from orchestrator.benchmarking.replaying import goal_of
from orchestrator.config.space import Parameter, point_key

OURS: dict[str, dict[str, Any]] = {
    "ours/auto": {"algorithm": "auto"},
    "ours/tpe": {"algorithm": "tpe"},
    "ours/tpe + asha": {
        "algorithm": "tpe",
        "scheduler": {"name": "asha", "grace_validations": 3, "reduction_factor": 3},
    },
    "ours/tpe + promotion": {"algorithm": "tpe", "scheduler": {"name": "promotion"}},
    "ours/tpe + forecast": {"algorithm": "tpe", "scheduler": {"name": "forecast"}},
}
Make = Callable[..., Any]
MOST_RUNS = 3
"""Runs of a peer end after as many as the table has points, times this."""


@dataclass
class Run:
    """A trial that a peer asks for: to this validation at most, from `age` on."""

    key: Any
    point: Mapping[str, Any]
    until: int | None = None
    handle: Any = None
    """What the peer needs to know it by."""


def ranges_of(task: TabularTask, choice: Make, *, real: tuple[Make, Make], whole: tuple[Make, Make]) -> dict[str, Any]:
    """What is searched, as a library makes it of choices, and of the ends of ranges, plain or logarithmic."""

    def range_of(one: Parameter) -> Any:
        if one.kind == "categorical":
            return choice(list(one.choices))
        kind, makes = (int, whole) if one.kind == "int" else (float, real)
        return makes[one.log](kind(one.low), kind(one.high))

    return {one.key: range_of(one) for one in task.space.parameters()}


class Peer(Protocol):
    """A search of another library. Values are to be maximised."""

    def ask(self) -> Run:
        """The next trial."""

    def validated(self, run: Run, number: int, best: float) -> bool:
        """The best value so far after a validation; whether it stops the trial."""

    def ended(self, run: Run, best: float | None, *, stopped: bool) -> None:
        """The end of a trial, and its best value; None if it failed."""


@dataclass
class OptunaPeer:
    """A sampler and a pruner of plain Optuna."""

    task: TabularTask
    seed: int
    study: Any = field(init=False)
    pruner: str = "hyperband"

    def __post_init__(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        of = {
            "hyperband": optuna.pruners.HyperbandPruner(min_resource=1, max_resource=self.task.validations),
            "none": optuna.pruners.NopPruner(),
        }
        sampler = optuna.samplers.TPESampler(seed=self.seed)
        self.study = optuna.create_study(direction="maximize", sampler=sampler, pruner=of[self.pruner])

    def ask(self) -> Run:
        trial = self.study.ask()
        return Run(trial.number, suggest(self.task.space, trial), handle=trial)

    def validated(self, run: Run, number: int, best: float) -> bool:
        run.handle.report(best, number)
        return bool(run.handle.should_prune())

    def ended(self, run: Run, best: float | None, *, stopped: bool) -> None:
        from optuna.trial import TrialState

        if stopped:
            self.study.tell(run.handle, state=TrialState.PRUNED)
        else:
            self.study.tell(run.handle, best, state=TrialState.FAIL if best is None else None)


@dataclass
class SynePeer:
    """A scheduler of Syne Tune, of one fidelity or of several."""

    task: TabularTask
    seed: int
    name: str = "ASHA"
    scheduler: Any = field(init=False)
    ids: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        import numpy as np
        from syne_tune.config_space import choice, lograndint, loguniform, randint, uniform
        from syne_tune.optimizer import baselines

        logging.getLogger("syne_tune").setLevel(logging.ERROR)
        np.random.seed(self.seed)  # noqa: NPY002 (Syne Tune draws the brackets of ASHA from it)
        space = ranges_of(self.task, choice, real=(uniform, loguniform), whole=(randint, lograndint))
        several = {} if self.name in ("TPE", "CQR", "BORE") else {"time_attr": "at", "max_t": self.task.validations}
        make = getattr(baselines, self.name)
        self.scheduler = make(space, metric="value", do_minimize=False, random_seed=self.seed, **several)

    def ask(self) -> Run:
        import datetime

        from syne_tune.backend.trial_status import Trial

        config, number = self.scheduler.suggest().config, next(self.ids)
        trial = Trial(trial_id=number, config=config, creation_time=datetime.datetime(2000, 1, 1))
        self.scheduler.on_trial_add(trial)
        return Run(number, config, handle=trial)

    def validated(self, run: Run, number: int, best: float) -> bool:
        if number == self.task.validations:
            return False  # its end is told as such
        return bool(self.scheduler.on_trial_result(run.handle, {"value": best, "at": number}) == "STOP")

    def ended(self, run: Run, best: float | None, *, stopped: bool) -> None:
        if best is None:
            self.scheduler.on_trial_error(run.handle)
        elif stopped:
            self.scheduler.on_trial_remove(run.handle)
        else:
            self.scheduler.on_trial_complete(run.handle, {"value": best, "at": self.task.validations})


@dataclass
class NepsPeer:
    """An optimizer of NePS: it asks for a point and how long it is trained, and goes on with earlier ones likewise."""

    task: TabularTask
    seed: int
    name: str = "priorband"
    asking: Any = field(init=False)

    def __post_init__(self) -> None:
        import random

        import neps
        import numpy as np
        import torch
        from neps.optimizers import algorithms

        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(self.seed)
        real, whole = ((kind, partial(kind, log=True)) for kind in (neps.Float, neps.Integer))
        ranges = ranges_of(self.task, neps.Categorical, real=real, whole=whole)
        self.fidelity = "validations"
        ranges[self.fidelity] = neps.IntegerFidelity(1, self.task.validations)
        space = type("TaskSpace", (neps.PipelineSpace,), ranges)()
        self.asking = neps.AskAndTell(optimizer=algorithms.PredefinedOptimizers[self.name](space))

    def ask(self) -> Run:
        trial = self.asking.ask()
        config = dict(trial.config)
        until = config.pop(self.fidelity, self.task.validations)
        number = trial.metadata.id.partition("_rung_")[0]  # of the point: `9_rung_1` goes on with `9_rung_0`
        return Run(number, config, int(until), trial.metadata.id)

    def validated(self, run: Run, number: int, best: float) -> bool:
        return False

    def ended(self, run: Run, best: float | None, *, stopped: bool) -> None:
        value = 0.0 if best is None else best
        self.asking.tell(run.handle, {"objective_to_minimize": -value, "cost": float(run.until or 1)})


PEERS: dict[str, tuple[str, Callable[[TabularTask, int], Peer]]] = {
    "optuna/tpe + hyperband": ("optuna", OptunaPeer),
    "optuna/tpe": ("optuna", lambda task, seed: OptunaPeer(task, seed, pruner="none")),
    "neps/priorband": ("neps", NepsPeer),
    "neps/ifbo": ("neps", lambda task, seed: NepsPeer(task, seed, "ifbo")),
    "neps/async_hb": ("neps", lambda task, seed: NepsPeer(task, seed, "async_hb")),
    "syne_tune/ASHA": ("syne_tune", SynePeer),
    "syne_tune/BOHB": ("syne_tune", lambda task, seed: SynePeer(task, seed, "BOHB")),
}


def epochs_to_goal(task: TabularTask, peer: Peer, goal: float, training_seed: int, slots: int) -> float | None:
    """The epochs of all trials until one had reached the goal; None if the table's points end before."""
    points: dict[Any, Mapping[str, Any]] = {}
    ages: dict[Any, int] = {}
    running: list[tuple[float, int, Run, int]] = []
    now, spent, order = 0.0, 0.0, itertools.count()

    def curve_of(run: Run) -> TabularCurve | None:
        if run.key not in points:
            tried = {point_key(point) for point in points.values()}
            near = task.table_points.nearest(task.space.point(run.point), tried)  # without settings of other branches
            if near is None:
                return None
            points[run.key] = near
        return task.curve(points[run.key], training_seed)

    def begin() -> bool:
        run = peer.ask()
        curve = curve_of(run)
        if curve is None:
            return False
        advance(run, curve, ages.get(run.key, 0))
        return True

    def advance(run: Run, curve: TabularCurve, age: int) -> None:
        if age >= min(len(curve), run.until or len(curve)):  # all of it is known already, or it fails at once
            peer.ended(run, best_until(task, curve, age), stopped=False)
        else:
            heapq.heappush(running, (now + curve.seconds[age], next(order), run, age))

    left = MOST_RUNS * len(task.points)
    while left or running:
        while len(running) < slots and left:
            left = left - 1 if begin() else 0
        if not running:
            continue
        now, _, run, age = heapq.heappop(running)
        curve = task.curve(points[run.key], training_seed)
        epochs = curve.metrics["epoch"]
        spent += epochs[age] - (epochs[age - 1] if age else 0.0)
        ages[run.key] = age + 1
        best = best_until(task, curve, age + 1)
        assert best is not None
        if best >= goal:
            return spent
        if peer.validated(run, age + 1, best):
            peer.ended(run, best, stopped=True)
        elif age + 1 == len(curve) and curve.reason is not None:
            peer.ended(run, None, stopped=False)
        else:
            advance(run, curve, age + 1)
    return None


def sign_of(task: TabularTask) -> float:
    """By which its objective is multiplied, to be maximised."""
    return 1.0 if task.objective.mode == "max" else -1.0


def best_until(task: TabularTask, curve: TabularCurve, age: int) -> float | None:
    """The best of the first validations, to be maximised; None of none."""
    sign = sign_of(task)
    return max((sign * value for value in curve.metrics[task.objective.metric][:age]), default=None)


def shares_of(task: TabularTask, way: str, seeds: int, slots: int) -> tuple[list[float], int]:
    """Of each seed the share of the table's epochs; and how many never came to the goal, which count as 1."""
    if way in OURS:
        ours = evaluate_algorithm(task, seeds=range(seeds), slots=slots, **OURS[way])
        return list(ours.shares), ours.missed
    shares, missed, make = [], 0, PEERS[way][1]
    for seed in range(seeds):
        training_seed = task.seeds[seed % len(task.seeds)]
        goal = sign_of(task) * goal_of(task, training_seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            epochs = epochs_to_goal(task, make(task, seed), goal, training_seed, slots)
        missed += epochs is None
        shares.append(1.0 if epochs is None else min(1.0, epochs / task.epochs))
    return shares, missed


def main() -> None:
    parser = task_parser(__doc__)
    parser.add_argument("--ways", nargs="*", choices=[*OURS, *PEERS], default=[*OURS, *PEERS])
    options = parser.parse_args()
    ways = [way for way in options.ways if way in OURS or find_spec(PEERS[way][0]) is not None]
    for way in [way for way in options.ways if way not in ways]:
        print(f"left out, not installed: {way}")
    print("| task | search | share of the table's epochs | quartiles | never | seconds of a search |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for task in tasks_of(options):
        for way in ways:
            started = time.perf_counter()
            try:
                shares, missed = shares_of(task, way, options.seeds, options.slots)
            except OSError as error:  # ifBO fetches its model
                print(f"left out: {way}: {str(error)[:160]}", flush=True)
                continue
            seconds = (time.perf_counter() - started) / options.seeds
            low, median, high = statistics.quantiles(shares, n=4) if len(shares) > 1 else 3 * shares
            print(
                f"| {task.name} | {way} | {median:.3f} | {low:.3f} to {high:.3f} | {missed} of {options.seeds} "
                f"| {seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
