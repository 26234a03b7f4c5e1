"""What each command prints with `--json`, as classes: `orchestrator schema --of outputs` publishes their JSON schema.

Objects have the listed keys and no others, at every depth; a mapping has keys that depend on the search. What a
dataclass describes already is named here, not written again. The tests compare all this with real output.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from orchestrator.claims.outputs import ClaimPlan, ClaimVerdict, Listed
from orchestrator.cli.outputs_of_comparisons import Apart, Compared, ComparedAcross, Value
from orchestrator.data.augmentations import Degradation
from orchestrator.data.measured import Measured
from orchestrator.search.doctor import Diagnosis
from orchestrator.storage.events import Excess, Gain
from orchestrator.storage.labels import Labels
from orchestrator.storage.leaderboard import Interval, Repeated

Facts = dict[str, Any]
"""A mapping with keys that depend on the method, the data set or the settings."""
Ends = tuple[float, float] | None
"""Of an interval; null where there are too few classes or queries for one."""


class Used(BaseModel):
    """How much of a budget is used; `of` is null where it has no limit."""

    used: float
    of: float | None


class Best(BaseModel):
    trial_id: str
    objective: float | None
    loss: float | None


class WinnerTest(BaseModel):
    """The winner's test, the mean over its final runs."""

    metric: str
    mean: float
    seeds: int


class Running(BaseModel):
    trial_id: str
    validations: int
    best: float | None


class Learning(BaseModel):
    """Whether a trial learned: better than its untrained network and than chance."""

    verdict: Literal["learned", "unsure", "did not learn", "unknown"]
    why: str | None
    diverged: str | None


class Trial(BaseModel):
    """A trial or a final run; `metrics` are those of the test."""

    trial_id: str
    run_id: str | None
    state: Literal["running", "done", "pruned", "failed", "interrupted"]
    selection: str
    objective: float | None
    learning: Learning
    second_objective: float | None = None
    params: dict[str, Value]
    validations: int
    best_validation: int | None
    reason: str | None
    metrics: dict[str, float]


class Untrained(BaseModel):
    """The scores of the network before the training."""

    split: str
    metrics: dict[str, float]
    intervals: dict[str, Ends]


class Numbers(BaseModel):
    """What the numbers of a search are measured on."""

    held_out_set: Measured | None
    test_set: Measured | None
    untrained: Untrained | None
    verdict: Literal["learned", "unsure", "did not learn", "unknown"]
    selection_warning: str | None
    expected_excess: Excess | None
    """How much too high the best value is, as the best of several on the classes that chose it."""
    gain: Gain | None
    """Of the winner over its untrained network, paired by class, on the held-out classes."""
    test_gain: Gain | None
    """The same on the test classes."""


class Answer(BaseModel):
    """To one of the six first questions: better, by how much, on what, how sure, at what cost, what next."""

    question: str
    caveat: str
    """What qualifies the answer; empty where nothing does."""
    answer: str


class Lead(BaseModel):
    """What the leading trial is compared with, and by how much it is ahead."""

    of: str
    place: Literal["test", "held-out", "training"]
    """Whose values these are: of the test, of the held-out classes, or a loss of the training."""
    metric: str
    value: float
    difference: float
    low: float | None
    high: float | None
    better: bool | None
    """Beyond chance; null where that is not known."""
    queries_of_1000: int | None
    """How many more have a right nearest neighbour."""


class SeedValue(BaseModel):
    seed: int
    value: float


class OverBoth(BaseModel):
    """The 95% interval of a mean over other classes and seeds."""

    low: float
    high: float
    classes: int
    seeds: int


class Point(BaseModel):
    """A point of a grid over seeds."""

    params: dict[str, Value]
    trials: list[str]
    seeds: int
    values: list[SeedValue]
    mean: float
    over_seeds: Interval | None
    over_both: OverBoth | None
    """Over other classes and seeds, where the tables of the classes were kept."""
    best_less_this: Apart | None


class NextStep(BaseModel):
    rule: str
    what: str
    reason: str
    command: str | None
    seconds_of_training: float | None
    expected_gain: float | None


class DeletedRuns(BaseModel):
    """What became of a search's runs at one address of MLflow."""

    address: str
    deleted: int
    problem: str | None


class Check(BaseModel):
    name: str
    state: Literal["passed", "failed", "expected failure", "unexpected pass", "skipped"]
    reason: str | None


class Status(BaseModel):
    """A search: `started` in milliseconds since 1970, `driver` null where nothing drives it."""

    name: str
    benchmark: str | None
    state: str
    reason: str | None
    driver: str | None
    pid: int | None
    asked_to: str | None
    started: int
    seconds: float
    counts: dict[str, int]
    final_runs: int
    budget: dict[str, Used]
    seconds_left: float | None
    dataset: str
    method: str | None
    tags: list[str]
    note: str
    objective: str
    best: Best | None
    so_far: Running | None
    """The best of all validations, while no trial has won."""
    test: WinnerTest | None
    running: list[Running]


class Summary(BaseModel):
    """A search with its trials: ids are those of the tracker, null if nothing was sent."""

    name: str
    state: str
    experiment_id: str | None
    parent_run_id: str | None
    objective: str
    mode: str
    second_objective: str | None = None
    front: list[str] = []
    reason: str | None = None
    selection: str
    answers: list[Answer]
    """Those that its page begins with."""
    leads: list[Lead]
    command: str | None
    """The first of the next steps' commands."""
    numbers: Numbers
    trials: list[Trial]
    points: list[Point] = []
    best: Trial | None
    final: Trial | None
    finals: list[Trial]
    repeated: list[Repeated]
    next_steps: list[NextStep]
    differences: list[Apart]


