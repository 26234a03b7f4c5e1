"""The memory of this process. getrusage's ru_maxrss is not used: a process begun by a larger one inherits its peak."""

import resource
from pathlib import Path


def peak_memory() -> int:
    """The most bytes that this process's own program held at once."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def resident_memory() -> int:
    """The bytes that it holds now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
