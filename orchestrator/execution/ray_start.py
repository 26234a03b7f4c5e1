"""Starting Ray without leaking secrets, and with more time on a busy machine."""

import contextlib
import functools
import logging
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import parameter, ray_constants, services, utils
from ray._private.utils import detect_fate_sharing_support

from orchestrator.errors import ClusterFailed
from orchestrator.storage.provenance import command
from orchestrator.storage.scratch import scratch

PATIENT_SECONDS = 240.0
"""How long the second attempt waits for Ray's own node; Ray waits 30 s."""
ASK_SECONDS = 0.5
"""How often it asks for the node."""


# no output, our own signal handling, and none of Tune's records: the journal is the record
ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

OWN: dict[str, Any] = {
    "include_dashboard": False,
    "_node_ip_address": "127.0.0.1",
    # the processes that Ray starts ahead wait for the trials: it would end them when the first trial takes a CPU
    "_system_config": {"idle_worker_killing_time_threshold_ms": 60_000},
}
"""The options of `ray.init` for a cluster on this machine."""


@contextlib.contextmanager
def own_cluster(ray_output: bool = False) -> Iterator[None]:
    """A cluster on this machine for this process, ended after the block. Raises ClusterFailed if it does not start."""
    prepare(ray_output)
    with scratch():
        keep_token()
        servers: list[psutil.Process] = []
        try:
            # a node only has 127.0.0.1 as its address, where its servers listen, if Ray expects no other nodes
            os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
            ray_constants.ENABLE_RAY_CLUSTER = False
            start(servers, **options(ray_output), **OWN)
            with quiet(ray_output):
                yield
        finally:
            _end(servers)
            os.environ.pop(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, None)


def prepare(ray_output: bool) -> None:
    """Set what Ray reads from this process."""
    os.environ.update(ENVIRONMENT)
    if not ray_output:
        for name in ("ray", "ray.tune", "ray.train"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # else a lost process is an ERROR with a traceback


def options(ray_output: bool) -> dict[str, Any]:
    """The options of `ray.init` for any cluster."""
    return {"log_to_driver": ray_output, "logging_level": "INFO" if ray_output else "ERROR"}


@contextlib.contextmanager
def quiet(ray_output: bool) -> Iterator[None]:
    """Hide Ray's messages about its processes: at any log level they go to our stdout, which is for results."""
    if ray_output:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def unnamed() -> Iterator[None]:
    """Ray shows a job's command line to the whole cluster: reduce ours to its first words, without any password."""
    theirs = utils.get_entrypoint_name
    utils.get_entrypoint_name = command
    try:
        yield
    finally:
        utils.get_entrypoint_name = theirs


def start(servers: list[psutil.Process], **options: Any) -> None:
    """Start a cluster on this machine, with `ray.init`'s options; its servers are added to `servers`. On a busy
    machine, try a second time with more time.

    Raises ClusterFailed with the load of the machine."""
    try:
        _init(servers, **options)
        return
    except Exception as error:  # a start that takes too long raises a bare Exception
        first, reason = error, _told(error)
    if not isinstance(first, ValueError):  # a wrong option: it would be refused again
        print(f"note: Ray did not start ({machine()}): trying again, with more time", file=sys.stderr)
        with _patience():
            try:
                _init(servers, **options)
                return
            except Exception as error:
                second = _told(error)
                if second != reason:
                    reason = f"{reason}; then {second}"
    raise ClusterFailed(
        f"Ray did not start on this machine ({reason}): {machine()}. Try again when it is less busy, or with "
        "--ray-output to see more"
    ) from first


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Ray asks for its node again and again for 30 s, a number in the middle of its code: here each question waits."""
    theirs = services.get_node

    def patient(*asked: Any, **named: Any) -> Any:
        end = time.monotonic() + PATIENT_SECONDS
        while True:
            try:
                return theirs(*asked, **named)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > end:
                    raise
                time.sleep(ASK_SECONDS)

    services.get_node = patient
    try:
        yield
    finally:
        services.get_node = theirs


def _told(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _init(servers: list[psutil.Process], **options: Any) -> None:
    try:
        with _own_groups(servers), unnamed(), _no_monitors(options.get("log_to_driver", True)):
            ray.init(address="local", **options)
    except BaseException:  # also an interrupt
        with contextlib.suppress(Exception):
            _end(servers)
        raise


@contextlib.contextmanager
def _no_monitors(ray_output: bool) -> Iterator[None]:
    """Without two of Ray's servers, which take long to start and to end: the log monitor, which gives a driver its
    workers' output, and the autoscaler's monitor. `ray.init` has no options for them, the class of its options has."""
    if ray_output:
        yield
        return
    theirs = parameter.RayParams
    parameter.RayParams = functools.partial(theirs, include_log_monitor=False, no_monitor=True)
    try:
        yield
    finally:
        parameter.RayParams = theirs


@contextlib.contextmanager
def _own_groups(servers: list[psutil.Process]) -> Iterator[None]:
    """Ray's servers that are started in this block are added to `servers`, each in a process group of its own: a
    SIGTERM to our group (`timeout`, a closed login) must not kill the cluster of a search that stops cleanly. The
    kernel ends them when this process dies; where it does not, Ray ends them by our group, and they stay in it."""
    theirs = services.ConsolePopen
    own: dict[str, Any] = {"process_group": 0} if detect_fate_sharing_support() else {}

    def started(*asked: Any, **named: Any) -> Any:
        server = theirs(*asked, **named, **own)
        servers.append(psutil.Process(server.pid))
        return server

    services.ConsolePopen = started
    try:
        yield
    finally:
        services.ConsolePopen = theirs


def _end(servers: list[psutil.Process]) -> None:
    """End Ray, and what is left of its servers' groups: an agent that is still starting outlives its raylet by a minute
    and more, and the servers of a failed start use the machine until this process ends."""
    try:
        ray.shutdown()
    finally:
        for server in servers:
            with contextlib.suppress(psutil.Error):
                server.kill()
                server.wait(5)
            with contextlib.suppress(OSError):
                os.killpg(server.pid, signal.SIGKILL)
        servers.clear()


def machine() -> str:
    """How busy this machine is: `load 30.1 on 2 CPUs, 0.4 of 8.0 GB of memory free, 3.1 GB free in /tmp`."""
    memory, folder = psutil.virtual_memory(), tempfile.gettempdir()
    told = [f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"]
    told.append(f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB of memory free")
    with contextlib.suppress(OSError):
        told.append(f"{psutil.disk_usage(folder).free / 1e9:.1f} GB free in {folder}")
    return ", ".join(told)


def clusters_here() -> tuple[str | None, list[str]]:
    """The address of the cluster that `ray start` last started or joined on this machine, and those of all clusters
    with processes here, private ones too; they may not answer."""
    return services.find_bootstrap_address(None), sorted(services.find_gcs_addresses())


def keep_token() -> None:
    """Create Ray's token on this machine, readable only by its owner; Ray's own would be readable by everybody."""
    path = Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):  # then Ray finds another way, or reports an error
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # with mode 600
                file.write(secrets.token_hex(32))
                file.flush()
                os.link(file.name, path)  # atomic, and never replaces another token
        path.chmod(0o600)
