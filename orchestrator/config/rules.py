"""Which parts of a search are incompatible."""

import math

from orchestrator.config.algorithms import ALGORITHMS
from orchestrator.config.search import Search
from orchestrator.config.space import MAX_POINTS
from orchestrator.config.training import Training
from orchestrator.errors import InputError, Problems
from orchestrator.storage.events import named_settings
from orchestrator.storage.ledger import COSTS
from orchestrator.text import listed


def check_search(search: Search) -> None:
    """InputError listing everything that is incompatible."""
    problems = Problems()
    checks = (
        _check_seeds,
        _check_space,
        _check_algorithm,
        _check_scheduler,
        _check_selection,
        _check_final,
        _check_workers,
    )
    for check in checks:
        with problems.noted():
            check(search)
    problems.tell()


def _check_seeds(search: Search) -> None:
    """Check what trains each point over several seeds."""
    if search.seeds == 1:
        return
    where = f"{search.source}: seeds: {search.seeds}"
    if not search.exhaustive:
        raise InputError(
            f"{where}: trains each point of a grid over seeds, and the algorithm is {search.algorithm}: take "
            f"{_those('exhaustive')}, or give final_seeds for the best trial alone"
        )
    if "seed" in named_settings(search.raw_space):
        raise InputError(f"{where}: the space has seed too; keep one")
    if search.second_objective is not None:
        raise InputError(f"{where}: points are compared by the mean of one objective: give one")
    if search.scheduler.orders_trials:
        raise InputError(
            f"{where}: scheduler: {search.scheduler.name}: would stop the seeds that do poorly, and so raise "
            "the mean of a point: give none"
        )
    if search.each_seed[-1] >= 2**31:
        raise InputError(f"{where}: from {search.each_seed[0]} on exceed 2^31 - 1")


def _check_space(search: Search) -> None:
    space = search.space
    if not any(space.parameters()):
        raise InputError(f"{search.source}: space: it is empty; give at least one setting a range or choices")
    if search.exhaustive:
        for parameter in space.parameters():
            if parameter.count() == math.inf:
                raise InputError(
                    f"{search.source}: space.{parameter.key}: a grid needs choices or a step, not a continuous range"
                )
        if (size := space.size()) > MAX_POINTS:
            raise InputError(
                f"{search.source}: space: a grid of {size:.3g} points: at most {MAX_POINTS:,} can be tried; give its "
                "ranges larger steps"
            )
    elif len(space.alternatives) > 1:
        raise InputError(
            f"{search.source}: space: a list of spaces (their union) is for algorithm: {_those('exhaustive')} only"
        )
    elif search.num_trials is None and not search.budget.limits():
        raise InputError(
            f"{search.source}: num_trials: this key is required for algorithm: {search.algorithm} (or a budget)"
        )
    if search.budget.epochs is not None and search.budget.epochs < search.most_epochs:
        raise InputError(
            f"{search.source}: budget.epochs: {search.budget.epochs}: one trial takes {search.most_epochs} alone"
        )


def _check_selection(search: Search) -> None:
    space = search.space
    for parameter in space.parameters():
        if parameter.key == "selection":
            raise InputError(f"{search.source}: space.selection: selection cannot be searched; fix it in settings")
    selection = search.settings.get("selection", Training.model_fields["selection"].default)
    if selection == "test" and any(parameter.key == "validation_share" for parameter in space.parameters()):
        raise InputError(
            f"{search.source}: space.validation_share: nothing is held out with selection: test; leave it out"
        )
    share = search.settings.get("validation_share", Training.model_fields["validation_share"].default)
    if not share and selection == "validation":
        raise InputError(f"{search.source}: validation_share: 0 leaves a search nothing to select on; try 0.3")


def _check_final(search: Search) -> None:
    if search.num_trials is not None and search.final_trials > search.num_trials:
        raise InputError(
            f"{search.source}: final_trials: {search.final_trials}: there are {search.num_trials} trials in all"
        )
    space = search.space
    first = search.example().training
    if first.seed + search.final_seeds > 2**31:
        raise InputError(
            f"{search.source}: final_seeds: {search.final_seeds} seeds from {first.seed} on exceed 2^31 - 1"
        )
    searched = {parameter.key for parameter in space.parameters()}
    if search.final_protocol == "conventional" and (first.protocol != "mlrc" or "protocol" in searched):
        raise InputError(
            f"{search.source}: final_protocol: conventional: is for searches over folds: set protocol: mlrc too"
        )


def _check_workers(search: Search) -> None:
    if search.gpus_per_trial not in (None, 1) and search.workers > 1:
        raise InputError(
            f"{search.source}: gpus_per_trial: {search.gpus_per_trial:g}: workers that train together take a whole GPU "
            "each; leave it out, or give workers: 1"
        )
    batch = search.example().training.batch_size
    for key, workers in (("workers", search.workers), ("final_workers", search.workers_of_final)):
        if batch % workers:
            raise InputError(
                f"{search.source}: {key}: {workers} workers cannot share the global batch of {batch} images evenly "
                "(classes_per_batch x images_per_class): make it a multiple"
            )


def _check_algorithm(search: Search) -> None:
    """Check which algorithm can do what."""
    where, parameters = f"{search.source}: algorithm: {search.algorithm}", search.parameters()
    algorithm, objectives = ALGORITHMS[search.algorithm], len(search.goals)
    opening = [parameter.key for parameter in parameters if any(parameter.branches.values())]
    if opening and not algorithm.conditional:
        raise InputError(
            f"{where}: cannot search choices that open a space of their own (space.{opening[0]}): "
            f"take {_those('conditional')}"
        )
    if (problem := algorithm.problem(parameters)) is not None:
        raise InputError(f"{where}: {problem}")
    if objectives not in algorithm.objectives:
        others = listed([other.name for other in ALGORITHMS.values() if objectives in other.objectives])
        what = "has one objective only" if objectives > 1 else "is for two objectives (objectives: [...])"
        raise InputError(f"{where}: {what}: take {others}{'' if objectives > 1 else ' for one'}")
    if search.objective.metric in COSTS:
        raise InputError(
            f"{search.source}: objective: {search.objective.metric}: a cost can only be the second of two objectives"
        )


def _check_scheduler(search: Search) -> None:
    """Check whether trials can be stopped early as asked."""
    where = f"{search.source}: scheduler: {search.scheduler.name}"
    if search.scheduler.orders_trials and search.second_objective is not None:
        raise InputError(
            f"{where}: not with two objectives, as it is not defined which of two curves is better; give none"
        )
    if (problem := search.scheduler.problem(search.max_validations)) is not None:
        raise InputError(f"{where}: {problem}")


def _those(attribute: str) -> str:
    """The algorithms with this attribute: `tpe, random or grid`."""
    return listed([algorithm.name for algorithm in ALGORITHMS.values() if getattr(algorithm, attribute)])
