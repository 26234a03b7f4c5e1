"""What `start_from` and `learn_from` of a search name: points of presets and of earlier searches."""

from typing import Any

from pydantic import ValidationError

from orchestrator.config.given_points import WHOLE_STORAGE
from orchestrator.config.presets import find_preset
from orchestrator.config.search import recorded_search
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError
from orchestrator.report.standing import standing
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import Places
from orchestrator.storage.reading import read_journal

BEST = 3
"""How many of the best trials of an earlier search are expected to be good elsewhere, unless said otherwise."""


def starting_settings(name: str, places: Places, *, best: int = 1, key: str = "start_from") -> list[dict[str, Any]]:
    """The settings that a name in `start_from` means: those of a preset, or of the best k trials of an earlier
    search (`NAME`, or `NAME:K`), best first."""
    if "/" in name:
        return [resolve_experiment(find_preset(name, key).settings, name).flat()]
    earlier, _, words = name.partition(":")
    if words and not (words.isdecimal() and int(words) > 0):
        raise InputError(f"{key}: {name}: should be SEARCH or SEARCH:K, for its best K trials")
    settings = best_settings(read_journal(places.journal(earlier))[1], int(words or best))
    if not settings:
        raise InputError(f"{key}: {name}: this search has no finished trial")
    return settings


def expected_settings(name: str, places: Places) -> list[dict[str, Any]]:
    """The settings that a name in `learn_from` means: as `starting_settings`, but the best three trials of a search;
    `storage` means those of each of its searches that has ended; a training has searched nothing."""
    if name != WHOLE_STORAGE:
        return starting_settings(name, places, best=BEST, key="learn_from")
    settings = []
    for path in places.journals():
        try:
            ledger = read_journal(path)[1]
        except InputError:
            continue  # `orchestrator list` says what is wrong with it
        if ledger.state == "done" and not ledger.config.get("test_trials"):
            settings += best_settings(ledger, BEST)
    return settings


def best_settings(ledger: Ledger, count: int) -> list[dict[str, Any]]:
    """All settings of the best trials of a search, best first; none of one that this version cannot read."""
    try:
        search = recorded_search(ledger.config | {"source": ledger.name})
    except (InputError, ValidationError):
        return []
    best = standing(ledger) if ledger.over_seeds else ledger.candidates()  # of each point one trial
    points = [trial for trial in best if trial.copied is None]  # a copy's settings change while it trains
    return [search.experiment(trial.params).flat() for trial in points[:count]]
