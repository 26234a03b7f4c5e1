"""The defaults of a lab: a file whose values hold where neither an option nor an environment variable gives one."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import InputError
from orchestrator.storage import paths

if TYPE_CHECKING:
    from orchestrator.storage.places import Places

VARIABLES = {
    "storage": paths.VARIABLE,
    "tracking_uri": "MLFLOW_TRACKING_URI",
    "address": "RAY_ADDRESS",
    "experiment": "MLFLOW_EXPERIMENT_NAME",
}
"""Of those keys that are given by an environment variable too, which comes before the file."""


def values_in_force() -> dict[str, Any]:
    """What the file in force says; nothing where there is none. InputError lists what is wrong."""
    path = paths.lab_file()
    if path is None:
        return {}
    from orchestrator.search.lab_file import read_lab

    return read_lab(path).model_dump(exclude_none=True)


def in_force(key: str, given: str | None = None) -> str | None:
    """The value that holds: the one given, else the environment's, else the file's, else None."""
    value: str | None = given or os.environ.get(VARIABLES[key]) or values_in_force().get(key)
    return value


def resources(raw: Mapping[str, Any]) -> dict[str, int]:
    """The file's `workers` and `max_concurrent`, for a search whose own file does not say them."""
    values = values_in_force()
    return {key: values[key] for key in ("workers", "max_concurrent") if key in values and key not in raw}


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
                self.values_ = {key: one for key, one in values_in_force().items() if key in VARIABLES}
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
