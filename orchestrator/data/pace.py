"""How many threads prepare images: more while the training waits for them and more of them help."""

import contextlib
import os
from pathlib import Path
from statistics import median

FIRST = 4
"""Threads that begin, where there are as many cores."""
WINDOW = 16
"""Batches between two decisions: more than are being read at a time, which the threads before have begun."""
WAITING = 0.05
"""The share of its time for which the training may wait."""
GAIN = 0.05
"""The share of the time between two batches that twice the threads have to save, or they are taken back."""


def usable_cores() -> int:
    """Cores that this process may use: of its affinity, and of its container's quota (control groups, version 2)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # another system, or "max": no quota
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


class Pace:
    """Decides on the number of threads from the times of one reading's batches.

    The times are medians over WINDOW batches, so that a validation in between, or another's short work on the machine,
    does not count. Once more threads have not helped, their number stays.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._last: float | None = None
        self._between: list[float] = []
        self._waited: list[float] = []
        self._fewer: tuple[int, float] | None = None
        """The threads before the last growth, and the time between their batches."""
        self._settled = False

    def threads(self, now: int, waited: float, clock: float) -> int:
        """The threads from here on, after a batch for which the training waited, in seconds, and which it got at this
        time; `now`: those so far."""
        if self._settled or (now >= self.most and self._fewer is None):
            return now
        if self._last is not None:
            self._between.append(clock - self._last)
            self._waited.append(waited)
        self._last = clock
        if len(self._between) < WINDOW:
            return now
        between, idle = median(self._between), median(self._waited)
        self._between.clear()
        self._waited.clear()
        if self._fewer is not None and between > (1 - GAIN) * self._fewer[1]:
            self._settled = True
            return min(now, self._fewer[0])
        self._fewer = None
        if idle <= WAITING * between or now >= self.most:
            return now
        self._fewer = now, between
        return min(2 * now, self.most)
