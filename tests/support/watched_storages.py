"""A storage that is served, and its pages."""

import contextlib
import http.client
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.made_pages import made, spread

from orchestrator.cli.serving import Server
from orchestrator.storage.places import Places


@contextlib.contextmanager
def served(storage: Path) -> Iterator[Server]:
    with Server(Places(storage), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(server: Server, path: str, host: str | None = None, verb: str = "GET") -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    connection.request(verb, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), answer.headers
    connection.close()
    return found


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two searches on cub200, one of which has not ended, one on cars196, and a damaged one."""
    storage = tmp_path_factory.mktemp("storage")
    raw: dict[str, Any] = {"method": "pfml", "space": {"delta": {"low": 0.1, "high": 0.35}}}
    points = [{"delta": point["delta"]} for point in spread(6)]
    for name, dataset, end in (("first", "cub200", "done"), ("running", "cub200", None), ("cars", "cars196", "done")):
        folder = storage / "searches" / name
        folder.mkdir(parents=True)
        made(folder, points, lambda p: p["delta"], raw=raw | {"dataset": dataset}, end=end)
    damaged = storage / "searches" / "damaged"
    damaged.mkdir()
    (damaged / "journal.jsonl").write_text("{}\n", encoding="utf-8")
    return storage
