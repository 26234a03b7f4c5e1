"""One trial of a search, as its journal tells it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.storage.events import Copied, Excess, Failure, Gain

STATES = ("running", "done", "pruned", "failed", "interrupted")
FINISHED = ("done", "pruned")
"""The states of trials that ended as planned: they may win."""
ENDED = (*FINISHED, "failed")
"""The states of trials that no resume continues, but those of `Ledger.trials_to_retry`."""
COURSE = (
    *("validations", "epochs", "curve", "losses", "places", "last_metrics"),
    *("best", "best_validation", "best_metrics", "second"),
)
"""What a copy takes over of the trial that it goes on from."""


@dataclass
class TrialRecord:
    """One trial: its point, its progress, and its best validation."""

    trial_id: str
    number: int
    kind: str
    params: dict[str, Any]
    started: int
    state: str = "running"
    reason: str | None = None
    failure: Failure | None = None
    """Why it failed, if that is recorded."""
    failures: int = 0
    """How many of its attempts failed in a way that may pass."""
    validations: int = 0
    curve: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    """The mean training loss before each value of the curve."""
    places: list[int] = field(default_factory=list)
    """The place in the journal of each value of the curve."""
    best: float | None = None
    best_validation: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    second: float | None = None
    """The second objective at the best validation, if the search has two."""
    costs: dict[str, float] = field(default_factory=dict)
    """What was measured of its network and its training (`costs.COSTS`)."""
    violations: dict[str, float] = field(default_factory=dict)
    """The constraints that it breaks, each with the excess over the limit as a share of it: then it cannot win."""
    last_metrics: dict[str, float] = field(default_factory=dict)
    first_loss: float | None = None
    """The mean training loss before its first validation."""
    best_interval: Sequence[float] | None = None
    """The 95% interval of its best value over the held-out classes, if recorded."""
    gain: Gain | None = None
    """Over its untrained network; on the test classes if tested, else the held-out ones."""
    excess: Excess | None = None
    test: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    epochs: float = 0.0
    epochs_before: float = 0.0
    """Of these, those of the trial that it is a copy of."""
    epochs_planned: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    """The CPUs and GPUs that it holds."""
    hours: dict[str, float] = field(default_factory=dict)
    """The CPU-hours and GPU-hours that it used."""
    ended: int | None = None
    ended_at: int | None = None
    """The place in the journal of its end."""
    restarted: list[int] = field(default_factory=list)
    """When it began again, after an interruption, an early stop or the loss of its process."""
    note: str | None = None
    source: str | None = None
    """The trial that a final run retrains."""
    copied: Copied | None = None
    """Of which trial it is a copy, if it is one."""
    among: int = 0
    """The number of trials of the search when a final run began."""
    stop_after: int | None = None
    """The validation after which a final run ends; None if not recorded, or if it trains to its end."""
    settings: dict[str, Any] = field(default_factory=dict)
    """All settings of its training, including the point."""
    unordered: tuple[str, ...] = ()
    """The operations in it that have no fixed order on its GPU: another training differs in the last bits."""
    idle: dict[str, str] | None = None
    """The settings of its point that have no effect, each with the cause; None if not recorded."""

    def take_over(self, other: "TrialRecord") -> None:
        """Begin with another trial's course, which costs nothing."""
        self.epochs_before = other.epochs
        for name in COURSE:
            value = getattr(other, name)
            setattr(self, name, list(value) if isinstance(value, list) else value)

    @property
    def point(self) -> dict[str, Any]:
        """What was searched, without the seed."""
        return {key: value for key, value in self.params.items() if key != "seed"}

    @property
    def seed(self) -> int:
        """Of its training."""
        return int(self.params.get("seed", self.settings.get("seed", 0)))

    @property
    def is_ranked(self) -> bool:
        """Whether it has a value, and breaks no constraint. The value that a copy begins with is another trial's."""
        return self.best is not None and not self.violations and self.has_own_best

    @property
    def remark(self) -> str:
        """Why it ended, or else what it is; of a copy both."""
        notes = (self.note if self.copied else None, self.reason)
        return "; ".join(filter(None, notes)) or self.note or ""

    @property
    def own_epochs(self) -> float:
        """Those that it trained for itself, as `own_validations`."""
        return self.epochs - self.epochs_before

    @property
    def own_validations(self) -> int:
        """Those that it trained for itself: a copy begins with the course of another trial."""
        return self.validations - (self.copied.validation if self.copied else 0)

    @property
    def has_own_best(self) -> bool:
        """Whether its best validation is its own."""
        return self.copied is None or (self.best_validation or 0) > self.copied.validation

    @property
    def retryable(self) -> bool:
        """Whether it failed only because of a broken GPU: a resume tries it again."""
        return self.state == "failed" and self.failure == "device"

    @property
    def goes_on(self) -> bool:
        """Whether a resume continues it after its end."""
        return self.state == "interrupted" or self.retryable
