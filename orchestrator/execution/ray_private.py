"""All that we use of Ray's internals, which any release may change; tried with Ray 2.60.x.

A test fails, and says which, when one of them has moved.
"""

import asyncio
import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import ray
from ray._private import parameter, ray_constants, services, utils
from ray._private.utils import detect_fate_sharing_support
from ray.job_config import JobConfig

from orchestrator.contract import shadows
from orchestrator.errors import InputError
from orchestrator.storage.provenance import command

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

PATIENT_SECONDS = 240.0
"""How long the second attempt to start Ray waits for its own node; Ray waits 30 s."""
VERSIONS_SECONDS = 20.0
"""How long a cluster may take to tell its versions."""
ASK_SECONDS = 0.5
"""How often it asks for the node."""


# A cluster's start ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_node() -> Iterator[None]:
    """A node only has 127.0.0.1 as its address, where its servers listen, if Ray expects no other nodes."""
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        os.environ.pop(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, None)


def expect_other_nodes() -> None:
    """Undo `one_node`'s constant: the cluster is not our own, and may have several nodes."""
    ray_constants.ENABLE_RAY_CLUSTER = True


@contextlib.contextmanager
def hide_command_line() -> Iterator[None]:
    """Ray shows a job's command line to the whole cluster: reduce ours to its first words, without any password."""
    original = utils.get_entrypoint_name
    utils.get_entrypoint_name = command
    try:
        yield
    finally:
        utils.get_entrypoint_name = original


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Ray asks for its node again and again for 30 s, a number in the middle of its code: here each question waits."""
    original = services.get_node

    def patient(*args: Any, **kwargs: Any) -> Any:
        end = time.monotonic() + PATIENT_SECONDS
        while True:
            try:
                return original(*args, **kwargs)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > end:
                    raise
                time.sleep(ASK_SECONDS)

    services.get_node = patient
    try:
        yield
    finally:
        services.get_node = original


@contextlib.contextmanager
def no_monitors(ray_output: bool) -> Iterator[None]:
    """Without two of Ray's servers, which take long to start and to end: the log monitor, which gives a driver its
    workers' output, and the autoscaler's monitor. `ray.init` has no options for them, the class of its options has."""
    if ray_output:
        yield
        return
    original = parameter.RayParams
    parameter.RayParams = functools.partial(original, include_log_monitor=False, no_monitor=True)
    try:
        yield
    finally:
        parameter.RayParams = original


@contextlib.contextmanager
def own_groups(servers: list[psutil.Process]) -> Iterator[None]:
    """Ray's servers that are started in this block are added to `servers`, each in a process group of its own: a
    SIGTERM to our group (`timeout`, a closed login) must not kill the cluster of a search that stops cleanly. The
    kernel ends them when this process dies; where it does not, Ray ends them by our group, and they stay in it."""
    original = services.ConsolePopen
    options: dict[str, Any] = {"process_group": 0} if detect_fate_sharing_support() else {}

    def started(*args: Any, **kwargs: Any) -> Any:
        server = original(*args, **kwargs, **options)
        servers.append(psutil.Process(server.pid))
        return server

    services.ConsolePopen = started
    try:
        yield
    finally:
        services.ConsolePopen = original


class _OwnPath(JobConfig):  # type: ignore[misc]
    """A job to whose workers' path Ray adds nothing of the driver's."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True


def job_beside_shadows() -> JobConfig | None:
    """Ray puts the folder of the driver's program and its working directory before all else on its workers' path: this
    leaves out those that hide a package of ours. None if neither does. InputError where Ray cannot be told."""
    program = Path(os.path.realpath(sys.argv[0])).parent
    folders = [folder for folder in (program, Path.cwd()) if folder != program or str(program) in sys.path]
    hiding = {folder: modules for folder in folders if (modules := shadows(folder))}
    if not hiding:
        return None
    if not hasattr(JobConfig, "_runtime_env_has_working_dir"):
        module = next(iter(hiding.values()))[0]
        raise InputError(f"{module} would be imported by Ray's workers: rename it or start from another directory")
    return _OwnPath(_py_driver_sys_path=[str(folder) for folder in folders if folder not in hiding])


