"""A tracking server that fails now and then: a proxy in front of a real one refuses, drops and delays requests."""

import http.client
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.memory_tracking import MemoryTracker
from support.recorded import record
from support.tracking_servers import Server, end_trial, projected, start_search, start_trial, stored, validate

from orchestrator.storage.journal import Journal
from orchestrator.tracking import mlflow_store, trackers
from orchestrator.tracking.address import default_tracking_uri
from orchestrator.tracking.store import TrackingError
from orchestrator.tracking.trackers import sync

TRIALS = 30
FAULTS = ["refused", "done", "dropped", "busy"]
"""503; 500, although it was done; no answer; 429 with Retry-After."""
RETRY_AFTER = 1


class Proxy:
    """Forwards to a server; of every `each` requests one meets the next of FAULTS. It has no endpoints of `lacking`,
    as an older server."""

    def __init__(self, port: int, each: int | None, lacking: tuple[str, ...] = ()) -> None:
        self.asked, self.waited = Counter[str](), list[float]()
        numbers, faults, busy = itertools.count(1), itertools.cycle(FAULTS), list[float]()
        held = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with held:
                    proxy.asked[self.path.partition("?")[0].rpartition("mlflow/")[2]] += 1
                    fault = next(faults) if each is not None and next(numbers) % each == 0 else None
                    if busy:
                        proxy.waited.append(time.monotonic() - busy.pop())
                    if fault == "busy":
                        busy.append(time.monotonic())
                if any(endpoint in self.path for endpoint in lacking):
                    return self.tell(404, b"<!doctype html>\n<title>404 Not Found</title>")
                if fault == "refused":
                    return self.tell(503, b"{}")
                if fault == "busy":
                    return self.tell(429, b"{}", {"Retry-After": str(RETRY_AFTER)})
                if fault == "dropped":
                    self.close_connection = True
                    return None
                to = http.client.HTTPConnection("127.0.0.1", port)
                to.request(self.command, self.path, body, {"Content-Type": "application/json"})
                answer = to.getresponse()
                content = answer.read()
                to.close()
                return self.tell(500 if fault == "done" else answer.status, content)

            do_GET = do_POST = do_PUT = do_PATCH = answer

            def tell(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.uri = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    server.wait()
    yield server
    server.kill()


def write(journal: Journal, dataset: str) -> None:
    start_search(journal, f"id-{dataset}", dataset)
    for number in range(TRIALS):
        start_trial(journal, f"{number:04}")
        validate(journal, f"{number:04}", 1, number / TRIALS)
        end_trial(journal, f"{number:04}", "done")


@pytest.mark.slow
def test_a_sync_goes_on_after_each_fault(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    with Journal(tmp_path / "search" / "journal.jsonl") as journal:
        write(journal, "faulty")
        memory = MemoryTracker(journal.path)
        memory.notify()
    proxy = Proxy(server.port, each=9)
    report = sync(journal.path, proxy.uri, None)
    assert (report.runs, report.refused) == (TRIALS + 1, [])
    assert stored(default_tracking_uri(server.folder), "faulty") == projected(memory)  # none twice
    assert len(proxy.waited) > 1 and min(proxy.waited) > 0.9 * RETRY_AFTER

    # planted: no request is repeated, and what was written is no progress
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(trackers, "_send_patiently", lambda sender: sender.send())
    with Journal(tmp_path / "other" / "journal.jsonl") as journal:
        write(journal, "planted")
    with pytest.raises(TrackingError):
        sync(journal.path, Proxy(server.port, each=9).uri, None)


@pytest.mark.slow
def test_an_endpoint_that_a_server_lacks_is_named_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MLflow 2's lack of logged models: all else arrives, and the runs are closed."""
    with Journal(tmp_path / "search" / "journal.jsonl") as journal:
        start_search(journal, "id-lacking", "lacking", **{"dataset.digest": "0123"})
        for trial_id, kind in (("0000", "trial"), ("final", "final")):
            start_trial(journal, trial_id, kind)
            validate(journal, trial_id, 1, 0.5)
            end_trial(journal, trial_id, "done")
        record(journal, "search_ended", state="done")
        memory = MemoryTracker(journal.path)
        memory.notify()
    proxy = Proxy(server.port, each=None, lacking=("runs/log-inputs",))
    report = sync(journal.path, proxy.uri, None)
    assert report.refused == [f"not recorded in {proxy.uri}: this server has no /api/2.0/mlflow/runs/log-inputs"]
    assert proxy.asked["runs/log-inputs"] == 3  # of the search and of its two runs
    runs = stored(default_tracking_uri(server.folder), "lacking")
    assert runs == {name: {key: run[key] for key in runs[name]} for name, run in projected(memory).items()}
    assert {run["status"] for run in runs.values()} == {"FINISHED"}

    # planted: it counts as a fault that passes, so that the same is sent again and again
    monkeypatch.setattr(mlflow_store, "missing_endpoint", lambda error: None)
    monkeypatch.setattr(trackers, "ATTEMPTS", 0)
    with Journal(tmp_path / "other" / "journal.jsonl") as journal:
        start_search(journal, "id-never", "never", **{"dataset.digest": "0123"})
    with pytest.raises(TrackingError, match="404"):
        sync(journal.path, proxy.uri, None)


@pytest.mark.slow
def test_requests_of_a_trial(server: Server, tmp_path: Path) -> None:
    """Three: its creation, all that it recorded, and its end."""
    with Journal(tmp_path / "search" / "journal.jsonl") as journal:
        write(journal, "counted")
    proxy = Proxy(server.port, each=None)
    sync(journal.path, proxy.uri, None)
    each = {name: count for name, count in proxy.asked.items() if count >= TRIALS}
    assert each == {"runs/create": TRIALS + 1, "runs/log-batch": TRIALS + 1, "runs/update": TRIALS}, proxy.asked
