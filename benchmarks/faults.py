"""A search that is disturbed at random moments, again and again, and what it has to show for it at the end.

    python benchmarks/faults.py --faults 100 --seed 0 --output benchmarks/faults.md

A search of 40 trials on embedded data, one at a time, with final runs of two workers each, is first run undisturbed,
then again, tracked by an MLflow server over PostgreSQL, with a fault at each of so many random moments. What ended is
resumed, as a user would, and only that; a server that died is started again some seconds later. At the end the two are
compared, and everything that a search keeps is checked against the journal. Exit code 1 if any check fails.

The table is written after each fault, and says how many there were so far. SIGTERM or Ctrl-C: no more faults, the
search comes to its end, and is checked; once more, and all ends. `--keep FOLDER` leaves all logs, and the undisturbed
search in FOLDER/calm; `--calm JOURNAL` takes one from there in place of another such run.

Full disks and read-only storages are mounted, which takes root on Linux; without it these two are left out and said so.
As root the campaign has mounts and a /dev/shm of its own, so that nothing else on the machine is taken for its litter.
The clock that jumps is that of the search's Python code.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from journal_model import JournalModel
from services import Clock, MLflowServer, Postgres, until

from orchestrator.storage.journal import Journal
from orchestrator.storage.leaderboard import leaderboard_rows
from orchestrator.storage.ledger import Ledger

os.environ.setdefault("OMP_NUM_THREADS", "1")

NAME = "disturbed"
MARK = "ORCHESTRATOR_CAMPAIGN"
"""A variable that every process of the campaign's searches inherits."""
STATUS = {"done": "FINISHED", "pruned": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
SHARE_OF_FINALS = 0.2
"""Of the faults, while the final runs train: only these have workers of Ray Train."""
STARTUP_SECONDS = 20.0
VICTIM_SECONDS = 300.0
"""How long a fault waits for a process that it can kill: a search that was just taken up has none yet."""
END_SECONDS = 240.0
ALONE_SECONDS = 75.0
"""How long the processes of a killed driver may live: Ray's agents give a cluster that is gone a minute."""
DISK_MIB = 256


def space(trials: int, final_seeds: int) -> dict[str, Any]:
    """The search: one validation per epoch, five at most."""
    return {
        "method": "proxy_anchor",
        "dataset": "glyphs-small",
        "settings": {
            "epochs": 5,
            "embedding_dim": 8,
            "classes_per_batch": 16,
            "images_per_class": 4,
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
    enough: bool = False
    """No more faults: the campaign was asked to come to its end."""
    clock: Clock | None = None
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

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "RAY_TMPDIR")}
        kept |= {MARK: self.identity, "TMPDIR": str(self.temporary), "ORCHESTRATOR_STORAGE": str(self.storage)}
        kept["RAY_worker_niceness"] = "0"  # as the driver's own, lest trials starve where others compute too
        return kept | (self.clock.environment() if self.clock else {})

    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "journal.jsonl"
        return Journal.read(path) if path.exists() else []

    def progress(self) -> int:
        return sum(event["event"] == "validation" for event in self.events())

    def begin(self) -> None:
        """The search's first command, or its resumption."""
        words = ["resume", NAME] if self.events() else self.first()
        if self.mlflow is not None:
            words += ["--tracking-uri", self.mlflow.uri]
        self.lives += 1
        self.hits.clear()
        with open(self.base / f"driver-{self.lives:03d}.txt", "wb") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *words],
                stdout=log,
                stderr=log,
                env=self.environment(),
                cwd=self.base,
                start_new_session=True,
            )

    def first(self) -> list[str]:
        from ruamel.yaml import YAML

        YAML(typ="safe", pure=True).dump(space(self.trials, self.final_seeds), self.base / "space.yaml")
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

    def how_to_resume(self, until_progress: int, seconds: float = 600) -> bool:
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

    def said(self) -> str:
        return (self.base / f"driver-{self.lives:03d}.txt").read_text(encoding="utf-8", errors="replace")

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
    "raylet": ("kill -9 of the raylet", Campaign.kill_raylet),
    "mlflow": ("kill -9 of the MLflow server", Campaign.kill_mlflow),
    "database": ("kill -9 of its PostgreSQL", Campaign.kill_database),
    "disk": ("a full disk", Campaign.fill_disk),
    "readonly": ("a read-only storage", Campaign.make_read_only),
    "interrupts": ("Ctrl-C twice", Campaign.interrupt_twice),
    "clock": ("a clock that jumps by up to two days", Campaign.jump),
}


