"""A model knows the pictures and classes it was trained on: they are no test of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.archive_trees import run
from support.output_schemas import conforms
from support.pictures import picture

from orchestrator.config.training import resolve_experiment
from orchestrator.data.prepare import prepare
from orchestrator.data.splits import class_split
from orchestrator.data.store import Store
from orchestrator.training.checkpoint import save_checkpoint
from orchestrator.training.model_file import build_learner, model_state
from orchestrator.training.splits import rows_to_test
from orchestrator.training.trained_on import overlap, trained_on

OLD = "mnopqrst"


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, Store]:
    """A model of the first half of eight classes, m to p."""
    for label, name in enumerate(OLD):
        for number in range(3):
            picture(tmp_path / "source" / name / f"{number}.png", 3 * label + number, (16, 16))
    store = prepare("folder", tmp_path / "source", tmp_path / "data", name="own")
    experiment = resolve_experiment({"method": "proxy_anchor", "embedding_dim": 8, "dataset": "own"}, "test")
    learner = build_learner(experiment, store, num_classes=4)
    split = class_split(store, validation_share=0.0, seed=0)
    path = tmp_path / "model.pt"
    save_checkpoint(path, model_state(experiment, store, learner, trained_on(store, [split.train])))
    return path, store


def grow(tmp_path: Path, names: str, renamed: str = "") -> Store:
    """More classes, before the others, so that some of those that trained are now in the second half."""
    for label, name in enumerate(names):
        for number in range(3):
            picture(tmp_path / "source" / name / f"{number}.png", 100 + 3 * label + number, (16, 16))
    for name in renamed:
        (tmp_path / "source" / name).rename(tmp_path / "source" / f"{name}{name}")
    return prepare("folder", tmp_path / "source", tmp_path / "data", name="grown")


@pytest.mark.parametrize("renamed", ["", "op"])
def test_classes_that_were_trained_on_do_not_stand_first(
    model: tuple[Path, Store], tmp_path: Path, renamed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of twelve classes m to t are the second half, four of which the model knows, by whatever name."""
    path, _ = model
    store = grow(tmp_path, "abcd", renamed)
    seen = ["oo", "pp"] if renamed else ["o", "p"]
    command = ["evaluate", str(path), "--dataset=grown", f"--storage={tmp_path}", "--device=cpu"]
    assert run(*command, "--json") == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    conforms("evaluate", answer)
    assert answer["seen_in_training"]["names"] == seen and answer["seen_in_training"]["images"] == 6
    assert (answer["classes"], answer["queries"]) == (4, 12)
    assert answer["metrics"] != answer["seen_in_training"]["metrics_with_them"]
    assert f"warning: 2 of 6 test classes ({', '.join(seen)}) and 6 test images are among those" in err
    assert "note: the model was trained on the data set own of digest" in err
    assert run(*command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "test classes new to the model (4)" in shown and "with the 2 trained on" in shown
    assert len(store.class_names) == 12


def test_nothing_is_said_of_a_models_own_test_classes(
    model: tuple[Path, Store], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = model
    command = ["evaluate", str(path), "--dataset=own", f"--storage={tmp_path}", "--device=cpu", "--json"]
    assert run(*command) == 0
    out, err = capsys.readouterr()
    assert not err and json.loads(out).get("seen_in_training") is None and json.loads(out)["classes"] == 4


def test_a_query_with_nothing_to_find_is_told(
    model: tuple[Path, Store], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(tmp_path / "source" / "u" / "0.png", 99, (16, 16))
    grow(tmp_path, "")
    assert run("evaluate", str(model[0]), "--dataset=grown", f"--storage={tmp_path}", "--device=cpu") == 0
    said = capsys.readouterr().err
    assert "note: 1 image has no other of the class to be found, and no part in the numbers" in said


def test_a_test_of_one_class_is_told(
    model: tuple[Path, Store], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        for label in "yz":
            picture(tmp_path / "two" / label / f"{number}.png", 90 + number + 5 * (label == "z"), (16, 16))
    prepare("folder", tmp_path / "two", tmp_path / "data", name="two")
    assert run("evaluate", str(model[0]), "--dataset=two", f"--storage={tmp_path}", "--device=cpu") == 0
    said = capsys.readouterr().err
    assert "note: all images are of one class: whatever the model, every neighbour is right" in said


def test_models_of_earlier_versions_know_nothing(model: tuple[Path, Store]) -> None:
    _, store = model
    experiment = resolve_experiment({"method": "proxy_anchor"}, "test")
    rows = rows_to_test(experiment.training, store)
    assert overlap([{"dataset_digest": store.manifest["digest"]}], store, rows) is None
    everything = {"trained_on": trained_on(store, [np.arange(len(store))]), "dataset_digest": "another"}
    found = overlap([everything], store, rows)
    assert found is not None and len(found.unseen) == 0 and found.classes == list("qrst") and found.pictures == 12
