"""The interface between a runner of trials and a search: what a trial's process is given, and what it gives back."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.storage import paths
from orchestrator.storage.events import Failure, Interruption

if TYPE_CHECKING:
    from orchestrator.config.search import Search
    from orchestrator.config.training import Experiment
    from orchestrator.config.workers import Workers

THROUGH_STORAGE = "storage"
"""In place of a cluster's address: trials are trained by processes that join through the storage."""


@dataclass(frozen=True)
class Work:
    """A trial to be trained. It goes to other processes and machines."""

    trial_id: str
    experiment: "Experiment"
    """What is trained, resolved where the search runs: no other process resolves it again."""
    data: str
    """The folder of the data sets, as `paths.portable` names it."""
    folder: str
    """The trial's folder, likewise."""
    objective: Mapping[str, str] | None = None
    stop_after: int | None = None
    """The last validation, if not that of the last epoch."""
    hold_out: bool = True
    """Whether classes of the training half are held out."""
    test: bool = False
    """Whether the finished training is tested on the test classes."""
    untrained: bool = False
    """Whether to measure the network before its training."""
    costs: bool = False
    """Whether to measure before that what the network costs."""
    untrained_on_test: bool = False
    """Whether to measure it on the test classes, also where classes are held out."""
    workers: "int | Workers" = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    """The resources of each worker; a runner with several machines sets them."""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes that train it; set likewise."""
    trial_timeout: float | None = None
    """Seconds until the trial's end."""
    stall_timeout: float | None = None
    """Seconds until its next validation."""
    max_restarts: int = 2
    """How often it goes on in another process after its own was lost."""

    @property
    def trial_folder(self) -> Path:
        """The trial's folder, as this machine names it."""
        return paths.local(self.folder)

    def __getstate__(self) -> dict[str, Any]:
        """The hyperparameters by their names: another process has a class of its own for them (`plugins`)."""
        method, config, training = self.experiment.method, self.experiment.config, self.experiment.training
        hyperparameters = {name: getattr(config, name) for name in type(config).model_fields}
        return {**self.__dict__, "experiment": (method, hyperparameters, training)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from orchestrator.config.training import Experiment
        from orchestrator.plugins import checked_config

        method, hyperparameters, training = state["experiment"]
        experiment = Experiment(method, checked_config(method, hyperparameters), training)
        self.__dict__.update({**state, "experiment": experiment})


@dataclass(frozen=True)
class _OfATrial:
    trial_id: str
    anew: str | None = field(default=None, kw_only=True)
    """Why the training began anew, if its files were damaged; only in the first result after that."""


@dataclass(frozen=True)
class Validated(_OfATrial):
    """A validation of a trial; number 0 is the network before its training, with `untrained` or `costs` as its only
    value. Without these it only says that a group of workers trains from now on."""

    number: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    finished: bool = False
    """Whether it is the last one."""
    reason: str | None = None
    """Why, if the training ended before all its epochs for want of better scores."""
    test: Mapping[str, float] = field(default_factory=dict)
    """The metrics on the test classes, of a finished training that is to be tested."""
    untrained: Mapping[str, Any] | None = None
    """The score of the network before its training, if it was measured; see `untrained.measure`."""
    costs: Mapping[str, float] = field(default_factory=dict)
    """What the network costs, if that was measured; see `encoder.measure_costs`."""
    unordered: tuple[str, ...] = ()
    """The operations so far that have no fixed order on this GPU; see `repeatable`."""
    system: Mapping[str, float] = field(default_factory=dict, compare=False)
    """What the training took of its machine, which differs each time; see `usage`."""
    faiss_fault: str | None = field(default=None, compare=False)
    """Why faiss did not search for its neighbours, where it is missing or broken."""
    lost_workers: tuple[str, ...] = ()
    """Why the trial's group of workers was started again, once for each time."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What of the trial's numbers depends on how many workers it has."""

    @property
    def done(self) -> bool:
        """Whether the trial has no further result."""
        return self.finished


@dataclass(frozen=True)
class Failed(_OfATrial):
    """A trial that cannot go on, as its last result."""

    reason: str
    repeats: bool = False
    """Of one worker of a group: whether another attempt of the group would fail too."""
    failure: Failure | None = None
    """Its kind. After `device` the process that trained has to end itself."""
    done = True


@dataclass(frozen=True)
class Interrupted(_OfATrial):
    """A trial that was stopped and did not fail, as its last result. After a fault of the storage it can go on once
    that is repaired; where the end of its process was announced (`preempted`), it goes on in another."""

    reason: str
    interruption: "Interruption" = "storage"
    done = True


Result = Validated | Failed | Interrupted
"""What a trial's process gives back."""


class TrialSource(Protocol):
    """What a runner needs from a search: the next trial, and methods that take the results."""

    fault: str | None
    folder: Path
    lost_workers: dict[str, tuple[str, ...]]
    search: "Search"
    slots: int
    stopped_by: str | None
    stopping: bool

    def process_started(self, trial_id: str, now: float) -> None:
        """A trial has got a process, its first or a new one: its time is counted from now on."""

    @property
    def is_finished(self) -> bool:
        """No trial is running and none will be started."""

    def lost(self, end: Failed) -> None:
        """End a trial whose process could not be kept alive; after a disk fault it is only interrupted."""

    def next(self) -> Work | None:
        """The next trial; None if no trial can be started now."""

    def overdue(self, now: float) -> dict[str, Failed]:
        """The trials with a process that took too long, each with its end."""

    def report(self, result: Result) -> bool:
        """Take a trial's result; True if the trial is to be stopped. Known results are ignored."""

    def report_restart(self, trial_id: str, reason: str) -> None:
        """A trial's process was lost, and the trial continues in another."""


class Runner(Protocol):
    """Where trials run."""

    own_processes: bool
    """Whether trials run in other processes than the search."""
    stage: str
    """What `ready` does, for those who wait for it."""

    def ready(self, search: "Search", storage: Path) -> contextlib.AbstractContextManager[int]:
        """Acquire the machines; gives how many trials run at once. InputError if not even one can, or if a machine
        does not see the storage."""

    def resources(self, search: "Search") -> dict[str, float]:
        """The resources of a trial on these machines: CPUs, and GPUs if it has any."""

    def run(self, conductor: TrialSource) -> None:
        """Run the conductor's trials until it has no more or is stopping."""
