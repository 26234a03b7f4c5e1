"""A claim: a hypothesis that is written down before its first training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from orchestrator.claims.other_images import DETECTION, OtherImages, test_of
from orchestrator.claims.outputs import FIRST_LOOK, Kind
from orchestrator.config.algorithms import check_algorithm_name
from orchestrator.config.limits import MAX_RUNS, MAX_TRIALS
from orchestrator.config.search import Budget
from orchestrator.errors import InputError
from orchestrator.evaluation.measures import metric_of
from orchestrator.problems import KeyPath

BASE = ""
"""The state of an arm as it is; the other one is `changed`."""
CHANGED = "changed"
SECOND = "second metric"
"""Likewise, where the same trainings are read by another metric."""
KEY_CHARACTERS = 8
"""Of the digest, in the names of a claim's folder and trainings."""
FEWEST_RANKED = 4
"""Arms of a rank agreement: of fewer the ranks say nothing."""
METRICS = ("test/NAME", "val/NAME", "diagnostics/NAME", "train/NAME", "cost/seconds_per_epoch")
"""What a claim can be about; see docs/claims.md."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Arm(_Part):
    """One of the things that are compared: fixed settings, or what a search finds at the claim's tuning budget."""

    settings: dict[str, Any] = Field({}, description="fixed settings, the method among them")
    search: str | None = Field(None, description="a search file, or a shipped search, that tunes it first")
    metric: str | None = Field(None, description="in place of the claim's, where two metrics are compared")
    test: OtherImages | None = Field(None, description="the images that its models are tested on, if not as trained")


class Tuning(_Part):
    """How arms are tuned, and what each of them may spend, the same for all."""

    space: dict[str, Any] = Field({}, description="what is searched for each arm, beside the space of its own search")
    algorithm: str | None = Field(None, description="in place of the search files'")
    num_trials: int | None = Field(None, ge=1, le=MAX_TRIALS)
    budget: Budget = Budget()
    seed: int = Field(0, ge=0, lt=2**31)

    @field_validator("algorithm")
    @classmethod
    def _exists(cls, value: str | None) -> str | None:
        return None if value is None else check_algorithm_name(value)


class Seeds(_Part):
    """The pairs of seeds: every arm is trained with each of them."""

    first: int = Field(1, ge=0, lt=2**31 - MAX_RUNS, description="the first seed; the others follow it")
    max: int = Field(10, ge=FIRST_LOOK, le=MAX_RUNS, description="the budget: pairs at which it ends undecided")
    also: list[str] = Field([], description="other settings that take the seed's value: label_noise_seed")


