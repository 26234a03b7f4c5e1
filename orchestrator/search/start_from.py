"""What `start_from` of a search names: points of presets and of earlier searches."""

from typing import Any

from orchestrator.config.presets import find_preset
from orchestrator.config.search import recorded_search
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError
from orchestrator.storage.places import Places
from orchestrator.storage.reading import read_journal


def starting_settings(name: str, places: Places) -> list[dict[str, Any]]:
    """The settings that a name in `start_from` means: those of a preset, or of the best k trials of an earlier
    search (`NAME` or `NAME:K`), best first."""
    if "/" in name:
        return [resolve_experiment(find_preset(name, "start_from").settings, name).flat()]
    earlier, _, words = name.partition(":")
    if words and not (words.isdecimal() and int(words) > 0):
        raise InputError(f"start_from: {name}: should be SEARCH or SEARCH:K, for its best K trials")
    ledger = read_journal(places.journal(earlier))[1]
    best = ledger.candidates()[: int(words or 1)]
    if not best:
        raise InputError(f"start_from: {name}: this search has no finished trial")
    search = recorded_search(ledger.config | {"source": name})
    return [search.experiment(trial.params).flat() for trial in best]
