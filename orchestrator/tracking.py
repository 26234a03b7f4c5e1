"""The record of a search, and its projection into MLflow.

    search.py --append--> journal.jsonl --fold--> updates per run --send--> MLflow (or plain dicts)

The journal is the record: one JSON object per line, on disk before anything else happens. MLflow is a
projection of it, made by one background thread that never raises into training. A server that is away costs
nothing but a later `sync`. Sending is idempotent: a run is looked up by its own tags before it is created, a
metric point keeps the time of its event, so any part of the journal may be sent twice.

This file is the only importer of mlflow, and imports it inside functions: it takes seconds.
"""

import contextlib
import difflib
import fcntl
import hashlib
import json
import logging
import os
import posixpath
import re
import shutil
import socket
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from orchestrator.files import read_json, what_is
from orchestrator.journal import Event, JournalError, lock, read_events
from orchestrator.records import Place
from orchestrator.views import TRIED, rung, rung_key, saved_views

SERVER_SCHEMES = ("http", "https")
DATABASE_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql")

CONNECT_SECONDS = 5.0
LONGEST_BACKOFF_SECONDS = 30.0
GATHER_SECONDS = 3.0
EVENTS_PER_ROUND = 1000
# MLflow's limits per call and per value.
METRICS_PER_CALL = 1000
ENTRIES_PER_CALL = 100
PARAM_CHARACTERS = 6000
TAG_CHARACTERS = 5000  # 8,000 in MLflow 3.17, 5,000 in older servers
NAME_CHARACTERS = 250
DIGEST_CHARACTERS = 36

NOTE = "mlflow.note.content"
SOURCE = {
    "mlflow.source.name": "command",
    "mlflow.source.git.commit": "git.commit",
    "mlflow.source.git.branch": "git.branch",
    "mlflow.user": "user",
}
"""Tags in which MLflow's pages look for who ran what, by which code, and ours that know it."""
LOGGED_TABLES = "mlflow.loggedArtifacts"
NOTE_LINK = re.compile(r"\]\(trial:([\w.-]+)\)")
"""A link to a trial in a note; its run's address is known once the run is there."""

TRIAL_STATUS = {"done": "FINISHED", "pruned": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
SEARCH_STATUS = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class TrackingError(Exception):
    """The tracker's address is wrong or does not answer; one line, without credentials."""


class _Refused(Exception):
    """The tracker will never accept this write: it is noted and left out."""


class _Lost(Exception):
    """A run or experiment sent before is not there any more: another database stands at this address."""


# ------------------------------------------------------------------------------------------- projection


@dataclass(frozen=True)
class Point:
    """One metric point; `timestamp` in milliseconds since the epoch."""

    key: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Identity:
    """What finds or makes a run: its name, start (milliseconds), and the tags that are its key."""

    name: str
    start_time: int
    key: dict[str, str]


@dataclass
class Update:
    """Writes to one run, merged over several events: the newest tag and status count."""

    points: list[Point] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] | None = None
    artifacts: dict[tuple[str, str], None] = field(default_factory=dict)  # (path, folder), ordered
    models: dict[str, None] = field(default_factory=dict)  # paths of MLflow models' folders, ordered
    dataset: tuple[str, str] | None = None  # name, digest
    status: tuple[str, int | None] | None = None  # status, end time
    views: dict[str, str] = field(default_factory=dict)  # tags of the experiment


