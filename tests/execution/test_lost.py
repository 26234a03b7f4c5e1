"""Trials that hang, and processes that end before their time."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.conductors import SETTINGS, conductor
from support.lost_processes import Followed, plugin, source
from support.lost_processes import processes as processes
from support.terminals import TINY, Terminal, alive, family, last_line, terminal, wait

from methods.baselines import ProxyAnchor
from orchestrator.config.resolve import resolve_search
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError
from orchestrator.execution import lost, ray_tune
from orchestrator.execution.lost import PROCESS_LOG, Cause, begins, cause, keep_log, last_output, stuck_at, tail
from orchestrator.execution.protocol import Failed, Validated, Work
from orchestrator.execution.ray_tune import Trial
from orchestrator.execution.worker import FAILURE_LOG, own_results, results

__all__ = ["terminal"]


# What a process leaves ------------------------------------------------------------------------------------


def last_lines(folder: Path, code: str) -> tuple[int, str]:
    """How a process ends that runs this code after another trial, and its last lines."""
    script = (
        "import faulthandler, os, signal, sys, time\nfrom orchestrator.execution.lost import announce, stack_if_late\n"
    )
    script += (
        "faulthandler.enable(all_threads=False)\nannounce('0000')\nprint('of the trial before')\nannounce('0001')\n"
    )
    script += f"print('its last word', flush=True)\ndef loss():\n    {code}\nloss()\n"
    (folder / "method.py").write_text(script)
    with open(folder / "worker-a-1.out", "wb") as out, open(folder / "worker-a-1.err", "wb") as err:
        process = subprocess.Popen([sys.executable, "method.py"], stdout=out, stderr=err, cwd=folder)
        status = process.wait(60)
    for kind in ("out", "err"):
        (folder / f"worker-a-1.{kind}").rename(folder / f"worker-a-{process.pid}.{kind}")
    words = tail(process.pid, "0001", folder)
    assert "its last word" in words and "of the trial before" not in words and begins("0001") not in words
    assert tail(process.pid + 1, "0001", folder) == ""
    return status, words


@pytest.mark.parametrize(
    ("code", "status", "why"),
    [
        ("os._exit(3)", 3, Cause("the code ended its own process by os._exit(3), in loss, method.py line 9", True)),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            -11,
            Cause("its process crashed: Segmentation fault, in loss, method.py line 9", False),
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, None),
        ("os.waitpid(os.fork() or os._exit(5), 0); os.kill(os.getpid(), 9)", -9, None),
    ],
)
def test_why_a_process_ended_is_read_from_its_last_lines(
    tmp_path: Path, code: str, status: int, why: Cause | None
) -> None:
    """The exit of a process that forked from it is not its own."""
    found, words = last_lines(tmp_path, code)
    assert (found, cause(words)) == (status, why)
    keep_log(tmp_path / "trial", words)
    assert (tmp_path / "trial" / PROCESS_LOG).read_text() == f"{words}\n"
    assert (
        last_output(words, tmp_path) == f"; its last line: its last word (see {tmp_path / PROCESS_LOG})"
        and last_output("", tmp_path) == ""
    )


RAY_CRASH = """\
[2026-01-01 12:00:00,186 E 7 7] logging.cc:474: *** SIGSEGV received at time=1795371172 on cpu 0 ***
[2026-01-01 12:00:00,186 E 7 7] logging.cc:474:     @     0x7f4b91c05050  (unknown)  (unknown)
Fatal Python error: Segmentation fault

