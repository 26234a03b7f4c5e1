"""Whatever comes, a command ends in one line and an exit code, and destroys nothing."""

import csv
import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from support.command_line import run
from support.made_pages import made, spread

import orchestrator
from orchestrator import __main__, stdio
from orchestrator.cli import main
from orchestrator.cli.tables import landing
from orchestrator.cli.terminal import Terminal
from orchestrator.errors import InputError, visible
from orchestrator.storage.files import SMALL_BYTES, output_place
from orchestrator.storage.journal import Journal
from orchestrator.storage.places import LEADERBOARD
from orchestrator.storage.presence import DRIVER, REQUEST, driver
from orchestrator.storage.reading import open_journal
from orchestrator.storage.records import KEPT
from orchestrator.storage.scratch import MATPLOTLIB, scratch
from orchestrator.tracking.address import check_tracking_uri, default_tracking_uri
from orchestrator.tracking.store import TrackingError

HUGE = b" " * (SMALL_BYTES + 1)
NESTED = b"[" * 100_000


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Two searches: `a`, which has not ended, and `b`."""
    made(tmp_path / "searches" / "a", spread(3), epochs=2, end=None)
    made(tmp_path / "searches" / "b", spread(3), epochs=2, finals={"0000": [0.5, 0.52]})
    return tmp_path


def one_line(text: str) -> bool:
    return text.startswith("error: ") and text.count("\n") == 1 and "Traceback" not in text


# Streams ---------------------------------------------------------------------------------------------------

PRINTING = [
    "report b",
    "report b --json",
    "report b --format csv",
    "list",
    "list --json",
    "status b",
    "status b --json",
]
PRINTING += ["compare a b --json", "compare a b --format latex", "methods", "methods --json", "presets", "datasets"]


@pytest.mark.parametrize("command", PRINTING)
def test_standard_output_that_is_full(
    storage: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, command: str
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(sys, "stdout", stdio._stream(None, stdio._Stdout(full, "w", closefd=False)))
    ran = run(capsys, command if command[:4] in ("meth", "pres") else f"{command} --storage {storage}")
    assert ran.code == 2
    assert ran.err.splitlines()[-1] == "error: standard output: cannot be written (No space left on device)"
    assert "Traceback" not in ran.err
    sys.stdout.flush()  # as Python does at its end: what was left goes nowhere
    os.close(full)


def test_what_nobody_reads_on_standard_error_ends_nothing() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    words = stdio._stream(None, stdio._Stderr(full, "w", closefd=False))
    print("a word \udce9 ±", file=words, flush=True)
    os.close(full)
    print("another", file=words, flush=True)


def test_streams_that_are_closed(tmp_path: Path) -> None:
    """What is opened later must not take their places: a journal would be written into."""
    script = "from orchestrator import stdio; stdio.prepare_streams(); import sys\n"
    script += f"file = open({str(tmp_path / 'file')!r}, 'w', buffering=1)\n"
    script += "print('a result'); print('a word', file=sys.stderr); file.write(str(stdio.flush()))"
    words = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)}"
    closed = subprocess.run(["bash", "-c", f"{words} <&- >&-"], capture_output=True, text=True)
    told = "a word\nerror: standard output: cannot be written (Bad file descriptor)\n"
    assert (closed.returncode, closed.stderr, (tmp_path / "file").read_text()) == (0, told, "2")
    done = subprocess.run(["bash", "-c", f"{words} <&- 2>&-"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, (tmp_path / "file").read_text()) == (0, "a result\n", "0")


# What was not expected ---------------------------------------------------------------------------------------


def log_of(error: str) -> Path:
    found = re.fullmatch(r"error: unexpected: (.*); where it happened is written in (\S+\.log)\n", error)
    assert found is not None, error
    return Path(found[2])


@pytest.mark.parametrize("command", [["list"], ["search", "demo"]])
def test_an_error_that_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("two\nlines \x1b[31m of http://me:hunter2@host")

    monkeypatch.setattr(main, "program", lambda names: broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ran = run(capsys, shlex.join(command))
    assert ran.code == 1 and one_line(ran.err) and "hunter2" not in ran.err and "\x1b" not in ran.err
    log = log_of(ran.err)
    assert log.parent == tmp_path and log.stat().st_mode & 0o077 == 0
    assert "Traceback" in log.read_text() and "in broken" in log.read_text()


def test_a_disk_that_takes_no_log_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert stdio.report_internal_error(RecursionError("deep")) == 1
    assert capsys.readouterr().err == "error: unexpected: RecursionError: deep\n"


def test_an_installation_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(stdio, "prepare_streams", lambda: None)
    monkeypatch.setitem(sys.modules, "orchestrator.cli.main", None)
    with pytest.raises(SystemExit) as leaving:
        __main__.main()
    assert leaving.value.code == 1
    assert "orchestrator.cli" in log_of(capsys.readouterr().err).read_text()


# Files that are read back ----------------------------------------------------------------------------------

ALIVE = {"by": "me@here", "host": socket.gethostname(), "pid": os.getpid()}
WRONG: dict[str, bytes] = {
    "nothing": b"",
    "half": b'{"by": ',
    "a list": b"[1]",
    "no keys": b"{}",
    "other types": json.dumps(ALIVE | {"pid": "a", "wish": 3}).encode(),
    "no process": json.dumps(ALIVE | {"pid": 10**30, "wish": "go"}).encode(),
    "no time": json.dumps(ALIVE | {"time": "now", "wish": None}).encode(),
    "nested": NESTED,
    "zeros": bytes(100),
    "large": HUGE,
}


def show_driver(folder: Path) -> None:
    (folder / DRIVER).write_text(json.dumps(ALIVE | {"time": time.time() * 1000}))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", [DRIVER, REQUEST])
def test_a_damaged_record_of_a_driver_is_told(storage: Path, capsys: Any, name: str, wrong: str) -> None:
    folder = storage / "searches" / "a"
    show_driver(folder)
    (folder / name).write_bytes(WRONG[wrong])
    for command in ("status", "stop") if name == DRIVER else ("status",):
        ran = run(capsys, f"{command} a --storage {storage}")
        assert ran.code == 2 and one_line(ran.err)
        assert ran.err.startswith(f"error: {folder / name}: damaged (") and "delete this file" in ran.err
    others = run(capsys, f"list --storage {storage} --json")
    assert others.code == 0 and [one["name"] for one in json.loads(others.out)] == ["b"]
    assert others.err.startswith(f"warning: {folder / name}: damaged")


@pytest.mark.parametrize("command", ["report b", "status b", "compare a b", "report b --json"])
def test_what_a_journal_leaves_unsure_is_told(storage: Path, capsys: Any, command: str) -> None:
    path = storage / "searches" / "b" / "journal.jsonl"
    sums = re.compile(rb', "sum": "[0-9a-f]+"')
    path.write_bytes(sums.sub(b"", path.read_bytes()) + b'{"event": "no')
    lines = path.read_bytes().count(b"\n")
    ran = run(capsys, f"{command} --storage {storage}")
    told = [line for line in ran.err.splitlines() if str(path) in line]
    assert told[0].startswith(f"note: {path}: is of an earlier version, without checksums")
    assert told[1].startswith(f"note: {path}:{lines + 1}: the last line is incomplete and was left out")


def folder_there(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def pipe_there(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("put", [folder_there, pipe_there])
def test_something_else_in_the_place_of_a_file(storage: Path, capsys: Any, put: Callable[[Path], None]) -> None:
    folder = storage / "searches" / "a"
    what = "a folder" if put is folder_there else "a device or a pipe"
    for name in (LEADERBOARD, DRIVER, "study.journal"):
        put(folder / name)
        with (
            pytest.raises(InputError, match=f"{name}: is {what}, where the search writes a file"),
            open_journal(folder / "j"),
        ):
            pass
        (folder / name).rmdir() if put is folder_there else (folder / name).unlink()
    put(folder / "journal.jsonl")
    for command in ("report", "status", "sync", "resume", "stop"):
        ran = run(capsys, f"{command} a --storage {storage}")
        assert ran.code == 2 and one_line(ran.err) and f"journal.jsonl: is {what}" in ran.err
    others = run(capsys, f"list --storage {storage}")
    assert others.code == 0 and " b " in others.out and f"is {what}" in others.err


@pytest.mark.parametrize("wrong", [*WRONG, "a folder"])
def test_what_else_is_read_back(storage: Path, capsys: Any, wrong: str) -> None:
    """A tracker's cursor, which can be made anew; a benchmark's record; a data set's manifest."""
    for path in ("searches/b/tracking-1.json", "benchmarks/n/benchmark.json", "data/birds/manifest.json"):
        (storage / path).parent.mkdir(parents=True, exist_ok=True)
        (storage / path).mkdir() if wrong == "a folder" else (storage / path).write_bytes(WRONG[wrong])
    ran = run(capsys, f"report b --storage {storage} --json")
    assert (ran.code, ran.err) == (0, "") and json.loads(ran.out)["experiment_id"] is None
    ran = run(capsys, f"report n --storage {storage}")
    assert ran.code == 2 and one_line(ran.err) and "benchmark.json" in ran.err
    ran = run(capsys, f"datasets --storage {storage} --json")
    assert ran.code == 0 and {"name": "birds", "state": "damaged"}.items() <= json.loads(ran.out)[-1].items(), ran


