"""What the command says of a claim, as classes: `--json` prints them. They need no library that computes."""

from typing import Literal

from pydantic import Field

from orchestrator.storage.outputs import Output, SettingValue

Kind = Literal[
    "superiority", "non_inferiority", "equivalence", "difference_of_differences", "trend", "order", "rank_agreement"
]
Word = Literal["holds", "does not hold", "undecided"]
FIRST_LOOK = 3
"""Pairs of seeds before which nothing is decided: a deviation of two values says nothing."""


class ClaimEffect(Output):
    """One comparison, in the metric's points; its 95% interval holds at whatever number of pairs it is looked at. Null
    where it has no end yet."""

    comparison: str
    effect: float
    low: float | None
    high: float | None


class DatasetVerdict(Output):
    """The verdict on one data set."""

    dataset: str
    verdict: Word
    reason: str
    """Why it is undecided; empty otherwise."""
    pairs: int
    effects: list[ClaimEffect]
    classes: int | None
    """Of the test, or of the validations where the metric is theirs; null of other metrics. So are the queries."""
    queries: int | None
    values: dict[str, list[float]]
    """By arm, and `ARM, changed` or `ARM, second metric`: the metric with each seed."""
    unlearned: dict[str, int] = Field(default_factory=dict)
    """By arm likewise: how many of these trainings are not shown to be better than the network before them. Arms of
    which all are better are left out."""
    alike: dict[str, int] = Field(default_factory=dict)
    """By two arms, `ARM and ARM`: with how many seeds their trainings have the same value and the same test in every
    digit, so that what they differ in had no effect. Arms that never do are left out."""
    tuned: dict[str, dict[str, SettingValue]] = Field(default_factory=dict)
    """By arm: the point that its search chose."""


class ClaimVerdict(Output):
    """What `orchestrator claim --json` prints, and what stays of a claim."""

    name: str
    claim: str
    source: str
    kind: str
    digest: str
    metric: str
    direction: Literal["higher", "lower"] = "higher"
    """What is claimed of the arm."""
    unit: str
    smallest_effect: float
    confidence: float
    verdict: Word
    line: str
    """All in one line, for a paper."""
    datasets: list[DatasetVerdict]
    trainings: int
    searches: int
    seconds: float
    """Of training, searches included."""
    commit: str | None


class ClaimPlan(Output):
    """What a claim would run at most: `orchestrator claim --dry-run --json`."""

    claim: str
    digest: str
    trainings_of_a_pair: int
    max_trainings: int
    searches: int
    max_tests_on_other_images: int
    """Beside the test that each training ends with."""
    seconds_of_all: float | None = None
    """At most, one after another, timed on this machine, without tests on other images; None if a data set is not
    prepared."""


class ListedClaim(Output):
    """A shipped claim, in `orchestrator claim --list`."""

    name: str
    claim: str
    source: str
    kind: str
    datasets: list[str]
    digest: str
    verdict: ClaimVerdict | None
    """Null where it was not run."""