class Hypothesis(_Part):
    """The content of a claim's file."""

    claim: str = Field(min_length=1, description="the claim, in one sentence")
    source: str = Field(min_length=1, description="who claims it, and where: paper, table")
    note: str = Field("", description="how this test differs from the source's")
    kind: Kind
    metric: str = Field(description="what is compared")
    second_metric: str | None = Field(None, description="rank agreement: the metric that ranks the arms likewise")
    direction: Literal["higher", "lower"] = Field("higher", description="what is claimed of `arm`, or of the first")
    smallest_effect: float = Field(gt=0, description="the smallest effect of interest, in the metric's points")
    protocol: str = Field("conventional", description="how it is tested: a training's setting")
    datasets: dict[str, dict[str, Any]] = Field(min_length=1, description="with settings of their own; or names")
    settings: dict[str, Any] = Field({}, description="of all arms")
    arms: dict[str, Arm] = Field(min_length=1)
    arm: str | None = Field(None, description="the arm that something is claimed of")
    than: list[str] = Field([], description="the arms that it is compared with, each")
    changed: dict[str, Any] = Field({}, description="difference of differences: settings whose effect is compared")
    order: list[list[str]] = Field([], description="order: groups of arms, the first claimed to be above the second")
    tuning: Tuning = Tuning()
    seeds: Seeds = Seeds()

    @field_validator("datasets", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise InputError(f"should be a list of names, or a mapping of names to settings: [{value}]")
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            return value
        if not value:
            raise InputError("name one or more")
        if len(set(value)) < len(value):
            raise InputError("one is named twice")
        return {name: {} for name in value}

    @property
    def sign(self) -> int:
        """1 if a positive difference is what is claimed."""
        return 1 if self.direction == "higher" else -1

    @property
    def points(self) -> float:
        """The points of one unit of the metric: a share is given in hundredths."""
        return 100.0 if is_share_metric(self.metric) and self.kind != "rank_agreement" else 1.0

    @property
    def states(self) -> tuple[str, ...]:
        """The states in which each arm is trained, or its trainings are read."""
        return (BASE, *{"difference_of_differences": [CHANGED], "rank_agreement": [SECOND]}.get(self.kind, []))

    @property
    def trained_arms(self) -> list[str]:
        """The arms that are compared, in the order of the file."""
        if self.kind == "rank_agreement":
            return list(self.arms)
        named = {self.arm, *self.than, *(name for group in self.order for name in group)}
        return [name for name in self.arms if name in named]

    @property
    def other_datasets(self) -> list[tuple[str, KeyPath]]:
        """Those that models are tested on, beside the ones that they are trained on, each once, and the key there."""
        tests = [(arm.test, test_of(key)) for key, arm in self.arms.items() if arm.test is not None]
        places = {name: place for test, place in tests for name in test.names()}
        return [(name, place) for name, place in sorted(places.items()) if name not in self.datasets]

    def space_of(self, arm: str) -> dict[str, Any]:
        """What is searched for an arm, beside the space of its own search: the tuning's space, less what it gives."""
        return {key: of for key, of in self.tuning.space.items() if key not in self.arms[arm].settings}

    @property
    def tuned_arms(self) -> list[str]:
        """The arms that are tuned first."""
        return [name for name in self.trained_arms if self.arms[name].search is not None or self.space_of(name)]

    def metric_of(self, arm: str, state: str = BASE) -> str:
        """What is read of an arm's trainings."""
        if state == SECOND:
            return str(self.second_metric)
        return self.arms[arm].metric or self.metric

    def trains_as(self, arm: str) -> str:
        """The first arm with the same trainings: those that differ in the metric alone are trained once."""
        own = self.arms[arm]
        return next(
            name
            for name in self.trained_arms
            if (self.arms[name].settings, self.arms[name].search) == (own.settings, own.search)
        )

    def training_name(self, dataset: str, arm: str, state: str = BASE) -> str:
        """What the trainings of an arm are called, between the claim's prefix and the seed."""
        return f"{dataset}-{self.trains_as(arm)}{f'-{state}' if state == CHANGED else ''}"

    def settings_of(self, arm: str, dataset: str, state: str = BASE) -> dict[str, Any]:
        """The fixed settings of an arm's trainings, without the seed."""
        changed = self.changed if state == CHANGED else {}
        common = {"protocol": self.protocol, **self.settings, **self.datasets[dataset]}
        return {**common, **self.arms[arm].settings, **changed, "dataset": dataset}


@dataclass(frozen=True)
class Claim:
    """A claim as it was read: its name, its content, and the digest of all that defines it."""

    name: str
    path: Path
    text: str
    hypothesis: Hypothesis
    digest: str
    """SHA-256 of the file and of the search files that it names."""

    @property
    def key(self) -> str:
        """What its folder and its trainings are called by: a changed file is another claim."""
        return f"{self.name}-{self.digest[:KEY_CHARACTERS]}"


def is_share_metric(metric: str) -> bool:
    """Whether a metric of a claim is between 0 and 1; `test/diagnostics/introspective_recall_at_1` is as the metric
    that its name ends with."""
    if metric == DETECTION:
        return True
    prefix, _, name = metric.partition("/")
    words = name.removeprefix("diagnostics/").split("_")
    metrics = (metric_of("_".join(words[start:])) for start in range(len(words) if name.count("/") else 1))
    return prefix in ("test", "val") and any(one is not None and one.share for one in metrics)
