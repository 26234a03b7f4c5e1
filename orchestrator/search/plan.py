"""What a search would do and cost, without running it."""

import contextlib
import math
import statistics
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch

from orchestrator.config.algorithms.auto import reasons
from orchestrator.config.limits import cpus
from orchestrator.config.schedulers.population import Population
from orchestrator.config.search import Budget, Search
from orchestrator.config.shaping import untrained_key
from orchestrator.config.training import Experiment, Training
from orchestrator.config.workers import Workers
from orchestrator.data.augmentations.crops import CROPS
from orchestrator.data.catalog import DRAWN, open_dataset, overview
from orchestrator.data.measured import Measured
from orchestrator.data.protocol import steps_per_epoch
from orchestrator.data.splits import Split
from orchestrator.data.store import Store
from orchestrator.errors import InputError, OutOfMemory, TrainingFailed
from orchestrator.evaluation.measures import HEADLINES, YARDSTICK
from orchestrator.report.method_costs import dear_method
from orchestrator.search.driver import suited_to_data
from orchestrator.search.plan_output import Plan, SearchCost
from orchestrator.search.preflight import check_algorithm, check_data, warn
from orchestrator.search.priors import TRIED_FIRST, Prior
from orchestrator.search.study import Study
from orchestrator.storage import paths
from orchestrator.storage.places import Places
from orchestrator.text import pluralize
from orchestrator.training.device import choose_device
from orchestrator.training.loop import Clock, fit
from orchestrator.training.memory import PeakMemory, freed_memory_kept
from orchestrator.training.repeatable import fixed_operations
from orchestrator.training.splits import data_splits
from orchestrator.training.untrained import find_score

STEPS = 5
"""How many training steps are timed."""
ROUNDS = 3
"""How often alternatives are timed, in turn."""
SLOW_SECONDS = 10.0
"""Fewer steps and images are timed where these would take longer."""
LEAST_IMAGES = 256
ALTERNATIVES: tuple[dict[str, Any], ...] = (
    {"precision": "tf32"},
    {"precision": "bf16"},
    {"channels_last": True},
    {"precision": "bf16", "channels_last": True},
)
"""What may be faster on a GPU; a training whose precision is chosen for its digits keeps it."""


class Timed(NamedTuple):
    """Seconds of a step and of a validation; from how many steps and images of a validation; the bytes of a step's
    tensors, None where they are compiled."""

    step: float
    validation: float
    steps: int
    images: int
    memory: int | None


