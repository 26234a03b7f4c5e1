"""What each command prints with `--json`, as classes: `orchestrator schema --of outputs` publishes their JSON schema.

The keys at the top are held by a test; what is in them is described where it is made.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

Facts = dict[str, Any]


class Output(BaseModel):
    """An object with these keys and no others."""

    model_config = ConfigDict(extra="forbid")


class Status(Output):
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
    budget: dict[str, Facts]
    seconds_left: float | None
    dataset: str
    method: str | None
    tags: list[str]
    note: str
    objective: str
    best: Facts | None
    test: Facts | None
    running: list[Facts]


class Summary(Output):
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
    numbers: Facts
    trials: list[Facts]
    best: Facts | None
    final: Facts | None
    finals: list[Facts]
    repeated: list[Facts]
    next_steps: list[Facts]
    differences: list[Facts]


class Compared(Output):
    """Searches beside each other."""

    name: str
    metric: str
    verdict: list[str]
    outlook: list[str]
    notes: list[str]
    members: list[Facts]
    differences: list[Facts]


class Labels(Output):
    tags: list[str]
    note: str


class Deleted(Output):
    deleted: list[str]
    runs: list[Facts]


class Renamed(Output):
    renamed: str
    name: str


class Synced(Output):
    search: str
    to: str
    address: str
    events: int
    runs: int
    refused: list[str]


class Metrics(Output):
    """A model's metrics on a data set; over folds, groups or two data sets, with the keys for them."""

    model: str
    dataset: str
    selection: str | None
    split: str = "test"
    untrained: Facts | None = None
    degradation: Facts | None = None
    out_of_distribution: str | None = None
    queries: int | None = None
    classes: int | None = None
    metrics: dict[str, float] = {}
    interval_of_the_claim: str | None = None
    intervals_over_classes: Facts = {}
    intervals_over_queries: Facts = {}
    no_interval: str | None = None
    groups: list[Facts] = []


class Exported(Output):
    model: str
    input: str
    output: str
    to: str | None = None
    path: str | None = None
    difference: float | None = None
    registered: str | None = None
    version: str | None = None
    alias: str | None = None


class Embedded(Output):
    model: str
    output: str
    images: int
    dimensions: int
    left_out: dict[str, str]


class Found(Output):
    model: str
    image: str
    neighbours: list[Facts]


class MethodFacts(Output):
    name: str
    summary: str
    paper: str
    documentation: str
    needs_validation: bool
    sampler: str
    hyperparameters: list[Facts]
    presets: list[str]


class Setting(Output):
    name: str
    type: str
    default: Any
    range: str
    description: str


class PresetName(Output):
    name: str
    source: str


class Preset(Output):
    name: str
    source: str
    settings: Facts
    where: Facts
    readings: Facts
    unstated: Facts
    defaults: Facts


class Checked(Output):
    name: str
    conforms: bool
    checks: list[Facts]


class DataSet(BaseModel):
    """A data set; one that is prepared has further facts."""

    name: str
    summary: str
    images: int
    classes: int
    how_to_get: str
    state: str


class Prepared(Output):
    name: str
    path: str
    made: bool
    images: int
    classes: int
    splits: dict[str, int]


class Published(Output):
    name: str
    address: str
    new: bool


class Written(Output):
    """Files that were written."""

    path: str
    method: str | None = None
    dataset: str | None = None
    search: str | None = None
    editor_schema: str | None = None


class Served(Output):
    tracking_uri: str
    address: str


class Watched(Output):
    address: str


class Plan(BaseModel):
    """The resolved search, with what it will cost, among other facts."""

    name: str
    settings: Facts
    cost: Facts


OUTPUTS: dict[str, Any] = {
    "search": Summary | Plan,
    "benchmark": Compared | dict[str, Plan],
    "compare": Compared,
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
    "datasets show": DataSet | list[DataSet],
    "datasets prepare": Prepared,
    "datasets publish": Published,
}
"""Command -> the type of its output."""


def outputs_schema() -> dict[str, Any]:
    """The JSON schema of all outputs: one property for each command."""
    found = {name: TypeAdapter(kind).json_schema() for name, kind in OUTPUTS.items()}
    definitions: dict[str, Any] = {}
    for one in found.values():
        definitions |= one.pop("$defs", {})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "what orchestrator's commands print with --json, by command",
        "properties": found,
        "$defs": definitions,
    }
