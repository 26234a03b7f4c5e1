"""A search file, its preset and the command line's options -> one search."""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from orchestrator.config.algorithms import ALGORITHMS
from orchestrator.config.algorithms.auto import with_choices
from orchestrator.config.algorithms.grid import Grid
from orchestrator.config.algorithms.hub import is_hub_name
from orchestrator.config.algorithms.tpe import Tpe
from orchestrator.config.files import Document
from orchestrator.config.frozen import varying_setting
from orchestrator.config.given_points import FindSettings, expected_points, starting_points
from orchestrator.config.limits import AUTO
from orchestrator.config.presets import Preset
from orchestrator.config.rules import check_search
from orchestrator.config.schedule import late_changes
from orchestrator.config.schedulers import parse_scheduler
from orchestrator.config.search import (
    EXPECTED,
    FILE_KEYS,
    Budget,
    Objective,
    Search,
    chosen_by,
    wrong_key,
)
from orchestrator.config.space import parse_space
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.contract import MethodConfig
from orchestrator.errors import InputError, Problems
from orchestrator.evaluation.measures import is_minimised
from orchestrator.plugins import find_installed
from orchestrator.problems import (
    RANGE,
    SET,
    Bare,
    File,
    KeyPath,
    Operand,
    Option,
    Problem,
    complaints,
    suggestion,
    unknown,
)
from orchestrator.storage.costs import COSTS, check_limited
from orchestrator.storage.events import named_settings
from orchestrator.storage.places import check_name
from orchestrator.text import format_assignments


