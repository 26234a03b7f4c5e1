"""Lost training processes: what they leave in their logs, and which part of it belongs to a trial.

Both sides: the process logs where a trial begins and how the trial's code ends it; the driver reads that log.
"""

import contextlib
import faulthandler
import functools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.storage import paths
from orchestrator.storage.folder import Folder
from orchestrator.storage.opening import open_file

PROCESS_LOG = "process.log"
"""The file in the trial's folder with the last lines of a lost process."""
LINES = 30
BEFORE = 10
"""How many lines before a long stack trace are kept with it."""
CHARACTERS = 1000
"""How many characters of each line are kept."""
SHOWN = 300
"""How many characters of the last line are put into a reason."""
READ_BYTES = 1 << 18
SECONDS = 20.0
"""How long a node may take to find these lines."""
ENDED = "the code ended its own process by os._exit"
CRASHED = "Fatal Python error: "
NOISE = re.compile(
    r":|Extension modules: |\[[^\]]*\] logging\.cc:"  # Ray's markers, Python's list, and Ray's second copy of a crash
    r"|(Loading|Successfully loaded) faiss|Could not load library with .* due to:$|ModuleNotFoundError\(.*'faiss\."
)
"""Beginnings of lines that say nothing about a trial."""
LIBRARIES = re.compile(
    r"<frozen|.*/lib/python3\.\d+/(?!(site|dist)-packages/)|.*/(torch|torchvision|timm|numpy|faiss)/"
)
"""Files whose code is neither ours nor a plugin's."""
EARLY = 0.9
"""A hanging process prints its stacks after this fraction of its time limit."""


# In the process that trains -----------------------------------------------------------------------------------


def begins(trial_id: str) -> str:
    """The line after which a process's output belongs to a trial."""
    return f"orchestrator: trial {trial_id} begins here"


def announce(trial_id: str) -> None:
    """Mark in this process's output where a trial begins. From here on `os._exit` leaves a trace."""
    for stream in (1, 2):
        os.write(stream, f"{begins(trial_id)}\n".encode())
    if not isinstance(os._exit, functools.partial):
        os._exit = functools.partial(_exit, os._exit, os.getpid())


def _exit(original: Callable[[int], NoReturn], owner: int, status: int) -> NoReturn:
    if os.getpid() == owner:  # not in a process that forked from it
        stack = "".join(traceback.format_list(traceback.extract_stack()[:-1][-4:]))
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os.write(2, f"{stack}{ENDED}({status})\n".encode(errors="replace"))
    original(status)


@contextlib.contextmanager
def stack_if_late(*limits: float | None) -> Iterator[None]:
    """Shortly before a step exceeds the shortest of its limits, in seconds, write all threads' stacks to the output,
    including those of code that holds the GIL."""
    finite = [limit for limit in limits if limit is not None]
    if finite:
        faulthandler.dump_traceback_later(max(0.1, EARLY * min(finite)), file=2)
    try:
        yield
    finally:
        if finite:
            faulthandler.cancel_dump_traceback_later()


# On the driver's side -----------------------------------------------------------------------------------------


def last_lines(actor: Any, trial_id: str) -> str:
    """The last lines that an actor's process wrote for a trial; empty if it is not known, or if its node is gone or
    does not answer."""
    from orchestrator.execution.ray_private import process_of

    with contextlib.suppress(Exception):
        return lines_of(*process_of(actor), trial_id)
    return ""


def lines_of(node_id: str, pid: int, trial_id: str) -> str:
    """The last lines that a process on a node wrote for a trial; see `last_lines`."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if node_id == ray.get_runtime_context().get_node_id():
        return tail(pid, trial_id)
    if not any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes()):
        return ""
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    answer = ray.remote(num_cpus=0, max_retries=0)(tail).options(scheduling_strategy=where).remote(pid, trial_id)
    return str(ray.get(answer, timeout=SECONDS))


def tail(pid: int, trial_id: str, logs: Path | None = None) -> str:
    """Runs on the process's node: its last lines for a trial, from stdout and then from stderr."""
    if logs is None:
        from orchestrator.execution.ray_private import logs_here

        logs = logs_here()
    lines_of_trial = []
    for kind in ("out", "err"):
        paths = sorted(logs.glob(f"worker-*-{pid}.{kind}"), key=lambda path: path.stat().st_mtime)
        if paths:
            lines_of_trial += _lines(paths[-1], trial_id)
    return "\n".join(lines_of_trial)


