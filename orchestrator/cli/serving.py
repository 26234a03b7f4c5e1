"""The pages of a storage over HTTP, for this machine only: read from the journals, nothing is written.

A page in a browser may reach any port of this machine under a name of its own (DNS rebinding), so a request must name
this machine as its `Host`; and nothing here changes anything.
"""

import contextlib
import re
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.page_builder import PageBuilder, build_benchmark_page, build_search_page, trial_page
from orchestrator.errors import InputError, one_line
from orchestrator.report.status import Status
from orchestrator.storage import paths
from orchestrator.storage.folder import Folder
from orchestrator.storage.journal import refresh
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.opening import open_file
from orchestrator.storage.places import JOURNAL, MODEL_PAGE, Places, has_started
from orchestrator.storage.reading import read_journal

if TYPE_CHECKING:
    from orchestrator.search.benchmark import Benchmark

LOOK_SECONDS = 5.0
"""How often the journals of a storage are looked at."""
PATIENCE = 1.0
"""How long the first page waits for the journals, in seconds; then it shows those that are read."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Pages carry their scripts and styles; parallel coordinates are drawn by code that plotly makes."""

IDLE_SECONDS = 20.0
"""How long a connection, and its thread, may wait for a request or for the rest of one; a page asks more often."""

Mark = tuple[int, int]


class Shelf:
    """The states of all searches of a storage, each read again when its journal has changed."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.waiting = 0
        self.of_claims = 0
        self.problems: dict[str, str] = {}
        self._read: dict[str, tuple[Mark, Ledger | None, Status]] = {}
        self._wanted, self._known, self._ended = threading.Event(), threading.Event(), threading.Event()

    def states(self) -> list[Status]:
        """What is known; the first call begins to read, and waits a moment for it."""
        if not self._wanted.is_set():
            self._wanted.set()
            threading.Thread(target=self._follow, name="journals", daemon=True).start()
        self._known.wait(PATIENCE)
        return [state for _, _, state in list(self._read.values())]

    def close(self) -> None:
        self._ended.set()

    def _follow(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError, InputError):
                self._look()
            self._known.set()
            self._ended.wait(LOOK_SECONDS)

    def _look(self) -> None:
        from orchestrator.search.control import status

        searches, everything = self.places.storage / "searches", self.places.names()
        names = self.places.without_claims(everything)
        self.of_claims = len(everything) - len(names)
        for gone in set(self._read) - set(names):
            del self._read[gone]
        for place, name in enumerate(names):
            if self._ended.is_set():
                return
            self.waiting = len(names) - place - 1
            journal = searches / name / JOURNAL
            before = self._read.get(name)
            try:
                refresh(journal)
                if not has_started(journal):
                    continue
                mark = mark_of(journal)
                if before is not None and before[0] == mark:
                    if before[1] is not None:  # its driver may have died
                        self._read[name] = (mark, before[1], status(before[1], journal.parent))
                    continue
                ledger = read_journal(journal)[1]
                running = ledger if ledger.state == "running" else None
                self._read[name] = (mark, running, status(ledger, journal.parent))
                self.problems.pop(name, None)
            except (InputError, OSError) as error:
                self.problems[name] = one_line(str(error))


def mark_of(journal: Path) -> Mark:
    """What changes when something was recorded: the size and the time of the file."""
    status = journal.stat()
    return status.st_size, status.st_mtime_ns


class Server(ThreadingHTTPServer):
    """Serves on 127.0.0.1; OSError if the port is taken."""

    daemon_threads = True

    def __init__(self, places: Places, port: int) -> None:
        self.places, self.shelf = places, Shelf(places)
        self.building = threading.Lock()
        self.built: dict[str, tuple[str, bytes]] = {}
        self.builder = PageBuilder()
        super().__init__(("127.0.0.1", port), _Handler)

    def server_close(self) -> None:
        self.shelf.close()
        self.builder.close()
        super().server_close()

    def version(self, name: str) -> str:
        """Of a search's page: another one once something was recorded or its driver has gone."""
        from orchestrator.storage.presence import driver

        journal = self.places.journal(name)
        size, changed = mark_of(journal)
        return f"{size}-{changed}-{'driven' if driver(journal.parent) else 'alone'}"

    def storage_version(self) -> str:
        """Of the storage's page."""
        states = self.shelf.states()
        return f"{len(states)}-{hash(tuple(sorted(repr(_lasting(state)) for state in states)))}"

    def search(self, name: str) -> bytes:
        """A search's page; that of an unchanged journal is kept."""
        with self.building:
            version = self.version(name)
            return self._page(name, version, lambda: self.builder.build(build_search_page, *self._of(name, version)))

    def _of(self, name: str, version: str) -> tuple[Path, str, str]:
        return self.places.storage, name, version

    def _page(self, key: str, version: str, build: Callable[[], bytes]) -> bytes:
        if (built := self.built.get(key)) is not None and built[0] == version:
            return built[1]
        html = build()
        self.built = {key: (version, html)}
        return html

    def benchmark_version(self, name: str) -> str:
        """Of a benchmark's page: another one with each version of its searches."""
        benchmark = self._benchmark(name)
        started = [
            one for one in map(benchmark.member, benchmark.labels) if has_started(self.places.search(one) / JOURNAL)
        ]
        return str(hash(tuple(self.version(one) for one in started)))

    def benchmark(self, name: str) -> bytes:
        """The comparison of a benchmark's searches."""
        with self.building:
            version, key = self.benchmark_version(name), f"benchmarks/{name}"
            return self._page(key, version, lambda: self.builder.build(build_benchmark_page, *self._of(name, version)))

    def _benchmark(self, name: str) -> "Benchmark":
        from orchestrator.search.benchmark import find_benchmark

        if not paths.NAME.fullmatch(name) or (benchmark := find_benchmark(self.places, name)) is None:
            raise InputError(f"no benchmark '{name}'")
        return benchmark

    def storage(self) -> bytes:
        """The page of all searches."""
        from orchestrator.report.html.rendering import Live
        from orchestrator.report.html.storage_page import storage_page

        states, version = self.shelf.states(), self.storage_version()
        return storage_page(
            states,
            paths.display_path(self.places.storage),
            waiting=self.shelf.waiting,
            of_claims=self.shelf.of_claims,
            problems=list(self.shelf.problems.values()),
            benchmarks=Folder(self.places.storage / "benchmarks").folders(),
            live=Live("version", version),
        ).encode()

    def file(self, name: str, path: Path) -> bytes:
        """A page in the folder of a search; InputError if there is none."""
        try:
            with open_file(self.places.journal(name).parent / path) as page:
                return page.read()
        except FileNotFoundError:
            raise InputError(f"{name}: no page {path}") from None


