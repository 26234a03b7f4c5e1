"""The base of runners whose trainings have made results."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from orchestrator.config.search import Search


class OneAtATime:
    """Trains one trial at a time, on one core; `run` is each test's own."""

    stage: str = "starting"
    own_processes: bool = False

    @contextlib.contextmanager
    def ready(self, search: Search, storage: Path) -> Iterator[int]:
        yield 1

    def resources(self, search: Search) -> dict[str, float]:
        return {"CPU": 1.0}
