"""Seeing and steering a search from elsewhere: by small files in its folder, on whatever machine sees the storage.

The driver of a search says every few seconds that it is there, and looks whether it was asked to stop or to pause.
"""

import contextlib
import getpass
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from orchestrator import objects
from orchestrator.checkpoint import write_whole
from orchestrator.conductor import Conductor
from orchestrator.endings import say
from orchestrator.errors import InputError
from orchestrator.files import bounded, parse_json
from orchestrator.ledger import BENCHMARK, Ledger, budget_used
from orchestrator.spec import describe

DRIVER = "driver.json"
"""Who drives the search, and when they last said so; gone once the search has ended."""
REQUEST = "request.json"
"""What a driver is asked to do; gone once it has noticed."""
LOOK_SECONDS = 2.0
"""How often a driver looks for requests, and says that it is there."""
SILENT_LOOKS = 8
"""Who would drive a search on an object store waits so long for another driver to say something."""
SILENT_SECONDS = 60.0
"""A driver that has said nothing for so long is dead (on its own machine its process is looked for)."""

Wish = Literal["stop", "pause"]
DONE_BY = {"stop": "stopped", "pause": "paused"}


class _Driver(BaseModel):
    by: str
    host: str
    pid: int = Field(gt=0, lt=2**31)
    time: FiniteFloat = Field(0, ge=0)


class _Request(BaseModel):
    wish: Wish
    by: str = "somebody"


Found = TypeVar("Found", _Driver, _Request)


def myself() -> str:
    """`user@host`"""
    user = "somebody"
    with contextlib.suppress(KeyError, OSError):
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[None]:
    """While a search gets hold of its machines, before its journal: whoever looks finds its driver, and after a refusal
    nothing."""
    try:
        with _meanwhile("starting", lambda: _show(folder)):
            yield
    finally:
        with contextlib.suppress(OSError):
            objects.remove(folder / DRIVER, objects.IMPATIENCE_SECONDS)
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


def _show(folder: Path) -> None:
    _write(folder / DRIVER, _me())


def _me() -> dict[str, Any]:
    return {"by": myself(), "host": socket.gethostname(), "pid": os.getpid()}


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
        _show(folder)
        also()

    try:
        with _meanwhile(thread, look):
            yield
    finally:
        if _mine(folder):  # no other driver has taken over
            for name in (DRIVER, REQUEST):
                with contextlib.suppress(OSError):
                    objects.remove(folder / name, objects.IMPATIENCE_SECONDS)


def _obey(conductor: Conductor) -> None:
    path = conductor.folder / REQUEST
    try:
        request = _read(path, _Request)
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


def request(folder: Path, wish: Wish) -> None:
    """Ask the driver of the search in this folder; it notices within seconds."""
    _write(folder / REQUEST, {"wish": wish, "by": myself()})


def pending(folder: Path) -> Wish | None:
    """What the driver was asked and has not noticed yet."""
    request = _read(folder / REQUEST, _Request)
    return None if request is None else request.wish


def driver(folder: Path) -> dict[str, Any] | None:
    """Who drives the search in this folder now (`by`, `host`, `pid`), or None if nobody does."""
    found = _read(folder / DRIVER, _Driver)
    if found is None or _died_here(found):
        return None
    silent = time.time() - found.time / 1000
    return found.model_dump() if abs(silent) < SILENT_SECONDS else None


def await_silence(folder: Path) -> dict[str, Any] | None:
    """The driver of a search on an object store that is alive, None if there is none; nothing on a disk, where a lock
    tells. One that is alive says so again and again, and no clock is asked. OSError if the store cannot be."""
    if objects.address_of(folder) is None or (before := objects.read(folder / DRIVER)) is None:
        return None
    end = time.monotonic() + SILENT_LOOKS * LOOK_SECONDS
    while time.monotonic() < end and (found := _read(folder / DRIVER, _Driver)) and not _died_here(found):
        time.sleep(LOOK_SECONDS / 4)
        if objects.read(folder / DRIVER) != before:
            found = _read(folder / DRIVER, _Driver)
            return None if found is None else found.model_dump()
    return None


def _died_here(found: _Driver) -> bool:
    """Whether a driver was a process of this machine, which is gone."""
    return found.host == socket.gethostname() and not psutil.pid_exists(found.pid)


def _mine(folder: Path) -> bool:
    """Whether no other driver shows itself in a folder."""
    try:
        found = _read(folder / DRIVER, _Driver)
    except InputError:
        return True
    return found is None or _me().items() <= found.model_dump().items()


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


def _write(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content | {"time": math.floor(time.time() * 1000)}).encode()
    if objects.address_of(path) is None:
        write_whole(path, text)
    else:
        objects.write(path, text, objects.IMPATIENCE_SECONDS)


def _read(path: Path, kind: type[Found]) -> Found | None:
    """What this file says; None if there is none, or the storage does not answer. InputError if it is damaged."""
    try:
        content = objects.read(path, objects.IMPATIENCE_SECONDS)
        return None if content is None else kind.model_validate(parse_json(bounded(content)))
    except OSError:
        return None
    except ValidationError as error:
        reason = describe(error)
    except ValueError as error:
        reason = str(error)
    raise InputError(f"{objects.shown(path)}: damaged ({reason[:200]}): if nothing drives the search, delete this file")
