"""How results are obtained: the test classes chosen on, folds confirmed on the whole half, classes in groups, images of
another data set; and the page that gives the papers' tables their commands."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from test_cli import TINY, run
from test_study import TPE, drive, result, search_of, start

from orchestrator.data.splits import class_split
from orchestrator.data.store import Store
from orchestrator.display import leaderboard
from orchestrator.errors import InputError
from orchestrator.evaluation import evaluate_embeddings
from orchestrator.journal import Journal
from orchestrator.ledger import leaderboard_rows
from orchestrator.loop import data_splits, validate
from orchestrator.method import Embedded
from orchestrator.report import summary
from orchestrator.spec import Training, idle_settings

# Chosen on the test classes --------------------------------------------------------------------------------

ON_TEST = TPE | {"settings": {"epochs": 6, "selection": "test"}, "scheduler": "none", "num_trials": 2}


def text_of(shown: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("hold_out", [True, False])
def test_the_whole_half_trains_and_the_test_classes_validate(hold_out: bool, glyphs: Store) -> None:
    whole = class_split(glyphs, validation_share=0, seed=0)
    (split,) = data_splits(Training(selection="test"), glyphs, hold_out=hold_out)
    for name in ("train", "test", "train_classes", "test_classes"):
        assert np.array_equal(getattr(split, name), getattr(whole, name))
    assert np.array_equal(split.validation, whole.test)
    assert np.array_equal(split.validation_classes, whole.test_classes)


def test_a_validation_searches_for_queries_in_the_gallery(data_folder: Path) -> None:
    store = Store.open(data_folder / "glyphs-small")
    rows = np.arange(0, len(store), 7)
    store.splits = np.where(np.arange(len(store)) % 3 == 0, "query", "gallery")
    embeddings, labels = torch.randn(len(rows), 5, dtype=torch.float64), torch.from_numpy(store.labels[rows]).long()
    asked = torch.from_numpy(rows % 3 == 0)
    expected = evaluate_embeddings(
        embeddings[asked],
        labels[asked],
        gallery=embeddings[~asked],
        gallery_labels=labels[~asked],
        clustering=False,
    )
    found = validate(Embedded({"embedding": embeddings}, labels, torch.from_numpy(rows)), store)
    assert found == {f"val/{name}": value for name, value in expected.items() if name != "queries_left_out"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"selection": "test", "protocol": "mlrc"}}, "settings: selection: 'test': not with protocol"),
        ({"settings": {"selection": "tests"}}, "settings: selection: 'tests': input should be 'validation' or 'test'"),
        ({"space": {"selection": ["validation", "test"]}}, "space.selection: what is selected on cannot be searched"),
        (
            {"settings": {"selection": "test"}, "space": {"validation_share": [0.2, 0.3]}},
            "space.validation_share: nothing is held out with selection: test",
        ),
        (
            {"settings": {"selection": "test"}, "space": {"protocol": ["conventional", "mlrc"]}},
            "space.protocol: selection: 'test': not with protocol: mlrc",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^s.yaml: {message}") as caught:
        search_of(TPE, **change)
    assert "\n" not in str(caught.value)


def test_a_share_without_effect_is_told() -> None:
    settings = {"selection": "test", "validation_share": 0.0}
    assert idle_settings(search_of(TPE, settings=settings)) == ['validation_share has no effect with selection="test"']
    assert idle_settings(search_of(TPE, settings={"selection": "test"})) == []


@pytest.mark.parametrize("selection", ["test", "validation"])
def test_every_number_carries_the_word(selection: str, tmp_path: Path) -> None:
    conductor = start(search_of(ON_TEST, settings={"epochs": 6, "selection": selection}, final_seeds=2), tmp_path)
    drive(conductor)
    ledger, events = conductor.ledger, Journal.read(tmp_path / "journal.jsonl")
    begun = [event for event in events if event["event"] == "trial_started"]
    assert [event["tags"]["selection"] for event in begun] == [selection] * 4
    assert {row["selection"] for row in leaderboard_rows(ledger)} == {selection}
    found = summary(ledger, tmp_path / "journal.jsonl")
    assert found["selection"] == found["best"]["selection"] == found["finals"][0]["selection"] == selection
    lines = [line for line in text_of(leaderboard(ledger)).splitlines() if "classes" in line.lower()]
    assert len(lines) == 2
    assert all(("on TEST classes (selection: test)" in line) == (selection == "test") for line in lines)
    # each final run chooses its own best, as its trial did
    final = begun[-1]
    assert ("chosen on the test classes" in final["note"]) == (selection == "test")
    assert (ledger.finals[final["trial_id"]].validations == 6) == (selection == "test")


def test_a_training_says_it_from_first_to_last(
    tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow.tracking import MlflowClient

    (tmp_path / "data").symlink_to(data_folder)
    command = f"train --method proxy_anchor --dataset glyphs-small --epochs 1 --name t --storage {tmp_path} {TINY}"
    ran = run(capsys, f"{command} --set selection=test --set class_subset=12 --json")
    assert ran.code == 0
    assert ran.err.splitlines()[0].startswith("note: selection=test: the best validation is chosen on the TEST classes")
    assert all("selection: test" in line for line in ran.err.splitlines() if "0." in line and "trial 0000" in line)
    found = json.loads(ran.out)
    assert found["selection"] == "test"
    assert found["best"]["metrics"]["test/map_at_r"] == pytest.approx(found["best"]["objective"], abs=1e-9)
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    runs = client.search_runs([found["experiment_id"]])
    assert [run.data.tags["selection"] for run in runs] == ["test", "test"]
    with (tmp_path / "searches" / "t" / "leaderboard.csv").open() as file:
        assert [row["selection"] for row in csv.DictReader(file)] == ["test"]
    measured = run(capsys, f"evaluate t --dataset glyphs-small --storage {tmp_path}")
    assert "on glyphs-small, TEST classes (selection: test)," in measured.out


# Searched on folds, confirmed on the whole half ------------------------------------------------------------

CONFIRMED = TPE | {"settings": {"epochs": 6, "protocol": "mlrc"}, "final_trials": 2, "final_seeds": 2}


@pytest.mark.parametrize("protocol", ["conventional", "same"])
def test_final_runs_confirm_what_folds_found(protocol: str, tmp_path: Path) -> None:
    conductor = start(search_of(CONFIRMED, final_protocol=protocol), tmp_path)
    given = []
    following = conductor.next
    conductor.next = lambda: given.append(following()) or given[-1]  # type: ignore[assignment, func-returns-value]
    drive(conductor)
    trials, finals = ([work for work in given if work["test"] == test] for test in (False, True))
    assert {work["arguments"]["settings"]["protocol"] for work in trials} == {"mlrc"}
    assert [work["arguments"]["settings"]["seed"] for work in finals] == [0, 1, 0, 1]
    for work in finals:
        arguments, record = work["arguments"], conductor.ledger.finals[work["trial_id"]]
        best = conductor.ledger.trials[record.source or ""]
        assert best.trial_id in [trial.trial_id for trial in conductor.ledger.finished()[:2]]
        if protocol == "same":
            assert (arguments["settings"]["protocol"], arguments["stop_after"]) == ("mlrc", None)
            continue
        assert arguments["settings"]["protocol"] == "conventional"
        assert (arguments["stop_after"], arguments["hold_out"]) == (best.best_validation, False)
        assert record.note == f"retrained from trial {best.trial_id} as one model"
    resumed = start(search_of(CONFIRMED, final_protocol=protocol), tmp_path)
    assert resumed.complete and resumed.next() is None


def test_a_method_that_needs_held_out_classes_keeps_them(tmp_path: Path) -> None:
    raw = CONFIRMED | {"method": "ccp", "space": {"lr": [0.001, 0.01]}, "num_trials": 2}
    conductor = start(search_of(raw, final_protocol="conventional"), tmp_path)
    while work := conductor.next():
        conductor.report(result(work, 1, 0.5, 1))
    note = next(iter(conductor.ledger.finals.values())).note
    assert note is not None and note.endswith("as one model, held-out classes kept for the method's own use")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"epochs": 2}}, "conventional: confirms trials over folds: set protocol: mlrc"),
        ({"space": {"protocol": ["mlrc", "conventional"]}, "settings": {}}, "conventional: confirms trials over folds"),
        ({"final_protocol": "convetional"}, "'convetional' is unknown \\(did you mean 'conventional'\\?"),
        ({"final_protocol": 3}, "3 should be text"),
    ],
)
def test_a_final_protocol_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^s.yaml: final_protocol: {message}"):
        search_of(CONFIRMED | {"final_protocol": "conventional"}, **change)
