"""The interface between a runner of trials and a search."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from orchestrator.config.search import Search


class TrialSource(Protocol):
    """What a runner needs from a search: the next trial, and methods that take the results."""

    fault: str | None
    folder: Path
    losses: dict[str, list[str]]
    search: Search
    slots: int
    stopping: bool

    def attended(self, trial_id: str, now: float) -> None:
        """A trial has got a process, its first or a new one: its time is counted from now on."""

    @property
    def finished(self) -> bool:
        """No trial is running and none will be started."""

    def lost(self, trial_id: str, reason: str) -> None:
        """End a trial whose process could not be kept alive; after a disk fault it is only interrupted."""

    def next(self) -> dict[str, Any] | None:
        """The next trial's id and arguments; None if no trial can be started now."""

    def overdue(self, now: float) -> dict[str, str]:
        """The trials with a process that took too long, and the reason for ending each."""

    def report(self, result: Mapping[str, Any]) -> bool:
        """Take a trial's result; True if the trial is to be stopped. Known results are ignored."""

    def restarted(self, trial_id: str, reason: str) -> None:
        """A trial's process was lost, and the trial continues in another."""


class Runner(Protocol):
    """Where trials run."""

    def ready(self, search: Search, storage: Path) -> contextlib.AbstractContextManager[int]:
        """Acquire the machines; gives how many trials run at once. InputError if not even one can, or if a machine
        does not see the storage."""

    def resources(self, search: Search) -> dict[str, float]:
        """The resources of a trial on these machines: CPUs, and GPUs if it has any."""

    def run(self, conductor: TrialSource) -> None:
        """Run the conductor's trials until it has no more or is stopping."""
