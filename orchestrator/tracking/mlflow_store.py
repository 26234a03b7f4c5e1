"""MLflow as a store of runs."""

import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import socket
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.errors import redact
from orchestrator.storage.opening import check_tree
from orchestrator.tracking.address import (
    SERVER_SCHEMES,
    SQLITE,
    check_tracking_uri,
    database_path,
    database_uri,
    error_line,
)
from orchestrator.tracking.own_database import follow, open_database
from orchestrator.tracking.projection import (
    NOTE,
    PARAM_CHARACTERS,
    SOURCE,
    TAG_CHARACTERS,
    Identity,
    MetricPoint,
    mlflow_name,
    mlflow_texts,
)
from orchestrator.tracking.store import Lost, Refused, TrackingError
from orchestrator.tracking.views import TRIED

CONNECT_SECONDS = 5.0
# MLflow's limits per call and per value.
METRICS_PER_CALL = 1000
ENTRIES_PER_CALL = 100
DIGEST_CHARACTERS = 36


class MLflowStore:
    """Runs in the MLflow database or server at `uri`."""

    def __init__(self, uri: str, artifact_root: Path | None) -> None:
        self.uri = check_tracking_uri(uri)
        self.artifact_root = artifact_root
        self._client: Any = None
        self._artifact_uris: dict[str, str] = {}  # of new runs

    def connect(self) -> None:
        reach(self.uri)  # fails within seconds, before the slow import
        if self._client is None:
            with self._errors(never=False):
                self._client = _open_client(self.uri)
                if self.uri.startswith(SQLITE) and self.artifact_root is not None:
                    follow(database_path(self.uri), self.artifact_root)

    @contextlib.contextmanager
    def _errors(self, never: bool = True) -> Iterator[None]:
        """Map MLflow's exceptions to the three kinds that a caller can handle."""
        try:
            yield
        except (Refused, TrackingError):
            raise
        except Exception as error:
            code = getattr(error, "error_code", None)
            if never and (endpoint := missing_endpoint(error)):
                raise Refused(f"this server has no {endpoint}") from None
            if never and code == "RESOURCE_DOES_NOT_EXIST":
                raise Lost(error_line(error)) from None
            if never and code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                raise Refused(error_line(error)) from None
            raise TrackingError(f"MLflow at {redact(self.uri)}: {error_line(error)}") from None

    def experiment(self, name: str) -> str:
        with self._errors(never=False):
            if (experiment := self._client.get_experiment_by_name(name)) is None:
                try:
                    return str(self._client.create_experiment(name, artifact_location=self._artifacts(name)))
                except Exception as error:  # another search on this data set created it first
                    if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                        raise
                experiment = self._client.get_experiment_by_name(name)
            if experiment.lifecycle_stage != "active":
                command = f"mlflow experiments restore --experiment-id {experiment.experiment_id}"
                where = f"MLFLOW_TRACKING_URI={shlex.quote(redact(self.uri))}"
                raise TrackingError(f"experiment {name!r} was deleted in MLflow: `{where} {command}` brings it back")
            return str(experiment.experiment_id)

    def _artifacts(self, name: str) -> str | None:
        """The artifact location: a server has its own; a bare database would use the working directory."""
        if urlsplit(self.uri).scheme in SERVER_SCHEMES:
            return None
        root = self.artifact_root
        if root is None:
            if not self.uri.startswith(SQLITE):
                raise TrackingError(f"MLflow at {redact(self.uri)}: a database needs a folder for artifacts")
            root = database_path(self.uri).parent / "artifacts"
        return (root.resolve() / re.sub(r"[^\w.-]", "_", name)).as_uri()

    def find(self, experiment_id: str, key: Mapping[str, str]) -> str | None:
        query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in key.items())
        with self._errors():
            order = ["attributes.start_time ASC"]
            runs = self._client.search_runs([experiment_id], query, max_results=1, order_by=order)
        return runs[0].info.run_id if runs else None

    def create(self, experiment_id: str, identity: Identity, parent: str | None) -> str:
        tags = identity.key | identity.tags | ({"mlflow.parentRunId": parent} if parent else {})
        with self._errors(), _once():
            run = self._client.create_run(experiment_id, identity.start_time, tags, run_name=identity.name)
        self._artifact_uris[str(run.info.run_id)] = str(run.info.artifact_uri)
        return str(run.info.run_id)

    def check_access(self) -> None:
        """TrackingError if this user may not read it."""
        with self._errors(never=False):
            self._client.search_experiments(max_results=1)

    def check(self, run_id: str) -> None:
        with self._errors():
            self._client.get_run(run_id)

    def tag(self, run_id: str, name: str) -> str | None:
        """A run's tag; None if it has none of this name."""
        with self._errors():
            value: str | None = self._client.get_run(run_id).data.tags.get(name)
        return value

    def log(self, run_id: str, points: list[MetricPoint], params: dict[str, str], tags: dict[str, str]) -> None:
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
        import yaml  # type: ignore[import-untyped]  # MLflow has it
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        uri = self._artifact_uris.pop(run_id, None)
        with self._errors():
            if uri is None:
                self._client.log_dict(run_id, config, "config.yaml")
                return
            with tempfile.TemporaryDirectory() as folder:  # the client would first ask where the run's files go
                file = Path(folder) / "config.yaml"
                file.write_text(yaml.dump(config, default_flow_style=False, allow_unicode=True), encoding="utf-8")
                get_artifact_repository(uri, tracking_uri=self.uri).log_artifact(str(file))

    def log_artifact(self, run_id: str, path: Path, folder: str) -> None:
        if not path.exists():
            raise Refused(f"artifact {path} is not there any more")
        send = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        with self._errors():
            send(run_id, str(path), folder or None)

    def log_dataset(self, run_id: str, name: str, digest: str) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = json.dumps({"name": name, "digest": digest})
        entity = Dataset(mlflow_name(name), digest[:DIGEST_CHARACTERS], "orchestrator", source)
        with self._errors():
            self._client.log_inputs(run_id, [DatasetInput(entity, [InputTag("mlflow.data.context", "training")])])

    def log_model(self, experiment_id: str, run_id: str, path: Path) -> str:
        """Log an MLflow model's folder as the run's model, once, with its data set, code and scores; returns its id."""
        from mlflow.entities import LoggedModelOutput
        from mlflow.models import Model

        if not (path / "MLmodel").exists():
            raise Refused(f"{path} is not an MLflow model (any more)")
        with self._errors():
            for model in self._client.search_logged_models([experiment_id], f"source_run_id = '{run_id}'"):
                if str(model.status) == "READY":
                    return str(model.model_id)
            about = Model.load(str(path)).metadata or {}
            run = self._client.get_run(run_id)
            tags = {key: value for key, value in run.data.tags.items() if key in SOURCE}
            tags[NOTE] = str(about.get("description", ""))[:TAG_CHARACTERS]
            # must differ from its artifact folders' names: MLflow would confuse the two
            name = "-".join(str(about[part]) for part in ("search", "method") if part in about) or "model"
            settings = {key: value for key, value in about.get("settings", {}).items() if value is not None}
            with _once():
                model = self._client.create_logged_model(
                    experiment_id,
                    name.replace(".", "-"),
                    run_id,
                    tags,
                    mlflow_texts(settings, PARAM_CHARACTERS),
                    model_type="embedding",
                )
            with tempfile.TemporaryDirectory() as folder:  # the copy gets its ids, which each tracker assigns
                copy = Path(folder) / "model"
                check_tree(path.absolute(), path.absolute())
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
        """Attach the run's points that are the model's scores to the model too, on the run's data set."""
        from mlflow.entities import Metric

        run_id = run.info.run_id
        if not run.inputs.dataset_inputs and {"dataset", "dataset_digest"} <= about.keys():
            self.log_dataset(run_id, about["dataset"], about["dataset_digest"])
            run = self._client.get_run(run_id)
        used = [one.dataset for one in run.inputs.dataset_inputs][:1]
        dataset = {"dataset_name": used[0].name, "dataset_digest": used[0].digest} if used else {}
        points = []
        for name, value in about.get("metrics", {}).items():
            history = self._client.get_metric_history(run_id, mlflow_name(name))
            same = [point for point in history if point.value == value][:1]  # a repeated point counts once
            points += [Metric(p.key, p.value, p.timestamp, p.step, model_id, run_id=run_id, **dataset) for p in same]
        if points:
            self._client.log_batch(run_id, points, synchronous=True)

    def check_model_names(self, name: str, alias: str) -> None:
        """Refused unless MLflow takes the name of a registered model, and its alias; nothing is asked of the store."""
        quiet_mlflow()
        from mlflow.utils import validation

        with self._errors(never=False):
            for check, value in (("name", name), ("alias_name", alias), ("alias_name_reserved", alias)):
                if (validate := getattr(validation, f"_validate_model_{check}", None)) is not None:
                    validate(value)  # else the server refuses the name

    def register(self, run_id: str, folder: Path, name: str, alias: str, description: str) -> str:
        """Register a run's model under a name with the alias; returns its version, new or existing."""
        self.check_model_names(name, alias)  # before any write
        with self._errors(never=False):
            experiment_id = self._client.get_run(run_id).info.experiment_id
        model_id = self.log_model(experiment_id, run_id, folder)
        with self._errors(never=False):
            try:
                self._client.create_registered_model(name)
            except Exception as error:
                if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                    raise
            source = self._client.get_logged_model(model_id).artifact_location
            versions = [v for v in self._client.search_model_versions(f"name = '{name}'") if v.source == source]
            version = versions[0] if versions else None
            if version is None:
                with _once():
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

    def delete(self, run_id: str) -> None:
        """Mark a run as deleted: MLflow can restore it until `mlflow gc`."""
        with self._errors():
            self._client.delete_run(run_id)

    def describe(self, experiment_id: str, note: str) -> None:
        """Set the note that MLflow shows above an experiment's runs."""
        with self._errors():
            self._client.set_experiment_tag(experiment_id, NOTE, note)

    def set_views(self, experiment_id: str, views: dict[str, str]) -> None:
        with self._errors():
            version = server_version(self.uri)
            if version.rpartition(".")[0] not in TRIED:
                tried = ", ".join(TRIED)
                raise Refused(f"no saved views: they were tried with MLflow {tried}, the server has {version}")
            for key, tag in views.items():
                self._client.set_experiment_tag(experiment_id, key, tag)


