"""All that we use of Ray's internals, which a release may change; tried with Ray 2.60.x and those of docs/versions.md.

Each is optional. Where this Ray lacks it, Ray is used by its public means, and a search lacks what the part's line in
PARTS says; `orchestrator doctor` prints these lines. Why they stay, although public means exist for the most:

- An own cluster is started by `ray.init` with these parts, not by `ray start` and `ray.init(address)`: those always
  start the log monitor and the autoscaler's, outlive a search that is killed, and are found by `--address auto`. On two
  loaded cores (2026-11-26, one turn against three) the first task was done after 13.6 s and 5.0 s of a processor, with
  these parts after 9.5 to 13.1 s and 1.9 to 2.4 s; the end took 35 s, for Ray drains its node, against 0.5 to 0.8 s.
- A job's command line, Tune's AWS variables and Tune's count of callbacks have no public switch.
- A node that died here and an actor's process are asked of the node itself: the public state API needs the dashboard,
  and the cluster's own health check takes up to minutes.
- Which nodes are drained has no public means but that of Ray Train's own watcher: an actor more for each trial.
- Ray Train's controller has no public way to run in a process that is there already (`lean_trainer`).
"""

import asyncio
import contextlib
import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from orchestrator.contract import shadows
from orchestrator.errors import ClusterFailed, InputError
from orchestrator.storage.provenance import command

if TYPE_CHECKING:
    from ray.job_config import JobConfig
    from ray.train.torch import TorchTrainer

PATIENT_SECONDS = 240.0
"""How long the second attempt to start Ray waits for its own node; Ray waits 30 s."""
VERSIONS_SECONDS = 20.0
"""How long a cluster may take to tell its versions."""
ASK_SECONDS = 0.5
"""How often it asks for the node."""
OTHER_RAY = (TypeError, AttributeError, ImportError)
"""What a use of an inner part raises where this Ray's is another."""


@dataclass(frozen=True)
class RayPart:
    """A name in a module of Ray, and what a search lacks where it is not there."""

    module: str
    name: str
    without: str

    def get(self) -> Any:
        """The part, None if this Ray lacks it."""
        try:
            return getattr(importlib.import_module(self.module), self.name)
        except Exception:  # a module of another layout may fail in any way
            return None

    @contextlib.contextmanager
    def replace_by(self, by: Callable[[Any], Any]) -> Iterator[None]:
        """In this block the part is what `by` makes of it; it stays as it is where it is missing or `by` fails."""
        original = self.get()
        try:
            new = None if original is None else by(original)
        except Exception:
            new = None
        if new is None:
            yield
            return
        module = sys.modules[self.module]
        setattr(module, self.name, new)
        try:
            yield
        finally:
            setattr(module, self.name, original)


CLUSTERS = RayPart("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", "its own cluster also listens to the network")
CLUSTERS_VARIABLE = RayPart("ray._private.ray_constants", "ENABLE_RAY_CLUSTERS_ENV_VAR", CLUSTERS.without)
ENTRYPOINT = RayPart("ray._private.utils", "get_entrypoint_name", "the cluster shows its whole command line")
NODE = RayPart("ray._private.services", "get_node", "a start on a busy machine is given up after 30 s")
PARAMETERS = RayPart("ray._private.parameter", "RayParams", "its start takes longer, for two more servers")
POPEN = RayPart("ray._private.services", "ConsolePopen", "a signal to its process group ends its cluster too")
FATE_SHARING = RayPart("ray._private.utils", "detect_fate_sharing_support", POPEN.without)
STARTED_ADDRESS = RayPart("ray._private.services", "find_bootstrap_address", "`--address auto` finds no cluster")
ADDRESSES = RayPart("ray._private.services", "find_gcs_addresses", STARTED_ADDRESS.without)
GLOBAL_NODE = RayPart("ray._private.worker", "_global_node", "the death of this machine's node is seen later")
ACTORS = RayPart("ray._private.state", "actors", "reasons of lost processes lack their last lines")
STATE = RayPart("ray._private.state", "state", "a node that is drained is lost without notice")
VARIABLES = RayPart("ray.tune.execution.class_cache", "ENV_VARS_TO_PROPAGATE", "Ray logs AWS's keys of the driver")
DEFAULT_VARIABLES = RayPart("ray.tune.execution.class_cache", "DEFAULT_ENV_VARS", "trials' processes start later")
CALLBACKS = RayPart("ray.air._internal.usage", "_count_callbacks", "its start takes longer: Ray imports trackers")
CONTROLLER = RayPart(
    "ray.train.v2._internal.execution.controller", "TrainController", "trials with several workers start later"
)
MANAGER = RayPart(
    "ray.tune.execution.tune_controller", "RayActorManager", "a node whose memory is full ends the search, not a trial"
)
JOB = RayPart("ray.job_config", "JobConfig", "a search cannot be started beside a package that hides ours")
CLIENT = RayPart("ray._raylet", "GcsClient", "a cluster of another version is refused later")
SCALING = RayPart("ray.train.v2._internal.execution.scaling_policy", "FixedScalingPolicy", CONTROLLER.without)
PARTS = (
    *(CLUSTERS, CLUSTERS_VARIABLE, ENTRYPOINT, NODE, PARAMETERS, POPEN, FATE_SHARING, STARTED_ADDRESS, ADDRESSES),
    *(GLOBAL_NODE, ACTORS, STATE, VARIABLES, DEFAULT_VARIABLES, CALLBACKS, CONTROLLER, SCALING, MANAGER, JOB, CLIENT),
)


