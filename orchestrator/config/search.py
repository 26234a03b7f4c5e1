"""A search: its space, objective, scheduler, budget and algorithm."""

import math
import re
from collections.abc import Mapping
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from orchestrator.config.algorithms import ALGORITHMS, check_algorithm_name
from orchestrator.config.algorithms.tpe import Tpe
from orchestrator.config.files import yaml_text
from orchestrator.config.intervals import EVERY
from orchestrator.config.keys import KEYS
from orchestrator.config.limits import MAX_HOURS, MAX_TRIALS, FinalProtocol
from orchestrator.config.schedulers import restored_scheduler, stored_scheduler
from orchestrator.config.schedulers.base import Scheduler
from orchestrator.config.schedulers.none import NoStops
from orchestrator.config.space import Parameter, Space, parse_space
from orchestrator.config.training import Experiment, Training, resolve_experiment
from orchestrator.config.workers import WorkerCount, Workers
from orchestrator.errors import InputError
from orchestrator.evaluation.measures import DEFAULT_OBJECTIVE, OBJECTIVES
from orchestrator.plugins import earlier_defaults
from orchestrator.problems import File, Inner, Problem, suggestion
from orchestrator.storage.costs import COSTS
from orchestrator.storage.events import CostLimits
from orchestrator.storage.ledger import best_key

DEFAULTS = 2
"""The methods' defaults of this version. The first ones: proxies start from `randn`, with a multiplier of 100."""
LABEL = r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?"
"""The value of a node's label, as Ray allows it."""
ACCELERATOR_TYPE = "accelerator_type"
"""The key of `resources` that names a type of GPU."""
OWN_KEYS = {"CPU": "threads", "GPU": "gpus_per_trial and workers"}
"""Resources that other keys give."""
OF_WORKERS = ("workers", "final_workers")
"""The keys that are a WorkerCount."""
VALIDATION_METRICS = [*OBJECTIVES, "train/loss"]


class Objective(BaseModel):
    """What is optimised: a metric of the held-out classes; as the second of two also a cost."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    metric: str = DEFAULT_OBJECTIVE
    mode: Literal["max", "min"] = "max"

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        metrics = [*VALIDATION_METRICS, *COSTS]
        if value not in metrics:
            raise InputError(Problem(rule="not a metric of a validation", suggestion=suggestion(value, metrics)))
        return value

    @model_validator(mode="after")
    def _cheap(self) -> Self:
        if self.metric in COSTS and self.mode == "max":
            rule = f"{self.metric} should be small: leave mode out, or give min"
            raise InputError(Problem(("mode",), "max", rule))
        return self

    @property
    def best_key(self) -> str:
        """Where trackers find its best value."""
        return best_key(self.metric)


class Budget(BaseModel):
    """What ends a search before its number of trials does. Its final runs come on top."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    epochs: int | None = Field(None, ge=1, le=10**9, description="epochs of all trials together, never exceeded")
    hours: float | None = Field(
        None, gt=0, le=MAX_HOURS, description="wall time while the search runs; pauses do not count"
    )
    gpu_hours: float | None = Field(
        None, gt=0, le=MAX_HOURS, description="GPUs that trials hold, times their training time"
    )
    cpu_hours: float | None = Field(
        None, gt=0, le=MAX_HOURS, description="CPUs that trials hold, times their training time"
    )
    trials_without_improvement: int | None = Field(
        None, ge=1, le=MAX_TRIALS, description="trials that end without a new best one"
    )

    def limits(self) -> dict[str, float]:
        """The limits that are set."""
        return {key: value for key, value in self.model_dump().items() if value is not None}


def _field(key: str) -> Any:
    """The field of a key, as `keys` describes it."""
    bounds = {} if key in OF_WORKERS else KEYS[key].bounds  # which WorkerCount has
    return Field(description=KEYS[key].meaning, **bounds)


