"""A server of a test, on a thread."""

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from typing import TypeVar

Server = TypeVar("Server", bound=socketserver.BaseServer)


@contextlib.contextmanager
def serving(server: Server) -> Iterator[Server]:
    """The server while it answers; closed afterwards."""
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