def test_a_request_that_is_damaged_stops_no_driver(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from orchestrator.search.control import _take_request

    (tmp_path / REQUEST).write_bytes(NESTED)
    conductor: Any = SimpleNamespace(folder=tmp_path, stopping=False, pausing=False, stopped_by=None)
    _take_request(conductor)
    assert not conductor.stopping and not conductor.pausing and driver(tmp_path) is None


# Outputs ---------------------------------------------------------------------------------------------------


def test_an_output_takes_no_other_things_place(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes.txt").write_text("mine")
    for name, target in (("to-notes.html", "notes.txt"), ("to-pipe", "pipe"), ("loop", "loop"), ("to-none", "x/y")):
        (tmp_path / name).symlink_to(target)
    for name, told in (
        ("folder", "is a folder"),
        ("pipe", "is a device or a pipe"),
        ("to-pipe", "is a device or a pipe"),
        ("/dev/null", "is a device or a pipe"),
        ("notes.txt", "is of another kind; give a name that ends in .html"),
        ("to-notes.html", "notes.txt exists and is of another kind"),
        ("loop", "loop"),
        ("to-none", "x does not exist"),
        ("a" * 300, "name too long"),
        ("folder/no/x.html", "folder/no does not exist"),
    ):
        with pytest.raises(InputError, match=rf"(?i)^--html: .*{re.escape(told)}"):
            output_place("--html", tmp_path / name, [".html"])
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("command", ["report b", "compare b c"])
def test_a_page_is_written_through_a_link_and_into_nothing_else(storage: Path, capsys: Any, command: str) -> None:
    made(storage / "searches" / "c", spread(3), epochs=2, finals={"0000": [0.4, 0.45]})
    os.mkfifo(storage / "pipe.html")
    for place, told in ((storage / "pipe.html", "a device or a pipe"), (storage / "searches", "a folder")):
        ran = run(capsys, f"{command} --storage {storage} --html {place}")
        assert ran.code == 2 and one_line(ran.err) and f"--html: {place}: is {told}" in ran.err
    assert (storage / "pipe.html").is_fifo() and (storage / "searches" / "b" / "journal.jsonl").exists()
    (storage / "kept.html").write_text("before")
    (storage / "link.html").symlink_to("kept.html")
    ran = run(capsys, f"{command} --storage {storage} --html {storage / 'link.html'}")
    assert ran.code == 0, ran.err
    assert (storage / "link.html").is_symlink() and "</html>" in (storage / "kept.html").read_text()


# What is shown ---------------------------------------------------------------------------------------------

EVIL = "\x1b[2J \u202egnp\u2066 \x9b31m \udce9 [red]=[/x]"
SEEN = "\\x1b[2J \\u202egnp\\u2066 \\x9b31m \\udce9 [red]=[/x]"


def evil(folder: Path) -> None:
    """A journal with control characters, and a spreadsheet's formulas, in every text that may hold them."""
    made(folder, spread(2), epochs=2, finals={"0000": [0.5]})
    events = Journal.read(folder / "journal.jsonl")
    (folder / "journal.jsonl").unlink()
    with Journal(folder / "journal.jsonl") as journal:
        for event in events:
            fields = {key: value for key, value in event.items() if key not in KEPT}
            if event["event"] == "trial_started":
                fields["params"] |= {"mining": EVIL, "formula": "=1+1", EVIL: "@x", "alpha": -1.5}
            if event.get("trial_id") == "0001" and event["event"] == "trial_ended":
                fields |= {"state": "failed", "reason": f"+{EVIL}"}
            if event["event"] == "search_started":
                fields |= {"name": EVIL}
            if event["event"] == "search_ended":
                fields |= {"state": "interrupted", "reason": EVIL}
            journal.append(event["event"], **fields)


def test_control_characters_are_shown_and_not_obeyed(storage: Path, capsys: Any, monkeypatch: Any) -> None:
    evil(storage / "searches" / "e")
    monkeypatch.setenv("COLUMNS", "400")
    for command in ("report e", "status e", "list", "report e --format markdown", "report e --format latex"):
        ran = run(capsys, f"{command} --storage {storage}")
        assert ran.code == 0, ran
        assert visible(ran.out + ran.err) == ran.out + ran.err, command
        # a search is called as its folder, whatever its journal says
        assert command[-5:] in ("kdown", "latex", "list") or SEEN[:8] in ran.out, ran.out
    name = shlex.quote(f"x{EVIL}".replace("\udce9", ""))
    ran = run(capsys, f"report {name} --storage {storage}")
    assert ran.code == 2 and one_line(ran.err) and "\\x1b" in ran.err and "\x1b" not in ran.err
    ran = run(capsys, f"search demo --set {shlex.quote(chr(27) + '[31m=1')} --dry-run --storage {storage}")
    assert ran.code == 2 and "\x1b" not in ran.err


def test_no_cell_is_a_formula(storage: Path, capsys: Any) -> None:
    evil(storage / "searches" / "e")
    ran = run(capsys, f"report e --storage {storage} --format csv")
    heads, *lines = csv.reader(ran.out.splitlines())
    rows = [dict(zip(heads, line, strict=True)) for line in lines]
    assert all(cell[:1] not in "=+@" or not cell for line in [heads, *lines] for cell in line)
    assert rows[0]["formula"] == "'=1+1" and rows[0][SEEN] == "'@x" and rows[0]["alpha"] == "-1.5"
    assert {row["reason"] for row in rows} == {"", f"'+{SEEN}"}


def test_a_terminal_of_its_own_keeps_its_styles(capsys: Any) -> None:
    Terminal(force_terminal=True, width=80, color_system="standard").print(Text("a\x1b[2Jb", style="red"))
    assert capsys.readouterr().out == "\x1b[31ma\\x1b[2Jb\x1b[0m\n"


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("sqlite:///{tmp}", "is a folder"),
        ("sqlite:///{tmp}/pipe", "is a device or a pipe"),
        ("sqlite:///{tmp}/notes", "is a file, but not a SQLite database"),
        ("sqlite:///:memory:", "is gone when the search ends"),
        ("postgresql://me@host", "names no database"),
        ("mysql://", "names no database"),
    ],
)
def test_an_address_that_takes_no_runs(tmp_path: Path, uri: str, told: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes").write_text("my notes on all this")
    with pytest.raises(TrackingError, match=told):
        check_tracking_uri(uri.format(tmp=tmp_path))
    (tmp_path / "empty.db").touch()
    for good in (f"sqlite:///{tmp_path}/empty.db", f"sqlite:///{tmp_path}/new.db", "postgresql:///runs"):
        assert check_tracking_uri(good) == good


def test_a_storage_that_was_moved_knows_its_runs(tmp_path: Path) -> None:
    """Its own database moves with it; another one does not."""
    folder = tmp_path / "moved" / "searches" / "a"
    made(folder, spread(1), epochs=1)
    cursor = {"search_id": "id", "events": 1, "offset": 1, "experiment_id": "7", "parent_run_id": "r", "trials": {}}
    where = tmp_path / "before" / "mlflow.db"
    (folder / "tracking-1.json").write_text(json.dumps(cursor | {"tracking_uri": f"sqlite:///{where}"}))
    assert "/7" in landing(folder / "journal.jsonl", default_tracking_uri(tmp_path / "moved"), 5000)
    with pytest.raises(InputError, match="was not sent to"):
        landing(folder / "journal.jsonl", f"sqlite:///{tmp_path}/other.db", 5000)


LEAVE = """
import atexit, sys, threading, time
from orchestrator.stdio import leave
class Freed:
    def __del__(self):
        print("freed")
kept = Freed()
atexit.register(print, "registered")
threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
sys.stdout.write("unflushed ")
leave({})
"""


@pytest.mark.parametrize(
    ("code", "returned", "words"), [(None, 0, ""), (0, 0, ""), (130, 130, ""), ("why", 1, "why\n")]
)
def test_the_end_waits_for_threads_and_functions_and_frees_nothing(code: object, returned: int, words: str) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVE.format(repr(code))], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (returned, words)
    assert done.stdout == "unflushed thread\nregistered\n"


def test_matplotlib_has_a_place_where_the_home_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it makes one in the folder of temporary files, and removes it when the process ends, when that is gone."""
    monkeypatch.setenv(MATPLOTLIB, "")
    for writable, wanted in (True, False), (False, True):
        monkeypatch.setattr(os, "access", lambda *_, answer=writable: answer)
        with scratch() as folder:
            assert (os.environ[MATPLOTLIB] == str(folder)) is wanted
        assert os.environ[MATPLOTLIB] == ""
    monkeypatch.setenv(MATPLOTLIB, "/mine")
    with scratch():
        assert os.environ[MATPLOTLIB] == "/mine"


def test_a_system_without_file_locks_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: Windows, which has no `fcntl`. A loss works there."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    line = "Windows is not supported: use Linux or macOS, in Windows WSL 2 (orchestrator.Loss works here)"
    assert ended.value.code == 2 and capsys.readouterr().err == f"error: {line}\n"
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        _ = orchestrator.train
    assert orchestrator.Loss("contrastive", num_classes=2, embedding_dim=4) is not None
