"""Where a trial runs changes nothing: the same loop in this process, in a Tune trial, under Ray Train."""

import contextlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
from ray._private import services
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.air._internal import usage
from ray.exceptions import RayActorError
from ray.runtime_env import RuntimeEnv
from ray.train.torch import TorchTrainer
from ray.tune import Callback
from ray.tune.execution.class_cache import _ActorClassCache
from ray.util import placement_group_table
from support.tracked_searches import SETTINGS, small_search

import orchestrator.execution.ray_tune
from orchestrator.cli.main import main
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError
from orchestrator.execution import ray_private, ray_start
from orchestrator.execution.inline import InlineRunner
from orchestrator.execution.protocol import Failed, Result, Validated, Work
from orchestrator.execution.ray_address import reachable_address
from orchestrator.execution.ray_cluster import check_nodes, placement_groups, resources
from orchestrator.execution.ray_train import PLACEMENT_GROUP, build_trainer, release, train_results
from orchestrator.execution.ray_tune import ConductorStopper, RayRunner, Trial
from orchestrator.execution.worker import results
from orchestrator.search.conductor import Conductor
from orchestrator.search.driver import start

Build = Callable[..., Work]


@pytest.fixture
def work(data_folder: Path, tmp_path: Path) -> Build:
    """Builds a trial as the conductor gives it out: `work(name, workers, setting=value, ...)`."""

    def build(name: str, workers: int = 1, *, test: bool = False, **settings: Any) -> Work:
        work = Work(
            name, resolve_experiment(SETTINGS | settings, "trial"), str(data_folder), str(tmp_path / name), stop_after=2
        )
        return replace(work, workers=workers, resources={"CPU": 1}, hold_out=not test, test=test)

    return build


OF_THE_CLUSTER = ("IDLE", "DashboardAgent", "RuntimeEnvAgent", "_AutoscalingCoordinatorActor")
"""Ray's own processes, which live as long as the cluster."""


def actors(name: str = "") -> list[psutil.Process]:
    """The processes of the actors on this session's cluster (those whose class has this name)."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline()).partition("ray::")[2]
        except psutil.Error:
            continue
        if title.startswith(name) and title and not title.startswith(OF_THE_CLUSTER):
            found.append(process)
    return found


def leftovers() -> dict[str, Any]:
    """What is still held on the cluster; the processes of ended actors take a moment to go."""
    deadline = time.monotonic() + 30
    while True:
        groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
        held = ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0)
        found = {"placement groups": groups, "actors": actors(), "CPUs": held}
        if not any(found.values()) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


@pytest.fixture
def clean(ray_cluster: None) -> Iterator[None]:
    """The shared cluster, on which the test leaves nothing."""
    yield
    assert leftovers() == {"placement groups": [], "actors": [], "CPUs": 0}


def metrics_of(given: list[Result]) -> list[dict[str, float]]:
    """The numbers of all results, those of the test at the end included."""
    validations = [result for result in given if isinstance(result, Validated)]
    assert validations == given
    return [{**result.metrics} | {f"test/{k}": v for k, v in result.test.items()} for result in validations]


def trained(work: Work, *, alone: bool = False, bare: bool = False) -> Generator[Result, None, None]:
    """The results of a trial in a process of its own, as Tune asks for them: under Ray Train if not `alone`; if `bare`,
    without any of Ray's inner parts."""

    class InAGroup(Trial):
        def results_of(self, work: Work) -> Generator[Result, None, None]:
            if bare:
                setattr(ray_private.RayPart, "get", lambda part: None)  # noqa: B010 (a method, for mypy)
            return train_results(work)

    trial = ray.remote(num_cpus=0)(Trial if alone else InAGroup).remote({"work": work})
    try:
        done = False
        while not done:
            step = ray.get(trial.train.remote())
            done = step["done"]
            if step["result"] != Validated(work.trial_id, 0):  # its workers are there
                yield step["result"]
    finally:
        with contextlib.suppress(RayActorError):
            ray.get(trial.stop.remote())
        ray.kill(trial)


