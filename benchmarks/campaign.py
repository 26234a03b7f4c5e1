"""Searches that are disturbed: one in Ray's processes (`Campaign`), and what every kind of disturbance does to it."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil
from services import Clock, MLflowServer, Postgres

from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger

os.environ.setdefault("OMP_NUM_THREADS", "1")

NAME = "disturbed"
MARK = "ORCHESTRATOR_CAMPAIGN"
"""A variable that every process of the campaign's searches inherits."""
SHARE_OF_FINALS = 0.2
"""Of the faults, while the final runs train: only these have workers of Ray Train."""
LATE = ("worker", "resize")
"""Kinds that come then only."""
SIZES = (1, 2, 3)
"""Processors of the machine on which a search is taken up, where it may be another one."""
ELASTIC = {"final_workers": {"low": 1, "high": max(SIZES)}}
STARTUP_SECONDS = 20.0
VICTIM_SECONDS = 300.0
"""How long a fault waits for a process that it can kill: a search that was just taken up has none yet."""
END_SECONDS = 240.0
ALONE_SECONDS = 75.0
"""How long the processes of a killed driver may live: Ray's agents give a cluster that is gone a minute."""
DISK_MIB = 256


def space(trials: int, final_seeds: int) -> dict[str, Any]:
    """The search: five validations of each trial at most, ten small steps apart."""
    return {
        "method": "proxy_anchor",
        "dataset": "glyphs-small",
        "settings": {
            "epochs": 1,
            "validate_every": "10 steps",
            "embedding_dim": 8,
            "classes_per_batch": 8,
            "images_per_class": 2,
            "device": "cpu",
        },
        "space": {
            "lr": {"low": 1e-5, "high": 1e-2, "log": True},
            "margin": {"low": 0.0, "high": 0.4},
        },
        "algorithm": "tpe",
        "num_trials": trials,
        "max_concurrent": 1,
        "final_workers": 2,
        "final_trials": 2,
        "final_seeds": final_seeds,
        "scheduler": {"name": "asha", "grace_validations": 2, "reduction_factor": 2},
        "seed": 5,
    }


@dataclass
class Fault:
    """One disturbance: what, and how far the search was (journaled validations) when it came."""

    number: int
    kind: str
    at: int
    trial: str = ""
    outcome: str = ""
    """Empty as long as it has not come."""
    seconds: float = 0.0


