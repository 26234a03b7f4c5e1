"""The intervals that a test recorded, and which of them is for what it claims."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.text import pluralize

Over = Literal["classes", "queries"]
Ends = tuple[float, float]

CONFIDENCE = 0.95
SIGNIFICANT = 0.05
"""The maximum probability that any of the differences reported as real is not."""
FEWEST_SEEDS = 3
"""With fewer common seeds there is no verdict: a deviation of two values says nothing."""
FEWEST_CLASSES = 5
"""With fewer, no interval over classes is claimed: their deviation is hardly known."""
SUFFIXES = ("_low", "_high")
"""The suffixes of the keys of an interval's ends, whatever it is over."""


@dataclass(frozen=True)
class ClaimScope:
    """The interval for the claim that a test makes, and what it is over."""

    over: Over
    low: float | None
    high: float | None
    why: str = ""
    """Why there is no interval, or why it is not for the claim; empty if it is."""

    def text(self, units: str) -> str:
        """`95% over 50 classes: 0.4970 to 0.5960`; `units` is what `over` is called, with its number if known."""
        over = self.text_over(units)
        return over if self.low is None or self.high is None else f"95% {over}"

    def text_over(self, units: str) -> str:
        """The same after another interval of this level: `over 50 classes: 0.4970 to 0.5960`"""
        if self.low is None or self.high is None:
            return self.why
        return f"over {units}: {self.low:.4f} to {self.high:.4f}" + (f"; {self.why}" if self.why else "")


def claim_of(protocol: str | None) -> Over:
    """What a test under this protocol claims to hold for: new classes, or new images of the classes trained on."""
    return "queries" if protocol == "classification" else "classes"


def too_few(classes: int | None = None) -> str:
    """Why there is no interval over classes."""
    if classes is None or classes >= FEWEST_CLASSES:  # some of them have one image, and so no part in the numbers
        return f"no interval: too few classes with queries, {FEWEST_CLASSES} are needed"
    return f"no interval: {pluralize(classes, 'class', 'classes')}, {FEWEST_CLASSES} are needed"


def recorded_claim(
    test: Mapping[str, Any], name: str, protocol: str | None, classes: int | None = None
) -> ClaimScope | None:
    """The interval that a recorded test has for its claim; None if it recorded none for this metric.

    In records from before intervals over classes, `<metric>_low` is over queries; it is returned as such.
    """

    def ends(stem: str) -> Ends | None:
        low, high = (test.get(stem + suffix) for suffix in SUFFIXES)
        return None if low is None or high is None else (low, high)

    over = claim_of(protocol)
    if (interval := ends(f"{name}_over_{over}")) is not None:
        return ClaimScope(over, *interval)
    if ends(f"{name}_over_queries") is not None:
        return ClaimScope("classes", None, None, too_few(classes))
    if (interval := ends(name)) is not None:
        return ClaimScope("queries", *interval, "" if over == "queries" else "too narrow for classes never seen")
    return None


def is_end(name: str) -> bool:
    """Whether a metric's key is an end of an interval."""
    return name.endswith(SUFFIXES)
