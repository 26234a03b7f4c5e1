"""Operations without a fixed order are named; other warnings, and what was set before, stay; subnormals count as 0."""

import contextlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.conductors import conductor

from orchestrator.config.training import resolve_experiment
from orchestrator.execution import worker
from orchestrator.execution.protocol import Validated, Work
from orchestrator.report import learning
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.reading import read_journal
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.tracking.projection import Projection, Update
from orchestrator.training import repeatable as module
from orchestrator.training.device import SUBNORMAL, flushes_subnormals
from orchestrator.training.loop import ValidationResult
from orchestrator.training.repeatable import WORKSPACE, fixed_operations


def unordered() -> None:
    """An operation that torch warns of, on a CPU too: of equal places the last one written wins."""
    torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


def settings() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    return torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark, filled


def test_what_has_no_fixed_order_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    before = settings()
    with fixed_operations("cuda") as found:
        assert settings() == (1, True, False, False) and os.environ[WORKSPACE] == ":4096:8"
        torch.randn(3, 3) @ torch.randn(3, 3)
        assert found == set()
        for _ in range(2):
            unordered()
        assert found == {"put_"}
        # as of CUDA's kthvalue, whose name is of several words
        warnings.warn("kthvalue CUDA does not have a deterministic implementation, but you set", stacklevel=1)
        assert found == {"put_", "kthvalue CUDA"}
        with pytest.warns(UserWarning, match="something else"):
            warnings.warn("something else", stacklevel=1)
    assert settings() == before


def test_without_a_fixed_order_the_fastest_operations_run_and_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    before = settings()
    with fixed_operations("cuda", deterministic=False) as found, warnings.catch_warnings():
        warnings.simplefilter("error")
        unordered()
        assert settings() == (0, before[1], True, before[3]) and WORKSPACE not in os.environ and found == set()
    assert settings() == before


@pytest.mark.parametrize(("given", "wanted"), [({}, True), ({"deterministic": False}, False)])
def test_a_trial_has_the_order_of_its_setting(
    given: dict[str, bool], wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def entered(device_type: str, *, deterministic: bool) -> contextlib.nullcontext[set[str]]:
        seen.append(deterministic)
        return contextlib.nullcontext(set())

    monkeypatch.setattr(worker, "run_training", lambda *_, **__: iter([ValidationResult(1, 1.0, 5, {}, 1.0, True)]))
    monkeypatch.setattr(module, "fixed_operations", entered)
    list(
        worker.results(
            Work(
                "0000",
                resolve_experiment({"method": "triplet", **given}, "trial"),
                str(tmp_path),
                str(tmp_path / "trials" / "0000"),
            )
        )
    )
    assert seen == [wanted]


def test_a_training_takes_subnormal_numbers_for_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[bool] = []

    def train(*_: Any, **__: Any) -> Iterator[ValidationResult]:
        flushed.append(flushes_subnormals())
        yield ValidationResult(1, 1.0, 5, {}, 1.0, True)

    monkeypatch.setattr(worker, "run_training", train)
    experiment = resolve_experiment({"method": "triplet"}, "trial")
    list(worker.results(Work("0000", experiment, str(tmp_path), str(tmp_path / "trials" / "0000"))))
    assert flushed == [True] and not flushes_subnormals()


def test_threads_that_are_started_in_the_block_flush_too() -> None:
    code = f"""
import torch
from orchestrator.training.device import subnormals_flushed
torch.set_num_threads(2)
with subnormals_flushed():
    import numpy as np
    assert np.finfo(np.float32).tiny > 0 and np.finfo(np.float64).tiny > 0
    inner = (torch.full(({2**22},), {SUBNORMAL}) * 1).count_nonzero()
    with subnormals_flushed():
        pass
    again = (torch.full((8,), {SUBNORMAL}) * 1).count_nonzero()
    print(torch.get_num_threads(), int(inner), int(again))
"""
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert ended.stdout.split() == ["2", "0", "0"], ended.stderr


def test_the_report_names_trainings_without_a_fixed_order() -> None:
    ledger = Ledger()
    for name, settings_of in (("0000", {"deterministic": False}), ("0001", {"deterministic": True}), ("0002", {})):
        ledger.trials[name] = TrialRecord(name, 0, "trial", {}, 0, state="done", settings=settings_of)
    (line,) = [line for line in learning.warnings_of(ledger) if "deterministic" in line]
    assert line.startswith("1 training had deterministic: false: on a GPU the same settings and seed")


def test_a_cpu_is_left_alone() -> None:
    before = settings()
    with fixed_operations("cpu") as found, warnings.catch_warnings():
        warnings.simplefilter("error")
        unordered()
        assert settings() == before and found == set()


def test_an_error_leaves_the_settings_as_they_were() -> None:
    before = settings()
    with pytest.raises(ZeroDivisionError), fixed_operations("cuda"):
        raise ZeroDivisionError
    assert settings() == before


def test_their_names_go_from_the_training_to_the_journal_the_tracker_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = ValidationResult(1, 1.0, 5, {"val/map_at_r": 0.5, "epoch": 1.0}, 1.0, True)
    monkeypatch.setattr(worker, "run_training", lambda *_, **__: iter([done]))
    monkeypatch.setattr(module, "fixed_operations", lambda *_, **__: contextlib.nullcontext({"put_", "cumsum"}))
    (result,) = worker.results(
        Work(
            "0000", resolve_experiment({"method": "triplet"}, "trial"), str(tmp_path), str(tmp_path / "trials" / "0000")
        )
    )
    assert isinstance(result, Validated) and result.unordered == ("cumsum", "put_")

    driver = conductor(tmp_path)
    assert driver.next() is not None
    assert driver.report(result)
    driver.journal.close()
    events, ledger = read_journal(tmp_path / "journal.jsonl")
    assert ledger.trials["0000"].unordered == ("cumsum", "put_")
    told = "1 training cannot be repeated to the last bit: on their GPUs cumsum and put_ have no fixed order."
    assert told in list(learning.warnings_of(ledger))

    updates: dict[Any, Update] = {}
    projection = Projection()
    for event in events:
        projection.fold(event, updates)
    assert updates["0000"].tags["unordered"] == "cumsum, put_"
