"""What journals keep of class tables: plain values, without numpy."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Excess:
    """What the best of so many trials is expected to lose on other classes of this kind."""

    value: float
    trials: int
    classes: int

    @property
    def plain(self) -> dict[str, Any]:
        """For a journal and for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Gain:
    """The mean over queries of one network less another's, on the same queries."""

    metric: str
    difference: float
    low: float | None
    high: float | None
    """The 95% interval over the classes; None for too few of them."""
    up: int
    """How many of the classes are better."""
    classes: int

    @property
    def plain(self) -> dict[str, Any]:
        """For a journal."""
        return asdict(self)
