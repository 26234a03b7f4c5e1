"""Hyperparameters that were added after a search began: it goes on as it began."""

from collections.abc import Mapping
from typing import Any

from orchestrator.config.search import Search
from orchestrator.plugins import config_of


def later_hyperparameters(search: Search) -> dict[str, list[str]]:
    """For the journal of a search that begins now: by method, the names of its `MethodConfig.formerly`."""
    return {name: sorted(formerly) for name in search.methods if (formerly := config_of(name).formerly)}


def as_begun(search: Search, started: Mapping[str, Any]) -> Search:
    """The search with the former values of the hyperparameters that its methods did not have yet at this first event of
    its journal."""
    there = started.get("hyperparameters") or {}
    former = {
        name: {key: value for key, value in config_of(name).formerly.items() if key not in there.get(name, ())}
        for name in search.methods
    }
    former = {name: values for name, values in former.items() if values}
    return search.model_copy(update={"former": former}) if former else search