class Search(BaseModel):
    """A resolved search: fixed settings, space, algorithm, budget, objective."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    name: str
    source: str = Field(description="file or name that it was read from, for messages")
    description: Annotated[str, _field("description")] = ""
    preset: str | None = Field(None, description="name of the preset that settings were taken from")
    defaults: Annotated[int, _field("defaults"), Field(le=DEFAULTS)] = DEFAULTS
    settings: dict[str, Any]
    raw_space: Any
    algorithm: Annotated[str, _field("algorithm")] = Tpe.name
    auto: bool = Field(False, description="the algorithm was chosen by the rule of `algorithm: auto`")
    auto_stops: bool = Field(False, description="the early stops were chosen by that of `scheduler: auto`")
    num_trials: Annotated[int | None, _field("num_trials")] = None
    seeds: Annotated[int, _field("seeds")] = 1
    budget: Budget = Budget()
    start_from: Annotated[list[dict[str, Any]], _field("start_from")] = []
    learn_from: Annotated[list[dict[str, Any]], _field("learn_from")] = []
    prior_strength: Annotated[float, _field("prior_strength")] = 8.0
    scheduler: Scheduler = NoStops()
    objective: Objective = Objective()
    second_objective: Objective | None = Field(None, description="with it, the search is for the front of both")
    constraints: Annotated[CostLimits, _field("constraints")] = {}
    seed: Annotated[int, _field("seed")] = 0
    max_concurrent: Annotated[int | None, _field("max_concurrent")] = None
    workers: Annotated[WorkerCount, _field("workers")] = 1
    trial_timeout: Annotated[float | None, _field("trial_timeout")] = None
    stall_timeout: Annotated[float | None, _field("stall_timeout")] = None
    retry: Annotated[int, _field("retry")] = 0
    max_restarts: Annotated[int, _field("max_restarts")] = 2
    gpus_per_trial: Annotated[float | None, _field("gpus_per_trial")] = None
    resources: Annotated[dict[str, int | float | str], _field("resources")] = {}
    node_labels: Annotated[dict[str, str], _field("node_labels")] = {}
    test_trials: bool = Field(False, description="test each trial too: for a single training, never for a search")
    final: Annotated[bool, _field("final")] = True
    final_workers: Annotated[WorkerCount | None, _field("final_workers")] = None
    final_trials: Annotated[int, _field("final_trials")] = 1
    final_seeds: Annotated[int, _field("final_seeds")] = 1
    equivalence_margin: Annotated[float | None, _field("equivalence_margin")] = None
    final_protocol: Annotated[FinalProtocol, _field("final_protocol")] = "same"

    @field_validator("algorithm")
    @classmethod
    def _known_algorithm(cls, value: str) -> str:
        return check_algorithm_name(value)

    @field_validator("node_labels")
    @classmethod
    def _selectors(cls, value: dict[str, str]) -> dict[str, str]:
        for name, selector in value.items():
            if re.fullmatch(rf"!?({LABEL}|in\({LABEL}(, ?{LABEL})*\))", selector) is None:
                rule = "should be a label's value, `!VALUE`, `in(ONE, OTHER)` or `!in(ONE, OTHER)`"
                raise InputError(Problem((Inner(name),), selector, rule))
        return value

    @field_validator("resources", mode="before")
    @classmethod
    def _amounts(cls, value: Any) -> Any:
        for name, amount in value.items() if isinstance(value, Mapping) else ():
            rule = None
            if name in OWN_KEYS:
                rule = f"is given by {OWN_KEYS[name]}"
            elif name == ACCELERATOR_TYPE:
                if not (isinstance(amount, str) and amount.strip()):
                    rule = "should be the name of a type of GPU, such as H100"
            elif not isinstance(amount, int | float | str) or isinstance(amount, bool):
                rule = "should be a number"
            elif isinstance(amount, str) or not 0.0001 <= amount < math.inf:
                rule = "should be an amount of at least 0.0001"
            if rule is not None:
                raise InputError(Problem((Inner(str(name)),), amount, rule))
        return value

    @field_validator("scheduler", mode="before")
    @classmethod
    def _its_class(cls, value: Any) -> Any:
        return restored_scheduler(value) if isinstance(value, Mapping) else value

    @field_serializer("scheduler")
    def _read_stored(self, scheduler: Scheduler) -> dict[str, Any]:
        return stored_scheduler(scheduler)

    @property
    def exhaustive(self) -> bool:
        """Whether every point of the space is tried."""
        return ALGORITHMS[self.algorithm].exhaustive

    @property
    def final_runs(self) -> int:
        """The maximum number of final runs."""
        return self.final_trials * self.final_seeds if self.final else 0

    @property
    def workers_of_final(self) -> int | Workers:
        """Processes that train the winner again."""
        return self.final_workers or self.workers

    @cached_property
    def space(self) -> Space:
        """The parsed space; of a grid over several seeds, with the seed as the setting that varies slowest."""
        return self._over_seeds(parse_space(self.raw_space, (File(self.source), "space"), self.settings))

    def take_space(self, space: Space) -> None:
        """Take its space as it is parsed already, without the seeds of a grid."""
        self.__dict__["space"] = self._over_seeds(space)

    def _over_seeds(self, space: Space) -> Space:
        return space.over({"seed": self.each_seed}) if self.seeds > 1 and self.exhaustive else space

    @property
    def rounds(self) -> list[int]:
        """How many of the leading points get the second of its seeds, the third, ...: half as many each time, and two
        the last. Empty for a grid, all of whose points get every seed."""
        return [] if self.exhaustive else [2 ** (self.seeds - place) for place in range(1, self.seeds)]

    @property
    def max_points(self) -> int | None:
        """How many points are tried: its trials without those of the `rounds`; None if only other budgets end it."""
        return None if self.num_trials is None else self.num_trials - sum(self.rounds)

    @property
    def each_seed(self) -> list[int]:
        """The seeds that a point may have."""
        first = int(self.settings.get("seed", Training.model_fields["seed"].default))
        return list(range(first, first + self.seeds))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values; what was computed from the old ones stays only if these are not among them."""
        copied = super().model_copy(update=update, deep=deep)
        if not {"source", "settings", "raw_space", "seeds", "algorithm"}.isdisjoint(update or {}):
            for name in ("space", "_example"):
                copied.__dict__.pop(name, None)
        return copied

    @property
    def goals(self) -> list[Objective]:
        """The objective, or both."""
        return [self.objective, *([self.second_objective] if self.second_objective else [])]

    @property
    def max_validations(self) -> int | None:
        """Validations of a whole trial, if they are known without the data."""
        if self.scheduler.whole_trial is not None:
            return self.scheduler.whole_trial
        training = self.example().training
        match = EVERY.fullmatch(training.validate_every)
        if match is None or match[2] != "epoch" or {"epochs", "validate_every"} & {p.key for p in self.parameters()}:
            return None
        return math.ceil(training.epochs / int(match[1]))

    @property
    def brackets(self) -> int:
        """The scheduler's brackets."""
        return self.scheduler.brackets(self.max_validations)

    @property
    def most_epochs(self) -> int:
        """The epochs of the longest trial."""
        searched = [p for p in self.parameters() if p.key == "epochs"]
        ends = [int(end) for p in searched for end in (p.choices or [p.high])]
        return max([self.example().training.epochs, *ends])

    def parameters(self) -> list[Parameter]:
        """Every parameter of the space, branches included."""
        return list(self.space.parameters())

    def opening(self) -> list[str]:
        """The settings of which a choice opens a space of its own."""
        return [parameter.key for parameter in self.parameters() if any(parameter.branches.values())]

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return str(self.settings.get("dataset", Training.model_fields["dataset"].default))

    @property
    def methods(self) -> list[str]:
        """The methods that its trials may have."""
        searched = [str(choice) for p in self.parameters() if p.key == "method" for choice in p.choices or ()]
        return searched or [str(self.settings["method"])]

    @cached_property
    def _example(self) -> Experiment:
        return self.experiment(self.space.first())

    def example(self) -> Experiment:
        """The experiment of one point of the space, for what all points share."""
        return self._example

    def experiment(self, params: Mapping[str, Any]) -> Experiment:
        """The experiment of one point of the space."""
        given = {**self.settings, **params}
        settings = given if self.defaults == DEFAULTS else earlier_defaults(given) | given
        return resolve_experiment(settings, File(self.source))

    def file(self) -> str:
        """The text of a search file with the same meaning, whatever presets and options this search was made from."""
        return yaml_text(self.content())

    def content(self) -> dict[str, Any]:
        """The content of that file."""
        keys = [key for key in FILE_KEYS if key not in ("method", "dataset", "settings", "space", "objectives")]
        changed = self.model_dump(include={*keys, "second_objective"}, exclude_defaults=True)
        settings = dict(self.settings)
        content: dict[str, Any] = {key: settings.pop(key) for key in ("method", "dataset") if key in settings}
        changed.pop("scheduler", None)
        if self.scheduler != NoStops():
            changed["scheduler"] = {"name": self.scheduler.name, **self.scheduler.model_dump(exclude_defaults=True)}
        content |= {"settings": settings, "space": self.raw_space, **changed, "algorithm": self.algorithm}
        if self.second_objective is not None:
            content.pop("objective", None)
            content.pop("second_objective")
            content["objectives"] = [goal.model_dump() for goal in self.goals]
        return {key: content[key] for key in FILE_KEYS if key in content}