@dataclass
class Campaign:
    """One storage, its servers, and the search in it."""

    base: Path
    trials: int
    final_seeds: int
    random: random.Random
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    driver: subprocess.Popen[bytes] | None = None
    lives: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    """Deaths per trial in the driver's present life: of the third, a trial is not taken up again, by design."""
    restarts: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    orphans: list[tuple[float, psutil.Process]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    read: tuple[int, list[dict[str, Any]]] = (0, [])
    """The journal's events when it was so long."""
    enough: bool = False
    """No more faults: the campaign was asked to come to its end."""
    clock: Clock | None = None
    elastic: bool = False
    """Whether the final runs have as many workers as there is room for; then their numbers are equal to rounding."""
    cpus: int | None = None
    """Those that Ray finds; None: the machine's."""
    slots: ClassVar[int] = 1
    """Trials at a time."""
    postgres: Postgres | None = None
    mlflow: MLflowServer | None = None

    @property
    def storage(self) -> Path:
        return self.base / "s"

    @property
    def temporary(self) -> Path:
        return self.base / "t"

    @property
    def folder(self) -> Path:
        return self.storage / "searches" / NAME

    def settings(self) -> dict[str, Any]:
        """The search's file. Sums of float64 differ little between numbers of workers."""
        search = space(self.trials, self.final_seeds)
        if self.elastic:
            search |= ELASTIC
            search["settings"] |= {"precision": "float64"}
        return search

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "RAY_TMPDIR")}
        kept |= {MARK: self.identity, "TMPDIR": str(self.temporary), "ORCHESTRATOR_STORAGE": str(self.storage)}
        kept["RAY_worker_niceness"] = "0"  # as the driver's own, lest trials starve where others compute too
        kept["RAY_memory_monitor_refresh_ms"] = "0"  # nor are they killed for the memory that others take
        if self.cpus is not None:
            kept |= {"CAMPAIGN_CPUS": str(self.cpus), "RAY_USE_MULTIPROCESSING_CPU_COUNT": "1"}
        return kept | (self.clock.environment() if self.clock else {})

    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "journal.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if size != self.read[0]:
            self.read = size, Journal.read(path) if size else []
        return self.read[1]

    def progress(self) -> int:
        return sum(event["event"] == "validation" for event in self.events())

    def begin(self) -> None:
        """The search's first command, or its resumption."""
        words = ["resume", NAME] if self.events() else self.first()
        if self.mlflow is not None:
            words += ["--tracking-uri", self.mlflow.uri]
        self.lives += 1
        self.hits.clear()
        self.driver = self.command(f"driver-{self.lives:03d}.txt", *words)

    def command(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        """A command of a user."""
        with open(self.base / log, "ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *words],
                stdout=file,
                stderr=file,
                env=self.environment(),
                cwd=self.base,
                start_new_session=True,
            )

    def first(self) -> list[str]:
        from ruamel.yaml import YAML

        YAML(typ="safe", pure=True).dump(self.settings(), self.base / "space.yaml")
        return ["search", str(self.base / "space.yaml"), "--name", NAME]

    @property
    def running(self) -> bool:
        return self.driver is not None and self.driver.poll() is None

    def family(self) -> list[psutil.Process]:
        """Everything that the driver started."""
        if not self.running or self.driver is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self.driver.pid).children(recursive=True))
        return []

    def named(self, *words: str) -> list[psutil.Process]:
        found = []
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                title = " ".join([process.name(), *process.cmdline()[:1]])
                if any(word in title for word in words):
                    found.append(process)
        return found

    def tend(self) -> None:
        """Start what is due again."""
        due = [restart for when, restart in self.restarts if when <= time.monotonic()]
        self.restarts = [(when, restart) for when, restart in self.restarts if when > time.monotonic()]
        for restart in due:
            restart()

    def run_until(self, until_progress: int, seconds: float = 600) -> bool:
        """Let the search run until so many validations are journaled; False if it came to its end before."""
        end = time.monotonic() + seconds
        while self.progress() < until_progress:
            self.tend()
            if not self.running:
                return False
            if time.monotonic() > end:
                self.problems.append(f"life {self.lives}: hangs at validation {self.progress()}")
                return False
            time.sleep(0.1)
        return True

    def linger(self, seconds: float) -> None:
        """Some time in the search's beginning; no longer than to its next validation, lest it outrun its faults."""
        end, before = time.monotonic() + seconds, self.progress()
        while time.monotonic() < end and self.progress() == before and self.running:
            self.tend()
            time.sleep(0.1)

    def outlive(self, seconds: float) -> int | None:
        """Wait for the driver to end by itself: its exit code, None (and a problem) if it does not."""
        end = time.monotonic() + seconds
        while self.running:
            self.tend()
            if time.monotonic() > end:
                return None
            time.sleep(0.1)
        return None if self.driver is None else self.driver.returncode

    def end(self) -> None:
        """End all of its processes."""
        if self.running:
            self.kill_driver()

    def said(self) -> str:
        return (self.base / f"driver-{self.lives:03d}.txt").read_text(encoding="utf-8", errors="replace")

    def bring(self, kind: str) -> str:
        """A fault of this kind, and what came of it; empty if there was nothing that it could hit."""
        return FAULTS[kind][1](self)

    # Faults: each says what came of it, and may leave the driver ended ---------------------------------

    def kill_driver(self) -> str:
        assert self.driver is not None
        self.orphans += [(time.monotonic(), process) for process in self.family()]
        self.driver.kill()
        self.driver.wait()
        return "resumed"

    def kill_trial(self) -> str:
        return self._kill_one("ray::Trial")

    def kill_worker(self) -> str:
        return self._kill_one("RayTrainWorker")

    def _kill_one(self, name: str) -> str:
        end = time.monotonic() + VICTIM_SECONDS
        while self.running and time.monotonic() < end:
            self.tend()
            victims = self.named(name)
            trial = Ledger.of(events).running() if (events := self.events()) else []
            key = trial[0].trial_id if trial else ""
            if victims and key and self.hits[key] < 2:
                self.hits[key] += 1
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.random.choice(victims).kill()
                return "went on by itself"
            if victims and name == "RayTrainWorker" and key:
                break  # a final run takes long, and its third death would be its last
            time.sleep(0.2)
        return ""

    def announce_end(self) -> str:
        """To one process of a training, as of a container that is stopped."""
        return self._announce(["ray::Trial", "RayTrainWorker"], all_of_them=False)

    def announce_end_of_all(self) -> str:
        """To every process of a training, as a machine does that leaves its cluster."""
        return self._announce(["ray::"], all_of_them=True)

    def _announce(self, names: list[str], all_of_them: bool) -> str:
        end = time.monotonic() + VICTIM_SECONDS
        while self.running and time.monotonic() < end:
            self.tend()
            victims = [] if not self.named("ray::Trial") else self.named(*names)
            if victims and self.events() and Ledger.of(self.events()).running():
                for victim in victims if all_of_them else [self.random.choice(victims)]:
                    with contextlib.suppress(psutil.Error):
                        if "IDLE" not in " ".join(victim.cmdline()[:1]):
                            victim.terminate()
                return "went on by itself"
            time.sleep(0.2)
        return ""

    def resize(self) -> str:
        """The driver's machine is gone, and the search taken up on one with another number of processors."""
        self.kill_driver()
        self.cpus = self.random.choice([size for size in SIZES if size != self.cpus])
        return "resumed"

    def kill_raylet(self) -> str:
        victims: list[psutil.Process] = []
        end = time.monotonic() + VICTIM_SECONDS
        while self.running and not victims and time.monotonic() < end:
            self.tend()
            time.sleep(0.2)
            family = self.family()
            for process in family:  # its forks bear its name too, until they are something else
                with contextlib.suppress(psutil.Error):
                    if process.name() == "raylet" and process.ppid() == (self.driver.pid if self.driver else 0):
                        victims.append(process)
                        process.kill()
        if not victims:
            return ""
        if psutil.wait_procs(victims, timeout=30)[1]:
            self.problems.append(f"life {self.lives}: the raylet cannot be killed")
        code = self.outlive(END_SECONDS)
        if code is None:
            self.problems.append(f"life {self.lives}: the driver hangs after its raylet was killed")
            return self.kill_driver()
        self.orphans += [(time.monotonic(), process) for process in family]
        return f"ended with code {code}, resumed"

    def kill_mlflow(self) -> str:
        return self._kill_server(self.mlflow)

    def kill_database(self) -> str:
        return self._kill_server(self.postgres)

    def silence_mlflow(self) -> str:
        """It takes connections and does not answer, as across a network that loses what is sent."""
        if (server := self.mlflow) is None or server.process is None:
            return ""
        group, pause = server.process.pid, self.random.uniform(1, 15)
        os.killpg(group, signal.SIGSTOP)

        def wake() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)

        self.restarts.append((time.monotonic() + pause, wake))
        return f"silent for {pause:.0f} s"

    def _kill_server(self, server: MLflowServer | Postgres | None) -> str:
        if server is None or server.process is None:
            return ""
        server.kill()
        pause = self.random.uniform(0, 15)
        self.restarts.append((time.monotonic() + pause, server.begin))
        return f"away for {pause:.0f} s"

    def jump(self) -> str:
        """Forwards or backwards by up to two days, for all processes of the search."""
        if self.clock is None:
            return ""
        hours = self.random.choice((-1, 1)) * self.random.uniform(0.1, 48)
        self.clock.jump(3600 * hours)
        return "went on"

    def fill_disk(self) -> str:
        if not os.path.ismount(self.storage):
            return ""
        ballast = self.storage / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        return self._until_it_ends("the disk is full", lambda: ballast.unlink(missing_ok=True))

    def make_read_only(self) -> str:
        if not os.path.ismount(self.storage):
            return ""
        place = str(self.storage)
        subprocess.run(["mount", "--bind", place, place], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        return self._until_it_ends("the storage is read-only", lambda: unmount(self.storage))

    def _until_it_ends(self, what: str, mend: Callable[[], object]) -> str:
        family = self.family()
        code = self.outlive(END_SECONDS)
        lines = [line for line in self.said().splitlines() if "resume" in line]
        mend()
        if code is None:
            self.problems.append(f"life {self.lives}: the driver goes on though {what}")
            return self.kill_driver()
        if code != 0 and not lines and self.events():
            self.problems.append(f"life {self.lives}: says nothing of resuming, though {what}")
        self.orphans += [(time.monotonic(), process) for process in family]
        return f"ended with code {code}, resumed" if code else "came to its end before"

    def interrupt_twice(self) -> str:
        assert self.driver is not None
        family = self.family()
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self.driver.pid, signal.SIGINT)
            time.sleep(self.random.uniform(0, 1.5))
            os.killpg(self.driver.pid, signal.SIGINT)
        code = self.outlive(END_SECONDS)
        if code is None:
            self.problems.append(f"life {self.lives}: the driver goes on after two interrupts")
            return self.kill_driver()
        self.orphans += [(time.monotonic(), process) for process in family]
        return f"ended with code {code}, resumed"

    # What must hold after each fault -----------------------------------------------------------------------

    def check_work(self, before: Ledger | None) -> None:
        """No finished trial is gone, and of each unfinished one the checkpoint is at its last validation or beyond."""
        from orchestrator.storage.trial_folder import CHECKPOINT
        from orchestrator.training.checkpoint import load_checkpoint

        if not self.events():
            return
        now = Ledger.of(self.events())
        for trial in before.everyone() if before else []:
            if trial.state in ("done", "pruned", "failed") and now.find(trial.trial_id).state != trial.state:
                self.problems.append(f"trial {trial.trial_id} was {trial.state} and is not any more")
        for trial in now.everyone():
            if trial.state in ("running", "interrupted") and trial.validations:
                path = self.folder / "trials" / trial.trial_id / CHECKPOINT
                kept = len(load_checkpoint(path)["history"]) if path.exists() else 0
                self.lost.append(max(0, trial.validations - kept))
                if kept < trial.validations:
                    self.problems.append(
                        f"trial {trial.trial_id}: {trial.validations} validations, {kept} in checkpoint"
                    )

    def check_orphans(self) -> None:
        """The processes of drivers that ended are gone in time."""
        for when, process in self.orphans:
            with contextlib.suppress(psutil.NoSuchProcess):
                if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if time.monotonic() - when > ALONE_SECONDS:
                    self.problems.append(f"left behind: {process.pid} {' '.join(process.cmdline())[:80]}")
        living = [(when, process) for when, process in self.orphans if process.is_running()]
        self.orphans = [(when, process) for when, process in living if time.monotonic() - when <= ALONE_SECONDS]


