"""The inner parts of Ray that we use or replace are there, and Ray still uses those that we replace."""

import contextlib
import gc
import importlib
import inspect
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.job_config import JobConfig

from orchestrator.errors import ClusterFailed, InputError
from orchestrator.execution import ray_private, ray_start, ray_train, ray_tune

USED = {
    "ray._private.node": [
        "services.get_node(",
        "def dead_processes(",
        "def get_logs_dir_path(",
        *(".include_log_monitor", ".no_monitor"),
    ],
    "ray._private.services": [
        *("ConsolePopen(", "ENABLE_RAY_CLUSTER:"),
        *("def find_bootstrap_address(", "def find_gcs_addresses("),
    ],
    "ray._private.worker": [
        *("parameter.RayParams(", "get_entrypoint_name(", "_global_node = "),
        "job_config._runtime_env_has_working_dir(",
    ],
    "ray._common.usage.usage_constants": ['CLUSTER_METADATA_KEY = b"CLUSTER_METADATA"'],
    "ray.job_config": ["def _runtime_env_has_working_dir(", "_py_driver_sys_path: "],
    "ray.tune.execution.tune_controller": ["RayActorManager("],
    "ray.air.execution._internal.actor_manager": [
        "def _actor_task_failed(",
        "elif isinstance(exception, RayTaskError)",
    ],
    "ray._private.parameter": ["no_monitor:", "include_log_monitor:"],
    "ray._private.state": ["def actors("],
    "ray._private.utils": ["def detect_fate_sharing_support("],
    "ray._private.ray_constants": [
        *("ENABLE_RAY_CLUSTER = ", "ENABLE_RAY_CLUSTERS_ENV_VAR = "),
        *('PROCESS_TYPE_RAYLET = "raylet"', 'PROCESS_TYPE_GCS_SERVER = "gcs_server"'),
    ],
    "ray.air._internal.usage": ["= _count_callbacks("],
    "ray.tune.execution.class_cache": ["in ENV_VARS_TO_PROPAGATE", "DEFAULT_ENV_VARS"],
    "ray.train.v2.api.data_parallel_trainer": [
        *("self._initialize_and_run_controller(", "self._create_default_callbacks("),
        *("scaling_policy=", "TrainController"),
    ],
    "ray.train.v2._internal.execution.controller": ["TrainController"],
    "ray.train.v2._internal.execution.scaling_policy.scaling_policy": [
        *("def _maybe_send_resource_request(", "def after_controller_start("),
    ],
    "ray.train.v2._internal.callbacks.datasets": ["class DatasetsCallback"],
    "ray.train.v2._internal.callbacks.placement_group_callback": ["class PlacementGroupCleanerCallback"],
}
"""Texts of the source of each module, which are there as long as it does what `ray_private` relies on."""


def moved(used: dict[str, list[str]]) -> list[str]:
    """The texts that are no longer there."""
    found = []
    for name, parts in used.items():
        source = inspect.getsource(importlib.import_module(name))
        found += [f"{name}: {part}" for part in parts if part not in source]
    return found


LOCKED = next(
    package["version"]
    for package in tomllib.loads((Path(__file__).parents[2] / "uv.lock").read_text())["package"]
    if package["name"] == "ray"
)
locked_ray = pytest.mark.skipif(ray.__version__ != LOCKED, reason=f"texts of Ray {LOCKED}")


@locked_ray
def test_nothing_has_moved() -> None:
    assert moved(USED) == []
    assert moved({"ray._private.node": ["services.get_node(", "services.find_node("]}) == [
        "ray._private.node: services.find_node("
    ]


@locked_ray
def test_nothing_is_missing() -> None:
    assert ray_private.missing_parts() == []
    assert ray_private.lean_trainer().__name__ == "Trainer"


def test_it_was_tried_with_the_locked_version() -> None:
    tried = re.search(r"Ray (\d+\.\d+)\.x", ray_private.__doc__ or "")
    assert tried is not None and LOCKED.startswith(f"{tried[1]}.")


