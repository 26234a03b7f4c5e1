"""The announced end of trials' processes on a cluster: sent to them wherever they run, and by a machine that leaves.

    python -m orchestrator.execution.preemption [--seconds 100]

on a machine that is about to go, in a container's `preStop` say: its node is drained, so that nothing new begins there,
and each training on it writes a checkpoint and goes on elsewhere. It returns when they have ended, or after so many
seconds.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TITLE = "ray::"
"""What the titles of processes of actors and tasks begin with."""


def announce_end(actor: Any) -> None:
    """Announce the end of an actor's process, wherever it is; does not wait, and is silent where nothing answers."""
    from orchestrator.execution.ray_private import process_of

    with contextlib.suppress(Exception):
        announce_end_of(*process_of(actor))


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
