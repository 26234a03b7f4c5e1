"""What is known of a point's costs before it is trained, and which points a search need not train."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from orchestrator.config.search import Search
from orchestrator.config.shaping import untrained_key
from orchestrator.method import Method, find_method
from orchestrator.storage.costs import NETWORK_COSTS, violations
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord

MAX_REFUSED = 100
"""So many points in a row that were not trained end a search: its space has hardly any that hold to its limits."""


class Constraints:
    """The limits of a search, and what its networks cost, as far as one of its trials has measured it."""

    def __init__(self, search: Search, ledger: Ledger) -> None:
        self.search, self.ledger = search, ledger
        self.networks: dict[str, dict[str, float]] = {}
        """The costs of each network, by `_key`."""
        needed = {*search.constraints, *(goal.metric for goal in search.goals)}
        self.measures = any(name in needed for name in NETWORK_COSTS)
        """Whether trials measure their networks."""
        for trial in ledger.trials.values():
            self.note(trial)

    def note(self, trial: TrialRecord) -> None:
        """Keep what a trial has measured of its network, for others of the same."""
        costs = {name: trial.costs[name] for name in NETWORK_COSTS if name in trial.costs}
        if costs and (key := self._key(trial.settings)) is not None:
            self.networks.setdefault(key, costs)

    def costs_of(self, settings: Mapping[str, Any]) -> dict[str, float]:
        """The costs of the network of these settings; empty if none has been measured."""
        key = self._key(settings) if self.measures else None
        return {} if key is None else self.networks.get(key, {})

    def may_hold(self, params: Mapping[str, Any]) -> bool:
        """Whether a point is not known to break a limit."""
        if not self.search.constraints:
            return True
        trial = TrialRecord("", 0, "trial", dict(params), 0, settings=self.search.experiment(params).flat())
        trial.costs |= self.costs_of(trial.settings)
        return not violations(trial, self.search.constraints)

    @property
    def reason_to_end(self) -> str | None:
        """Why no other point is tried: the last ones were all refused before their training."""
        if not self.search.constraints or self.search.exhaustive:
            return None
        last = list(islice(reversed(self.ledger.trials.values()), MAX_REFUSED))
        if len(last) < MAX_REFUSED or not all(trial.violations and not trial.validations for trial in last):
            return None
        return f"constraints, which {MAX_REFUSED} points in a row break"

    def _key(self, settings: Mapping[str, Any]) -> str | None:
        """Of the settings that a network's costs depend on; None if its method's parameters are part of the model."""
        if find_method(str(settings.get("method"))).retrieval is not Method.retrieval:
            return None
        shape = untrained_key(settings, str(self.ledger.tags.get("dataset.digest")))
        return f"{shape} {settings.get('threads')} {settings.get('device')}"
