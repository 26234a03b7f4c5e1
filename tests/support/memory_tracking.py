"""A tracker whose runs are plain dicts."""

import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.tracking.address import error_line
from orchestrator.tracking.projection import RUN_NAME, Identity, MetricPoint
from orchestrator.tracking.sender import Sender
from orchestrator.tracking.store import Lost, Refused


class MemoryStore:
    """Runs as plain dicts: name, status, start_time, end_time, params, tags, metrics, config, artifacts.

    `metrics` maps a key to its points (step, timestamp, value) in order; `artifacts` is a set of paths.
    """

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.views: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}

    def connect(self) -> None:
        pass

    def experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, str(len(self.experiments) + 1))

    def find(self, experiment_id: str, key: Mapping[str, str]) -> str | None:
        matching = (r for r, run in self.runs.items() if key.items() <= run["tags"].items())
        return next(matching, None)

    def create(self, experiment_id: str, identity: Identity, parent: str | None) -> str:
        run_id = f"run{len(self.runs)}"
        tags = identity.key | identity.tags | ({"mlflow.parentRunId": parent} if parent else {})
        self.runs[run_id] = {
            "experiment_id": experiment_id,
            "name": identity.name,
            "status": "RUNNING",
            "start_time": identity.start_time,
            "end_time": None,
            "params": {},
            "tags": dict(tags),
            "metrics": {},
            "config": None,
            "artifacts": set(),
        }
        return run_id

    def check(self, run_id: str) -> None:
        self._run(run_id)

    def tag(self, run_id: str, name: str) -> str | None:
        value: str | None = self._run(run_id).get("tags", {}).get(name)
        return value

    def _run(self, run_id: str) -> dict[str, Any]:
        if run_id not in self.runs:
            raise Lost(f"no run {run_id}")
        return self.runs[run_id]

    def log(self, run_id: str, points: list[MetricPoint], params: dict[str, str], tags: dict[str, str]) -> None:
        run = self._run(run_id)
        run["params"] |= params
        run["tags"] |= tags
        run["name"] = tags.get(RUN_NAME, run["name"])
        for point in points:
            rows = run["metrics"].setdefault(point.key, [])
            if (row := (point.step, point.timestamp, point.value)) not in rows:
                rows.append(row)
                rows.sort()

    def log_config(self, run_id: str, config: dict[str, Any]) -> None:
        run = self._run(run_id)
        run["config"] = config
        run["artifacts"].add("config.yaml")

    def log_artifact(self, run_id: str, path: Path, folder: str) -> None:
        if not path.exists():
            raise Refused(f"artifact {path} is not there any more")
        files = [f for f in path.rglob("*") if f.is_file()] if path.is_dir() else [path]
        base = path if path.is_dir() else path.parent
        self._run(run_id)["artifacts"] |= {posixpath.join(folder, f.relative_to(base).as_posix()) for f in files}

    def log_dataset(self, run_id: str, name: str, digest: str) -> None:
        self._run(run_id)["dataset"] = (name, digest)

    def log_model(self, experiment_id: str, run_id: str, path: Path) -> str:
        if not path.exists():
            raise Refused(f"model {path} is not there any more")
        self._run(run_id).setdefault("models", []).append(path)
        return f"{run_id}/model"

    def set_status(self, run_id: str, status: str, end_time: int | None) -> None:
        run = self._run(run_id)
        run["status"] = status
        run["end_time"] = end_time or run["end_time"]

    def set_views(self, experiment_id: str, views: dict[str, str]) -> None:
        self.views |= views

    def describe(self, experiment_id: str, note: str) -> None:
        self.notes[experiment_id] = note

    def delete(self, run_id: str) -> None:
        self._run(run_id)
        del self.runs[run_id]


class MemoryTracker:
    """The same projection into plain dicts (`runs`, see MemoryStore), immediately and in the caller's thread."""

    no_views = None

    def __init__(self, journal_path: Path) -> None:
        self.store = MemoryStore()
        self._sender = Sender(journal_path, self.store, None, "memory")
        self._problem: str | None = None

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """Run id -> run."""
        return self.store.runs

    @property
    def experiment_id(self) -> str | None:
        """The experiment's id, None until it is sent."""
        return self._sender.cursor.experiment_id

    @property
    def parent_run_id(self) -> str | None:
        """The search's own run, None until it is sent."""
        return self._sender.cursor.runs.get(None)

    @property
    def problem(self) -> str | None:
        """Why events are waiting, or which were refused for good."""
        return self._problem or next(iter(self._sender.refused), None)

    @property
    def backlog(self) -> int:
        """How many journaled events were not sent yet."""
        return self._sender.backlog()

    def run_id(self, trial_id: str) -> str | None:
        """The trial's run, None until it is sent."""
        return self._sender.cursor.runs.get(trial_id)

    def notify(self) -> None:
        """Project the new events of the journal."""
        try:
            self._sender.send()
        except Exception as error:  # tracking never ends a search
            self._problem = error_line(error)
        else:
            self._problem = None

    def close(self, timeout: float) -> bool:
        """Whether everything is projected."""
        self.notify()
        return self._problem is None and self.backlog == 0
