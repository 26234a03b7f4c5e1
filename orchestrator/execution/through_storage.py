"""Trials in processes that join a search through its storage (`orchestrator work`), without Ray: the driver's side."""

import contextlib
import itertools
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.config.search import Search
from orchestrator.config.workers import in_group
from orchestrator.errors import InputError
from orchestrator.execution.exchange import (
    CODE,
    LOST_SECONDS,
    OUTPUT,
    STOPPED,
    TASK,
    Assignment,
    Code,
    Message,
    Messages,
    Stopped,
    joiners,
    read,
    task_work,
    write,
)
from orchestrator.execution.exchange import LOOK_SECONDS as LOOK
from orchestrator.execution.installed import code_digest, installed_versions
from orchestrator.execution.lost import cause, keep_log, last_output, stuck_at, tail_of_output
from orchestrator.execution.protocol import THROUGH_STORAGE, Failed, TrialSource, Validated, Work
from orchestrator.problems import Bare, Option, Problem
from orchestrator.stdio import write_line
from orchestrator.storage import paths
from orchestrator.storage.folder import Folder
from orchestrator.storage.opening import make_folder
from orchestrator.storage.places import WORK
from orchestrator.storage.presence import is_gone
from orchestrator.text import pluralize

LIST_SECONDS = 1.0
"""How often the driver looks for processes that have joined."""


def check_joinable(search: Search, storage: Path) -> None:
    """InputError for a search that needs what processes that join do not have."""
    here = Option("address")
    if paths.address_of(storage) is not None:
        rule = "processes join through a folder that all machines share, and this storage is an object store"
        raise InputError(Problem((here,), Bare(THROUGH_STORAGE), rule))
    for key, count in (("workers", search.workers), ("final_workers", search.workers_of_final)):
        if in_group(count) and (key == "workers" or search.final):
            alone = ("each process that joins trains a trial alone: give 1, or name a Ray cluster by ", here)
            raise InputError(Problem((Option(key),), count, alone))
    for key in ("resources", "node_labels"):
        if value := getattr(search, key):
            rule = "processes that join have no such thing: run orchestrator work on the machines that have it"
            raise InputError(Problem((key,), value, rule))


class StorageRunner:
    """Trials in processes that join, one trial at a time in each. The driver gives each its work when it is idle, so
    that a point is chosen only when it can be tried, and no two can take the same work."""

    own_processes = True
    stage = "starting"

    @contextlib.contextmanager
    def ready(self, search: Search, storage: Path) -> Iterator[int]:
        """InputError for a search that needs what these processes do not have."""
        check_joinable(search, storage)
        yield 0  # until processes have joined

    def resources(self, search: Search) -> dict[str, float]:
        """Those of a training; of its device what this machine would take."""
        from orchestrator.training.device import choose_device

        training = search.example().training
        device = choose_device("auto").type if training.device == "auto" else training.device
        return {"CPU": float(training.threads)} | ({"GPU": 1.0} if device != "cpu" else {})

    def run(self, conductor: TrialSource) -> None:
        """Give the conductor's trials to those who join, until there are no more or it is stopping. Where it stops
        because its process is asked to end, they go on, and one of them drives the search; where nobody has joined, it
        goes on only if it is resumed."""
        make_folder(conductor.folder / WORK)
        Folder(conductor.folder / WORK).remove(STOPPED)
        write(conductor.folder / WORK, CODE, Code(versions=installed_versions(), digest=code_digest()))
        crew = Crew(conductor)
        try:
            while not conductor.is_finished and not conductor.stopping:
                crew.look(time.monotonic())
                time.sleep(LOOK)
        except OSError as error:
            conductor.fault = conductor.fault or f"{error.filename}: {error.strerror or error}"
            raise
        finally:
            reason = conductor.fault or conductor.stopped_by
            if reason is None and conductor.stopping and not crew.is_there:
                reason = "nobody had joined"
            if reason is not None:
                with contextlib.suppress(OSError):
                    write(conductor.folder / WORK, STOPPED, Stopped(reason=reason))
                crew.dismiss(reason)
        if conductor.stopping and reason is None:
            name = conductor.folder.name
            write_line(f"those who joined go on, and one of them drives {name}; end all with: orchestrator stop {name}")
        elif reason is None:
            crew.dismiss("done")


