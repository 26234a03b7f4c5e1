"""What the commands of the record print with `--json`. They need no library that computes."""

from typing import Literal

from orchestrator.storage.outputs import Output, SettingValue

Word = Literal["better", "worse", "not told apart"]


class ContrastOutput(Output):
    """A method less another one, on a task."""

    other: str
    difference: float
    low: float
    high: float
    p: float
    adjusted_p: float
    verdict: Word


class RowOutput(Output):
    """A row with what is said of it."""

    name: str
    task: str
    method: str
    score: float
    low: float | None
    high: float | None
    recall_at_1: float
    against_reference: ContrastOutput | None
    against_best: ContrastOutput | None
    against_network: ContrastOutput | None
    """Against the task's pre-trained network without training; null where none was measured."""
    core_seconds: float | None
    command: str


class OverTasksOutput(Output):
    """A method less the reference, over the tasks of a protocol."""

    method: str
    protocol: str
    by_task: dict[str, float]
    difference: float
    low: float
    high: float
    p: float
    adjusted_p: float
    verdict: Word
    deviation_between_tasks: float | None
    """None for too few to say."""


class NetworkOutput(Output):
    """A task's pre-trained network without training."""

    task: str
    settings: dict[str, SettingValue]
    dimensions: int
    test: dict[str, float]
    command: str
    commit: str | None
    date: str


class StandingsOutput(Output):
    """What `orchestrator results --json` prints."""

    metric: str
    reference: str
    rows: list[RowOutput]
    over_tasks: list[OverTasksOutput]
    networks: list[NetworkOutput]
    empty_tasks: list[str]


class AddedRow(Output):
    """What `orchestrator results add --json` prints."""

    name: str
    folder: str
    new: bool
    """False where the record has this row of this journal already."""
