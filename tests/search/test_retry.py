"""A trial that failed in a way that may pass is begun again, as often as its search says."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.conductors import conductor
from support.lost_processes import Followed, processes, source

from orchestrator.execution import ray_tune
from orchestrator.execution.protocol import Failed, Interrupted, Validated
from orchestrator.execution.ray_tune import ConductorStopper
from orchestrator.search.conductor import Conductor
from orchestrator.storage.events import Failure, TrialEnded
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger

__all__ = ["processes"]


def retrying(folder: Path, retry: int) -> Conductor:
    driver = conductor(folder)
    driver.search = driver.search.model_copy(update={"retry": retry})
    return driver


def resumed(driver: Conductor) -> Conductor:
    """Another driver of the same search, from its journal."""
    driver.journal.close()
    events = Ledger().take_all(Journal.read(driver.journal.path), "journal")
    journal = Journal(driver.journal.path)
    return Conductor(driver.search, driver.folder, data=driver.data, journal=journal, events=events, slots=1)


def attempts(driver: Conductor, failures: Iterable[Failure]) -> list[str]:
    """The states of the first trial after each of these failures, as long as it is begun again."""
    states = []
    for number, failure in enumerate(failures, start=1):
        work = driver.next()
        assert work is not None and work.trial_id == "0000"
        driver.report(Validated("0000", number, {"val/map_at_r": 0.1 * number, "epoch": 1.0}, 1.0))
        driver.report(Failed("0000", "it failed", failure=failure))
        states.append(driver.ledger.trials["0000"].state)
    return states


@pytest.mark.parametrize("failure", ["lost", "device", "stall"])
def test_what_may_pass_is_tried_again_so_often(failure: Failure, tmp_path: Path) -> None:
    driver = retrying(tmp_path, 2)
    assert attempts(driver, [failure] * 3) == ["interrupted", "interrupted", "failed"]
    trial = driver.ledger.trials["0000"]
    assert (trial.failures, trial.failure, trial.validations, len(trial.restarted)) == (3, failure, 3, 2)
    following = driver.next()
    assert following is not None and following.trial_id == "0001"
    driver.journal.close()
    ends = [e for e in Ledger().take_all(Journal.read(driver.journal.path), "j") if isinstance(e, TrialEnded)]
    assert [(end.state, end.failure, end.reason) for end in ends] == [
        ("interrupted", failure, "it failed"),
        ("interrupted", failure, "it failed"),
        ("failed", failure, "it failed"),
    ]


@pytest.mark.parametrize("failure", ["memory", "training", "code", "timeout", None])
def test_what_would_fail_again_is_not_tried_again(failure: Failure, tmp_path: Path) -> None:
    assert attempts(retrying(tmp_path, 2), [failure]) == ["failed"]


def test_without_retries_it_fails_at_once(tmp_path: Path) -> None:
    assert attempts(retrying(tmp_path, 0), ["lost"]) == ["failed"]


def test_a_loss_that_is_not_finite_is_not_tried_again(tmp_path: Path) -> None:
    driver = retrying(tmp_path, 2)
    driver.next()
    driver.report(Validated("0000", 1, {"train/loss": float("nan")}, 1.0))
    trial = driver.ledger.trials["0000"]
    assert (trial.state, trial.failure, trial.failures) == ("failed", "training", 0)


def test_a_resume_has_the_retries_that_are_left(tmp_path: Path) -> None:
    driver = retrying(tmp_path, 2)
    assert attempts(driver, ["lost"]) == ["interrupted"]
    driver = resumed(driver)
    assert not driver.complete and [trial.trial_id for trial in driver.waiting] == ["0000"]
    assert driver.ledger.trials["0000"].failures == 1
    assert attempts(driver, ["stall", "lost"]) == ["interrupted", "failed"]
    driver = resumed(driver)
    assert driver.waiting == []


def test_a_stop_costs_no_retry(tmp_path: Path) -> None:
    driver = retrying(tmp_path, 1)
    driver.next()
    driver.report(Interrupted("0000", "the disk is full"))
    driver = resumed(driver)
    assert driver.ledger.trials["0000"].failures == 0
    assert attempts(driver, ["lost"]) == ["interrupted"]


def test_an_attempt_has_the_whole_time(tmp_path: Path) -> None:
    driver = retrying(tmp_path, 1)
    driver.search = driver.search.model_copy(update={"trial_timeout": 100.0})
    driver.next()
    driver.process_started("0000", 10.0)
    driver.report_restart("0000", "killed")
    driver.report(Failed("0000", "it failed", failure="lost"))
    driver.next()
    assert driver.overdue(1e9) == {} and driver.lost_workers == {}
    driver.process_started("0000", 90.0)
    assert driver.overdue(180.0) == {} and "0000" in driver.overdue(190.1)


def test_an_earlier_attempt_of_tune_s_says_nothing_more(processes: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune notices late that a process was killed, when the trial already has another."""
    followed, trial, done = processes
    driver, searcher = source(followed), followed.searcher
    driver.search = driver.search.model_copy(update={"retry": 1})
    monkeypatch.setattr(ray_tune, "last_lines", lambda *_: "")
    clock = itertools.count(1e9)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    driver.clocks["0000"] = (0.0, 0.0)
    followed.on_step_end(1, [])
    record = driver.ledger.trials["0000"]
    assert (record.state, record.failure, done) == ("interrupted", "stall", ["killed actor", "released"])
    given = searcher.suggest("tune again")
    assert given["work"].trial_id == "0000" and record.state == "running"

    stopper = ConductorStopper(searcher)
    assert stopper("tune", {"result": Validated("0000", 1, {"train/loss": 1.0}, 1.0)}) is True
    driver.clocks["0000"] = (0.0, 0.0)
    followed.on_step_end(2, [])
    followed.on_trial_error(2, [], trial)
    searcher.on_trial_complete("tune", error=True)
    assert record.state == "running" and record.validations == 0 and done == ["killed actor", "released"]
    assert stopper("tune again", {"result": Validated("0000", 1, {"train/loss": 1.0}, 1.0)}) is False
    assert record.validations == 1
    searcher.on_trial_complete("tune again", error=True)
    assert done[2:] == ["released"]


def test_a_process_that_only_ends_a_trial_does_not_end_its_next_attempt(
    processes: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the second break of a GPU Tune starts the trial once more, for a result that ends it."""
    followed, trial, _ = processes
    driver, stopper = source(followed), ConductorStopper(followed.searcher)
    driver.search = driver.search.model_copy(update={"retry": 1})
    broken = {"result": Failed("0000", "its GPU broke", failure="device"), "broken": True}
    assert stopper("tune", dict(broken)) is False
    followed.on_trial_recover(1, [], trial)
    assert stopper("tune", dict(broken)) is False
    record = driver.ledger.trials["0000"]
    assert (record.state, record.failures) == ("interrupted", 1)
    followed.on_trial_recover(2, [], trial)
    assert trial.config["over"]
    followed.on_trial_start(3, [], trial)
    followed.searcher.suggest("tune again")
    assert driver.clocks == {}, "the time of the next attempt counts from its own process on"
    assert stopper("tune", {"result": Failed("0000", "it has ended")}) is True
    followed.on_trial_recover(4, [], trial)
    assert record.state == "running" and driver.lost_workers == {}