@dataclass
class JoinedProcess:
    """A process that joined, as the driver knows it."""

    folder: Path
    messages: Messages
    task: Assignment
    """What its file says; set by an earlier driver, or by this one."""
    heard: float
    """When it was last heard, by this process's clock."""
    work: Work | None = None
    """What this driver has given it, or taken over with it."""
    joined: Message | None = None
    lives: bool = False
    """Whether it was heard since this driver looks."""
    gone: bool = False
    said: list[Message] = field(default_factory=list)
    """The messages of its present task."""

    @property
    def name(self) -> str:
        return self.joined.by if self.joined is not None else self.folder.name

    def give(self, task: Assignment) -> None:
        """Write what it trains from now on."""
        self.said = [] if task.id != self.task.id else self.said
        self.task = task
        write(self.folder, TASK, task)

    def release(self) -> None:
        """It trains nothing from now on: what it still says of its task is not heard."""
        self.work = None
        with contextlib.suppress(OSError):
            self.give(Assignment())


class Crew:
    """The processes that joined a search, and what each of them trains."""

    def __init__(self, conductor: TrialSource) -> None:
        self.conductor = conductor
        self.members: dict[str, JoinedProcess] = {}
        self.pending: list[Work] = []
        """Trials that have begun, and wait for a process."""
        self.attempts: dict[str, int] = {}
        """How often each trial's process was lost."""
        self.broken: set[str] = set()
        """Trials after which a process could no longer use its GPU."""
        self.faiss_faults: set[str] = set()
        self.listed = 0.0
        self.present: int | None = None
        """How many processes there are, as was last said."""

    def look(self, now: float) -> None:
        """One look at all that the processes said, and new work for those that have none."""
        if now - self.listed >= LIST_SECONDS:
            self.listed = now
            for folder in joiners(self.conductor.folder):
                if folder.name not in self.members:
                    task = read(folder, TASK, Assignment) or Assignment()
                    self.members[folder.name] = JoinedProcess(folder, Messages(folder), task, now)
        for member in self.members.values():
            if not member.gone:
                self.hear(member, now)
        self.end_overdue(now)
        self.assign(now)

    def hear(self, member: JoinedProcess, now: float) -> None:
        """Read what a process said; one that is silent for too long, or left, is gone."""
        first = member.joined is None
        messages = member.messages.read()
        if messages:
            member.lives, member.heard = member.lives or not first, now
        for message in messages:
            if message.kind == "joined":
                member.joined = message
            elif message.kind == "left":
                member.gone = True
            elif message.kind != "alive" and message.task == member.task.id:
                member.said.append(message)
                if member.work is not None:
                    self.take(member, member.work, message)
        joined, limit = member.joined, LOST_SECONDS
        if joined is not None:
            limit = joined.lost_after
            if is_gone(joined.host, joined.pid):
                member.gone, limit = True, -1.0
        if now - member.heard > limit:
            member.gone = True
        if member.gone:
            self.part(member)

    def part(self, member: JoinedProcess) -> None:
        """A process is gone: its trial goes on in another one."""
        if (work := member.work) is not None:
            self.lose(member, work, f"{member.name} was killed, or gives no sign of life", "")
        else:
            member.release()

    def take(self, member: JoinedProcess, work: Work, message: Message) -> None:
        """Take a message of the task that this driver follows."""
        known = message.number <= member.task.answered
        if message.kind == "returned":
            member.release()
            self.conductor.report_restart(work.trial_id, f"{member.name} gave it back")
            self.pending.insert(0, work)
            return
        if message.kind == "lost":
            self.lose(member, work, "killed", tail_of_output(member.folder / OUTPUT, work.trial_id))
            return
        result = message.content(work.trial_id)
        if isinstance(result, Validated):
            self.tell_without_faiss(result)
        if isinstance(result, Failed) and result.failure == "device" and self.breaks(member, work, result):
            return
        if self.conductor.report(replace(result, anew=None) if known else result) or result.done:
            member.release()
        elif not known:
            member.give(member.task.model_copy(update={"answered": message.number}))

    def breaks(self, member: JoinedProcess, work: Work, result: Failed) -> bool:
        """Whether a trial begins again in another process, once, because its own can no longer use its GPU."""
        if work.trial_id in self.broken:
            self.conductor.report(replace(result, reason=f"{result.reason}, twice"))
        else:
            self.broken.add(work.trial_id)
            self.conductor.report_restart(work.trial_id, result.reason)
            self.pending.append(work)
        member.release()
        return True

    def lose(self, member: JoinedProcess, work: Work, reason: str, words: str) -> None:
        """The process that trained a trial is lost: the trial begins again from its last validation, unless its code
        ended it, it crashed twice in the same way, or it was lost too often."""
        member.release()
        why, trial_id = cause(words), work.trial_id
        known = () if why is None else self.conductor.lost_workers.get(trial_id, ())
        if why is not None and (why.by_own_code or why.reason in known):
            twice = ", twice" if why.reason in known else ""
            self.end(work, f"{why.reason}{twice}{last_output(words, work.trial_folder)}", words, "code")
            return
        self.attempts[trial_id] = self.attempts.get(trial_id, 0) + 1
        reason = reason if why is None else why.reason
        if (losses := self.attempts[trial_id]) > work.max_restarts:
            said = last_output(words, work.trial_folder)
            limit = f"max_restarts: {work.max_restarts}"
            text = f"its process was lost {pluralize(losses, 'time')} ({limit}): {reason}{said}"
            self.end(work, text, words, "lost")
            del self.attempts[trial_id]
            return
        keep_log(work.trial_folder, words)
        self.conductor.report_restart(trial_id, reason)
        self.pending.append(work)

    def end(self, work: Work, reason: str, words: str, failure: str | None) -> None:
        """End a trial because of its process; the last lines of the process are kept before the reason names them."""
        keep_log(work.trial_folder, words)
        self.conductor.lost(Failed(work.trial_id, reason, failure=failure))  # type: ignore[arg-type]

    def end_overdue(self, now: float) -> None:
        """End trials that took too long; their processes see that they have another task."""
        late = self.conductor.overdue(now)
        for member in self.members.values() if late else ():
            if (work := member.work) is None or (end := late.get(work.trial_id)) is None:
                continue
            words = tail_of_output(member.folder / OUTPUT, work.trial_id)
            where = f", {place}" if (place := stuck_at(words)) else ""
            if reasons := self.conductor.lost_workers.get(work.trial_id):
                where += f"; a process of it was lost before that ({reasons[-1]})"
            member.release()
            self.end(work, f"{end.reason}{where}{last_output(words, work.trial_folder)}", words, end.failure)

    def assign(self, now: float) -> None:
        """Give work to those that have none. A trial that an earlier driver gave away stays with its process."""
        there = [member for member in self.members.values() if not member.gone]
        free = [member for member in there if member.lives and member.work is None]
        unknown = [member for member in there if not member.lives and member.task.id]
        room = sum(member.lives for member in there) + len(unknown)
        self.conductor.slots = min(room, self.conductor.search.max_concurrent or room)
        self.say_present(room)
        while len(self.pending) < len(free) + len(unknown) and (work := self.conductor.next()) is not None:
            self.pending.append(work)
        for work in list(self.pending):
            holders = [one for one in there if one.work is None and one.task.trial_id == work.trial_id]
            if any(not one.lives for one in holders):
                continue  # soon it is known whether it lives
            adopted = next((one for one in holders if _is_same(one.task.work, task_work(work))), None)
            idle = sorted(free, key=lambda one: (one not in holders, bool(one.task.trial_id)))
            member = adopted or next(iter(idle), None)
            if member is None:
                break
            free.remove(member)
            self.pending.remove(work)
            member.work = work
            self.conductor.process_started(work.trial_id, now)
            if member is adopted:
                for message in list(member.said):
                    if member.work is not None:
                        self.take(member, work, message)
            else:
                self.begin(member, work)
        if all(one.lives for one in there):  # what an earlier driver gave, and this one needs no more
            for member in free:
                if member.work is None and member.task.id:
                    member.release()

    @property
    def is_there(self) -> bool:
        """Whether a process may be there that drives the search after this one."""
        members = (self.members.get(folder.name) for folder in joiners(self.conductor.folder))
        return any(member is None or not member.gone for member in members)

    def say_present(self, count: int) -> None:
        """Say how many processes there are, when that has changed, and how one joins where there is none."""
        if count != self.present:
            self.present = count
            folder = self.conductor.folder
            join = f"orchestrator work {shlex.quote(str(folder.parent.parent))} --search {folder.name}"
            there = "process is there" if count == 1 else "processes are there"
            line = f"{count} {there} to train" if count else f"trials wait for a process that joins: {join}"
            print(line, file=sys.stderr)

    def begin(self, member: JoinedProcess, work: Work) -> None:
        """Give a process a trial; it may have ended another one in this look."""
        identity = f"{work.trial_id}-{time.time_ns():x}"
        member.give(Assignment(id=identity, trial_id=work.trial_id, work=task_work(work)))

    def dismiss(self, state: str) -> None:
        """Tell all that the search has ended."""
        for member in self.members.values():
            if not member.gone:
                with contextlib.suppress(OSError):
                    member.give(Assignment(ended=state))

    def tell_without_faiss(self, result: Validated) -> None:
        """Say once that trials search without faiss: what their own processes say is in their logs."""
        if (fault := result.faiss_fault) is not None and fault not in self.faiss_faults:
            from orchestrator.evaluation.neighbours import without_faiss

            self.faiss_faults.add(fault)
            print(f"note: {without_faiss(fault)}", file=sys.stderr)


def _is_same(given: object, now: dict[str, object]) -> bool:
    """Whether a task is what a trial needs now. What it measured of its network before the training has been taken
    since."""
    measured = itertools.product((now["untrained"], True), (now["costs"], True))
    return any(given == {**now, "untrained": score, "costs": costs} for score, costs in measured)