def missing_parts() -> list[str]:
    """What a search lacks with this Ray, each once."""
    importlib.import_module("ray._private.worker")
    missing = [part for part in PARTS if part.get() is None and part is not GLOBAL_NODE]
    if not hasattr(sys.modules["ray._private.worker"], GLOBAL_NODE.name):  # it is None until Ray is started
        missing.append(GLOBAL_NODE)
    return list(dict.fromkeys(part.without for part in missing))


# A cluster's start ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_node() -> Iterator[None]:
    """A node only has 127.0.0.1 as its address, where its servers listen, if Ray expects no other nodes."""
    variable = CLUSTERS_VARIABLE.get() or "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    os.environ[variable] = "0"
    _set_clusters(False)
    try:
        yield
    finally:
        os.environ.pop(variable, None)


def expect_other_nodes() -> None:
    """Undo `one_node`'s constant: the cluster is not our own, and may have several nodes."""
    _set_clusters(True)


def _set_clusters(several: bool) -> None:
    if CLUSTERS.get() is not None:
        setattr(sys.modules[CLUSTERS.module], CLUSTERS.name, several)


@contextlib.contextmanager
def hide_command_line() -> Iterator[None]:
    """Ray shows a job's command line to the whole cluster: reduce ours to its first words, without any password."""
    with ENTRYPOINT.replace_by(lambda _: command):
        yield


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Ray asks for its node again and again for 30 s, a number in the middle of its code: here each question waits."""

    def patient(original: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            end = time.monotonic() + PATIENT_SECONDS
            while True:
                try:
                    return original(*args, **kwargs)
                except RuntimeError:  # it is not there yet
                    if time.monotonic() > end:
                        raise
                    time.sleep(ASK_SECONDS)

        return ask

    with NODE.replace_by(patient):
        yield


@contextlib.contextmanager
def no_monitors(ray_output: bool) -> Iterator[None]:
    """Without two of Ray's servers, which take long to start and to end: the log monitor, which gives a driver its
    workers' output, and the autoscaler's monitor. `ray.init` has no options for them, the class of its options has."""
    if ray_output:
        yield
        return

    def without(original: Callable[..., Any]) -> Callable[..., Any]:
        options = functools.partial(original, include_log_monitor=False, no_monitor=True)
        options()  # a TypeError where it has no such options
        return options

    with PARAMETERS.replace_by(without):
        yield


@contextlib.contextmanager
def own_groups(servers: list[psutil.Process]) -> Iterator[None]:
    """Ray's servers that are started in this block are added to `servers`, each in a process group of its own: a
    SIGTERM to our group (`timeout`, a closed login) must not kill the cluster of a search that stops cleanly. The
    kernel ends them when this process dies; where it does not, Ray ends them by our group, and they stay in it."""
    shares_fate = FATE_SHARING.get()
    options: dict[str, Any] = {"process_group": 0} if shares_fate is not None and shares_fate() else {}

    def group(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            server = original(*args, **kwargs, **options)
            servers.append(psutil.Process(server.pid))
            return server

        return start

    with POPEN.replace_by(group):
        yield


def job_beside_shadows() -> "JobConfig | None":
    """Ray puts the folder of the driver's program and its working directory before all else on its workers' path: this
    leaves out those that hide a package of ours. None if neither does. InputError where Ray cannot be told."""
    program = Path(os.path.realpath(sys.argv[0])).parent
    folders = [folder for folder in (program, Path.cwd()) if folder != program or str(program) in sys.path]
    hiding = {folder: modules for folder in folders if (modules := shadows(folder))}
    if not hiding:
        return None
    kind = JOB.get()
    if kind is None or not hasattr(kind, "_runtime_env_has_working_dir"):
        module = next(iter(hiding.values()))[0]
        raise InputError(f"{module} would be imported by Ray's workers: rename it or start from another directory")

    class OwnPath(kind):  # type: ignore[misc, valid-type]
        """A job to whose workers' path Ray adds nothing of the driver's."""

        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return OwnPath(_py_driver_sys_path=[str(folder) for folder in folders if folder not in hiding])


# Its nodes and processes ---------------------------------------------------------------------------------------------


def clusters_here() -> tuple[str | None, list[str]]:
    """The address of the cluster that `ray start` last started or joined on this machine, and those of all clusters
    with processes here, private ones too; they may not answer."""
    started, every = STARTED_ADDRESS.get(), ADDRESSES.get()
    return started(None) if started is not None else None, sorted(every()) if every is not None else []


def cluster_versions(address: str) -> dict[str, str]:
    """`ray_version` and `python_version` of the cluster whose head node answers at an address; nothing where this Ray
    has another way to ask. RayError if it is no head node, or refuses us."""
    client = CLIENT.get()
    try:
        text = client(address=address).internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=VERSIONS_SECONDS)
        return dict(json.loads(text or "{}"))
    except (*OTHER_RAY, ValueError):
        return {}


def own_node_died() -> bool:
    """Whether a server of the node that this process started has died."""
    started = GLOBAL_NODE.get()
    if started is None:
        return False
    try:
        return any(kind in ("raylet", "gcs_server") for kind, _ in started.dead_processes())
    except OTHER_RAY:
        return False


def process_of(actor: Any) -> tuple[str, int]:
    """The node and the process of an actor. LookupError if this Ray does not say."""
    actors = ACTORS.get()
    if actors is None:
        raise LookupError("this Ray does not say which process an actor has")
    state = actors(actor._actor_id.hex())
    return state["Address"]["NodeID"], int(state["Pid"])


def draining_nodes() -> frozenset[str]:
    """The nodes that are being drained, by `ray drain-node` or an autoscaler; none where this Ray does not say."""
    with contextlib.suppress(Exception):
        return frozenset(STATE.get().get_draining_nodes())
    return frozenset()


def logs_here() -> Path:
    """The folder of the logs of this process's node."""
    try:
        return Path(GLOBAL_NODE.get().get_logs_dir_path())
    except AttributeError:
        return Path("/tmp/ray/session_latest/logs")


