"""What a training took until its best validation, as the second of two objectives."""

from collections.abc import Callable
from typing import Protocol


class Spent(Protocol):
    """What is known of a training."""

    seconds: float
    hours: dict[str, float]


COSTS: dict[str, Callable[[Spent], float]] = {
    "cost/seconds": lambda trial: trial.seconds,
    "cost/gpu_hours": lambda trial: trial.hours.get("GPU", 0.0),
}
"""By metric."""