class Projection:
    """Folds a search's events into updates per run; pure, without I/O. The key None is the parent run.

    Every event must be folded once, in order: what counts depends on those before.
    """

    def __init__(self) -> None:
        self.experiment: str | None = None
        self.search_id: str | None = None
        self._started: Event = {}
        self._source: dict[str, str] = {}
        self.identities: dict[str | None, Identity] = {}
        self._unfinished: dict[str, None] = {}  # trials started and not ended, ordered
        self._reasons: set[str] = set()  # trials whose run carries a reason
        self._seen: set[tuple[str, int]] = set()  # (trial, validation)
        self._results: dict[tuple[str, str], float] = {}
        self._early: dict[str, float] = {}  # trial -> best value, while it is before the first early stop
        self.dataset: tuple[str, str] | None = None

    def fold(self, event: Event, updates: dict[str | None, Update]) -> None:
        """Add what `event` changes to `updates`.

        Raises:
            JournalError: an event comes before the search's or its trial's start, or lacks a field.
        """
        kind, fold = event["event"], getattr(self, f"_{event['event']}", None)
        where = f"journal event {event['seq']} ({kind})"
        if kind not in EVENTS or fold is None:
            raise JournalError(f"{where}: unknown event, known are {', '.join(EVENTS)}")
        if (self.experiment is None) != (kind == "search_started"):
            raise JournalError(f"{where}: a journal holds one search_started, as its first event")
        trial_id = event.get("trial_id")
        if trial_id is not None and kind != "trial_started" and trial_id not in self.identities:
            raise JournalError(f"{where}: trial {trial_id!r} was never started")
        try:
            fold(event, lambda trial: updates.setdefault(trial, Update()))
        except KeyError as error:
            raise JournalError(f"{where}: the field or value {error} is missing or unknown") from None

    def _search_started(self, event: Event, update: Any) -> None:
        self.experiment, self.search_id = event["dataset"], event["search_id"]
        self._started = event
        key = {"orchestrator.search_id": event["search_id"], "orchestrator.kind": "search"}
        self.identities[None] = Identity(event["name"], event["time"], key)
        parent = update(None)
        self._source = _source(event["tags"])
        parent.tags |= _texts(event["tags"], TAG_CHARACTERS) | self._source
        parent.tags |= {
            "orchestrator.search": event["name"],
            "orchestrator.dataset": event["dataset"],
            "orchestrator.method": event["method"],
            "orchestrator.objective": event["objective"]["metric"],
            "orchestrator.mode": event["objective"]["mode"],
            "orchestrator.state": "running",
        }
        parent.params |= _texts(event["params"], PARAM_CHARACTERS)
        parent.config = event["config"]
        parent.views = self._views()
        if digest := event["tags"].get("dataset.digest"):
            self.dataset = parent.dataset = (event["dataset"], str(digest))

    def _views(self, important: Sequence[str] = (), least: float | None = None) -> dict[str, str]:
        """None of an event that is no search's, as tests make them."""
        return saved_views(self._started, important, least) if "raw_space" in self._started["config"] else {}

    def _search_resumed(self, event: Event, update: Any) -> None:
        self._reconcile(event, update)
        parent = update(None)
        self._source |= _source(event["tags"])
        parent.tags |= _texts(event["tags"], TAG_CHARACTERS) | self._source | {"orchestrator.state": "running"}
        parent.config = event.get("config", parent.config)
        parent.status = ("RUNNING", None)

    def _search_ended(self, event: Event, update: Any) -> None:
        self._reconcile(event, update)
        parent = update(None)
        parent.tags["orchestrator.state"] = event["state"]
        if event["best"] is not None:
            parent.tags |= _texts({"orchestrator.best": event["best"]}, TAG_CHARACTERS)
        parent.status = (SEARCH_STATUS[event["state"]], event["time"])

    def _reconcile(self, event: Event, update: Any) -> None:
        """A trial without an end lost its process before `event`: interrupted, unless it starts again."""
        for trial_id in self._unfinished:
            update(trial_id).tags["orchestrator.state"] = "interrupted"
            update(trial_id).status = ("KILLED", event["time"])
        self._unfinished = {}

    def _trial_started(self, event: Event, update: Any) -> None:
        trial_id = event["trial_id"]
        run = update(trial_id)
        if trial_id not in self.identities:
            parent = self.identities[None]
            key = {"orchestrator.search_id": str(self.search_id), "orchestrator.trial_id": trial_id}
            self.identities[trial_id] = Identity(trial_id, event["time"], key)
            run.tags |= {"orchestrator.kind": event["kind"], "orchestrator.search": parent.name} | self._source
            run.tags["orchestrator.method"] = str(event["config"].get("method", self._started["method"]))
            run.params |= _texts(event["params"], PARAM_CHARACTERS)
            # Params are strings, which MLflow neither sorts nor plots as numbers.
            run.points += _points({f"param/{name}": v for name, v in event["params"].items()}, event["time"], 0)
            run.config = event["config"]
            run.dataset = self.dataset if event["kind"] == "final" else None
        else:
            run.status = ("RUNNING", None)
            if trial_id in self._reasons:
                self._reasons.remove(trial_id)
                run.tags["orchestrator.reason"] = ""
        run.tags |= _texts(event["tags"], TAG_CHARACTERS) | {"orchestrator.state": "running"}
        self._unfinished[trial_id] = None

    def _validation(self, event: Event, update: Any) -> None:
        key = (event["trial_id"], event["validation"])
        if key not in self._seen:  # a resumed trial may repeat one: the first counts
            self._seen.add(key)
            update(event["trial_id"]).points += _points(event["metrics"], event["time"], event["validation"])
            self._at_rung(event, update)

    def _at_rung(self, event: Event, update: Any) -> None:
        """Where trials are stopped early, each one's best at the age that all reach."""
        goal, age, trial_id = self._started["objective"], rung(self._started.get("config", {})), event["trial_id"]
        value = event["metrics"].get(goal["metric"])
        if age is None or value is None or event["validation"] > age:
            return
        best = (max if goal["mode"] == "max" else min)(value, self._early.get(trial_id, value))
        self._early[trial_id] = best
        if event["validation"] == age:
            update(trial_id).points += _points({rung_key(goal["metric"], age): best}, event["time"], 0)
            del self._early[trial_id]

    def _result(self, event: Event, update: Any) -> None:
        for point in _points(event["metrics"], event["time"], 0):
            key = (event["trial_id"], point.key)
            if self._results.get(key) != point.value:  # the same value again stays one point
                self._results[key] = point.value
                update(event["trial_id"]).points.append(point)

    def _note(self, event: Event, update: Any) -> None:
        update(None).tags[NOTE] = str(event["text"])[:TAG_CHARACTERS]
        update(None).views = self._views(event.get("important", ()), event.get("least"))

    def _artifact(self, event: Event, update: Any) -> None:
        run = update(event["trial_id"])
        run.artifacts[str(event["path"]), event["folder"] or ""] = None
        if tables := event.get("tables"):  # JSON files beneath it that MLflow shows as tables
            run.tags[LOGGED_TABLES] = json.dumps([{"path": path, "type": "table"} for path in tables])

    def _model(self, event: Event, update: Any) -> None:
        update(event["trial_id"]).models[str(event["path"])] = None

    def _trial_ended(self, event: Event, update: Any) -> None:
        run, trial_id = update(event["trial_id"]), event["trial_id"]
        run.status = (TRIAL_STATUS[event["state"]], event["time"])
        run.tags["orchestrator.state"] = event["state"]
        if event["reason"]:
            self._reasons.add(trial_id)
            run.tags |= _texts({"orchestrator.reason": event["reason"]}, TAG_CHARACTERS)
        self._unfinished.pop(trial_id, None)


EVENTS = (
    "search_started",
    "search_resumed",
    "trial_started",
    "validation",
    "result",
    "artifact",
    "model",
    "note",
    "trial_ended",
    "search_ended",
)


def _name(key: str) -> str:
    """`key` as MLflow allows it: letters, digits, `_ - . : /` and spaces, a normal relative path."""
    name = posixpath.normpath(re.sub(r"[^\w\-. :/]", "_", key)).lstrip("/")
    return re.sub(r"^\.\.?(?=/|$)", "_", name)[:NAME_CHARACTERS] or "_"


def _texts(values: Mapping[str, Any], length: int) -> dict[str, str]:
    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)

    return {_name(key): text(value)[:length] for key, value in values.items()}


