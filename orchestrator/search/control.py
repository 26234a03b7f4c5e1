"""Observing and controlling a search from outside: by small files in its folder, from any machine with the storage.

Every few seconds the driver of a search renews its sign of life and checks for a request to stop or to pause.
"""

import contextlib
import math
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.report.status import BestTrial, RunningTrial, Status, Used, WinnerTest
from orchestrator.search.spending import budget_used
from orchestrator.stdio import write_line
from orchestrator.storage.folder import Folder
from orchestrator.storage.labels import read_labels
from orchestrator.storage.leaderboard import chosen_value
from orchestrator.storage.ledger import BENCHMARK, Ledger
from orchestrator.storage.presence import (
    DONE_BY,
    DRIVER,
    LOOK_SECONDS,
    REQUEST,
    DriverNote,
    Request,
    RequestNote,
    driver,
    pending_request,
    read_note,
    show_driver,
    this_process,
)
from orchestrator.storage.trial_record import ENDED, TrialRecord

if TYPE_CHECKING:
    from orchestrator.search.conductor import Conductor


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[None]:
    """While a search acquires its machines, before it has a journal: its driver is visible; after a refusal nothing is
    left."""
    try:
        with _repeating("starting", lambda: show_driver(folder)):
            yield
    finally:
        with contextlib.suppress(OSError):
            Folder(folder, patient=False).remove(DRIVER)
            folder.rmdir()


@contextlib.contextmanager
def _repeating(name: str, look: Callable[[], None]) -> Iterator[None]:
    """Call `look` every few seconds, in a thread of this name; a full or lost disk does not end the search here."""
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
def driver_lease(conductor: "Conductor") -> Iterator[None]:
    """While a search runs: its driver is visible in the search's folder and takes requests from there."""
    with _visible_driver(conductor.folder, "control", lambda: _take_request(conductor)):
        yield


@contextlib.contextmanager
def between_searches(folder: Path) -> Iterator[Callable[[], Request | None]]:
    """While a benchmark runs: its driver is visible in the benchmark's folder too. Gives the request made there, also
    between two of its searches."""
    with _visible_driver(folder, "benchmark", lambda: None):
        yield lambda: pending_request(folder)


@contextlib.contextmanager
def _visible_driver(folder: Path, thread: str, also: Callable[[], None]) -> Iterator[None]:
    """While something runs: its driver is visible in the folder and calls `also` repeatedly."""
    Folder(folder).remove(REQUEST)  # meant for an earlier driver

    def look() -> None:
        show_driver(folder)
        also()

    try:
        with _repeating(thread, look):
            yield
    finally:
        if _is_ours(folder):  # unless another driver has taken over
            for name in (DRIVER, REQUEST):
                with contextlib.suppress(OSError):
                    Folder(folder, patient=False).remove(name)


def _take_request(conductor: "Conductor") -> None:
    try:
        note = read_note(conductor.folder, REQUEST, RequestNote)
    except InputError:  # the error is reported to the sender; it cannot be handled here
        return
    if note is None or conductor.stopping:
        return
    conductor.stopped_by = f"{DONE_BY[note.request]} by {note.by}"
    if note.request == "stop":
        conductor.stopping = True
    else:
        conductor.pausing = True
    Folder(conductor.folder).remove(REQUEST)
    if not sys.stderr.isatty():  # the live display shows it itself
        write_line(f"{conductor.stopped_by}: {'its trials stop' if note.request == 'stop' else 'no new trial starts'}")


def _is_ours(folder: Path) -> bool:
    """Whether no other driver is recorded in a folder."""
    try:
        note = read_note(folder, DRIVER, DriverNote)
    except InputError:
        return True
    return note is None or this_process().items() <= note.model_dump().items()


def _seconds_left(ledger: Ledger) -> float | None:
    """An estimate from the trials that have ended: the rest is assumed to take as long; None before the first."""
    ended = [trial for trial in ledger.trials.values() if trial.state in ENDED]
    seconds = sum(trial.seconds for trial in ended)
    limits = {"trials": ledger.config.get("num_trials")} | (ledger.config.get("budget") or {})
    used: dict[str, float] = budget_used(ledger) | {"trials": float(len(ended))}
    shares = [used[key] / limit for key, limit in limits.items() if limit and key in used]
    if ledger.is_population and limits["trials"]:
        shares = [ledger.epochs / (limits["trials"] * max(1.0, *(one.epochs_planned for one in ended)))]
    if not ended or not seconds or not ledger.elapsed or not max(shares, default=0.0):
        return None
    remaining = ledger.elapsed * max(0.0, 1 / max(shares) - 1)
    several = ("final_trials", "final_seeds") if ledger.config.get("final") else ()
    finals = math.prod(int(ledger.config.get(key, 1)) for key in several) if several else 0
    waiting = finals - sum(run.state in ENDED for run in ledger.finals.values())
    at_once = max(1.0, seconds / ledger.elapsed)
    return float(round(remaining + max(0, waiting) * max(trial.seconds for trial in ended) / at_once, 1))


def _best(ledger: Ledger, winner: TrialRecord) -> BestTrial:
    value = chosen_value(ledger, winner)
    loss = None if value is None else value if ledger.mode == "min" else -value
    return BestTrial(trial_id=winner.trial_id, objective=value, loss=loss)


def _running(trial: TrialRecord) -> RunningTrial:
    return RunningTrial(trial_id=trial.trial_id, validations=trial.validations, best=trial.best)


def _test(ledger: Ledger, winner: TrialRecord | None) -> WinnerTest | None:
    """The winner's test of what the search chooses by (of a loss the usual yardstick), as the mean over its seeds."""
    if winner is None or not (ledger.finals or winner.test):
        return None
    from orchestrator.report.significance import tests_by_seed
    from orchestrator.report.tested import goals

    metric = goals(ledger)[0].metric
    values = list(tests_by_seed(ledger, winner, metric).values())
    return WinnerTest(metric=metric, mean=statistics.fmean(values), seeds=len(values)) if values else None


def status(ledger: Ledger, folder: Path, state: str | None = None) -> Status:
    """The status of a search. One whose driver died has the state `lost`; one without a journal that of `state`."""
    living = driver(folder) if ledger.state == "running" else None
    state = state or ("lost" if ledger.state == "running" and living is None else ledger.state)
    winner, first = ledger.winner(), ledger.first_so_far()
    used = {"trials": float(len(ledger.trials) - ledger.copies)} | budget_used(ledger)
    labels = read_labels(folder)
    limits = {"trials": ledger.config.get("num_trials")} | (ledger.config.get("budget") or {})
    return Status(
        name=ledger.name,
        benchmark=ledger.tags.get(BENCHMARK),
        state=state,
        reason=ledger.reason,
        driver=living["by"] if living else None,
        pid=living["pid"] if living else None,
        asked_to=pending_request(folder) if living else None,
        started=ledger.started,
        seconds=round(ledger.elapsed, 1),
        counts=ledger.counts(),
        final_runs=len([run for run in ledger.finals.values() if run.state == "done"]),
        budget={
            key: Used(used=round(amount, 4), of=limits.get(key))
            for key, amount in used.items()
            if key in ("trials", "epochs", "hours") or limits.get(key) is not None or (key == "gpu_hours" and amount)
        },
        seconds_left=None if living is None else _seconds_left(ledger),
        dataset=ledger.dataset,
        method=ledger.method,
        tags=labels.tags,
        note=labels.note,
        objective=ledger.metric,
        best=None if winner is None else _best(ledger, winner),
        so_far=None if first is None else _running(first),
        test=_test(ledger, winner),
        running=[_running(run) for run in ledger.running()],
    )