def plan(search: Search, storage: Path, *, new: bool = True, say: Callable[[str], None] = warn) -> Plan:
    """The resolved search, and its cost extrapolated from a few training steps timed now on this machine.

    The cost is that of the space's first point, and an upper bound: early stopping only reduces it. For a data set
    that is not prepared yet, the plan says how to prepare it instead of the cost. InputError if the name of a `new`
    search is already used. `say` receives each line about the data.
    """
    places = Places(storage.expanduser().resolve())
    if new:
        places.new_journal(search.name)
    data_set = overview(places.data).get(search.dataset)
    prepared = data_set is None or data_set.state != "not prepared" or paths.address_of(places.data) is not None
    if prepared and data_set is not None and data_set.state == DRAWN:
        say(f"note: the dry run times training steps on {search.dataset}, which it makes for this; nothing else stays")
    search, defaults = suited_to_data(search, places, say) if prepared else (search, {})
    experiment = search.example()
    most = Study(search).budget
    trials = int(most) if math.isfinite(most) else None
    if not prepared and data_set is not None:
        return _plan_of(search, trials, experiment, data_set=f"{search.dataset} is not prepared: {data_set.how_to_get}")
    check_algorithm(search)
    digest, sizes = check_data(search, places, say)
    device = choose_device(experiment.training.device)
    dear = dear_method(search.methods, sizes["training_classes"], on_gpu=device.type == "cuda")
    if dear is not None and len(search.methods) > 1:
        say(f"warning: method: {dear}")
    training = experiment.training
    store = open_dataset(training.dataset, places.data)
    splits = data_splits(training, store)
    split = splits[0]
    clock = Clock(training.validate_every, steps_per_epoch(len(split.train), training.batch_size), training.epochs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they concern one point, which the search may never try
        with fixed_operations(device.type, deterministic=training.deterministic is not False):
            timed = time_training(experiment, store, split)
            others = time_alternatives(experiment, store, split) if device.type == "cuda" else {}
    per_trial = len(splits) * (clock.total_steps * timed.step + clock.total_validations * timed.validation)
    all_trials = seconds_of_trials(per_trial, trials, training.epochs, search.budget)
    costs: dict[str, Any] = {} if all_trials is None else {"seconds_of_all_trials": round(all_trials, 1)}
    if dear is not None:
        costs["of_the_method"] = dear
    optional: dict[str, Any] = dict(what_numbers_are_of(sizes, experiment, digest, places))
    if defaults:
        optional["defaults"] = defaults
    if others:
        optional["alternatives"] = others
    if timed.memory is not None:
        optional["memory"] = memory_of(timed.memory, training)
    return _plan_of(
        search,
        trials,
        experiment,
        images={"train": len(split.train), "validation": len(split.validation), "test": len(split.test)},
        cost=SearchCost(
            models_per_trial=len(splits),
            steps_per_model=clock.total_steps,
            validations_per_trial=clock.total_validations,
            seconds_per_trial=round(per_trial, 1),
            seconds_of_final_runs=round(per_trial * search.final_runs, 1),
            estimated_from=timed_from(timed, len(split.validation)),
            **costs,
        ),
        **optional,
    )


def _plan_of(search: Search, trials: int | None, experiment: Experiment, **of_data: Any) -> Plan:
    """The plan of a search, with what is known of its data."""
    algorithm_chosen, scheduler_chosen = reasons(search)
    optional: dict[str, Any] = {
        "preset": search.preset,
        "algorithm_chosen": algorithm_chosen,
        "scheduler_chosen": scheduler_chosen,
        "second_objective": search.second_objective and search.second_objective.model_dump(),
        "constraints": search.constraints,
        "budget": search.budget.limits(),
        "points_tried_first": len(search.start_from),
        "points_learnt_from": len(search.learn_from),
        "expected_points": Prior(search.space, search.learn_from, strength=1, seed=0).points[:TRIED_FIRST],
        "seconds_of_a_trial": search.trial_timeout,
        "seconds_to_next_validation": search.stall_timeout,
        "space": search.raw_space,
    }
    optional = {key: value for key, value in optional.items() if value}
    if isinstance(search.scheduler, Population) and search.max_validations and trials:
        optional["copies"] = search.scheduler.count_copies(trials, search.max_validations)
    if search.brackets > 1:
        optional["brackets"] = search.brackets
    if search.rounds:
        optional["repeats_of_leading_points"] = sum(search.rounds)
    elif search.seeds > 1:
        optional["seeds_of_each_point"] = search.seeds
    if search.final_protocol != "same":
        optional["final_protocol"] = search.final_protocol
    return Plan(
        name=search.name,
        description=search.description,
        algorithm=search.algorithm,
        scheduler={"name": search.scheduler.name, **search.scheduler.model_dump()},
        objective=search.objective.model_dump(),
        trials="as many as the budget allows" if trials is None else trials,
        trials_at_a_time=search.max_concurrent or "as many as fit",
        workers={
            "of a trial": _count(search.workers),
            "of the final run": _count(search.workers_of_final) if search.final else 0,
        },
        final_runs=search.final_runs,
        settings={key: value for key, value in experiment.flat().items() if key not in search.space.first()},
        **optional,
        **of_data,
    )


def seconds_of_trials(per_trial: float, trials: int | None, epochs: int, budget: Budget) -> float | None:
    """Of all trials one after another, by the first limit that they reach; None where no limit is one of time."""
    limits = [] if trials is None else [per_trial * trials]
    limits += [] if budget.epochs is None else [per_trial * budget.epochs / epochs]
    limits += [] if budget.hours is None else [3600 * budget.hours]
    return min(limits, default=None)


def timed_from(timed: Timed, images: int) -> str:
    """`5 steps and one validation, timed on this machine`"""
    part = "" if timed.images == images else f" of {timed.images:,} of {images:,} images"
    return f"{pluralize(timed.steps, 'step')} and one validation{part}, timed on this machine"


def memory_of(step: int, training: Training) -> dict[str, str]:
    """What a training step takes, beside what there is."""
    device = choose_device(training.device)
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        there = {"of the GPU": f"{about.total_memory / 1e9:.1f} GB ({about.name})"}
    else:
        machine = psutil.virtual_memory()
        there = {"of this machine": f"{machine.available / 1e9:.1f} GB free of {machine.total / 1e9:.1f} GB"}
    size = f"{step / 1e9:.1f} GB" if step >= 1e9 else f"{step / 1e6:.0f} MB"
    return {"of a training step's tensors": f"{size} in one process, with its batch of {training.batch_size}"} | there


def what_numbers_are_of(
    sizes: dict[str, Any], experiment: Experiment, digest: str, places: Places
) -> dict[str, dict[str, Any]]:
    """The evaluated sets, the chance level on them, and the untrained network's score if the storage has it."""
    sets: dict[str, dict[str, Any]] = {}
    for name, what in (("validation", "selection"), ("test", "test")):
        if (of := Measured.read(sizes[name])) is None:
            continue
        sets[what] = {
            "classes": of.classes,
            "images": of.images,
            "one query, in recall": round(of.one_query, 6),
            **{f"chance of {name}": round(of.chance[name], 6) for name in HEADLINES if name in of.chance},
        }
    score = find_score(places.storage, untrained_key(experiment.flat(), digest))
    if score is not None and "selection" in sets:
        sets["selection"][f"{YARDSTICK} of the untrained network"] = round(score["metrics"][YARDSTICK], 6)
        if ends := score["intervals"].get(YARDSTICK):
            sets["selection"]["its 95% over classes"] = " to ".join(f"{end:.4f}" for end in ends)
    return sets


def time_training(experiment: Experiment, store: Store, split: Split) -> Timed:
    """Time a few steps and a validation, within about half a minute.

    Where photographs make a step slow, one step is timed, and a validation of as many images as take a few seconds; its
    time is that of all of them in proportion.
    """
    memory = None if experiment.training.compile else PeakMemory()
    steps, images, none = STEPS, len(split.validation), _without_validation(split)
    if experiment.training.augmentation in CROPS:
        step = _seconds(experiment, store, none, 1, memory)
        if 2 * STEPS * step > SLOW_SECONDS:
            steps = 1
        else:
            step = _seconds(experiment, store, none, STEPS) / STEPS
        images = min(images, max(LEAST_IMAGES, int(SLOW_SECONDS * experiment.training.batch_size / max(step, 1e-9))))
    else:
        step = _seconds(experiment, store, none, STEPS, memory) / STEPS
    by_class = split.validation[np.argsort(store.labels[split.validation], kind="stable")]
    part = split if images == len(by_class) else replace(split, validation=by_class[:images])
    validation = max(0.0, _seconds(experiment, store, part, 1) - step) * len(split.validation) / max(images, 1)
    return Timed(step, validation, steps, images, memory.peak if memory else None)


def time_alternatives(experiment: Experiment, store: Store, split: Split) -> dict[str, str]:
    """The seconds of a step with other settings, by these, beside those of the training's own.

    All are timed in turn, ROUNDS times, since a machine warms up and others use it: of each the median of its seconds,
    and from the least to the greatest ratio of a turn.
    """
    base, training = "as it is", experiment.training
    others = {base: experiment}
    for changes in ALTERNATIVES:
        is_special = training.precision not in ("float32", "tf32", "bf16") and "precision" in changes
        if is_special or all(getattr(training, key) == value for key, value in changes.items()):
            continue
        name = " ".join(f"{key}={str(value).lower()}" for key, value in changes.items())
        others[name] = replace(experiment, training=training.model_copy(update=changes))
    part, times, failures = _without_validation(split), {name: list[float]() for name in others}, dict[str, str]()
    for _ in range(ROUNDS):
        for name in [name for name in others if name not in failures]:
            try:
                times[name].append(_seconds(others[name], store, part, STEPS) / STEPS)
            except (InputError, OutOfMemory, TrainingFailed) as error:
                if name == base:
                    raise
                failures[name] = f"failed: {error}"
    before = times.pop(base)
    facts = {base: f"{statistics.median(before):.4f}"}
    for name, seconds in times.items():
        ratios = sorted(one / max(other, 1e-9) for one, other in zip(before, seconds, strict=False))
        facts[name] = failures.get(name) or f"{statistics.median(seconds):.4f}, {_faster(ratios[0], ratios[-1])}"
    return facts


def _faster(low: float, high: float) -> str:
    ratios = f"{low:.2f} to {high:.2f} times as fast in {ROUNDS} timings"
    return f"no difference seen: {ratios}" if low <= 1 <= high else ratios


def _count(workers: int | Workers) -> int | str:
    return workers if isinstance(workers, int) else str(workers)


def _without_validation(split: Split) -> Split:
    return replace(split, validation=split.validation[:0])


def _seconds(experiment: Experiment, store: Store, split: Split, steps: int, memory: PeakMemory | None = None) -> float:
    """Of so many steps and a validation, after as many that warm up."""
    threads = min(experiment.training.threads, cpus())  # a cluster node may have more CPUs than this machine
    changes = {"validate_every": f"{steps} steps", "epochs": 2 * STEPS, "threads": threads}
    validations = fit(replace(experiment, training=experiment.training.model_copy(update=changes)), store, split)
    with freed_memory_kept(choose_device(experiment.training.device).type):  # as in a trial
        with memory or contextlib.nullcontext():
            next(validations)
        return next(validations).seconds
