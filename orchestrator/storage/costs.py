"""What a model and its training cost: the second of two objectives, and what `constraints` limit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from orchestrator.errors import InputError
from orchestrator.problems import Problem, suggestion

BYTES_PER_NUMBER = 4
"""Of an embedding in an index: float32."""


class Spent(Protocol):
    """What is known of a training."""

    seconds: float
    hours: dict[str, float]
    settings: dict[str, Any]
    costs: dict[str, float]


@dataclass(frozen=True)
class Cost:
    """A cost, of which less is better.

    Attributes:
        unit: of its values.
        meaning: how it is measured.
        since: what it is known from on: the `settings`, before any process has begun; the `network`, before its first
            step; or its `training`, which raises it.
        of: its value for a training; None where it is not known (yet).
        limited: whether it can be a constraint. The time until the best validation cannot: a limit would choose another
            validation.
    """

    unit: str
    meaning: str
    since: Literal["settings", "network", "training"]
    of: Callable[[Spent], float | None]
    limited: bool = True

    @property
    def description(self) -> str:
        """Its meaning, with its unit."""
        return f"{self.meaning}, in {self.unit}"


def _dimension(trial: Spent) -> float | None:
    dimension = trial.settings.get("embedding_dim")
    return None if dimension is None else float(dimension)


def _index_bytes(trial: Spent) -> float | None:
    dimension = _dimension(trial)
    return None if dimension is None else BYTES_PER_NUMBER * dimension


def _measured(name: str) -> Callable[[Spent], float | None]:
    return lambda trial: trial.costs.get(name)


SECONDS = "cost/seconds"
MEGABYTES, MILLISECONDS, GPU_MEMORY = "cost/megabytes", "cost/milliseconds", "cost/gpu_memory_megabytes"
COSTS: dict[str, Cost] = {
    SECONDS: Cost("s", "training until its best validation", "training", lambda trial: trial.seconds, limited=False),
    "cost/gpu_hours": Cost(
        "GPU-hours",
        "GPUs that it holds, times its training until its best validation",
        "training",
        lambda trial: trial.hours.get("GPU", 0.0),
        limited=False,
    ),
    "cost/embedding_dim": Cost("numbers", "size of an embedding", "settings", _dimension),
    "cost/index_bytes": Cost("bytes", "an image's embedding in an index of float32 numbers", "settings", _index_bytes),
    MEGABYTES: Cost(
        "MB",
        "parameters and buffers of the model that `export` writes, in float32; 10^6 bytes",
        "network",
        _measured(MEGABYTES),
    ),
    MILLISECONDS: Cost(
        "ms",
        "one image through that model on the trial's device, with its threads: the median of 20 passes after 5 others",
        "network",
        _measured(MILLISECONDS),
    ),
    GPU_MEMORY: Cost(
        "MiB",
        "the most that the training's tensors took on its GPU, of several the first; 2^20 bytes",
        "training",
        _measured(GPU_MEMORY),
    ),
}
"""By metric."""
LIMITED = [name for name, cost in COSTS.items() if cost.limited]
"""Those that constraints may name."""
SPENT = [name for name, cost in COSTS.items() if not cost.limited]
"""Those that grow with the training."""
NETWORK_COSTS = [name for name, cost in COSTS.items() if cost.since == "network"]


def check_limited(name: str) -> str:
    """The name of a cost that constraints may name; else InputError."""
    if name in COSTS and not COSTS[name].limited:
        rule = "its limit would choose another validation: make it the second of two objectives"
        advice = ", or give trial_timeout" if name == SECONDS else ""
        raise InputError(Problem(rule=rule, advice=advice))
    if name not in LIMITED:
        raise InputError(Problem(rule="no cost that can be limited", suggestion=suggestion(name, LIMITED)))
    return name


SYSTEM = {"gpu_memory_peak_megabytes": GPU_MEMORY}
"""What of a validation's use of its machine is a cost, which is the largest of the validations."""


def excesses(trial: Spent, constraints: Mapping[str, float]) -> dict[str, float]:
    """By how much a training is above its limits, as shares of them; negative where it is below. Without costs that are
    not known."""
    known = {name: COSTS[name].of(trial) for name in constraints}
    return {name: value / constraints[name] - 1 for name, value in known.items() if value is not None}


def violations(trial: Spent, constraints: Mapping[str, float]) -> dict[str, float]:
    """By how much a training is above the limits that it breaks, as shares of them."""
    return {name: excess for name, excess in excesses(trial, constraints).items() if excess > 0}


def violation_text(trial: Spent, constraints: Mapping[str, float]) -> str:
    """The limits that a training breaks: `cost/megabytes 94.2 is above 50, by 44.2 MB (88%)`; empty if none."""
    parts = []
    for name, excess in violations(trial, constraints).items():
        cost, limit = COSTS[name], constraints[name]
        value, unit = cost.of(trial) or 0.0, cost.unit
        parts.append(f"{name} {value:.4g} is above {limit:g}, by {value - limit:.3g} {unit} ({excess:.0%})")
    return "; ".join(parts)
