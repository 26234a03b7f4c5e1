"""Which parts of a search are incompatible."""

import math
from dataclasses import replace

from orchestrator.config.algorithms import ALGORITHMS
from orchestrator.config.schedule import SCHEDULABLE
from orchestrator.config.schedulers import SCHEDULERS
from orchestrator.config.schedulers.population import changeable
from orchestrator.config.search import Search
from orchestrator.config.space import MAX_POINTS
from orchestrator.config.training import Training
from orchestrator.config.workers import in_group, most
from orchestrator.errors import InputError, Problems
from orchestrator.plugins import find_installed
from orchestrator.problems import NO_VALUE, Bare, File, Inner, Problem, Step
from orchestrator.storage.costs import COSTS, violation_text
from orchestrator.storage.events import named_settings
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import join_names

MAX_ROUNDS = 15
"""Of further seeds of leading points, whose number doubles with each round."""


def check_search(search: Search) -> None:
    """InputError listing everything that is incompatible."""
    problems = Problems()
    checks = (
        _check_seeds,
        _check_space,
        _check_algorithm,
        _check_constraints,
        _check_scheduler,
        _check_selection,
        _check_final,
        _check_workers,
    )
    for check in checks:
        with problems.collect():
            check(search)
    problems.tell()


def _check_seeds(search: Search) -> None:
    """Check what trains points over several seeds: all of a grid, else the leading ones."""
    if search.seeds == 1:
        return
    at = _at(search, "seeds", value=search.seeds)
    if "seed" in named_settings(search.raw_space):
        raise InputError(replace(at, rule="the space has seed too; keep one"))
    if search.second_objective is not None:
        raise InputError(replace(at, rule="points are compared by the mean of one objective: give one"))
    if search.each_seed[-1] >= 2**31:
        raise InputError(replace(at, rule=f"from {search.each_seed[0]} on exceed 2^31 - 1"))
    if search.exhaustive:
        if search.scheduler.orders_trials:
            rule = "would stop the seeds that do poorly, and so raise the mean of a point: give none"
            raise InputError(replace(at, rule=f"scheduler: {search.scheduler.name}: {rule}"))
        return
    if search.seeds > MAX_ROUNDS + 1:
        rule = f"takes twice as many leading points with each seed: at most {MAX_ROUNDS + 1}"
        raise InputError(replace(at, rule=rule))
    least = search.rounds[0] + sum(search.rounds)
    need = f"the best {search.rounds[0]} points get a second seed, so that {sum(search.rounds)} trials are repeats"
    if search.num_trials is not None and search.num_trials < least:
        rule = f"{need}: give num_trials at least {least}, or fewer seeds"
        raise InputError(replace(at, rule=rule))
    epochs = search.budget.epochs
    if epochs is not None and epochs < least * search.most_epochs:
        rule = f"{need}: give the budget at least {least * search.most_epochs} epochs, or fewer seeds"
        raise InputError(replace(at, rule=rule))


def _check_space(search: Search) -> None:
    space = search.space
    if not any(space.parameters()):
        rule = "it is empty; give at least one setting a range or choices"
        raise InputError(_at(search, "space", rule=rule))
    if search.exhaustive:
        for parameter in space.parameters():
            if parameter.count() == math.inf:
                auto = ", which `auto` takes for a union of spaces," if search.auto else ""
                rule = f"a grid{auto} needs choices or a step, not a continuous range"
                raise InputError(_at(search, "space", Inner(parameter.key), rule=rule))
        if (size := space.size()) > MAX_POINTS:
            rule = f"a grid of {size:.3g} points: at most {MAX_POINTS:,} can be tried; give its ranges larger steps"
            raise InputError(_at(search, "space", rule=rule))
    elif len(space.alternatives) > 1:
        rule = f"a list of spaces (their union) is for algorithm: {_those('exhaustive')} only"
        raise InputError(_at(search, "space", rule=rule))
    elif search.num_trials is None and not search.budget.limits():
        rule = "this key is required, or a budget: only a grid needs neither"
        raise InputError(_at(search, "num_trials", rule=rule))
    if search.budget.epochs is not None and search.budget.epochs < search.most_epochs:
        rule = f"one trial takes {search.most_epochs} alone"
        raise InputError(_at(search, "budget", Inner("epochs"), value=search.budget.epochs, rule=rule))


