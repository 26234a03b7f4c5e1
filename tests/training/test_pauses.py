"""Checkpoints between validations, by time and where a process is to end: trainings go on from them exactly."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import Pair
from support.training_loops import VARIANTS, preempted, train, weights

import orchestrator.training.loop
from orchestrator.errors import Preempted
from orchestrator.storage.trial_folder import CHECKPOINT
from orchestrator.training import distributed, pauses
from orchestrator.training.checkpoint import load_checkpoint, save_checkpoint
from orchestrator.training.engine import Engine
from orchestrator.training.notice import announce_own_end, heed_sigterm, pending_notice, sigterm_heeded, withdraw

FLOAT32 = {"precision": "float32", "validate_every": "4 steps"}
XBM = VARIANTS["xbm"] | FLOAT32 | {"ema_decay": 0.7}
"""Interrupted at step 6, two steps after a validation, with a memory that is half full and an average."""


@pytest.fixture(autouse=True)
def _no_notice_is_left() -> Iterator[None]:
    yield
    withdraw()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still; a test puts it forward."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def same(first: Path, second: Path) -> bool:
    ones, others = weights(first), weights(second)
    return ones.keys() == others.keys() and all(torch.equal(ones[name], others[name]) for name in ones)


def checkpoints_of(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], Any] = lambda _: None
) -> list[int]:
    """The steps of the checkpoints that are written from here on, each after this change."""
    steps: list[int] = []

    def save(path: Path, state: dict[str, Any]) -> None:
        if path.name == CHECKPOINT:
            steps.append(state["step"])
            change(state)
        save_checkpoint(path, state)

    monkeypatch.setattr(orchestrator.training.loop, "save_checkpoint", save)
    return steps


def test_checkpoints_come_by_time(
    clock: list[float], data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step lasts a minute, a validation none: after each third step, counted anew from a validation."""
    steps, kept = checkpoints_of(monkeypatch), []
    step_of = Engine.step

    def a_minute(*arguments: Any) -> Any:
        clock[0] += 60
        return step_of(*arguments)

    monkeypatch.setattr(Engine, "step", a_minute)
    settings = {"method": "proxy_anchor", "validate_every": "8 steps", "checkpoint_every": "3 minutes"}
    validations = train(tmp_path, data_folder, settings, stop_after=2, keep=lambda: kept.append(steps[-1]))
    assert steps == [3, 6, 8, 11, 14, 16] and kept == [3, 6, 11, 14]
    assert len(validations) == 2


def test_a_process_that_is_killed_goes_on_from_the_last_of_them(data_folder: Path, tmp_path: Path) -> None:
    """Here an error stands for its end; two of its steps are taken again."""
    settings = XBM | {"checkpoint_every": "1 second"}
    whole = train(tmp_path / "whole", data_folder, XBM)

    def end() -> None:
        raise ConnectionError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pauses.Pauses, "take_step", lambda self: True)
        with pytest.raises(ConnectionError):
            preempted(tmp_path / "broken", data_folder, settings, at=7, by=end)
    assert load_checkpoint(tmp_path / "broken" / CHECKPOINT)["step"] == 6
    assert train(tmp_path / "broken", data_folder, XBM) == whole
    assert same(tmp_path / "whole", tmp_path / "broken")


def test_sigterm_in_a_step_writes_it_and_ends(data_folder: Path, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", data_folder, XBM)
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_heeded():
        by = lambda: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
        assert preempted(tmp_path / "broken", data_folder, XBM, at=6, by=by) == 6
    assert signal.getsignal(signal.SIGTERM) is before
    assert load_checkpoint(tmp_path / "broken" / CHECKPOINT)["step"] == 6
    assert preempted(tmp_path / "broken", data_folder, XBM, at=1) == 1, "and once more, a step later"
    assert train(tmp_path / "broken", data_folder, XBM) == whole
    assert same(tmp_path / "whole", tmp_path / "broken")


def test_two_processes_go_on_exactly(data_folder: Path, tmp_path: Path, pair: Pair) -> None:
    whole = pair.run(train, tmp_path / "whole", data_folder, XBM)
    for rank, at in ((0, 3), (1, 2)):  # of the whole training the third step and the fifth
        pair.run(preempted_together, rank, at, tmp_path / "broken", data_folder, XBM)
        step = load_checkpoint(tmp_path / "broken" / CHECKPOINT)["step"]
        assert step == {0: 3, 1: 5}[rank]
    assert pair.run(train, tmp_path / "broken", data_folder, XBM) == whole
    assert same(tmp_path / "whole", tmp_path / "broken")


def preempted_together(its: int, at: int, *arguments: Any) -> None:
    """On each of two processes: the end of one of them is announced in a step; the first one writes, then both leave,
    where Ray would end them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pauses, "ASK_SECONDS", 0.0)
        take_step = pauses.Pauses.take_step

        def met(self: pauses.Pauses) -> bool:
            if distributed.rank():
                take_step(self)
            distributed.broadcast_object(None)  # what one tells has come where the other asks
            return take_step(self)

        def check(self: pauses.Pauses) -> None:
            notice = self._notice() if distributed.rank() == 0 else None
            if distributed.broadcast_object(notice) is not None:
                raise Preempted("together")

        patch.setattr(pauses.Pauses, "take_step", met)
        patch.setattr(pauses.Pauses, "check", check)
        by = lambda: announce_own_end("SIGTERM") if distributed.rank() == its else None  # noqa: E731
        preempted(*arguments, at=at, by=by)
        dist.distributed_c10d._get_default_store().delete_key(distributed.NOTICE)


def test_an_announced_end_before_the_first_step_costs_nothing(data_folder: Path, tmp_path: Path) -> None:
    announce_own_end("SIGTERM")
    with pytest.raises(Preempted, match=r"announced to end \(SIGTERM\)"):
        train(tmp_path, data_folder, XBM)
    assert not (tmp_path / CHECKPOINT).exists()


def test_a_signal_is_heeded_where_signals_come(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("threading.current_thread", lambda: None)
    heed_sigterm()
    assert signal.getsignal(signal.SIGTERM) is before and pending_notice() is None


def forget_position(state: dict[str, Any]) -> None:
    state["step"] -= state["step"] % 4


def forget_draws(state: dict[str, Any]) -> None:
    state["rng"] = torch.Generator().manual_seed(0).get_state()


def forget_memory(state: dict[str, Any]) -> None:
    for name, buffer in state["model"]["learner"].items():
        if "memory" in name:
            state["model"]["learner"][name] = torch.zeros_like(buffer)


PLANTED: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]] = {
    "position": (XBM, forget_position),
    "draws": (VARIANTS["idml, drawn"] | FLOAT32, forget_draws),
    "memory": (XBM, forget_memory),
    "window": (XBM, lambda state: state["window"].update(steps=0, sums={})),
    "average": (XBM, lambda state: state.update(averaged=None)),
    "optimiser": (XBM, lambda state: state["optimizer"]["state"].clear()),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_checkpoint_that_forgets_is_noticed(
    planted: str, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, forget = PLANTED[planted]
    whole = train(tmp_path / "whole", data_folder, settings)
    checkpoints_of(monkeypatch, forget)
    preempted(tmp_path / "broken", data_folder, settings, at=6)
    assert train(tmp_path / "broken", data_folder, settings) != whole or not same(
        tmp_path / "whole", tmp_path / "broken"
    )
