"""The final test of a training with several processes: one of them evaluates, on its own device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Pair

from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.errors import InputError
from orchestrator.evaluation import metrics
from orchestrator.evaluation.metrics import Evaluation
from orchestrator.execution.worker import run_test
from orchestrator.storage.trial_folder import BEST
from orchestrator.training import device, embed
from orchestrator.training.checkpoint import save_checkpoint
from orchestrator.training.distributed import on_first, rank
from orchestrator.training.model_file import build_learner, model_state

SETTINGS = resolve_experiment(
    {"method": "proxy_anchor", "dataset": "glyphs-small", "embedding_dim": 8, "device": "cpu", "threads": 1}, "test"
)


def final_test(folder: Path, data: Path) -> tuple[dict[str, float], int]:
    """The metrics of a final test, and how many searches this process made for them."""
    searches: list[Any] = []
    evaluate = metrics.evaluate_queries

    def counted(*given: Any, **named: Any) -> Evaluation:
        searches.append(named)
        return evaluate(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embed, "evaluate_queries", counted)
        return run_test(SETTINGS, data=data, folder=folder), len(searches)


def test_one_process_evaluates_for_all(pair: Pair, data_folder: Path, tmp_path: Path) -> None:
    store = open_dataset("glyphs-small", data_folder)
    torch.manual_seed(0)
    learner = build_learner(SETTINGS, store, num_classes=18)
    save_checkpoint(tmp_path / BEST, model_state(SETTINGS, store, learner))
    alone, _ = final_test(tmp_path, data_folder)
    (first, searches), (second, others) = pair.run(final_test, tmp_path, data_folder)
    assert (searches, others) == (1, 0)
    assert first == pytest.approx(alone, abs=1e-6) and "map_at_r_over_classes_low" in first
    assert second.items() <= first.items() and "map_at_r" in second


def failing(wrong: type[Exception]) -> str:
    """What this process raises where the first one fails."""

    def evaluate() -> None:
        assert rank() == 0
        raise wrong("no class has two images")

    try:
        on_first(evaluate)
    except (InputError, wrong) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_all_fail_where_the_first_fails(pair: Pair) -> None:
    assert pair.run(failing, InputError) == ["InputError: no class has two images"] * 2
    first, second = pair.run(failing, MemoryError)
    assert first == "MemoryError: no class has two images"
    assert second == f"InputError: {first}"


def test_a_training_searches_on_its_own_gpu(monkeypatch: pytest.MonkeyPatch, data_folder: Path, tmp_path: Path) -> None:
    """Others that it sees may be other workers'."""
    asked: list[str] = []

    def evaluate(model: Path, store: Any, rows: np.ndarray[Any, Any], device: str, **_: Any) -> Any:
        asked.append(device)
        raise InputError("enough")

    monkeypatch.setattr(device, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(embed, "evaluate_and_embed", evaluate)
    with pytest.raises(InputError, match="enough"):
        run_test(SETTINGS, data=data_folder, folder=tmp_path)
    assert asked == ["cuda:2"]
