"""Upper bounds: counts and sizes that no real use reaches, and those of this machine; and words of a search file.

A larger number is a mistake, and its cost (memory, processes, days) is noticed too late.
"""

import os
from typing import Literal

AUTO = "auto"
"""The algorithm or scheduler of a search for which a rule chooses one."""
FinalProtocol = Literal["same", "conventional"]
"""The protocol of the final runs: the trials', or, of a search over folds, the conventional one."""

MAX_EPOCHS = 1_000_000
MAX_TRIALS = 1_000_000
MAX_RUNS = 10_000
"""Final runs of a search, and repetitions of a training."""
MAX_RETRIES = 100
MAX_RESTARTS = 10_000
MAX_CONCURRENT = 10_000
MAX_THREADS = 1_024
MAX_WORKERS = 1_024
MAX_CLASSES = 10_000_000
MAX_PER_BATCH = 65_536
MAX_IN_BATCH = 2**20
MAX_DIMENSIONS = 65_536
MAX_SIDE = 8_192
MAX_HOURS = 1_000_000
PROCESSES_PER_CPU = 8


def cpus() -> int:
    """CPUs of this machine."""
    return os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
