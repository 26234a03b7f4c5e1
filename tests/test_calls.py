"""What a trial costs beyond its training, in calls to Ray and to MLflow: exactly so many, whatever came before."""

from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.actor import ActorMethod
from recorded import record
from test_backends import small_search

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


class Source:
    """Gives out trials, one at a time, and notes the calls until each."""

    fault = None
    stopping = False

    def __init__(self, trials: int, folder: Path, calls: Counter[str], planted: bool) -> None:
        self.search, self.folder, self.calls = small_search("s", workers=1), folder, calls
        self.left, self.running, self.slots, self.planted = trials, False, 1, planted
        self.lost_workers: dict[str, tuple[str, ...]] = {}
        self.seen: list[Counter[str]] = []

    @property
    def finished(self) -> bool:
        return not self.left and not self.running

    def next(self) -> Work | None:
        if self.running or not self.left:
            return None
        self.seen.append(self.calls.copy())
        self.left, self.running = self.left - 1, True
        settings = self.search.example().flat()
        return Work(str(self.left), settings, str(self.folder / "data"), str(self.folder / str(self.left)))

    def report(self, result: Result) -> bool:
        assert isinstance(result, Validated), result
        self.running = not result.finished
        if self.planted:
            ray.put(result)
        return False

    def process_started(self, trial_id: str, now: float) -> None: ...

    def overdue(self, now: float) -> dict[str, str]:
        return {}

    def restarted(self, trial_id: str, reason: str) -> None:
        raise AssertionError(reason)


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
        source = Source(4, tmp_path, calls, planted)
        runner = RayRunner(trial=without_training())
        with runner.ready(source.search, tmp_path):
            runner.run(source)  # type: ignore[arg-type]
        each = [after - before for before, after in zip(source.seen, source.seen[1:], strict=False)]
        return each[1:]  # the first one starts the process

    expected = {"get": VALIDATIONS + 1, "actor.train": VALIDATIONS, "actor.reset": 1}
    expected["actor.get_auto_filled_metrics"] = 2
    assert of_each_trial(planted=False) == [expected] * 2
    assert of_each_trial(planted=True) == [expected | {"put": VALIDATIONS}] * 2


# MLflow


class Counting:
    """MLflow's client, with its calls counted."""

    def __init__(self, client: Any, calls: Counter[str]) -> None:
        self.client, self.calls = client, calls

    def __getattr__(self, name: str) -> Any:
        return counted(self.calls, name, getattr(self.client, name))


def begin(journal: Journal, trial_id: str) -> None:
    settings = {"method": "pfml", "config": {"delta": 0.2}}
    record(journal, "trial_started", trial_id=trial_id, kind="trial", params={"delta": 0.2}, config=settings)


def validate(journal: Journal, trial_id: str, validation: int) -> None:
    metrics = {"train/loss": 1.0, "val/map_at_r": 0.1 * validation, "epoch": float(validation)}
    record(journal, "validation", trial_id=trial_id, validation=validation, metrics=metrics)


def end(journal: Journal, trial_id: str) -> None:
    record(journal, "result", trial_id=trial_id, metrics={"best/val_map_at_r": 0.3})
    record(journal, "trial_ended", trial_id=trial_id, state="done")


def test_calls_to_mlflow(tmp_path: Path) -> None:
    """A trial whose events are sent together takes four; one that is followed live, one more for each time."""
    calls = Counter[str]()
    store = MLflowStore(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "artifacts")
    store.connect()
    store._client = Counting(store._client, calls)
    created = {"create_run": 1, "log_batch": 1, "log_dict": 1}
    with Journal(tmp_path / "search" / "journal.jsonl") as journal:
        sender = Sender(journal.path, store, None, "a database")
        record(journal, "search_started")

        def sent(*events: Callable[[], None]) -> dict[str, int]:
            calls.clear()
            for write in events:
                write()
            sender.send()
            return dict(calls)

        sent()
        for trial in ("0000", "0001", "0002"):

            def begins(trial: str = trial) -> None:
                begin(journal, trial)

            def validates(trial: str = trial) -> None:
                validate(journal, trial, 1)

            def ends(trial: str = trial) -> None:
                end(journal, trial)

            if trial == "0002":
                assert sent(begins) == created
                assert sent(validates) == {"log_batch": 1}
                assert sent(ends) == {"log_batch": 1, "set_terminated": 1}
            else:
                assert sent(begins, validates, ends) == created | {"set_terminated": 1}
        # planted: a sender that looks each run up, as one that continues another's must
        planted = Sender(journal.path, store, None, "a database")
        calls.clear()
        planted.send()
        assert calls["search_runs"] == 4
