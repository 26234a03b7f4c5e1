"""The projection of a journal's events into runs: parameters, metrics, tags."""

import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.errors import InputError
from orchestrator.storage.events import (
    FINAL,
    Artifact,
    Copied,
    Event,
    ModelWritten,
    Note,
    SearchEnded,
    SearchResumed,
    SearchStarted,
    TrialEnded,
    TrialResult,
    TrialStarted,
    Validation,
    named_settings,
    parse,
)
from orchestrator.storage.journal import JournalError
from orchestrator.storage.ledger import BENCHMARK, POPULATION, best_key
from orchestrator.tracking.views import best_at_key, first_stop, saved_views

PARAM_CHARACTERS = 6000
TAG_CHARACTERS = 5000  # 8,000 in MLflow 3.17, 5,000 in older servers
NAME_CHARACTERS = 250
RUN_NAME_CHARACTERS = 60
TRIAL = "orchestrator.trial_id"
EXPERIMENT = "orchestrator.experiment"
"""The tag of a search with the experiment that its runs belong to; without it, they belong to its data set's."""

NOTE = "mlflow.note.content"
RUN_NAME = "mlflow.runName"
SOURCE = {
    "mlflow.source.name": "command",
    "mlflow.source.git.commit": "git.commit",
    "mlflow.source.git.branch": "git.branch",
    "mlflow.user": "user",
}
"""MLflow's tags for user, source and code version, and our tags with these values."""
LOGGED_TABLES = "mlflow.loggedArtifacts"

