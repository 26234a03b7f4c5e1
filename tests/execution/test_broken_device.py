"""A GPU that a process can no longer use: it ends itself, its trial begins again once, and a resume tries it again."""

import asyncio
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from support.conductors import SETTINGS, conductor
from support.lost_processes import Followed, processes, source
from support.made_runner import OneAtATime
from support.memory_tracking import MemoryTracker

import orchestrator.evaluation.gpu
import orchestrator.execution.ray_tune
import orchestrator.execution.worker
from methods.baselines import ProxyAnchor
from orchestrator.config.resolve import resolve_search
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import OutOfMemory, TrainingFailed
from orchestrator.execution import ray_train
from orchestrator.execution.inline import InlineRunner
from orchestrator.execution.protocol import Failed, TrialSource, Validated, Work
from orchestrator.execution.ray_train import Mailbox
from orchestrator.execution.ray_tune import ConductorStopper, Trial
from orchestrator.execution.worker import FAILURE_LOG, results
from orchestrator.search.conductor import Conductor
from orchestrator.search.driver import resume, start
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_folder import CHECKPOINT

__all__ = ["processes"]
BROKEN = Failed("0000", "its GPU broke", failure="device")


# The process that trains ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: device-side assert triggered\nmore of it"),
        TrainingFailed("train/loss is nan at step 3"),
        OutOfMemory("out of GPU memory", of_batch=True),
    ],
)
def test_any_error_after_which_the_gpu_is_of_no_use_is_its_failure(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def step(*_: Any) -> None:
        raise error

    monkeypatch.setattr(ProxyAnchor, "step", step)
    monkeypatch.setattr(orchestrator.evaluation.gpu, "is_broken", lambda device: True)
    (only,) = results(
        Work("0000", resolve_experiment(SETTINGS, "trial"), str(data_folder), str(tmp_path / "t"), stop_after=1)
    )
    assert isinstance(only, Failed) and only.failure == "device" and not only.repeats
    first = str(error).partition("\n")[0]
    assert only.reason.startswith(f"its process can no longer use its GPU: {type(error).__name__}: {first}, in step, ")
    assert first in (tmp_path / "t" / FAILURE_LOG).read_text()


def test_a_process_that_works_has_no_such_failure(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_: Any) -> None:
        raise RuntimeError("CUDA error: invalid configuration argument")

    monkeypatch.setattr(ProxyAnchor, "step", step)
    (only,) = results(
        Work("0000", resolve_experiment(SETTINGS, "trial"), str(data_folder), str(tmp_path / "t"), stop_after=1)
    )
    assert isinstance(only, Failed) and only.failure == "code" and only.reason.startswith("RuntimeError: CUDA error")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_trial_that_holds_a_gpu_never_trains_on_the_cpu_instead(
    device: str, data_folder: Path, tmp_path: Path
) -> None:
    work = Work(
        "0000",
        resolve_experiment(SETTINGS | {"device": device}, "trial"),
        str(data_folder),
        str(tmp_path / "t"),
        resources={"GPU": 0.5},
    )
    assert list(results(work)) == [
        Failed(
            "0000",
            "it holds a GPU that its process cannot use: look at nvidia-smi, or set device=cpu",
            failure="device",
        )
    ]


def test_in_the_search_s_own_process_nothing_more_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = conductor(tmp_path)
    monkeypatch.setattr(orchestrator.execution.worker, "results", lambda work: iter([BROKEN]))
    InlineRunner().run(driver)
    record = driver.ledger.trials["0000"]
    assert (record.state, record.reason, driver.fault) == ("interrupted", "its GPU broke", "its GPU broke")
    assert list(driver.ledger.trials) == ["0000"]


# Ray's processes --------------------------------------------------------------------------------------------------


def begun(trial: Any, monkeypatch: pytest.MonkeyPatch, *given: Any) -> Trial:
    """A process of Tune's with these results."""
    monkeypatch.setattr(Trial, "results_of", lambda self, work: (result for result in given))
    actor = Trial.__new__(Trial)
    actor.setup(trial.config)
    return actor


def test_a_process_without_its_gpu_ends_itself_and_its_trial_begins_again_once(
    processes: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed, trial, _ = processes
    driver, stopper, killed = source(followed), ConductorStopper(followed.searcher), list[Any]()
    monkeypatch.setattr("os.kill", lambda *given: killed.append(given))
    record = driver.ledger.trials["0000"]
    actor = begun(trial, monkeypatch, BROKEN)
    assert stopper("tune", actor.step()) is False and not killed
    with pytest.raises(StopIteration):  # this process lives on
        actor.step()
    assert killed == [(os.getpid(), signal.SIGKILL)]
    followed.on_trial_recover(1, [], trial)
    assert record.state == "running" and "over" not in trial.config
    assert driver.lost_workers["0000"] == ("its GPU broke",)

    followed.on_trial_start(2, [], trial)
    assert stopper("tune", begun(trial, monkeypatch, Validated("0000", 1, {"train/loss": 1.0})).step()) is False
    again = begun(trial, monkeypatch, BROKEN).step()
    assert not again["done"] and stopper("tune", again) is False, "or Tune would use the process for another trial"
    assert (record.state, record.failure, record.reason) == ("failed", "device", "its GPU broke, twice")
    followed.on_trial_recover(3, [], trial)
    assert trial.config["over"] and driver.next() is not None, "its slot is free"
    driver.journal.close()
    ended = [event for event in Journal.read(driver.journal.path) if event["event"] == "trial_ended"]
    assert [(event["state"], event["failure"]) for event in ended] == [("failed", "device")]


def test_another_failure_leaves_its_process_for_the_next_trial(
    processes: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed, trial, _ = processes
    found = begun(trial, monkeypatch, Failed("0000", "the loss is NaN")).step()
    assert found["done"] and ConductorStopper(followed.searcher)("tune", found) is True
    assert source(followed).ledger.trials["0000"].failure is None


def test_a_process_killed_between_two_breaks_is_told_apart(
    processes: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed, trial, _ = processes
    stopper = ConductorStopper(followed.searcher)
    assert stopper("tune", begun(trial, monkeypatch, BROKEN).step()) is False
    followed.on_trial_recover(1, [], trial)
    monkeypatch.setattr(orchestrator.execution.ray_tune, "last_lines", lambda *_: "")
    followed.on_trial_start(2, [], trial)
    followed.on_trial_recover(2, [], trial)
    assert followed.conductor.lost_workers["0000"] == ("killed, or its node is gone",)
    assert "over" not in trial.config


@pytest.mark.parametrize(("resources", "workers", "seen"), [({"GPU": 1}, 1, "3"), ({}, 1, ""), ({"GPU": 1}, 2, "")])
def test_a_process_sees_no_gpu_but_its_own(
    resources: dict[str, float], workers: int, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a group of workers, each has a GPU; the process that waits for them has none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    actor = Trial.__new__(Trial)
    actor.setup(
        {
            "work": Work(
                "0000",
                resolve_experiment({"method": "triplet"}, "trial"),
                "",
                "",
                resources={"CPU": 1, **resources},
                workers=workers,
            )
        }
    )
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.parametrize(("resources", "seen"), [({"CPU": 1}, ""), ({"CPU": 1, "GPU": 1}, "0,1")])
def test_the_workers_of_a_group_see_no_gpu_but_their_own_and_take_their_node_s_interface(
    resources: dict[str, float], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Workers:
        def execute(self, function: Any) -> None:
            function()

        def get_resources_per_worker(self) -> dict[str, float]:
            return resources

    backend = ray_train.own_interface().backend_cls
    monkeypatch.setattr(backend.__bases__[0], "on_start", lambda *_: None)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "taken back at the end")
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    backend().on_start(Workers(), None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")


def test_a_group_begins_again_once_after_a_rank_lost_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank says so while the other waits for it; in the second attempt it is the trial's end."""
    monkeypatch.setattr(ray_train, "JUDGEMENT_SECONDS", 0.01)

    async def group() -> Any:
        mailbox = Mailbox()
        told = []
        for attempt in (1, 2):
            assert await mailbox.begin() == attempt
            told.append((await mailbox.fail(attempt, 2, BROKEN), list(mailbox.results)))
        return told, mailbox.lost_workers

    assert asyncio.run(group()) == ([(False, []), (False, [BROKEN])], ["its GPU broke"])


def test_a_group_whose_ranks_all_fail_begins_again_if_one_lost_its_gpu() -> None:
    noticed = Failed("0000", "RuntimeError: connection closed by peer")

    async def group() -> Any:
        mailbox = Mailbox()
        told = []
        for attempt in (1, 2):
            await mailbox.begin()
            told.append(await asyncio.gather(*(mailbox.fail(attempt, 2, failed) for failed in (noticed, BROKEN))))
        return told, mailbox.results, mailbox.lost_workers

    assert asyncio.run(group()) == ([[False, False], [True, True]], [BROKEN], ["its GPU broke"])


# The search -------------------------------------------------------------------------------------------------------


@dataclass
class MadeRunner(OneAtATime):
    """Trainings with made results, of two validations; `failures` are those of trials."""

    failures: dict[str, Failed] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    stage: str = "starting"
    own_processes: bool = True

    def run(self, source: TrialSource) -> None:
        assert isinstance(source, Conductor)
        while not source.is_finished and (work := source.next()) is not None:
            self.ran.append(work.trial_id)
            work.trial_folder.mkdir(parents=True, exist_ok=True)
            (work.trial_folder / CHECKPOINT).touch()
            for number in (1, 2):
                failed = self.failures.get(work.trial_id)
                if failed is not None and number == 2:
                    source.report(failed)
                    break
                value = 0.1 * number + 0.01 * int(work.trial_id.removeprefix("final-"), 16)
                source.report(Validated(work.trial_id, number, {"val/map_at_r": value, "epoch": 1.0}, 1.0, number == 2))


@pytest.fixture
def storage(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without MLflow and pages."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "data").symlink_to(data_folder)
    monkeypatch.setattr("orchestrator.search.driver.MLflowTracker", lambda path, uri, artifacts: MemoryTracker(path))
    monkeypatch.setattr("orchestrator.search.driver.write_report", lambda *_: None)
    return tmp_path / "s"


def test_a_resume_tries_again_what_failed_for_its_gpu_and_nothing_else(storage: Path) -> None:
    space = {"method": "proxy_anchor", "dataset": "glyphs-small", "space": {"lr": {"low": 1e-4, "high": 1e-2}}}
    asked = {"num_trials": 4, "final": False, "scheduler": "none", "settings": {"epochs": 2}}
    search = resolve_search(space | asked, name="s", source="s.yaml")
    failures = {"0001": Failed("0001", "its GPU broke", failure="device"), "0002": Failed("0002", "the loss is NaN")}
    runner = MadeRunner(failures)
    assert start(search, runner, storage=storage).state == "done"
    assert runner.ran == ["0000", "0001", "0002", "0003"]
    path = storage / "searches" / "s" / "journal.jsonl"
    before = Ledger.of(Journal.read(path))
    assert [trial.trial_id for trial in before.trials_to_retry()] == ["0001"]
    kept = [trial for trial in before.trials if (path.parent / "trials" / trial / CHECKPOINT).exists()]
    assert kept == ["0001"], "it goes on from its last validation"
    before_it = [{k: v for k, v in event.items() if k != "failure"} for event in Journal.read(path)]
    assert Ledger.of(before_it).trials_to_retry() == [], "an older journal does not say why"

    again = MadeRunner()
    assert resume("s", again, storage=storage).state == "done"
    assert again.ran == ["0001"]
    after = Ledger.of(Journal.read(path))
    assert [trial.state for trial in after.trials.values()] == ["done", "done", "failed", "done"]
    assert after.trials_to_retry() == [] and after.trials["0001"].failure is None
    assert after.trials["0001"].validations == 2 and len(after.trials["0001"].restarted) == 1
    assert not (path.parent / "trials" / "0001" / CHECKPOINT).exists()
    third = MadeRunner()
    resume("s", third, storage=storage)
    assert third.ran == []
