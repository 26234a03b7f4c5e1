"""The pages of searches, built in a process of its own: it ends when none is asked for, and gives its memory back."""

import contextlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.storage import paths
from orchestrator.storage.places import MODEL_PAGE, Places, benchmark_of_search
from orchestrator.storage.reading import read_journal
from orchestrator.storage.trial_folder import IMAGES, INSIGHT

IDLE_SECONDS = 60.0
"""How long the process waits for the next page."""

Build = Callable[[Path, str, str], bytes]


class PageBuilder:
    """Builds one page after the other. The process begins at once, so that its imports are done when the first page is
    asked for."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self.idle_seconds = idle_seconds
        self._guard = threading.Lock()
        self._process: SpawnProcess | None = None
        self._until = 0.0
        with self._guard:
            self._start()
            self._wait()

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        process = self._process
        return process is not None and process.is_alive()

    def build(self, function: Build, storage: Path, name: str, version: str) -> bytes:
        """What a module's function returns for these; its errors, and OSError if the process was killed."""
        with self._guard:
            pages = self._start()
            try:
                pages.send((function, storage, name, version))
                answer: bytes | Exception = pages.recv()
            except (EOFError, OSError):
                self.close()
                raise OSError("the process that built it was killed; is the machine short of memory?") from None
            finally:
                self._wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the process, also while it builds."""
        if self._process is not None:
            self._process.terminate()
            self._process.join(5)
            self._process = None

    def _start(self) -> Connection:
        if not self.is_running:
            context = multiprocessing.get_context("spawn")
            self._pages, end = context.Pipe()
            self._process = context.Process(target=_serve, args=(end,), daemon=True)
            self._process.start()
            end.close()
        return self._pages

    def _wait(self) -> None:
        self._until = time.monotonic() + self.idle_seconds
        timer = threading.Timer(self.idle_seconds, self._end_if_idle)
        timer.daemon = True
        timer.start()

    def _end_if_idle(self) -> None:
        with self._guard:
            if time.monotonic() >= self._until:
                self.close()


def _serve(pages: Connection) -> None:
    """In the process: build what is asked for, until the server has gone. Ctrl-C and hangups are the server's."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ImportError):
        from orchestrator.report.html import search_page  # noqa: F401
    with contextlib.suppress(EOFError, OSError):
        while True:
            function, *arguments = pages.recv()
            try:
                answer = function(*arguments)
            except Exception as error:  # one of another library may not be sent as it is
                answer = error if isinstance(error, InputError) else RuntimeError(f"{type(error).__name__}: {error}")
            pages.send(answer)


def build_search_page(storage: Path, name: str, version: str) -> bytes:
    """A search's page, as of this version of its journal."""
    from orchestrator.report.confused import confused_classes
    from orchestrator.report.findings import Findings
    from orchestrator.report.html.rendering import Live
    from orchestrator.report.html.search_page import page

    journal = Places(storage).journal(name)
    ledger, folder = read_journal(journal)[1], journal.parent
    findings = Findings.of(ledger, confused_classes(ledger, folder), paths.option(storage), folder)
    images = "model" if (folder / MODEL_PAGE).exists() else ""
    pages = {one: f"trials/{one}" for one in ledger.trials if (folder / trial_page(one)).exists()}
    part_of = benchmark_of_search(ledger.tags, storage)
    above = f"../../benchmarks/{part_of}/" if part_of else ""
    return page(findings, images, pages, Live("version", version), above).encode()


def build_benchmark_page(storage: Path, name: str, version: str) -> bytes:
    """The comparison of a benchmark's searches, as of this version of their journals."""
    from orchestrator.report.html.comparison_page import comparison_page
    from orchestrator.report.html.rendering import Live
    from orchestrator.search.benchmark import benchmark_comparison, find_benchmark

    places = Places(storage)
    benchmark = find_benchmark(places, name)
    if benchmark is None:
        raise InputError(f"no benchmark '{name}'")
    comparison = benchmark_comparison(benchmark, places)
    pages = {member.label: f"../../searches/{member.ledger.name}/" for member in comparison.members}
    return comparison_page(comparison, pages, Live("version", version)).encode()


def trial_page(trial_id: str) -> Path:
    """The page of a trial's images in the folder of its search."""
    return Path("trials", trial_id, INSIGHT, IMAGES)
