"""Four folds in lockstep: each as if alone, their mean, and exact after an interruption."""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import run
from support.rate_schedules import after_patience, plateau
from support.training_loops import resolved

import orchestrator.training.folds
from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.data.splits import Split, class_folds, class_split
from orchestrator.data.store import Store
from orchestrator.evaluation.metrics import evaluate_embeddings
from orchestrator.execution.protocol import Validated, Work
from orchestrator.execution.worker import results
from orchestrator.storage.trial_folder import BEST, CHECKPOINT, INSIGHT, TrialPaths
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.embed import embed_model, evaluate_model
from orchestrator.training.folds import evaluate_folds, fit_folds
from orchestrator.training.loop import ValidationResult, fit

SETTINGS = {"method": "proxy_anchor", "validate_every": "2 steps", "lr": 0.01}
VALIDATIONS = 3


def folds_of(store: Store) -> list[Split]:
    """Two of the folds, with few images to validate on: quick."""
    return [dataclasses.replace(fold, validation=fold.validation[:48]) for fold in class_folds(store)[:2]]


def train(
    folder: Path | None, data: Path, take: int = 99, stop_after: int = VALIDATIONS, **more: Any
) -> list[ValidationResult]:
    store = open_dataset("glyphs-small", data)
    training = fit_folds(resolved(data, SETTINGS | more), store, folds_of(store), folder=folder, stop_after=stop_after)
    return [validation for _, validation in zip(range(take), training, strict=False)]


def seen(validations: list[ValidationResult]) -> list[Any]:
    return [(v.number, v.step, v.metrics, v.finished, v.reason) for v in validations]


def test_every_training_class_is_held_out_once(glyphs: Store) -> None:
    folds = class_folds(glyphs)
    training = class_split(glyphs, validation_share=0, seed=0).train_classes
    assert np.array_equal(np.concatenate([fold.validation_classes for fold in folds]), training)
    for fold in folds:
        assert np.array_equal(np.union1d(fold.train_classes, fold.validation_classes), training)
        assert not len(np.intersect1d(fold.train_classes, fold.validation_classes))
        assert all(b - a == 1 for a, b in pairwise(fold.validation_classes))
        assert set(glyphs.labels[fold.validation]) == set(fold.validation_classes)
        assert not len(np.intersect1d(fold.test_classes, training))


def test_folds_in_lockstep_are_each_as_if_alone(data_folder: Path, tmp_path: Path) -> None:
    store = open_dataset("glyphs-small", data_folder)
    together = train(tmp_path / "together", data_folder)
    alone = []
    for number, split in enumerate(folds_of(store)):
        folder = TrialPaths(tmp_path / "alone").fold(number).folder
        alone.append(list(fit(resolved(data_folder, SETTINGS), store, split, folder=folder, stop_after=VALIDATIONS)))
        ours = load_checkpoint(TrialPaths(tmp_path / "together").fold(number).folder / CHECKPOINT)["model"]["learner"]
        theirs = load_checkpoint(folder / CHECKPOINT)["model"]["learner"]
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert (TrialPaths(tmp_path / "together").fold(number).folder / BEST).exists()
    for validation, folds in zip(together, zip(*alone, strict=True), strict=True):
        for name, value in validation.metrics.items():
            assert value == fmean(fold.metrics[name] for fold in folds), name
    assert [validation.finished for validation in together] == [False, False, True]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_interrupted_training_goes_on_exactly(data_folder: Path, tmp_path: Path, lost: int) -> None:
    whole = train(tmp_path / "whole", data_folder)
    train(tmp_path / "broken", data_folder, take=2)
    for number in range(lost):  # killed after some of the folds had saved: the others are a validation behind
        (TrialPaths(tmp_path / "broken").fold(number).folder / CHECKPOINT).unlink()
    assert seen(train(tmp_path / "broken", data_folder)) == seen(whole)


def test_a_fold_that_ends_early_counts_with_its_last_validation(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*args: Any, folder: None, objective: None, stop_after: int, keep: Any) -> Any:
        length = 1 if split_sizes.pop() else 3
        for number in range(1, length + 1):
            yield ValidationResult(number, number, number, {"val/map_at_r": 0.1 * number}, 1.0, number == length)

    split_sizes = [False, True]
    monkeypatch.setattr(orchestrator.training.folds, "fit", made)
    found = train(None, data_folder)
    assert [validation.number for validation in found] == [1, 2, 3]
    assert [validation.metrics["val/map_at_r"] for validation in found] == pytest.approx([0.1, 0.15, 0.2])
    assert [validation.seconds for validation in found] == [2.0, 1.0, 1.0]
    assert [validation.finished for validation in found] == [False, False, True]


