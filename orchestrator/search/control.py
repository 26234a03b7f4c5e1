"""Seeing and steering a search from elsewhere: by small files in its folder, on whatever machine sees the storage.

The driver of a search says every few seconds that it is there, and looks whether it was asked to stop or to pause.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.endings import say
from orchestrator.errors import InputError
from orchestrator.search.conductor import Conductor
from orchestrator.storage import objects, s3
from orchestrator.storage.ledger import BENCHMARK, Ledger, budget_used
from orchestrator.storage.presence import (
    DONE_BY,
    DRIVER,
    LOOK_SECONDS,
    REQUEST,
    Driver,
    Request,
    Wish,
    driver,
    pending,
    read_note,
    show_driver,
    this_process,
)


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[None]:
    """While a search gets hold of its machines, before its journal: whoever looks finds its driver, and after a refusal
    nothing."""
    try:
        with _meanwhile("starting", lambda: show_driver(folder)):
            yield
    finally:
        with contextlib.suppress(OSError):
            objects.remove(folder / DRIVER, s3.IMPATIENCE_SECONDS)
            folder.rmdir()


@contextlib.contextmanager
def _meanwhile(name: str, look: Callable[[], None]) -> Iterator[None]:
    """Look every few seconds, in a thread of this name; a full or lost disk ends no search here."""
    ended = threading.Event()

    def repeat() -> None:
        while True:
            with contextlib.suppress(OSError):
                look()
            if ended.wait(LOOK_SECONDS):
                return

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def at_the_wheel(conductor: Conductor) -> Iterator[None]:
    """While a search runs: its driver shows itself in the search's folder and takes requests from there."""
    with _driving(conductor.folder, "control", lambda: _obey(conductor)):
        yield


@contextlib.contextmanager
def between_searches(folder: Path) -> Iterator[Callable[[], Wish | None]]:
    """While a benchmark runs: its driver shows itself in the benchmark's folder too, and gives what was asked for
    there, between two of its searches as well."""
    with _driving(folder, "benchmark", lambda: None):
        yield lambda: pending(folder)


@contextlib.contextmanager
def _driving(folder: Path, thread: str, also: Callable[[], None]) -> Iterator[None]:
    """While something runs: its driver shows itself in the folder and does `also`, again and again."""
    objects.remove(folder / REQUEST)  # meant for an earlier driver

    def look() -> None:
        show_driver(folder)
        also()

    try:
        with _meanwhile(thread, look):
            yield
    finally:
        if _mine(folder):  # no other driver has taken over
            for name in (DRIVER, REQUEST):
                with contextlib.suppress(OSError):
                    objects.remove(folder / name, s3.IMPATIENCE_SECONDS)


def _obey(conductor: Conductor) -> None:
    path = conductor.folder / REQUEST
    try:
        request = read_note(path, Request)
    except InputError:  # whoever asked is told; nothing can be made of it here
        return
    if request is None or conductor.stopping:
        return
    wish = request.wish
    conductor.stopped_by = f"{DONE_BY[wish]} by {request.by}"
    if wish == "stop":
        conductor.stopping = True
    else:
        conductor.pausing = True
    objects.remove(path)
    if not sys.stderr.isatty():  # the live display says it by itself
        say(f"{conductor.stopped_by}: {'ending in order' if wish == 'stop' else 'nothing new begins'}")


def _mine(folder: Path) -> bool:
    """Whether no other driver shows itself in a folder."""
    try:
        found = read_note(folder / DRIVER, Driver)
    except InputError:
        return True
    return found is None or this_process().items() <= found.model_dump().items()


def status(ledger: Ledger, folder: Path) -> dict[str, Any]:
    """What a search has come to so far, in a few plain values. A search whose driver died has the state `lost`."""
    at_wheel = driver(folder) if ledger.state == "running" else None
    state = "lost" if ledger.state == "running" and at_wheel is None else ledger.state
    winner = ledger.winner()
    used = {"trials": float(len(ledger.trials))} | budget_used(ledger)
    limits = {"trials": ledger.config.get("num_trials")} | (ledger.config.get("budget") or {})
    return {
        "name": ledger.name,
        "benchmark": ledger.tags.get(BENCHMARK),
        "state": state,
        "reason": ledger.reason,
        "driver": at_wheel["by"] if at_wheel else None,
        "pid": at_wheel["pid"] if at_wheel else None,
        "asked_to": pending(folder) if at_wheel else None,
        "started": ledger.started,
        "seconds": round(ledger.elapsed, 1),
        "counts": ledger.counts(),
        "final_runs": len([run for run in ledger.finals.values() if run.state == "done"]),
        "budget": {
            key: {"used": round(amount, 4), "of": limits.get(key)}
            for key, amount in used.items()
            if key in ("trials", "epochs", "hours") or limits.get(key) is not None or (key == "gpu_hours" and amount)
        },
        "objective": ledger.metric,
        "best": None if winner is None else {"trial_id": winner.trial_id, "objective": winner.best},
        "running": [
            {"trial_id": run.trial_id, "validations": run.validations, "best": run.best} for run in ledger.running()
        ],
    }
