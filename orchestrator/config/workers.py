"""How many processes train a trial together: a number, or from `low` to `high`."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from orchestrator.config.keys import KEYS
from orchestrator.errors import InputError
from orchestrator.problems import Inner, Problem

Count = Annotated[int, Field(**KEYS["workers"].bounds)]


class Workers(BaseModel):
    """As many as there is room for, from `low` to `high`: a trial goes on with those that there are."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    low: Count = Field(description="with fewer the trial waits")
    high: Count = Field(description="at most")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low > self.high:
            raise InputError(Problem((Inner("low"),), self.low, f"is above high, {self.high}"))
        return self

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


WorkerCount = Annotated[
    Annotated[Count, Tag("int")] | Annotated[Workers, Tag("range")],
    Discriminator(lambda value: "range" if isinstance(value, Workers | Mapping) else "int"),
]
"""What `workers` and `final_workers` may be."""


def fewest(workers: int | Workers) -> int:
    """With fewer a trial does not go on."""
    return workers if isinstance(workers, int) else workers.low


def most(workers: int | Workers) -> int:
    """A trial has no more."""
    return workers if isinstance(workers, int) else workers.high


def in_group(workers: int | Workers) -> bool:
    """Whether a trial has processes of its own, which find each other; otherwise it trains in the one that asks."""
    return not isinstance(workers, int) or workers > 1
