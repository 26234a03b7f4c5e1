"""A search whose processes join through its storage, without Ray, and what disturbs those who drive and who train."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import psutil
from campaign import END_SECONDS, NAME, VICTIM_SECONDS, Campaign, space

from orchestrator.storage.ledger import Ledger
from orchestrator.storage.presence import DRIVER, DriverNote, read_note

LOST_AFTER = 8.0
"""Seconds without a sign of life after which a process is lost."""
SILENCE = (2.0, 2 * LOST_AFTER)
RIVAL_SECONDS = 90.0
"""How long a second driver may take to be refused."""


@dataclass
class JoinedCampaign(Campaign):
    """Two processes that join, each started again some seconds after its end; a search that is driven by the campaign's
    own command first, and by one of them after that."""

    joiners: list[subprocess.Popen[bytes] | None] = field(default_factory=lambda: [None, None])
    next_start: list[float] = field(default_factory=lambda: [0.0, 0.0])
    started: int = 0
    slots: ClassVar[int] = 2

    def settings(self) -> dict[str, Any]:
        """Two trials at a time, whose points and ends do not depend on the order in which they end."""
        search = space(self.trials, self.final_seeds) | {"algorithm": "random", "max_concurrent": 2, "final_workers": 1}
        del search["scheduler"]
        return search | {"max_restarts": 1000}

    def environment(self) -> dict[str, str]:
        uri = {"MLFLOW_TRACKING_URI": self.mlflow.uri} if self.mlflow else {}
        return super().environment() | uri

    def begin(self) -> None:
        words = ["resume", NAME] if self.events() else self.first()
        self.lives += 1
        self.driver = self.command(f"driver-{self.lives:03d}.txt", *words, "--address", "storage")

    def tend(self) -> None:
        super().tend()
        if self.ended:
            return
        for place, joiner in enumerate(self.joiners):
            if joiner is not None and joiner.poll() is not None:
                self.joiners[place] = None
                self.next_start[place] = time.monotonic() + self.random.uniform(0, 4)
            elif joiner is None and time.monotonic() >= self.next_start[place]:
                self.started += 1
                words = [
                    "work",
                    str(self.storage),
                    "--search",
                    NAME,
                    "--lost-after",
                    f"{LOST_AFTER:g}",
                    "--idle",
                    "300",
                ]
                self.joiners[place] = self.command(f"joined-{self.started:03d}.txt", *words)

    @property
    def ended(self) -> bool:
        """Whether the search has come to its end."""
        events = self.events()
        return bool(events) and Ledger.of(events).state == "done"

    @property
    def running(self) -> bool:
        return any(joiner is not None and joiner.poll() is None for joiner in [self.driver, *self.joiners])

    def outlive(self, seconds: float) -> int | None:
        end = time.monotonic() + seconds
        self.tend()
        while self.running:
            self.tend()
            if time.monotonic() > end:
                return None
            time.sleep(0.1)
        return int(not self.ended)

    def end(self) -> None:
        for process in filter(None, [self.driver, *self.joiners]):
            for one in self.family_of(process):
                with contextlib.suppress(psutil.Error):
                    one.kill()
        self.driver = None

    def family_of(self, process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
        """A process and all that it started."""
        with contextlib.suppress(psutil.Error):
            one = psutil.Process(process.pid)
            return [one, *one.children(recursive=True)]
        return []

    def wait_for(self, find: Callable[[], Any]) -> Any:
        """What there is to be hit, once it is there; None if it does not come."""
        end = time.monotonic() + VICTIM_SECONDS
        while self.running and time.monotonic() < end and not self.ended:
            self.tend()
            if victim := find():
                return victim
            time.sleep(0.2)
        return None

    def driving(self) -> psutil.Process | None:
        """The process that drives now."""
        with contextlib.suppress(psutil.Error, OSError):
            note = read_note(self.folder, DRIVER, DriverNote)
            if note is not None and self.driver is not None:
                self.driver.poll()
            process = None if note is None else psutil.Process(note.pid)
            if process is not None and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def joined(self) -> "subprocess.Popen[bytes] | None":
        """One of those that joined, at random, preferably one that trains."""
        living = [joiner for joiner in self.joiners if joiner is not None and joiner.poll() is None]
        busy = [joiner for joiner in living if self.trainers_of(joiner)]
        return self.random.choice(busy) if busy else None

    def trainers_of(self, joiner: "subprocess.Popen[bytes]") -> list[psutil.Process]:
        """The process that trains for one that joined."""
        trainers = []
        for one in self.family_of(joiner):
            with contextlib.suppress(psutil.Error):
                if "orchestrator.execution.trainer" in one.cmdline():
                    trainers.append(one)
        return trainers

    # Faults ------------------------------------------------------------------------------------------------

    def bring(self, kind: str) -> str:
        return JOINED_FAULTS[kind][1](self)

    def spend(self, seconds: float, process: "subprocess.Popen[bytes] | None" = None) -> None:
        """Go on for some seconds, or until this process has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (process is None or process.poll() is None):
            self.tend()
            time.sleep(0.1)

    def kill_driving(self, victim: psutil.Process) -> str:
        with contextlib.suppress(psutil.Error):
            victim.kill()
        return "another process drives"

    def interrupt_driving(self, victim: psutil.Process) -> str:
        with contextlib.suppress(psutil.Error):
            victim.send_signal(signal.SIGINT)
        return "another process drives"

    def kill_joined(self, victim: "subprocess.Popen[bytes]") -> str:
        victim.kill()
        return "its trial goes on elsewhere"

    def kill_machine(self, victim: "subprocess.Popen[bytes]") -> str:
        for one in self.family_of(victim):
            with contextlib.suppress(psutil.Error):
                one.kill()
        return "its trial goes on elsewhere"

    def end_joined(self, victim: "subprocess.Popen[bytes]") -> str:
        victim.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            victim.wait(END_SECONDS)
        if victim.poll() is None:
            self.problems.append(f"a joined process does not end after SIGTERM: {victim.pid}")
            victim.kill()
        return "gave its trial back"

    def kill_trainer(self, victim: "subprocess.Popen[bytes]") -> str:
        for one in self.trainers_of(victim):
            with contextlib.suppress(psutil.Error):
                one.kill()
        return "trained again"

    def silence(self, victim: "subprocess.Popen[bytes]") -> str:
        """A machine that stands still for a while, and comes back to a search that has gone on without it, or not."""
        return self.freeze(self.family_of(victim))

    def silence_driving(self, victim: psutil.Process) -> str:
        """The same for whoever drives."""
        return self.freeze([victim])

    def freeze(self, processes: Sequence[psutil.Process]) -> str:
        for one in processes:
            with contextlib.suppress(psutil.Error):
                one.suspend()
        self.spend(pause := self.random.uniform(*SILENCE))
        for one in processes:
            with contextlib.suppress(psutil.Error):
                one.resume()
        return f"came back for {pause:.0f} s"

    def rival(self, before: psutil.Process) -> str:
        """Somebody resumes a search that is driven."""
        log = f"rival-{len(list(self.base.glob('rival-*'))):03d}.txt"
        rival = self.command(log, "resume", NAME, "--address", "storage")
        self.spend(RIVAL_SECONDS, rival)
        if rival.poll() is None:
            if before.is_running():
                self.problems.append(f"{log}: a second driver was not refused")
            os.killpg(rival.pid, signal.SIGKILL)
            rival.wait()
            return "drove instead"
        words = (self.base / log).read_text(errors="replace")
        if rival.returncode != 2 and not self.ended:
            self.problems.append(f"{log}: code {rival.returncode}, {words.strip()[-200:]}")
        return f"refused with code {rival.returncode}"