TRIAL_STATUS = {"done": "FINISHED", "pruned": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
SEARCH_STATUS = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


@dataclass(frozen=True)
class MetricPoint:
    """One metric point; `timestamp` in milliseconds since the epoch."""

    key: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Identity:
    """What identifies or creates a run: its name, start (milliseconds), the tags that are its key, and others that a
    new one gets."""

    name: str
    start_time: int
    key: dict[str, str]
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class Update:
    """Writes to one run, merged over several events: the newest tag and status count."""

    points: list[MetricPoint] = field(default_factory=list)
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

    Every event must be folded once, in order: its effect depends on the earlier events.
    """

    def __init__(self) -> None:
        self.experiment: str | None = None
        self.search_id: str | None = None
        self._started: SearchStarted | None = None
        self._source: dict[str, str] = {}
        self.identities: dict[str | None, Identity] = {}
        self._unfinished: dict[str, None] = {}  # trials started and not ended, ordered
        self._reasons: set[str] = set()  # trials whose run has a reason
        self._seen: set[tuple[str, int]] = set()  # (trial, validation)
        self._results: dict[tuple[str | None, str], list[float]] = {}
        self._longest = 0  # validations of a trial
        self._courses: dict[str, list[Validation]] = {}  # trial -> its validations, where trials may be copied
        self._early: dict[str, float] = {}  # trial -> best value, while it is before the first early stop
        self.dataset: tuple[str, str] | None = None
        self._finals: dict[str, TrialStarted] = {}
        self._names: dict[str, str] = {}  # of final runs, as they are named now

    @property
    def benchmark(self) -> str | None:
        """The benchmark that the search is part of."""
        name = None if self._started is None else self._started.tags.get(BENCHMARK)
        return None if name is None else str(name)

    def take(self, record: Mapping[str, Any], updates: dict[str | None, Update]) -> None:
        """`fold` the event of a journal's record; JournalError, too, if the record is invalid."""
        try:
            event = parse(record)
        except InputError as error:
            raise JournalError(f"journal event {record['seq']} ({record['event']}): {error}") from None
        self.fold(event, updates)

    def fold(self, event: Event, updates: dict[str | None, Update]) -> None:
        """Add what `event` changes to `updates`. JournalError if it comes before its search's or its trial's start."""
        where = f"journal event {event.seq} ({event.KIND})"
        if (self._started is None) != isinstance(event, SearchStarted):
            raise JournalError(f"{where}: a journal holds one search_started, as its first event")
        trial_id = getattr(event, "trial_id", None)
        if trial_id is not None and not isinstance(event, TrialStarted) and trial_id not in self.identities:
            raise JournalError(f"{where}: trial {trial_id!r} was never started")

        def update(trial: str | None) -> Update:
            return updates.setdefault(trial, Update())

        match event:
            case SearchStarted():
                self._start_search(event, update(None))
            case SearchResumed():
                self._reconcile(event, update)
                self._resume(event, update(None))
            case SearchEnded():
                self._reconcile(event, update)
                self._end_search(event, update(None))
                self._name_finals(event, update)
            case TrialStarted():
                if event.kind == "trial" and len(self.identities) == 1:
                    self._add_fixed(event, update(None))
                self._start(event, update(event.trial_id))
            case Validation():
                if (event.trial_id, event.validation) not in self._seen:  # of one that is repeated the first counts
                    self._validate(event, update(event.trial_id))
            case TrialResult():
                self._add_result(event, update)
            case Note():
                update(None).tags[NOTE] = event.text[:TAG_CHARACTERS]
                update(None).views = self._views(event.important, event.least)
            case Artifact():
                run = update(event.trial_id)
                run.artifacts[event.path, event.folder or ""] = None
                if event.tables:  # JSON files in it that MLflow shows as tables
                    tables = [{"path": path, "type": "table"} for path in event.tables]
                    run.tags[LOGGED_TABLES] = json.dumps(tables)
            case ModelWritten():
                update(event.trial_id).models[event.path] = None
            case TrialEnded():
                self._close(event, update(event.trial_id))

    @property
    def _search(self) -> SearchStarted:
        assert self._started is not None
        return self._started

    def _start_search(self, event: SearchStarted, parent: Update) -> None:
        self.experiment, self.search_id = str(event.tags.get(EXPERIMENT) or event.dataset), event.search_id
        self._started = event
        key = {"orchestrator.search_id": event.search_id, "orchestrator.kind": "search"}
        self.identities[None] = Identity(event.name, event.time, key)
        self._source = _source(event.tags)
        parent.tags |= mlflow_texts(event.tags, TAG_CHARACTERS) | self._source
        parent.tags |= {
            "orchestrator.search": event.name,
            "orchestrator.dataset": event.dataset,
            "orchestrator.method": event.method,
            "orchestrator.objective": event.objective.metric,
            "orchestrator.mode": event.objective.mode,
            "orchestrator.state": "running",
        }
        searched = {
            "orchestrator.searched": ", ".join(dict.fromkeys(named_settings(event.config.get("raw_space", {}))))
        }
        parent.tags |= mlflow_texts(searched, TAG_CHARACTERS)
        fixed = event.config.get("settings", {}) | {"dataset": event.dataset, "method": event.method}
        parent.params |= mlflow_texts(fixed | event.params, PARAM_CHARACTERS)
        parent.config = event.config
        parent.views = self._views()
        if digest := event.tags.get("dataset.digest"):
            self.dataset = parent.dataset = (event.dataset, str(digest))

    def _views(self, important: Sequence[str] = (), least: float | None = None) -> dict[str, str]:
        """The tags of its views."""
        return saved_views(self._search, important, least, self._longest)

    def _resume(self, event: SearchResumed, parent: Update) -> None:
        tags = {name: value for name, value in event.tags.items() if name != "command"}
        self._source |= _source(tags)
        parent.tags |= mlflow_texts(tags, TAG_CHARACTERS) | self._source | {"orchestrator.state": "running"}
        parent.config = event.config or parent.config
        parent.status = ("RUNNING", None)

    def _end_search(self, event: SearchEnded, parent: Update) -> None:
        parent.tags["orchestrator.state"] = event.state
        if event.best is not None:
            parent.tags |= mlflow_texts({"orchestrator.best": event.best.model_dump()}, TAG_CHARACTERS)
            self._add_changed(None, {best_key(self._search.objective.metric): event.best.objective}, event.time, parent)
        parent.status = (SEARCH_STATUS[event.state], event.time)

    def _name_finals(self, event: SearchEnded, update: Callable[[str], Update]) -> None:
        """The run named `final` is the present winner's: after more trials another one may be that."""
        of_winner = [run for run in self._finals.values() if event.best and run.source == event.best.trial_id]
        if FINAL not in self._finals or not of_winner:
            return
        winner = self._finals[FINAL] if self._finals[FINAL] in of_winner else of_winner[0]
        for trial_id, run in self._finals.items():
            name = FINAL if run is winner else f"{FINAL}-{run.source}" if trial_id == FINAL else trial_id
            name = _run_name(run, self._search.method, name)
            if self._names[trial_id] != name:
                self._names[trial_id] = update(trial_id).tags[RUN_NAME] = name

    def _reconcile(self, event: Event, update: Callable[[str], Update]) -> None:
        """A trial without an end lost its process before `event`: it is interrupted, unless it starts again."""
        for trial_id in self._unfinished:
            update(trial_id).tags["orchestrator.state"] = "interrupted"
            update(trial_id).status = ("KILLED", event.time)
        self._unfinished = {}

    def _start(self, event: TrialStarted, run: Update) -> None:
        trial_id = event.trial_id
        if trial_id not in self.identities:
            search = self.identities[None].name
            key = {"orchestrator.search_id": str(self.search_id), TRIAL: trial_id}
            name = _run_name(event, self._search.method, trial_id)
            self.identities[trial_id] = Identity(name, event.time, key)
            if event.kind == "final":
                self._finals[trial_id], self._names[trial_id] = event, name
            run.tags |= {"orchestrator.kind": event.kind, "orchestrator.search": search} | self._source
            run.tags["orchestrator.method"] = str(event.config.get("method", self._search.method))
            run.tags |= mlflow_texts({"orchestrator.searched": ", ".join(event.params)}, TAG_CHARACTERS)
            run.params |= mlflow_texts(event.config | event.params, PARAM_CHARACTERS)
            # Params are strings; MLflow does not sort or plot them as numbers.
            run.points += _points({f"param/{name}": v for name, v in event.params.items()}, event.time, 0)
            run.config = event.config
            run.dataset = self.dataset
            if event.copied is not None:
                self._copy(trial_id, event.copied, run)
        else:
            run.status = ("RUNNING", None)
            if trial_id in self._reasons:
                self._reasons.remove(trial_id)
                run.tags["orchestrator.reason"] = ""
        run.tags |= mlflow_texts(event.tags, TAG_CHARACTERS) | {"orchestrator.state": "running"}
        self._unfinished[trial_id] = None

    def _copy(self, trial_id: str, copied: Copied, run: Update) -> None:
        """A trial that goes on from another one's validation has that one's course until then."""
        for event in list(self._courses.get(copied.trial_id, ())):
            if event.validation <= copied.validation:
                self._validate(event.model_copy(update={"trial_id": trial_id}), run)

    def _add_fixed(self, first: TrialStarted, parent: Update) -> None:
        """What all trials share by default: the settings of the first that neither the space nor the file names, which
        the search's run has as they were written. Where methods are searched, trials may share less."""
        config = self._search.config
        searched = {*named_settings(config.get("raw_space", {})), *first.params}
        written = {*config.get("settings", {}), "dataset", "method", *self._search.params}
        if "method" not in searched:
            defaults = {key: value for key, value in first.config.items() if key not in searched | written}
            parent.params = mlflow_texts(defaults, PARAM_CHARACTERS) | parent.params

    def _validate(self, event: Validation, run: Update) -> None:
        self._seen.add((event.trial_id, event.validation))
        if (self._search.config.get("scheduler") or {}).get("name") == POPULATION:
            self._courses.setdefault(event.trial_id, []).append(event)
        self._longest = max(self._longest, event.validation)
        if event.unordered:
            run.tags |= mlflow_texts({"unordered": ", ".join(event.unordered)}, TAG_CHARACTERS)
        system = {f"system/{name}": value for name, value in event.system.items()}
        run.points += _points(event.metrics | system, event.time, event.validation)
        self._add_first_stop(event, run)

    def _add_first_stop(self, event: Validation, run: Update) -> None:
        """With early stopping, record each trial's best at the age that all trials reach."""
        goal, age, trial_id = self._search.objective, first_stop(self._search), event.trial_id
        value = event.metrics.get(goal.metric)
        if age is None or value is None or event.validation > age:
            return
        best = (max if goal.mode == "max" else min)(value, self._early.get(trial_id, value))
        self._early[trial_id] = best
        if event.validation == age:
            run.points += _points({best_at_key(goal.metric, age): best}, event.time, 0)
            del self._early[trial_id]

    def _add_result(self, event: TrialResult, update: Callable[[str], Update]) -> None:
        self._add_changed(event.trial_id, event.metrics, event.time, update(event.trial_id))

    def _add_changed(self, trial_id: str | None, metrics: Mapping[str, float | None], time: int, run: Update) -> None:
        """A point of each value that is not the one before, a step further: MLflow shows that of the highest step, and
        of one step that of the latest time, by a clock that may have been set back."""
        for point in _points(metrics, time, 0):
            values = self._results.setdefault((trial_id, point.key), [])
            if values[-1:] != [point.value]:
                run.points.append(replace(point, step=len(values)))
                values.append(point.value)

    def _close(self, event: TrialEnded, run: Update) -> None:
        run.status = (TRIAL_STATUS[event.state], event.time)
        run.tags["orchestrator.state"] = event.state
        if event.reason:
            self._reasons.add(event.trial_id)
            run.tags |= mlflow_texts({"orchestrator.reason": event.reason}, TAG_CHARACTERS)
        self._unfinished.pop(event.trial_id, None)


def _run_name(event: TrialStarted, method: str, trial: str) -> str:
    """A trial's name in lists of runs: `proxy_anchor 0003 alpha=1.1`, with as many of its searched settings as fit."""
    name = f"{event.config.get('method', method)} {trial}"
    for key, value in event.params.items():
        word = f" {key}={f'{value:.4g}' if isinstance(value, float) else value}"
        if key == "method" or key in (event.idle or {}):
            continue
        if len(name) + len(word) > RUN_NAME_CHARACTERS:
            return f"{name} ..."
        name += word
    return name


def mlflow_name(key: str) -> str:
    """`key` as MLflow allows it: letters, digits, `_ - . : /` and spaces, a normal relative path."""
    name = posixpath.normpath(re.sub(r"[^\w\-. :/]", "_", key)).lstrip("/")
    return re.sub(r"^\.\.?(?=/|$)", "_", name)[:NAME_CHARACTERS] or "_"


def mlflow_texts(values: Mapping[str, Any], length: int) -> dict[str, str]:
    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)

    return {mlflow_name(key): text(value)[:length] for key, value in values.items()}


def _source(tags: Mapping[str, Any]) -> dict[str, str]:
    tags_of_source = {name: str(tags[tag])[:TAG_CHARACTERS] for name, tag in SOURCE.items() if tag in tags}
    return tags_of_source | ({"mlflow.source.type": "LOCAL"} if "mlflow.source.name" in tags_of_source else {})


def _points(values: Mapping[str, Any], timestamp: int, step: int) -> list[MetricPoint]:
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return [MetricPoint(mlflow_name(key), float(value), timestamp, step) for key, value in numbers.items()]
