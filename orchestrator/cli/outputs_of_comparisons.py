"""What `--json` prints of comparisons: the differences of searches, of points and of methods."""

from typing import Literal

from pydantic import BaseModel

Value = bool | int | float | str | None
"""Of a hyperparameter or a setting."""


class OnTheseClasses(BaseModel):
    """The same difference over training seeds alone, on the classes that were tested."""

    low: float | None
    high: float | None
    p: float | None
    adjusted_p: float | None


class Apart(BaseModel):
    """The paired difference of two searches or points over their common seeds."""

    one: str
    other: str
    seeds: int
    classes: int | None
    """Over which it was tested, with the seeds; none where no tables were kept, or nothing is claimed for others."""
    look: int | None
    """Where runs may be continued: how often they were looked at, which p pays for."""
    unit: Literal["seed", "search"]
    """What `seeds` counts: trainings of one configuration, or searches of one method."""
    difference: float
    low: float | None
    high: float | None
    p: float | None
    adjusted_p: float | None
    real: bool | None
    on_these_classes: OnTheseClasses | None


class Tests(BaseModel):
    """The tests of a winner, by seed."""

    mean: float
    standard_deviation: float | None
    seeds: dict[str, float]


class Member(BaseModel):
    """One of the searches that are compared."""

    label: str
    search: str
    state: str
    params: dict[str, Value] | None
    objective: float | None
    test: Tests | None
    trials: dict[str, int]
    epochs: float
    hours: float
    training_seconds: float
    command: str | None


class RepeatedMethod(BaseModel):
    """A method whose search was repeated, by the mean test of each search's winner."""

    label: str
    searches: dict[str, float]
    mean: float
    deviation_of_searches: float | None
    deviation_by_seeds: float | None
    """That training seeds alone would give the searches' values."""


class Compared(BaseModel):
    """Searches beside each other."""

    name: str
    metric: str
    verdict: list[str]
    outlook: list[str]
    notes: list[str]
    members: list[Member]
    methods: list[RepeatedMethod]
    """Where their searches were repeated: the differences are between them."""
    differences: list[Apart]


class OverDataSets(BaseModel):
    """The random-effects mean of a difference over data sets."""

    one: str
    other: str
    by_data_set: dict[str, float]
    difference: float
    low: float
    high: float
    p: float
    adjusted_p: float
    real: bool
    deviation_between_data_sets: float
    heterogeneity: float


class ComparedAcross(BaseModel):
    """Methods on several data sets."""

    verdict: list[str]
    over_data_sets: list[OverDataSets]
    data_sets: dict[str, Compared]