Stack (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1 in _call_impl
  File "/usr/lib/python3.11/site-packages/plugin.py", line 23 in loss
"""


@pytest.mark.parametrize("depth", [3, 100])
def test_a_crash_is_found_before_a_long_stack_and_a_long_list_of_modules(tmp_path: Path, depth: int) -> None:
    """As Ray and Python write it where torch, pandas and pyarrow are loaded."""
    text = f":actor_name:Trial\n{begins('0001')}\nLAST WORDS\nSuccessfully loaded faiss.\n"
    text += "*** SIGSEGV received at time=1795371172 on cpu 0 ***\n" + RAY_CRASH
    text += (
        '  File "/ray/worker.py", line 1 in main_loop\n' * depth + f"\nExtension modules: {'pandas._libs, ' * 600}\n"
    )
    (tmp_path / "worker-a-7.err").write_text(text)
    words = tail(7, "0001", tmp_path)
    assert cause(words) == Cause("its process crashed: Segmentation fault, in loss, plugin.py line 23", False)
    assert last_output(words, tmp_path).startswith("; its last line: LAST WORDS (see ")
    hung = text.replace(
        "Fatal Python error: Segmentation fault", "Timeout (0:00:27)!\nThread 0x1 (most recent call first):"
    )
    (tmp_path / "worker-a-8.err").write_text(hung)
    assert stuck_at(tail(8, "0001", tmp_path)) == "in loss, plugin.py line 23"


def test_a_process_that_hangs_says_where(tmp_path: Path) -> None:
    code = "exec('with stack_if_late(0.2, 9): time.sleep(1)')"
    status, words = last_lines(tmp_path, code)
    assert status == 0 and "Timeout (0:00:00.1" in words
    assert stuck_at(words.replace("<string>", "plugin.py").replace("<module>", "work")) == "in work, plugin.py line 1"
    status, words = last_lines(tmp_path, "exec('with stack_if_late(9, None): time.sleep(0.1)')")
    assert status == 0 and "Timeout" not in words and stuck_at(words) is None


@pytest.mark.parametrize(
    ("error", "own", "told"),
    [
        (SystemExit("enough"), True, "SystemExit: the code called sys.exit(enough), in step, test_lost.py line "),
        (SystemExit(0), False, "SystemExit: the code called sys.exit(0), in step, test_lost.py line "),
        (KeyboardInterrupt(), True, "KeyboardInterrupt: the code raised it, in step, test_lost.py line "),
        (KeyboardInterrupt(), False, "KeyboardInterrupt: the code raised it, in step, test_lost.py line "),
        (None, False, None),
    ],
)
def test_a_method_that_wants_to_end_the_process_fails_its_trial(
    data_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | None,
    own: bool,
    told: str | None,
) -> None:
    """But for a Ctrl-C of the user's."""

    def step(*_: Any) -> None:
        if error is None:
            signal.raise_signal(signal.SIGINT)
        else:
            raise error

    monkeypatch.setattr(ProxyAnchor, "step", step)
    work = Work("0000", resolve_experiment(SETTINGS, "trial"), str(data_folder), str(tmp_path / "t"), stop_after=1)
    if told is None:
        with pytest.raises(KeyboardInterrupt):
            list(results(work, own=own))
        return
    (only,) = own_results(work) if own else results(work)
    assert isinstance(only, Failed) and only.reason.startswith(told)
    assert "in step" in (tmp_path / "t" / FAILURE_LOG).read_text()


# What the driver makes of it ------------------------------------------------------------------------------


def test_the_limits_are_seconds_of_a_search() -> None:
    raw = {key: value for key, value in TINY.items() if value is not None} | {"stall_timeout": 60}
    search = resolve_search(raw, name="s", source="s.yaml", trial_timeout=1.5)
    assert (search.trial_timeout, search.stall_timeout) == (1.5, 60)
    assert (
        "trial_timeout: 1.5" in search.file() and resolve_search(raw, name="s", source="s.yaml").trial_timeout is None
    )
    for value in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match=r"^--trial-timeout: "):
            resolve_search(raw, name="s", source="s.yaml", trial_timeout=value)
    with pytest.raises(InputError, match="stall_timeout: true should be a number"):
        resolve_search(raw | {"stall_timeout": True}, name="s", source="s.yaml")


def validation(number: int) -> Validated:
    return Validated("0000", number, {"epoch": 0.5}, 1.0)


