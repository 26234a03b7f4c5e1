"""An S3 server of the tests' own, and one in front of it that is not always willing."""

import contextlib
import http.client
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from pyarrow import fs

SECRET = "a-secret-of-the-test"


class Server(NamedTuple):
    """An S3 server, and what it was asked."""

    endpoint: str
    log: Path

    def requests(self, method: str, path: str) -> int:
        return len(re.findall(rf"{method} /{path}", self.log.read_text()))

    def files(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            endpoint_override=self.endpoint, access_key="x", secret_key="y", allow_bucket_creation=True
        )

    def environment(self) -> dict[str, str]:
        """What a client needs to know."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextlib.contextmanager
def serve(command: Sequence[str], address: str, folder: Path) -> Iterator[Server]:
    """A server as a process of its own, which writes its `address` (a pattern, one group) to its output."""
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=folder)
    try:
        match = None
        while match is None and process.poll() is None:
            match = re.search(address, log.read_text())
        assert match is not None, log.read_text()
        yield Server(match[1], log)
    finally:
        process.terminate()
        process.wait()


def moto(folder: Path) -> contextlib.AbstractContextManager[Server]:
    """moto's server as a process of its own."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    return serve(command, r"Running on (http://\S+)", folder)


class Endpoint(Protocol):
    """Any server of HTTP."""

    @property
    def endpoint(self) -> str: ...


Whim = Callable[[str, str], int | str | None]
"""By method and path: the status to answer with; `cut`, without an answer; `late`, after doing it; None: as asked."""


CODES = {403: "AccessDenied", 409: "ConditionalRequestConflict", 429: "TooManyRequests", 503: "SlowDown"}


class Unsteady(ThreadingHTTPServer):
    """Hands requests on to a server, unless its `whim` is otherwise."""

    daemon_threads = True
    request_queue_size = 128  # the default of 5 refuses clients that come at the same time

    def __init__(self, server: Endpoint) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = urlsplit(server.endpoint).netloc
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.whim: Whim = lambda method, path: None
        self.asked: list[tuple[str, str]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Unsteady

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path))
        whim = self.server.whim(self.command, self.path)
        if isinstance(whim, int):
            message = f"{self.headers.get('Authorization')}: no"  # a server may repeat what it was told
            text = f"<Error><Code>{CODES.get(whim, 'Odd')}</Code><Message>{message}</Message></Error>".encode()
            return self.answer(whim, {"Content-Type": "application/xml"}, text)
        if whim != "cut":
            connection = http.client.HTTPConnection(self.server.behind, timeout=30)
            headers = {name: value for name, value in self.headers.items() if name != "Expect"}
            connection.request(self.command, self.path, body, headers)
            found = connection.getresponse()
            data, headers = found.read(), dict(found.getheaders())
            connection.close()
        if whim is not None:
            self.close_connection = True
            return None
        return self.answer(found.status, headers, data)

    def answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        dropped = ("content-length", "connection", "transfer-encoding")
        for name, value in headers.items():
            if name.lower() not in dropped:
                self.send_header(name, value)
        length = str(len(data))
        if self.command == "HEAD":
            length = next((value for name, value in headers.items() if name.lower() == "content-length"), "0")
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def unsteady(server: Endpoint) -> Iterator[Unsteady]:
    """Such a server, on a thread."""
    with Unsteady(server) as front:
        thread = threading.Thread(target=front.serve_forever, daemon=True)
        thread.start()
        yield front
        front.shutdown()