def tail_of_output(path: Path, trial_id: str) -> str:
    """The last lines for a trial in the one file with a process's whole output; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return "\n".join(_lines(path, trial_id))
    return ""


def _lines(path: Path, trial_id: str) -> list[str]:
    with open_file(path) as file:
        file.seek(max(0, path.stat().st_size - READ_BYTES))
        text = file.read().decode(errors="replace").rpartition(f"{begins(trial_id)}\n")[2]
    lines = [line.rstrip()[:CHARACTERS] for line in text.splitlines() if line.strip() and not NOISE.match(line)]
    return _telling(lines)


def _telling(lines: list[str]) -> list[str]:
    """The last lines; of a longer stack trace the beginning, which shows where the process was."""
    for mark in (CRASHED, "most recent call first):"):
        if numbers := [number for number, line in enumerate(lines) if mark in line]:
            if len(lines) - numbers[-1] > LINES:
                return lines[max(0, numbers[-1] - BEFORE) : numbers[-1] + LINES]
            break
    return lines[-LINES:]


def keep_log(folder: Path, words: str) -> None:
    """Keep a lost process's last lines in its trial's folder."""
    if words:
        with contextlib.suppress(OSError):
            Folder(folder, patient=False).write(PROCESS_LOG, f"{words}\n".encode())


@dataclass(frozen=True)
class Cause:
    """Why a process ended: its own code ended it, which would happen again, or native code crashed."""

    reason: str
    by_own_code: bool


def cause(words: str) -> Cause | None:
    """Why the process ended, if its last lines say so."""
    frame = r'(?:File "([^"]+)", line (\d+), in (\S+)[^\n]*\n[^\n]*\n)?'
    if match := re.search(rf"{frame}{re.escape(ENDED)}\((-?\d+)\)", words):
        where = f", in {match[3]}, {Path(match[1]).name} line {match[2]}" if match[1] else ""
        return Cause(f"{ENDED}({match[4]}){where}", by_own_code=True)
    if match := re.search(rf"{CRASHED}([^\n]+)(.*)", words, re.S):
        where = f", {place}" if (place := _place(match[2])) else ""
        return Cause(f"its process crashed: {match[1]}{where}", by_own_code=False)
    return None


def _place(stack: str) -> str | None:
    """The first function of ours or a plugin's in a stack (most recent call first); else the first function."""
    frames = re.findall(r'^  File "([^"]+)", line (\d+) in (\S+)', stack, re.M)
    for file, line, function in [*(frame for frame in frames if not LIBRARIES.match(frame[0])), *frames[:1]]:
        return f"in {function}, {Path(file).name} line {line}"
    return None


def stuck_at(words: str) -> str | None:
    """Where an overdue process was: the function of ours, or of a plugin's, in which its main thread was."""
    stacks = re.findall(r"most recent call first\):\n((?:  File [^\n]+\n?)+)", words.rpartition("Timeout (")[2])
    return next((place for stack in reversed(stacks) if (place := _place(stack))), None)  # the main thread comes last


def last_output(words: str, folder: Path) -> str:
    """The last line that a lost process's code wrote, to be put into a reason, and where to find the other lines;
    empty if there are none."""
    if not words:
        return ""
    see = f" (see {paths.display_path(folder / PROCESS_LOG)})"
    if stuck_at(words) and CRASHED not in words:  # it is the end of a stack
        return see
    output = re.split(rf"(?:^  .*\n)*^{re.escape(ENDED)}|^\*\*\* SIG|^{CRASHED}", words, maxsplit=1, flags=re.M)[0]
    last = " ".join(output.rstrip().rpartition("\n")[2].split())[-SHOWN:]
    return f"; its last line: {last}{see}" if last else see