def _check_selection(search: Search) -> None:
    space = search.space
    for parameter in space.parameters():
        if parameter.key == "selection":
            rule = "selection cannot be searched; fix it in settings"
            raise InputError(_at(search, "space", Inner("selection"), rule=rule))
    selection = search.settings.get("selection", Training.model_fields["selection"].default)
    if selection == "test" and any(parameter.key == "validation_share" for parameter in space.parameters()):
        rule = "nothing is held out with selection: test; leave it out"
        raise InputError(_at(search, "space", Inner("validation_share"), rule=rule))
    share = search.settings.get("validation_share", Training.model_fields["validation_share"].default)
    if not share and selection == "validation":
        rule = "leaves a search nothing to select on; try 0.3"
        raise InputError(replace(_at(search, "validation_share", value=0, rule=rule), begins_rule=True))


def _check_final(search: Search) -> None:
    if search.num_trials is not None and search.final_trials > search.num_trials:
        rule = f"there are {search.num_trials} trials in all"
        raise InputError(_at(search, "final_trials", value=search.final_trials, rule=rule))
    space = search.space
    first = search.example().training
    if first.seed + search.final_seeds > 2**31:
        rule = f"{search.final_seeds} seeds from {first.seed} on exceed 2^31 - 1"
        raise InputError(_at(search, "final_seeds", rule=rule))
    searched = {parameter.key for parameter in space.parameters()}
    if search.final_protocol == "conventional" and (first.protocol != "mlrc" or "protocol" in searched):
        rule = "is for searches over folds: set protocol: mlrc too"
        raise InputError(_at(search, "final_protocol", value=Bare("conventional"), rule=rule))


def _check_workers(search: Search) -> None:
    if search.gpus_per_trial not in (None, 1) and in_group(search.workers):
        rule = "workers that train together take a whole GPU each; leave it out, or give workers: 1"
        raise InputError(_at(search, "gpus_per_trial", value=Bare(f"{search.gpus_per_trial:g}"), rule=rule))
    batch = search.example().training.batch_size
    for key, workers in (("workers", search.workers), ("final_workers", search.workers_of_final)):
        if batch < most(workers):
            rule = f"{most(workers)} workers cannot share the global batch of {batch} images"
            advice = " (classes_per_batch x images_per_class): take fewer"
            raise InputError(replace(_at(search, key, rule=rule), advice=advice))


def _check_algorithm(search: Search) -> None:
    """Check which algorithm can do what."""
    at, parameters = _at(search, "algorithm", value=Bare(search.algorithm)), search.parameters()
    algorithm, objectives = ALGORITHMS[search.algorithm], len(search.goals)
    if (opening := search.opening()) and not algorithm.conditional:
        rule = f"cannot search choices that open a space of their own (space.{opening[0]})"
        raise InputError(replace(at, rule=rule, advice=f": take {_those('conditional')}"))
    if (problem := algorithm.problem(parameters)) is not None:
        raise InputError(replace(at, rule=problem))
    if objectives not in algorithm.objectives:
        others = join_names([other.name for other in ALGORITHMS.values() if objectives in other.objectives])
        what = "has one objective only" if objectives > 1 else "is for two objectives (objectives: [...])"
        raise InputError(replace(at, rule=what, advice=f": take {others}{'' if objectives > 1 else ' for one'}"))
    if search.objective.metric in COSTS:
        rule = "a cost can only be the second of two objectives"
        raise InputError(_at(search, "objective", value=Bare(search.objective.metric), rule=rule))