@pytest.fixture
def bare_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray without any of the parts, as a later version may be."""
    monkeypatch.setattr(ray_private.RayPart, "get", lambda part: None)


@pytest.mark.usefixtures("bare_ray")
def test_without_all_of_them_nothing_fails() -> None:
    from ray.train.torch import TorchTrainer

    assert ray_private.lean_trainer() is TorchTrainer
    assert ray_private.clusters_here() == (None, []) and not ray_private.own_node_died()
    assert ray_private.logs_here().name == "logs"
    with pytest.raises(LookupError, match="does not say"):
        ray_private.process_of(None)
    ray_private.expect_other_nodes()
    with (
        ray_private.one_node(),
        ray_private.no_monitors(False),
        ray_private.patience(),
        ray_private.own_groups([]),
        ray_private.hide_command_line(),
        ray_private.skip_callback_count(),
        ray_private.outlive_full_memory(),
        ray_private.no_environment(),
    ):
        assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    lacks = ray_private.missing_parts()
    assert "trials with several workers start later" in lacks and len(lacks) == len(set(lacks))


def tell_full_memory() -> list[str]:
    """What Tune does, as it is now, with a trial whose process Ray killed for its node's memory: the kinds of errors
    that it passes on."""
    from ray.exceptions import OutOfMemoryError
    from ray.tune.execution import tune_controller

    told: list[str] = []
    actor = SimpleNamespace(actor_id="a", _on_error=lambda _, error: told.append(type(error).__name__))
    task: Any = SimpleNamespace(_tracked_actor=actor, _on_error=None)
    kind = tune_controller.RayActorManager
    manager: Any = kind.__new__(kind)
    manager._failed_actor_ids, manager._cleanup_actor = set(), lambda tracked_actor: None
    manager._actor_task_failed(
        tracked_actor_task=task, exception=OutOfMemoryError("5 worker(s) were killed\nmuch more")
    )
    return told


def test_a_process_killed_for_memory_is_a_lost_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune by itself ends the run; where its parts are others, the search ends with one line."""
    with pytest.raises(RuntimeError, match="unexpected"):
        tell_full_memory()
    with ray_private.outlive_full_memory():
        assert tell_full_memory() == ["RayActorError"]
    monkeypatch.setattr(ray_private.RayPart, "get", lambda part: None)
    with pytest.raises(ClusterFailed) as raised, ray_private.outlive_full_memory():
        tell_full_memory()
    assert str(raised.value) == (
        "Ray killed processes of trials: 5 worker(s) were killed; run fewer at once, and resume"
    )
    with pytest.raises(RuntimeError, match="^another$"), ray_private.outlive_full_memory():
        raise RuntimeError("another")


@pytest.mark.parametrize("fault", ["/s: No space left on device", None])
def test_what_tune_cannot_read_after_a_fault_of_the_disk_is_not_told(
    monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    """At its end it reads the record that it could not write; without a fault that is an error as any other."""
    here = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: here)
    conductor: Any = SimpleNamespace(search=SimpleNamespace(workers=1), fault=fault)
    expected = contextlib.nullcontext() if fault else pytest.raises(json.JSONDecodeError)
    with expected, ray_tune.follow_cluster(conductor, {}):
        json.loads("")


BARE = """
import ray
from orchestrator.execution import ray_private, ray_start
ray_private.RayPart.get = lambda part: None
with ray_start.own_cluster():
    print(ray.get(ray.remote(num_cpus=1)(lambda: "it runs").remote()))
"""


@pytest.mark.slow
def test_a_cluster_starts_without_any_of_them() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == "", done.stderr[-2000:]


TWICE = """
from ray._private import worker
from orchestrator.execution import ray_start
inside = []
for _ in range(2):
    with ray_start.own_cluster():
        node = worker._global_node
        inside.append(node._session_dir in node._object_spilling_config)
print(*inside)
"""


@pytest.mark.slow
def test_a_second_cluster_of_a_process_spills_into_its_own_session() -> None:
    """The folder of the first is gone by then, which some starts do not survive: Ray keeps it in the options' dict."""
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.split() == ["True", "True"], done.stdout + done.stderr[-2000:]


def test_a_part_that_is_gone_or_another_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import parameter

    assert ray_private.RayPart("ray._private.no_such", "x", "").get() is None
    assert ray_private.RayPart("ray._private.services", "no_such", "").get() is None
    monkeypatch.setattr(parameter, "RayParams", lambda: None)  # has not the options that we want
    other = parameter.RayParams
    with ray_private.no_monitors(False):
        assert parameter.RayParams is other


