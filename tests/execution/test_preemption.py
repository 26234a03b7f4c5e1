"""Processes whose end is announced, and processes that vanish: their trials do not fail, within the user's limit."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.conductors import conductor
from support.lost_processes import Followed, processes, source
from support.recorded import begin

from orchestrator.config.resolve import resolve_search
from orchestrator.execution import preemption, ray_private, ray_tune
from orchestrator.execution.inline import InlineRunner
from orchestrator.execution.protocol import Failed, Interrupted, Validated
from orchestrator.execution.ray_tune import ConductorStopper, Trial
from orchestrator.method import Batch
from orchestrator.search.conductor import Conductor
from orchestrator.search.signals import interrupts
from orchestrator.storage.events import TrialEnded
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.training import notice
from orchestrator.training.engine import Engine

__all__ = ["processes"]

END = Interrupted("0000", "its process was announced to end (SIGTERM)", "preempted")


@pytest.fixture(autouse=True)
def _no_notice_is_left() -> Iterator[None]:
    yield
    notice.withdraw()


def ends(driver: Conductor) -> list[tuple[str, str | None, str | None]]:
    """How each attempt ended, as the journal says."""
    events = Ledger().take_all(Journal.read(driver.journal.path), "j")
    return [(e.state, e.failure, e.interruption) for e in events if isinstance(e, TrialEnded)]


def preempted_often(driver: Conductor, times: int) -> list[str]:
    """The states of the first trial after each of so many preemptions, while another one could begin."""
    states = []
    for _ in range(times):
        work = driver.next()
        assert work is not None and work.trial_id == "0000", "it goes on before anything else"
        assert driver.report(END) is True
        states.append(driver.ledger.trials["0000"].state)
    return states


def test_an_announced_end_is_no_failure_and_costs_no_retry(tmp_path: Path) -> None:
    driver = conductor(tmp_path)
    assert preempted_often(driver, 5) == ["interrupted"] * 5
    trial = driver.ledger.trials["0000"]
    assert (trial.failures, trial.failure, driver.stopping, driver.fault) == (0, None, False, None)
    driver.journal.close()
    assert ends(driver) == [("interrupted", None, "preempted")] * 5


def test_one_that_is_counted_as_a_failure_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a preemption that is taken for a lost process."""
    driver = conductor(tmp_path)
    report = driver.report
    monkeypatch.setattr(driver, "report", lambda end: report(Failed(end.trial_id, end.reason, failure="lost")))
    assert preempted_often(driver, 1) == ["failed"]


def test_a_resume_goes_on_with_it(tmp_path: Path) -> None:
    driver = conductor(tmp_path)
    preempted_often(driver, 1)
    driver.journal.close()
    events = Ledger().take_all(Journal.read(driver.journal.path), "journal")
    journal = Journal(driver.journal.path)
    again = Conductor(driver.search, driver.folder, data=driver.data, journal=journal, events=events, slots=1)
    assert not again.complete and preempted_often(again, 1) == ["interrupted"]


def test_a_fault_of_the_storage_still_stops_the_search(tmp_path: Path) -> None:
    driver = conductor(tmp_path)
    driver.next()
    driver.report(Interrupted("0000", "the disk is full"))
    assert driver.stopping and driver.fault == "the disk is full" and driver.next() is None
    driver.journal.close()
    assert ends(driver) == [("interrupted", None, "storage")]


