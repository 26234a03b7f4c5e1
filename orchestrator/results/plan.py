"""What the rows of the record have in common, and which rows are planned: the file `plan.yaml` of its folder."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.config.algorithms import check_algorithm_name
from orchestrator.config.files import find_search, read_yaml
from orchestrator.config.resolve import with_ranges
from orchestrator.config.space import parse_space
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.errors import InputError, Problems
from orchestrator.problems import File, KeyPath, Option, Problem, complaints, suggestion
from orchestrator.report.commands import range_words, set_words

PLAN = "plan.yaml"
FREE = {"seed", "device", "threads", "loader_threads", "checkpoint_every", "images_per_pass", "cache_features"}
"""Settings of a training that may differ between rows of a task: they change no result, or only its last bits."""
NETWORK = ("backbone", "weights", "embedding_dim")
"""What the page calls the network."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TuningBudget(_Part):
    """What a method's search may spend on a task."""

    num_trials: int = Field(ge=1)
    algorithm: str
    scheduler: str


class Task(_Part):
    """What must be equal for two rows to be compared."""

    dataset: str
    digest: str | None = Field(None, description="of the data set; where it is not said, the first row says it")
    protocol: str
    source: str | None = Field(
        None, description="of the pictures: over data sets, one task of each source counts; by default the data set"
    )
    settings: dict[str, Any] = Field(description="of every training")
    space: dict[str, Any] | None = Field(None, description="in place of the plan's")
    methods: list[str] | None = Field(None, description="those that are planned, if not all")
    core_seconds: float | None = Field(None, gt=0, description="of one training of the reference, measured")
    steps: int | None = Field(None, gt=0, description="of one training")

    def training(self, method: str, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The settings of a training of this task that must be equal: those of every method, with the method's `own`;
        the free ones and the searched ones are for the caller to leave out."""
        raw = {**self.settings, **(own or {}), "dataset": self.dataset, "protocol": self.protocol, "method": method}
        flat = resolve_experiment(raw, ()).flat()
        return {key: flat[key] for key in Training.model_fields if key not in FREE}

    @property
    def network(self) -> str:
        """`small_cnn, 64 dimensions`"""
        backbone, _, dimensions = (self.settings.get(key) for key in NETWORK)
        return f"{backbone}, {dimensions} dimensions"


class PlannedMethod(_Part):
    """How a method is searched, where that is not its shipped file alone."""

    space: str | None = Field(None, description="the shipped search file; by default that of its name")
    settings: dict[str, Any] = {}


class Plan(_Part):
    """The content of the file."""

    metric: str
    reference: str
    budget: TuningBudget
    seeds: int = Field(ge=5, description="final runs of the winner, with the seeds from 0 on")
    space: dict[str, Any] = Field(description="settings of every training that each search searches too")
    settings: dict[str, Any] = Field({}, description="of the rows that are made here; others may differ in them")
    tasks: dict[str, Task]
    methods: dict[str, PlannedMethod | None]
    left_out: dict[str, str] = {}

    def methods_of(self, task: str) -> list[str]:
        """The methods that are planned on a task, in the plan's order."""
        subset = self.tasks[task].methods
        return [name for name in self.methods if subset is None or name in subset]

    def space_of(self, task: str) -> dict[str, Any]:
        """The settings of every training that a search of this task searches, beside its method's."""
        return self.space if (own := self.tasks[task].space) is None else own

    def entry(self, method: str) -> PlannedMethod:
        """How a method is searched."""
        return self.methods.get(method) or PlannedMethod()

    def search_space(self, task: str, method: str) -> Any:
        """The space of a method's search on a task, as a search file has it."""
        raw = read_yaml(find_search(self.entry(method).space or method))
        return with_ranges(raw, self.space_of(task), {"method": method}).get("space")

    def search_words(self, task: str, method: str, settings: Mapping[str, Any] | None = None) -> list[str]:
        """The words of `orchestrator search` that make a row, without the storage; `settings`: more of them."""
        of, entry, budget = self.tasks[task], self.entry(method), self.budget
        words = ["search", entry.space or method, "--name", row_name(task, method), "--dataset", of.dataset]
        words += ["--algorithm", budget.algorithm, "--scheduler", budget.scheduler]
        words += ["--num-trials", str(budget.num_trials), "--final-trials", "1", "--final-seeds", str(self.seeds)]
        words += ["--objective", f"val/{self.metric}", "--seed", "0"]
        fixed = {"protocol": of.protocol, "label_noise": 0, **of.settings, **entry.settings, **(settings or {})}
        return words + set_words(fixed) + range_words(self.space_of(task))

    def command(self, task: str, method: str) -> str:
        """The same as a line."""
        return shlex.join(["orchestrator", *self.search_words(task, method)])


def row_name(task: str, method: str) -> str:
    """The name of a row, and of the search that makes it."""
    return f"{task}.{method}"


def read_plan(folder: Path) -> Plan:
    """The plan of a record; InputError with all that is wrong, or if there is none."""
    path = folder / PLAN
    if not path.is_file():
        rule = f"no record here, as it has no {PLAN}: run it in a checkout of the project, or name the folder"
        raise InputError(Problem((Option("record"), str(folder)), rule=rule))
    content: Mapping[str, Any] = read_yaml(path)
    try:
        plan = Plan.model_validate(dict(content))
    except ValidationError as error:
        raise InputError(*(one.under(File(path)) for one in complaints(error))) from None
    if problems := [*_unplanned(plan), *_unusable(plan)]:
        raise InputError(*(one.under(File(path)) for one in problems))
    return plan


def _unplanned(plan: Plan) -> Iterator[Problem]:
    """Methods that are named outside `methods`, and are not there: a misspelt reference would be compared with none."""
    named: list[tuple[KeyPath, str]] = [(("reference",), plan.reference)]
    for task, of in plan.tasks.items():
        named += [(("tasks", task, "methods"), method) for method in of.methods or ()]
    for place, method in named:
        if method not in plan.methods:
            rule = f"'{method}' is not among the planned methods"
            yield Problem(place, rule=rule, suggestion=suggestion(method, plan.methods))


def _unusable(plan: Plan) -> Iterator[Problem]:
    """Settings of tasks and of methods that no training can have, and searches that cannot be."""
    problems, first = Problems(), dict[str, str]()
    for name in plan.tasks:
        for key in NETWORK[::2]:
            if key not in plan.tasks[name].settings:
                problems.found.append(Problem(("tasks", name, "settings"), rule=f"this key is required: {key}"))
        for method in plan.methods_of(name):
            first.setdefault(method, name)
    checks: list[tuple[KeyPath, Callable[[], object]]] = [
        (("budget", "algorithm"), partial(check_algorithm_name, plan.budget.algorithm))
    ]
    for method in list(plan.methods)[:1]:
        spaces: dict[KeyPath, Any] = {("space",): plan.space}
        spaces |= {("tasks", name, "space"): task.space for name, task in plan.tasks.items() if task.space is not None}
        checks += [(place, partial(parse_space, space, (), {"method": method})) for place, space in spaces.items()]
        checks += [(("tasks", name), partial(task.training, method)) for name, task in plan.tasks.items()]
    for method, name in first.items():
        if (own := plan.entry(method).settings) and not problems.found:
            checks.append((("methods", method), partial(plan.tasks[name].training, method, own)))
    for place, check in checks:
        with problems.collect():
            try:
                check()
            except InputError as error:
                raise error.under(place) from None
    yield from problems.found