@pytest.mark.parametrize("error", [TypeError("other arguments"), RuntimeError("Unknown keyword argument(s): _system")])
def test_a_ray_with_other_inner_parts_starts_by_its_public_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """Planted: the start with inner parts and options fails."""
    starts: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        starts.append(options)
        if "_node_ip_address" in options:
            raise error

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    ray_start.start_ray([], include_dashboard=False, _node_ip_address="127.0.0.1")
    assert starts[1:] == [{"address": "local", "include_dashboard": False}]
    assert capsys.readouterr() == ("", "")


def test_a_trainer_of_other_inner_parts_is_replaced_by_rays_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the lean trainer fails as it would with another controller; so may a training, which is told."""
    from ray.train.torch import TorchTrainer

    ran: list[Any] = []
    fault: Exception = TypeError("controller_class() got an unexpected keyword argument")

    def build(work: Any, mailbox: Any, trainer: Any, count: int) -> Any:
        def fit() -> None:
            ran.append(trainer)
            if trainer is not TorchTrainer:
                raise fault

        return SimpleNamespace(fit=fit)

    monkeypatch.setattr(ray_train, "build_trainer", build)
    ray_train.fit_workers(SimpleNamespace(), None, 2)  # type: ignore[arg-type]
    assert len(ran) == 2 and ran[1] is TorchTrainer
    fault = RuntimeError("the training failed")
    with pytest.raises(RuntimeError, match="the training failed"):
        ray_train.fit_workers(SimpleNamespace(), None, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("module", ["methods/__init__.py", "orchestrator.py"])
def test_workers_do_not_look_first_where_our_packages_are_hidden(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/elsewhere/program"])
    monkeypatch.syspath_prepend("/elsewhere")
    assert ray_private.job_beside_shadows() is None
    (tmp_path / module).parent.mkdir(exist_ok=True)
    (tmp_path / module).touch()
    job = ray_private.job_beside_shadows()
    assert job is not None and job._runtime_env_has_working_dir() and job._py_driver_sys_path == ["/elsewhere"]
    monkeypatch.delattr(JobConfig, "_runtime_env_has_working_dir")
    with pytest.raises(InputError, match="would be imported by Ray's workers: rename it"):
        ray_private.job_beside_shadows()


def test_what_is_replaced_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import parameter, services, utils
    from ray.air._internal import usage
    from ray.tune.execution import class_cache

    def now() -> list[object]:
        ours = services.get_node, services.ConsolePopen, utils.get_entrypoint_name
        environment = class_cache.ENV_VARS_TO_PROPAGATE, class_cache.DEFAULT_ENV_VARS
        variables = {name: value for name, value in os.environ.items() if name.startswith(("RAY_", "TUNE_"))}
        level = logging.getLogger("ray.tune").level
        return [parameter.RayParams, *ours, usage._count_callbacks, *environment, variables, level]

    for name in ("TUNE_GLOBAL_CHECKPOINT_S", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    logging.getLogger("ray.tune").setLevel(logging.WARNING)
    before = now()
    with (
        ray_start.ray_environment(False),
        ray_private.no_monitors(False),
        ray_private.patience(),
        ray_private.own_groups([]),
        ray_private.hide_command_line(),
        ray_private.skip_callback_count(),
        ray_private.no_environment(),
    ):
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert not [one for one, other in zip(now(), before, strict=True) if one == other]
    assert now() == before
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    with ray_start.ray_environment(False):
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"


@pytest.mark.parametrize("interrupts", [0, 1, 2])
def test_a_ctrl_c_does_not_cut_the_end_of_ray(interrupts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one does; a plain `ray.shutdown()` is cut by the first."""
    ends: list[bool] = []

    def end() -> None:
        for _ in range(interrupts):
            signal.raise_signal(signal.SIGINT)
        ends.append(gc.isenabled())

    monkeypatch.setattr(ray, "shutdown", end)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) if interrupts else contextlib.nullcontext():
        ray_start.shut_down()
    assert ends == ([False] if interrupts < 2 else [])
    assert gc.isenabled() and signal.getsignal(signal.SIGINT) is handler
    if interrupts == 1:
        with pytest.raises(KeyboardInterrupt):
            ray.shutdown()
        assert ends == [False]
