"""The live pages of a storage: what they serve, to whom, and how they follow the journals."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.made_pages import CHROMIUM, HOSTILE, Elements, spread
from support.recorded import record
from support.watched_storages import asked, served
from support.watched_storages import storage as storage

import orchestrator.cli.serving
from orchestrator.cli.page_builder import PageBuilder, build_search_page
from orchestrator.cli.serving import IDLE_SECONDS
from orchestrator.errors import InputError
from orchestrator.report.html.storage_page import storage_page
from orchestrator.search.control import status
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger


def test_pages_are_built_in_a_process_that_ends_when_none_is_asked_for(storage: Path) -> None:
    """So that a server gives back what the pages took."""
    builder = PageBuilder(idle_seconds=0.5)
    try:
        html = builder.build(build_search_page, storage, "first", "v").decode()
        assert "<title>" in html and builder.is_running
        with pytest.raises(InputError, match="no search 'none'"):
            builder.build(build_search_page, storage, "none", "v")
        end = time.monotonic() + 30
        while builder.is_running and time.monotonic() < end:
            time.sleep(0.05)
        assert not builder.is_running
        assert builder.build(build_search_page, storage, "first", "v").decode() == html
        with pytest.raises(OSError, match="the process that built it was killed"):
            builder.build(kill_itself, storage, "first", "v")
        assert builder.build(build_search_page, storage, "first", "v").decode() == html
    finally:
        builder.close()


def kill_itself(storage: Path, name: str, version: str) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def test_all_searches_by_what_can_be_compared(storage: Path) -> None:
    with served(storage) as server:
        end = time.monotonic() + 60
        while not (len(server.shelf.states()) == 3 and server.shelf.problems) and time.monotonic() < end:
            time.sleep(0.05)
        status, html, _ = asked(server, "/")
        assert status == 200
        heads = re.findall(r'<h2 id="group-\d">(.*?)</h2>', html)
        assert sorted(heads) == ["cars196, val/map_at_r", "cub200, val/map_at_r"]
        tables = dict(zip(heads, re.findall(r"<tbody>(.*?)</tbody>", html, re.DOTALL), strict=True))
        links = {head: set(re.findall(r'href="(.*?)"', table)) for head, table in tables.items()}
        assert links["cub200, val/map_at_r"] == {"searches/first/", "searches/running/"}
        assert links["cars196, val/map_at_r"] == {"searches/cars/"}
        best = max(point["delta"] for point in spread(6)) * (1 - 0.5 * 2.718281828**-5)
        assert f"{best:.4f}" in tables["cars196, val/map_at_r"]
        text = "".join(Elements(html).text)
        assert "lost" in text and "damaged" in text and "3 searches, 0 running" in text
        assert {asked(server, f"/{link}")[0] for found in links.values() for link in found} == {200}


def test_a_page_follows_its_journal(storage: Path, tmp_path: Path) -> None:
    folder = tmp_path / "searches" / "running"
    shutil.copytree(storage / "searches" / "running", folder)
    with served(tmp_path) as server:
        _, html, _ = asked(server, "/searches/running/")
        live = json.loads(re.findall(r'id="live">(.*?)</script>', html)[0])
        version = asked(server, "/searches/running/version")[1]
        assert live["version"] == version and live["address"] == "version"
        with Journal(folder / "journal.jsonl") as journal:
            record(journal, "trial_ended", trial_id="0005", state="failed", reason="it was <b>too</b> large")
        assert asked(server, "/searches/running/version")[1] != version
        again = asked(server, "/searches/running/")[1]
        assert "it was &lt;b&gt;too&lt;/b&gt; large" in again and "it was" not in html


def test_a_benchmark_is_served_with_its_searches(storage: Path, tmp_path: Path) -> None:
    shutil.copytree(storage / "searches", tmp_path / "searches", ignore=shutil.ignore_patterns("cars", "damaged"))
    for label in ("first", "running"):
        (tmp_path / "searches" / label).rename(tmp_path / "searches" / f"both-{label}")
        path = tmp_path / "searches" / f"both-{label}" / "journal.jsonl"
        events = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        events[0]["tags"]["orchestrator.benchmark"] = "both"
        for event in events:
            del event["sum"]
        path.write_text("".join(f"{json.dumps(event)}\n" for event in events), encoding="utf-8")
    kept = tmp_path / "benchmarks" / "both" / "benchmark.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"name": "both", "methods": ["first", "running"]}), encoding="utf-8")
    with served(tmp_path) as server:
        status, html, _ = asked(server, "/benchmarks/both/")
        assert status == 200, html
        assert asked(server, "/benchmarks/both")[2]["Location"] == "/benchmarks/both/"
        links = {str(found["href"]) for _, found in Elements(html).tags if "searches/" in str(found.get("href"))}
        assert links == {"../../searches/both-first/", "../../searches/both-running/"}
        status, own, _ = asked(server, "/searches/both-first/")
        assert status == 200 and 'href="../../benchmarks/both/"' in own
        version = asked(server, "/benchmarks/both/version")[1]
        assert json.loads(re.findall(r'id="live">(.*?)</script>', html)[0])["version"] == version
        with Journal(tmp_path / "searches" / "both-running" / "journal.jsonl") as journal:
            record(journal, "trial_ended", trial_id="0005", state="failed", reason="full")
        assert asked(server, "/benchmarks/both/version")[1] != version
        assert asked(server, "/benchmarks/nope/")[0] == asked(server, "/benchmarks/../both/")[0] == 404
        end = time.monotonic() + 60
        while len(server.shelf.states()) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert 'href="benchmarks/both/"' in asked(server, "/")[1]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_the_keyboard_stays_where_it_was_when_a_page_is_loaded_again(storage: Path, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    folder = tmp_path / "searches" / "running"
    shutil.copytree(storage / "searches" / "running", folder)
    focused = "() => document.activeElement.dataset.trial ?? document.activeElement.id"
    with served(tmp_path) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(f"http://127.0.0.1:{server.server_port}/searches/running/")
        for place, (selector, wanted) in enumerate((('.pick[data-trial="0002"]', "0002"), ("#filter", "filter"))):
            tab.focus(selector)
            assert tab.evaluate(focused) == wanted
            tab.evaluate("() => { window.before = true; }")
            with Journal(folder / "journal.jsonl") as journal:
                record(journal, "search_ended", state="interrupted", reason=f"stopped {place}")
            tab.wait_for_function("() => !window.before && document.readyState === 'complete'", timeout=60_000)
            assert tab.evaluate(focused) == wanted
        browser.close()


def test_only_this_machine_is_answered(storage: Path) -> None:
    """A name of another machine that leads here (DNS rebinding) is refused, and so is what is not a page."""
    with served(storage) as server:
        assert server.server_address[0] == "127.0.0.1"
        own = f"localhost:{server.server_port}"
        assert asked(server, "/version", own)[0] == 200
        for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", "", f"{own}.evil.example"):
            status, text, _ = asked(server, "/", host)
            assert status == 421 and "first" not in text, host
        for path in ("/nope", "/searches/nope/", "/searches/..%2F..%2Fetc/", "/searches/../first/", "//etc/passwd"):
            status, text, heads = asked(server, path)
            assert status == 404 and heads["Content-Type"].startswith("text/plain"), path
        assert asked(server, "/searches/first/trials/..")[0] == 404
        assert asked(server, "/searches/first/model")[0] == 404
        assert asked(server, "/", verb="POST")[0] == 501
        status, text, heads = asked(server, "/", verb="HEAD")
        assert status == 200 and text == "" and "default-src 'none'" in heads["Content-Security-Policy"]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Names and notes of a storage that others may write to."""
    counts = {"running": 0, "done": 1, "pruned": 0, "failed": 0, "interrupted": 0}
    ledger = Ledger(name="calm")
    hostile = dict.fromkeys(("dataset", "objective", "method", "benchmark", "state", "reason", "note"), HOSTILE)
    state = status(ledger, tmp_path).model_copy(update={**hostile, "started": 1, "counts": counts})
    html = storage_page([state], HOSTILE, problems=[HOSTILE])
    calm = state.model_copy(update=dict.fromkeys(hostile, "calm"))
    assert [tag for tag, _ in Elements(html).tags] == [
        tag for tag, _ in Elements(storage_page([calm], "calm", problems=["calm"])).tags
    ]


