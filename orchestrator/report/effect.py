"""Settings without effect: other settings disable them, or the training ends before it uses them."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from orchestrator.config.search import Search
from orchestrator.contract import MethodConfig
from orchestrator.data.protocol import steps_per_epoch
from orchestrator.errors import InputError
from orchestrator.plugins import config_class
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import format_assignments

OF_THE_SPLIT = {"dataset", "protocol", "selection", "validation_share", "class_subset"}
"""Settings that the number of training images depends on; where one is searched, that number is not known."""


def training_steps(settings: Mapping[str, Any], images: int) -> int:
    """Steps of a training on this many images; one that is stopped early has fewer."""
    batch = settings["classes_per_batch"] * settings["images_per_class"]
    return int(settings["epochs"] * steps_per_epoch(images, batch))


def count_training_images(ledger: Ledger) -> int | None:
    """How many images a trial trains on; None in older records."""
    count = ledger.sizes.get("training_images")
    return count if isinstance(count, int) else None


def idle(trial: TrialRecord, images: int | None = None) -> dict[str, str]:
    """The searched settings of a trial that have no effect, each with the cause; see `idle_params`. As recorded when
    the trial began; from its settings in older records."""
    if trial.idle is not None:
        return trial.idle
    try:
        config = config_class(str(trial.settings.get("method")))
        config_fields = {key: value for key, value in trial.settings.items() if key in config.model_fields}
        return idle_params(config(**config_fields), trial.settings, trial.params, images)
    except (InputError, ValidationError, KeyError):  # from a plugin that is missing here, or from another version
        return {}


def idle_params(
    config: MethodConfig, settings: Mapping[str, Any], params: Mapping[str, Any], images: int | None
) -> dict[str, str]:
    """Which of `params`, the searched settings among a trial's, have no effect, each with the cause:
    `references="proxies"`; with the number of its training images also those for which its training is too short."""
    causes = {key: format_assignments(because, dict(config)) for key, because in config.idle().items()}
    if images is not None and OF_THE_SPLIT.isdisjoint(params):
        steps = training_steps(settings, images)
        for key, because in config.idle_within(steps).items():
            causes.setdefault(key, f"{format_assignments(because, dict(config))}, not reached in {steps} steps")
    return {key: because for key, because in causes.items() if key in params}


def idle_by_trial(ledger: Ledger) -> dict[str, dict[str, str]]:
    """`idle` of each trial, by its id."""
    images = count_training_images(ledger)
    return {trial.trial_id: idle(trial, images) for trial in ledger.trials.values()}


def idle_trials(ledger: Ledger, by_trial: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[int, int, str]]:
    """For each searched setting without effect in a trial: in how many trials, of how many that have it, and because of
    which others."""
    trials_by_key: dict[str, list[str]] = {}
    for settings in by_trial.values():
        for key, because in settings.items():
            trials_by_key.setdefault(key, []).append(because)
    having = {key: sum(key in trial.params for trial in ledger.trials.values()) for key in trials_by_key}
    return {key: (len(why), having[key], "; or ".join(dict.fromkeys(why))) for key, why in trials_by_key.items()}


def unreached_settings(search: Search, images: int) -> Iterator[str]:
    """A line for each setting of the method that even the longest training on this many images is too short for, and
    the searched value, if any, that causes it: one is varied at a time."""
    experiment = search.example()
    values, kind = experiment.flat(), type(experiment.config)
    ends: dict[str, list[Any]] = {}
    for parameter in search.space.parameters():
        categorical = parameter.kind == "categorical"
        ends.setdefault(parameter.key, []).extend(parameter.choices if categorical else (parameter.low, parameter.high))
    if not OF_THE_SPLIT.isdisjoint(ends):
        return
    longest = {"epochs": max(ends.get("epochs", [values["epochs"]]))}
    longest |= {key: min(ends.get(key, [values[key]])) for key in ("classes_per_batch", "images_per_class")}
    steps = training_steps(longest, images)
    always = experiment.config.idle_within(steps)
    for cause, because in always.items():
        yield f"{cause} has no effect with {format_assignments(because, values)}: a training has {steps} steps"
    tried = [(key, choice) for key in ends if key in kind.model_fields for choice in dict.fromkeys(ends[key])]
    for key, choice in tried:
        if choice == values[key]:
            continue
        try:
            config = kind(**experiment.config.model_dump() | {key: choice})
        except ValidationError:
            continue
        for cause, because in config.idle_within(steps).items():
            if cause != key and (key in because or cause not in always):
                under = format_assignments(dict.fromkeys([key, *because]), dict(config))
                yield f"{cause} has no effect with {under}: a training has {steps} steps"
