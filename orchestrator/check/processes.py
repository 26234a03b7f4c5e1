"""The check that one process equals two, and the two processes."""

import atexit
import multiprocessing
import pickle
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from orchestrator.check.subject import (
    CheckFailed,
    CheckSkipped,
    Run,
    Subject,
    check,
    exit_message,
    require_close,
    state_of,
)
from orchestrator.errors import is_interrupt
from orchestrator.training.distributed import process_group, world_size

PATIENCE = 240.0
"""Seconds that two processes may take to start, or to answer; longer than gloo waits."""


@check
def two_processes(subject: Subject) -> None:
    """One process equals two that share the batch: terms and state after three steps and a validation."""
    if world_size() > 1:
        raise CheckSkipped("this process is in a process group already")
    try:
        work = pickle.dumps(subject)
    except Exception as error:
        raise CheckSkipped(f"{subject.method.__qualname__} cannot be sent to another process: {error}") from None
    one = train_on_two(subject)
    first, second = pair().run(work)
    require_close(one, first, 1e-9, "on one process, then on two")
    require_close(first, second, 0.0, "on the first of two processes, then on the second")


def train_on_two(subject: Subject) -> dict[str, Any]:
    """The terms of three steps with a validation, and the state at the end, as numpy's arrays."""
    run = Run(subject)
    values: dict[str, Any] = {}
    for step in range(3):
        values |= {f"term '{name}' of step {step + 1}": value for name, value in run.step().items()}
        if step == 1:
            run.validate()
    return values | {name: value.numpy() for name, value in state_of(run.learner).items()}


@dataclass(frozen=True)
class Failure:
    """Why a process gave no result; `unknown`: the method is not known there."""

    reason: str
    unknown: bool = False


class ProcessPair:
    """Two processes in one gloo group that wait for work; started once, and again after one hung."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="orchestrator-check-")
        # forked by a process that has loaded the libraries, once for all pairs
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            context.set_forkserver_preload([__name__])
        self.ends: list[Connection] = []
        self.processes: list[Any] = []
        for index in range(2):
            our_end, child_end = context.Pipe()
            arguments = (index, Path(self.folder.name) / "rendezvous", child_end)
            self.processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self.processes[-1].start()
            child_end.close()
            self.ends.append(our_end)
        for answer in self._answers():
            if answer is not None:
                self.close()
                raise CheckSkipped(f"two processes cannot be started here: {answer.reason}")

    @property
    def ready(self) -> bool:
        return bool(self.processes)

    def _answers(self) -> list[Any]:
        """What both return, in rank order, a Failure where one fails. Ends the processes if one of them hangs."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + PATIENCE
        while len(answers) < len(self.ends) and time.monotonic() < deadline:
            for index, end in enumerate(self.ends):
                if index in answers or not end.poll(0.005):
                    continue
                try:
                    answers[index] = end.recv()
                except (EOFError, OSError):
                    answers[index] = Failure("one of two processes ended")
                if isinstance(answers[index], Failure):  # the other may wait for this one forever
                    deadline = min(deadline, time.monotonic() + 2)
        missing = [index for index in range(len(self.ends)) if index not in answers]
        failed = [answer for answer in answers.values() if isinstance(answer, Failure)]
        if missing:
            self.close()
            return failed or [Failure("one of two processes waits forever")]
        return [answers[index] for index in sorted(answers)]

    def run(self, work: bytes) -> list[dict[str, Any]]:
        """The results of both in rank order."""
        for end in self.ends:
            end.send((sys.path, work))
        answers = self._answers()
        for answer in answers:
            if isinstance(answer, Failure):
                if answer.unknown:
                    raise CheckSkipped(answer.reason)
                raise CheckFailed(f"on two processes: {answer.reason}")
        return answers

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(timeout=10)
        for end in self.ends:
            end.close()
        self.processes, self.ends = [], []
        self.folder.cleanup()


_running: list[ProcessPair] = []


def pair() -> ProcessPair:
    if not _running or not _running[0].ready:
        _running[:] = [ProcessPair()]
    return _running[0]


@atexit.register
def _closepair() -> None:
    for pair in _running:
        pair.close()


def _serve(index: int, rendezvous: Path, connection: Connection) -> None:
    torch.set_num_threads(1)
    with process_group(index, 2, rendezvous):
        connection.send(None)
        while True:
            try:
                path, work = connection.recv()
            except (EOFError, KeyboardInterrupt):
                return
            sys.path[:] = path
            try:
                subject = pickle.loads(work)
            except Exception as error:
                reason = f"another process cannot import it ({type(error).__name__}: {error})"
                connection.send(Failure(reason, unknown=True))
                continue
            try:
                connection.send(train_on_two(subject))
            except SystemExit as error:
                connection.send(Failure(exit_message(error)))
            except KeyboardInterrupt as error:
                if is_interrupt(error):
                    return
                connection.send(Failure("the method raised KeyboardInterrupt"))
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                reason = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
                connection.send(Failure(reason))
