"""The file of a lab's defaults: its keys, and how it is read."""

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator.config.files import read_yaml
from orchestrator.config.keys import KEYS
from orchestrator.errors import InputError
from orchestrator.problems import File, Problem, complaints, suggestion
from orchestrator.storage import paths
from orchestrator.tracking.address import check_tracking_uri
from orchestrator.tracking.store import TrackingError


class Lab(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    storage: str | None = None
    tracking_uri: str | None = None
    address: str | None = None
    experiment: str | None = None
    workers: Annotated[int | None, Field(**KEYS["workers"].bounds)] = None
    max_concurrent: Annotated[int | None, Field(**KEYS["max_concurrent"].bounds)] = None

    @field_validator("storage", "tracking_uri", "address", "experiment")
    @classmethod
    def _not_empty(cls, value: str) -> str:
        if not value.strip():
            raise InputError("is empty; give a value, or leave the key out")
        return value

    @field_validator("storage")
    @classmethod
    def _the_same_everywhere(cls, value: str) -> str:
        if "://" in value:
            paths.working_copy(value)
        elif not Path(value).expanduser().is_absolute():
            raise InputError("should be a whole path, as /shared/runs, or an address, s3://bucket/prefix")
        return value


def read_lab(path: Path) -> Lab:
    """What a file says. InputError lists what is wrong."""
    if not path.is_file():
        what = "is a folder; it should be a file" if path.is_dir() else "no such file"
        named = (paths.LAB_VARIABLE,) if os.environ.get(paths.LAB_VARIABLE) else ()
        raise InputError(Problem((*named, File(path)), rule=what))
    content = read_yaml(path, "storage, tracking_uri")
    if path.stat().st_mode & stat.S_IWOTH:  # what it names gets the credentials of its readers
        raise InputError(Problem((File(path),), rule=f"may be written by everybody: chmod o-w {path}"))
    problems, read = [], Lab()
    try:
        read = Lab.model_validate(dict(content))
    except ValidationError as error:
        problems = [_of_a_key(problem) for problem in complaints(error)]
    if read.tracking_uri is not None:
        try:
            check_tracking_uri(read.tracking_uri)
        except TrackingError as error:
            problems.append(Problem(("tracking_uri",), rule=str(error)))
    if problems:
        placed = [replace(problem, line=content.line(problem.path)).under(File(path)) for problem in problems]
        raise InputError(*sorted(placed, key=lambda problem: problem.line or 0))
    return read


def _of_a_key(problem: Problem) -> Problem:
    key = problem.path[0]
    if key in Lab.model_fields:
        return problem
    return Problem((key,), rule="no such key of this file", suggestion=suggestion(key, Lab.model_fields))