def _lasting(state: Status) -> dict[str, Any]:
    """A state without what changes by the clock alone."""
    return {key: value for key, value in state if key not in ("seconds", "seconds_left", "pid")}


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = IDLE_SECONDS
    server_version, sys_version = "orchestrator", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if not self._is_meant():
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"this address is not served here\n", "text/plain")
            return
        path = self.path.partition("?")[0]
        if re.fullmatch(
            f"/(searches|benchmarks)/{paths.NAME.pattern}", path
        ):  # the links of its page need the last slash
            self.send_response(HTTPStatus.MOVED_PERMANENTLY)
            self.send_header("Location", f"{path}/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        try:
            content = self._content(path)
        except InputError as error:
            self._answer(HTTPStatus.NOT_FOUND, f"{one_line(str(error))}\n".encode(), "text/plain")
            return
        except Exception as error:
            text = f"the page cannot be made: {one_line(str(error))} ({type(error).__name__})\n"
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, text.encode(), "text/plain")
            return
        if content is None:
            self._answer(HTTPStatus.NOT_FOUND, b"no such page; the searches are at /\n", "text/plain")
        else:
            self._answer(HTTPStatus.OK, *content)

    do_HEAD = do_GET

    def _is_meant(self) -> bool:
        """Whether the request names this machine, and nothing else."""
        port = self.server.server_port
        return self.headers.get_all("Host") in ([f"127.0.0.1:{port}"], [f"localhost:{port}"])

    def _content(self, path: str) -> tuple[bytes, str] | None:
        server, html = self.server, "text/html"
        routes: dict[str, Callable[[], tuple[bytes, str]]] = {
            "/": lambda: (server.storage(), html),
            "/version": lambda: (server.storage_version().encode(), "text/plain"),
        }
        if path in routes:
            return routes[path]()
        match path.split("/")[1:]:
            case ["searches", name, ""]:
                return server.search(name), html
            case ["benchmarks", name, ""]:
                return server.benchmark(name), html
            case ["benchmarks", name, "version"]:
                return server.benchmark_version(name).encode(), "text/plain"
            case ["searches", name, "version"]:
                return server.version(name).encode(), "text/plain"
            case ["searches", name, "model"]:
                return server.file(name, Path(MODEL_PAGE)), html
            case ["searches", name, "trials", trial] if paths.NAME.fullmatch(trial):
                return server.file(name, trial_page(trial)), html
        return None

    def _answer(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.send_response(status)
            for head, value in (
                ("Content-Type", f"{kind}; charset=utf-8"),
                ("Content-Length", str(len(content))),
                ("Content-Security-Policy", POLICY),
                ("X-Content-Type-Options", "nosniff"),
                ("Referrer-Policy", "no-referrer"),
                ("Cross-Origin-Resource-Policy", "same-origin"),
                ("Cache-Control", "no-store"),
            ):
                self.send_header(head, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed."""
