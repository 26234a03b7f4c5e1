"""The journal, and its projection into a real sqlite store, a real MLflow server and plain dicts."""

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.memory_tracking import MemoryTracker
from support.recorded import PLAIN, forge, record
from support.tracking_servers import (
    Server,
    end_trial,
    projected,
    start_search,
    start_trial,
    stored,
    validate,
    wait_until,
)
from support.tracking_servers import journal as journal

import orchestrator.tracking.trackers
from orchestrator.errors import InputError, redact
from orchestrator.storage.journal import Journal, JournalError
from orchestrator.storage.places import Places
from orchestrator.tracking.address import (
    check_tracking_uri,
    default_tracking_uri,
    is_trusted,
    tracking_address,
    ui_command,
    ui_environment,
    web_address,
)
from orchestrator.tracking.projection import EXPERIMENT, TRIAL
from orchestrator.tracking.store import TrackingError
from orchestrator.tracking.trackers import MLflowTracker, delete_runs, sync


def write_first_half(journal: Journal) -> None:
    start_search(journal)
    start_trial(journal, "0000")
    start_trial(journal, "0001", delta=0.1)
    for validation in (1, 2, 3):
        validate(journal, "0000", validation, 0.1 * validation)
        validate(journal, "0001", validation, 0.05 * validation)
    end_trial(journal, "0001", "pruned", "worse than half of the trials at validation 3")


def write_second_half(journal: Journal) -> None:
    (journal.path.parent / "figure.svg").write_text("<svg/>")
    (journal.path.parent / "weights").mkdir(exist_ok=True)
    (journal.path.parent / "weights" / "last.pt").write_bytes(b"\0")
    start_trial(journal, "0002")
    end_trial(journal, "0002", "failed", "the loss is NaN at step 7")
    start_trial(journal, "0003")
    validate(journal, "0003", 1, 0.3)
    record(journal, "search_ended", state="interrupted")
    record(journal, "search_resumed", tags={"orchestrator.resumed": "1"})
    start_trial(journal, "0003")
    validate(journal, "0003", 1, 0.4)  # repeated after the resume: the first counts
    validate(journal, "0003", 2, 0.5)
    record(journal, "result", trial_id="0003", metrics={"best/val_map_at_r": 0.5})
    record(journal, "result", trial_id="0003", metrics={"best/val_map_at_r": 0.5})
    end_trial(journal, "0003", "done")
    start_trial(journal, "0004")  # its process is gone when the search ends
    end_trial(journal, "0000", "done")
    start_trial(journal, "final", kind="final")
    record(journal, "result", trial_id="final", metrics={"test/map_at_r": 0.45})
    record(journal, "artifact", trial_id="final", path="weights", folder="checkpoint")
    record(journal, "artifact", trial_id=None, path=str(journal.path.parent / "figure.svg"), folder="")
    end_trial(journal, "final", "done")
    record(journal, "search_ended", state="done", best={"trial_id": "0003", "objective": 0.5})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()  # starts while the tests before its first use run
    yield server
    server.kill()


# The journal


def test_journal_numbers_and_keeps_records(tmp_path: Path) -> None:
    path = tmp_path / "new" / "journal.jsonl"
    with Journal(path) as journal:
        record(journal, "validation", trial_id="0000", validation=1, metrics={"a": np.float32(0.5), "b": np.int64(3)})
        record(journal, "artifact", trial_id=None, path=Path("é.svg"))
    with Journal(path) as journal:
        record(journal, "search_ended")
    events = Journal.read(path)
    first = events[0]
    assert first == {
        "event": "validation",
        "seq": 0,
        "time": first["time"],
        "trial_id": "0000",
        "validation": 1,
        "metrics": {"a": 0.5, "b": 3},
        "seconds": 1.0,
        "finished": False,
    }
    assert abs(first["time"] / 1000 - time.time()) < 60 and isinstance(first["time"], int)
    assert [e["seq"] for e in events] == [0, 1, 2] and events[2]["event"] == "search_ended"
    assert events[1]["path"] == "é.svg"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan"), -np.inf])
def test_journal_refuses_non_finite_numbers(journal: Journal, value: float) -> None:
    with pytest.raises(ValueError, match=r"metrics\.train/loss = .* not finite"):
        record(journal, "validation", metrics={"val/map_at_r": 0.5, "train/loss": value})
    with pytest.raises(ValueError, match=r"list\[1\]"):
        record(journal, "validation", list=[0.0, value])
    with pytest.raises(ValueError, match="is not JSON"):
        record(journal, "validation", field=object())
    with pytest.raises(ValueError, match="'seq' is set by the journal"):
        record(journal, "validation", seq=3)
    with pytest.raises(ValueError, match="'validation' is not as it should be: validation: this key is required"):
        record(journal, "validation", trial_id="0000")
    with pytest.raises(ValueError, match="unknown event 'search_begun'"):
        journal.append("search_begun")
    assert record(journal, "search_ended").seq == 0
    assert len(Journal.read(journal.path)) == 1