def test_each_fold_lowers_its_learning_rate_and_ends_by_its_own_scores(data_folder: Path, tmp_path: Path) -> None:
    """Also where it is interrupted, before and after the first of them has ended."""
    recipe: dict[str, Any] = {"lr_schedule": "plateau", "lr_patience": 0, "lr_gamma": 0.5, "stop_patience": 2}
    settings: dict[str, Any] = {"method": "triplet", "lr": 0.03, "validate_every": "1 step", **recipe}
    together = train(tmp_path / "whole", data_folder, stop_after=12, **settings)
    ends, factors = [], []
    saved = [load_checkpoint(TrialPaths(tmp_path / "whole").fold(number).folder / CHECKPOINT) for number in range(2)]
    curves = [[one["metrics"]["val/map_at_r"] for one in state["history"]] for state in saved]
    for state, scores in zip(saved, curves, strict=True):
        ends.append(after_patience(scores, True, 2) or 0)
        assert len(scores) == ends[-1] and state["history"][-1]["finished"]
        factors.append(plateau(scores[:-1], True, 0)[-1])  # the last score comes after the last step
        assert state["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.03 * factors[-1])
    assert len({*ends}) == len({*factors}) == 2, "the folds differ, or else this test shows nothing"
    for place, validation in enumerate(together):
        assert validation.metrics["val/map_at_r"] == fmean(scores[: place + 1][-1] for scores in curves)
        assert validation.finished == (place + 1 == max(ends))
    assert together[-1].reason == "2 of 2 folds: stop_patience: no better val/map_at_r in 2 validations"
    for take in (min(ends) - 1, min(ends) + 1):
        train(tmp_path / str(take), data_folder, take=take, stop_after=12, **settings)
        assert seen(train(tmp_path / str(take), data_folder, stop_after=12, **settings)) == seen(together)
        for number, state in enumerate(saved):
            again = load_checkpoint(TrialPaths(tmp_path / str(take)).fold(number).folder / CHECKPOINT)["model"][
                "learner"
            ]
            assert all(torch.equal(again[name], value) for name, value in state["model"]["learner"].items())


def test_models_are_tested_one_by_one_and_side_by_side(data_folder: Path, tmp_path: Path) -> None:
    train(tmp_path, data_folder, stop_after=1)
    store = open_dataset("glyphs-small", data_folder)
    rows = folds_of(store)[0].test[:200]
    folders = [model.folder for model in TrialPaths(tmp_path).models]
    assert folders == [tmp_path / "fold-0", tmp_path / "fold-1"]
    found, together, _ = evaluate_folds([folder / BEST for folder in folders], store, rows)
    each = [evaluate_model(folder / BEST, store, rows) for folder in folders]
    for name in each[0]:
        assert found[name] == fmean(fold[name] for fold in each), name
    embeddings = [embed_model(folder / BEST, store, rows)[1].outputs["embedding"] for folder in folders]
    both = torch.cat([part / part.norm(dim=1, keepdim=True) for part in embeddings], dim=1)
    expected = evaluate_embeddings(both, torch.from_numpy(store.labels[rows]))
    assert {name: found[f"concatenated_{name}"] for name in expected} == expected == together.metrics
    assert len(together.queries) == len(rows)
    assert not list(tmp_path.glob("fold-*/diagnostics/test_*")) and not (tmp_path / INSIGHT).exists()
    evaluate_folds([folder / BEST for folder in folders], store, rows, keep=True)
    assert (tmp_path / INSIGHT / "classes.csv").exists()


@pytest.mark.slow
def test_a_trial_over_folds(data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {
        "method": "proxy_anchor",
        "dataset": "glyphs-small",
        "epochs": 1,
        "protocol": "mlrc",
        "embedding_dim": 8,
    }
    (result,) = results(Work("0000", resolve_experiment(settings, "trial"), str(data_folder), str(tmp_path), test=True))
    assert isinstance(result, Validated) and result.finished and 0 < result.metrics["val/map_at_r"] < 1
    assert 0 < result.test["map_at_r"] < result.test["concatenated_recall_at_1"] <= 1
    assert len(TrialPaths(tmp_path).models) == 4
    (tmp_path / "data").symlink_to(data_folder)
    command = f"evaluate {tmp_path} --dataset glyphs-small --storage {tmp_path}"
    ran = run(capsys, f"{command} --json --per-query {tmp_path}/q.csv")
    found = json.loads(ran.out)
    assert (ran.code, found["metrics"].keys()) == (0, {n for n in result.test if "_over_" not in n})
    for name in ("map_at_r", "concatenated_map_at_r"):
        low, high = found["intervals_over_classes"][name]
        assert low < found["metrics"][name] < high
        assert result.test[f"{name}_over_classes_low"] == pytest.approx(low)
    tested = {name: value for name, value in result.test.items() if "_over_" not in name}
    assert len((tmp_path / "q.csv").read_text().splitlines()) == found["queries"] + 1
    (head,) = (line for line in run(capsys, command).out.splitlines() if line.strip().startswith("metric"))
    assert found["metrics"] == pytest.approx(tested) and head.split() == ["metric", "separated", "concatenated"]
    refused = run(capsys, f"{command} --out-of-distribution glyphs")
    assert refused.code == 2
    assert refused.err.startswith(
        f"error: --out-of-distribution: {tmp_path} has one model per fold; name one, such as "
    )
