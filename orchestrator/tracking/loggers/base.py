"""What the table of loggers says of each, and what their stores share. Their files import their libraries only where
something is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.errors import InputError, missing_for
from orchestrator.problems import Option
from orchestrator.tracking.projection import TRIAL, Identity, MetricPoint
from orchestrator.tracking.store import RunStore


@dataclass(frozen=True)
class Logger:
    """A logger of the table.

    Attributes:
        name: as given to `sync --to`; its folder in the storage, and this package's extra, have the same name.
        package: the package that it imports.
        look: the command that shows what was written, with `{folder}`.
        store: makes the store that writes into a folder.
    """

    name: str
    package: str
    look: str
    store: Callable[[Path], RunStore]

    def check(self) -> None:
        """InputError if its package is not installed."""
        if find_spec(self.package) is None:
            raise InputError(missing_for(Option("to"), self.name, self.package, self.name))


class LoggerStore:
    """A `RunStore` of curves, parameters and tags only; a run is called `SEARCH`, or `SEARCH/TRIAL`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def connect(self) -> None:
        pass

    def experiment(self, name: str) -> str:
        return name

    def find(self, experiment_id: str, key: Mapping[str, str]) -> str | None:
        return None

    def create(self, experiment_id: str, identity: Identity, parent: str | None) -> str:
        return identity.name if parent is None else f"{parent}/{identity.key[TRIAL]}"

    def check(self, run_id: str) -> None:
        pass

    def tag(self, run_id: str, name: str) -> str | None:
        return None

    def log(self, run_id: str, points: list[MetricPoint], params: dict[str, str], tags: dict[str, str]) -> None:
        raise NotImplementedError

    def log_config(self, run_id: str, config: dict[str, Any]) -> None:
        pass

    def log_artifact(self, run_id: str, path: Path, folder: str) -> None:
        pass

    def log_dataset(self, run_id: str, name: str, digest: str) -> None:
        pass

    def log_model(self, experiment_id: str, run_id: str, path: Path) -> str:
        return ""

    def set_status(self, run_id: str, status: str, end_time: int | None) -> None:
        pass

    def set_views(self, experiment_id: str, views: dict[str, str]) -> None:
        pass

    def describe(self, experiment_id: str, note: str) -> None:
        pass

    def delete(self, run_id: str) -> None:
        pass
