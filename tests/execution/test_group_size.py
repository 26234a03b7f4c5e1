"""A trial's number of workers where it may change."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.tracked_searches import small_search

from orchestrator.config.search import recorded_search
from orchestrator.config.workers import Workers
from orchestrator.errors import InputError
from orchestrator.execution import group_size, ray_cluster, ray_train
from orchestrator.execution.group_size import Groups, Shortage
from orchestrator.execution.protocol import Validated, Work
from orchestrator.execution.ray_cluster import trials_at_once
from orchestrator.execution.ray_tune import ConductorStopper, RayRunner
from orchestrator.storage.events import Validation
from orchestrator.training import distributed


class Cluster:
    """Places for workers, and a trial's groups on them: each ends as the next of `ends` says, after its validations."""

    def __init__(
        self, patch: pytest.MonkeyPatch, rooms: list[int], ends: list[tuple[int, str]], **workers: int
    ) -> None:
        self.rooms, self.ends, self.validations, self.end = rooms, ends, 0, ""
        self.sizes: list[int] = []
        self.groups = Groups(SimpleNamespace(workers=Workers(**workers), max_restarts=2), self, self.fit)  # type: ignore[arg-type]
        patch.setattr(group_size, "WAIT_SECONDS", 0.0)
        patch.setattr(group_size, "room", lambda work, wanted: min(wanted, self.rooms.pop(0)))
        patch.setattr(Groups, "_places", lambda groups: 99)
        patch.setattr("ray.get", lambda answer: answer)

    def fit(self, count: int) -> None:
        self.sizes.append(count)
        validations, self.end = self.ends.pop(0)
        self.validations += validations
        if self.end == "lost":
            raise RuntimeError("a worker died")

    @property
    def last_validation(self) -> Any:
        return SimpleNamespace(remote=lambda: self.validations)

    @property
    def gives_way(self) -> Any:
        return SimpleNamespace(remote=lambda: self.end == "gives way")


def test_a_trial_goes_on_with_the_workers_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [(2, "lost"), (1, "lost"), (1, "gives way"), (3, "done")]
    cluster = Cluster(monkeypatch, [9, 3, 0, 1, 2, 4], ends, low=2, high=8)
    cluster.groups.train()
    assert cluster.sizes == [8, 3, 2, 4], "with 0 and 1 it waits"
    assert not cluster.rooms and not cluster.ends


def test_losses_without_a_validation_end_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [2] * 9, [(1, "lost")] * 4 + [(0, "lost")] * 5, low=1, high=2)
    with pytest.raises(RuntimeError, match="a worker died"):
        cluster.groups.train()
    assert len(cluster.sizes) == 4 + 2


def test_a_trial_that_is_over_waits_for_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [0], [], low=1, high=2)

    def full(work: Work, wanted: int) -> int:
        cluster.groups.over.set()
        return 0

    monkeypatch.setattr(group_size, "room", full)
    cluster.groups.train()
    assert cluster.sizes == []


