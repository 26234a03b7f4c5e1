"""The announced end of this process, by SIGTERM: of a machine that vanishes, of a job whose time is over, at a stop."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_notice: str | None = None
"""Why this process is to end soon."""


def announce_own_end(reason: str) -> None:
    """This process is to end soon: a training in it is written after the step in progress, and preempted."""
    global _notice
    _notice = reason


def pending_notice() -> str | None:
    """Why this process is to end soon, if that was announced."""
    return _notice


def withdraw() -> None:
    """The process does not end after all: what follows in it is trained as ever."""
    global _notice
    _notice = None


def heed_sigterm() -> None:
    """From here on SIGTERM announces this process's end; it ends by itself when its training has been written. Does
    nothing in a thread that gets no signals."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _take_sigterm)


@contextlib.contextmanager
def sigterm_heeded() -> Iterator[None]:
    """`heed_sigterm`, within this context."""
    before = signal.getsignal(signal.SIGTERM)
    heed_sigterm()
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _take_sigterm(number: int, frame: FrameType | None) -> None:
    announce_own_end("SIGTERM")


@contextlib.contextmanager
def held_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM go to this handler, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