def test_its_process_ends_and_another_one_goes_on(processes: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    followed, trial, done = processes
    driver, searcher = source(followed), followed.searcher
    monkeypatch.setattr(ray_tune, "last_lines", lambda *_: "")
    stopper = ConductorStopper(searcher)
    assert stopper("tune", {"result": END, "broken": True}) is False, "Tune would use the process again"
    assert trial.max_failures == 0 and driver.ledger.trials["0000"].state == "interrupted"
    given = searcher.suggest("tune again")
    assert given["work"].trial_id == "0000"
    followed.on_trial_error(2, [], trial)
    searcher.on_trial_complete("tune", error=True)
    assert driver.ledger.trials["0000"].state == "running" and not done


def test_it_is_not_failed_where_its_process_ends_before_the_next_begins(
    processes: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed, trial, _ = processes
    driver = source(followed)
    monkeypatch.setattr(ray_tune, "last_lines", lambda *_: "")
    ConductorStopper(followed.searcher)("tune", {"result": END, "broken": True})
    followed.on_trial_error(2, [], trial)
    assert driver.ledger.trials["0000"].state == "interrupted"


def test_losses_count_over_all_its_processes(processes: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """One loss, an announced end, then another of Tune's trials has what is left of `max_restarts`: 2."""
    followed, trial, _ = processes
    driver, searcher = source(followed), followed.searcher
    monkeypatch.setattr(ray_tune, "last_lines", lambda *_: "")
    assert trial.max_failures == 2
    followed.on_trial_recover(1, [], trial)
    followed.on_trial_start(1, [], trial)
    assert trial.max_failures == 2 and driver.lost_workers == {"0000": ("killed, or its node is gone",)}
    ConductorStopper(searcher)("tune", {"result": END, "broken": True})
    followed.on_trial_error(2, [], trial)
    state = SimpleNamespace(ray_actor="actor")
    following = SimpleNamespace(
        trial_id="again", config=searcher.suggest("again"), max_failures=2, temporary_state=state
    )
    followed.on_trial_start(3, [], following)
    assert following.max_failures == 1
    followed.on_trial_recover(4, [], following)
    followed.on_trial_start(4, [], following)
    followed.on_trial_error(5, [], following)
    record = driver.ledger.trials["0000"]
    assert (record.state, record.failure) == ("failed", "lost")
    assert str(record.reason).startswith("its process was lost 3 times (max_restarts: 2): out of memory, or killed")


def test_the_limit_is_the_users(tmp_path: Path) -> None:
    driver = conductor(tmp_path)
    driver.search = driver.search.model_copy(update={"max_restarts": 40})
    work = driver.next()
    assert work is not None and work.max_restarts == 40


def test_a_stop_is_announced_once_to_every_process(processes: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    followed, _, _ = processes
    told: list[Any] = []
    monkeypatch.setattr(ray_tune, "announce_end", told.append)
    stopper = ConductorStopper(followed.searcher)
    assert stopper.stop_all() is False and told == []
    source(followed).stopping = True
    assert stopper.stop_all() is True and stopper.stop_all() is True and told == ["actor"]


def test_a_node_that_ray_drains_is_an_announced_end(processes: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told once to each process on it, and to no other; where Ray does not say, to none."""
    followed, _, _ = processes
    told: list[tuple[str, int]] = []
    nodes: list[str] = []
    monkeypatch.setattr(ray_tune, "announce_end_of", lambda *process: told.append(process))
    monkeypatch.setattr(ray_private, "process_of", lambda actor: {"actor": ("a", 7), "other": ("b", 8)}[actor])
    monkeypatch.setattr("ray._private.state.state", SimpleNamespace(get_draining_nodes=lambda: dict.fromkeys(nodes, 0)))
    followed.actors["else"] = "other"
    followed.actors["not begun"] = "none"

    def look_again() -> list[tuple[str, int]]:
        followed.looked, followed.drains.looked = 0.0, -1e9
        followed.on_step_end(1, [])
        return told

    assert look_again() == []
    nodes.append("a")
    followed.looked = 0.0
    followed.on_step_end(1, [])
    assert told == [], "Ray is asked every few seconds"
    assert look_again() == look_again() == [("a", 7)]
    nodes.append("b")
    monkeypatch.delattr("ray._private.state.state")
    assert look_again() == [("a", 7)]
    assert "a node that is drained is lost without notice" in ray_private.missing_parts()


def test_the_workers_of_a_trial_on_such_a_node_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [("a", 1), ("b", 2)]
    monkeypatch.setattr(ray_private, "draining_nodes", lambda: frozenset("b"))
    watch = preemption.DrainWatch()
    assert watch.leaving(0.0, lambda: workers) == {("b", 2)}
    assert watch.leaving(60.0, lambda: workers) == set()


def test_a_process_heeds_sigterm_while_it_has_a_trial(processes: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, is not used again, and ends itself; without a notice an interrupted one is used again."""
    _, trial, _ = processes
    before, killed = signal.getsignal(signal.SIGTERM), []
    monkeypatch.setattr("os.kill", lambda pid, number: killed.append(number))
    again = Trial.__new__(Trial)
    monkeypatch.setattr(Trial, "results_of", lambda self, work: (one for one in [Validated("0000", 1), END, END]))
    again.setup(trial.config)
    assert again.step()["broken"] is False
    signal.raise_signal(signal.SIGTERM)
    assert again.step() == {"result": END, "done": False, "broken": True}
    again.step()
    assert killed == [signal.SIGKILL]
    notice.withdraw()
    again.reset_config(trial.config)
    again.step()
    assert again.step() == {"result": END, "done": True, "broken": False}
    again.cleanup()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_machine_that_leaves_ends_its_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node is drained before, so that nothing begins on it again; they are told even if that takes too long."""
    import psutil

    order: list[Any] = []
    uids = SimpleNamespace(real=os.getuid())

    def process(pid: int, title: str, owner: Any = uids) -> Any:
        return SimpleNamespace(pid=pid, info={"cmdline": [title], "uids": owner})

    listed = [
        process(1, "ray::trials of s.train"),
        process(2, "ray::IDLE"),
        process(3, "python train.py"),
        process(4, "ray::RayTrainWorker"),
        process(5, "ray::trials of t.train", SimpleNamespace(real=os.getuid() + 1)),
    ]
    monkeypatch.setattr(psutil, "process_iter", lambda _: listed)
    monkeypatch.setattr(psutil, "wait_procs", lambda gone, timeout: (gone[:1], gone[1:]))

    def slow(timeout: float) -> None:
        raise subprocess.TimeoutExpired("ray", timeout)

    def drain(command: list[str], **_: Any) -> Any:
        order.append(command[1:4])
        return SimpleNamespace(wait=slow)

    monkeypatch.setattr("subprocess.Popen", drain)
    monkeypatch.setattr("os.kill", lambda pid, number: order.append((pid, number)))
    assert preemption.leave_cluster(5) == 1
    drained = ["drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    assert order == [drained, (1, signal.SIGTERM), (4, signal.SIGTERM)]


def small_search(folder: Path, data: Path) -> Conductor:
    """Of one trial of 12 steps with one validation, in this process."""
    settings = {"device": "cpu", "embedding_dim": 8, "classes_per_batch": 6, "images_per_class": 16, "epochs": 1}
    raw = {"method": "proxy_anchor", "dataset": "glyphs-small", "settings": settings, "space": {"lr": [1e-3]}}
    search = resolve_search(raw | {"algorithm": "grid", "final": False}, name="s", source="test.yaml")
    folder.mkdir()
    journal = Journal(folder / "journal.jsonl")
    first = begin(journal, search)
    return Conductor(search, folder, data=data, journal=journal, events=[first], slots=1)


def test_a_search_in_this_process_stops_after_the_step_in_progress(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = small_search(tmp_path / "whole", data_folder)
    InlineRunner().run(whole)
    driver, steps, step_of = small_search(tmp_path / "broken", data_folder), [], Engine.step

    def step(engine: Engine, batch: Batch, epoch: int) -> dict[str, Any]:
        steps.append(batch.step)
        if len(steps) == 5:
            signal.raise_signal(signal.SIGTERM)
        return step_of(engine, batch, epoch)

    monkeypatch.setattr(Engine, "step", step)
    with interrupts(driver):
        InlineRunner().run(driver)
    trial = driver.ledger.trials["0000"]
    assert (trial.state, trial.validations, steps) == ("interrupted", 0, [0, 1, 2, 3, 4])
    assert str(trial.reason) == "its process was announced to end (SIGTERM)" and notice.pending_notice() is None
    driver.stopping = False
    InlineRunner().run(driver)
    assert steps == list(range(14)) and trial.state == "done"
    assert trial.curve == whole.ledger.trials["0000"].curve