def missing_endpoint(error: Exception) -> str | None:
    """The endpoint that a server lacks, if that is what an error of MLflow's client says: an older server, or another
    program behind its interface, answers 404, 405 or 501 without MLflow's own reason."""
    answer = re.match(r"API request to endpoint (\S+) failed with error code (404|405|501)\b", str(error))
    if answer is not None:
        return answer[1]
    return "such endpoint" if getattr(error, "error_code", None) == "ENDPOINT_NOT_FOUND" else None


def server_version(uri: str) -> str:
    """The version of the server at `uri`; for a database, of MLflow on this machine, which will show it."""
    import mlflow
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    if urlsplit(uri).scheme not in SERVER_SCHEMES:
        return str(mlflow.__version__)
    answer = http_request(get_default_host_creds(uri), "/version", "GET", max_retries=0)
    return str(answer.text).strip() if answer.ok else "an unknown version"


QUIET = {
    # after 0, 4, 8 and 16 s, or when the server's Retry-After says; a creation is not repeated (`_once`)
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
}


@contextlib.contextmanager
def _once() -> Iterator[None]:
    """A creation that the server may have done before it failed is not repeated by MLflow: it would make two."""
    name = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def quiet_mlflow() -> None:
    """Have MLflow, which is imported later, print nothing, wait not long, and send nothing about its use; what the
    environment says already stays."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


def _open_client(uri: str) -> Any:
    """An MLflow client that neither prints nor waits long; creates the schema of a new sqlite file."""
    quiet_mlflow()
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic", "sqlalchemy", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not uri.startswith(SQLITE):
        return MlflowClient(tracking_uri=uri)
    return open_database(database_path(uri), lambda file: MlflowClient(tracking_uri=database_uri(file)))


def reach(uri: str) -> None:
    """Raises TrackingError unless something accepts connections at an http(s) address."""
    parts = urlsplit(uri)
    host = parts.hostname or ""
    if parts.scheme not in SERVER_SCHEMES:
        return
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return  # behind a proxy, which only the client can use
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise TrackingError(f"no MLflow server answers at {redact(uri)}: {error_line(error)}") from None