def _source(tags: Mapping[str, Any]) -> dict[str, str]:
    found = {name: str(tags[ours])[:TAG_CHARACTERS] for name, ours in SOURCE.items() if ours in tags}
    return found | ({"mlflow.source.type": "LOCAL"} if "mlflow.source.name" in found else {})


def _points(values: Mapping[str, Any], timestamp: int, step: int) -> list[Point]:
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return [Point(_name(key), float(value), timestamp, step) for key, value in numbers.items()]


# ----------------------------------------------------------------------------------------------- stores


class Store(Protocol):
    """Where runs are written. Raises TrackingError (try again), _Refused (never) or _Lost (start over)."""

    def connect(self) -> None: ...
    def experiment(self, name: str) -> str: ...
    def find(self, experiment_id: str, key: Mapping[str, str]) -> str | None: ...
    def create(self, experiment_id: str, identity: Identity, parent: str | None) -> str: ...
    def check(self, run_id: str) -> None: ...
    def log(self, run_id: str, points: list[Point], params: dict[str, str], tags: dict[str, str]) -> None: ...
    def log_config(self, run_id: str, config: dict[str, Any]) -> None: ...
    def log_artifact(self, run_id: str, path: Path, folder: str) -> None: ...
    def log_dataset(self, run_id: str, name: str, digest: str) -> None: ...
    def log_model(self, experiment_id: str, run_id: str, path: Path) -> str: ...
    def set_status(self, run_id: str, status: str, end_time: int | None) -> None: ...
    def set_views(self, experiment_id: str, views: dict[str, str]) -> None: ...


class MemoryStore:
    """Runs as plain dicts: name, status, start_time, end_time, params, tags, metrics, config, artifacts.

    `metrics` maps a key to its points (step, timestamp, value) in order; `artifacts` is a set of paths.
    """

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.views: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}

    def connect(self) -> None:
        pass

    def experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, str(len(self.experiments) + 1))

    def find(self, experiment_id: str, key: Mapping[str, str]) -> str | None:
        found = (r for r, run in self.runs.items() if key.items() <= run["tags"].items())
        return next(found, None)

    def create(self, experiment_id: str, identity: Identity, parent: str | None) -> str:
        run_id = f"run{len(self.runs)}"
        tags = identity.key | ({"mlflow.parentRunId": parent} if parent else {})
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

    def _run(self, run_id: str) -> dict[str, Any]:
        if run_id not in self.runs:
            raise _Lost(f"no run {run_id}")
        return self.runs[run_id]

    def log(self, run_id: str, points: list[Point], params: dict[str, str], tags: dict[str, str]) -> None:
        run = self._run(run_id)
        run["params"] |= params
        run["tags"] |= tags
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
            raise _Refused(f"artifact {path} is not there any more")
        files = [f for f in path.rglob("*") if f.is_file()] if path.is_dir() else [path]
        base = path if path.is_dir() else path.parent
        self._run(run_id)["artifacts"] |= {posixpath.join(folder, f.relative_to(base).as_posix()) for f in files}

    def log_dataset(self, run_id: str, name: str, digest: str) -> None:
        self._run(run_id)["dataset"] = (name, digest)

    def log_model(self, experiment_id: str, run_id: str, path: Path) -> str:
        if not path.exists():
            raise _Refused(f"model {path} is not there any more")
        self._run(run_id).setdefault("models", []).append(path)
        return f"{run_id}/model"

    def set_status(self, run_id: str, status: str, end_time: int | None) -> None:
        run = self._run(run_id)
        run["status"] = status
        run["end_time"] = end_time or run["end_time"]

    def set_views(self, experiment_id: str, views: dict[str, str]) -> None:
        self.views |= views


