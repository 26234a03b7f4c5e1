"""Starting Ray without leaking secrets, and with more time on a busy machine."""

import contextlib
import gc
import logging
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import ray

from orchestrator.errors import ClusterFailed, InputError
from orchestrator.execution.ray_private import (
    OTHER_RAY,
    hide_command_line,
    job_beside_shadows,
    no_monitors,
    one_node,
    own_groups,
    patience,
)
from orchestrator.problems import Bare, Option, Problem
from orchestrator.storage.scratch import scratch
from orchestrator.text import counted_amount, pluralize
from orchestrator.training.notice import held_signals

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


def own_options(ray_output: bool) -> dict[str, Any]:
    """The options of `ray.init` for a cluster on this machine. New for each one: Ray writes the folder of its session
    into `_system_config`, where the next cluster would spill its objects, and fail when the folder is gone."""
    return ray_options(ray_output) | {
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        # the processes that Ray starts ahead wait for the trials: it would end them when the first trial takes a CPU
        "_system_config": {"idle_worker_killing_time_threshold_ms": 60_000},
    }


@contextlib.contextmanager
def own_cluster(ray_output: bool = False) -> Iterator[None]:
    """A cluster on this machine for this process, ended after the block. Raises ClusterFailed if it does not start."""
    with ray_environment(ray_output), scratch(), a_token():
        servers: list[psutil.Process] = []
        try:
            with one_node():
                start_ray(servers, **own_options(ray_output))
                with quiet_ray(ray_output):
                    yield
        finally:
            _end(servers)


@contextlib.contextmanager
def ray_environment(ray_output: bool, **more: str) -> Iterator[None]:
    """In this block, what Ray reads from this process is set: environment variables (`more` of them too) and the levels
    of its loggers."""
    usage = {"RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0")}  # its notice would be hidden
    values = usage | ENVIRONMENT | more
    before = {name: os.environ.get(name) for name in values}
    loggers = [] if ray_output else [logging.getLogger(name) for name in ("ray", "ray.tune", "ray.train")]
    levels = [logger.level for logger in loggers]
    os.environ.update(values)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)  # else a lost process is an ERROR with a traceback
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def ray_options(ray_output: bool) -> dict[str, Any]:
    """The options of `ray.init` for any cluster."""
    level = "INFO" if ray_output else "ERROR"
    return {"log_to_driver": ray_output, "logging_level": level, "job_config": job_beside_shadows()}


def describe_cluster(address: str) -> str:
    """What a cluster has, as a text. InputError if it cannot be joined: mostly it has another Ray or Python."""
    try:
        with ray_environment(False), quiet_ray(False):
            ray.init(address=address, **ray_options(False))
            nodes, amounts = sum(node["Alive"] for node in ray.nodes()), ray.cluster_resources()
    except Exception as error:
        raise InputError(
            Problem((Option("address"),), Bare(address), f"{_one_line(error)}: install the cluster's versions here")
        ) from None
    finally:
        with contextlib.suppress(Exception):
            shut_down()
    cpus, gpus = (counted_amount(amounts.get(kind, 0), kind) for kind in ("CPU", "GPU"))
    return f"Ray {ray.__version__}, {pluralize(nodes, 'node')}, {cpus}, {gpus}"