class Deleted(BaseModel):
    deleted: list[str]
    runs: list[DeletedRuns]


class Renamed(BaseModel):
    renamed: str
    name: str


class Synced(BaseModel):
    search: str
    to: str
    address: str
    events: int
    runs: int
    refused: list[str]


class Metrics(BaseModel):
    """A model's metrics on a data set; over folds, groups or two data sets, with the keys for them."""

    model: str
    dataset: str
    selection: str | None
    split: str = "test"
    untrained: dict[str, Value] | None = None
    degradation: Degradation | None = None
    out_of_distribution: str | None = None
    queries: int | None = None
    classes: int | None = None
    metrics: dict[str, float] = {}
    interval_of_the_claim: str | None = None
    intervals_over_classes: dict[str, Ends] = {}
    intervals_over_queries: dict[str, Ends] = {}
    no_interval: str | None = None
    groups: list["Group"] = []
    seen_in_training: "Seen | None" = None


class Seen(BaseModel):
    """Test classes and images that a model was trained or selected on; `metrics` are without these classes."""

    classes: int
    images: int
    names: list[str]
    metrics_with_them: dict[str, float]


class Group(BaseModel):
    """The metrics on a group of classes."""

    classes: str
    number_of_classes: int
    queries: int
    metrics: dict[str, float]
    interval_of_the_claim: str
    intervals_over_classes: dict[str, Ends]
    intervals_over_queries: dict[str, Ends]
    no_interval: str | None = None


class Exported(BaseModel):
    model: str
    input: str
    output: str
    to: str | None = None
    path: str | None = None
    difference: float | None = None
    registered: str | None = None
    version: str | None = None
    alias: str | None = None


class Embedded(BaseModel):
    model: str
    output: str
    images: int
    dimensions: int
    left_out: dict[str, str]


class Found(BaseModel):
    model: str
    image: str
    neighbours: list[dict[str, str | float]]


class MethodFacts(BaseModel):
    name: str
    summary: str
    paper: str
    documentation: str
    latex: str
    needs_validation: bool
    sampler: str
    hyperparameters: list["Setting"]
    presets: list[str]
    costs: dict[str, "MethodCost"]
    """Of a training step, by the number of classes; none of a plugin's method."""


class MethodCost(BaseModel):
    seconds: float
    times: float
    """Its seconds over those of proxy_anchor."""
    megabytes: int


class Setting(BaseModel):
    name: str
    type: str
    default: Value
    range: str
    description: str


class PresetName(BaseModel):
    name: str
    source: str


class Preset(BaseModel):
    name: str
    source: str
    settings: dict[str, Value]
    where: dict[str, str]
    readings: dict[str, str]
    unstated: dict[str, str]
    defaults: dict[str, Value]


class Checked(BaseModel):
    name: str
    conforms: bool
    checks: list[Check]


class DataSet(BaseModel):
    """A data set; one that is prepared has further facts."""

    model_config = ConfigDict(extra="allow")

    name: str
    summary: str
    images: int
    classes: int
    how_to_get: str
    state: str


class Prepared(BaseModel):
    name: str
    path: str
    made: bool
    images: int
    classes: int
    splits: dict[str, int]
    card: dict[str, Any]
    """What a careful person would look at before trusting a number on it."""


class Published(BaseModel):
    name: str
    address: str
    new: bool


class Written(BaseModel):
    """Files that were written."""

    path: str
    method: str | None = None
    dataset: str | None = None
    search: str | None = None
    editor_schema: str | None = None


class Served(BaseModel):
    tracking_uri: str
    address: str


class Watched(BaseModel):
    address: str


class Plan(BaseModel):
    """The resolved search, with what it will cost, among other facts."""

    model_config = ConfigDict(extra="allow")
    name: str
    settings: dict[str, Value]
    objective: dict[str, str]
    images: dict[str, int]
    cost: dict[str, float | str]


class Doctor(BaseModel):
    """`fit` unless there is a problem."""

    fit: bool
    diagnoses: list[Diagnosis]


OUTPUTS: dict[str, Any] = {
    "search": Summary | Plan,
    "benchmark": Compared | dict[str, Plan],
    "claim": ClaimVerdict | ClaimPlan | list[Listed],
    "compare": Compared | ComparedAcross,
    "resume": Summary | Compared,
    "status": Status | list[Status],
    "stop": Status | list[Status],
    "pause": Status | list[Status],
    "list": list[Status],
    "delete": Deleted,
    "rename": Renamed,
    "tag": Labels,
    "note": Labels,
    "sync": Synced,
    "train": Summary | Plan,
    "evaluate": Metrics,
    "report": Summary | Compared,
    "init": Written,
    "schema": Written | Facts,
    "export": Exported,
    "embed": Embedded,
    "query": Found,
    "methods": MethodFacts | list[MethodFacts],
    "settings": list[Setting],
    "presets": Preset | list[PresetName],
    "check": Checked,
    "new-method": Written,
    "ui": Served,
    "watch": Watched,
    "doctor": Doctor,
    "datasets show": DataSet | list[DataSet],
    "datasets prepare": Prepared,
    "datasets publish": Published,
}
"""Command -> the type of its output."""


def outputs_schema() -> dict[str, Any]:
    """The JSON schema of all outputs: one property for each command."""
    schemas = {name: TypeAdapter(kind).json_schema() for name, kind in OUTPUTS.items()}
    definitions: dict[str, Any] = {}
    for one in schemas.values():
        definitions |= one.pop("$defs", {})
    for one in [*schemas.values(), *definitions.values()]:
        if "properties" in one:
            one.setdefault("additionalProperties", False)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "what orchestrator's commands print with --json, by command",
        "properties": schemas,
        "$defs": definitions,
    }
