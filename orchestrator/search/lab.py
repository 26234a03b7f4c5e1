"""The defaults of a lab: a file whose values hold where neither an option nor an environment variable gives one."""

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator.config.keys import KEYS
from orchestrator.errors import InputError
from orchestrator.problems import File, Problem, complaints, suggestion
from orchestrator.storage import paths
from orchestrator.tracking.store import TrackingError

if TYPE_CHECKING:
    from orchestrator.storage.places import Places


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


VARIABLES = {
    "storage": paths.VARIABLE,
    "tracking_uri": "MLFLOW_TRACKING_URI",
    "address": "RAY_ADDRESS",
    "experiment": "MLFLOW_EXPERIMENT_NAME",
}
"""Of those keys that are given by an environment variable too, which comes before the file."""


def lab(path: Path | None = None) -> Lab:
    """What the file says, by default the one in force; nothing where there is none. InputError lists what is wrong."""
    path = path or paths.lab_file()
    if path is None:
        return Lab()
    from orchestrator.config.files import read_yaml

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
        from orchestrator.tracking.address import check_tracking_uri

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


def in_force(key: str, given: str | None = None) -> str | None:
    """The value that holds: the one given, else the environment's, else the file's, else None."""
    value: str | None = given or os.environ.get(VARIABLES[key]) or getattr(lab(), key)
    return value


def resources(raw: Mapping[str, Any]) -> dict[str, int]:
    """The file's `workers` and `max_concurrent`, for a search whose own file does not say them."""
    return lab().model_dump(include={"workers", "max_concurrent"} - raw.keys(), exclude_none=True)


def storage_places(storage: str | Path | None) -> "Places":
    """The locations in a storage, as an argument in Python names it; None: the default."""
    from orchestrator.storage.places import Places

    storage = storage or in_force("storage") or paths.DEFAULT_STORAGE
    if isinstance(storage, str) and "://" in storage:
        return Places(paths.working_copy(storage))
    if Path(storage).expanduser().is_file():
        raise InputError(f"storage: {storage} is a file: name a folder")
    return Places(Path(storage).expanduser().resolve())


class LabDefaults(Mapping[str, str]):
    """The defaults of a command's options. The file is read when one is needed, so that a wrong one hinders no help."""

    def __init__(self, *, quiet: bool = False) -> None:
        """`quiet`: a wrong file says nothing, while a shell completes a word."""
        self.quiet = quiet
        self.values_: dict[str, str] | None = None

    def _content(self) -> dict[str, str]:
        if self.values_ is None:
            try:
                self.values_ = lab().model_dump(include=set(VARIABLES), exclude_none=True)
            except InputError:
                if not self.quiet:
                    raise
                self.values_ = {}
        return self.values_

    def __getitem__(self, name: str) -> str:
        if name not in VARIABLES:
            raise KeyError(name)
        return self._content()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())
