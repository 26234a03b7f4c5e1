"""Made searches whose truth is known: journals written trial by trial, final run by final run, in any order."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.recorded import begin, record

from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger

RAW: dict[str, Any] = {
    "method": "pfml",
    "dataset": "glyphs-small",
    "settings": {"epochs": 9},
    "space": {"delta": {"low": 0.1, "high": 0.35}},
    "num_trials": 30,
}


class MadeSearch:
    """Writes a search that never ran; its trials are called 0000, 0001, ... in their order."""

    def __init__(
        self,
        folder: Path,
        of: Mapping[str, Any] | Search = RAW,
        tags: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> None:
        self.path = folder / "journal.jsonl"
        self.search = (
            of if isinstance(of, Search) else resolve_search({**of, **changes}, name="made", source="made.yaml")
        )
        self.journal = Journal(self.path)
        self.params: dict[str, dict[str, Any]] = {}
        self.tags = {} if tags is None else {"tags": dict(tags)}

    def __enter__(self) -> Self:
        self.journal.__enter__()
        begin(self.journal, self.search, sizes=SIZES, **self.tags)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.journal.__exit__(kind, error, at)

    def trial(
        self,
        curve: Sequence[float],
        state: str | None = "done",
        *,
        interval: tuple[float, float] | None = None,
        test: Mapping[str, float] | None = None,
        untrained: Mapping[str, Any] | None = None,
        beside: Mapping[str, Sequence[float]] | None = None,
        **params: Any,
    ) -> str:
        """A trial with this course of the objective, and of other metrics; without a state it still runs."""
        name = f"{len(self.params):04d}"
        params = params or {"delta": 0.1 + 0.01 * len(self.params)}
        self.params[name] = params
        config = self.search.experiment(params).flat()
        record(self.journal, "trial_started", trial_id=name, params=params, config=config)
        for at, value in enumerate(curve, start=1):
            metrics = {self.search.objective.metric: value} | {key: of[at - 1] for key, of in (beside or {}).items()}
            ended = state == "done" and at == len(curve)
            record(
                self.journal, "validation", trial_id=name, validation=at, metrics=metrics, seconds=10.0, finished=ended
            )
        if interval is not None or test is not None or untrained is not None:
            fields: dict[str, Any] = {} if interval is None else {"best_interval": interval}
            fields |= {} if untrained is None else {"untrained": untrained}
            metrics = {f"test/{key}": value for key, value in (test or {}).items()}
            record(self.journal, "result", trial_id=name, metrics=metrics, **fields)
        if state is not None:
            record(self.journal, "trial_ended", trial_id=name, state=state)
        return name

    def final(
        self, source: str, seed: int, test: Mapping[str, float] | None, *, seconds: float = 10.0, **fields: Any
    ) -> str:
        """A final run of a trial with a seed; without a test it was interrupted."""
        name = f"final-{source}-seed-{seed}"
        params = {**self.params[source], "seed": seed}
        config = self.search.experiment(params).flat()
        record(self.journal, "trial_started", trial_id=name, kind="final", params=params, config=config, source=source)
        record(self.journal, "validation", trial_id=name, validation=1, metrics={"train/loss": 1.0}, seconds=seconds)
        if test is not None:
            metrics = {f"test/{key}": value for key, value in test.items()}
            record(self.journal, "result", trial_id=name, metrics=metrics, **fields)
        record(self.journal, "trial_ended", trial_id=name, state="interrupted" if test is None else "done")
        return name

    def end(self, state: str = "done") -> None:
        """The end, so far: more may follow."""
        record(self.journal, "search_ended", state=state)

    def resume(self, **changes: Any) -> None:
        """It goes on, maybe with more trials or other final runs."""
        config = self.search.model_dump() | changes
        record(self.journal, "search_resumed", config=config)

    @property
    def ledger(self) -> Ledger:
        """What was written."""
        return Ledger.of(Journal.read(self.path))


def sizes_of(classes: int, images: int, chance: float) -> dict[str, Any]:
    """The record of a set with so many images, all of them queries."""
    of = {"classes": classes, "images": images, "queries": images, "one_query": 1 / images, "folds": 1}
    return {**of, "chance": {"map_at_r": chance, "recall_at_1": chance}}


SIZES = {
    "validation": sizes_of(18, 576, 0.0095),
    "test": sizes_of(60, 1920, 0.0023),
    "training_classes": 60,
}


def scores(values: Sequence[float]) -> list[dict[str, float]]:
    """Tests with these values of MAP@R, and recalls 0.2 above them."""
    return [{"map_at_r": value, "recall_at_1": value + 0.2} for value in values]