RUN = """
import signal, sys
from orchestrator.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
try:
    main(sys.argv[1:])
except SystemExit as ended:
    heavy = [name for name in ("torch", "ray", "mlflow", "optuna", "faiss", "torchvision") if name in sys.modules]
    print(ended.code, heavy, flush=True)
"""


def test_ctrl_c_ends_it_cleanly(storage: Path) -> None:
    """The command prints its address, serves, and ends with 0 at Ctrl-C; torch, Ray, MLflow and Optuna are never
    imported."""
    folder = storage / "searches" / "today"
    golden = Path(__file__).parents[1] / "goldens" / "begun" / "journal.jsonl"
    folder.mkdir()
    events = [json.loads(line) for line in golden.read_text("utf-8").splitlines()]
    for event in events:
        del event["sum"]
        event |= {"idle": {}} if event["event"] == "trial_started" else {}
    (folder / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    cache = os.environ | {"ORCHESTRATOR_CACHE": str(storage / "cache")}  # the record of the methods, which needs torch
    subprocess.run([sys.executable, "-P", "-m", "orchestrator", "methods"], env=cache, check=True, capture_output=True)
    command = [
        sys.executable,
        "-P",
        "-c",
        RUN,
        "watch",
        "today",
        "--port",
        "0",
        "--no-browser",
        "--storage",
        str(storage),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cache) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/searches/today/", line)
        assert found, line
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=120)
        for path in ("/searches/today/", "/"):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200 and b"today" in answer.read()
        connection.close()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert out == "0 []\n" and errors == "no longer served\n"
    shutil.rmtree(folder)


