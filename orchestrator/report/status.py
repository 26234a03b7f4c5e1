"""Where a search stands, as `status` and `list` show it."""

from collections.abc import Mapping

from orchestrator.storage.outputs import Number, Output


def state_texts(counts: Mapping[str, int], lost: bool = False) -> list[str]:
    """How many trials are in which state, in words; of a search that nobody drives, nothing runs any more."""
    words = {"running": "cut off"} if lost else {}
    return [f"{count} {words.get(state, state)}" for state, count in counts.items() if count]


class Used(Output):
    """How much of a budget is used; `of` is null where it has no limit."""

    used: float
    of: Number | None


class BestTrial(Output):
    """The winner; `loss` is its objective with less as better."""

    trial_id: str
    objective: float | None
    loss: float | None


class WinnerTest(Output):
    """The winner's test, the mean over its final runs."""

    metric: str
    mean: float
    seeds: int


class RunningTrial(Output):
    trial_id: str
    validations: int
    best: float | None


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
    budget: dict[str, Used]
    seconds_left: float | None
    dataset: str
    method: str | None
    tags: list[str]
    note: str
    objective: str
    best: BestTrial | None
    so_far: RunningTrial | None
    """The best of all validations, while no trial has won."""
    test: WinnerTest | None
    running: list[RunningTrial]
