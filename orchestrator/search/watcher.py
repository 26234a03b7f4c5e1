"""Who looks on while a search runs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.search.conductor import Conductor
    from orchestrator.storage.ledger import TrialRecord
    from orchestrator.tracking.trackers import Tracker


class Watcher:
    """Observes a search; the display is a watcher."""

    def stage(self, doing: str) -> None:
        """Called before and after the trials, where seconds pass: `starting Ray`, `writing the pages`."""

    def begin(self, conductor: "Conductor", tracker: "Tracker") -> None:
        """Called before the first trial."""

    def __call__(self, event: str, trial: "TrialRecord") -> None:
        """`started`, `restarted`, `anew`, `validated` or `ended`."""

    def end(self) -> None:
        """Called after the last event."""
