"""Processes that join a search through its storage: what they and the driver write, and who trains what.

Nothing is waited for: the driver looks at a time that the test says, and the processes are what they write.
"""

import json
import math
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.command_line import run
from support.conductors import SETTINGS, leaderboard_here
from support.readers import page_lines
from support.recorded import begin, record
from support.terminals import TINY, Terminal, alive, family, terminal, wait

from orchestrator.config.presets import presets
from orchestrator.config.resolve import resolve_search
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError
from orchestrator.execution import exchange, joiner, through_storage, trainer
from orchestrator.execution.exchange import (
    CODE,
    MESSAGES,
    OUTPUT,
    STOPPED,
    TASK,
    Assignment,
    Code,
    Message,
    Pulse,
    Stopped,
    Takeover,
    join_folder,
    read,
    read_work,
    result_fields,
    send,
    task_work,
    write,
)
from orchestrator.execution.installed import code_digest, installed_versions
from orchestrator.execution.joiner import Ending, Joiner, Silent
from orchestrator.execution.lost import PROCESS_LOG, begins
from orchestrator.execution.protocol import Failed, Interrupted, Result, Validated, Work
from orchestrator.execution.through_storage import Crew, JoinedProcess, StorageRunner
from orchestrator.report.findings import Findings
from orchestrator.report.steps import line
from orchestrator.search.conductor import Conductor
from orchestrator.storage.events import Event
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.opening import open_file
from orchestrator.storage.places import JOURNAL, WORK, Places
from orchestrator.storage.presence import show_driver
from orchestrator.storage.reading import read_journal

__all__ = ["terminal"]

LIMIT = 60.0
ELSEWHERE = "elsewhere"


def search(**changes: Any) -> Any:
    raw = {"method": "proxy_anchor", "settings": {"device": "cpu"}, "space": {"lr": [1e-3, 1e-2, 1e-1]}}
    return resolve_search(raw | {"algorithm": "grid", "final": False} | changes, name="s", source="test.yaml")


def conductor(storage: Path, events: list[Event] | None = None, **changes: Any) -> Conductor:
    """The driver of a search of three points; with `events`, one that goes on with them."""
    folder, wanted = Places(storage).search("s"), search(**changes)
    journal = Journal(folder / JOURNAL)
    events = [begin(journal, wanted)] if events is None else events
    return Conductor(wanted, folder, data=storage / "data", journal=journal, events=events, slots=1)


@dataclass
class Made:
    """A process that joined, as the test makes it."""

    folder: Path

    @classmethod
    def join(cls, driver: Conductor, host: str = ELSEWHERE, pid: int = 1) -> "Made":
        made = cls(join_folder(driver.folder))
        send(made.folder, kind="joined", host=host, by=f"me@{host}", pid=pid, lost_after=LIMIT)
        return made

    @property
    def task(self) -> Assignment:
        return read(self.folder, TASK, Assignment) or Assignment()

    def live(self) -> None:
        send(self.folder, kind="alive")

    def say(self, result: Result | str, number: int, task: str | None = None) -> None:
        fields = {"kind": result} if isinstance(result, str) else result_fields(result)
        send(self.folder, task=task or self.task.id, number=number, **fields)

    def validate(self, number: int, score: float = 0.5, task: str | None = None, trial: str | None = None) -> None:
        trial = trial or self.task.trial_id
        self.say(Validated(trial, number, {"val/map_at_r": score}, finished=number == 3), number, task)


def states(driver: Conductor) -> dict[str, str]:
    return {trial.trial_id: trial.state for trial in driver.ledger.trials.values()}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Conductor]:
    driver = conductor(tmp_path)
    yield driver
    driver.journal.close()


def crew_of(driver: Conductor, count: int, kind: type[Crew] = Crew) -> tuple[Crew, list[Made]]:
    """A driver that has seen so many processes live, at the times 0 and 1."""
    made = [Made.join(driver) for _ in range(count)]
    crew = kind(driver)
    crew.listed = -9.0
    crew.look(0.0)
    for one in made:
        one.live()
    crew.look(1.0)
    return crew, made


# What is written ------------------------------------------------------------------------------------------


def test_a_work_arrives_as_it_was(tmp_path: Path) -> None:
    """The places are those of the machine that reads it, whatever the file says."""
    for settings in [SETTINGS, *(preset.settings for preset in presets().values())]:
        experiment = resolve_experiment(settings, "trial")
        work = Work("0003", experiment, "/there", "/there/0003", {"metric": "m", "mode": "max"}, 3, untrained=True)
        there = read_work(json.loads(json.dumps(task_work(work))), Places(tmp_path), "s")
        data, folder = tmp_path / "data", tmp_path / "searches" / "s" / "trials" / "0003"
        assert there.experiment.flat() == experiment.flat()
        assert there == replace(work, experiment=there.experiment, data=str(data), folder=str(folder))
    for wrong in ("../0003", ""):
        with pytest.raises(TypeError):
            read_work(task_work(work) | {"trial_id": wrong}, Places(tmp_path), "s")


