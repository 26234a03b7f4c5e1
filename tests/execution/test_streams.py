"""A training whose reader has gone: it stops in order, says nothing, and goes on later."""

import contextlib
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.main import _hung_up
from orchestrator.config.resolve import resolve_search
from orchestrator.execution.inline import InlineRunner
from orchestrator.search.driver import start
from orchestrator.search.signals import continued_by, interrupts, kept_together
from orchestrator.search.watcher import Watcher
from orchestrator.storage import presence
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import MODEL_PAGE, PAGE

BEGUN = Path(__file__).parents[1] / "goldens" / "begun"
LONG = ["train", "--method", "proxy_anchor", "--dataset", "glyphs-small", "--epochs", "200", "--name", "t"]
LONG += ["--set", "validate_every=4 steps", "--set", "device=cpu", "--set", "embedding_dim=8"]
Arguments = dict[str, object]


@pytest.fixture
def storage(tmp_path: Path, data_folder: Path) -> Path:
    """With the data in it."""
    (tmp_path / "data").symlink_to(data_folder)
    return tmp_path


def begin(storage: Path, *words: str, **how: object) -> subprocess.Popen[bytes]:
    environment = os.environ | {"ORCHESTRATOR_STORAGE": str(storage), "OMP_NUM_THREADS": "1"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    command = [sys.executable, "-m", "orchestrator", *words]
    return subprocess.Popen(command, env=environment, cwd=storage, **how)  # type: ignore[call-overload,no-any-return]


def ledger(storage: Path) -> Ledger:
    return Ledger.of(Journal.read(storage / "searches" / "t" / "journal.jsonl"))


def wait_for(storage: Path, process: subprocess.Popen[bytes], validations: int) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        assert process.poll() is None, process.returncode
        with contextlib.suppress(Exception):
            if sum(trial.validations for trial in ledger(storage).trials.values()) >= validations:
                return
        time.sleep(0.1)
    raise AssertionError("waited in vain")


@pytest.fixture
def ended() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that do not outlive the test."""
    begun: list[subprocess.Popen[bytes]] = []
    yield begun
    for process in begun:
        process.kill()
        process.wait()


def heeding() -> None:
    """Of a process that starts: a SIGHUP ends it, also where the tests run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def of_a_terminal() -> None:
    heeding()
    os.login_tty(0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["terminal", "pipe"])
def test_a_training_whose_reader_has_gone_stops_in_order(
    storage: Path, ended: list[subprocess.Popen[bytes]], how: str
) -> None:
    if how == "terminal":
        ours, theirs = pty.openpty()
        process = begin(storage, *LONG, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=of_a_terminal)
    else:
        ours, theirs = os.pipe()
        process = begin(storage, *LONG, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=heeding)
    os.close(theirs)
    ended.append(process)
    wait_for(storage, process, 1)
    os.close(ours)
    assert process.wait(120) == 130
    found = ledger(storage)
    assert found.state == "interrupted" and [t.state for t in found.trials.values()] == ["interrupted"]
    assert not (storage / "searches" / "t" / "driver.json").exists()


@pytest.mark.slow
def test_a_search_whose_first_words_nobody_reads_ends_in_order(storage: Path) -> None:
    """They are written once its journal has begun, and before its first trial."""

    class Unread(Watcher):
        def begin(self, *_: object) -> None:
            os.kill(os.getpid(), signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, _hung_up)
    try:
        chosen = {"method": "proxy_anchor", "dataset": "glyphs-small", "settings": {"device": "cpu"}}
        chosen |= {"space": {"lr": [1e-3, 1e-2]}, "algorithm": "grid"}
        search = resolve_search(chosen, name="t", source="test.yaml")
        outcome = start(search, InlineRunner(), storage=storage, watcher=Unread())
    finally:
        signal.signal(signal.SIGHUP, before)
    assert outcome.state == "interrupted" == ledger(storage).state
    assert not (storage / "searches" / "t" / "driver.json").exists()


def test_a_search_that_begins_is_not_lost_for_a_moment(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver is visible before its first event is."""
    seen = []

    def looked(*given: Any, **named: Any) -> None:
        folder = storage / "searches" / "t"
        seen.append(((folder / "journal.jsonl").stat().st_size > 0, presence.driver(folder) is not None))
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.search.driver.Conductor", looked)
    chosen = {"method": "proxy_anchor", "dataset": "glyphs-small", "settings": {"device": "cpu"}}
    chosen |= {"space": {"lr": [1e-3, 1e-2]}, "algorithm": "grid"}
    with pytest.raises(KeyboardInterrupt):
        start(resolve_search(chosen, name="t", source="test.yaml"), InlineRunner(), storage=storage)
    assert seen == [(True, True)]


@pytest.mark.slow
def test_a_training_whose_results_cannot_be_shown_has_its_page(storage: Path) -> None:
    writes = os.open("/dev/full", os.O_WRONLY)
    words = [*LONG[: LONG.index("--epochs")], "--epochs", "1", "--name", "t", "--set", "device=cpu"]
    process = begin(storage, *words, stdout=writes, stderr=subprocess.PIPE)
    os.close(writes)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 2 and b"Traceback" not in said
    assert b"error: standard output: cannot be written" in said
    assert ledger(storage).state == "done"
    assert (storage / "searches" / "t" / PAGE).exists() and (storage / "searches" / "t" / MODEL_PAGE).exists()


@pytest.mark.slow
def test_nohup_is_heeded_and_the_training_goes_on_where_it_was(
    storage: Path, ended: list[subprocess.Popen[bytes]]
) -> None:
    """A SIGHUP that is ignored stays so, and so does a closed pipe."""
    ours, theirs = os.pipe()
    process = begin(
        storage,
        *LONG,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    ended.append(process)
    os.close(theirs)
    wait_for(storage, process, 1)
    process.send_signal(signal.SIGHUP)
    os.close(ours)
    before = sum(trial.validations for trial in ledger(storage).trials.values())
    wait_for(storage, process, before + 5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 130


@pytest.mark.parametrize("hangs", [True, False])
def test_a_training_that_hangs_outlives_no_closed_terminal(monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    """Nobody is there to press Ctrl-C once more."""
    conductor = SimpleNamespace(stopping=False)
    before = signal.getsignal(signal.SIGHUP)
    monkeypatch.setattr("orchestrator.search.signals.HANGUP_SECONDS", 0.3)
    with pytest.raises(KeyboardInterrupt) if hangs else contextlib.nullcontext():
        with interrupts(conductor):  # type: ignore[arg-type]
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
            assert conductor.stopping
            if hangs:
                time.sleep(5)
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGHUP)  # cuts nothing of the end short
    signal.signal(signal.SIGHUP, before)


class Deaf:
    """Python ignores what is raised while it is destroyed."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("lost_seconds", [0.2, 99.0])
def test_a_second_ctrl_c_that_python_loses_is_repeated(monkeypatch: pytest.MonkeyPatch, lost_seconds: float) -> None:
    """Without a repetition it has no effect."""
    monkeypatch.setattr("orchestrator.search.signals.LOST_SECONDS", lost_seconds)
    repeated = lost_seconds < 1
    heard = pytest.raises(KeyboardInterrupt) if repeated else contextlib.nullcontext()
    with heard, interrupts(SimpleNamespace(stopping=True)):  # type: ignore[arg-type]
        Deaf()
        time.sleep(5 if repeated else 0.4)


@pytest.mark.parametrize(("stopping", "times", "raised_at"), [(False, 1, "end"), (True, 2, None), (True, 3, "there")])
def test_a_ctrl_c_does_not_part_the_last_records(stopping: bool, times: int, raised_at: str | None) -> None:
    written = []
    with pytest.raises(KeyboardInterrupt) if raised_at else contextlib.nullcontext():
        with kept_together(SimpleNamespace(stopping=stopping)):  # type: ignore[arg-type]
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            written.append("the end of the search")
        written.append("the report")
    assert len(written) == {None: 2, "end": 1, "there": 0}[raised_at]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_outermost_command_goes_on_with_all(capsys: pytest.CaptureFixture[str]) -> None:
    outer, inner = continued_by("orchestrator claim one"), continued_by("orchestrator resume claim-one-seed4")
    with pytest.raises(KeyboardInterrupt), outer, inner:
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "interrupted; continue with:  orchestrator claim one\n"
    with pytest.raises(KeyboardInterrupt), continued_by("orchestrator resume two"):
        raise KeyboardInterrupt
    assert "orchestrator resume two" in capsys.readouterr().err


def test_an_impatient_ctrl_c_ends_what_runs_and_records_it() -> None:
    """The second one that `interrupts` heeds, and one more just after it."""
    conductor, written = SimpleNamespace(stopping=True), []
    with kept_together(conductor):  # type: ignore[arg-type]
        with contextlib.suppress(KeyboardInterrupt), interrupts(conductor):  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGINT)
            written.append("a training")
        os.kill(os.getpid(), signal.SIGINT)
        written.append("the end of the search")
    assert written == ["the end of the search"]


@pytest.mark.parametrize("words", ["list", "status golden", "report golden", "presets", "nonsense"])
def test_a_command_into_a_closed_pipe_says_nothing(tmp_path: Path, words: str) -> None:
    """It ends as other programs do, with the code of SIGPIPE."""
    shutil.copytree(BEGUN, tmp_path / "searches" / "golden")
    ours, theirs = os.pipe()
    os.close(ours)
    unread, other = ("stderr", "stdout") if words == "nonsense" else ("stdout", "stderr")
    process = begin(tmp_path, *words.split(), **{unread: theirs, other: subprocess.PIPE})
    os.close(theirs)
    said = b"".join(filter(None, process.communicate(timeout=60)))
    assert (said, process.returncode) == (b"", 128 + signal.SIGPIPE)


def test_the_first_line_of_a_report(tmp_path: Path) -> None:
    """Where `head` closes the pipe before or after the last line."""
    shutil.copytree(BEGUN, tmp_path / "searches" / "golden")
    report = f"{shlex.quote(sys.executable)} -m orchestrator report golden --storage {shlex.quote(str(tmp_path))}"
    script = f"{report} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    line, code = done.stdout.splitlines()
    assert done.stderr == "" and line and code in ("0", "141")