def test_trials_without_faiss_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    conductor = SimpleNamespace(report=lambda result: False)
    stopper = ConductorStopper(SimpleNamespace(conductor=conductor, is_replaced=lambda trial_id: False))  # type: ignore[arg-type]
    for fault in (None, "is not installed", "is not installed"):
        assert stopper("trial", {"result": Validated("0000", 1, faiss_fault=fault)}) is False
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith("note: faiss is not installed: torch searches in its place")


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ({"ray_version": "2.1.0"}, "has Ray 2.1.0, here is 2."),
        ({"python_version": "3.4.1"}, "has Python 3.4.1, here is "),
    ],
)
def test_a_cluster_of_other_versions_is_refused_before_anything_is_written(
    versions: dict[str, str], says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = ray.get_runtime_context().gcs_address
    assert reachable_address(address) == address
    client, place = GcsClient(address=address), (b"CLUSTER_METADATA", b"cluster")
    true = client.internal_kv_get(*place)

    def write(metadata: bytes) -> None:
        client.internal_kv_put(place[0], metadata, True, place[1])

    try:
        write(json.dumps(json.loads(true) | versions).encode())
        with pytest.raises(SystemExit) as leaving:
            main(["search", "demo", "--address", address, "--storage", str(tmp_path / "runs")])
    finally:
        write(true)
    *_, last = capfd.readouterr().err.splitlines()
    assert leaving.value.code == 2 and last.startswith(f"error: --address: the cluster at {address} {says}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("ray_cluster")
def test_a_server_of_ray_that_is_no_head_node(capfd: pytest.CaptureFixture[str]) -> None:
    (node,) = ray.nodes()
    with pytest.raises(InputError, match=r"no Ray cluster to use at .* \(what answers is no head node\)"):
        reachable_address(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("ray_cluster")
def test_a_node_that_dies_while_it_is_asked_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (real,) = ray.nodes()
    gone = real | {"NodeID": "ab" * 28}
    asked = iter([[gone, real]])
    monkeypatch.setattr(ray, "nodes", lambda: next(asked, [real]))
    check_nodes(tmp_path)
    assert list(asked) == [] and list(tmp_path.iterdir()) == []

    monkeypatch.setattr(ray, "nodes", lambda: [gone, real])
    refusal = f"^--address: node {real['NodeManagerAddress']} cannot run this version's code"
    with pytest.raises(InputError, match=refusal):
        check_nodes(tmp_path)


def test_no_secret_goes_into_a_runtime_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray logs them for everybody to read. One without any variable is that of the processes that Ray starts ahead."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "planted")
    for name in ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "RAY_AUTH_TOKEN", "MY_TOKEN"):
        monkeypatch.setenv(name, "planted")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(RayRunner, "slots", lambda *_: 1)
    with RayRunner().ready(small_search("any"), Path()):
        given = _ActorClassCache().get(Trial)._default_options["runtime_env"]
    assert RuntimeEnv(**given).to_dict() == {}


def test_nothing_is_imported_to_count_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.air.integrations.mlflow", None)  # an import of it fails
    with ray_private.skip_callback_count():
        usage.tag_callbacks([Callback()])
    with pytest.raises(ImportError):
        usage.tag_callbacks([Callback()])


def test_a_job_is_not_shown_with_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole cluster sees it."""
    shown: list[str] = []
    monkeypatch.setattr(ray, "init", lambda **_: shown.append(ray._private.utils.get_entrypoint_name()))
    monkeypatch.setattr("sys.argv", ["/bin/orchestrator", "search", "pfml", "--tracking-uri", "http://me:pw@host"])
    monkeypatch.setattr(orchestrator.execution.ray_tune, "code", list)
    RayRunner().join("host:6379")
    ray_start.start_ray([])
    assert shown == ["orchestrator search", "orchestrator search"]


def test_workers_do_without_the_parts_of_ray_train_that_they_do_not_use(work: Build) -> None:
    """Its cleaner of placement groups delays each end by 12 s where no dashboard answers."""
    trainer = build_trainer(work("trial", workers=2), None, ray_private.lean_trainer(), 2)
    ours = {type(callback).__name__ for callback in trainer._create_default_callbacks()}
    theirs = {type(callback).__name__ for callback in TorchTrainer._create_default_callbacks(trainer)}
    assert theirs - ours == theirs & {*ray_private.UNUSED} != set()
    assert "BackendSetupCallback" in ours, "it connects the workers"


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_backends_give_equal_metrics(work: Build) -> None:
    process = metrics_of(list(results(work("process"))))

    assert len(process) == 2 and process[0] != process[1] and process[0]["val/map_at_r"] > 0
    assert metrics_of(list(trained(work("trial"), alone=True))) == process
    assert metrics_of(list(trained(work("train")))) == process
    assert metrics_of(list(trained(work("bare"), bare=True))) == process


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_a_killed_worker_costs_an_attempt_and_no_result(work: Build) -> None:
    """Two workers train as one and test as one."""
    undisturbed = metrics_of(list(results(work("undisturbed", test=True))))
    assert "test/map_at_r" in undisturbed[-1]

    training = trained(work("disturbed", 2, test=True))
    first = next(training)
    victim = actors("RayTrainWorker")[0]
    victim.send_signal(signal.SIGKILL)
    rest = list(training)

    # what was known comes again, then the training goes on from its checkpoint
    numbers = [result.number for result in [first, *rest] if isinstance(result, Validated)]
    assert numbers in ([1, 2], [1, 1, 2])
    # the loss is about 1.4e7, where neighbouring float64 values lie 2e-9 apart: hence the relative part
    assert metrics_of([first, rest[-1]]) == [pytest.approx(m, rel=1e-12, abs=1e-9) for m in undisturbed]


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_a_killed_trial_leaves_nothing(work: Build) -> None:
    """Its workers and its mailbox end with it; a trial that it leaves to be started again is released first."""
    given = work("trial", 2)
    training = trained(given)
    next(training)
    assert len(actors("RayTrainWorker")) == 2
    actors("InAGroup")[0].kill()
    with pytest.raises(RayActorError):
        next(training)
    release(given.trial_folder)
    assert leftovers() == {"placement groups": [], "actors": [], "CPUs": 0}


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_a_training_that_fails_is_told_once(work: Build) -> None:
    (only,) = trained(work("nan", 2, lr=1e300))
    assert isinstance(only, Failed) and "not finite" in only.reason


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_closing_stops_the_workers_at_the_validation(work: Build) -> None:
    training = trained(work("stopped", 2))
    first = next(training)
    assert isinstance(first, Validated) and first.number == 1
    assert len(actors("RayTrainWorker")) == 2
    training.close()
    assert leftovers() == {"placement groups": [], "actors": [], "CPUs": 0}


@pytest.mark.usefixtures("clean")
def test_release_frees_what_a_killed_trial_left(tmp_path: Path) -> None:
    group = ray.util.placement_group([{"CPU": 1}])
    ray.get(group.ready())
    (tmp_path / PLACEMENT_GROUP).write_text(group.id.hex())
    release(tmp_path)
    assert leftovers()["placement groups"] == []
    assert not (tmp_path / PLACEMENT_GROUP).exists()
    release(tmp_path)  # nothing to do


@pytest.mark.usefixtures("clean")
def test_placement_groups_are_those_of_this_job_that_hold_something() -> None:
    group = ray.util.placement_group([{"CPU": 1}])
    ray.get(group.ready())
    assert placement_groups() == {group.id.hex()}
    ray.util.remove_placement_group(group)
    assert leftovers()["placement groups"] == []
    assert placement_groups() == set()


def events(storage: Path, name: str) -> list[dict[str, Any]]:
    """The journal of a search."""
    journal = storage / "searches" / name / "journal.jsonl"
    return [json.loads(line) for line in journal.read_text().splitlines()]


@pytest.fixture
def storage(tmp_path: Path, data_folder: Path) -> Path:
    """A storage folder that holds the data already."""
    (tmp_path / "data").symlink_to(data_folder)
    return tmp_path


def kill_a_worker(storage: Path, name: str) -> int:
    """Kill one after the first validation of a search; returns its process."""
    end = time.monotonic() + 300
    while not (storage / "searches" / name / "journal.jsonl").exists() or not any(
        event["event"] == "validation" for event in events(storage, name)
    ):
        assert time.monotonic() < end
        time.sleep(0.02)
    victim = actors("RayTrainWorker")[0]
    victim.send_signal(signal.SIGKILL)
    return int(victim.pid)


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_a_search_goes_on_with_the_workers_there_are_stops_early_and_leaves_nothing(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two workers is killed; the leaderboard is that of one process."""
    settings = {key: value for key, value in SETTINGS.items() if key not in ("method", "proxies_per_class")}
    settings |= {"validate_every": "3 steps", "classes_per_batch": 5, "images_per_class": 3}  # 8 and 7 images
    one = start(small_search("one", settings=settings, workers=1), InlineRunner(), storage=storage)
    results: list[Result] = []
    report = Conductor.report

    def kept(conductor: Conductor, result: Result) -> bool:
        results.append(result)
        return report(conductor, result)

    monkeypatch.setattr(Conductor, "report", kept)
    search = small_search("two", settings=settings, workers={"low": 1, "high": 2})
    with ThreadPoolExecutor() as pool:
        victim = pool.submit(kill_a_worker, storage, "two")
        outcome = start(search, RayRunner(), storage=storage)
        assert victim.result() and any(result.lost_workers for result in results if isinstance(result, Validated))
    assert outcome.state == "done"
    for ours, theirs in zip(outcome.ledger.ranking(), one.ledger.ranking(), strict=True):
        assert (ours.trial_id, ours.state, ours.validations) == (theirs.trial_id, theirs.state, theirs.validations)
        assert ours.best == pytest.approx(theirs.best, abs=1e-9)
    sizes = {event["system"]["workers"] for event in events(storage, "two") if event["event"] == "validation"}
    assert sizes <= {1, 2} and 2 in sizes
    counts = outcome.ledger.counts()
    assert (counts["done"], counts["pruned"]) == (1, 1)
    for trial in outcome.ledger.trials.values():
        seen = [
            e["validation"]
            for e in events(storage, "two")
            if e.get("trial_id") == trial.trial_id and e["event"] == "validation"
        ]
        assert seen == list(range(1, trial.validations + 1))
    assert leftovers() == {"placement groups": [], "actors": [], "CPUs": 0}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("clean")
def test_searches_in_a_row_on_one_cluster_leave_nothing(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.search.driver.write_report", lambda *_: None)  # it is not on the cluster
    for number in range(2):
        outcome = start(small_search(f"s{number}", seed=number), RayRunner(), storage=storage)
        assert outcome.state == "done"
        assert leftovers() == {"placement groups": [], "actors": [], "CPUs": 0}, number


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"workers": 4}, "--workers"),
        ({"workers": 1, "final": True, "final_workers": 4}, "--final-workers"),
    ],
)
def test_a_request_that_can_never_fit_is_refused(storage: Path, changes: dict[str, Any], option: str) -> None:
    with pytest.raises(InputError, match=rf"^{option}: 4: .* has 2 CPU: give {option} 2 or"):
        start(small_search("big", **changes), RayRunner(), storage=storage)
    assert not (storage / "searches" / "big").exists()