def _sound(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are valid by themselves, with a method that exists."""
    sound = {"method": settings["method"]}
    for key, value in settings.items():
        try:
            resolve_experiment(sound | {key: value}, "")
        except InputError:
            continue
        sound[key] = value
    return sound


def _valid_settings(settings: Mapping[str, Any], where: KeyPath, problems: Problems) -> dict[str, Any]:
    """The settings, resolved once; where some are wrong, which is noted, those that are valid by themselves."""
    before = len(problems.found)
    with problems.collect():
        resolve_experiment(settings, where)
    if len(problems.found) > before:
        return _sound(settings)
    return {"method": settings["method"], **settings}


Section = TypeVar("Section", bound=BaseModel)


def resolve_search(
    raw: Mapping[str, Any],
    *,
    name: str,
    source: str,
    preset: Preset | None = None,
    overrides: Mapping[str, Any] | None = None,
    find_settings: FindSettings | None = None,
    find_expected: FindSettings | None = None,
    ranges: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Search:
    """A search from a file's content. `preset` overrides the file's settings, but what the space searches stays
    searched; `overrides` (of `--set`) fix settings, also searched ones; `ranges` (of `--range`) are searched instead of
    what the file has for these settings; `changes` replace top-level keys
    (`num_trials`, `seed`, `dataset`, ...) where not None, `budget` key by key; messages name them by their options.
    `find_settings` returns the settings that a name in `start_from` stands for, `find_expected` those of one in
    `learn_from`."""
    changes = {key: value for key, value in changes.items() if value is not None}
    if ranges:
        raw = with_ranges(raw, ranges, overrides or {})
    try:
        return _resolve(raw, name, source, preset, dict(overrides or {}), find_settings, find_expected, changes)
    except InputError as error:
        problems = [_place_problem(problem, raw, changes) for problem in error.details]
        raise InputError(*sorted(problems, key=lambda problem: problem.line or sys.maxsize)) from None


def with_ranges(raw: Mapping[str, Any], ranges: Mapping[str, Any], overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """A file's content with other ranges or choices: in place of the file's, wherever its space has the setting; one
    that it does not search is added."""
    if both := [key for key in ranges if key in overrides]:
        rule = ("is fixed by ", SET, " too; keep one")
        raise InputError(*(Problem((RANGE, Operand(key)), rule=rule) for key in both))
    fixed = raw.get("settings", {})
    settings = {**(fixed if isinstance(fixed, dict) else {}), **{key: raw[key] for key in ("method",) if key in raw}}
    settings |= {key: overrides[key] for key in ("method",) if key in overrides}
    problems = Problems()
    for key, value in ranges.items():
        with problems.collect():
            parse_space({key: value}, RANGE, {name: one for name, one in settings.items() if name != key})
    problems.tell()
    space, missing = raw.get("space"), set(ranges)

    def replace_part(part: Any) -> Any:
        if isinstance(part, list):
            return [replace_part(inner) for inner in part]
        if not isinstance(part, dict):
            return part
        missing.difference_update(part)
        return {key: ranges[key] if key in ranges else replace_part(inner) for key, inner in part.items()}

    space = replace_part(space)
    if missing and isinstance(space, list):
        why = "the file's list of spaces does not search it"
        raise InputError(*(Problem((RANGE, Operand(key)), rule=why) for key in sorted(missing)))
    if missing:
        space = {**(space or {}), **{key: value for key, value in ranges.items() if key in missing}}
    remaining = {key: value for key, value in fixed.items() if key not in ranges} if isinstance(fixed, dict) else fixed
    return Document({**raw, "settings": remaining, "space": space}, raw.lines if isinstance(raw, Document) else {})


def _place_problem(problem: Problem, raw: Mapping[str, Any], changes: Mapping[str, Any]) -> Problem:
    """A problem of the file, with its line, or with the option that gave the value instead."""
    file, *keys = problem.path or ("",)
    if not isinstance(file, File) or not keys:
        return problem
    if keys[0] in changes and not any(isinstance(key, int) for key in keys[1:2]):
        return replace(problem, path=(Option(str(keys[0])), *map(str, keys[1:2]), *keys[2:]))
    return replace(problem, line=raw.line(tuple(keys)) if isinstance(raw, Document) else None)


def _resolve(
    raw: Mapping[str, Any],
    name: str,
    source: str,
    preset: Preset | None,
    overrides: dict[str, Any],
    find_settings: FindSettings | None,
    find_expected: FindSettings | None,
    changes: dict[str, Any],
) -> Search:
    problems = Problems()
    with problems.collect():
        check_name(name)
    wrong = {key: why for key, value in raw.items() if (why := wrong_key(key, value)) is not None}
    file = File(source)
    problems.found += [problem.under(file) for problem in wrong.values()]
    raw = {key: value for key, value in raw.items() if key not in wrong}
    changed = {key: why for key, value in changes.items() if (why := wrong_key(key, value)) is not None}
    problems.found += [problem.under(file) for problem in changed.values()]
    changes = {key: value for key, value in changes.items() if key not in changed}
    merged = raw | changes
    settings = dict(raw.get("settings", {})) | {key: raw[key] for key in ("method", "dataset") if key in raw}
    if preset is not None:
        settings, merged["space"] = _with_preset(preset, settings, raw.get("space"), overrides, source)
    settings |= {key: changes[key] for key in ("method", "dataset") if key in changes}
    seed = merged.get("seed")
    if isinstance(seed, int) and 0 <= seed < 2**31 and ("seed" in changes or "seed" not in settings):
        settings["seed"] = seed  # an invalid one is reported as the search's own
    raw_space = merged.get("space")
    if raw_space is None and "space" not in wrong:
        problems.found.append(Problem((file, "space"), rule="this key is required: what should be searched?"))
    if isinstance(raw_space, list):
        raw_space = [_without(alternative, overrides) for alternative in raw_space]
    else:
        raw_space = _without(raw_space, overrides)
    overridden = overrides.keys()
    method = overrides.get("method", settings.get("method"))
    method_is_known = method is None and "method" not in wrong
    if method is not None:
        before = len(problems.found)
        with problems.collect():
            resolve_experiment({"method": method}, SET if "method" in overrides else (file, "settings"))
        method_is_known = len(problems.found) == before
    if method is not None and method_is_known:
        alone = not overrides.keys() - {"method"}  # it is resolved above
        fixed = {"method": method, **overrides}
        overrides = fixed if alone else _valid_settings(fixed, (SET,), problems)
        settings = {
            key: value for key, value in settings.items() if key in overrides or key not in overridden
        } | overrides
        settings = _valid_settings(settings, (file, "settings"), problems)
    else:
        settings |= overrides
    with problems.collect():
        _refuse_fixed_and_named_settings(raw_space, settings, source)
    space = None
    if method_is_known and raw_space is not None:
        with problems.collect():
            space = parse_space(raw_space, (file, "space"), settings)
    sections: dict[str, Any] = {}
    with problems.collect():
        goals = _goals(merged, file)
        sections |= {"objective": goals[0], "second_objective": goals[1] if len(goals) > 1 else None}
        settings = _by_objective(settings, raw_space, goals[0], preset, overrides, source)
    with problems.collect():
        sections["budget"] = _budget(raw.get("budget", {}), changes.get("budget"), file)
    with problems.collect():
        sections["constraints"] = _constraints(raw.get("constraints", {}), changes.get("constraints", {}), file)
    auto = merged.get("algorithm", AUTO) == AUTO
    auto_stops = merged.get("scheduler", AUTO if auto else None) in (AUTO, {"name": AUTO})
    with problems.collect():
        sections["scheduler"] = parse_scheduler({} if auto_stops else merged.get("scheduler", {}), (file, "scheduler"))
    kinds = {key: Search.model_fields[key].annotation for key in FILE_KEYS.keys() & Search.model_fields.keys()}
    words = {key: get_args(kind) for key, kind in kinds.items() if get_origin(kind) is Literal}
    algorithms = (AUTO, *ALGORITHMS, *filter(is_hub_name, [merged.get("algorithm")]))
    for key, choices in {"algorithm": algorithms, **words}.items():
        if key in merged and merged[key] not in choices:
            problems.found.append(unknown(merged.pop(key), choices).under((file, key)))
    plain = FILE_KEYS.keys() & Search.model_fields.keys() - {
        "budget",
        "constraints",
        "scheduler",
        "objective",
        "settings",
        "start_from",
        "learn_from",
    }
    sections |= {key: merged[key] for key in plain - ({"algorithm"} if auto else set()) if key in merged}
    sections |= {"settings": settings, "raw_space": raw_space, "preset": None if preset is None else preset.name}
    try:
        search = Search(name=name, source=source, **sections)
    except ValidationError as error:
        problems.found += [problem.under(file) for problem in complaints(error)]
    problems.tell()
    if space is not None:
        search.take_space(space)
        if auto or auto_stops:
            search = with_choices(search, algorithm=auto, scheduler=auto_stops)
            search.take_space(space)
    check_search(search)
    points = starting_points(search, merged.get("start_from", []), find_settings)
    expected = expected_points(search, merged.get("learn_from", []), find_expected)
    return search.model_copy(update={"start_from": points, "learn_from": expected})


def with_other_workers(search: Search, workers: int | None, max_concurrent: int | None) -> Search:
    """The same search with this many workers per trial and concurrent trials, where not None. InputError if the workers
    cannot share its batch."""
    config = search.model_dump() | {
        "workers": search.workers if workers is None else workers,
        "max_concurrent": search.max_concurrent if max_concurrent is None else max_concurrent,
    }
    changed = Search.model_validate(config)
    check_search(changed)
    return changed


def with_more_budget(search: Search, num_trials: int | None, budget: Mapping[str, Any]) -> Search:
    """The same search with another number of trials (where not None) and other limits; a limit of None is lifted."""
    if search.test_trials:
        raise InputError(f"'{search.name}' is a training, not a search: it has no budget to raise")
    if search.scheduler.copies and num_trials not in (None, search.num_trials):
        rule = f"a population keeps its size, here {search.num_trials}: begin another search"
        raise InputError(Problem((Option("num_trials"),), Bare(num_trials), rule))
    config = search.model_dump()
    config["num_trials"] = search.num_trials if num_trials is None else num_trials
    config["budget"] = _budget(config["budget"], budget, Option("budget")).model_dump()
    raised = Search.model_validate(config)
    check_search(raised)
    return raised


def with_final_runs(search: Search, final_trials: int | None, final_seeds: int | None) -> Search:
    """The same search with final runs of so many trials over so many seeds (where not None)."""
    if search.test_trials:
        raise InputError(
            f"'{search.name}' is a training, not a search: repeat it with orchestrator train ... --repeats N"
        )
    config = search.model_dump() | {
        "final": True,
        "final_trials": search.final_trials if final_trials is None else final_trials,
        "final_seeds": search.final_seeds if final_seeds is None else final_seeds,
    }
    changed = Search.model_validate(config)
    check_search(changed)
    return changed


def _goals(merged: Mapping[str, Any], file: File) -> list[Objective]:
    if "objectives" not in merged:
        return [_objective(merged.get("objective", {}), (file, "objective"))]
    if "objective" in merged:
        raise InputError(Problem((file, "objective"), rule="objectives is given too; keep one"))
    objectives, where = merged["objectives"], (file, "objectives")
    if len(objectives) != 2:
        raise InputError(Problem(where, rule=f"{len(objectives)} given; two are needed (for one, use objective)"))
    goals = [_objective(goal, (*where, place)) for place, goal in enumerate(objectives)]
    if goals[0].metric == goals[1].metric:
        raise InputError(Problem(where, rule=f"{goals[0].metric} is named twice"))
    return goals


def _objective(value: Any, where: KeyPath) -> Objective:
    """Losses, costs and metrics of which less is better are minimised unless the mode is given."""
    if not isinstance(value, str | dict):
        raise InputError(Problem(where, value, f"should be {EXPECTED[(str, dict)]}", begins_rule=True))
    fields = {"metric": value} if isinstance(value, str) else dict(value)
    metric = fields.get("metric")
    if metric in ("train/loss", *COSTS) or (isinstance(metric, str) and is_minimised(metric)):
        fields.setdefault("mode", "min")
    return _section(Objective, "metric", fields, where)


def _budget(raw_budget: Mapping[str, Any], changes: Mapping[str, Any] | None, file: File | Option) -> Budget:
    problems = Problems()
    for limits, where in ((raw_budget, (file, "budget")), (changes or {}, (Option("budget"),))):
        unknown = {key: suggestion(key, Budget.model_fields) for key in limits if key not in Budget.model_fields}
        rule = "no such limit"
        problems.found += [Problem((*where, str(key)), rule=rule, suggestion=hint) for key, hint in unknown.items()]
        try:
            Budget(**{key: limit for key, limit in limits.items() if key not in unknown})
        except ValidationError as error:
            problems.found += [problem.under(where) for problem in complaints(error)]
    problems.tell()
    return Budget(**{**raw_budget, **(changes or {})})


def _constraints(raw: Mapping[str, Any], changes: Mapping[str, Any], file: File) -> dict[str, float]:
    problems = Problems()
    for limits, where in ((raw, (file, "constraints")), (changes, (Option("constraints"),))):
        for name, limit in limits.items():
            at = (*where, str(name))
            try:
                check_limited(str(name))
            except InputError as error:
                problems.found += [problem.under(at) for problem in error.details]
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < math.inf:
                problems.found.append(Problem(at, limit, "should be a number above 0"))
    problems.tell()
    return {str(name): float(limit) for name, limit in {**raw, **changes}.items()}


def idle_settings(search: Search) -> list[str]:
    """A line for each of the method's settings that is given or searched but has no effect because of the others."""
    searched = {parameter.key for parameter in search.space.parameters()}
    experiment = search.example()
    values = experiment.flat()
    lines = []
    for key, because in experiment.config.idle().items():
        if key in searched | search.settings.keys() and searched.isdisjoint({"method", *because}):
            lines.append(f"{key} has no effect with {format_assignments(because, values)}")
    strength = type(search).model_fields["prior_strength"].default
    if search.prior_strength != strength and not (search.learn_from or search.space.expected()):
        lines.append("prior_strength has no effect: the file expects no points (prior, learn_from)")
    training = experiment.training
    if search.settings.get("cache_features") and (cause := _varying_features(training)):
        lines.append(f"cache_features has no effect with {cause}")
    validations = search.max_validations
    if validations is not None and (late := late_changes(training.schedule, validations)):
        lines.append(f"schedule has no effect {late}")
    if training.selection == "test" and "validation_share" in search.settings:
        lines.append('validation_share has no effect with selection="test"')
    return lines


def _varying_features(training: Training) -> str:
    """The first setting for which the features of images are not constant, or not kept; empty if there is none."""
    plain = {"augmentation": "none", "extra_augmentations": None, "degradation": "none"}
    changed = (f"{key}={getattr(training, key)}" for key, value in plain.items() if getattr(training, key) != value)
    return varying_setting(training) or next(changed, "")


def _section(kind: type[Section], short: str, value: Any, where: KeyPath) -> Section:
    """A mapping of its own keys, or its main key's value alone."""
    fields = {short: value} if isinstance(value, str) else {str(key): item for key, item in value.items()}
    unknown = {key: suggestion(key, kind.model_fields) for key in fields if key not in kind.model_fields}
    problems = [Problem((*where, key), rule="no such key", suggestion=unknown[key]) for key in unknown]
    try:
        section = kind(**{key: item for key, item in fields.items() if key not in unknown})
    except ValidationError as error:
        problems += [problem.under(where) for problem in complaints(error)]
    if problems:
        raise InputError(*problems)
    return section


def _with_preset(
    preset: Preset, settings: Mapping[str, Any], space: Any, overrides: Mapping[str, Any], source: str
) -> tuple[dict[str, Any], Any]:
    """The settings and the space of a search, the preset's settings over the file's.

    Hyperparameters of a base objective belong to it: if the objective is searched, the preset's are left out.
    A preset of another method takes the place of the file's with its hyperparameters, if the space has none of them.
    """
    method = preset.settings["method"]
    searched, given = set(named_settings(space)) - overrides.keys(), (Option("preset"), Operand(preset.name))
    if "method" in searched:
        raise InputError(Problem(given, rule=f"is for one method, but {source} searches over methods"))
    if (other := settings.get("method", method)) != method:
        if not searched <= Training.model_fields.keys():
            advice = f": give a preset for that method, or a search of '{method}'"
            rule = f"is for '{method}', but {source} searches '{other}'"
            raise InputError(Problem(given, rule=rule, advice=advice))
        fields = find_installed(other).fields.model_fields
        settings = {key: value for key, value in settings.items() if key not in fields}
    dependent = find_installed(method).fields.dependent
    left_out = searched.union(*(dependent.get(key, ()) for key in searched))
    stated = {key: value for key, value in beneath(preset.settings, overrides).items() if key not in left_out}
    if isinstance(space, list):  # alternatives that do not search such a setting take it from the preset
        dropped = {key: [value] for key, value in preset.settings.items() if key in searched}
        space = [dropped | alternative if isinstance(alternative, dict) else alternative for alternative in space]
    return beneath(settings, stated) | stated, space


def beneath(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """What remains of `lower` beneath `upper`: no hyperparameters of a base objective that `upper` changes."""
    method = upper.get("method", lower.get("method"))
    config = find_installed(method).fields if isinstance(method, str) else MethodConfig
    gone: set[str] = set()
    for key, dependent in config.dependent.items():
        default = config.model_fields[key].default
        if key in upper and upper[key] != lower.get(key, default):
            gone |= dependent
    return {key: value for key, value in lower.items() if key not in gone}


def _without(alternative: Any, pinned: Mapping[str, Any]) -> Any:
    return {k: v for k, v in alternative.items() if k not in pinned} if isinstance(alternative, dict) else alternative


def _by_objective(
    settings: dict[str, Any],
    raw_space: Any,
    objective: Objective,
    preset: Preset | None,
    overrides: Mapping[str, Any],
    source: str,
) -> dict[str, Any]:
    """The settings without a preset's `selection_metric`: a search chooses epochs as it chooses trials. InputError if
    the file or `--set` gives one that differs from the objective."""
    key = "selection_metric"
    if key in named_settings(raw_space):
        rule = f"a search chooses by its objective, {objective.metric}"
        raise InputError(Problem((File(source), "space", key), rule=rule))
    if preset is not None and key in preset.settings and key not in overrides:
        return {name: value for name, value in settings.items() if name != key}
    if settings.get(key) not in (None, objective.metric):
        where: KeyPath = (SET, key) if key in overrides else (File(source), "settings", key)
        rule = f"a search chooses by its objective, {objective.metric}"
        advice = (": give ", Option("objective"), f" {settings[key]}, or objective: {settings[key]} in its file")
        raise InputError(Problem(where, settings[key], rule, advice=advice))
    return settings


def _refuse_fixed_and_named_settings(raw_space: Any, settings: Mapping[str, Any], source: str) -> None:
    keys = dict.fromkeys(
        key
        for alternative in (raw_space if isinstance(raw_space, list) else [raw_space])
        for key in (alternative if isinstance(alternative, dict) else ())
    )
    if both := [key for key in keys if key in settings and key != "method"]:
        rule = "both fixed in settings and searched in space; keep one"
        raise InputError(*(Problem((File(source), str(key)), rule=rule) for key in both))


def single_training(
    name: str, settings: Mapping[str, Any], *, repeats: int = 1, preset: Preset | None = None
) -> Search:
    """One training, or its repetitions over consecutive seeds, as a search, so that it is recorded, resumed and
    reported like any other."""
    training = resolve_experiment(settings, "train").training
    fixed = {key: value for key, value in settings.items() if key != "seed" or repeats == 1}
    seeds = list(range(training.seed, training.seed + repeats))
    resolve_experiment({**settings, "seed": seeds[-1]}, "train")
    return Search(
        name=check_name(name),
        source="train",
        preset=None if preset is None else preset.name,
        settings=fixed,
        raw_space={"seed": seeds} if repeats > 1 else {},
        algorithm=Grid.name if repeats > 1 else Tpe.name,
        num_trials=repeats,
        objective=chosen_by(training),
        test_trials=True,
        final=False,
    )