def test_the_last_slash_is_put_there(storage: Path) -> None:
    with served(storage) as server:
        status, text, headers = asked(server, "/searches/first")
        assert (status, headers["Location"], text) == (301, "/searches/first/", "")
        assert asked(server, "/searches/../first")[0] == 404


def test_wrong_input(storage: Path) -> None:
    def refused(*words: str) -> str:
        command = [sys.executable, "-m", "orchestrator", "watch", "--no-browser", "--storage", str(storage), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2 and done.stdout == ""
        return done.stderr

    assert refused("firts") == (f"error: no search 'firts' under {storage} (did you mean 'first'?)\n")
    with served(storage) as server:
        said = refused("--port", str(server.server_port))
    assert said.startswith(
        f"error: --port: {server.server_port} cannot be used (Address already in use): another watch"
    )


def test_an_idle_connection_is_ended_and_its_thread_with_it(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert IDLE_SECONDS <= 60
    monkeypatch.setattr(orchestrator.cli.serving._Handler, "timeout", IDLE_SECONDS / 100)
    before = set(threading.enumerate())  # those of other tests among them: their connections may be idle longer
    with served(storage) as server:
        idle = [socket.create_connection(("127.0.0.1", server.server_port), timeout=20) for _ in range(5)]
        idle[0].sendall(b"GET / HTTP/1.1\r\nHost: ")  # and no more
        idle[1].sendall(f"GET /version HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        for connection in idle:
            while connection.recv(1 << 16):
                pass
            connection.close()
        end = time.monotonic() + 20
        while any("process_request_thread" in thread.name for thread in {*threading.enumerate()} - before):
            assert time.monotonic() < end
            time.sleep(0.02)
    others = {thread for thread in threading.enumerate() if not isinstance(thread, threading.Timer)} - before
    assert len(others) <= 1  # that which follows the journals may be at its end