NOT_IN_FILES = {"name", "source", "preset", "auto", "auto_stops", "second_objective", "test_trials"}


def _file_keys() -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for name, field in Search.model_fields.items():
        if name == "settings":
            keys |= {"method": str, "dataset": str}
        if name == "raw_space":
            keys["space"] = (dict, list)
        elif name in OF_WORKERS:
            keys[name] = (int, dict)
        elif name not in NOT_IN_FILES:
            keys[name] = _written_as(field.annotation)
        if name == "objective":
            keys["objectives"] = list
    return keys


def _written_as(annotation: Any) -> Any:
    """The types of a field's value in a file."""
    optional = get_origin(annotation) in (Union, UnionType)
    kind = next(part for part in get_args(annotation) if part is not NoneType) if optional else annotation
    if kind in (Scheduler, Objective):
        return (str, dict)
    if get_origin(kind) is Literal:
        return str
    if kind is float:
        return (int, float)
    kind = get_origin(kind) or kind
    return dict if issubclass(kind, BaseModel) else kind


FILE_KEYS = _file_keys()
"""The keys of a search file, in the order in which `Search.file` writes them, and the types of their values."""

EXPECTED = {
    str: "text",
    int: "a whole number",
    (int, dict): "a whole number, or {low: 2, high: 8}",
    (int, float): "a number",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    (dict, list): "a mapping (or a list of them)",
    (str, dict): "a name or a mapping",
}