def test_a_group_grows_where_there_is_room_and_not_at_every_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [0, 1, 5], [], low=1, high=4)
    groups, now = cluster.groups, [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    groups.size, groups.looked = 2, 0.0
    asked = []
    for _ in range(6):
        now[0] += group_size.GROW_SECONDS / 2
        asked.append((groups.may_grow(), len(cluster.rooms)))
    assert asked == [(False, 3), (False, 2), (False, 2), (True, 1), (False, 1), (True, 0)]
    groups.size = 4
    now[0] += 1000
    assert not groups.may_grow()


@pytest.mark.parametrize(
    ("there", "low", "high", "trials"),
    [(8, 2, 4, 2), (6, 2, 4, 2), (5, 2, 4, 1), (3, 2, 4, 1), (1, 2, 4, 0), (9, 3, 3, 3)],
)
def test_the_last_trial_at_a_time_may_have_fewer_workers(
    there: int, low: int, high: int, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "places", lambda each, labels: there)
    search = small_search("s", workers={"low": low, "high": high}, max_concurrent=9)
    assert trials_at_once(search, {"CPU": 1}) == trials
    assert Work("0", search.example(), "", "", workers=search.workers).workers == Workers(low=low, high=high)


def test_a_range_of_workers_is_kept_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    search = small_search("s", workers={"low": 2, "high": 8}, final_workers={"low": 1, "high": 3})
    assert search.workers == Workers(low=2, high=8) and search.final_workers == Workers(low=1, high=3)
    assert recorded_search(search.model_dump(mode="json")).workers == search.workers
    assert "low: 2" in search.file()
    monkeypatch.setattr("orchestrator.execution.ray_tune.resources", lambda search, workers: {"CPU": 2.0})
    assert RayRunner().resources(search) == {"CPU": 16}
    for wrong, what in (
        ({"low": 3, "high": 2}, r"workers.low: 3: is above high, 2"),
        ({"low": 1, "hi": 2}, r"workers.hi: no such key"),
        ({"low": 0, "high": 2}, r"workers.low: 0: should be at least 1"),
        ({"low": 1}, r"workers.high: this key is required"),
        ({"low": 1, "high": 33}, r"workers: 33 workers cannot share the global batch of 32 images"),
        ([1, 2], r"workers: \[1, 2\] should be a whole number, or {low: 2, high: 8}"),
    ):
        with pytest.raises(InputError, match=what):
            small_search("s", workers=wrong)
    with pytest.raises(InputError, match="gpus_per_trial: 0.5: workers that train together take a whole GPU each"):
        small_search("s", workers={"low": 1, "high": 2}, gpus_per_trial=0.5)


def test_hours_are_those_of_the_workers_that_there_were() -> None:
    event = Validation(time=0, trial_id="0", validation=1, metrics={}, seconds=1800, system={"workers": 2.0})
    assert event.hours({"CPU": 8.0}, {"low": 1, "high": 4}) == {"CPU": 2.0}
    assert event.hours({"CPU": 8.0}, 4) == event.hours({"CPU": 8.0}, None) == {"CPU": 4.0}
    assert event.model_copy(update={"system": {}}).hours({"CPU": 8.0}, {"low": 1, "high": 4}) == {"CPU": 4.0}


def test_a_validation_says_what_it_ran_with_and_notes_are_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[Any] = []

    class Mailbox:
        def __getattr__(self, name: str) -> Any:
            def remote(*words: Any) -> Any:
                sent.extend(word for word in words if name == "put")
                return {"begin": 1, "put": False}.get(name)

            return SimpleNamespace(remote=remote)

    def validations(work: Any) -> Iterator[Validated]:
        distributed._notes.append("it draws numbers")
        yield Validated("0000", 1, system={"memory_usage_megabytes": 1.0})
        yield Validated("0000", 2, finished=True)

    monkeypatch.setattr(ray_train, "own_results", validations)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))
    monkeypatch.setattr("ray.get", lambda answer: answer)
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: None)
    ray_train.train_worker({"work": SimpleNamespace(workers=Workers(low=1, high=2)), "mailbox": Mailbox()})
    assert [result.system for result in sent] == [{"memory_usage_megabytes": 1.0, "workers": 1}, {"workers": 1}]
    conductor = SimpleNamespace(report=lambda result: False)
    stopper = ConductorStopper(SimpleNamespace(conductor=conductor, is_replaced=lambda trial_id: False))  # type: ignore[arg-type]
    for result in sent:
        stopper("trial", {"result": result})
    assert capsys.readouterr().err.splitlines() == ["note: it draws numbers"]


def test_that_trials_wait_for_workers_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    shortage = Shortage(2)
    for room in (4, 2, 1, 0, 1, 3, 2):
        shortage.tell(room)
    assert capsys.readouterr().err.splitlines() == [
        "note: a trial needs 2 workers, the cluster has room for 1: trials wait for more",
        "note: a trial needs 2 workers, the cluster has room for 3: trials go on",
    ]
