"""The command line in a process of its own, as in a terminal."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from ruamel.yaml import YAML

from orchestrator.storage.journal import Journal
from orchestrator.storage.leaderboard import leaderboard_rows
from orchestrator.storage.ledger import Ledger

TINY: dict[str, Any] = {
    "method": "proxy_anchor",
    "dataset": "glyphs-small",
    "settings": {
        "epochs": 1,
        "validate_every": "8 steps",
        "embedding_dim": 8,
        "classes_per_batch": 8,
        "images_per_class": 4,
        "device": "cpu",
    },
    "space": {"lr": {"low": 1e-5, "high": 1e-2, "log": True}},
    "algorithm": "tpe",
    "num_trials": 6,
    "scheduler": {"name": "asha", "grace_validations": 1, "reduction_factor": 2},
    "seed": 3,
}


LONG: dict[str, Any] = TINY | {
    "settings": TINY["settings"] | {"epochs": 3},
    "space": {"lr": [1e-3, 2e-3]},
    "num_trials": 2,
    "scheduler": "none",
    "final": False,
}


@dataclass
class Terminal:
    """The command line over one storage folder, as typed by a user in a project of their own."""

    storage: Path
    project: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def begin(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """A command in a terminal of its own."""
        environment = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS")}
        environment |= {"ORCHESTRATOR_STORAGE": str(self.storage), "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | variables,
            cwd=self.project,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def search(
        self, space: dict[str, Any], name: str, *words: str, answer: str = "--json", **variables: str
    ) -> subprocess.Popen[str]:
        """`orchestrator search`, of a file that is written for it."""
        path = self.project / f"{name}.yaml"
        YAML(typ="safe", pure=True).dump({k: v for k, v in space.items() if v is not None}, path)
        return self.begin("search", str(path), "--name", name, *filter(None, [answer]), *words, **variables)

    def finish(self, process: subprocess.Popen[str], code: int = 0, seconds: float = 240) -> tuple[str, str]:
        """Wait for the command; its stdout and stderr."""
        stdout, stderr = process.communicate(timeout=seconds)
        assert process.returncode == code, stderr
        return stdout, stderr

    def run(self, *words: str, code: int = 0) -> tuple[str, str]:
        """A command, begun and finished."""
        return self.finish(self.begin(*words), code)

    def journal(self, name: str) -> Path:
        return self.storage / "searches" / name / "journal.jsonl"

    def events(self, name: str, kind: str | None = None) -> list[dict[str, Any]]:
        """What a search has journaled so far."""
        if not self.journal(name).exists():
            return []
        return [event for event in Journal.read(self.journal(name)) if kind in (None, event["event"])]

    def leaderboard(self, name: str) -> list[dict[str, Any]]:
        """The leaderboard without the one column that is a matter of luck."""
        rows: list[dict[str, Any]] = leaderboard_rows(Ledger.of(self.events(name)))
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    def wait_for_validations(self, process: subprocess.Popen[str], name: str, count: int) -> None:
        def enough() -> bool:
            assert process.poll() is None, process.communicate()[1]
            return len(self.events(name, "validation")) >= count

        wait(enough, 120)


def wait(condition: Callable[[], object], seconds: float) -> None:
    """Until `condition` holds; a generous limit, for a test that hangs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The driver's processes: Ray's servers and workers."""
    children: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    return children


def title(process: psutil.Process) -> str:
    """How Ray calls the process: `ray::Trial.train`."""
    with contextlib.suppress(psutil.NoSuchProcess, IndexError):
        return str(process.cmdline()[0]).strip()
    return ""


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    living = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def last_line(stdout: str) -> dict[str, Any]:
    """The JSON object that a search prints; it must be all of stdout."""
    lines = stdout.splitlines()
    assert len(lines) == 1
    summary: dict[str, Any] = json.loads(lines[0])
    return summary


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> Iterator[Terminal]:
    """One storage for all searches of this file; whatever a failed test leaves running is ended."""
    storage, project = tmp_path_factory.mktemp("storage"), tmp_path_factory.mktemp("project")
    (storage / "data").symlink_to(data_folder)
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=first"], check=True)
    terminal = Terminal(storage, project)
    yield terminal
    for process in terminal.started:
        if process.poll() is None:
            for child in [*family(process), psutil.Process(process.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            process.communicate()
