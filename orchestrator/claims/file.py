"""A claim's file, read with all that is wrong at once."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.claims.checks import contradictions, same_trainings, wrong_names, wrong_settings
from orchestrator.claims.hypothesis import KEY_CHARACTERS, Arm, Claim, Hypothesis, Seeds, Tuning
from orchestrator.claims.other_images import test_of
from orchestrator.config.files import Document, find_search, read_yaml
from orchestrator.config.search import Budget
from orchestrator.errors import InputError, Problems
from orchestrator.problems import File, Inner, KeyPath, Problem, complaints, suggestion
from orchestrator.search.beginning import check_dataset
from orchestrator.storage.places import check_name


def read_claim(path: Path, storage: Path | None = None) -> Claim:
    """The claim of a file; InputError names all that is wrong, with the lines. With a `storage`, its data sets must
    be known there."""
    raw = read_yaml(path, "claim, source, kind")
    problems = Problems()
    hypothesis, whole = _hypothesis(raw, problems)
    if whole:
        problems.found += contradictions(hypothesis)
    for name in hypothesis.arms:
        problems.found += wrong_settings(hypothesis, name)
    if not problems.found:
        problems.found += same_trainings(hypothesis)
    places = [(name, ("datasets",)) for name in hypothesis.datasets] + hypothesis.other_datasets
    for dataset, place in places if storage is not None else ():
        with problems.collect():
            try:
                check_dataset(dataset, storage or path, prepared=False)
            except InputError as error:
                raise error.under(place) from None
    with problems.collect():
        check_name(path.stem, "the file's name")
        problems.found += wrong_names(hypothesis, f"{path.stem}-{'0' * KEY_CHARACTERS}") if whole else []
    if problems.found:
        raise InputError(*_place_problems(problems, raw, path))
    content = path.read_bytes()
    return Claim(path.stem, path, content.decode("utf-8-sig"), hypothesis, _digest(content, hypothesis))


def _digest(content: bytes, hypothesis: Hypothesis) -> str:
    digest = hashlib.sha256(content)
    for arm in hypothesis.arms.values():
        if arm.search is not None:
            digest.update(find_search(arm.search).read_bytes())
    return digest.hexdigest()


SOUND: dict[str, Any] = {
    "claim": "-",
    "source": "-",
    "kind": "superiority",
    "metric": "test/map_at_r",
    "smallest_effect": 1.0,
    "datasets": {"glyphs-small": {}},
    "arms": {"-": Arm(settings={"method": "pfml"})},
}
"""Values in place of required ones that are missing or wrong, so that the others can be checked."""


def _hypothesis(raw: Document, problems: Problems) -> tuple[Hypothesis, bool]:
    """The content, and whether it is whole; what is wrong goes into `problems`, nested parts by their own keys, and is
    left out."""
    fields, sound, before = Hypothesis.model_fields, dict[str, Any](), len(problems.found)
    for key in raw:
        if key not in fields:
            hint = suggestion(key, fields)
            problems.found.append(Problem((str(key),), rule="no such key of a claim", suggestion=hint))
    parts: dict[str, type[BaseModel]] = {"tuning": Tuning, "seeds": Seeds}
    for key, value in raw.items():
        if key in parts and isinstance(value, Mapping):
            sound[key] = _part(parts[key], value, (key,), problems)
        elif key == "arms" and isinstance(value, Mapping):
            arms = {name: _arm(name, content, problems) for name, content in value.items()}
            sound[key] = {name: arm for name, arm in arms.items() if arm is not None}
        elif key in fields:
            sound[key] = value
    for key in [key for key in parts if sound.get(key, ...) is None]:
        del sound[key]
    try:
        return Hypothesis(**sound), len(problems.found) == before
    except ValidationError as error:
        problems.found += complaints(error)
        wrong = {str(details["loc"][0]) for details in error.errors()}
    rest = {key: value for key, value in sound.items() if key not in wrong}
    return Hypothesis(**{**SOUND, **rest}), False


def _arm(name: object, content: object, problems: Problems) -> Arm | None:
    if not isinstance(name, str):
        problems.found.append(Problem(("arms",), name, "an arm's name should be text"))
        return None
    with problems.collect():
        try:
            check_name(name, Inner(name))
        except InputError as error:
            raise error.under("arms") from None
    place = ("arms", Inner(name))
    if not isinstance(content, Mapping):
        problems.found.append(
            Problem(place, content, "should be a mapping with settings, search or both", begins_rule=True)
        )
        return None
    if content.get("test", ...) is None:
        problems.found.append(Problem(test_of(name), rule="is empty: name the images, or leave it out"))
    return _part(Arm, content, place, problems)


Part = TypeVar("Part", bound=BaseModel)


def _part(kind: type[Part], content: Mapping[str, Any], place: KeyPath, problems: Problems) -> Part | None:
    content = dict(content)
    for key in [key for key in content if key not in kind.model_fields]:
        hint = suggestion(key, kind.model_fields)
        problems.found.append(Problem((*place, Inner(key)), rule="no such key", suggestion=hint))
        del content[key]
    try:
        if isinstance(content.get("budget"), Mapping):
            content["budget"] = Budget(**content["budget"])
        return kind(**content)
    except ValidationError as error:
        for one in complaints(error):
            problems.found.append(replace(one, path=(*place, *(Inner(str(step)) for step in one.path))))
    except TypeError as error:
        problems.found.append(Problem(place, rule=str(error)))
    return None


def _place_problems(problems: Problems, raw: Document, path: Path) -> list[Problem]:
    """The problems, each once, with their lines, in the order of the file; those without one last."""
    placed = [
        replace(problem, path=(File(path), *problem.path), line=raw.line(problem.path))
        for problem in {one.text(): one for one in problems.found}.values()
    ]
    return sorted(placed, key=lambda problem: problem.line or 10**9)