@pytest.mark.parametrize(
    ("changes", "each", "slots"),
    [
        ({}, {"CPU": 1, "GPU": 1}, 2),
        ({"gpus_per_trial": 0.5}, {"CPU": 1, "GPU": 0.5}, 4),
        ({"gpus_per_trial": 1 / 3}, {"CPU": 1, "GPU": 1 / 3}, 6),
        ({"workers": 2}, {"CPU": 1, "GPU": 1}, 1),
    ],
)
def test_gpus_are_shared_as_the_search_says(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], each: dict[str, float], slots: int
) -> None:
    machine = {"CPU": 16.0, "GPU": 2.0}
    monkeypatch.setattr(ray, "cluster_resources", lambda: machine)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": machine}, {"Alive": False}])
    anywhere = {k: v for k, v in SETTINGS.items() if k not in ("method", "proxies_per_class", "device")}
    search = small_search("gpus", settings=anywhere, **({"workers": 1, "max_concurrent": 10} | changes))
    assert resources(search, search.workers) == each
    assert RayRunner().slots(search) == slots


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 16.0})
    wanted = {"lr": 1e-3, "device": "cuda"}
    search = small_search("cuda", settings=wanted, space={"weight_decay": [0.0, 1e-4]})
    with pytest.raises(InputError, match="^device: 'cuda': no machine of the cluster has a GPU"):
        resources(search, 1)
    search = small_search("share", workers=1, gpus_per_trial=0.5)
    with pytest.raises(InputError, match=r"^gpus_per_trial: 0\.5: device is 'cpu'"):
        resources(search, 1)