def test_the_time_of_a_trial_counts_from_its_process_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = conductor(tmp_path)
    driver.search = driver.search.model_copy(update={"trial_timeout": 100.0, "stall_timeout": 30.0})
    work = driver.next()
    assert work is not None and (work.trial_timeout, work.stall_timeout) == (100.0, 30.0)
    assert driver.overdue(1e9) == {}, "it waits for its place"
    driver.process_started("0000", 10.0)
    assert driver.overdue(40.0) == {}
    assert driver.overdue(40.1) == {"0000": Failed("0000", "stall_timeout: no validation within 30 s", failure="stall")}
    driver.started_at = 0.0
    monkeypatch.setattr("time.monotonic", lambda: 39.0)
    driver.report(validation(1))
    assert driver.overdue(69.0) == {}
    driver.process_started("0000", 69.0)  # in another process: the trial's own time goes on
    assert driver.overdue(99.0) == {}
    driver.process_started("0000", 105.0)
    assert driver.overdue(110.1) == {"0000": Failed("0000", "trial_timeout: no end within 100 s", failure="timeout")}
    driver.lost(Failed("0000", "any"))
    assert driver.overdue(1e9) == {}


def test_a_trial_that_hangs_is_ended_with_its_reason(processes: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    followed, trial, done = processes
    driver, now = source(followed), time.monotonic()
    stack = 'Timeout (0:00:27)!\nThread 0x1 (most recent call first):\n  File "/p/mine.py", line 9 in loss\n'
    monkeypatch.setattr(ray_tune, "last_lines", lambda *_: stack)
    monkeypatch.setattr("time.monotonic", lambda: now + 29)
    followed.on_step_end(1, [])
    assert done == []
    monkeypatch.setattr("time.monotonic", lambda: now + 31)
    followed.on_step_end(2, [])
    record = driver.ledger.trials["0000"]
    assert record.state == "failed" and record.reason is not None
    assert record.reason.startswith("stall_timeout: no validation within 30 s, in loss, mine.py line 9 (see ")
    assert (driver.trial_folder(record) / PROCESS_LOG).read_text().startswith("Timeout (0:00:27)!")
    assert done == ["killed actor", "released"] and trial.max_failures == 0
    followed.on_trial_error(3, [], trial)  # Tune notices
    assert record.state == "failed" and driver.next() is not None, "its slot is free"


def test_a_code_that_ends_its_process_is_not_tried_again(processes: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    followed, trial, _ = processes
    monkeypatch.setattr(ray_tune, "last_lines", lambda *_: f"{lost.ENDED}(3)")
    followed.on_trial_recover(1, [], trial)
    record = source(followed).ledger.trials["0000"]
    assert record.state == "failed" and str(record.reason).startswith("the code ended its own process by os._exit(3)")
    again = Trial.__new__(Trial)
    again.setup(trial.config)
    assert again.step()["done"]
    again.cleanup()


def test_a_process_that_was_killed_is_begun_again_and_then_told_with_its_last_line(
    processes: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed, trial, _ = processes
    monkeypatch.setattr(ray_tune, "last_lines", lambda *_: "a\nits last word")
    followed.on_trial_recover(1, [], trial)
    record = source(followed).ledger.trials["0000"]
    assert record.state == "running" and "over" not in trial.config
    followed.on_trial_start(2, [], trial)
    followed.on_trial_error(3, [], trial)
    reason = (
        "its process was lost 2 times (max_restarts: 2): out of memory, or killed; see Ray's logs; its last line: "
        "its last word (see "
    )
    assert record.state == "failed" and str(record.reason).startswith(reason)


def test_a_crash_that_repeats_itself_is_the_trials_end(processes: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    followed, trial, _ = processes
    record, folder = source(followed).ledger.trials["0000"], followed.conductor.folder / "trials" / "0000"
    monkeypatch.setattr(ray_tune, "last_lines", lambda *_: f"LAST WORDS\n{RAY_CRASH}")
    followed.on_trial_recover(1, [], trial)
    crash = "its process crashed: Segmentation fault, in loss, plugin.py line 23"
    assert record.state == "running" and followed.conductor.lost_workers["0000"] == (crash,)
    assert "LAST WORDS" in (folder / PROCESS_LOG).read_text()
    followed.on_trial_start(2, [], trial)
    followed.on_trial_recover(3, [], trial)
    assert (record.state, trial.config["over"]) == ("failed", True)
    assert str(record.reason).startswith(f"{crash}, twice; its last line: ")


def test_a_trial_that_is_too_late_tells_of_a_process_that_it_lost(
    processes: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed, trial, _ = processes
    monkeypatch.setattr(ray_tune, "last_lines", lambda *_: RAY_CRASH)
    followed.on_trial_recover(1, [], trial)
    followed.on_trial_start(2, [], trial)
    now = time.monotonic()
    monkeypatch.setattr(ray_tune, "last_lines", lambda *_: "")
    monkeypatch.setattr("time.monotonic", lambda: now + 31)
    followed.on_step_end(3, [])
    reason = str(source(followed).ledger.trials["0000"].reason)
    assert reason.startswith(
        "stall_timeout: no validation within 30 s; a process of it was lost before that (its process "
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trials_that_hang_or_end_their_process_and_one_interrupt(terminal: Terminal, tmp_path: Path) -> None:
    """On one cluster: each ends with its reason, after one attempt, and the others train; then Ctrl-C, once."""
    space = TINY | {
        "method": "stuck",
        "space": {"fault": ["os._exit", "sys.exit", "hang", "none", "hang_again"]},
        "algorithm": "grid",
        "num_trials": None,
        "scheduler": "none",
        "final": False,
        "stall_timeout": 60,
    }
    process = terminal.search(space, "stuck", PYTHONPATH=plugin(tmp_path), RAY_worker_niceness="0")

    def ended() -> dict[str, dict[str, Any]]:
        assert process.poll() is None, process.communicate()
        return {event["trial_id"]: event for event in terminal.events("stuck", "trial_ended")}

    wait(lambda: len(ended()) == 4, 500)
    found = {trial: (event["state"], event["reason"]) for trial, event in ended().items()}
    assert found["0003"] == ("done", None)
    assert found["0000"][1].startswith("the code ended its own process by os._exit(3), in loss, stuck_plugin.py line ")
    assert found["0001"][1].startswith("SystemExit: the code called sys.exit(enough), in loss, stuck_plugin.py line ")
    assert found["0002"][1].startswith("stall_timeout: no validation within 60 s, in loss, stuck_plugin.py line ")
    for trial in ("0000", "0002"):
        assert "its last word" in (terminal.journal("stuck").parent / "trials" / trial / PROCESS_LOG).read_text()
    wait(lambda: len(terminal.events("stuck", "trial_started")) == 5, 120)
    children = family(process)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = terminal.finish(process, code=130, seconds=120)
    assert "Traceback" not in stderr and stderr.count("lost a process") == 0
    assert [trial["state"] for trial in last_line(stdout)["trials"]].count("interrupted") == 1
    wait(lambda: not alive(children), 30)
    assert json.loads(stdout)["state"] == "interrupted"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_trial_that_stalls_once_is_begun_again(terminal: Terminal, tmp_path: Path, workers: int) -> None:
    space = TINY | {
        "method": "stuck",
        "space": {"fault": ["stall_once"]},
        "algorithm": "grid",
        "num_trials": None,
        "scheduler": "none",
        "final": False,
        "stall_timeout": 45,
        "retry": 1,
        "workers": workers,
    }
    process = terminal.search(space, f"retried-{workers}", PYTHONPATH=plugin(tmp_path), RAY_worker_niceness="0")
    stdout, _ = terminal.finish(process, code=0, seconds=500)
    ends = [(event["state"], event.get("failure")) for event in terminal.events(f"retried-{workers}", "trial_ended")]
    assert ends == [("interrupted", "stall"), ("done", None)]
    (trial,) = last_line(stdout)["trials"]
    assert trial["state"] == "done" and len(terminal.events(f"retried-{workers}", "trial_started")) == 2
