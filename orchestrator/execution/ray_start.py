"""A start of Ray that tells no secrets, and is patient with a busy machine."""

import contextlib
import functools
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import services, utils
from ray._private.utils import detect_fate_sharing_support
from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE
from ray.tune.execution import class_cache

from orchestrator.errors import ClusterFailed
from orchestrator.storage.provenance import command

PATIENT_SECONDS = 240.0
"""How long the second attempt waits for Ray's own node; Ray waits 30 s."""


def keep_secrets() -> None:
    """Tune would put AWS's keys into each trial's runtime environment, which Ray logs for everybody to read. Trials
    take them from the environment, or the files, of the node that they run on."""
    class_cache.ENV_VARS_TO_PROPAGATE.intersection_update(ENV_VARS_TO_PROPAGATE)


@contextlib.contextmanager
def unnamed() -> Iterator[None]:
    """Ray shows a job's command line to the whole cluster: ours is its first words, no address with a password."""
    theirs = utils.get_entrypoint_name
    utils.get_entrypoint_name = command
    try:
        yield
    finally:
        utils.get_entrypoint_name = theirs


def start(**options: Any) -> None:
    """Start a cluster on this machine, with `ray.init`'s options. A busy machine gets a second attempt, with more time.

    Raises ClusterFailed, with what the machine was doing."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    try:
        _init(**options)
        return
    except Exception as error:  # a start that takes too long is a bare Exception
        first = error
    _end_children(before)
    if not isinstance(first, ValueError):  # an option's: it would be refused again
        print(f"note: Ray did not start ({machine()}): trying again, with more time", file=sys.stderr)
        patient = functools.partial(services.get_node, timeout_s=PATIENT_SECONDS)
        theirs, services.get_node = services.get_node, patient
        try:
            _init(**options)
            return
        except Exception as error:
            first = error
        finally:
            services.get_node = theirs
        _end_children(before)
    reason = " ".join(str(first).split())[:300]
    raise ClusterFailed(
        f"Ray did not start on this machine ({reason}): {machine()}. Try again when it is less busy, or with "
        "--ray-output to see more"
    ) from first


def _init(**options: Any) -> None:
    with own_group(), unnamed():
        ray.init(address="local", **options)


def _end_children(before: set[int]) -> None:
    """End what a start that failed left running; it would take its share of the machine until we end."""
    with contextlib.suppress(Exception):
        ray.shutdown()
    for child in psutil.Process().children(recursive=True):
        if child.pid not in before:
            with contextlib.suppress(psutil.Error):
                child.kill()
                child.wait(5)


def machine() -> str:
    """How busy this machine is: `load 30.1 on 2 CPUs, 0.4 of 8.0 GB of memory free, 3.1 GB free in /tmp`."""
    memory, folder = psutil.virtual_memory(), tempfile.gettempdir()
    told = [f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"]
    told.append(f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB of memory free")
    with contextlib.suppress(OSError):
        told.append(f"{psutil.disk_usage(folder).free / 1e9:.1f} GB free in {folder}")
    return ", ".join(told)


@contextlib.contextmanager
def own_group() -> Iterator[None]:
    """The servers that Ray starts meanwhile are no members of our process group: a SIGTERM to all of it (`timeout`, a
    closed session) must not take the cluster from a search that stops in order. With us they die by the kernel."""
    if not detect_fate_sharing_support():  # then Ray ends them by the group
        yield
        return
    ours = services.ConsolePopen
    services.ConsolePopen = functools.partial(ours, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = ours


def clusters_here() -> tuple[str | None, list[str]]:
    """The address of the cluster that `ray start` began or joined on this machine last, and those of all clusters whose
    processes run here, private ones too; whether they answer is not known."""
    return services.find_bootstrap_address(None), sorted(services.find_gcs_addresses())


def keep_token() -> None:
    """Make the token that Ray asks for on this machine, readable by its owner alone: Ray's own is by everybody."""
    path = Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):  # then Ray finds another way, or says why not
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # of mode 600
                file.write(secrets.token_hex(32))
                file.flush()
                os.link(file.name, path)  # whole, and not over another's
        path.chmod(0o600)
