"""A search whose trainings lose their processes again and again, three in four of them with notice.

    nice python benchmarks/preemptions.py --preemptions 200 --output benchmarks/preemptions.md

A search of 10 trials of two long epochs on drawn images, two trials at a time, is run undisturbed, then with so many
preemptions: after a few steps, chosen at random, a training's process gets SIGTERM (announced) or SIGKILL (not). Each
training has a process of its own, forked from one that has imported everything, which makes so many of them possible;
all else is a search's own (under Ray a slow test does it). Exit code 1 if a trial failed, if the leaderboards differ in
a bit, or if announced ends cost more than 1% of the steps.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.execution.protocol import Failed, Runner, TrialSource, Work
from orchestrator.search.driver import start
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger

NAME = "preempted"
STEPS_BETWEEN = (3, 15)
"""A process is ended after so many steps, chosen at random from this range."""
ANNOUNCED = 0.75
"""The share of announced ends."""
SETTINGS = {
    "method": "contrastive",
    "references": "batch+memory",
    "memory_start": 10,
    "memory_size": 256,
    "device": "cpu",
    "embedding_dim": 16,
    "classes_per_batch": 6,
    "images_per_class": 2,
    "ema_decay": 0.9,
    "epochs": 2,
    "validate_every": "1 epoch",
    "checkpoint_every": "1 second",
    "lr_schedule": "cosine",
}
PRELOADED = ["orchestrator.training.folds", "orchestrator.execution.worker", "methods.baselines"]
FORKS = multiprocessing.get_context("forkserver")


def search_of(trials: int) -> Search:
    """Points that do not depend on the order in which trials end."""
    settings = {name: value for name, value in SETTINGS.items() if name != "method"}
    space = {"lr": {"low": 1e-4, "high": 1e-2, "log": True}}
    raw = {"method": SETTINGS["method"], "dataset": "glyphs-small", "settings": settings, "space": space}
    raw |= {"algorithm": "random", "num_trials": trials, "final": False, "max_concurrent": 2, "max_restarts": 1000}
    return resolve_search(raw, name=NAME, source="preemptions.py")


def trace_steps(folder: Path, trial_id: str) -> None:
    """From here on this process notes each step of its training when it begins: its number."""
    from orchestrator.training.engine import Engine

    step_of = Engine.step
    path = folder / f"{trial_id}.{time.time_ns()}.{os.getpid()}"

    def noted(engine: Engine, batch: Any, epoch: int) -> Any:
        with path.open("ab") as file:
            file.write(f"{batch.step}\n".encode())
        return step_of(engine, batch, epoch)

    setattr(Engine, "step", noted)  # noqa: B010 (a method, for mypy)


def train(work: Work, connection: Connection, folder: Path) -> None:
    """What a process of a training does: its results go to the search, which answers whether it stops."""
    from orchestrator.execution.worker import results
    from orchestrator.training.notice import sigterm_heeded

    trace_steps(folder, work.trial_id)
    with sigterm_heeded():
        for result in results(work, own=True):
            connection.send(result)
            if result.done or connection.recv():
                return


@dataclass
class Training:
    """A process that trains a trial."""

    work: Work
    process: Any
    connection: Connection
    limit: int
    """It is ended after so many steps."""
    steps_before: int
    ended_by: int | None = None
    ended_at: float = 0.0


@dataclass
class Forks:
    """A runner of trials, each in a forked process, of which it ends so many."""

    folder: Path
    preemptions: int
    chance: random.Random
    own_processes: bool = True
    stage: str = "starting"
    slots: int = 2
    running: list[Training] = field(default_factory=list)
    losses: Counter[str] = field(default_factory=Counter)
    ends: Counter[int] = field(default_factory=Counter)
    ended_by: dict[str, int] = field(default_factory=dict)
    """Of each trace, the signal that ended its process."""
    notice_seconds: list[float] = field(default_factory=list)
    """From each SIGTERM to the end of its process."""

    @contextlib.contextmanager
    def ready(self, search: Search, storage: Path) -> Iterator[int]:
        yield self.slots

    def resources(self, search: Search) -> dict[str, float]:
        return {"CPU": 1.0}

    def run(self, conductor: TrialSource) -> None:
        while not conductor.is_finished:
            while len(self.running) < self.slots and (work := conductor.next()) is not None:
                self.begin(work)
            connections: list[Any] = [training.connection for training in self.running]
            for connection in wait(connections, timeout=0.01):
                self.take(next(one for one in self.running if one.connection is connection), conductor)
            self.preempt()

    def begin(self, work: Work) -> None:
        ours, its = FORKS.Pipe()
        process = FORKS.Process(target=train, args=(work, its, self.folder))
        process.start()
        its.close()
        self.running.append(Training(work, process, ours, self.chance.randint(*STEPS_BETWEEN), 0))

    def take(self, training: Training, conductor: TrialSource) -> None:
        trial_id = training.work.trial_id
        try:
            result = training.connection.recv()
        except (EOFError, ConnectionResetError):
            self.remove(training)
            self.losses[trial_id] += 1
            if self.losses[trial_id] > training.work.max_restarts:
                conductor.lost(Failed(trial_id, "its process was lost too often", failure="lost"))
            else:
                conductor.report_restart(trial_id, "killed")
                self.begin(training.work)
            return
        stop = conductor.report(result)
        if result.done or stop:
            if not result.done:
                training.connection.send(True)
            self.remove(training)
        else:
            training.connection.send(False)

    def remove(self, training: Training) -> None:
        training.process.join()
        if training.ended_by == signal.SIGTERM:
            self.notice_seconds.append(time.monotonic() - training.ended_at)
        training.connection.close()
        self.running.remove(training)

    def preempt(self) -> None:
        for training in self.running:
            if training.ended_by is not None or self.ends.total() >= self.preemptions:
                continue
            traces = list(self.folder.glob(f"{training.work.trial_id}.*.{training.process.pid}"))
            if traces and len(traces[0].read_bytes().split()) >= training.limit:
                training.ended_by = signal.SIGTERM if self.chance.random() < ANNOUNCED else signal.SIGKILL
                training.ended_at = time.monotonic()
                os.kill(training.process.pid, training.ended_by)
                self.ends[training.ended_by] += 1
                self.ended_by[traces[0].name] = training.ended_by


@dataclass
class Ended:
    """What a search left."""

    leaderboard: list[tuple[Any, ...]]
    curves: dict[str, list[float]]
    states: Counter[str]
    interruptions: Counter[str]
    seconds: float


def run_search(search: Search, runner: Runner, storage: Path) -> Ended:
    began = time.monotonic()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        start(search, runner, storage=storage, say=lambda _: None)
    events = Ledger().take_all(Journal.read(storage / "searches" / search.name / "journal.jsonl"), "journal")
    ledger = Ledger()
    for event in events:
        ledger.apply(event)
    board = [(trial.trial_id, tuple(sorted(trial.params.items())), trial.best) for trial in ledger.ranking()]
    why = Counter(str(getattr(event, "interruption", None)) for event in events if event.KIND == "trial_ended")
    return Ended(
        board,
        {trial.trial_id: trial.curve for trial in ledger.trials.values()},
        Counter(trial.state for trial in ledger.trials.values()),
        why,
        time.monotonic() - began,
    )


def steps_taken(folder: Path) -> dict[str, list[tuple[str, list[int]]]]:
    """Of each trial its processes in order, by the names of their traces, each with its steps."""
    trials: dict[str, list[tuple[str, list[int]]]] = {}
    for path in sorted(folder.iterdir(), key=lambda path: int(path.name.split(".")[1])):
        trials.setdefault(path.name.split(".")[0], []).append((path.name, list(map(int, path.read_bytes().split()))))
    return trials


def steps_again(folder: Path, ended_by: dict[str, int]) -> Counter[int]:
    """The steps that were taken again, by the signal that ended the process which took them first."""
    again: Counter[int] = Counter()
    for processes in steps_taken(folder).values():
        for (name, steps), (_, following) in itertools.pairwise(processes):
            if name in ended_by:
                again[ended_by[name]] += max(0, steps[-1] + 1 - following[0])
    return again


def row(what: str, ended: Ended, calm: Ended, ends: Counter[int], again: Counter[int], needed: int) -> list[str]:
    shares = [f"{again[kind]} ({again[kind] / needed:.2%})" for kind in (signal.SIGTERM, signal.SIGKILL)]
    same = ended.leaderboard == calm.leaderboard and ended.curves == calm.curves
    bits = "the same bits" if same else "DIFFERENT"
    counts = f"{ends[signal.SIGTERM]} + {ends[signal.SIGKILL]}"
    return [what, counts, str(ended.states["failed"]), bits, *shares, f"{ended.seconds:.0f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preemptions", type=int, default=200)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    FORKS.set_forkserver_preload(["__main__", *PRELOADED])
    ensure_running()  # before a search, whose temporary folder goes with it
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        folders = {part: root / part / "traces" for part in ("calm", "forks")}
        for folder in folders.values():
            folder.mkdir(parents=True)
        search = search_of(arguments.trials)
        calm = run_search(search, Forks(folders["calm"], 0, random.Random(0)), root / "calm" / "storage")
        forks = Forks(folders["forks"], arguments.preemptions, random.Random(arguments.seed))
        disturbed = run_search(search, forks, root / "forks" / "storage")
        needed = sum(len(steps) for processes in steps_taken(folders["calm"]).values() for _, steps in processes)
        again = steps_again(folders["forks"], forks.ended_by)
        none: Counter[int] = Counter()
        rows = [row(f"undisturbed, {needed} steps", calm, calm, none, none, needed)]
        rows += [row("forked processes", disturbed, calm, forks.ends, again, needed)]
        good = disturbed.leaderboard == calm.leaderboard and not disturbed.states["failed"]
        good &= again[signal.SIGTERM] <= 0.01 * needed and forks.ends.total() == arguments.preemptions
    head = [
        "search",
        "announced + not",
        "failed trials",
        "leaderboard and curves",
        "steps again, announced",
        "not",
        "s",
    ]
    lines = [
        "# Processes that vanish",
        "",
        f"`nice python benchmarks/preemptions.py --preemptions {arguments.preemptions} --trials {arguments.trials}`, "
        f"{datetime.now(UTC):%Y-%m-%d}, {cpu_name()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, load {os.getloadavg()[1]:.0f} of other work: "
        f"checkpoints each second, a search of {arguments.trials} trials of two epochs.",
        "",
        *("| " + " | ".join(cells) + " |" for cells in [head, ["---", *["---:"] * 6], *rows]),
        "",
        f"Announced ends took {statistics.median(forks.notice_seconds or [0.0]):.2f} s in the median and "
        f"{max(forks.notice_seconds or [0.0]):.2f} s at most, from SIGTERM to the end of the process.",
        "A process that was killed lost the steps since its last checkpoint; here that is most of what it did, since "
        "it lives for a few steps only.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    return 0 if good else 1


def cpu_name() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor()


if __name__ == "__main__":
    sys.exit(main())