# Its nodes and processes ---------------------------------------------------------------------------------------------


def clusters_here() -> tuple[str | None, list[str]]:
    """The address of the cluster that `ray start` last started or joined on this machine, and those of all clusters
    with processes here, private ones too; they may not answer."""
    return services.find_bootstrap_address(None), sorted(services.find_gcs_addresses())


def cluster_versions(address: str) -> dict[str, str]:
    """`ray_version` and `python_version` of the cluster whose head node answers at an address; nothing where this Ray
    has another way to ask. RayError if it is no head node, or refuses us."""
    try:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        text = GcsClient(address=address).internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=VERSIONS_SECONDS)
        return dict(json.loads(text or "{}"))
    except (ImportError, AttributeError, TypeError, ValueError):
        return {}


def own_node_died() -> bool:
    """Whether a server of the node that this process started has died."""
    started = ray._private.worker._global_node
    mortal = (ray_constants.PROCESS_TYPE_RAYLET, ray_constants.PROCESS_TYPE_GCS_SERVER)
    return started is not None and any(kind in mortal for kind, _ in started.dead_processes())


def process_of(actor: Any) -> tuple[str, int]:
    """The node and the process of an actor."""
    state = ray._private.state.actors(actor._actor_id.hex())
    return state["Address"]["NodeID"], int(state["Pid"])


def logs_here() -> Path:
    """The folder of the logs of this process's node."""
    return Path(ray._private.worker._global_node.get_logs_dir_path())


# Tune and Train ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_environment() -> Iterator[None]:
    """Trials' processes have no environment of their own, as those that Ray starts ahead have none. And Tune would put
    AWS's keys into it, which Ray logs in public: trials take them from the environment or the files of their node."""
    from ray.tune.execution import class_cache

    names, values = class_cache.ENV_VARS_TO_PROPAGATE, class_cache.DEFAULT_ENV_VARS
    class_cache.ENV_VARS_TO_PROPAGATE, class_cache.DEFAULT_ENV_VARS = set(), {}
    try:
        yield
    finally:
        class_cache.ENV_VARS_TO_PROPAGATE, class_cache.DEFAULT_ENV_VARS = names, values


@contextlib.contextmanager
def skip_callback_count() -> Iterator[None]:
    """Tune counts its callbacks for Ray's statistics, and would import MLflow and W&B to tell their kinds."""
    from ray.air._internal import usage

    original = usage._count_callbacks
    usage._count_callbacks = lambda _: {}
    try:
        yield
    finally:
        usage._count_callbacks = original


def lean_trainer() -> "type[TorchTrainer]":
    """Ray Train's trainer without the processes that we do not need."""
    from ray.train.torch import TorchTrainer
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

    class Scaling(FixedScalingPolicy):  # type: ignore[misc]
        """Asks no autoscaler: the placement group that waits for its place does. Ray's would start a process for that,
        which imports ray.data, and wait for it before the workers."""

        def after_controller_start(self, train_run_context: Any) -> None:
            pass

        def _maybe_send_resource_request(self) -> None:
            pass

    class Trainer(TorchTrainer):  # type: ignore[misc]
        """Its controller runs in this process, which is warm and only waits, and not in one of its own, which would
        import Ray Train and torch first.

        Without Ray's cleaner of placement groups: we remove them ourselves, and where no dashboard answers, which it
        asks again and again, each run would wait 12 s for its end. And without Ray's data sets, which we do not use:
        they cost each worker group a process that imports them."""

        def _initialize_and_run_controller(self, **parts: Any) -> Any:
            controller = TrainController(**parts | {"scaling_policy": Scaling(self.scaling_config)})
            asyncio.run(controller.run())
            return controller.get_result()

        def _create_default_callbacks(self) -> list[Any]:
            unused = DatasetsCallback | PlacementGroupCleanerCallback
            return [callback for callback in super()._create_default_callbacks() if not isinstance(callback, unused)]

    return Trainer