@contextlib.contextmanager
def quiet_ray(ray_output: bool) -> Iterator[None]:
    """Hide Ray's messages about its processes: at any log level they go to our stdout, which is for results."""
    if ray_output:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def no_stderr() -> Iterator[None]:
    """Without what Ray's C++ part writes there, which no level hides."""
    stderr = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def start_ray(servers: list[psutil.Process], **options: Any) -> None:
    """Start a cluster on this machine, with `ray.init`'s options; its servers are added to `servers`. On a busy
    machine, try a second time with more time. Where this Ray is another inside, it is started by its public options.

    Raises ClusterFailed with the load of the machine."""
    try:
        try:
            _init(servers, **options)
        except (*OTHER_RAY, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "Unknown keyword" not in str(error):
                raise
            public = {name: value for name, value in options.items() if not name.startswith("_")}
            ray.init(address="local", **public)
        return
    except Exception as error:  # a start that takes too long raises a bare Exception
        first, reason = error, _one_line(error)
    if not isinstance(first, ValueError):  # a wrong option: it would be refused again
        print(f"note: Ray did not start ({machine()}): trying again, with more time", file=sys.stderr)
        with patience():
            try:
                _init(servers, **options)
                return
            except Exception as error:
                second = _one_line(error)
                if second != reason:
                    reason = f"{reason}; then {second}"
    remedy = "Try again when it is less busy, or with" if is_busy() else "Try again with"
    raise ClusterFailed(
        f"Ray did not start on this machine ({reason}): {machine()}. {remedy} --ray-output to see more"
    ) from first


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _init(servers: list[psutil.Process], **options: Any) -> None:
    try:
        with own_groups(servers), hide_command_line(), no_monitors(options.get("log_to_driver", True)):
            ray.init(address="local", **options)
    except BaseException:  # also an interrupt
        with contextlib.suppress(Exception):
            _end(servers)
        raise


def shut_down() -> None:
    """Leave the cluster, or end our own, to the end: a Ctrl-C that cut it short would leave parts of Ray behind, which
    look for their servers for a minute and then end this process with code 1.

    One that comes meanwhile takes effect afterwards, a second one at once. No garbage is collected meanwhile: in a
    thread beside, an object of Ray's would ask for a worker that has just ended, for which Ray ends the process too.
    """
    pending: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if pending:
            raise KeyboardInterrupt
        pending.append(number)

    with held_signals(note):
        collects = gc.isenabled()
        gc.disable()
        try:
            ray.shutdown()
        finally:
            if collects:
                gc.enable()
    if pending:
        signal.raise_signal(pending[0])


def _end(servers: list[psutil.Process]) -> None:
    """End Ray, and what is left of its servers' groups: an agent that is still starting outlives its raylet by a minute
    and more, and the servers of a failed start use the machine until this process ends."""
    try:
        shut_down()
    finally:
        for server in servers:
            with contextlib.suppress(psutil.Error):
                server.kill()
                server.wait(5)
            with contextlib.suppress(OSError):
                os.killpg(server.pid, signal.SIGKILL)
        servers.clear()


def is_busy() -> bool:
    """Whether this machine lacks processors or memory for a start."""
    memory = psutil.virtual_memory()
    return os.getloadavg()[0] > 2 * (os.cpu_count() or 1) or memory.available < 0.05 * memory.total


def machine() -> str:
    """How busy this machine is: `load 30.1 on 2 CPUs, 0.4 of 8.0 GB of memory free, 3.1 GB free in /tmp`."""
    memory, folder = psutil.virtual_memory(), tempfile.gettempdir()
    facts = [f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"]
    facts.append(f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB of memory free")
    with contextlib.suppress(OSError):
        facts.append(f"{psutil.disk_usage(folder).free / 1e9:.1f} GB free in {folder}")
    return ", ".join(facts)


@contextlib.contextmanager
def a_token() -> Iterator[None]:
    """Ray's token on this machine, readable only by its owner; Ray's own would be readable by everybody.

    It is kept in the home folder; where nothing can be written there, it is in a temporary file for this block.
    """
    try:
        _keep_token(Path.home() / ".ray" / "auth_token")
    except (OSError, RuntimeError):  # no home at all is a RuntimeError
        if os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
            yield
            return
        with tempfile.NamedTemporaryFile("w", prefix="orchestrator-token-") as file:  # with mode 600
            file.write(secrets.token_hex(32))
            file.flush()
            os.environ["RAY_AUTH_TOKEN_PATH"] = file.name
            try:
                yield
            finally:
                os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
        return
    yield


def _keep_token(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # with mode 600
            file.write(secrets.token_hex(32))
            file.flush()
            os.link(file.name, path)  # atomic, and never replaces another token
    if path.stat().st_mode & 0o77:
        path.chmod(0o600)
