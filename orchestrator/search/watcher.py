"""Who looks on while a search runs."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.search.conductor import Conductor
    from orchestrator.storage.ledger import Ledger
    from orchestrator.storage.trial_record import TrialRecord
    from orchestrator.tracking.trackers import Tracker


class Watcher:
    """Observes a search; the display is a watcher."""

    def stage(self, doing: str) -> None:
        """Called before and after the trials, where seconds pass: `starting Ray`, `writing the pages`."""

    def begin(self, conductor: "Conductor", tracker: "Tracker") -> None:
        """Called before the first trial."""

    def __call__(self, event: str, trial: "TrialRecord") -> None:
        """`started`, `restarted`, `anew`, `validated` or `ended`; of a group of workers `training`, some time after
        `started`, when they are there."""

    def end(self) -> None:
        """Called after the last event."""

    def results(self, ledger: "Ledger") -> None:
        """Called when all is trained and tested, before the pages are written; what it raises loses them."""


TOLD = ("trial_id", "kind", "state", "params", "validations", "best", "reason")


class Telling(Watcher):
    """Tells a function each event of a trial, as plain values, beside another watcher."""

    def __init__(self, beside: Watcher, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self.beside, self.tell = beside, tell

    def stage(self, doing: str) -> None:
        self.beside.stage(doing)

    def begin(self, conductor: "Conductor", tracker: "Tracker") -> None:
        self.beside.begin(conductor, tracker)

    def __call__(self, event: str, trial: "TrialRecord") -> None:
        self.beside(event, trial)
        fields = {name: getattr(trial, name) for name in TOLD}
        self.tell({"event": event, **fields, "metrics": dict(trial.last_metrics)})

    def end(self) -> None:
        self.beside.end()

    def results(self, ledger: "Ledger") -> None:
        self.beside.results(ledger)
