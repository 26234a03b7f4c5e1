"""Points that a search is given: those that it tries first, and those around which good ones are expected."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.config.search import Search
from orchestrator.config.space import Space
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError, Problems
from orchestrator.problems import File, KeyPath, Problem, suggestion

FindSettings = Callable[[str], list[dict[str, Any]]]
"""The settings that the name of a preset or of a search stands for, best first."""
OWN_DEFAULTS = "defaults"
"""In `learn_from`: the methods' own defaults."""
WHOLE_STORAGE = "storage"
"""In `learn_from`: all ended searches of the storage."""
NOT_OF_A_GRID = "a grid tries every point anyway; leave it out"


def starting_points(search: Search, entries: Sequence[Any], find_settings: FindSettings | None) -> list[dict[str, Any]]:
    """The points of `start_from`, each once: mappings as they are, and those that names stand for."""
    points: list[dict[str, Any]] = []
    method, start_from = search.settings.get("method"), (File(search.source), "start_from")
    if entries and search.exhaustive:
        raise InputError(Problem(start_from, rule=NOT_OF_A_GRID))
    problems, space = Problems(), search.space
    for place, entry in enumerate(entries):
        where = (*start_from, entry if isinstance(entry, str) else f"point {place + 1}")
        with problems.collect():
            if isinstance(entry, str):
                if find_settings is None:
                    rule = "a preset or a search cannot be named here; give the point itself"
                    raise InputError(Problem(where, rule=rule))
                earlier = find_settings(entry)
            elif isinstance(entry, dict):
                earlier = [entry]
            else:
                rule = "should be a point (a mapping), a preset or a search"
                raise InputError(Problem(where, entry, rule, begins_rule=True))
            for settings in earlier:
                if (
                    isinstance(entry, str)
                    and method is not None
                    and (other_method := settings.get("method", method)) != method
                ):
                    rule = f"is for the method '{other_method}', but this search is for '{method}'"
                    raise InputError(Problem(where, rule=rule))
                try:
                    point = space.point(settings)
                    if unknown := [] if isinstance(entry, str) else [key for key in settings if key not in point]:
                        key = str(unknown[0])
                        raise InputError(Problem((key,), rule="is not searched", suggestion=suggestion(key, point)))
                except InputError as error:
                    raise error.under(where) from None
                if point not in points:
                    points.append(point)
    problems.tell()
    if search.max_points is not None and len(points) > search.max_points:
        of_seeds = f", of which {sum(search.rounds)} are for other seeds" if search.rounds else ""
        rule = f"{len(points)} points, but num_trials: {search.num_trials}{of_seeds}"
        raise InputError(Problem(start_from, rule=rule))
    return points


def expected_points(search: Search, entries: Sequence[Any], find_settings: FindSettings | None) -> list[dict[str, Any]]:
    """The points of `learn_from`, each once: what of them is searched and lies within the space. Of a search over one
    method, those of other methods are left out."""
    points: list[dict[str, Any]] = []
    method, learn_from = search.settings.get("method"), (File(search.source), "learn_from")
    if search.exhaustive and entries:
        raise InputError(Problem(learn_from, rule=NOT_OF_A_GRID))
    if search.exhaustive and (key := next(iter(search.space.expected()), None)) is not None:
        raise InputError(Problem((File(search.source), "space", key, "prior"), rule=NOT_OF_A_GRID))
    problems = Problems()
    for place, entry in enumerate(entries):
        where = (*learn_from, entry if isinstance(entry, str) else f"point {place + 1}")
        with problems.collect():
            if isinstance(entry, dict):
                earlier = [entry]
                _check_part(search.space, entry, where)
            elif not isinstance(entry, str):
                rule = f"should be a preset, a search, {OWN_DEFAULTS}, {WHOLE_STORAGE} or a point"
                raise InputError(Problem(where, entry, rule, begins_rule=True))
            elif entry == OWN_DEFAULTS:
                earlier = [resolve_experiment({"method": one}, where).flat() for one in search.methods]
            elif find_settings is None:
                raise InputError(Problem(where, rule="cannot be named here; give the point itself"))
            else:
                earlier = _settings_of(entry, find_settings, where)
            of_method = [settings for settings in earlier if settings.get("method", method) == method or method is None]
            expected = [point for point in map(search.space.part, of_method) if point]
            if not expected and entry != WHOLE_STORAGE:
                rule = "says nothing about this search: no setting in common, within the ranges"
                raise InputError(Problem(where, rule=rule))
            for point in expected:
                if point not in points:
                    points.append(point)
    problems.tell()
    return points


def _settings_of(entry: str, find_settings: FindSettings, where: KeyPath) -> list[dict[str, Any]]:
    name, colon, _ = entry.partition(":")
    if colon and name in (OWN_DEFAULTS, WHOLE_STORAGE):
        raise InputError(Problem(where, rule=f"{name} takes no number"))
    try:
        return find_settings(entry)
    except InputError:
        if (meant := suggestion(name, (OWN_DEFAULTS, WHOLE_STORAGE))).names:
            raise InputError(Problem(where, rule="no such preset or search", suggestion=meant)) from None
        raise


def _check_part(space: Space, settings: Mapping[str, Any], where: KeyPath) -> None:
    """That each of these values is one of a searched setting."""
    searched = {parameter.key: parameter for parameter in space.parameters()}
    taken, problems = space.part(settings), Problems()
    for key, value in settings.items():
        with problems.collect():
            if key not in searched:
                hint = suggestion(key, searched)
                raise InputError(Problem((*where, str(key)), rule="is not searched", suggestion=hint))
            if key not in taken:
                try:
                    searched[key].nearest(value)
                except InputError as error:
                    raise error.under((*where, key)) from None
    problems.tell()