RESULTS: list[Result] = [
    Validated("0003", 0, untrained={"score": 0.1, "by_class": {"a": [1, 2]}}),
    Validated("0003", 2, {"val/map_at_r": 0.1 + 0.2, "loss": math.inf}, 1.5, unordered=("a",), lost_workers=("b",)),
    Validated("0003", 3, {}, finished=True, reason="r", test={"map_at_r": 1e-300}, anew="damaged"),
    Failed("0003", "why", failure="memory", repeats=True),
    Interrupted("0003", "full"),
]


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_arrives_as_it_was(tmp_path: Path, result: Result) -> None:
    send(tmp_path, task="t", number=1, **result_fields(result))
    (message,) = exchange.Messages(tmp_path).read()
    assert message.content("0003") == result
    assert isinstance(other := message.content("0004"), Failed) and other.failure == "code"
    wrong = Message(kind="validated", task="t", number=1, result={"trial_id": "0003", "number": "x"})
    assert isinstance(wrong.content("0003"), Failed)


def test_half_a_message_is_none_yet(tmp_path: Path) -> None:
    send(tmp_path, kind="alive")
    messages = exchange.Messages(tmp_path)
    with (tmp_path / MESSAGES).open("ab") as file:
        file.write(b'not JSON\n{"kind": "le')
        file.flush()
        assert [message.kind for message in messages.read()] == ["alive"]
        file.write(b'ft"}\n')
    assert [message.kind for message in messages.read()] == ["left"]
    assert messages.read() == [] and exchange.Messages(tmp_path / "none").read() == []


# Who trains what ------------------------------------------------------------------------------------------


def each_trial_has_one_process(driver: Conductor, kind: type[Crew] = Crew) -> None:
    """And each process one trial."""
    crew, made = crew_of(driver, 2, kind)
    assert sorted(one.task.trial_id for one in made) == ["0000", "0001"] and driver.slots == 2
    made[0].validate(1)
    crew.look(2.0)
    assert made[0].task.answered == 1 and made[1].task.answered == 0
    first = made[0].task.trial_id
    for number in (2, 3):
        made[0].validate(number)
    crew.look(3.0)
    assert states(driver)[first] == "done" and made[0].task.trial_id == "0002"
    made[1].say(Failed(made[1].task.trial_id, "a bug", failure="code"), 1)
    crew.look(4.0)
    assert made[1].task == Assignment(), "no point is left"
    made[0].validate(3, task="another")
    crew.look(5.0)
    assert states(driver)["0002"] == "running" and not driver.is_finished
    made[0].validate(3)
    crew.look(6.0)
    assert driver.is_finished and sorted(states(driver).values()) == ["done", "done", "failed"]


def test_each_trial_has_one_process(driver: Conductor) -> None:
    each_trial_has_one_process(driver)


class GivesTwice(Crew):
    """Keeps the work that it has given away."""

    def begin(self, member: JoinedProcess, work: Work) -> None:
        super().begin(member, work)
        self.pending.append(work)


def test_work_that_is_given_twice_would_be_seen(driver: Conductor) -> None:
    with pytest.raises(AssertionError):
        each_trial_has_one_process(driver, GivesTwice)


def test_nobody_has_work_before_it_is_known_to_live(driver: Conductor) -> None:
    made, crew = Made.join(driver), Crew(driver)
    crew.listed = -9.0
    for now in (0.0, 1.0, 2.0):
        crew.look(now)
        assert made.task == Assignment() and driver.slots == 0 and driver.next() is None
    made.live()
    crew.look(3.0)
    assert made.task.trial_id == "0000"


def test_how_many_are_there_is_said_and_how_one_joins(driver: Conductor, capsys: pytest.CaptureFixture[str]) -> None:
    with StorageRunner().ready(driver.search, driver.folder.parent.parent) as slots:
        assert slots == 0
    crew, made = crew_of(driver, 2)
    for one in made:
        send(one.folder, kind="left")
    crew.look(2.0)
    join = f"trials wait for a process that joins: orchestrator work {driver.folder.parent.parent} --search s"
    assert capsys.readouterr().err.splitlines() == [join, "2 processes are there to train", join]


def test_a_stopped_trial_hears_nothing_more(tmp_path: Path) -> None:
    driver = conductor(tmp_path, scheduler={"name": "asha", "grace_validations": 1, "reduction_factor": 3})
    crew, (made,) = crew_of(driver, 1)
    for score in (0.9, 0.8, 0.1):
        task = made.task
        made.validate(1, score)
        crew.look(2.0)
        if driver.ledger.trials[task.trial_id].state == "running":
            made.validate(2, score)
            made.validate(3, score)
            crew.look(3.0)
        else:
            assert made.task.id != task.id
            made.validate(2, task=task.id, trial=task.trial_id)
            crew.look(3.0)
            assert driver.ledger.trials[task.trial_id].validations == 1
    assert "pruned" in states(driver).values()
    driver.journal.close()