def recorded_search(config: Mapping[str, Any]) -> Search:
    """The search of a journal's record; one that names no defaults has the first. ValidationError if it is none."""
    return Search.model_validate({"defaults": 1, **config})


def chosen_by(training: Training) -> Objective:
    """How a single training chooses its best validation."""
    return Objective() if training.selection_metric is None else Objective(metric=training.selection_metric)


def no_such_key(key: object) -> Problem:
    """What is wrong with an unknown key of a search file: it is misspelt, or a setting."""
    at, rule = (str(key),), "no such key of a search"
    if key in Training.model_fields:
        return Problem(at, rule=f"{rule}: it is a setting, and belongs under settings")
    hint, setting = suggestion(key, FILE_KEYS), suggestion(key, Training.model_fields)
    if setting.names and not hint.names:
        return Problem(at, rule=rule, suggestion=setting, advice="; settings belong under settings")
    return Problem(at, rule=rule, suggestion=hint)


def wrong_key(key: Any, value: Any) -> Problem | None:
    """What is wrong with a key of a search file, as far as the key alone shows."""
    if key not in FILE_KEYS:
        return no_such_key(key)
    if not isinstance(value, FILE_KEYS[key]) or (isinstance(value, bool) and FILE_KEYS[key] is not bool):
        rule = f"should be {EXPECTED[FILE_KEYS[key]]}"
        return Problem((key,), value, rule, advice=_plain_form(key, value), begins_rule=True)
    return None


def _plain_form(key: str, value: Any) -> str:
    """How to write what a list probably means: `: write method: pfml`."""
    names = value if isinstance(value, list) and all(isinstance(name, str) for name in value) else []
    if len(names) == 1 and FILE_KEYS[key] in (str, (str, dict)):
        return f": write {key}: {names[0]}"
    if len(names) > 1 and key == "method":
        return f"; several methods are searched in space: method: [{', '.join(names)}]"
    if len(names) == 2 and key == "objective":
        return f"; two objectives are written objectives: [{', '.join(names)}]"
    return ""