@pytest.mark.parametrize(("starts", "attempts"), [(0, 2), (1, 2), (2, 1)])
def test_a_ray_that_does_not_start_in_time_gets_a_second_attempt(
    tmp_path: Path,
    data_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    starts: int,
    attempts: int,
) -> None:
    """With more time, when the first one's processes are gone; then the message says what the machine was doing.
    `starts`: 0 never, 1 given more time, 2 at once."""
    left: list[subprocess.Popen[bytes]] = []
    questions: list[str] = []

    def slow(**_: Any) -> None:
        assert not [process for process in left if process.poll() is None], "of the attempt before"
        left.append(services.ConsolePopen(["sleep", "600"]))
        if starts < 2:
            try:
                services.get_node("127.0.0.1:1", "node")  # as Ray does, for a while of its own
            except RuntimeError:
                raise Exception("The current node timed out\nduring startup.") from None
        raise InputError("started")

    def asked(gcs_address: str, node_id: str) -> dict[str, Any]:
        questions.append(node_id)
        if starts == 0 or len(questions) < 4:
            raise RuntimeError("no such node")
        return {}

    (tmp_path / "data").symlink_to(data_folder)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", slow)
    monkeypatch.setattr(ray, "shutdown", lambda: None)  # the cluster of the other tests stays
    monkeypatch.setattr(psutil, "disk_usage", lambda _: SimpleNamespace(free=3.1e9))
    monkeypatch.setattr(os, "getloadavg", lambda: (30.12, 20.0, 10.0))
    real = inspect.signature(services.get_node)
    assert list(real.parameters) == list(inspect.signature(asked).parameters)
    monkeypatch.setattr(services, "get_node", asked)
    monkeypatch.setattr(ray_private, "PATIENT_SECONDS", 0.2)
    monkeypatch.setattr(ray_private, "ASK_SECONDS", 0.01)
    before = services.get_node
    with pytest.raises(SystemExit) as leaving:
        main(["search", "pfml", "--dataset", "glyphs-small", "--num-trials", "1", "--storage", str(tmp_path)])
    said = capsys.readouterr().err
    assert len(left) == attempts and services.get_node is before
    assert [process.poll() for process in left if process.poll() is None] == []
    assert ("note: Ray did not start (load 30.1 on " in said) == (attempts == 2)
    if starts == 0:
        assert leaving.value.code == 1
        last = said.splitlines()[-1]
        assert last.startswith("error: Ray did not start on this machine (The current node timed out during startup.)")
        assert re.search(r"load 30\.1 on \d+ CPUs, [\d.]+ of [\d.]+ GB of memory free, 3\.1 GB free in /tmp", last)
    assert [*(tmp_path / "searches").glob("*")] == []


def test_an_interrupted_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that a server started, which it outlives."""
    left: list[psutil.Process] = []

    def interrupted(**_: Any) -> None:
        server = services.ConsolePopen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
        left.extend([psutil.Process(server.pid), psutil.Process(int(server.stdout.readline()))])
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "init", interrupted)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(KeyboardInterrupt), ray_start.own_cluster():
        pass
    assert len(left) == 2
    end = time.monotonic() + 20
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in left):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(("key", "workers"), [("workers", 33), ("final_workers", 64)])
def test_a_batch_that_cannot_be_shared_is_refused(key: str, workers: int) -> None:
    with pytest.raises(InputError, match=rf"test.yaml: {key}: {workers} workers cannot share .* of 32 images"):
        small_search("odd", **{key: workers})