# Tune and Train ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_environment() -> Iterator[None]:
    """Trials' processes have no environment of their own, as those that Ray starts ahead have none. And Tune would put
    AWS's keys into it, which Ray logs in public: trials take them from the environment or the files of their node."""
    with VARIABLES.replace_by(lambda _: set()), DEFAULT_VARIABLES.replace_by(lambda _: {}):
        yield


@contextlib.contextmanager
def skip_callback_count() -> Iterator[None]:
    """Tune counts its callbacks for Ray's statistics, and would import MLflow and W&B to tell their kinds."""
    with CALLBACKS.replace_by(lambda _: lambda _: {}):
        yield


@contextlib.contextmanager
def outlive_full_memory() -> Iterator[None]:
    """Tune ends its whole run where Ray kills a trial's process because its node's memory is full. In this block the
    trial has lost its process, as by any other kill. ClusterFailed where this Ray's Tune is another inside."""
    from ray.exceptions import OutOfMemoryError, RayActorError

    def forgive(value: Any) -> Any:
        return RayActorError(error_msg=str(value)) if isinstance(value, OutOfMemoryError) else value

    def forgiving(manager: Any) -> Any:
        failed = manager._actor_task_failed

        class Manager(manager):  # type: ignore[misc]
            def _actor_task_failed(self, *given: Any, **named: Any) -> None:
                failed(self, *map(forgive, given), **{name: forgive(value) for name, value in named.items()})

        return Manager

    try:
        with MANAGER.replace_by(forgiving):
            yield
    except RuntimeError as error:
        if not isinstance(error.__cause__, OutOfMemoryError):
            raise
        reason = str(error.__cause__).partition("\n")[0]
        raise ClusterFailed(f"Ray killed processes of trials: {reason}; run fewer at once, and resume") from error


UNUSED = ("DatasetsCallback", "DatasetsSetupCallback", "PlacementGroupCleanerCallback")
"""Ray Train's callbacks that `lean_trainer` leaves out."""


def lean_trainer() -> "type[TorchTrainer]":
    """Ray Train's trainer without the processes that we do not need; as it is where this Ray lacks the parts."""
    from ray.train.torch import TorchTrainer

    controller_class, policy_class = CONTROLLER.get(), SCALING.get()
    hooks = ("_initialize_and_run_controller", "_create_default_callbacks")
    if controller_class is None or policy_class is None or not all(hasattr(TorchTrainer, hook) for hook in hooks):
        return TorchTrainer  # type: ignore[no-any-return]

    class Scaling(policy_class):  # type: ignore[misc, valid-type]
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
            controller = controller_class(**parts | {"scaling_policy": Scaling(self.scaling_config)})
            asyncio.run(controller.run())
            return controller.get_result()

        def _create_default_callbacks(self) -> list[Any]:
            callbacks = super()._create_default_callbacks()
            return [callback for callback in callbacks if type(callback).__name__ not in UNUSED]

    return Trainer
