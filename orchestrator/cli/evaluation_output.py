"""What `evaluate` prints with `--json`."""

from pydantic import Field

from orchestrator.data.augmentations import Degradation
from orchestrator.evaluation.claims import Ends
from orchestrator.storage.outputs import Output, SettingValue


class Group(Output):
    """The metrics on a group of classes."""

    queries: int
    classes: str
    metrics: dict[str, float]
    interval_of_the_claim: str
    intervals_over_classes: dict[str, Ends | None]
    intervals_over_queries: dict[str, Ends | None]
    no_interval: str | None = None
    number_of_classes: int


class Seen(Output):
    """Test classes and images that a model was trained or selected on; `metrics` are without these classes."""

    classes: int
    images: int
    names: list[str]
    metrics_with_them: dict[str, float]


class Metrics(Output):
    """A model's metrics on a data set; over folds, groups or two data sets, with the keys for them."""

    model: str
    dataset: str
    selection: str | None
    untrained: dict[str, SettingValue] | None = None
    degradation: Degradation | None = None
    out_of_distribution: str | None = None
    split: str = "test"
    queries: int | None = None
    classes: int | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    interval_of_the_claim: str | None = None
    intervals_over_classes: dict[str, Ends | None] = Field(default_factory=dict)
    intervals_over_queries: dict[str, Ends | None] = Field(default_factory=dict)
    no_interval: str | None = None
    groups: list[Group] = Field(default_factory=list)
    seen_in_training: Seen | None = None
