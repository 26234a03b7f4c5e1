"""Ctrl-C and SIGTERM while a search runs."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from types import FrameType

from orchestrator.search.conductor import Conductor
from orchestrator.stdio import write_line
from orchestrator.training.notice import announce_own_end, held_signals, withdraw

HANGUP_SECONDS = 60.0
"""How long a search whose terminal was closed has to end cleanly."""


LOST_SECONDS = 5.0
"""After how long a second Ctrl-C that has had no effect is repeated."""

MOST_KEPT_WAITING = 2
"""How many of them wait until the last records are written."""


@contextlib.contextmanager
def interrupts(conductor: Conductor) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) lets the search end cleanly, and trainings write a checkpoint after the step in
    progress; the second ends it at once. Python loses one that comes where it ignores exceptions, as while it forks, so
    it is repeated until it has an effect. Any number of SIGHUPs (a closed terminal) act like the first, and after a
    while like the second, since no user is present."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            conductor.stopping = True
            announce_own_end("SIGHUP")
            if impatience.ident is None:  # not started yet
                impatience.start()
            return
        if conductor.stopping:
            repeats.append(later(LOST_SECONDS))
            repeats[-1].start()
            raise KeyboardInterrupt
        conductor.stopping = True
        announce_own_end(signal.Signals(number).name)
        if not sys.stderr.isatty():  # the live display shows it itself
            write_line("stopping cleanly; interrupt again to stop at once")

    def later(seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        return timer

    impatience, repeats = later(HANGUP_SECONDS), list[threading.Timer]()
    heeded = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
        heeded.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in heeded}
    try:
        yield
    finally:
        for timer in (impatience, *repeats):
            timer.cancel()
        withdraw()
        for number, handler in before.items():
            # the final records are still to be written: closing the terminal must not cut them short
            signal.signal(number, (lambda *_: None) if number == signal.SIGHUP else handler)


@contextlib.contextmanager
def kept_together(conductor: Conductor) -> Iterator[None]:
    """What this block records belongs together, and takes no time: a Ctrl-C outside of `interrupts` waits for its end,
    and has no effect if the search was being stopped anyway. A third one is not kept waiting."""
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > MOST_KEPT_WAITING:
            raise KeyboardInterrupt

    with held_signals(handle):
        yield
    if came and not conductor.stopping:
        raise KeyboardInterrupt


_OUTERMOST: ContextVar[bool] = ContextVar("_OUTERMOST", default=True)


@contextlib.contextmanager
def continued_by(command: str) -> Iterator[None]:
    """A Ctrl-C that comes while the end of a search is recorded leaves it to this command, which it names; within
    another such block to that one's, as a claim goes on with all its searches."""
    outermost = _OUTERMOST.get()
    token = _OUTERMOST.set(False)
    try:
        yield
    except KeyboardInterrupt:
        if outermost:
            print(f"interrupted; continue with:  {command}", file=sys.stderr)
        raise
    finally:
        _OUTERMOST.reset(token)
