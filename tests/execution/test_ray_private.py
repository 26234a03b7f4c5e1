"""The inner parts of Ray that we use or replace are there, and Ray still uses those that we replace."""

import importlib
import inspect
import logging
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
import ray
from ray.job_config import JobConfig

from orchestrator.errors import InputError
from orchestrator.execution import ray_private, ray_start

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
    "ray._private.parameter": ["no_monitor:", "include_log_monitor:"],
    "ray._private.state": ["def actors("],
    "ray._private.utils": ["def detect_fate_sharing_support("],
    "ray._private.ray_constants": [
        *("ENABLE_RAY_CLUSTER = ", "ENABLE_RAY_CLUSTERS_ENV_VAR = "),
        *("PROCESS_TYPE_RAYLET = ", "PROCESS_TYPE_GCS_SERVER = "),
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


def test_nothing_has_moved() -> None:
    assert moved(USED) == []
    assert moved({"ray._private.node": ["services.get_node(", "services.find_node("]}) == [
        "ray._private.node: services.find_node("
    ]


def test_it_was_tried_with_this_version() -> None:
    pinned = [
        word
        for word in tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]
        if re.match(r"ray\b", word)
    ]
    tried = re.search(r"Ray (\d+\.\d+)\.x", ray_private.__doc__ or "")
    assert tried is not None and ray.__version__.startswith(f"{tried[1]}.") and f">={tried[1]}" in pinned[0]


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
