"""Which Ray cluster an address means, and whether it answers."""

import contextlib
import os
import socket
from urllib.parse import urlsplit

from orchestrator.errors import InputError

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # with empty SETTINGS


def reachable_address(address: str | None) -> str | None:
    """A cluster's address at which something answers; Ray itself would wait for minutes."""
    if address is None or address == "local":
        return address
    if address == "auto":
        return _cluster_here()
    advice = "give host:port of a Ray head node, or auto"
    if address.startswith(("http://", "https://")):
        raise InputError(
            f"--address (or RAY_ADDRESS): {address} is a dashboard's address, for ray job submit; {advice}"
        )
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"--address: {address}: {error}; {advice}") from None
    if not host or not port:
        raise InputError(f"--address: {address}: {advice}")
    try:
        speaks = _speaks(host, port)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"--address: no Ray cluster answers at {address} ({reason}); {advice}") from None
    if not speaks:
        raise InputError(f"--address: what answers at {address} is no Ray cluster; {advice}")
    return address


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
        raise InputError(
            f"--address: auto: several Ray clusters run on this machine: name one of {', '.join(answering)}"
        )
    raise InputError(
        "--address: auto: no Ray cluster runs on this machine; start one with ray start, or leave the option out"
    )