def _check_constraints(search: Search) -> None:
    """Check that some point may hold to the limits that are known from the settings."""
    searched = [p for p in search.parameters() if p.key == "embedding_dim"]
    sizes = [int(end) for p in searched for end in (p.choices or [p.low])]
    least = TrialRecord("", 0, "trial", {}, 0)
    least.settings["embedding_dim"] = min(sizes or [search.example().training.embedding_dim])
    for name, limit in search.constraints.items():
        if COSTS[name].since == "settings" and (text := violation_text(least, {name: limit})):
            raise InputError(_at(search, "constraints", rule=f"no point can hold to it: {text}"))


def _check_scheduler(search: Search) -> None:
    """Check whether trials can be stopped early as asked."""
    at = _at(search, "scheduler", value=Bare(search.scheduler.name))
    if search.scheduler.orders_trials and search.second_objective is not None and not search.scheduler.by_fronts:
        others = join_names([kind.name for kind in SCHEDULERS.values() if kind.by_fronts or not kind.orders_trials])
        rule = f"compares trials by one objective, and this search has two; give {others}"
        raise InputError(replace(at, rule=rule))
    if search.scheduler.promotes and in_group(search.workers):
        auto = " (`auto` took it)" if search.auto_stops else ""
        rule = f"trials that train on several workers cannot wait{auto}; give workers: 1, or take asha"
        raise InputError(replace(at, rule=rule))
    if search.scheduler.copies:
        _check_copies(search)
    if (problem := search.scheduler.problem(search.max_validations)) is not None:
        raise InputError(replace(at, rule=problem))


def _check_copies(search: Search) -> None:
    """Check that trials can be copied: all of them train to the end, and something changes."""
    keys = {key for key, value in search.settings.items() if value is not None} | {*named_settings(search.raw_space)}
    if "schedule" in keys:
        rule = f"is what scheduler: {search.scheduler.name} finds: leave it out"
        raise InputError(replace(_at(search, "schedule", rule=rule), begins_rule=True))
    size, at = search.space.size(), _at(search, "scheduler", value=Bare(search.scheduler.name))
    trials = search.num_trials or size
    if not 2 <= trials < math.inf:
        raise InputError(replace(at, rule="num_trials is the size of the population: give at least 2"))
    if trials > size:
        rule = f"is the size of the population, and the space has {size:g} points: give fewer"
        raise InputError(_at(search, "num_trials", value=search.num_trials, rule=rule))
    if search.seeds > 1:
        rule = "copies are compared with one seed: leave it out; final_seeds trains the best with others"
        raise InputError(_at(search, "seeds", value=search.seeds, rule=rule))
    if "stop_patience" in keys:
        raise InputError(_at(search, "stop_patience", rule="would leave the population smaller: leave it out"))
    if others := sorted(search.budget.limits().keys() - {"epochs"}):
        rule = "would end a population between two comparisons: leave it out, or give epochs"
        raise InputError(_at(search, "budget", Inner(others[0]), rule=rule))
    if search.most_epochs <= (search.budget.epochs or 0) < (need := trials * search.most_epochs):
        rule = f"{trials:g} trials train to their end: give at least {need:g}, or fewer trials"
        raise InputError(_at(search, "budget", Inner("epochs"), value=search.budget.epochs, rule=rule))
    schedulable = {*SCHEDULABLE}.union(*(find_installed(method).fields.schedulable for method in search.methods))
    if not changeable(search.parameters(), schedulable):
        rule = f"needs a range of {join_names(sorted(schedulable))}, which alone may change while a training runs"
        raise InputError(replace(at, rule=rule))


def _at(search: Search, *keys: Step, value: object = NO_VALUE, rule: str = "") -> Problem:
    """A problem of a key of the search's file."""
    return Problem((File(search.source), *keys), value, rule)


def _those(attribute: str) -> str:
    """The algorithms with this attribute: `tpe, random or grid`."""
    return join_names([algorithm.name for algorithm in ALGORITHMS.values() if getattr(algorithm, attribute)])