Fault = Callable[[JoinedCampaign], str]


def against(find: Callable[[JoinedCampaign], Any], strike: Callable[[JoinedCampaign, Any], str]) -> Fault:
    """A fault that waits for whom it hits."""

    def bring(campaign: JoinedCampaign) -> str:
        victim = campaign.wait_for(partial(find, campaign))
        return "had ended" if victim is None else strike(campaign, victim)

    return bring


DRIVING, JOINED = JoinedCampaign.driving, JoinedCampaign.joined
JOINED_FAULTS: dict[str, tuple[str, Fault]] = {
    "join-driver": ("kill -9 of whoever drives", against(DRIVING, JoinedCampaign.kill_driving)),
    "join-interrupt": ("Ctrl-C of whoever drives", against(DRIVING, JoinedCampaign.interrupt_driving)),
    "join-freeze": ("whoever drives stands still for 2 to 16 s", against(DRIVING, JoinedCampaign.silence_driving)),
    "join-process": ("kill -9 of a joined process", against(JOINED, JoinedCampaign.kill_joined)),
    "join-machine": ("kill -9 of it and all that it started", against(JOINED, JoinedCampaign.kill_machine)),
    "join-leaves": ("SIGTERM to a joined process", against(JOINED, JoinedCampaign.end_joined)),
    "join-trainer": ("kill -9 of the process that trains for it", against(JOINED, JoinedCampaign.kill_trainer)),
    "join-silence": ("a joined machine stands still for 2 to 16 s", against(JOINED, JoinedCampaign.silence)),
    "join-rival": ("a second driver", against(DRIVING, JoinedCampaign.rival)),
    "join-clock": ("a clock that jumps by up to two days", JoinedCampaign.jump),
}
