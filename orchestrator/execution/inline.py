"""Trials in this process, one at a time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from orchestrator.config.limits import cpus
from orchestrator.config.search import Search
from orchestrator.errors import InputError
from orchestrator.execution.protocol import Failed, Interrupted, TrialSource


class InlineRunner:
    """One trial at a time in this process. For single trainings and debugging."""

    own_processes = False
    stage = "starting"

    @contextlib.contextmanager
    def ready(self, search: Search, storage: Path) -> Iterator[int]:
        from orchestrator.training.device import choose_device

        choose_device(search.example().training.device)
        check_threads(search)
        yield 1

    def resources(self, search: Search) -> dict[str, float]:
        from orchestrator.training.device import choose_device

        training = search.example().training
        gpu = {"GPU": 1.0} if choose_device(training.device).type == "cuda" else {}
        return {"CPU": float(training.threads)} | gpu

    def run(self, conductor: TrialSource) -> None:
        from orchestrator.execution.worker import results

        while not conductor.is_finished:
            work = conductor.next()
            if work is None:
                return
            for result in results(work):
                if isinstance(result, Failed) and result.failure == "device":  # all that follows would fail too
                    result = Interrupted(result.trial_id, result.reason)
                if isinstance(result, Interrupted):  # this process is to end
                    conductor.stopping = True
                if conductor.report(result) or conductor.stopping:
                    break


def check_threads(search: Search) -> None:
    """InputError if a training asks for more threads than this machine has CPUs."""
    if (threads := search.example().training.threads) > cpus():
        raise InputError(f"threads: {threads}: this machine has {cpus()} CPUs: at most {cpus()} can be used")
