"""A real MLflow server, and the events that are sent to it."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.memory_tracking import MemoryTracker
from support.recorded import record

from orchestrator.storage.journal import Journal
from orchestrator.tracking.address import default_tracking_uri, ui_command, ui_environment
from orchestrator.tracking.origin import ORIGIN
from orchestrator.tracking.projection import TRIAL


def start_search(journal: Journal, search_id: str = "5ea7c4", dataset: str = "glyphs", **tags: str) -> None:
    record(
        journal,
        "search_started",
        name="first",
        search_id=search_id,
        dataset=dataset,
        config={"method": "pfml", "raw_space": {"delta": [0.1, 0.35]}},
        tags={"orchestrator.git_commit": "0123abc"} | tags,
        params={"num_trials": 4, "seed": 0},
    )


def start_trial(journal: Journal, trial_id: str, kind: str = "trial", delta: float = 0.25) -> None:
    params = {"delta": delta, "proxies": 3, "pooling": "average", "frozen": True}
    record(
        journal,
        "trial_started",
        trial_id=trial_id,
        kind=kind,
        params=params,
        config={"method": "pfml", "backbone": "resnet50", **params},
        tags={"orchestrator.seed": "0"},
    )


def validate(journal: Journal, trial_id: str, validation: int, score: float) -> None:
    metrics = {"train/loss": 2.0 / validation, "val/map_at_r": score, "epoch": float(validation)}
    record(journal, "validation", trial_id=trial_id, validation=validation, metrics=metrics)


def end_trial(journal: Journal, trial_id: str, state: str, reason: str | None = None) -> None:
    record(journal, "trial_ended", trial_id=trial_id, state=state, reason=reason)


def projected(tracker: MemoryTracker) -> dict[str, Any]:
    """The runs of the dicts by trial (the search's by name), with the parent's run name in place of its id."""
    runs = tracker.runs
    return {
        run["tags"].get(TRIAL, run["name"]): comparable(run, {r: runs[r]["name"] for r in runs})
        for run in runs.values()
    }


def comparable(run: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    tags = {k: v for k, v in run["tags"].items() if k.startswith("orchestrator.") and k != ORIGIN}
    parent = names.get(run["tags"].get("mlflow.parentRunId"))
    return {**{k: v for k, v in run.items() if k != "experiment_id"}, "tags": tags, "parent": parent}


def stored(uri: str, dataset: str = "glyphs") -> dict[str, Any]:
    """The runs in MLflow, in the form of `projected`; two runs of one name fail."""
    from mlflow.tracking import MlflowClient
    from ruamel.yaml import YAML

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(dataset)
    if experiment is None:
        return {}
    found = client.search_runs([experiment.experiment_id])
    names = {run.info.run_id: run.info.run_name for run in found}
    assert len(set(names.values())) == len(found), sorted(names.values())

    def artifacts(run_id: str, folder: str | None = None) -> set[str]:
        files = client.list_artifacts(run_id, folder)
        return set().union(*(artifacts(run_id, f.path) if f.is_dir else {f.path} for f in files))

    runs = {}
    for run in found:
        run_id = run.info.run_id
        config = YAML(typ="safe").load(Path(client.download_artifacts(run_id, "config.yaml")))
        metrics = {
            key: sorted((m.step, m.timestamp, m.value) for m in client.get_metric_history(run_id, key))
            for key in run.data.metrics
        }
        fields = {
            "name": run.info.run_name,
            "status": run.info.status,
            "start_time": run.info.start_time,
            "end_time": run.info.end_time,
            "params": run.data.params,
            "tags": run.data.tags,
            "metrics": metrics,
            "config": config,
            "artifacts": artifacts(run_id),
        }
        runs[run.data.tags.get(TRIAL, run.info.run_name)] = comparable(fields, names)
    return runs


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)
    return found


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "search" / "journal.jsonl") as journal:
        yield journal


class Server:
    """A real, light MLflow server of a database of its own, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        database = default_tracking_uri(self.folder)
        self.process = subprocess.Popen(
            ui_command(database, self.folder / "artifacts", self.port),
            env=os.environ | ui_environment(database),
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait(self) -> None:
        wait_until(self.answers, 120)

    def answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, "the server ended"
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None
