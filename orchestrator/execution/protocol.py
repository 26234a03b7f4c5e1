"""What a place where trials run offers a search, and what it asks of one."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from orchestrator.config.search import Search


class TrialSource(Protocol):
    """What a runner asks of a search: its next trial, and to take what came of one."""

    fault: str | None
    folder: Path
    losses: dict[str, list[str]]
    search: Search
    slots: int
    stopping: bool

    def attended(self, trial_id: str, now: float) -> None:
        """A trial has got a process, its first or another one: from now on its time is counted."""

    @property
    def finished(self) -> bool:
        """Nothing is running and nothing will be given out."""

    def lost(self, trial_id: str, reason: str) -> None:
        """A trial whose process could not be kept alive; for want of a disk, it is only interrupted."""

    def next(self) -> dict[str, Any] | None:
        """The next trial's id and arguments; None while there is nothing to give out just now."""

    def overdue(self, now: float) -> dict[str, str]:
        """The trials that have a process and took too long, and why that is their end."""

    def report(self, result: Mapping[str, Any]) -> bool:
        """A trial's result; True if the trial is to be stopped. Results known already are passed over."""

    def restarted(self, trial_id: str, reason: str) -> None:
        """A trial's process was lost, and the trial goes on in another."""


class Runner(Protocol):
    """Where trials run."""

    def ready(self, search: Search, storage: Path) -> contextlib.AbstractContextManager[int]:
        """Get hold of the machines; gives how many trials run at once, InputError if not even one can, or if one of
        them does not see the storage."""

    def resources(self, search: Search) -> dict[str, float]:
        """What a trial holds on these machines: CPUs, and GPUs if it has any."""

    def run(self, conductor: TrialSource) -> None:
        """Run the conductor's trials until it has no more or is stopping."""