def no_lost_trial_stays(driver: Conductor, kind: type[Crew] = Crew) -> None:
    """One of two processes is silent: the other one gets its trial; what the first says later is not heard."""
    crew, (silent, other) = crew_of(driver, 2, kind)
    task = silent.task
    silent.validate(1)
    crew.look(2.0)
    for number in (1, 2, 3):
        other.validate(number)
        crew.look(3.0)
    later = 2.0 + LIMIT + 1
    other.live()
    crew.look(later - 2)
    assert task.trial_id in {silent.task.trial_id}, "not yet"
    taken = {other.task.trial_id}
    for number in (1, 2, 3):
        other.validate(number)
        crew.look(later)
        taken.add(other.task.trial_id)
    assert task.trial_id in taken and silent.task == Assignment()
    assert driver.ledger.trials[task.trial_id].state == "running"
    late = Failed(task.trial_id, "it was suspended", failure="code")
    for message in (
        late,
        Validated(task.trial_id, 2, {"val/map_at_r": 0.9}),
        replace(RESULTS[2], trial_id=task.trial_id),
    ):
        silent.say(message, 2, task.id)
        other.live()
        crew.look(later + 1)
        assert states(driver)[task.trial_id] == "running" and driver.ledger.trials[task.trial_id].validations == 1
    for number in (2, 3):
        other.validate(number)
        crew.look(later + 2)
    assert driver.is_finished and set(states(driver).values()) == {"done"}
    assert [t.validations for t in driver.ledger.trials.values()] == [3, 3, 3]
    journal = [event for event in Journal.read(driver.journal.path) if event["event"] == "validation"]
    assert len(journal) == 9, "each once"


def test_a_silent_process_is_lost_and_is_not_heard_later(driver: Conductor) -> None:
    no_lost_trial_stays(driver)


class StaleBeat(Crew):
    """Takes each process for alive."""

    def hear(self, member: JoinedProcess, now: float) -> None:
        member.heard = now
        super().hear(member, now)


class HearsTheLost(Crew):
    """Goes on to read what lost processes say, and takes it for what the present one says."""

    def look(self, now: float) -> None:
        for member in self.members.values():
            if member.gone:
                for message in member.messages.read():
                    trial_id = str(message.result.get("trial_id"))
                    if trial_id in self.conductor.ledger.trials:  # type: ignore[attr-defined]
                        self.conductor.report(message.content(trial_id))
        super().look(now)


