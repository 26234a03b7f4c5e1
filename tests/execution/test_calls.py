"""What a trial costs beyond its training, in calls to Ray and to MLflow: exactly so many, whatever came before."""

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.serialization import SerializationContext
from ray.actor import ActorMethod
from support.scheduling import Source
from support.tracked_searches import small_search
from support.tracking_servers import end_trial, start_search, start_trial, validate

from orchestrator.config.training import resolve_experiment
from orchestrator.execution.protocol import Result, Validated, Work
from orchestrator.execution.ray_tune import RayRunner, Trial
from orchestrator.storage.journal import Journal
from orchestrator.tracking.mlflow_store import MLflowStore
from orchestrator.tracking.sender import Sender

VALIDATIONS = 3


# Ray


def counted(calls: Counter[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def counting(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return call(*args, **kwargs)

    return counting


def without_training() -> type[Trial]:
    """Of a class within a function Ray sends the code, not the name."""

    class NoTraining(Trial):
        def results_of(self, work: Work) -> Generator[Result, None, None]:
            for validation in range(1, VALIDATIONS + 1):
                metrics = {"val/map_at_r": 0.1}
                yield Validated(work.trial_id, validation, metrics, seconds=0.0, finished=validation == VALIDATIONS)

    return NoTraining


class Noting(Source):
    """Notes the calls until each trial."""

    def __init__(self, trials: int, folder: Path, calls: Counter[str], planted: bool) -> None:
        wanted = small_search("s", workers=1)
        settings, data = wanted.example().flat(), str(folder / "data")
        works = [
            Work(str(number), resolve_experiment(settings, "trial"), data, str(folder / str(number)))
            for number in range(trials)
        ]
        super().__init__(wanted, works, folder, slots=1)
        self.calls, self.planted, self.seen = calls, planted, list[Counter[str]]()

    def next(self) -> Work | None:
        if work := super().next():
            self.seen.append(self.calls.copy())
        return work

    def report(self, result: Result) -> bool:
        assert isinstance(result, Validated), result
        if self.planted:
            ray.put(result)
        return super().report(result)


@pytest.mark.slow
def test_calls_to_ray(ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[str]()
    remote = ActorMethod._remote

    def called(method: Any, *args: Any, **kwargs: Any) -> Any:
        calls[f"actor.{method._method_name}"] += 1
        return remote(method, *args, **kwargs)

    monkeypatch.setattr(ActorMethod, "_remote", called)
    for name in ("get", "put", "init", "kill"):
        monkeypatch.setattr(ray, name, counted(calls, name, getattr(ray, name)))

    def of_each_trial(planted: bool) -> list[Counter[str]]:
        source = Noting(4, tmp_path, calls, planted)
        runner = RayRunner(trial=without_training())
        with runner.ready(source.search, tmp_path):
            runner.run(source)
        each = [after - before for before, after in zip(source.seen, source.seen[1:], strict=False)]
        return each[1:]  # the first one starts the process

    expected = {"get": VALIDATIONS + 1, "actor.train": VALIDATIONS, "actor.reset": 1}
    expected["actor.get_auto_filled_metrics"] = 2
    assert of_each_trial(planted=False) == [expected] * 2
    assert of_each_trial(planted=True) == [expected | {"put": VALIDATIONS}] * 2


@pytest.mark.slow
def test_bytes_to_ray(ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial gets its settings, some kB; the code goes with the cluster's nodes or processes."""
    sent = Counter[str]()
    serialize = SerializationContext.serialize

    def counting(context: Any, value: Any) -> Any:
        serialized = serialize(context, value)
        sent["bytes"] += serialized.total_bytes
        return serialized

    monkeypatch.setattr(SerializationContext, "serialize", counting)

    def of_each_trial(ballast: int) -> list[int]:
        source = Noting(4, tmp_path, sent, planted=False)
        source.works = [replace(work, objective={"ballast": "x" * ballast}) for work in source.works]
        runner = RayRunner(trial=without_training())
        with runner.ready(source.search, tmp_path):
            runner.run(source)
        sizes = [counts["bytes"] for counts in source.seen]
        return [after - before for before, after in pairwise(sizes[1:])]

    assert all(1000 < size < 20_000 for size in of_each_trial(0))
    assert all(size > 10_000_000 for size in of_each_trial(10_000_000)), "planted: an object with each trial"


# MLflow


class Counting:
    """MLflow's client, with its calls counted."""

    def __init__(self, client: Any, calls: Counter[str]) -> None:
        self.client, self.calls = client, calls

    def __getattr__(self, name: str) -> Any:
        return counted(self.calls, name, getattr(self.client, name))


def test_calls_to_mlflow(tmp_path: Path) -> None:
    """A trial whose events are sent together takes three; one that is followed live, one more for each time."""
    calls = Counter[str]()
    store = MLflowStore(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "artifacts")
    store.connect()
    store._client = Counting(store._client, calls)
    created = {"create_run": 1, "log_batch": 1}
    with Journal(tmp_path / "search" / "journal.jsonl") as journal:
        sender = Sender(journal.path, store, None, "a database")
        start_search(journal)

        def sent(*events: Callable[[], None]) -> dict[str, int]:
            calls.clear()
            for write in events:
                write()
            sender.send()
            return dict(calls)

        sent()
        for trial, batches in (("0000", 2), ("0001", 1)):  # with the first come the settings of the search's own run
            whole = [partial(start_trial, journal, trial), partial(validate, journal, trial, 1, 0.1)]
            calls_of_trial = {"create_run": 1, "log_batch": batches, "set_terminated": 1}
            assert sent(*whole, partial(end_trial, journal, trial, "done")) == calls_of_trial
        assert sent(partial(start_trial, journal, "0002")) == created
        assert sent(partial(validate, journal, "0002", 1, 0.1)) == {"log_batch": 1}
        assert sent(partial(end_trial, journal, "0002", "done")) == {"log_batch": 1, "set_terminated": 1}
        # planted: a sender that looks each run up, as one that continues another's must
        planted = Sender(journal.path, store, None, "a database")
        calls.clear()
        planted.send()
        assert calls["search_runs"] == 4
