"""A process that joins a search through its storage: it trains what the driver gives it, and drives if nobody does.

It imports neither Ray nor torch: a process of its own trains (`orchestrator.execution.trainer`), which may crash, hang
or be killed, and another one drives.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.errors import InputError
from orchestrator.execution.exchange import (
    BEAT_SECONDS,
    CODE,
    LOOK_SECONDS,
    OUTPUT,
    STOPPED,
    TASK,
    Assignment,
    Code,
    Pulse,
    Stopped,
    Takeover,
    join_folder,
    read,
    send,
)
from orchestrator.execution.installed import code_digest, difference, installed_versions
from orchestrator.execution.protocol import THROUGH_STORAGE
from orchestrator.problems import Problem
from orchestrator.storage import paths
from orchestrator.storage.folder import Folder
from orchestrator.storage.journal import hold
from orchestrator.storage.opening import open_file
from orchestrator.storage.places import JOURNAL, WORK, Places
from orchestrator.storage.presence import DRIVER, DriverNote, read_note, this_process
from orchestrator.storage.reading import read_journal

DRIVER_OUTPUT = "driver.log"
"""What a driver prints that a joined process has started, in the folder of that process."""
GRACE_SECONDS = 15.0
"""How long a training may take to write a checkpoint when its process leaves."""
DRIVE_ATTEMPTS = 3
"""How often a process tries to drive a search that refuses it."""
FIRST_BEAT = 0.25


class Silent(Exception):
    """This process gave no sign of life for too long, so that the driver counts it as lost."""


@dataclass(frozen=True)
class Ending:
    """Why a process left a search: `done`, another reason why the search ended, or `idle`."""

    reason: str
    trained: int


@dataclass(frozen=True)
class Closed:
    """Why no process can join a search, or has work in it any longer, as a predicate."""

    reason: str
    resumable: bool = False


def open_searches(places: Places) -> list[str]:
    """The searches of a storage that processes can join, in the order of their names."""
    names = []
    for path in places.journals():
        with contextlib.suppress(InputError):
            if find_closure(path.parent) is None:
                names.append(path.parent.name)
    return names


def find_closure(search: Path) -> Closed | None:
    """Why no process can join a search, or has work in it any longer; None if it can."""
    state = read_journal(search / JOURNAL)[1].state
    if state in ("done", "failed"):
        return Closed(f"has ended: it is {state}")
    if read(search / WORK, CODE, Code) is None:
        return Closed("is not trained by processes that join", resumable=True)
    if state == "interrupted" and (note := read(search / WORK, STOPPED, Stopped)) is not None:
        return Closed(f"was interrupted ({note.reason})", resumable=True)
    return None


class Trainer:
    """The process that trains, started when it is first needed, and again when it has died."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False
        """Whether it has begun; one that dies before is no trial's fault."""
        self.lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def begin(self, request: Mapping[str, Any]) -> None:
        """Train a trial."""
        if self.process is None:
            self._start()
        with open_file(self.output, "r+b") as file:
            file.truncate(0)
        self.say(json.dumps(request))

    def _start(self) -> None:
        with open_file(self.output, "ab") as output:
            self.process = process = _start_python(
                "orchestrator.execution.trainer", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output
            )
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.lines, self.ready = lines, False

        def listen() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=listen, daemon=True).start()

    def say(self, word: str) -> None:
        """Give it a line; that it has died is seen by its answers."""
        process = self.process
        with contextlib.suppress(OSError, ValueError):
            if process is not None and process.stdin is not None:
                process.stdin.write(f"{word}\n".encode())
                process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """Its next answer, None if there is none within these seconds; `lost` if it has died, `refused` if it did not
        begin."""
        with contextlib.suppress(queue.Empty, ValueError):
            if (line := self.lines.get(timeout=seconds)) is not None:
                answer: dict[str, Any] = json.loads(line)
                if answer != {"kind": "ready"}:
                    return answer
                self.ready = True
                return None
            self.kill()
            reason = f"the process that trains does not begin here: {last_line(self.output)}"
            return {"kind": "lost"} if self.ready else {"kind": "refused", "reason": reason}
        return None

    def end(self) -> None:
        """Announce its end, upon which a training writes a checkpoint after the step in progress, then end it."""
        if self.process is not None and self.ready:
            self.process.terminate()
            late = time.monotonic() + GRACE_SECONDS
            while self.process is not None and (left := late - time.monotonic()) > 0:
                if (answer := self.answer(left)) is not None and answer["kind"] != "validated":
                    break
        self.kill()

    def kill(self) -> None:
        """End it at once; its checkpoints stay."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert stream is not None
                    stream.close()


def last_line(output: Path) -> str:
    """The last line that a process has printed into a file; empty if there is none."""
    with contextlib.suppress(OSError), open_file(output) as file:
        return file.read().decode(errors="replace").strip().rpartition("\n")[2][:500]
    return ""


def _start_python(module: str, *words: str, **streams: Any) -> "subprocess.Popen[bytes]":
    """A process that runs a module as this one would import it; Ctrl-C does not reach it."""
    search_path = [part or "." for part in sys.path if isinstance(part, str)]
    places = [*search_path, str(Path(orchestrator.__file__).parent.parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    return subprocess.Popen([sys.executable, "-P", "-m", module, *words], process_group=0, env=environment, **streams)


@dataclass
class Joiner:
    """A process that joined one search."""

    places: Places
    name: str
    lost_after: float
    """Seconds without a sign of life after which this process, or a driver that it watches, is lost."""
    idle: float | None
    """After how many seconds without a trial it leaves; None: when the search ends."""
    say: Callable[[str], None]
    current: str = ""
    """The task that it trains, or trained last."""
    trial_id: str = ""
    number: int = 0
    waiting: bool = False
    """Whether the training waits until the driver has taken its last result."""
    over: bool = True
    """Whether the current task has given its last result."""
    trained: int = 0
    silent: bool = False
    driver: "subprocess.Popen[bytes] | None" = None
    takeover: Takeover | None = None
    refusals: int = 0
    pulses: dict[Path, Pulse] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.search = self.places.search(self.name)
        self.journal = self.search / JOURNAL
        self.mine = Code(versions=installed_versions(), digest=code_digest())
        self.check_code()
        self.digest = str(read_journal(self.journal)[1].tags.get("dataset.digest"))
        self.watched = 0.0
        self.unlocked_for = self.driver_without_lock()

    def check_code(self) -> None:
        """InputError unless this process has the driver's versions and code."""
        theirs = read(self.search / WORK, CODE, Code)
        if theirs is None or theirs == self.mine:
            return
        if (other := difference(self.mine.versions, theirs.versions)) is not None:
            raise InputError(Problem(rule=f"the driver of '{self.name}' differs: {other}"))
        rule = f"the driver of '{self.name}' has other code (this package, methods or plugins): install the same here"
        raise InputError(Problem(rule=rule))

    def driver_without_lock(self) -> DriverNote | None:
        """The driver, if there seems to be one, although no process that this machine sees holds the journal."""
        note = read_note(self.search, DRIVER, DriverNote)
        with hold(self.journal) as free:
            return note if free else None

    def serve(self) -> Ending:
        """Train until the search ends, or it is idle for too long. Raises Silent, InputError, and KeyboardInterrupt,
        after which the trial is given back."""
        self.folder = join_folder(self.search)
        self.trainer = Trainer(self.folder / OUTPUT)
        self.busy = time.monotonic()
        ended = threading.Event()
        send(self.folder, kind="joined", lost_after=self.lost_after, **this_process())
        beats = threading.Thread(target=self.beat, args=(ended,), daemon=True)
        beats.start()
        try:
            while (reason := self.step()) is None:
                pass
            if self.driver is not None and reason != "idle":
                self.say("writing the pages of the search")
                self.driver.wait()
            return Ending(reason, self.trained)
        finally:
            with _ignore_signals():
                self.leave()
                ended.set()
                beats.join(BEAT_SECONDS)

    def beat(self, ended: threading.Event) -> None:
        """Give signs of life, in a thread. If that stopped for too long, as of a process that was suspended, another
        one trains its trial by now."""
        last, pause = time.monotonic(), FIRST_BEAT
        while not ended.wait(pause):
            pause, sent = BEAT_SECONDS, False
            with contextlib.suppress(OSError):
                send(self.folder, kind="alive")
                sent = True
            now = time.monotonic()
            if now - last > self.lost_after:  # also where a disk that was away let the line through only now
                self.silent = True
                self.trainer.kill()
                return
            last = now if sent else last
            if self.takeover is not None and self.driver is not None:
                self.takeover.renew()

    def step(self) -> str | None:
        """One look at what the driver says and the training does; why this process leaves, if it does."""
        if self.silent:
            raise Silent
        task = read(self.folder, TASK, Assignment)
        if task is not None and task.ended:
            self.over = True
            return task.ended
        if task is not None and task.id != self.current:
            self.change(task)
        if task is None or self.over:
            time.sleep(LOOK_SECONDS)
        elif not self.waiting:
            self.follow(self.trainer.answer(LOOK_SECONDS))
        elif task.answered >= self.number:
            self.waiting = False
            self.trainer.say("go")
        else:
            time.sleep(LOOK_SECONDS)
        now = time.monotonic()
        if not self.over:
            self.busy = now
        if now - self.watched > BEAT_SECONDS:
            self.watched = now
            if (reason := self.watch()) is not None:
                return reason
        idle = self.idle is not None and now - self.busy > self.idle
        return "idle" if idle and self.driver is None else None

    def change(self, task: Assignment) -> None:
        """Train another task, or none. A training at a validation ends in order; elsewhere its process is killed, and
        its checkpoint stays."""
        if not self.over and not self.waiting:
            self.trainer.kill()
        elif not self.over:
            self.trainer.say("stop")
        self.current, self.trial_id, self.number, self.waiting, self.over = task.id, task.trial_id, 0, False, True
        if task.id:
            self.over = False
            self.trained += 1
            self.say(f"trains trial {task.trial_id} of {self.name}")
            storage = str(self.places.storage)
            request = {"work": task.work, "search": self.name, "storage": storage, "digest": self.digest}
            self.trainer.begin(request)

    def follow(self, answer: Mapping[str, Any] | None) -> None:
        """Pass on what the training says. InputError if it refuses to train."""
        if answer is None:
            return
        if answer["kind"] == "refused":
            raise InputError(str(answer["reason"]))
        self.number += 1
        send(self.folder, task=self.current, number=self.number, **answer)
        self.waiting = answer["kind"] == "validated" and not answer["result"]["finished"]
        self.over = not self.waiting
        if answer["kind"] == "failed" and answer["result"]["failure"] == "device":
            self.trainer.kill()

    def watch(self) -> str | None:
        """Look after the driver: drive if nobody does; why this process leaves, if the search has ended."""
        if self.driver is not None:
            self.after_driving(self.driver.poll())
            return None
        silence = self.pulse(self.search / DRIVER).silent_seconds()
        if self.unlocked_for is not None:
            self.check_locks(self.unlocked_for)
        latest = Takeover.latest(self.search)
        silence = min(silence, self.pulse(Takeover.path_of(self.search, latest)).silent_seconds())
        if silence <= self.lost_after:
            self.check_code()
            return None
        if (end := find_closure(self.search)) is not None:
            return end.reason
        with hold(self.journal) as free:
            if not free:  # its driver writes the last records
                return None
        self.takeover = Takeover.attempt(self.search, latest + 1)
        if self.takeover is not None:
            self.drive()
        return None

    def pulse(self, path: Path) -> Pulse:
        """The pulse of a file."""
        return self.pulses.setdefault(path, Pulse(path))

    def check_locks(self, before: DriverNote) -> None:
        """InputError if a driver lives that holds no lock which this machine sees: two could write one journal."""
        now = read_note(self.search, DRIVER, DriverNote)
        if now is None or (now.host, now.pid) != (before.host, before.pid):
            self.unlocked_for = None
        elif now.time != before.time:
            raise InputError(
                f"{paths.display_path(self.journal)}: {before.by} drives this search, but its file lock does not reach "
                "this machine: mount the folder so that flock holds between machines (see docs/joining.md)"
            )

    def drive(self) -> None:
        """Start the search's driver as a process of this one."""
        self.say(f"nobody drives {self.name}: this process does (its output: {self.folder / DRIVER_OUTPUT})")
        command = ["resume", self.name, "--storage", str(self.places.storage), "--address", THROUGH_STORAGE]
        with open_file(self.folder / DRIVER_OUTPUT, "ab") as output:
            self.driver = _start_python(
                "orchestrator", *command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def after_driving(self, code: int | None) -> None:
        """Take note if the driver of this process has ended. InputError if it is refused again and again."""
        if code is None:
            return
        self.driver = None
        if self.takeover is not None:
            self.takeover.end()
        if code <= 0 or code == 130:  # done, killed or interrupted
            return
        self.refusals += 1
        last = last_line(self.folder / DRIVER_OUTPUT).removeprefix("error: ")
        if self.refusals >= DRIVE_ATTEMPTS:
            raise InputError(f"'{self.name}' cannot be driven from here: {last}")
        self.say(f"cannot drive {self.name}: {last}")

    def leave(self) -> None:
        """Give the trial back, and the driving to another process: its driver ends as by a kill, after which nothing is
        lost, and its signs of life are removed."""
        if self.over or self.waiting or self.silent:
            self.trainer.kill()
        else:
            self.trainer.end()
        with contextlib.suppress(OSError):
            if not self.silent:
                if not self.over:
                    self.say(f"gives trial {self.trial_id} of {self.name} back")
                    send(self.folder, kind="returned", task=self.current, number=self.number + 1)
                send(self.folder, kind="left")
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait()
            with contextlib.suppress(OSError, InputError):
                note = read_note(self.search, DRIVER, DriverNote)
                if note is not None and note.pid == self.driver.pid:
                    Folder(self.search, patient=False).remove(DRIVER)
        if self.takeover is not None:
            self.takeover.end()


@contextlib.contextmanager
def _ignore_signals() -> Iterator[None]:
    """Without Ctrl-C and SIGTERM, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