@pytest.mark.parametrize("torn", [b'{"event": "val', b'{"event": "a", "seq": 2, "time": 1}', b"\0\0\0\n"])
def test_torn_last_line_is_left_out_and_cut(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append("note", text="a")
        journal.append("note", text="b")
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert [e["text"] for e in Journal.read(path)] == ["a", "b"]
    with Journal(path) as journal:
        assert path.read_bytes() == whole
        journal.append("note", text="c")
    assert [(e["text"], e["seq"]) for e in Journal.read(path)] == [("a", 0), ("b", 1), ("c", 2)]


def test_corrupt_middle_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        for _ in range(3):
            journal.append("note", text="a")
    lines = path.read_bytes().splitlines(keepends=True)
    corrupt = lines[0] + b"{]\n" + lines[2]
    path.write_bytes(corrupt)
    with pytest.raises(JournalError, match=r"journal\.jsonl:2: corrupt"):
        Journal.read(path)
    with pytest.raises(JournalError, match=r"journal\.jsonl:2: corrupt"):
        Journal(path)
    assert path.read_bytes() == corrupt
    with pytest.raises(JournalError, match="cannot read"):
        Journal.read(tmp_path / "none.jsonl")


def test_one_writer_at_a_time(journal: Journal) -> None:
    with pytest.raises(JournalError, match="the search is running"):
        Journal(journal.path)
    with pytest.raises(TrackingError, match="the search is running"):
        sync(journal.path, "http://127.0.0.1:1", None)
    journal.close()
    Journal(journal.path).close()


# The projection


def test_projection_in_memory(journal: Journal) -> None:
    tracker = MemoryTracker(journal.path)
    write_first_half(journal)
    tracker.notify()
    runs = projected(tracker)
    assert runs["0000"]["status"] == "RUNNING" and runs["first"]["end_time"] is None
    assert runs["0000"]["tags"]["orchestrator.state"] == "running"
    write_second_half(journal)
    assert tracker.backlog == 20
    assert tracker.close(1.0) and tracker.backlog == 0 and tracker.problem is None

    runs = projected(tracker)
    events = Journal.read(journal.path)
    assert set(runs) == {"first", "0000", "0001", "0002", "0003", "0004", "final"}
    assert {name: run["parent"] for name, run in runs.items() if name != "first"} == dict.fromkeys(
        ["0000", "0001", "0002", "0003", "0004", "final"], "first"
    )
    parent = runs["first"]
    assert parent["parent"] is None and parent["status"] == "FINISHED"
    assert (parent["start_time"], parent["end_time"]) == (events[0]["time"], events[-1]["time"])
    settings = {"dataset": "glyphs", "method": "pfml", "backbone": "resnet50"}  # the last is its trials' default
    assert parent["params"] == {"num_trials": "4", "seed": "0"} | settings
    assert parent["artifacts"] == {"config.yaml", "figure.svg"}
    assert parent["tags"] == {
        "orchestrator.kind": "search",
        "orchestrator.search": "first",
        "orchestrator.search_id": "5ea7c4",
        "orchestrator.dataset": "glyphs",
        "orchestrator.searched": "delta",
        "orchestrator.method": "pfml",
        "orchestrator.objective": "val/map_at_r",
        "orchestrator.mode": "max",
        "orchestrator.state": "done",
        "orchestrator.best": '{"trial_id": "0003", "objective": 0.5}',
        "orchestrator.git_commit": "0123abc",
        "orchestrator.resumed": "1",
    }
    states = {name: (run["status"], run["tags"]["orchestrator.state"]) for name, run in runs.items()}
    assert states == {
        "first": ("FINISHED", "done"),
        "0000": ("FINISHED", "done"),
        "0001": ("FINISHED", "pruned"),
        "0002": ("FAILED", "failed"),
        "0003": ("FINISHED", "done"),
        "0004": ("KILLED", "interrupted"),
        "final": ("FINISHED", "done"),
    }
    assert runs["0002"]["tags"]["orchestrator.reason"] == "the loss is NaN at step 7"
    assert runs["0004"]["end_time"] == events[-1]["time"]

    trial = runs["0003"]
    searched = {"delta": "0.25", "proxies": "3", "pooling": "average", "frozen": "True"}
    assert trial["params"] == searched | {"method": "pfml", "backbone": "resnet50"}
    assert trial["tags"]["orchestrator.searched"] == ", ".join(searched)
    assert (
        trial["tags"].items()
        >= {
            "orchestrator.kind": "trial",
            "orchestrator.trial_id": "0003",
            "orchestrator.search": "first",
            "orchestrator.search_id": "5ea7c4",
            "orchestrator.seed": "0",
        }.items()
    )
    steps = {key: [(step, value) for step, _, value in rows] for key, rows in trial["metrics"].items()}
    assert steps == {
        "param/delta": [(0, 0.25)],
        "param/proxies": [(0, 3.0)],
        "train/loss": [(1, 2.0), (2, 1.0)],
        "val/map_at_r": [(1, 0.3), (2, 0.5)],
        "epoch": [(1, 1.0), (2, 2.0)],
        "best/val_map_at_r": [(0, 0.5)],
    }
    times = [e["time"] for e in events if e["event"] == "validation" and e["trial_id"] == "0003"]
    assert [row[1] for row in trial["metrics"]["epoch"]] == [times[0], times[2]]
    assert runs["final"]["artifacts"] == {"config.yaml", "checkpoint/last.pt"}
    assert runs["final"]["tags"]["orchestrator.kind"] == "final"
    assert tracker.run_id("0003") is not None and tracker.run_id("0099") is None
    assert tracker.parent_run_id is not None and tracker.experiment_id is not None


def test_restart_opens_the_same_run_again(journal: Journal) -> None:
    tracker = MemoryTracker(journal.path)
    start_search(journal)
    start_trial(journal, "0000")
    end_trial(journal, "0000", "failed", "out of memory")
    tracker.notify()
    run_id = tracker.run_id("0000")
    assert run_id is not None and tracker.runs[run_id]["status"] == "FAILED"
    start_trial(journal, "0000", delta=0.3)
    tracker.notify()
    run = tracker.runs[run_id]
    assert tracker.run_id("0000") == run_id and len(tracker.runs) == 2
    assert run["status"] == "RUNNING" and run["params"]["delta"] == "0.25"
    assert run["tags"]["orchestrator.reason"] == "" and run["tags"]["orchestrator.state"] == "running"


def test_resume_reconciles_trials_whose_process_is_gone(journal: Journal) -> None:
    tracker = MemoryTracker(journal.path)
    start_search(journal)
    start_trial(journal, "0000")
    start_trial(journal, "0001")
    record(journal, "search_resumed")
    start_trial(journal, "0001")
    tracker.notify()
    runs = projected(tracker)
    assert (runs["0000"]["status"], runs["0001"]["status"]) == ("KILLED", "RUNNING")
    assert runs["first"]["status"] == "RUNNING"


def test_names_and_values_fit_mlflow(journal: Journal) -> None:
    tracker = MemoryTracker(journal.path)
    start_search(journal)
    start_trial(journal, "0000")
    metrics = {"recall@1": 1.0, "/a//b/": 2.0, "../up": 3.0, "x" * 300: 4.0, "a b-c.d:e/f_g": 5.0}
    record(journal, "validation", trial_id="0000", validation=1, metrics=metrics)
    end_trial(journal, "0000", "failed", "long " * 5000)
    tracker.notify()
    run = projected(tracker)["0000"]
    values = {key: rows[0][2] for key, rows in run["metrics"].items() if not key.startswith("param/")}
    assert values == {"recall_1": 1.0, "a/b": 2.0, "_/up": 3.0, "x" * 250: 4.0, "a b-c.d:e/f_g": 5.0}
    assert len(run["tags"]["orchestrator.reason"]) == 5000


def test_runs_that_were_lost_are_sent_again(journal: Journal) -> None:
    tracker = MemoryTracker(journal.path)
    write_first_half(journal)
    tracker.notify()
    runs = projected(tracker)
    tracker.runs.clear()
    validate(journal, "0000", 4, 0.4)
    tracker.notify()
    assert tracker.problem is not None and "sending them again" in tracker.problem
    tracker.notify()
    assert tracker.problem is None and tracker.backlog == 0
    again = projected(tracker)
    assert len(again["0000"]["metrics"].pop("epoch")) == 4
    assert again["0001"] == runs["0001"] and again["first"] == runs["first"]


def test_a_value_that_changed_is_told_though_the_clock_was_set_back(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow shows the value of the highest step, and of one step that of the latest time; one point a step."""
    tracker = MemoryTracker(journal.path)
    start_search(journal)
    start_trial(journal, "0000")
    now = time.time_ns()
    for number, value in enumerate((0.4, 0.4, 0.6, 0.5)):
        monkeypatch.setattr(time, "time_ns", lambda earlier=number: now - 10**12 * earlier)
        record(journal, "result", trial_id="0000", metrics={"best/val_map_at_r": value})
        record(journal, "search_ended", state="interrupted", best={"trial_id": "0000", "objective": value})
        record(journal, "search_resumed")
    tracker.notify()
    for run in ("0000", "first"):
        points = projected(tracker)[run]["metrics"]["best/val_map_at_r"]
        assert [(step, value) for step, _, value in points] == [(0, 0.4), (1, 0.6), (2, 0.5)]
        assert [time for _, time, _ in points] == sorted((time for _, time, _ in points), reverse=True), "set back"


@pytest.mark.parametrize(
    ("event", "fields", "message"),
    [
        ("validation", {"trial_id": "0009", "validation": 1, "metrics": {}, "seconds": 1}, "'0009' was never started"),
        ("trial_ended", {"trial_id": "0000", "state": "dnoe", "reason": None}, "'dnoe'"),
        ("validation", {"trial_id": "0000", "metrics": {}}, "validation: this key is required"),
        ("search_begun", {}, "unknown event"),
        ("search_started", {}, "one search_started"),
    ],
)
def test_events_out_of_place_are_a_problem_not_an_exception(
    journal: Journal, event: str, fields: dict[str, Any], message: str
) -> None:
    tracker = MemoryTracker(journal.path)
    start_search(journal)
    start_trial(journal, "0000")
    tracker.notify()
    forge(journal.path, event, **PLAIN.get(event, {}) | fields if event == "search_started" else fields)
    for _ in range(2):
        tracker.notify()
        assert tracker.problem is not None and message in tracker.problem and "\n" not in tracker.problem
    assert not tracker.close(1.0)


# Addresses


def test_refused_addresses() -> None:
    for uri, message in {
        "file:///tmp/mlruns": "plain folders",
        "./mlruns": "plain folders",
        "htpp://host:5000": "did you mean 'http'",
        "sqlit:///a.db": "did you mean 'sqlite'",
        "ftp://me:pw@host": "unknown scheme 'ftp'",
        "http://": "no host",
        "http://host:port": "[Pp]ort",
        "sqlite://": "needs a file",
        "sqlite:///": "needs a file",
    }.items():
        with pytest.raises(TrackingError, match=message) as caught:
            check_tracking_uri(uri)
        assert "\n" not in str(caught.value) and "pw" not in str(caught.value)


def test_accepted_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_tracking_uri("sqlite:///runs.db") == f"sqlite:///{tmp_path}/runs.db"
    assert check_tracking_uri("http://host:5000/") == "http://host:5000"
    assert check_tracking_uri("https://host/mlflow") == "https://host/mlflow"
    assert check_tracking_uri("postgresql+psycopg2://a:b@host/db") == "postgresql+psycopg2://a:b@host/db"
    default = default_tracking_uri(tmp_path)
    assert default == f"sqlite:///{tmp_path}/mlflow.db" and check_tracking_uri(default) == default


def test_redact() -> None:
    assert redact("http://me:pa@s/s@host:5000/x") == "http://***@host:5000/x"
    assert redact("postgresql+psycopg2://me:pw@host/db") == "postgresql+psycopg2://***@host/db"
    assert redact("mysql://host/db?user=me&password=pw&x=1") == "mysql://host/db?***"
    assert redact("failed: 'https://me:pw@host/a', see http://b/c") == "failed: 'https://***@host/a', see http://b/c"
    assert redact("http://host/x?apikey=s#part s3://b/c#d") == "http://host/x?*** s3://b/c#***"
    assert redact("http://me:p?w#d@host/x") == redact("http://host/x?mail=a@b") == "http://***"  # where does it end?
    for plain in ("http://host:5000", "sqlite:////home/me@work/mlflow.db", "no address"):
        assert redact(plain) == plain


def test_an_address_that_only_a_journal_names_is_asked_for(tmp_path: Path) -> None:
    places = Places(tmp_path / "runs")
    own = default_tracking_uri(places.storage)
    for recorded in ("http://stranger:5000", f"sqlite:///{tmp_path}/victim.db"):
        path = places.search("one") / recorded[-9:] / "journal.jsonl"
        with Journal(path) as journal:
            start_search(journal)
            record(journal, "search_resumed", tags={}, tracking_uri=recorded)
        with pytest.raises(InputError, match=f"{re.escape(recorded)}, which only its journal names: if you trust it"):
            tracking_address(None, places, path)
        assert tracking_address(recorded, places, path) == recorded  # the user's word is remembered
        assert tracking_address(None, places, path) == recorded
    with Journal(path) as journal:
        record(journal, "search_resumed", tags={}, tracking_uri=own)
    assert tracking_address(None, places, path) == own and not is_trusted(own)


def test_addresses_and_server_command(tmp_path: Path) -> None:
    assert web_address("https://me:pw@host/ml/", 5000) == "https://host/ml"
    assert web_address("sqlite:////a/mlflow.db", 5001) == "http://127.0.0.1:5001"
    uri = default_tracking_uri(tmp_path)
    command = ui_command(uri, tmp_path / "artifacts", 5001)
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"] and uri in command
    assert command[command.index("--host") + 1] == "127.0.0.1" and command[command.index("--workers") + 1] == "1"
    secret = "postgresql://me:pw@host/db"
    assert "pw" not in " ".join(ui_command(secret, tmp_path, 5001))
    assert ui_environment(secret)["MLFLOW_BACKEND_STORE_URI"] == secret
    assert ui_environment(uri)["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    with pytest.raises(TrackingError, match="is a server already"):
        ui_command("http://host:5000", tmp_path, 5001)


def test_importing_tracking_does_not_import_mlflow() -> None:
    code = "import sys, orchestrator.tracking.trackers; sys.exit('mlflow' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# MLflow


@pytest.mark.usefixtures("at_once")
def test_sqlite_holds_exactly_the_projection(
    journal: Journal, tmp_path: Path, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    uri, memory = default_tracking_uri(tmp_path / "storage"), MemoryTracker(journal.path)
    tracker = MLflowTracker(journal.path, uri, tmp_path / "artifacts")
    write_first_half(journal)
    tracker.notify()
    wait_until(lambda: tracker.backlog == 0)
    write_second_half(journal)
    tracker.notify()
    assert tracker.close(60.0), tracker.problem
    assert tracker.problem is None and tracker.backlog == 0
    assert capfd.readouterr() == ("", "")

    memory.notify()
    runs = stored(uri)
    assert runs == projected(memory)
    assert list((tmp_path / "artifacts" / "glyphs").iterdir())
    from mlflow.tracking import MlflowClient

    run_id = tracker.run_id("0003")
    assert run_id is not None
    info = MlflowClient(tracking_uri=uri).get_run(run_id).info
    name = "pfml 0003 delta=0.25 proxies=3 pooling=average frozen=True"
    assert (info.run_name, info.experiment_id) == (name, tracker.experiment_id)

    # Sent again from the start, after a lost cursor and after a crash before the cursor was written.
    journal.close()
    (cursor,) = journal.path.parent.glob("tracking-*.json")
    kept = cursor.read_text()
    assert sync(journal.path, uri, tmp_path / "artifacts").events == 0
    changes = ({"offset": 0, "events": 0, "trials": {}}, {"parent_run_id": "0" * 32})
    for content in ("{", *(json.dumps(json.loads(kept) | change) for change in changes)):
        cursor.write_text(content)
        if "0" * 32 in content:  # as if another database stood there now
            again = next(event for event in Journal.read(journal.path) if event["event"] == "validation")
            with Journal(journal.path) as more:
                more.append(**{key: value for key, value in again.items() if key not in ("seq", "time")})
        report = sync(journal.path, uri, tmp_path / "artifacts")
        assert (report.events, report.runs, report.refused) == (len(Journal.read(journal.path)), 7, [])
        assert report.parent_run_id == tracker.parent_run_id
    assert stored(uri) == runs

    # The verdict alone stands above the experiment's runs, with a link to its search.
    with Journal(journal.path) as more:
        text = "Best: trial 0003.\n\n**Which classes are confused most?**\n\n- a with b"
        record(more, "note", text=text, important=[], least=None)
    report = sync(journal.path, uri, tmp_path / "artifacts")
    client = MlflowClient(tracking_uri=uri)
    assert client.get_run(str(report.parent_run_id)).data.tags["mlflow.note.content"] == text
    head = f"**[first](#/experiments/{report.experiment_id}/runs/{report.parent_run_id})**, the search described last"
    said = client.get_experiment(str(report.experiment_id)).tags["mlflow.note.content"]
    assert said == f"{head}\n\nBest: trial 0003."


def test_a_storage_that_is_copied_keeps_its_files_to_itself(tmp_path: Path) -> None:
    old, new = Places(tmp_path / "a" / "runs"), Places(tmp_path / "100%20 #?é" / "runs")
    path = old.search("first") / "journal.jsonl"
    old.storage.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(old.storage / "mlflow.db")) as half:  # as a killed process may leave it
        half.execute("CREATE TABLE alembic_version (version_num TEXT)")
        half.execute("INSERT INTO alembic_version VALUES ('451aebb31d03'), ('none')")
        half.commit()
    with Journal(path) as journal:
        write_first_half(journal)
    sync(path, default_tracking_uri(old.storage), old.artifacts)
    assert (old.storage / "mlflow.db.unfinished").exists() and not list(old.storage.glob("*.part"))
    kept = {file.relative_to(old.storage) for file in old.artifacts.rglob("*") if file.is_file()}
    assert len(kept) > 2

    shutil.copytree(path.parent, old.search("copy"))
    (kept_runs,) = delete_runs(old.search("copy") / "journal.jsonl", old)
    assert kept_runs.runs == 0 and f"sent by {path.parent}, of which this is a copy" in str(kept_runs.problem)
    shutil.rmtree(old.search("copy"))

    shutil.copytree(old.storage, new.storage)
    with Journal(new.search("first") / "journal.jsonl") as journal:
        write_second_half(journal)
        memory = MemoryTracker(journal.path)
        memory.notify()
    sync(journal.path, tracking_address(None, new, journal.path), new.artifacts)
    assert {file.relative_to(old.storage) for file in old.artifacts.rglob("*") if file.is_file()} == kept
    shutil.rmtree(old.storage)
    assert stored(default_tracking_uri(new.storage)) == projected(memory)  # with the files of each run
    done = delete_runs(journal.path, new)  # its database was copied too, with the records of both addresses
    assert [one.problem for one in done] == [None, None] and sum(one.runs for one in done) == len(memory.runs)


def test_events_go_on_behind_a_torn_line_and_gone_artifacts(journal: Journal, tmp_path: Path) -> None:
    uri = default_tracking_uri(tmp_path)
    write_first_half(journal)
    path = journal.path
    journal.close()
    with open(path, "ab") as file:
        file.write(b'{"event": "validation", "trial_id": "0000", "valid')
    report = sync(path, uri, None)
    assert report.events == 10
    with Journal(path) as journal:
        record(journal, "artifact", trial_id="0000", path="nowhere.svg")
        validate(journal, "0000", 4, 0.4)
    report = sync(path, uri, None)
    assert report.events == 2 and len(report.refused) == 1 and "nowhere.svg" in report.refused[0]
    points = stored(uri)["0000"]["metrics"]["val/map_at_r"]
    assert [(step, value) for step, _, value in points] == [
        (1, 0.1),
        (2, 0.2),
        (3, pytest.approx(0.3)),
        (4, 0.4),
    ]


def test_all_searches_of_a_lab_are_filtered_by_any_setting(tmp_path: Path) -> None:
    """Also by one that no search searched; in an experiment that they share."""
    from mlflow.tracking import MlflowClient

    uri = default_tracking_uri(tmp_path)
    settings = {f"setting_{number}": number for number in range(120)}  # MLflow takes 100 at once
    for name, backbone in (("one", "resnet50"), ("two", "vit_small"), ("three", "resnet50")):
        with Journal(tmp_path / "searches" / name / "journal.jsonl") as journal:
            config = {"method": "pfml", "raw_space": {"lr": [0.001, 0.1]}, "settings": {"backbone": backbone}}
            tags = {EXPERIMENT: "lab", "git.commit": "0123abc", "dataset.digest": "d1"}
            fields: dict[str, Any] = {"search_id": name, "dataset": f"data-{name}", "config": config, "params": {}}
            record(journal, "search_started", name=name, tags=tags, **fields)
            for trial_id, lr in (("0000", 0.001), ("0001", 0.1)):
                whole = settings | {"backbone": backbone, "lr": lr, "dataset": f"data-{name}", "method": "pfml"}
                params = {"lr": lr, "memory": "x" * 7000}
                record(journal, "trial_started", trial_id=trial_id, kind="trial", params=params, config=whole)
        report = sync(journal.path, uri, None)
        assert report.refused == []
    client = MlflowClient(tracking_uri=uri)
    (lab,) = (one.experiment_id for one in client.search_experiments() if one.name != "Default")

    def found(query: str) -> list[str]:
        return sorted(run.data.tags["orchestrator.search"] for run in client.search_runs([lab], query))

    trials = "tags.`orchestrator.kind` = 'trial' and "
    assert found(f"{trials} params.backbone = 'resnet50'") == ["one", "one", "three", "three"]
    assert found(f"{trials} params.lr = '0.001' and params.backbone = 'vit_small'") == ["two"]
    assert found("tags.`orchestrator.kind` = 'search' and params.backbone = 'resnet50'") == ["one", "three"]
    searches = "tags.`orchestrator.kind` = 'search' and "
    assert found(f"{searches} params.setting_7 = '7'") == ["one", "three", "two"], "a default, which no file named"
    assert found(f"{searches} params.lr != 'none'") == [], "it is searched"
    assert found(f"{trials} params.setting_119 = '119' and dataset.name = 'data-two'") == ["two", "two"]
    assert len(found(f"{trials} tags.`mlflow.source.git.commit` = '0123abc'")) == 6
    (run,) = client.search_runs([lab], "params.lr = '0.1' and params.backbone = 'vit_small'")
    assert run.data.tags["orchestrator.searched"] == "lr, memory" and len(run.data.params["memory"]) == 6000
    assert run.info.run_name == "pfml 0001 lr=0.1 ..."


@pytest.mark.usefixtures("at_once")
def test_nobody_answers(journal: Journal, capfd: pytest.CaptureFixture[str]) -> None:
    write_first_half(journal)
    tracker = MLflowTracker(journal.path, "http://me:hush@127.0.0.1:1", None)
    wait_until(lambda: tracker.problem, 15)
    assert tracker.problem is not None and "no MLflow server answers at http://***@127.0.0.1:1" in tracker.problem
    tracker.notify()
    assert not tracker.close(5.0)
    assert tracker.backlog == 10 and tracker.parent_run_id is None
    journal.close()
    with pytest.raises(TrackingError, match="no MLflow server answers") as caught:
        sync(journal.path, "http://me:hush@127.0.0.1:1", None)
    files = "".join(file.read_text() for file in journal.path.parent.iterdir())
    printed = "".join(capfd.readouterr())
    assert "hush" not in f"{caught.value}{tracker.problem}{files}{printed}"
    assert printed == ""


def children(parent: int) -> set[int]:
    """The processes of trackers that a process has started."""
    found = set()
    for process in psutil.Process(parent).children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "orchestrator.tracking.tracker_process" in process.cmdline():
                found.add(process.pid)
    return found


def ended(process: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)
    return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers start their process at once."""
    monkeypatch.setattr(orchestrator.tracking.trackers, "START_SECONDS", 0.0)


def started(than: set[int]) -> int:
    """The process of a tracker that is not one of these, once it is there."""
    return int(min(wait_until(lambda: children(os.getpid()) - than)))


NOWHERE = "http://me:hush@127.0.0.1:1"


@pytest.mark.usefixtures("at_once")
def test_a_tracker_whose_process_is_killed_starts_another(journal: Journal) -> None:
    write_first_half(journal)
    before = children(os.getpid())
    tracker = MLflowTracker(journal.path, NOWHERE, None)
    first = started(before)
    wait_until(lambda: tracker.problem, 15)
    about = psutil.Process(first)
    assert "hush" not in f"{about.cmdline()} {about.environ()}"  # others on the machine may read them
    assert os.getpgid(first) != os.getpgid(0)  # Ctrl-C is for the search
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: tracker.problem == "the process that sends to MLflow ended with code -9")
    second = started({*before, first})
    wait_until(lambda: "no MLflow server answers" in str(tracker.problem), 15)
    os.kill(second, signal.SIGTERM)  # as to each process of a job that is stopped: the search tells it when to end
    assert not tracker.close(15.0) and ended(first) and ended(second)
    assert tracker.problem is not None and "no MLflow server answers" in tracker.problem


@pytest.mark.usefixtures("at_once")
def test_a_process_that_does_not_read_holds_nobody_up(journal: Journal) -> None:
    before = children(os.getpid())
    tracker = MLflowTracker(journal.path, NOWHERE, None)
    process = started(before)
    write_first_half(journal)
    os.kill(process, signal.SIGSTOP)

    def tell() -> None:
        for _ in range(100_000):  # more than a pipe holds
            tracker.notify()

    told = threading.Thread(target=tell, daemon=True)
    told.start()
    told.join(30)
    assert not told.is_alive()
    assert not tracker.close(0.1)
    wait_until(lambda: ended(process), 15)  # after its time nothing is left that could send


@pytest.mark.usefixtures("at_once")
def test_what_a_library_prints_is_no_answer(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process finds modules where the search does, so that this one takes the place of MLflow."""
    write_first_half(journal)
    folder = journal.path.parent / "mine"
    folder.mkdir()
    (folder / "mlflow.py").write_text(
        "import os\nprint('5', flush=True)\nos.write(1, b'{}\\n')\nraise OSError('mine')\n"
    )
    monkeypatch.setattr(sys, "path", [str(folder), "", *sys.path])
    tracker = MLflowTracker(journal.path, default_tracking_uri(journal.path.parent), None)
    wait_until(lambda: "mine" in str(tracker.problem), 30)
    assert not tracker.close(15.0) and "mine" in str(tracker.problem)


@pytest.mark.slow
def test_a_tracker_that_is_closed_before_its_process_starts_sends_all(journal: Journal) -> None:
    write_first_half(journal)
    tracker = MLflowTracker(journal.path, default_tracking_uri(journal.path.parent), None)
    assert tracker.close(60.0) and tracker.backlog == 0 and tracker.problem is None


def test_the_process_of_a_killed_search_ends(journal: Journal) -> None:
    """Else it would send beside that of the resume. This one has nothing to send, so that no broken pipe ends it."""
    code = f"""
import sys, time
from pathlib import Path
from orchestrator.tracking.trackers import MLflowTracker
MLflowTracker(Path({str(journal.path)!r}), {NOWHERE!r}, None)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as search:
        try:
            (process,) = wait_until(lambda: children(search.pid))
            wait_until(lambda: psutil.Process(process).num_threads() == 2)
            time.sleep(0.5)  # it waits for events now
        finally:
            search.kill()
    wait_until(lambda: ended(process), 15)


@pytest.mark.slow
@pytest.mark.usefixtures("at_once")
def test_server_that_dies_in_the_middle(journal: Journal, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrator.tracking.trackers, "LONGEST_BACKOFF_SECONDS", 1.0)
    memory = MemoryTracker(journal.path)
    server.wait()
    tracker = MLflowTracker(journal.path, server.uri, None)
    write_first_half(journal)
    tracker.notify()
    wait_until(lambda: tracker.backlog == 0)
    parent = tracker.parent_run_id
    server.kill()
    write_second_half(journal)
    tracker.notify()
    wait_until(lambda: tracker.problem)
    assert tracker.backlog == 20
    server.start()
    wait_until(lambda: tracker.backlog == 0, 120)
    assert tracker.close(30.0) and tracker.problem is None and tracker.parent_run_id == parent
    memory.notify()
    assert stored(default_tracking_uri(server.folder)) == projected(memory)


def test_a_resumed_search_keeps_its_command_and_names_its_present_winner(server: Server, tmp_path: Path) -> None:
    """And its own run has the best value; in MLflow as in memory."""
    server.wait()
    with Journal(tmp_path / "search" / "journal.jsonl") as journal:
        start_search(journal, "id-winners", "winners", command="orchestrator search", **{"git.commit": "a" * 40})
        for trial_id, kind, source in (("0000", "trial", None), ("final", "final", "0000")):
            record(journal, "trial_started", trial_id=trial_id, kind=kind, source=source)
            end_trial(journal, trial_id, "done")
        record(journal, "search_ended", best={"trial_id": "0000", "objective": 0.5})
        tracker = MemoryTracker(journal.path)
        tracker.notify()
        assert set(projected(tracker)) == {"first", "0000", "final"}
        assert named(tracker) == {"final": "pfml final"}
        record(journal, "search_resumed", tags={"command": "orchestrator resume", "git.commit": "b" * 40})
        for trial_id, kind, source in (("0001", "trial", None), ("final-0001-seed-0", "final", "0001")):
            record(journal, "trial_started", trial_id=trial_id, kind=kind, source=source, params={"alpha": 4})
            end_trial(journal, trial_id, "done")
        record(journal, "search_ended", best={"trial_id": "0001", "objective": 0.625})
        tracker.notify()
    sync(journal.path, server.uri, None)
    runs = stored(default_tracking_uri(server.folder), "winners")
    assert runs == {name: {key: run[key] for key in runs[name]} for name, run in projected(tracker).items()}
    assert named(tracker) == {"final": "pfml final-0000", "final-0001-seed-0": "pfml final alpha=4"}
    tags = next(run["tags"] for run in tracker.runs.values() if run["name"] == "first")
    assert (tags["command"], tags["mlflow.source.name"]) == ("orchestrator search",) * 2
    assert tags["git.commit"] == "b" * 40
    assert [value for _, _, value in runs["first"]["metrics"]["best/val_map_at_r"]] == [0.5, 0.625]


def named(tracker: MemoryTracker) -> dict[str, str]:
    """The names of the final runs, by their ids."""
    runs = tracker.runs.values()
    return {run["tags"][TRIAL]: run["name"] for run in runs if run["tags"]["orchestrator.kind"] == "final"}