def schedule(kinds: list[str], count: int, total: int, finals: int, rng: random.Random) -> list[Fault]:
    """So many faults at random moments of a search of `total` validations, the last `finals` of them final runs'.

    Every kind comes equally often, but for Train workers, who are there in the final runs only.
    """
    late = min(count, max(1, round(count * SHARE_OF_FINALS)))
    moments = sorted(rng.uniform(0, total - finals) for _ in range(count - late))
    moments += sorted(rng.uniform(total - finals, total - 1) for _ in range(late))
    early = [kind for kind in kinds if kind != "worker"]
    drawn: list[str] = []
    while len(drawn) < count - late:
        drawn += rng.sample(early, len(early))
    tail: list[str] = []
    while len(tail) < late:
        tail += ["worker"] * ("worker" in kinds) + rng.sample(kinds, min(1, len(kinds)))
    drawn = drawn[: count - late] + tail[:late]
    return [Fault(number, kind, int(at)) for number, (kind, at) in enumerate(zip(drawn, moments, strict=True), 1)]


def disturb(campaign: Campaign, faults: list[Fault], told: Callable[[], object]) -> None:
    """The search with its faults, to its end; `told` after each."""
    rng = campaign.random
    campaign.begin()
    for fault in faults:
        if campaign.enough:
            break
        if campaign.progress() < fault.at:
            if campaign.how_to_resume(fault.at):
                time.sleep(rng.uniform(0, 0.5))
        else:  # the search is just starting or being taken up: so is the fault's moment
            campaign.linger(rng.uniform(0, STARTUP_SECONDS))
        campaign.tend()
        if not campaign.running:
            campaign.begin()
            campaign.linger(rng.uniform(0, STARTUP_SECONDS))
        before = Ledger.of(events) if (events := campaign.events()) else None
        running = before.running() if before else []
        fault.trial = running[0].trial_id if running else ""
        started = time.monotonic()
        fault.outcome = FAULTS[fault.kind][1](campaign)
        if not fault.outcome:  # nothing there to be killed
            fault.kind, fault.outcome = "driver", campaign.kill_driver()
        fault.at = campaign.progress()
        fault.seconds = time.monotonic() - started
        campaign.check_work(before)
        campaign.check_orphans()
        line = f"{fault.number:3d} {fault.kind:10s} at {fault.at:3d} {fault.trial:16s} {fault.outcome}"
        print(f"{line} ({fault.seconds:.1f} s)", file=sys.stderr, flush=True)
        told()
        if not campaign.running and rng.random() < 0.5:
            time.sleep(rng.uniform(0, 5))
        if not campaign.running:
            campaign.begin()
    for _ in range(3):  # a server may be away at the very end: then once more, for what it missed
        code = campaign.outlive(1800)
        if code == 0 and not campaign.restarts and "sync" not in campaign.said():
            return
        if code is None:
            campaign.problems.append("the last life hangs")
            campaign.kill_driver()

        def tended() -> bool:
            campaign.tend()
            return not campaign.restarts

        until(tended, 60, "the servers")
        campaign.begin()
    campaign.problems.append(f"the last life ended with code {campaign.outlive(600)}: {campaign.said()[-300:]}")


# What must hold at the end -----------------------------------------------------------------------------------