class MLflowStore:
    """Runs in the MLflow database or server at `uri`."""

    def __init__(self, uri: str, artifact_root: Path | None) -> None:
        self.uri = check_tracking_uri(uri)
        self.artifact_root = artifact_root
        self._client: Any = None

    def connect(self) -> None:
        reach(self.uri)  # in seconds, and before the slow import
        if self._client is None:
            with self._errors(never=False):
                self._client = _open_client(self.uri)

    @contextlib.contextmanager
    def _errors(self, never: bool = True) -> Iterator[None]:
        """Sort MLflow's exceptions into the three kinds that a caller can act on."""
        try:
            yield
        except (_Refused, TrackingError):
            raise
        except Exception as error:
            code = getattr(error, "error_code", None)
            if never and code == "RESOURCE_DOES_NOT_EXIST":
                raise _Lost(_one_line(error)) from None
            if never and code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                raise _Refused(_one_line(error)) from None
            raise TrackingError(f"MLflow at {redact(self.uri)}: {_one_line(error)}") from None

    def experiment(self, name: str) -> str:
        with self._errors(never=False):
            if (found := self._client.get_experiment_by_name(name)) is None:
                try:
                    return str(self._client.create_experiment(name, artifact_location=self._artifacts(name)))
                except Exception as error:  # another search of this data set made it first
                    if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                        raise
                found = self._client.get_experiment_by_name(name)
            if found.lifecycle_stage != "active":
                command = f"mlflow experiments restore --experiment-id {found.experiment_id}"
                raise TrackingError(f"experiment {name!r} was deleted in MLflow: `{command}` brings it back")
            return str(found.experiment_id)

    def _artifacts(self, name: str) -> str | None:
        """A server knows its own place for artifacts; a bare database would take the working directory."""
        if urlsplit(self.uri).scheme in SERVER_SCHEMES:
            return None
        root = self.artifact_root
        if root is None:
            if not self.uri.startswith("sqlite:"):
                raise TrackingError(f"MLflow at {redact(self.uri)}: a database needs a folder for artifacts")
            root = Path(self.uri.removeprefix("sqlite:///")).parent / "artifacts"
        return (root.resolve() / re.sub(r"[^\w.-]", "_", name)).as_uri()

    def find(self, experiment_id: str, key: Mapping[str, str]) -> str | None:
        query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in key.items())
        with self._errors():
            order = ["attributes.start_time ASC"]
            runs = self._client.search_runs([experiment_id], query, max_results=1, order_by=order)
        return runs[0].info.run_id if runs else None

    def create(self, experiment_id: str, identity: Identity, parent: str | None) -> str:
        tags = identity.key | ({"mlflow.parentRunId": parent} if parent else {})
        with self._errors():
            run = self._client.create_run(experiment_id, identity.start_time, tags, run_name=identity.name)
        return str(run.info.run_id)

    def check(self, run_id: str) -> None:
        with self._errors():
            self._client.get_run(run_id)

    def log(self, run_id: str, points: list[Point], params: dict[str, str], tags: dict[str, str]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(point.key, point.value, point.timestamp, point.step) for point in points]
        entries = [Param(name, value) for name, value in params.items()]
        labels = [RunTag(name, value) for name, value in tags.items()]
        with self._errors():
            most = max(len(entries), len(labels))
            if most <= ENTRIES_PER_CALL and len(metrics) + len(entries) + len(labels) <= METRICS_PER_CALL:
                self._client.log_batch(run_id, metrics, entries, labels, synchronous=True)
                return
            for start in range(0, max(len(entries), len(labels)), ENTRIES_PER_CALL):
                part = slice(start, start + ENTRIES_PER_CALL)
                self._client.log_batch(run_id, params=entries[part], tags=labels[part], synchronous=True)
            for start in range(0, len(metrics), METRICS_PER_CALL):
                part = slice(start, start + METRICS_PER_CALL)
                self._client.log_batch(run_id, metrics=metrics[part], synchronous=True)

    def log_config(self, run_id: str, config: dict[str, Any]) -> None:
        with self._errors():
            self._client.log_dict(run_id, config, "config.yaml")

    def log_artifact(self, run_id: str, path: Path, folder: str) -> None:
        if not path.exists():
            raise _Refused(f"artifact {path} is not there any more")
        send = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        with self._errors():
            send(run_id, str(path), folder or None)

    def log_dataset(self, run_id: str, name: str, digest: str) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = json.dumps({"name": name, "digest": digest})
        known = Dataset(_name(name), digest[:DIGEST_CHARACTERS], "orchestrator", source)
        with self._errors():
            self._client.log_inputs(run_id, [DatasetInput(known, [InputTag("mlflow.data.context", "training")])])

    def log_model(self, experiment_id: str, run_id: str, path: Path) -> str:
        """Log an MLflow model's folder as a model of the run, once, linked to its data set, code and scores; its id."""
        from mlflow.entities import LoggedModelOutput
        from mlflow.models import Model

        if not (path / "MLmodel").exists():
            raise _Refused(f"{path} is no MLflow model (any more)")
        with self._errors():
            for model in self._client.search_logged_models([experiment_id], f"source_run_id = '{run_id}'"):
                if str(model.status) == "READY":
                    return str(model.model_id)
            about = Model.load(str(path)).metadata or {}
            run = self._client.get_run(run_id)
            tags = {key: value for key, value in run.data.tags.items() if key in SOURCE}
            tags[NOTE] = str(about.get("description", ""))[:TAG_CHARACTERS]
            # not the name of a folder of its artifacts, which MLflow would take for the same
            name = "-".join(str(about[part]) for part in ("search", "method") if part in about) or "model"
            settings = {key: value for key, value in about.get("settings", {}).items() if value is not None}
            model = self._client.create_logged_model(
                experiment_id,
                name.replace(".", "-"),
                run_id,
                tags,
                _texts(settings, PARAM_CHARACTERS),
                model_type="embedding",
            )
            with tempfile.TemporaryDirectory() as folder:  # it is to know its ids, which each tracker gives
                copy = Path(folder) / "model"
                shutil.copytree(path, copy)
                description = Model.load(str(copy))
                description.model_id = description.model_uuid = model.model_id
                description.run_id, description.artifact_path = run_id, model.artifact_location
                description.save(str(copy / "MLmodel"))
                self._client.log_model_artifacts(model.model_id, str(copy))
            self._link_scores(run, str(model.model_id), about)
            self._client.finalize_logged_model(model.model_id, "READY")
            self._client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
            return str(model.model_id)

    def _link_scores(self, run: Any, model_id: str, about: Mapping[str, Any]) -> None:
        """Points of the run that are a model's scores become the model's too, on the data set that the run had."""
        from mlflow.entities import Metric

        run_id = run.info.run_id
        if not run.inputs.dataset_inputs and {"dataset", "dataset_digest"} <= about.keys():
            self.log_dataset(run_id, about["dataset"], about["dataset_digest"])
            run = self._client.get_run(run_id)
        used = [one.dataset for one in run.inputs.dataset_inputs][:1]
        dataset = {"dataset_name": used[0].name, "dataset_digest": used[0].digest} if used else {}
        points = []
        for name, value in about.get("metrics", {}).items():
            history = self._client.get_metric_history(run_id, _name(name))
            same = [point for point in history if point.value == value][:1]  # the same point twice is one
            points += [Metric(p.key, p.value, p.timestamp, p.step, model_id, run_id=run_id, **dataset) for p in same]
        if points:
            self._client.log_batch(run_id, points, synchronous=True)

    def register(self, run_id: str, folder: Path, name: str, alias: str, description: str) -> str:
        """The version that a run's model has under a name in the registry, new or known, with the alias."""
        from mlflow.utils.validation import _validate_model_alias_name, _validate_model_name

        with self._errors(never=False):
            _validate_model_name(name)  # before anything is written
            _validate_model_alias_name(alias)
            experiment_id = self._client.get_run(run_id).info.experiment_id
        model_id = self.log_model(experiment_id, run_id, folder)
        with self._errors(never=False):
            try:
                self._client.create_registered_model(name)
            except Exception as error:
                if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                    raise
            source = self._client.get_logged_model(model_id).artifact_location
            known = [v for v in self._client.search_model_versions(f"name = '{name}'") if v.source == source]
            version = known[0] if known else None
            if version is None:
                version = self._client.create_model_version(
                    name, source, run_id, description=description, model_id=model_id
                )
            self._client.set_registered_model_alias(name, alias, version.version)
            return str(version.version)

    def set_status(self, run_id: str, status: str, end_time: int | None) -> None:
        with self._errors():
            if end_time is None:
                self._client.update_run(run_id, status=status)
            else:
                self._client.set_terminated(run_id, status, end_time)

    def set_views(self, experiment_id: str, views: dict[str, str]) -> None:
        with self._errors():
            version = _server_version(self.uri)
            if version.rpartition(".")[0] not in TRIED:
                tried = ", ".join(TRIED)
                raise _Refused(f"no saved views: they were tried with MLflow {tried}, the server has {version}")
            for key, tag in views.items():
                self._client.set_experiment_tag(experiment_id, key, tag)