@pytest.mark.parametrize("bug", [StaleBeat, HearsTheLost])
def test_these_bugs_would_be_seen(driver: Conductor, bug: type[Crew]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        no_lost_trial_stays(driver, bug)


def test_a_process_of_this_machine_that_is_gone_is_lost_at_once(driver: Conductor) -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    here = Made.join(driver, socket.gethostname(), os.getpid())
    crew, (other,) = crew_of(driver, 1)
    assert {here.task.trial_id, other.task.trial_id} == {"", "0000"}
    here.live()
    crew.look(2.0)
    trial = here.task.trial_id
    assert trial
    with (here.folder / MESSAGES).open("ab") as file:  # as if this process were another one
        file.write(Message(kind="joined", host=socket.gethostname(), pid=pid).model_dump_json().encode() + b"\n")
    crew.look(3.0)
    for number in (1, 2, 3):
        other.validate(number)
    crew.look(4.0)
    assert other.task.trial_id == trial and here.task == Assignment()


def test_a_trial_that_is_given_back_goes_on_elsewhere_and_counts_as_no_loss(driver: Conductor) -> None:
    crew, (one, other) = crew_of(driver, 2)
    task = one.task
    one.validate(1)
    one.say("returned", 2)
    send(one.folder, kind="left")
    crew.look(2.0)
    for number in (1, 2, 3):
        other.validate(number)
    crew.look(3.0)
    assert (other.task.trial_id, other.task.id == task.id) == (task.trial_id, False)
    assert driver.ledger.trials[task.trial_id].validations == 1 and crew.attempts == {}
    assert driver.ledger.trials[task.trial_id].state == "running" and not driver.stopping


def test_a_trial_whose_process_is_lost_three_times_has_failed(driver: Conductor) -> None:
    crew, (made,) = crew_of(driver, 1)
    for attempt in range(3):
        assert made.task.trial_id == "0000", attempt
        (made.folder / OUTPUT).write_text(f"{begins('0000')}\nits last word\n")
        made.say("lost", 1)
        crew.look(2.0 + attempt)
    trial = driver.ledger.trials["0000"]
    assert (trial.state, trial.failure, made.task.trial_id) == ("failed", "lost", "0001")
    assert str(trial.reason).startswith("its process was lost 3 times (max_restarts: 2): killed; its last line")
    assert "its last word" in (driver.folder / "trials" / "0000" / PROCESS_LOG).read_text()


@pytest.mark.parametrize(
    ("words", "losses", "reason"),
    [
        ("the code ended its own process by os._exit(3)", 1, "the code ended its own process by os._exit(3)"),
        ("Fatal Python error: Segmentation fault", 2, "its process crashed: Segmentation fault, twice"),
    ],
)
def test_code_that_ends_its_process_fails_its_trial(driver: Conductor, words: str, losses: int, reason: str) -> None:
    crew, (made,) = crew_of(driver, 1)
    for loss in range(losses):
        assert made.task.trial_id == "0000"
        (made.folder / OUTPUT).write_text(f"{begins('0000')}\n{words}\n")
        made.say("lost", 1)
        crew.look(2.0 + loss)
    trial = driver.ledger.trials["0000"]
    assert (trial.state, trial.failure) == ("failed", "code") and str(trial.reason).startswith(reason)


def test_a_gpu_that_cannot_be_used_begins_the_trial_again_once(driver: Conductor) -> None:
    crew, (made,) = crew_of(driver, 1)
    for _ in range(2):
        assert made.task.trial_id == "0000"
        made.say(Failed("0000", "no GPU", failure="device"), 1)
        crew.look(2.0)
    trial = driver.ledger.trials["0000"]
    assert (trial.state, trial.reason, trial.failure) == ("failed", "no GPU, twice", "device")


def test_a_trial_that_hangs_ends_and_its_process_gets_another(tmp_path: Path) -> None:
    driver = conductor(tmp_path, stall_timeout=100, retry=1)
    crew, (made,) = crew_of(driver, 1)
    task = made.task
    made.live()
    crew.look(50.0)
    assert made.task == task
    made.live()
    crew.look(102.0)
    trial = driver.ledger.trials["0000"]
    assert made.task.trial_id == "0000" and made.task.id != task.id, "retry: 1"
    made.live()
    crew.look(150.0)
    made.live()
    crew.look(203.0)
    assert (trial.state, trial.failure) == ("failed", "stall") and made.task.trial_id == "0001"
    driver.journal.close()


def test_a_full_disk_stops_the_search_and_all_are_told(driver: Conductor, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made.join(driver)
    monkeypatch.setattr(through_storage, "LOOK", 0.01)
    monkeypatch.setattr(through_storage, "LIST_SECONDS", 0.0)

    def follow() -> None:
        while not made.task.id:
            made.live()
        made.say(Interrupted("0000", "/s: No space left on device"), 1)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    StorageRunner().run(driver)
    thread.join()
    assert driver.fault == "/s: No space left on device" and made.task.ended == driver.fault
    assert read(driver.folder / WORK, STOPPED, Stopped) == Stopped(reason=driver.fault)


# A driver after another -------------------------------------------------------------------------------------


def killed(driver: Conductor, storage: Path, **changes: Any) -> Conductor:
    """The next driver, after one that was killed."""
    driver.journal.close()
    events, _ = read_journal(driver.journal.path)
    return conductor(storage, events, **changes)


def test_the_next_driver_goes_on_with_those_who_train(tmp_path: Path) -> None:
    """Their trainings are not begun again, and what they said meanwhile is heard."""
    first = conductor(tmp_path)
    crew, made = crew_of(first, 2)
    for one in made:
        one.validate(1)
    crew.look(2.0)
    tasks = [one.task for one in made]
    made[0].validate(2, 0.7)
    second = killed(first, tmp_path)
    crew = Crew(second)
    crew.listed = -9.0
    crew.look(0.0)
    assert [one.task for one in made] == tasks, "it is not known who lives"
    made[0].live()
    crew.look(1.0)
    assert [one.task.id for one in made] == [task.id for task in tasks]
    made[1].live()
    crew.look(2.0)
    assert [(one.task.id, one.task.answered) for one in made] == [(tasks[0].id, 2), (tasks[1].id, 1)]
    assert second.ledger.trials[tasks[0].trial_id].validations == 2
    made[0].validate(3)
    crew.look(3.0)
    assert states(second)[tasks[0].trial_id] == "done" and made[0].task.trial_id == "0002"
    second.journal.close()


def test_the_next_driver_does_not_wait_for_the_dead(tmp_path: Path) -> None:
    first = conductor(tmp_path)
    _, (dead, living) = crew_of(first, 2)
    task = dead.task
    second = killed(first, tmp_path)
    crew = Crew(second)
    crew.listed = -9.0
    crew.look(0.0)
    for now in range(1, int(LIMIT) + 3):
        living.live()
        crew.look(float(now))
        if now < LIMIT:
            assert dead.task == task, "it may live"
    for number in (1, 2, 3):
        living.validate(number)
        crew.look(LIMIT + 3)
    assert living.task.trial_id == task.trial_id and dead.task == Assignment()
    second.journal.close()


def test_the_next_driver_takes_back_what_it_needs_no_more(tmp_path: Path) -> None:
    """Of a search that is resumed with other settings of its trials, or in which the trial has ended."""
    first = conductor(tmp_path)
    crew, (made,) = crew_of(first, 1)
    task = made.task
    second = killed(first, tmp_path, trial_timeout=100)
    crew = Crew(second)
    crew.listed = -9.0
    crew.look(0.0)
    made.live()
    crew.look(1.0)
    assert made.task.trial_id == task.trial_id and made.task.id != task.id and made.task.work["trial_timeout"] == 100
    second.report(Failed(task.trial_id, "a bug", failure="code"))
    third = killed(second, tmp_path, max_concurrent=1)
    crew = Crew(third)
    crew.listed = -9.0
    crew.look(0.0)
    made.live()
    crew.look(1.0)
    assert made.task.trial_id == "0001"
    third.journal.close()


def test_a_driver_that_is_asked_to_leave_leaves_them_their_trials(tmp_path: Path) -> None:
    for reason in (None, "stopped by me@here"):
        driver = conductor(tmp_path / str(reason))
        _, (made,) = crew_of(driver, 1)
        task = made.task
        driver.stopping, driver.stopped_by = True, reason
        StorageRunner().run(driver)
        stopped = read(driver.folder / WORK, STOPPED, Stopped)
        assert (made.task == task, stopped) == ((True, None) if reason is None else (True, Stopped(reason=reason)))
        driver.journal.close()


def test_a_driver_that_leaves_nobody_behind_says_that_it_needs_a_resume(tmp_path: Path) -> None:
    driver = conductor(tmp_path)
    crew, (made,) = crew_of(driver, 1)
    assert crew.is_there and Crew(driver).is_there  # the second has not looked yet
    send(made.folder, kind="left")
    crew.look(0.0)
    assert not crew.is_there
    driver.stopping = True
    StorageRunner().run(driver)
    assert read(driver.folder / WORK, STOPPED, Stopped) is None  # it had not looked
    (driver.folder / WORK / made.folder.name / MESSAGES).unlink()
    (driver.folder / WORK / made.folder.name).rename(tmp_path / "elsewhere")
    StorageRunner().run(driver)
    assert read(driver.folder / WORK, STOPPED, Stopped) == Stopped(reason="nobody had joined")
    driver.journal.close()


# Who drives -------------------------------------------------------------------------------------------------


def one_of_many_drives(folder: Path) -> None:
    (folder / WORK).mkdir()
    found: list[Takeover | None] = []
    barrier = threading.Barrier(8)

    def attempt() -> None:
        barrier.wait()
        found.append(Takeover.attempt(folder, 1))

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([one for one in found if one is not None]) == 1 and Takeover.latest(folder) == 1


def test_one_of_many_drives(tmp_path: Path) -> None:
    one_of_many_drives(tmp_path)


def test_a_plain_write_in_its_place_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = open_file
    monkeypatch.setattr(exchange, "open_file", lambda path, mode="rb": plain(path, "wb" if mode == "xb" else mode))
    with pytest.raises(AssertionError):
        one_of_many_drives(tmp_path)


def test_a_pulse_is_a_change_and_no_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    note = {"by": "x@there", "host": ELSEWHERE, "pid": 1, "time": 1}
    (tmp_path / "driver.json").write_text(json.dumps(note))
    pulse = Pulse(tmp_path / "driver.json")
    assert pulse.silent_seconds() == 0
    now[0] = 130.0
    assert pulse.silent_seconds() == 30
    (tmp_path / "driver.json").write_text(json.dumps(note | {"time": 2}))
    assert pulse.silent_seconds() == 0
    (tmp_path / WORK).mkdir()
    takeover = Takeover.attempt(tmp_path, 1)
    assert takeover is not None
    pulse = Pulse(takeover.path)
    assert pulse.silent_seconds() == 0
    now[0] = 150.0
    takeover.renew()
    assert pulse.silent_seconds() == 0
    takeover.end()
    assert pulse.silent_seconds() == math.inf
    assert Pulse(tmp_path / "none").silent_seconds() == math.inf


# A process that joined --------------------------------------------------------------------------------------


class MadeTrainer:
    """Trains in this process: a validation scores the learning rate and its number."""

    def __init__(self, output: Path) -> None:
        self.results: Iterator[Result] = iter(())
        self.goes = False
        self.places = Places(output.parents[4])

    def begin(self, request: dict[str, Any]) -> None:
        work = read_work(request["work"], self.places, request["search"])
        self.results, self.goes = made_results(work), True

    def say(self, word: str) -> None:
        self.goes = word == "go"

    def answer(self, seconds: float) -> dict[str, Any] | None:
        if not self.goes:
            return None
        self.goes = False
        return result_fields(next(self.results))

    def kill(self) -> None:
        self.goes = False


def made_results(work: Work) -> Iterator[Result]:
    for number in (1, 2, 3):
        score = number / 100 - work.experiment.flat()["lr"]
        yield Validated(work.trial_id, number, {"val/map_at_r": score}, finished=number == 3)


def inline(driver: Conductor) -> None:
    while (work := driver.next()) is not None:
        for result in made_results(work):
            if driver.report(result):
                break


def board(ledger: Ledger) -> list[tuple[str, str, int, float | None]]:
    return [(one.trial_id, one.state, one.validations, one.best) for one in ledger.leaders()]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joiner, "Trainer", MadeTrainer)
    for module, name in ((joiner, "LOOK_SECONDS"), (through_storage, "LOOK"), (joiner, "FIRST_BEAT")):
        monkeypatch.setattr(module, name, 0.01)
    monkeypatch.setattr(joiner, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(through_storage, "LIST_SECONDS", 0.05)


def joined(storage: Path, said: list[str], **changes: Any) -> Joiner:
    return Joiner(Places(storage), "s", LIMIT, changes.pop("idle", None), say=said.append)


def opened(driver: Conductor) -> None:
    """The driver lives, and says what it has."""
    (driver.folder / WORK).mkdir(exist_ok=True)
    write(driver.folder / WORK, CODE, Code(versions=installed_versions(), digest=code_digest()))
    show_driver(driver.folder)


HALVING = {"grace_validations": 1, "reduction_factor": 2}


@pytest.mark.parametrize(
    ("scheduler", "trainings"),
    [
        ({"name": "asha", **HALVING}, 4),
        ({"name": "promotion", **HALVING}, 5),  # the second goes on after the fourth
        ({"name": "population"}, 12),  # of four, in three generations
    ],
    ids=["asha", "promotion", "population"],
)
def test_the_leaderboard_is_that_of_one_process(
    tmp_path: Path, quick: None, scheduler: dict[str, Any], trainings: int
) -> None:
    changes: dict[str, Any] = {"scheduler": scheduler, "space": {"lr": [1e-3, 1e-2, 2e-2, 1e-1]}}
    one = conductor(tmp_path / "a", **changes)
    inline(one)
    one.journal.close()
    driver = conductor(tmp_path / "b", **changes, max_concurrent=1)
    opened(driver)
    said: list[str] = []
    endings: list[Any] = []
    workers = [joined(tmp_path / "b", said) for _ in range(2)]
    threads = [threading.Thread(target=lambda w=w: endings.append(w.serve())) for w in workers]
    for thread in threads:
        thread.start()
    StorageRunner().run(driver)
    driver.journal.close()
    for thread in threads:
        thread.join(10)
    assert board(driver.ledger) == board(one.ledger) and len(driver.ledger.trials) - driver.ledger.copies == 4
    assert "pruned" in states(driver).values()
    assert [ending.reason for ending in endings] == ["done", "done"]
    assert sum(ending.trained for ending in endings) == trainings and len(said) == trainings


def test_it_gives_its_trial_back_when_it_is_asked_to_end(driver: Conductor, tmp_path: Path, quick: None) -> None:
    opened(driver)
    said: list[str] = []
    process = joined(tmp_path, said)
    looks, work = process.step, driver.next()
    assert work is not None
    task = Assignment(id="t", trial_id="0000", work=task_work(work))

    def step() -> str | None:
        if not process.over:
            raise KeyboardInterrupt
        write(process.folder, TASK, task)
        return looks()

    process.step = step  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        process.serve()
    messages = [one for one in exchange.Messages(process.folder).read() if one.kind != "alive"]
    said_of = [(one.kind, one.task, one.number) for one in messages]
    assert said_of == [("joined", "", 0), ("validated", "t", 1), ("returned", "t", 2), ("left", "", 0)]
    assert said[-1] == "gives trial 0000 of s back"


def test_one_that_was_suspended_joins_again(driver: Conductor, tmp_path: Path, quick: None) -> None:
    opened(driver)
    process = Joiner(Places(tmp_path), "s", 1e-6, None, say=print)
    with pytest.raises(Silent):
        process.serve()
    kinds = {one.kind for one in exchange.Messages(process.folder).read()}
    assert kinds == {"joined", "alive"}, "its trial, if any, is another's: it is not given back"


def test_an_idle_one_leaves(driver: Conductor, tmp_path: Path, quick: None) -> None:
    opened(driver)
    assert joined(tmp_path, [], idle=0.05).serve().reason == "idle"


def test_it_drives_where_nobody_does_and_gives_up_after_three_refusals(
    driver: Conductor, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(driver)
    (driver.folder / "driver.json").unlink()
    begun: list[Path] = []

    class Refused:
        pid = 1

        def __init__(self, *words: str, **streams: Any) -> None:
            assert words[:3] == ("orchestrator", "resume", "s") and words[-2:] == ("--address", "storage")
            begun.append(process.takeover.path)  # type: ignore[union-attr]
            streams["stdout"].write(b"a line\nerror: the data set is another\n")
            streams["stdout"].flush()

        def poll(self) -> int:
            return 2

    monkeypatch.setattr(joiner, "_start_python", Refused)
    process = joined(tmp_path, [])
    driver.journal.close()
    with pytest.raises(InputError, match="'s' cannot be driven from here: the data set is another"):
        process.serve()
    assert [path.name for path in begun] == ["driver.0001", "driver.0002", "driver.0003"]


@pytest.mark.parametrize(
    ("state", "stops", "drives"),
    [("running", False, True), ("interrupted", False, True), ("interrupted", True, False), ("done", False, False)],
)
def test_what_goes_on_without_its_driver(
    driver: Conductor,
    tmp_path: Path,
    state: str,
    stops: bool,
    drives: bool,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that was killed or interrupted; not one that was asked to stop, or has ended."""
    opened(driver)
    process = joined(tmp_path, [])
    (driver.folder / "driver.json").unlink()
    if state != "running":
        record(driver.journal, "search_ended", state=state)
    if stops:
        write(driver.folder / WORK, STOPPED, Stopped(reason="stopped by me@here"))
    calls: list[str] = []
    monkeypatch.setattr(Joiner, "drive", lambda self: calls.append(self.name))
    process.watch()
    assert not calls, "its driver still writes the journal"
    driver.journal.close()
    reason = process.watch()
    assert (bool(calls), reason is None) == (drives, drives)


def test_a_lock_that_does_not_reach_is_refused(driver: Conductor, tmp_path: Path) -> None:
    opened(driver)
    driver.journal.close()  # as on a machine that does not see the lock
    process = joined(tmp_path, [])
    assert process.watch() is None
    show_driver(driver.folder)
    with pytest.raises(InputError, match="its file lock does not reach this machine"):
        process.watch()


def test_other_versions_and_other_code_are_refused(driver: Conductor, tmp_path: Path) -> None:
    opened(driver)
    same = Code(versions=installed_versions(), digest=code_digest())
    for other, words in (
        (same.model_copy(update={"versions": same.versions | {"torch": "1.0"}}), "torch 1.0, here "),
        (same.model_copy(update={"digest": "0"}), "has other code"),
    ):
        write(driver.folder / WORK, CODE, other)
        with pytest.raises(InputError, match=f"the driver of 's'.*{words}"):
            joined(tmp_path, [])


def test_a_machine_that_would_train_otherwise_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = SimpleNamespace(manifest={"digest": "1" * 64})
    monkeypatch.setattr("orchestrator.data.catalog.open_dataset", lambda *_: here)
    work = task_work(Work("0000", resolve_experiment(SETTINGS, "trial"), "", ""))
    request = {"work": work, "search": "s", "storage": str(tmp_path), "digest": "0" * 64}
    (answer,) = trainer.train_requested(request, None)  # type: ignore[arg-type]
    assert answer["kind"] == "refused"
    assert "the data set 'glyphs-small' here is not the one this search began with" in answer["reason"]
    request["digest"] = here.manifest["digest"]
    monkeypatch.setattr(trainer, "own_results", made_results)
    words: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    for word in (b"go", b"stop"):
        words.put(word)
    assert [answer["result"]["number"] for answer in trainer.train_requested(request, words)] == [1, 2]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    settings = work["settings"] | {"device": "cuda"}
    for other, why in (
        ({"settings": {"method": "nope"}}, "nope"),
        ({"trial_id": ".."}, "'..'"),
        ({"settings": settings}, "device: 'cuda' is not available here"),
    ):
        (refused,) = trainer.train_requested(request | {"work": work | other}, words)
        assert refused["kind"] == "refused" and why in refused["reason"]


def test_a_process_that_cannot_train_loses_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch cannot be imported. One that dies later has lost its trial."""

    def start(*words: str, **streams: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", program], **streams)

    monkeypatch.setattr(joiner, "_start_python", start)
    program = "import sys; sys.stdin.readline(); sys.exit('no torch here')"
    process = joiner.Trainer(tmp_path / OUTPUT)
    process.begin({})
    why = "the process that trains does not begin here: no torch here"
    assert process.answer(20.0) == {"kind": "refused", "reason": why}
    program = 'import sys; print(\'{"kind": "ready"}\', flush=True); sys.stdin.readline()'
    process.begin({})
    assert [process.answer(20.0), process.answer(20.0)] == [None, {"kind": "lost"}]


HEEDING = """
import signal, sys, time
def write(*_):
    open(sys.argv[1], "w").close()
    print('{"kind": "interrupted"}', flush=True)
signal.signal(signal.SIGTERM, write)
print('{"kind": "ready"}', flush=True)
while True:
    time.sleep(0.01)
"""


def test_a_training_is_told_to_write_before_its_process_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not waited for for ever; planted: it is killed at once."""
    written = tmp_path / "checkpoint"

    def start(*words: str, **streams: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", HEEDING, str(written)], **streams)

    monkeypatch.setattr(joiner, "_start_python", start)
    for end in (joiner.Trainer.kill, joiner.Trainer.end):
        assert not written.exists()
        process = joiner.Trainer(tmp_path / OUTPUT)
        process.begin({})
        assert process.answer(20.0) is None and process.ready
        end(process)
        assert process.process is None
    assert written.exists()
    monkeypatch.setattr(joiner, "GRACE_SECONDS", 0.2)
    monkeypatch.setitem(globals(), "HEEDING", HEEDING.replace("SIGTERM, write", "SIGTERM, signal.SIG_IGN"))
    process = joiner.Trainer(tmp_path / OUTPUT)
    process.begin({})
    assert process.answer(20.0) is None
    process.end()
    assert process.process is None


# The command ------------------------------------------------------------------------------------------------


def refusal(capsys: pytest.CaptureFixture[str], words: str) -> str:
    ran = run(capsys, f"work {words}")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    return ran.err.strip().removeprefix("error: ")


def test_what_cannot_be_joined_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = tmp_path / "storage"
    assert refusal(capsys, str(storage)).startswith(f"STORAGE: there is no folder {storage}")
    assert "an object store is none" in refusal(capsys, "s3://bucket/runs")
    ran = run(capsys, f"work {storage} --idle 0.01")
    assert ran.code == 2 and ran.err.splitlines()[0] == f"waits for a search in {storage} (--idle 0.01)"
    storage.mkdir()
    assert refusal(capsys, str(storage)).startswith(f"STORAGE: {storage} holds no search")
    driver = conductor(storage)
    assert "can be joined: begin one with: orchestrator search ... --address storage" in refusal(capsys, str(storage))
    assert "no search 'r' under" in refusal(capsys, f"{storage} --search r")
    again = f"go on with: orchestrator resume s --storage {storage} --address storage"
    assert refusal(capsys, f"{storage} --search s") == f"search 's' is not trained by processes that join; {again}"
    opened(driver)
    write(driver.folder / WORK, STOPPED, Stopped(reason="stopped by me@here"))
    record(driver.journal, "search_ended", state="interrupted")
    said = refusal(capsys, f"{storage} --search s")
    assert said == f"search 's' was interrupted (stopped by me@here); {again}"
    record(driver.journal, "search_ended", state="done")
    assert refusal(capsys, f"{storage} --search s --idle 999") == "search 's' has ended: it is done"
    driver.journal.close()


def test_a_search_that_cannot_be_joined_does_not_keep_others_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers = [conductor(tmp_path / part) for part in ("one", "two")]
    for name, driver in zip("rt", drivers, strict=True):
        opened(driver)
        driver.journal.close()
        driver.folder.rename(tmp_path / "one" / "searches" / name)
    searches = tmp_path / "one" / "searches"
    code = Code(versions=installed_versions(), digest=code_digest())
    write(searches / "r" / WORK, CODE, code.model_copy(update={"digest": "0"}))
    monkeypatch.setattr(Joiner, "serve", lambda self: Ending("done", 3))
    ran = run(capsys, f"work {tmp_path / 'one'}")
    refused, *others = ran.err.splitlines()
    assert refused.startswith("cannot join r: the driver of 'r' has other code")
    assert (ran.code, others) == (0, ["joined t", "left t: done; trained 3 of its trials"])
    write(searches / "t" / WORK, CODE, code.model_copy(update={"digest": "0"}))
    ran = run(capsys, f"work {tmp_path / 'one'}")
    assert ran.code == 2 and ran.err.splitlines()[-1].endswith("can be joined: r, t: see above")


def test_next_commands_look_where_those_that_joined_do(driver: Conductor) -> None:
    findings = Findings.of(driver.ledger, folder=driver.folder)
    words = ["orchestrator", "resume", "s"]
    assert line(findings, words) == "orchestrator resume s"
    opened(driver)
    assert line(findings, words) == "orchestrator resume s --address storage"
    assert line(findings, ["orchestrator", "status", "s"]) == "orchestrator status s"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workers": 2}, "workers: 2: each process that joins trains a trial alone"),
        ({"final": True, "final_workers": 2}, "final-workers: 2: each process that joins trains a trial alone"),
        ({"node_labels": {"market": "spot"}}, "node_labels: .*run orchestrator work on the machines that have it"),
    ],
)
def test_what_they_do_not_have_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words), StorageRunner().ready(search(**changes), tmp_path):
        pass


def test_an_object_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path))
    from orchestrator.storage import paths

    place = paths.working_copy("s3://bucket/runs")
    with pytest.raises(InputError, match="address: storage: .*object store"), StorageRunner().ready(search(), place):
        pass


# Real processes ---------------------------------------------------------------------------------------------

SPACE = TINY | {"algorithm": "random", "scheduler": "none", "num_trials": 4, "final": False}
SPACE["settings"] = TINY["settings"] | {"validate_every": "16 steps"}


@pytest.mark.slow
def test_one_and_the_driver_are_killed_and_the_leaderboard_is_the_same(terminal: Terminal, tmp_path: Path) -> None:
    """Three processes. One that trains is killed, and so is the driver: another one trains, and another one drives."""
    places = {"/shared/runs": str(terminal.storage), "demo": "joined.yaml", "third": "joined"}
    lines = [line for line in page_lines("cluster.md") if "third" in line]
    begins, joins = ([places.get(word, word) for word in line.split()[1:]] for line in lines)
    assert begins[:2] == ["search", "joined.yaml"]
    YAML(typ="safe", pure=True).dump(SPACE, terminal.project / "joined.yaml")
    driver = terminal.begin(*begins)
    wait(lambda: (terminal.storage / "searches" / "joined" / WORK / CODE).exists(), 60)
    processes = {process.pid: process for process in (terminal.begin(*joins) for _ in range(3))}
    terminal.wait_for_validations(driver, "joined", 2)
    folders = {
        int(folder.name.split("-")[-2]): folder for folder in exchange.joiners(terminal.journal("joined").parent)
    }
    training = next(pid for pid, folder in folders.items() if (read(folder, TASK, Assignment) or Assignment()).answered)
    children = [child for process in processes.values() for child in family(process)]
    begun = [event["trial_id"] for event in terminal.events("joined", "trial_started")]
    processes.pop(training).kill()
    terminal.wait_for_validations(driver, "joined", 4)
    driver.kill()
    said = [terminal.finish(process)[1] for process in processes.values()]
    assert sum("nobody drives joined: this process does" in one for one in said) == 1
    assert all("left joined: " in one for one in said) and not alive(children)
    started = [event["trial_id"] for event in terminal.events("joined", "trial_started")]
    assert len(set(started)) == 4 < len(started) and set(begun) < set(started), "the next driver took some over"
    assert terminal.events("joined")[-1]["event"] == "note", "its pages are written"
    rows = leaderboard_here(SPACE, Places(tmp_path).search("here"), terminal.storage / "data")
    assert terminal.leaderboard("joined") == rows and len(rows) == 4
