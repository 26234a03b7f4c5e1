"""Machines, as far as their network goes: namespaces on one bridge, each with an address of its own."""

import contextlib
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass


def namespaces() -> bool:
    """Whether this machine lets us make networks."""
    if os.geteuid() or not shutil.which("ip"):
        return False
    probe = f"orchestrator-probe-{os.getpid()}"  # several test processes ask at once
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return done.returncode == 0


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@dataclass
class Network:
    """Machines 1, 2, ... `count`; `name` begins the names of what the kernel holds (at most 7 letters).

    `routed`: all other addresses seem to lie on the bridge too, so that Ray takes a machine's address from its route.
    """

    name: str
    subnet: str
    count: int
    routed: bool = False

    def address(self, number: int) -> str:
        return f"{self.subnet}.{number}"

    def inside(self, number: int) -> list[str]:
        """The words before a command that runs on a machine."""
        return ["ip", "netns", "exec", f"{self.name}{number}"]

    def build(self) -> None:
        self.remove()  # those of a run that was killed
        bridge = f"{self.name}-bridge"
        sh("ip", "link", "add", bridge, "type", "bridge")
        sh("ip", "link", "set", bridge, "up")
        for number in range(1, self.count + 1):
            space, end = f"{self.name}{number}", f"{self.name}-v{number}"
            sh("ip", "netns", "add", space)
            sh("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            sh("ip", "link", "set", end, "master", bridge, "up")
            sh("ip", "-n", space, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            sh("ip", "-n", space, "link", "set", "eth0", "up")
            sh("ip", "-n", space, "link", "set", "lo", "up")
            if self.routed:
                sh("ip", "-n", space, "route", "add", "default", "dev", "eth0")

    def remove(self) -> None:
        """With the processes that still run in them."""
        for number in range(1, self.count + 1):
            space = f"{self.name}{number}"
            found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True)
            for pid in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            # the link first: of a namespace that is deleted the kernel removes it a little later
            subprocess.run(["ip", "link", "del", f"{self.name}-v{number}"], capture_output=True)
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self.name}-bridge"], capture_output=True)