def _server_version(uri: str) -> str:
    """Of the server at `uri`; of a database, this machine's, which will show it."""
    import mlflow
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    if urlsplit(uri).scheme not in SERVER_SCHEMES:
        return str(mlflow.__version__)
    answer = http_request(get_default_host_creds(uri), "/version", "GET", max_retries=0)
    return str(answer.text).strip() if answer.ok else "no version that it tells"


def _open_client(uri: str) -> Any:
    """An MLflow client that neither prints nor waits long; makes the schema of a fresh sqlite file."""
    quiet = {
        # No retries below ours: a creation sent twice would make two runs, ours looks it up first.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    }
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic", "sqlalchemy", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not uri.startswith("sqlite:"):
        return MlflowClient(tracking_uri=uri)
    database = Path(uri.removeprefix("sqlite:///"))
    database.parent.mkdir(parents=True, exist_ok=True)
    # Several processes migrating one fresh file break it: one at a time.
    with open(database.with_name(database.name + ".lock"), "wb") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        return MlflowClient(tracking_uri=uri)


def reach(uri: str) -> None:
    """Raises TrackingError unless something accepts connections at an http(s) address."""
    parts = urlsplit(uri)
    host = parts.hostname or ""
    if parts.scheme not in SERVER_SCHEMES:
        return
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return  # reached through a proxy, which only the client knows how to use
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise TrackingError(f"no MLflow server answers at {redact(uri)}: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    text = redact(" ".join(str(error).split()))
    return text[:300] or type(error).__name__


# ---------------------------------------------------------------------------------------------- sending


@dataclass
class Cursor:
    """How far a journal has been sent to one address, and its runs there; a file beside the journal."""

    search_id: str | None = None
    events: int = 0  # acknowledged
    offset: int = 0  # bytes acknowledged
    experiment_id: str | None = None
    runs: dict[str | None, str] = field(default_factory=dict)
    address: str | None = None

    @classmethod
    def load(cls, path: Path | None) -> "Cursor":
        """The stored cursor; if none can be read, one at the start: all is then sent again."""
        try:
            stored = read_json(path) if path else {}
            runs: dict[str | None, Any] = {**stored["trials"]}
            if stored["parent_run_id"]:
                runs[None] = stored["parent_run_id"]
            events, offset, address = int(stored["events"]), int(stored["offset"]), stored.get("tracking_uri")
            texts = [stored["search_id"], stored["experiment_id"], address]
            if min(events, offset) < 0 or not all(isinstance(text, str | None) for text in [*texts, *runs.values()]):
                return cls()
            return cls(stored["search_id"], events, offset, stored["experiment_id"], runs, address)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return cls()

    def save(self, path: Path, address: str) -> None:
        """Replace the file at `path` at once; `address` is for human readers."""
        content = {
            "tracking_uri": address,
            "search_id": self.search_id,
            "events": self.events,
            "offset": self.offset,
            "experiment_id": self.experiment_id,
            "parent_run_id": self.runs.get(None),
            "trials": {trial: run for trial, run in self.runs.items() if trial is not None},
        }
        part = path.with_suffix(".part")  # one process at a time: whoever holds the journal
        part.write_text(json.dumps(content))
        os.replace(part, path)


class _Sender:
    """Sends what a journal holds beyond the cursor. One thread at a time."""

    def __init__(self, journal: Path, store: Store, cursor_path: Path | None, address: str) -> None:
        self.journal, self.store, self.cursor_path, self.address = journal, store, cursor_path, address
        self.cursor = Cursor.load(cursor_path)
        self.refused: list[str] = []
        self.no_views: str | None = None
        self.sent = 0  # events acknowledged by this sender
        self._projection: Projection | None = None
        self._updates: dict[str | None, Update] = {}  # folded, not acknowledged
        self._end = self._ahead = Place()  # where the cursor stands, and where it will when they are
        self._before = journal.stat().st_size if journal.exists() else 0  # bytes that others may have sent
        self._new: set[str | None] = set()  # trials that began after that: nobody has made their runs

    def backlog(self) -> int:
        """Events in the journal that were not sent yet."""
        try:
            with open(self.journal, "rb") as file:
                file.seek(self.cursor.offset)
                return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        except OSError:
            return 0

    def send(self) -> None:
        """Send all there is.

        Raises:
            TrackingError, JournalError: what was not acknowledged is sent by the next call.
        """
        try:
            while self.backlog():
                self.store.connect()
                self._projection = self._projection or self._replay()
                if not self._updates and not self._fold(self._projection):
                    return
                self._write(self._projection)
        except _Lost as error:
            self._forget()
            raise TrackingError(f"{self.address} lost runs of this search, sending them again: {error}") from None
        except _Refused as error:  # of a run's creation, which nothing can do without
            raise TrackingError(f"{self.address}: {error}") from None
        except OSError as error:
            raise TrackingError(f"{self.journal}: {_one_line(error)}") from None

    def _forget(self) -> None:
        self.cursor, self._projection, self._updates = Cursor(), None, {}

    def _replay(self) -> Projection:
        """The projection of all acknowledged events; a cursor of another journal or store is dropped."""
        projection = Projection()
        with open(self.journal, "rb") as file:
            events, self._end = read_events(file, self.journal, Place(), self.cursor.events)
        stands = self._end.number, self._end.offset, events[0].get("search_id") if events else None
        if stands != (self.cursor.events, self.cursor.offset, self.cursor.search_id):
            self._forget()
            self._end = Place()
            return projection
        for event in events:
            projection.fold(event, {})
        if None in self.cursor.runs:
            self.store.check(self.cursor.runs[None])
        return projection

    def _fold(self, projection: Projection) -> bool:
        """Take the next events from the journal into updates; False if there is no whole one."""
        with open(self.journal, "rb") as file:
            os.fsync(file.fileno())  # nothing is sent that a failure of the machine could take back
            events, ahead = read_events(file, self.journal, self._end, EVENTS_PER_ROUND)
        updates: dict[str | None, Update] = {}
        try:
            for event in events:
                trial_id = event.get("trial_id")
                if self.cursor.offset >= self._before and trial_id not in projection.identities:
                    self._new.add(trial_id)
                projection.fold(event, updates)
        except JournalError:
            self._projection = None  # it is half-way: begin anew at the next call
            raise
        self._updates, self._ahead = updates, ahead
        return bool(events)

    def _write(self, projection: Projection) -> None:
        """Write the updates and move the cursor behind them; on any failure the same are written again."""
        cursor = self.cursor
        cursor.search_id = projection.search_id
        if cursor.experiment_id is None:
            cursor.experiment_id = self.store.experiment(str(projection.experiment))
        # Trials first, so that the search's run ends last; `_run` creates it when its first child needs it.
        for trial_id in sorted(self._updates, key=lambda trial: trial is None):
            self._write_run(trial_id, self._updates[trial_id], projection)
        self.sent += self._ahead.number - cursor.events
        cursor.events, cursor.offset = self._ahead.number, self._ahead.offset
        self._updates, self._end = {}, self._ahead
        self._save()

    def _save(self) -> None:
        if self.cursor_path:
            self.cursor.save(self.cursor_path, self.address)

    def _write_run(self, trial_id: str | None, update: Update, projection: Projection) -> None:
        run_id = self._run(trial_id, projection)
        if NOTE in update.tags:
            update.tags[NOTE] = self._linked(update.tags[NOTE])
        try:
            self.store.log(run_id, update.points, update.params, update.tags)
        except _Refused:  # of some of it: the rest must not be lost with it
            with self._noting():
                self.store.log(run_id, [], update.params, {})
            with self._noting():
                self.store.log(run_id, update.points, {}, update.tags)
        if update.config is not None:
            with self._noting():
                self.store.log_config(run_id, update.config)
        if update.dataset is not None:
            with self._noting():
                self.store.log_dataset(run_id, *update.dataset)
        for path, folder in update.artifacts:
            with self._noting():
                self.store.log_artifact(run_id, self._place(path), folder)
        for path in update.models:
            with self._noting():
                self.store.log_model(str(self.cursor.experiment_id), run_id, self._place(path))
        if update.status:
            with self._noting():
                self.store.set_status(run_id, *update.status)
        if update.views:
            try:
                self.store.set_views(str(self.cursor.experiment_id), update.views)
            except _Refused as error:  # nothing of the search is missing without them
                self.no_views = str(error)

    def _place(self, path: str) -> Path:
        """Where an artifact of the journal lies; others may write to the storage."""
        place = Path(os.path.normpath(self.journal.parent.resolve() / path))
        if not place.is_relative_to(self.journal.parent.resolve()):
            raise _Refused(f"artifact {path} is not in the search's folder")
        return place

    def _linked(self, note: str) -> str:
        """A note whose links to trials lead to their runs; a trial that has none stands as text."""

        def address(link: re.Match[str]) -> str:
            run_id = self.cursor.runs.get(link[1])
            return f"](#/experiments/{self.cursor.experiment_id}/runs/{run_id})" if run_id else "]"

        return NOTE_LINK.sub(address, note)

    def _run(self, trial_id: str | None, projection: Projection) -> str:
        """The trial's run (None: the search's own), found by its tags or else created."""
        runs, experiment_id = self.cursor.runs, str(self.cursor.experiment_id)
        if trial_id not in runs:
            parent = self._run(None, projection) if trial_id is not None else None
            identity = projection.identities[trial_id]
            # looked up where it may be there: by an earlier process, or by a creation that failed half-way
            found = None if trial_id in self._new else self.store.find(experiment_id, identity.key)
            self._new.discard(trial_id)
            runs[trial_id] = found or self.store.create(experiment_id, identity, parent)
        return runs[trial_id]

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """A write that will never be accepted must not hold up all others."""
        try:
            yield
        except _Refused as error:
            self.refused.append(f"not recorded in {self.address}: {error}")


# --------------------------------------------------------------------------------------------- trackers


class Tracker(Protocol):
    """Keeps a tracking store in step with a journal. `problem` is one line, None while all is well."""

    @property
    def experiment_id(self) -> str | None: ...
    @property
    def parent_run_id(self) -> str | None: ...
    @property
    def problem(self) -> str | None: ...
    @property
    def backlog(self) -> int: ...
    @property
    def no_views(self) -> str | None: ...
    def run_id(self, trial_id: str) -> str | None: ...
    def notify(self) -> None: ...
    def close(self, timeout: float) -> bool: ...


class _SenderTracker:
    """What both trackers share: the ids, the backlog and the last problem of their sender."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender
        self._problem: str | None = None

    @property
    def experiment_id(self) -> str | None:
        """The experiment's id, None until it was sent."""
        return self._sender.cursor.experiment_id

    @property
    def parent_run_id(self) -> str | None:
        """The search's own run, None until it was sent."""
        return self._sender.cursor.runs.get(None)

    @property
    def problem(self) -> str | None:
        """Why events wait, or else which were refused for good."""
        return self._problem or next(iter(self._sender.refused), None)

    @property
    def backlog(self) -> int:
        """Journaled events that were not sent yet."""
        return self._sender.backlog()

    @property
    def no_views(self) -> str | None:
        """Why the server got no saved views, if it got none."""
        return self._sender.no_views

    def run_id(self, trial_id: str) -> str | None:
        """The trial's run, None until it was sent."""
        return self._sender.cursor.runs.get(trial_id)

    def _try(self) -> bool:
        try:
            self._sender.send()
        except Exception as error:  # tracking never ends a search
            self._problem = _one_line(error)
            return False
        self._problem = None
        return True


class MemoryTracker(_SenderTracker):
    """The same projection into plain dicts (`runs`, see MemoryStore), at once and in the caller's thread."""

    def __init__(self, journal_path: Path) -> None:
        self.store = MemoryStore()
        super().__init__(_Sender(journal_path, self.store, None, "memory"))

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """Run id -> run."""
        return self.store.runs

    def notify(self) -> None:
        """Project what is new in the journal."""
        self._try()

    def close(self, timeout: float) -> bool:
        """Whether everything is projected."""
        return self._try() and self.backlog == 0


class MLflowTracker(_SenderTracker):
    """Sends a journal to MLflow from a daemon thread that never raises and never prints.

    A failure is kept as `problem` and tried again after 1, 2, 4, ... 30 seconds. Make the tracker after the
    heavy imports of the process, for the thread imports mlflow.

    Raises:
        TrackingError: `tracking_uri` is not one to send to; the only moment at which anything is raised.
    """

    def __init__(self, journal_path: Path, tracking_uri: str, artifact_root: Path | None) -> None:
        super().__init__(_mlflow_sender(journal_path, tracking_uri, artifact_root))
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        delay = 1.0
        while True:
            last = self._closing.is_set()
            self._wake.clear()
            sent = self._try()
            if last:
                return
            if sent:
                delay = 1.0
                self._wake.wait()
                self._closing.wait(GATHER_SECONDS)  # one write for the events of some seconds costs a trial less
            else:
                self._closing.wait(delay)
                delay = min(2 * delay, LONGEST_BACKOFF_SECONDS)

    def notify(self) -> None:
        """New events were journaled. Returns at once and never raises."""
        self._wake.set()

    def close(self, timeout: float) -> bool:
        """Send the rest, trying once more if the server was away; True if everything was sent.

        Waits at most `timeout` seconds. The first sending of a process spends some on importing mlflow.
        """
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)
        return not self._thread.is_alive() and self.backlog == 0


def _mlflow_sender(journal_path: Path, tracking_uri: str, artifact_root: Path | None) -> _Sender:
    store = MLflowStore(tracking_uri, artifact_root)
    address = redact(store.uri)
    short_hash = hashlib.sha256(address.encode()).hexdigest()[:8]
    return _Sender(journal_path, store, journal_path.parent / f"tracking-{short_hash}.json", address)


@dataclass(frozen=True)
class SyncReport:
    """What `sync` did: events sent now, runs there, ids, and writes that MLflow refused for good."""

    events: int
    runs: int
    experiment_id: str | None
    parent_run_id: str | None
    refused: list[str]


def sync(journal_path: Path, tracking_uri: str, artifact_root: Path | None) -> SyncReport:
    """Send what MLflow lacks of a journal, in the foreground.

    Raises:
        TrackingError: the address is wrong, does not answer, or the search is running and sends by itself.
        JournalError: there is no such journal, or it is corrupt.
    """
    check_tracking_uri(tracking_uri)
    try:
        journal = open(journal_path, "r+b")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise JournalError(f"{journal_path}: cannot read the journal: {error.strerror}") from None
    with journal:
        if not lock(journal):
            raise TrackingError(f"{journal_path}: the search is running and sends its events itself")
        sender = _mlflow_sender(journal_path, tracking_uri, artifact_root)
        try:
            sender.send()
        except TrackingError:
            sender.send()  # once more: a runs' database that was replaced, a connection that was stale
    cursor = sender.cursor
    return SyncReport(sender.sent, len(cursor.runs), cursor.experiment_id, cursor.runs.get(None), sender.refused)


# ---------------------------------------------------------------------------------------------- models


def save_mlflow_model(
    model: Any,
    images: Any,
    embeddings: Any,
    folder: Path,
    about: Mapping[str, Any],
    requirements: list[str],
) -> None:
    """Write an MLflow model without pickled code (pt2): with signature, of any batch size, and `images` as example."""
    import mlflow.pytorch
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    # without a name, so that it is served an array and not a dict of one
    schemas = [Schema([TensorSpec(array.dtype, (-1, *array.shape[1:]))]) for array in (images, embeddings)]
    loggers = [logging.getLogger(name) for name in ("mlflow.utils.environment", "mlflow.models.model")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        mlflow.pytorch.save_model(
            model,
            str(folder),
            signature=ModelSignature(*schemas),
            input_example=images,
            pip_requirements=requirements,  # inferring them loads the model in another process
            serialization_format="pt2",
            metadata=json.loads(json.dumps(about, default=str)),
        )
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def load_mlflow_model(folder: Path) -> Callable[[Any], Any]:
    """What the model in a folder predicts, as a server would."""
    import mlflow.pyfunc

    predict: Callable[[Any], Any] = mlflow.pyfunc.load_model(str(folder)).predict
    return predict


def register_model(
    tracking_uri: str, artifact_root: Path | None, run_id: str, folder: Path, name: str, alias: str, description: str
) -> str:
    """Register the model of a run, logged before or now from its folder, and give it the alias; the version.

    Raises:
        TrackingError: the tracker does not answer, or refuses the name.
    """
    store = MLflowStore(tracking_uri, artifact_root)
    store.connect()
    try:
        return store.register(run_id, folder, name, alias, description)
    except (_Refused, _Lost) as error:
        raise TrackingError(f"{redact(tracking_uri)}: {error}") from None


# -------------------------------------------------------------------------------------------- addresses


def default_tracking_uri(storage: Path) -> str:
    """The sqlite file `mlflow.db` in `storage`, as an absolute address."""
    return f"sqlite:///{storage.resolve() / 'mlflow.db'}"


def check_tracking_uri(uri: str) -> str:
    """`uri` if events can be sent there, with a relative sqlite path made absolute and no closing slash.

    Raises:
        TrackingError: a `file:` store, a bare path, an unknown scheme, an http address without a host.
    """
    shown, example = redact(uri), "sqlite:////absolute/path/mlflow.db or http://host:5000"
    if not uri.startswith("sqlite:///") and "***@" not in shown:
        shown = re.sub(r"\S*@", "***@", shown)  # a misspelt scheme, or none, must not show a password either
    scheme, found, rest = uri.strip().partition("://")
    dialect = scheme.partition("+")[0]
    if uri.startswith("file:") or not found:
        raise TrackingError(f"tracking URI {shown!r}: MLflow keeps no runs in plain folders; give {example}")
    known = (*SERVER_SCHEMES, *DATABASE_SCHEMES)
    if dialect not in known:
        close = difflib.get_close_matches(dialect, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"give {example}"
        raise TrackingError(f"tracking URI {shown!r}: unknown scheme {scheme!r}; {hint}")
    if dialect == "sqlite":
        path = rest.removeprefix("/")
        if scheme != "sqlite" or not rest.startswith("/") or not path.strip("/") or "?" in path:
            raise TrackingError(f"tracking URI {shown!r}: needs a file; give sqlite:////absolute/path/mlflow.db")
        if problem := _no_database(Path(path)):
            raise TrackingError(f"tracking URI {shown!r}: {problem}; give sqlite:////absolute/path/mlflow.db")
        return f"sqlite:///{Path(path).absolute()}"
    try:
        parts = urlsplit(uri.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise TrackingError(f"tracking URI {shown!r}: {error}") from None
    if dialect in SERVER_SCHEMES and not host:
        raise TrackingError(f"tracking URI {shown!r}: names no host; give http://host:5000")
    if dialect in DATABASE_SCHEMES and not parts.path.strip("/"):
        raise TrackingError(f"tracking URI {shown!r}: names no database; give {dialect}://user@host/database")
    return uri.strip().rstrip("/")


def _no_database(path: Path) -> str | None:
    """Why what stands there is no SQLite database; None if it is one, or nothing is there."""
    if path.name == ":memory:":
        return "is gone when the search ends"
    try:
        if (what := what_is(path)) is not None:
            return f"is {what}"
        with open(path, "rb") as file:
            begins = file.read(16)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    return None if begins in (b"", b"SQLite format 3\0") else "is a file, and no SQLite database"


def redact(uri: str) -> str:
    """`uri`, or any text with addresses in it, without user names, passwords and secret query values."""
    # Up to the last @ of the word: passwords hold @ and / where people forget to quote them.
    text = re.sub(r"\b(?!sqlite:)([a-zA-Z][\w+.-]*://)[^\s'\"]*@", r"\1***@", uri)
    return re.sub(r"(?i)([?&][^=&\s]*(?:password|passwd|pwd|token|secret)[^=&\s]*=)[^&\s'\"]*", r"\1***", text)


def web_address(tracking_uri: str, port: int) -> str:
    """The address of MLflow's pages, without a closing slash."""
    parts = urlsplit(tracking_uri)
    if parts.scheme in SERVER_SCHEMES:
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
    return f"http://127.0.0.1:{port}"


def ui_command(tracking_uri: str, artifact_root: Path, port: int) -> list[str]:
    """The command of a light MLflow server on this machine alone; run it with `ui_environment`.

    Raises:
        TrackingError: the address is a server already.
    """
    uri = check_tracking_uri(tracking_uri)
    if urlsplit(uri).scheme in SERVER_SCHEMES:
        raise TrackingError(f"tracking URI {redact(uri)!r} is a server already: open it in a browser")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--default-artifact-root", artifact_root.resolve().as_uri()]
    # A command line is open to every user of the machine; credentials go by the environment alone.
    return command if redact(uri) != uri else [*command, "--backend-store-uri", uri]


def ui_environment(tracking_uri: str) -> dict[str, str]:
    """Variables to add to the environment of `ui_command`."""
    return {
        "MLFLOW_BACKEND_STORE_URI": check_tracking_uri(tracking_uri),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


@dataclass(frozen=True)
class RecordedRuns:
    """Where a journal was last sent to, without credentials, and the ids of its runs there."""

    tracking_uri: str | None = None
    experiment_id: str | None = None
    parent_run_id: str | None = None
    trials: Mapping[str, str] = field(default_factory=dict)


def events_sent(journal_path: Path) -> dict[str | None, int]:
    """How many events were sent to some tracker, by search, as far as the cursors beside a journal know."""
    sent: dict[str | None, int] = {}
    for path in journal_path.parent.glob("tracking-*.json"):
        cursor = Cursor.load(path)
        sent[cursor.search_id] = max(cursor.events, sent.get(cursor.search_id, 0))
    return sent


def recorded_runs(journal_path: Path) -> RecordedRuns:
    """What the newest cursor beside a journal says, without asking the tracker; empty if none was ever reached."""
    cursors = sorted(journal_path.parent.glob("tracking-*.json"), key=lambda path: path.stat().st_mtime)
    if not cursors:
        return RecordedRuns()
    cursor = Cursor.load(cursors[-1])
    trials = {trial: run for trial, run in cursor.runs.items() if trial is not None}
    if not cursor.search_id:
        return RecordedRuns()  # damaged: sending anew finds the runs again
    return RecordedRuns(cursor.address, cursor.experiment_id, cursor.runs.get(None), trials)