FAULTS: dict[str, tuple[str, Callable[[Campaign], str]]] = {
    "driver": ("kill -9 of the driver", Campaign.kill_driver),
    "trial": ("kill -9 of a trial's process", Campaign.kill_trial),
    "worker": ("kill -9 of a Train worker", Campaign.kill_worker),
    "announced": ("SIGTERM to a process of a training", Campaign.announce_end),
    "leaves": ("SIGTERM to all processes of a training", Campaign.announce_end_of_all),
    "resize": ("kill -9, then resumed with 1, 2 or 3 processors", Campaign.resize),
    "raylet": ("kill -9 of the raylet", Campaign.kill_raylet),
    "mlflow": ("kill -9 of the MLflow server", Campaign.kill_mlflow),
    "silence": ("an MLflow server that does not answer", Campaign.silence_mlflow),
    "database": ("kill -9 of its PostgreSQL", Campaign.kill_database),
    "disk": ("a full disk", Campaign.fill_disk),
    "readonly": ("a read-only storage", Campaign.make_read_only),
    "interrupts": ("Ctrl-C twice", Campaign.interrupt_twice),
    "clock": ("a clock that jumps by up to two days", Campaign.jump),
}


def unmount(place: Path) -> None:
    """The uppermost mount there; lazily, for processes may still be inside."""
    subprocess.run(["umount", "-l", str(place)], check=True)


def can_mount(place: Path) -> bool:
    """A small disk of its own for the storage, where that is permitted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(place)]
    return shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