def rows(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A leaderboard without the one column that is a matter of luck."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in leaderboard_rows(Ledger.of(events))]


def check_journal(campaign: Campaign, calm: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Nothing lost, nothing twice, and the numbers of a search that nothing disturbed."""
    events = campaign.events()
    ledger = Ledger.of(events)
    counts = Counter((e["trial_id"], e["validation"]) for e in events if e["event"] == "validation")
    twice = [key for key, count in counts.items() if count > 1]
    yield "the journal is accepted by the written model", "; ".join(JournalModel.of(events).broken[:3])
    yield "each validation journaled once", str(twice[:3]) if twice else ""
    ended: dict[str, int] = {}
    again = []
    for event in events:
        if event["event"] == "trial_ended" and event["state"] != "interrupted":
            ended[event["trial_id"]] = event["seq"]
        elif event["event"] in ("trial_started", "validation") and event["trial_id"] in ended:
            again.append(event["trial_id"])
    yield "no finished trial run again", str(again[:3]) if again else ""
    states = Counter(trial.state for trial in ledger.everyone())
    bad = {state: number for state, number in states.items() if state not in ("done", "pruned")}
    expected = campaign.trials + 2 * campaign.final_seeds
    missing = f"{sum(states.values())} of {expected} runs; {dict(states)}" if sum(states.values()) != expected else ""
    yield "every trial and final run came to its end", str(bad) if bad else missing
    yield "the search is done", "" if ledger.state == "done" else ledger.state
    different = [(a, b) for a, b in zip(rows(events), rows(calm), strict=False) if a != b]
    unequal = f"{len(different)} rows, first {different[0]}" if different else ""
    yield (
        "leaderboard and every final metric bit-identical",
        unequal or ("" if len(rows(events)) == len(rows(calm)) else "other lengths"),
    )
    yield "curves bit-identical", "" if curves(events) == curves(calm) else "they differ"


def curves(events: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, float]]:
    """All metrics of all validations."""
    return {(e["trial_id"], e["validation"]): e["metrics"] for e in events if e["event"] == "validation"}


def check_study(campaign: Campaign) -> Iterator[tuple[str, str]]:
    """The Optuna study holds the journal's trials."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(JournalFileBackend(str(campaign.folder / "study.journal")))
    study = optuna.load_study(study_name=NAME, storage=storage)
    found = {t.user_attrs["trial_id"]: t for t in study.trials if "trial_id" in t.user_attrs}
    ledger = Ledger.of(campaign.events())
    names = {"done": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
    wrong = [
        trial.trial_id
        for trial in ledger.trials.values()
        if trial.trial_id not in found
        or found[trial.trial_id].state.name != names[trial.state]
        or found[trial.trial_id].user_attrs["params"] != trial.params
        or found[trial.trial_id].value != trial.best
        or len(found[trial.trial_id].intermediate_values) != len(trial.curve)
    ]
    extra = sorted(found.keys() - ledger.trials.keys())
    open_ = [t.number for t in study.trials if not t.state.is_finished()]
    yield "the study has the journal's trials, values and curves", f"{wrong[:3]} {extra[:3]}" if wrong or extra else ""
    yield "no trial of the study left open", str(open_) if open_ else ""


def check_mlflow(campaign: Campaign) -> Iterator[tuple[str, str]]:
    """In the database itself: one run per trial, one point per metric and epoch, right statuses."""
    import psycopg

    assert campaign.postgres is not None
    events = campaign.events()
    ledger = Ledger.of(events)
    with contextlib.closing(psycopg.connect(campaign.postgres.uri)) as connection, connection.cursor() as cursor:

        def query(text: str) -> list[tuple[Any, ...]]:
            cursor.execute(text)
            return list(cursor.fetchall())

        runs = query("SELECT run_uuid, status, name FROM runs WHERE lifecycle_stage = 'active'")
        tags: dict[str, dict[str, str]] = {run: {} for run, _, _ in runs}
        for run, key, value in query("SELECT run_uuid, key, value FROM tags"):
            tags[run][key] = value
        repeated = query("SELECT run_uuid, key, step FROM metrics GROUP BY 1, 2, 3 HAVING count(*) > 1")
        points = query("SELECT run_uuid, key, step, value FROM metrics WHERE key LIKE 'val/%' OR key LIKE 'train/%'")
    of = {run: tags[run].get("orchestrator.trial_id", "") for run, _, _ in runs}
    wanted = sorted(["", *(trial.trial_id for trial in ledger.everyone())])
    yield "MLflow: one run per trial, and the search's own", "" if sorted(of.values()) == wanted else str(len(runs))
    yield "MLflow: one point per metric and epoch", str(repeated[:2]) if repeated else ""
    there = {(of[run], int(step), key): value for run, key, step, value in points}
    here = {
        (trial, step, key): value
        for (trial, step), metrics in curves(events).items()
        for key, value in metrics.items()
        if key.startswith(("val/", "train/"))
    }
    yield "MLflow: the journal's points, to the last bit", "" if there == here else f"{len(there)} of {len(here)}"
    states = {trial.trial_id: STATUS[trial.state] for trial in ledger.everyone()} | {"": STATUS[ledger.state]}
    wrong = [(of[run], status) for run, status, _ in runs if states.get(of[run]) != status]
    yield "MLflow: statuses right", str(wrong[:3]) if wrong else ""


def check_machine(campaign: Campaign, shared_memory: set[Path]) -> Iterator[tuple[str, str]]:
    """Nothing of the search is left on the machine."""

    def marked() -> list[str]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == campaign.identity and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline())[:60])
        return found

    with contextlib.suppress(TimeoutError):
        until(lambda: not marked(), ALONE_SECONDS, "the processes' end")
    yield "no process left (so no actor, no placement group)", str(marked()[:3]) if marked() else ""
    left = sorted(str(path) for path in set(Path("/dev/shm").iterdir()) - shared_memory)
    yield "/dev/shm as before", str(left[:3]) if left else ""
    left = sorted(str(path.relative_to(campaign.temporary)) for path in campaign.temporary.rglob("*"))
    yield "temporary folder empty", f"{len(left)}: {left[:3]}" if left else ""
    litter = [path for path in campaign.storage.rglob("*") if is_litter(path)]
    yield (
        "no half-written file in the storage",
        str([str(p.relative_to(campaign.storage)) for p in litter[:3]]) if (litter) else "",
    )
    kept = list(campaign.folder.rglob("checkpoint.pt"))
    yield "no checkpoint of an ended trial kept", str(len(kept)) if kept else ""


def is_litter(path: Path) -> bool:
    """Temporary neighbours of files, locks, probes."""
    return path.name.startswith((".checkpoint", ".best", ".model", ".write-test")) or path.suffix in (
        ".part",
        ".rename",
    )


# The campaign ------------------------------------------------------------------------------------------------


def unmount(place: Path) -> None:
    """The uppermost mount there; lazily, for processes may still be inside."""
    subprocess.run(["umount", "-l", str(place)], check=True)


def can_mount(place: Path) -> bool:
    """A small disk of its own for the storage, where that is permitted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(place)]
    return shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0


def run(arguments: argparse.Namespace, base: Path) -> int:
    """Calm search, disturbed search, checks, table."""
    shared_memory = set(Path("/dev/shm").iterdir())
    base.chmod(0o711)
    data = base / "calm" / "s" / "data"
    from orchestrator.data.catalog import open_dataset

    open_dataset("glyphs-small", data)
    calm = Campaign(base / "calm", arguments.trials, arguments.final_seeds, random.Random(0))
    calm.temporary.mkdir()
    if arguments.calm:
        calm.folder.mkdir(parents=True)
        shutil.copy(arguments.calm, calm.folder / "journal.jsonl")
    else:
        calm.begin()
        if calm.outlive(3600) != 0:
            print(calm.said(), file=sys.stderr)
            return 1
    calm_events = calm.events()
    ledger = Ledger.of(calm_events)
    if ledger.state != "done" or len(ledger.trials) != arguments.trials:
        found = f"{len(ledger.trials)} trials, {ledger.state}"
        raise SystemExit(f"--calm: {arguments.calm}: {found}; need all of {arguments.trials}")
    finals = [e for e in calm_events if e["event"] == "validation" and e["trial_id"].startswith("final")]
    total = calm.progress()
    calm_seconds = ledger.elapsed
    print(f"undisturbed: {total} validations in {calm_seconds:.0f} s", file=sys.stderr, flush=True)

    started = time.monotonic()
    campaign = Campaign(base, arguments.trials, arguments.final_seeds, random.Random(arguments.seed))
    stop_by_signal(campaign)
    campaign.storage.mkdir()
    campaign.temporary.mkdir()
    kinds = [kind for kind in FAULTS if kind in (arguments.kinds or FAULTS)]
    mounted = can_mount(campaign.storage)
    if not mounted:
        kinds = [kind for kind in kinds if kind not in ("disk", "readonly")]
    if not Postgres.installed():
        kinds = [kind for kind in kinds if kind != "database"]
        raise SystemExit("PostgreSQL (initdb, postgres) is not installed")
    campaign.clock = Clock(base / "clock")
    shutil.copytree(data, campaign.storage / "data")
    campaign.postgres = Postgres(base / "postgres")
    faults = schedule(kinds, arguments.faults, total, len(finals), campaign.random)
    checks: list[tuple[str, str]] = []

    def page() -> str:
        seconds = time.monotonic() - started
        text = table(arguments, faults, checks, total, calm_seconds, seconds, campaign)
        if arguments.output:
            arguments.output.write_text(text, encoding="utf-8")
        return text

    try:
        campaign.postgres.start()
        campaign.mlflow = MLflowServer(base / "mlflow", campaign.postgres.uri)
        campaign.mlflow.start()
        disturb(campaign, faults, page)
        seconds = time.monotonic() - started
        checks += check_journal(campaign, calm_events)
        checks += check_study(campaign)
        checks += check_mlflow(campaign)
        checks += check_machine(campaign, shared_memory)
    finally:
        if campaign.running:
            campaign.kill_driver()
        for server in (campaign.mlflow, campaign.postgres):
            if server is not None:
                server.kill()
        if arguments.keep and campaign.folder.exists():
            shutil.copytree(campaign.folder, base / "kept", dirs_exist_ok=True)
        while os.path.ismount(campaign.storage):
            unmount(campaign.storage)
    for path in sorted(base.glob("driver-*.txt")):
        text = path.read_text(errors="replace")
        importing = text.rstrip().endswith("KeyboardInterrupt") and ", in main\n" not in text  # not our code yet
        if "Traceback" in text and not importing:
            campaign.problems.append(f"{path.name}: a traceback: {text.strip().splitlines()[-1][:200]}")
    checks.append(("at most one checkpoint interval lost", "" if not any(campaign.lost) else str(max(campaign.lost))))
    checks.append(("nothing remarkable on the way", "; ".join(campaign.problems)))
    failed = [(name, found) for name, found in checks if found]
    print(page())
    done = [fault for fault in faults if fault.outcome]
    print(json.dumps({"faults": len(done), "failed": failed, "seconds": round(seconds)}))
    return 1 if failed else 0


def stop_by_signal(campaign: Campaign) -> None:
    """The first SIGTERM or Ctrl-C asks for no more faults, the second ends everything, in order: servers and all."""

    def handle(number: int, frame: object) -> None:
        if campaign.enough:
            sys.exit("ended")
        campaign.enough = True
        print("no more faults; the search comes to its end", file=sys.stderr, flush=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def own_namespace() -> None:
    """Begin again with mounts of our own and an empty /dev/shm, where that is permitted."""
    if os.geteuid() or not shutil.which("unshare") or MARK in os.environ:
        return
    os.environ[MARK] = "itself"
    mount = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c"]
    if subprocess.run([*command, mount, "sh", "true"], capture_output=True).returncode == 0:
        os.execvp(command[0], [*command, mount, "sh", sys.executable, *sys.argv])


def table(
    arguments: argparse.Namespace,
    faults: list[Fault],
    checks: list[tuple[str, str]],
    total: int,
    calm_seconds: float,
    seconds: float,
    campaign: Campaign,
) -> str:
    """The result as Markdown, or how far it is."""
    from orchestration import machine

    done = [fault for fault in faults if fault.outcome]
    options = f"--faults {len(faults)} --trials {arguments.trials} --seed {arguments.seed}"
    options += f" --final-seeds {arguments.final_seeds}" if arguments.final_seeds != 2 else ""
    options += f" --kinds {' '.join(arguments.kinds)}" if arguments.kinds else ""
    lines = [
        "# A search disturbed at random",
        "",
        f"`python benchmarks/faults.py {options}`, "
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, Python {platform.python_version()}: {arguments.trials} trials and "
        f"{2 * arguments.final_seeds} final runs of two workers, {total} validations; undisturbed in "
        f"{calm_seconds:.0f} s, with {len(done)} faults and {campaign.lives} lives of the driver in {seconds:.0f} s.",
        *(["", f"**Ended after {len(done)} of {len(faults)} faults.**"] if len(done) < len(faults) else []),
        *([] if checks else ["", "**Not at its end: nothing below has been checked.**"]),
        "",
        "| fault | times | what came of it |",
        "| --- | ---: | --- |",
    ]
    for kind, (words, _) in FAULTS.items():
        mine = [fault for fault in done if fault.kind == kind]
        outcomes = Counter(fault.outcome.partition(" for ")[0] for fault in mine)
        lines.append(f"| {words} | {len(mine)} | {', '.join(f'{o} ({n})' for o, n in outcomes.most_common())} |")
    lines += ["", "| what must hold at the end | |", "| --- | --- |"]
    lines += [f"| {name} | {found.replace('|', '/') or 'holds'} |" for name, found in checks]
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--final-seeds", type=int, default=2, help="of two final configurations")
    parser.add_argument("--kinds", nargs="*", choices=FAULTS)
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--keep", type=Path, help="work in this folder, and leave it")
    parser.add_argument("--calm", type=Path, metavar="JOURNAL", help="an undisturbed search's, in place of another run")
    arguments = parser.parse_args()
    own_namespace()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("ended"))  # in order: mounts and servers go
    if arguments.keep:
        arguments.keep.mkdir(parents=True)
        sys.exit(run(arguments, arguments.keep.resolve()))
    with tempfile.TemporaryDirectory(prefix="f", dir="/tmp") as base:
        code = run(arguments, Path(base))
    sys.exit(code)


if __name__ == "__main__":
    main()
