"""Which Ray cluster an address means, and whether it answers."""

import contextlib
import os
import socket
from platform import python_version
from urllib.parse import urlsplit

from orchestrator.errors import InputError
from orchestrator.execution.protocol import THROUGH_STORAGE
from orchestrator.problems import Bare, Option, Problem

HEAD_PORT = 6379
"""Of a head node that `ray start --head` started."""
ADVICE = f"give host:port of a Ray head node, auto or {THROUGH_STORAGE}"
WORDS = ("local", "auto", THROUGH_STORAGE)
"""What may stand in place of host and port."""
NO_HEAD = "what answers is no head node"
TOKEN = "; if it asks for a token, set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to its token"
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # with empty SETTINGS


def reachable_address(address: str | None) -> str | None:
    """A cluster's address at which something answers; Ray itself would wait for minutes."""
    if address is None or address in ("local", THROUGH_STORAGE):
        return address
    if address == "auto":
        address = _cluster_here()
        _check_versions(address)
        return address
    host, port = check_address(address)
    try:
        speaks = _speaks(host, port)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            Problem((Option("address"),), rule=f"no Ray cluster answers at {address} ({reason}); {ADVICE}")
        ) from None
    if not speaks:
        raise InputError(Problem((Option("address"),), rule=f"what answers at {address} is no Ray cluster; {ADVICE}"))
    if os.environ.get("RAY_USE_TLS") != "1":  # then nothing was asked so far
        _check_versions(address)
    return address


def check_address(address: str) -> tuple[str, int]:
    """Host and port of a head node; InputError if the address has another form. Nothing is asked there."""
    if address.startswith(("http://", "https://")):
        option = Option("address", "RAY_ADDRESS")
        rule = "is a dashboard's address, for ray job submit; " + ADVICE
        raise InputError(Problem((option,), Bare(address), rule, begins_rule=True))
    scheme, mark, rest = address.rpartition("://")
    if mark:
        head = f"{urlsplit(address).hostname or 'HEAD'}:{HEAD_PORT}" if scheme == "ray" else rest
        what = "is an address of Ray Client" if scheme == "ray" else f"{scheme}:// is no kind of address"
        rule = f"{what}: give the head node's own, as {head}, or auto"
        raise InputError(Problem((Option("address"),), Bare(address), rule))
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(Problem((Option("address"),), Bare(address), f"{error}; {ADVICE}")) from None
    if not host or not port:
        raise InputError(Problem((Option("address"),), Bare(address), ADVICE))
    return host, port


def _check_versions(address: str) -> None:
    """InputError if the cluster at an address has another Ray or Python, or does not let us in: Ray requires the same,
    and would tell only when a search has begun."""
    import ray
    from ray.exceptions import AuthenticationError, RayError

    from orchestrator.execution.ray_private import cluster_versions
    from orchestrator.execution.ray_start import no_stderr

    try:
        with no_stderr():
            there = cluster_versions(address)
    except RayError as error:
        reason = " ".join(str(error).split())[:100] + TOKEN if isinstance(error, AuthenticationError) else NO_HEAD
        rule = f"no Ray cluster to use at '{address}' ({reason})"
        raise InputError(Problem((Option("address"),), rule=rule)) from None
    length = 2 if os.environ.get("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL") == "minor" else 3
    for name, key, here in (("Ray", "ray_version", ray.__version__), ("Python", "python_version", python_version())):
        size = length if name == "Python" else None
        version = there.get(key, here)
        if version.split(".")[:size] != here.split(".")[:size]:
            rule = f"the cluster at {address} has {name} {version}, here is {here}: both must be the same; install "
            raise InputError(Problem((Option("address"),), rule=rule + "the cluster's here"))


def _speaks(host: str, port: int) -> bool:
    """Whether the server that answers may be Ray; OSError if nothing answers."""
    with socket.create_connection((host, port), timeout=5) as connection:
        if os.environ.get("RAY_USE_TLS") == "1":
            return True  # it answers only after a TLS handshake, which is left to Ray
        # Ray speaks gRPC: its first frame, as always in HTTP/2, is SETTINGS (type 4)
        connection.sendall(HTTP2_PREFACE)
        return connection.recv(9)[3:4] == b"\x04"


def _cluster_here() -> str:
    """The cluster for `auto`: the one that `ray start` last started or joined here, else the only one that answers.
    Ray itself takes any cluster with a process here: maybe another search's, or one that cannot be reached."""
    from orchestrator.execution.ray_private import clusters_here

    (started, others), answering = clusters_here(), []
    for address in dict.fromkeys(filter(None, [started, *others])):
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError, ValueError):
            if _speaks(host.strip("[]"), int(port)):
                answering.append(address)
    if started in answering or len(answering) == 1:
        return str(answering[0])
    if answering:
        rule = f"several Ray clusters run on this machine: name one of {', '.join(answering)}"
        raise InputError(Problem((Option("address"),), Bare("auto"), rule))
    rule = "no Ray cluster runs on this machine; start one with ray start, or leave the option out"
    raise InputError(Problem((Option("address"),), Bare("auto"), rule))
