"""Upper bounds: counts and sizes that no real use reaches, and those of this machine; and what final runs may be.

A larger number is a mistake, and its cost (memory, processes, days) is noticed too late.
"""

import os
from typing import Literal

FinalProtocol = Literal["same", "conventional"]
"""The protocol of the final runs: the trials', or, of a search over folds, the conventional one."""

MOST_EPOCHS = 1_000_000
MOST_TRIALS = 1_000_000
MOST_RUNS = 10_000
"""Final runs of a search, and repetitions of a training."""
MOST_CONCURRENT = 10_000
MOST_THREADS = 1_024
MOST_WORKERS = 1_024
MOST_CLASSES = 10_000_000
MOST_PER_BATCH = 65_536
MOST_IN_BATCH = 2**20
MOST_DIMENSIONS = 65_536
MOST_SIDE = 8_192
MOST_HOURS = 1_000_000
PROCESSES_PER_CPU = 8


def cpus() -> int:
    """CPUs of this machine."""
    return os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
