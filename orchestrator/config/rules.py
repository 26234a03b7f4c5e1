"""Which parts of a search are incompatible."""

import math

from orchestrator.config.search import COSTS, Search
from orchestrator.config.space import MOST_POINTS
from orchestrator.config.training import Training
from orchestrator.errors import InputError, Problems


def check_search(search: Search) -> None:
    """InputError listing everything that is incompatible."""
    problems = Problems()
    for check in (_check_space, _check_algorithm, _check_scheduler, _check_selection, _check_final, _check_workers):
        with problems.noted():
            check(search)
    problems.tell()


def _check_space(search: Search) -> None:
    space = search.space
    if not any(space.parameters()):
        raise InputError(f"{search.source}: space: it is empty; give at least one setting a range or choices")
    if search.algorithm == "grid":
        for parameter in space.parameters():
            if parameter.count() == math.inf:
                raise InputError(
                    f"{search.source}: space.{parameter.key}: a grid needs choices or a step, not a continuous range"
                )
        if (size := space.size()) > MOST_POINTS:
            raise InputError(
                f"{search.source}: space: a grid of {size:.3g} points: at most {MOST_POINTS:,} can be tried; give its "
                "ranges larger steps"
            )
    elif len(space.alternatives) > 1:
        raise InputError(f"{search.source}: space: a list of spaces (their union) is for algorithm: grid only")
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
            raise InputError(
                f"{search.source}: space.selection: what is selected on cannot be searched; fix it in settings"
            )
    selection = search.settings.get("selection", Training.model_fields["selection"].default)
    if selection == "test" and any(parameter.key == "validation_share" for parameter in space.parameters()):
        raise InputError(
            f"{search.source}: space.validation_share: nothing is held out with selection: test; leave it out"
        )
    share = search.settings.get("validation_share", Training.model_fields["validation_share"].default)
    if not share and selection == "validation":
        raise InputError(f"{search.source}: validation_share: 0 leaves a search nothing to select on; give 0.3, say")


def _check_final(search: Search) -> None:
    if search.num_trials is not None and search.final_trials > search.num_trials:
        raise InputError(
            f"{search.source}: final_trials: {search.final_trials}: there are {search.num_trials} trials only"
        )
    space = search.space
    first = search.example().training
    if first.seed + search.final_seeds > 2**31:
        raise InputError(f"{search.source}: final_seeds: {search.final_seeds} seeds from {first.seed} on pass 2^31 - 1")
    searched = {parameter.key for parameter in space.parameters()}
    if search.final_protocol == "conventional" and (first.protocol != "mlrc" or "protocol" in searched):
        raise InputError(
            f"{search.source}: final_protocol: conventional: confirms trials over folds: set protocol: mlrc too"
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
    several = search.second_objective is not None
    if search.algorithm in ("gp", "cmaes", "nsga2", "qmc"):
        for parameter in parameters:
            if any(parameter.branches.values()):
                raise InputError(
                    f"{where}: cannot search choices that open a space of their own (space.{parameter.key}): "
                    "take tpe, random or grid"
                )
    if search.algorithm == "cmaes":
        for parameter in parameters:
            if parameter.kind == "categorical":
                raise InputError(
                    f"{where}: searches ranges only, space.{parameter.key} has choices: give it low and high, or take "
                    "tpe, gp or qmc"
                )
        if sum(parameter.low < parameter.high for parameter in parameters) < 2:
            raise InputError(f"{where}: needs two ranges or more: take tpe or gp")
    if search.algorithm in ("gp", "cmaes") and several:
        raise InputError(f"{where}: has one objective only: take nsga2, tpe, qmc, random or grid")
    if search.algorithm == "nsga2" and not several:
        raise InputError(f"{where}: is for two objectives (objectives: [...]): take tpe, gp or cmaes for one")
    if search.objective.metric in COSTS:
        raise InputError(
            f"{search.source}: objective: {search.objective.metric}: a cost can be the second of two objectives only"
        )


def _check_scheduler(search: Search) -> None:
    """Check whether trials can be stopped early as asked."""
    where = f"{search.source}: scheduler: {search.scheduler.name}"
    if search.scheduler.name != "none" and search.second_objective is not None:
        raise InputError(
            f"{where}: not with two objectives: which of two curves is the better one is not defined; give none"
        )
    if search.scheduler.name != "hyperband":
        return
    if search.max_validations is None:
        raise InputError(f"{where}: max_validations: how many validations has a whole trial? (asha need not know)")
    if search.brackets < 2:
        raise InputError(
            f"{where}: {search.max_validations} validations make one bracket only: lower grace_validations or "
            "reduction_factor, validate more often, or take asha"
        )
