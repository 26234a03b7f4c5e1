"""The announced end of trials' processes on a cluster: sent to them wherever they run, and by a machine that leaves.

    python -m orchestrator.execution.preemption [--seconds 100]

on a machine that is about to go, in a container's `preStop` say: its node is drained, so that nothing new begins there,
and each training on it writes a checkpoint and goes on elsewhere. It returns when they have ended, or after so many
seconds.
"""

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

TITLE = "ray::"
"""What the titles of processes of actors and tasks begin with."""
DRAIN_SECONDS = 5.0
"""How often Ray is asked which nodes it drains."""


def announce_end(actor: Any) -> None:
    """Announce the end of an actor's process, wherever it is; does not wait, and is silent where nothing answers."""
    with contextlib.suppress(Exception):
        for process in processes_of([actor]):
            announce_end_of(*process)


def announce_end_of(node_id: str, pid: int) -> None:
    """Announce the end of a process on a node; does not wait."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if node_id == ray.get_runtime_context().get_node_id():
        terminate(pid)
        return
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    ray.remote(num_cpus=0, max_retries=0)(terminate).options(scheduling_strategy=where).remote(pid)


def terminate(pid: int) -> None:
    """SIGTERM to a process on this machine, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


class DrainWatch:
    """Sees which processes are on nodes that Ray drains: for an autoscaler, `ray drain-node` or a cloud's notice."""

    def __init__(self) -> None:
        self.looked = -math.inf
        self.told: set[tuple[str, int]] = set()

    def leaving(self, now: float, processes: Callable[[], Iterable[tuple[str, int]]]) -> set[tuple[str, int]]:
        """Those, each a node and a process id, that are to leave and were not told before; looks every few seconds."""
        from orchestrator.execution.ray_private import draining_nodes

        if now - self.looked < DRAIN_SECONDS:
            return set()
        self.looked = now
        if not (nodes := draining_nodes()):
            return set()
        leaving = {one for one in processes() if one[0] in nodes} - self.told
        self.told |= leaving
        return leaving


def processes_of(actors: Iterable[Any]) -> list[tuple[str, int]]:
    """The node and the process of each actor that has one and that Ray tells."""
    from orchestrator.execution.ray_private import process_of

    processes = []
    for actor in actors:
        with contextlib.suppress(Exception):
            processes.append(process_of(actor))
    return processes


def training_processes() -> list[Any]:
    """The processes of this user's actors and tasks on this machine that work: idle ones hold nothing."""
    import psutil

    processes = []
    for process in psutil.process_iter(["cmdline", "uids"]):
        title = " ".join(process.info["cmdline"] or ())
        owner = process.info["uids"]
        if title.startswith(TITLE) and not title.startswith(f"{TITLE}IDLE") and owner and owner.real == os.getuid():
            processes.append(process)
    return processes


def leave_cluster(seconds: float) -> int:
    """Drain this machine's node and end its trainings; how many of them are left after so many seconds."""
    import psutil

    command = [str(Path(sys.executable).with_name("ray")), "drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message", "its machine leaves", "--deadline-remaining-seconds", str(int(seconds))]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # without it trials may begin here again
        quiet = subprocess.DEVNULL
        subprocess.Popen(command, stdout=quiet, stderr=quiet).wait(timeout=seconds / 3)
    processes = training_processes()
    for process in processes:
        terminate(process.pid)
    _, left = psutil.wait_procs(processes, timeout=seconds)
    return len(left)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Drain this machine's node, and let its trainings go on elsewhere.")
    parser.add_argument("--seconds", type=float, default=100.0, help="how long to wait for them; 100 by default")
    left = leave_cluster(parser.parse_args(arguments).seconds)
    print(f"{left} processes are left" if left else "all trainings here have written a checkpoint and ended")


if __name__ == "__main__":
    main()
