"""Ctrl-C and SIGTERM while a search runs."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from orchestrator.endings import say
from orchestrator.search.conductor import Conductor

HANGUP_SECONDS = 60.0
"""How long a search whose terminal was closed has to end in order."""


@contextlib.contextmanager
def quick_turns() -> Iterator[None]:
    """Python's threads take turns every 0.2 ms, not 5: the tracker's computes, and the loop that drives the trials lets
    go of its turn at every message to them, and would wait so long each time for the next one."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def interrupts(conductor: Conductor) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) lets the search end in order, the second ends it at once. A SIGHUP, of a closed
    terminal, does what the first does, however many come, and after a while what the second does: nobody is there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            conductor.stopping = True
            if impatience.ident is None:  # not begun yet
                impatience.start()
            return
        if conductor.stopping:
            raise KeyboardInterrupt
        conductor.stopping = True
        if not sys.stderr.isatty():  # the live display says it by itself
            say("stopping in order; once more to stop at once")

    impatience = threading.Timer(HANGUP_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
    impatience.daemon = True
    heeded = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
        heeded.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in heeded}
    try:
        yield
    finally:
        impatience.cancel()
        for number, handler in before.items():
            # the records of its end are left: a terminal that is closed now cuts none of them short
            signal.signal(number, (lambda *_: None) if number == signal.SIGHUP else handler)
