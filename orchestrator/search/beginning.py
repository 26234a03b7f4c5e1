"""From what a user says to a search that can start: for the command line and the Python interface alike."""

import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import InputError, Problems
from orchestrator.problems import Operand, Option, Problem
from orchestrator.storage import paths

if TYPE_CHECKING:
    from orchestrator.config.search import Search
    from orchestrator.execution.protocol import Runner
    from orchestrator.storage.places import Places


def resolve_request(
    raw: Mapping[str, Any],
    places: "Places",
    *,
    source: str,
    name: str,
    preset: str | None = None,
    overrides: Mapping[str, object],
    changes: Mapping[str, Any],
    ranges: Mapping[str, Any] | None = None,
    prepared: bool = True,
    problems: Problems | None = None,
) -> "Search":
    """The search of a file's content, fixed settings (`overrides`), top-level keys (`changes`) and `ranges` that are
    searched instead of the file's; `prepared`: its data set must be there. InputError lists all that is wrong, also
    what is in `problems` already."""
    from orchestrator.config.presets import find_preset
    from orchestrator.config.resolve import resolve_search
    from orchestrator.search.lab import resources
    from orchestrator.search.start_from import expected_settings, starting_settings

    collected = Problems() if problems is None else problems
    with collected.collect():
        search = resolve_search(
            raw,
            name=name,
            source=source,
            preset=None if preset is None else find_preset(preset),
            ranges=ranges,
            overrides=overrides,
            find_settings=lambda name: starting_settings(name, places),
            find_expected=lambda name: expected_settings(name, places),
            **{**changes, **{key: n for key, n in resources(raw).items() if changes.get(key) is None}},
        )
    with collected.collect():
        dataset = changes.get("dataset") or overrides.get("dataset") or raw.get("dataset")
        check_dataset(dataset, places.storage, prepared=prepared and not collected.found)
    collected.tell()
    return search


def described_training(
    given: Mapping[str, Any],
    overrides: Mapping[str, Any],
    places: "Places",
    *,
    preset: str | None = None,
    name: str | None = None,
    repeats: int = 1,
    prepared: bool = True,
) -> "Search":
    """One training, or several over seeds: of `method`, `dataset`, `epochs` and `seed` (`given`, None where not), and
    of fixed settings."""
    from orchestrator.config.presets import find_preset
    from orchestrator.config.resolve import beneath, single_training

    if repeats < 1:
        raise InputError(Problem((Option("repeats"),), repeats, "should be at least 1"))
    source_preset = None if preset is None else find_preset(preset)
    for option in ("method", "dataset"):
        if given.get(option) is None and source_preset is None:
            rule = ("missing, or ", Option("preset"), " (see orchestrator train --help)")
            raise InputError(Problem((Option(option),), rule=rule))
    method = given.get("method")
    if source_preset is not None and method not in (None, source_preset.settings["method"]):
        other = (Option("preset"), f" {preset} is for '{source_preset.settings['method']}'; keep one")
        raise InputError(Problem((Option("method"), Operand(method)), rule=other))
    fixed = {} if source_preset is None else beneath(source_preset.settings, overrides)
    fixed |= {key: value for key, value in given.items() if value is not None}
    training_name = name or fresh_name(f"train-{fixed['method']}")
    training = single_training(training_name, fixed | dict(overrides), repeats=repeats, preset=source_preset)
    check_dataset(training.settings.get("dataset"), places.storage, prepared=prepared)
    return training


def check_dataset(name: object, storage: Path, *, prepared: bool = True) -> None:
    """DataError for the name of no data set (`prepared`: or of one that is not there), before anything slow; one at an
    address is looked for later."""
    from orchestrator.data.catalog import check_known, check_prepared
    from orchestrator.storage.address import is_address
    from orchestrator.storage.places import Places

    if isinstance(name, str) and not is_address(name) and paths.address_of(storage) is None:
        (check_prepared if prepared else check_known)(name, Places(storage.expanduser().resolve()).data)


def runner_at(address: str | None = None, ray_output: bool = False) -> "Runner":
    """Trials on our own cluster or on the one at an address, or in processes that join through the storage; InputError
    if nothing answers there."""
    from orchestrator.execution.protocol import THROUGH_STORAGE

    if address == THROUGH_STORAGE:
        from orchestrator.execution.through_storage import StorageRunner

        return StorageRunner()
    from orchestrator.execution.ray_address import reachable_address
    from orchestrator.execution.ray_tune import RayRunner

    return RayRunner(reachable_address(address), ray_output)


def why_failed(reasons: list[str], count: int) -> str:
    """Why a search has no result, in one line."""
    first = reasons[0] if reasons else "no trial gave a value"
    return f"{f'all {count} trials failed; the first' if count > 1 else 'the training failed'}: {first}"


def first_fields(search: "Search") -> dict[str, Any]:
    """What a journal's first event says of the search itself."""
    from orchestrator.storage.events import FORMAT

    return {
        "format": FORMAT,
        "name": search.name,
        "search_id": uuid.uuid4().hex,
        "dataset": search.dataset,
        "method": search.settings.get("method", "several"),
        "objective": search.objective.model_dump(),
        "config": search.model_dump(),
    }


def fresh_name(stem: str) -> str:
    return f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
