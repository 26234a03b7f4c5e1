"""How results are obtained: the test classes chosen on, folds confirmed on the whole half, classes in groups, images of
another data set; and the page that gives the papers' tables their commands."""

import csv
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from support.command_line import TINY, run
from support.driven_studies import TPE, drive, result, search_of, start
from support.training_loops import resolved

import orchestrator.data.catalog
from orchestrator.cli.main import main
from orchestrator.cli.tables import leaderboard
from orchestrator.config.resolve import idle_settings
from orchestrator.config.search import Search
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.data.augmentations import Degradation
from orchestrator.data.catalog import check_known, open_dataset, overview
from orchestrator.data.pipeline import EVALUATION
from orchestrator.data.splits import class_groups, class_split, image_split
from orchestrator.data.store import Row, Store, write_store
from orchestrator.data.transforms import augment
from orchestrator.errors import InputError
from orchestrator.evaluation.metrics import auroc, evaluate_embeddings
from orchestrator.execution.protocol import Validated, Work
from orchestrator.execution.worker import results
from orchestrator.method import Embedded
from orchestrator.report.summary import summary
from orchestrator.storage.journal import Journal
from orchestrator.storage.leaderboard import leaderboard_rows
from orchestrator.training.checkpoint import save_checkpoint
from orchestrator.training.embed import embed_model, evaluate_model, validate
from orchestrator.training.model_file import build_learner, model_state
from orchestrator.training.splits import data_splits

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
    found, _ = validate(Embedded({"embedding": embeddings}, labels, torch.from_numpy(rows)), store)
    assert found == {f"val/{name}": value for name, value in expected.items() if name != "queries_left_out"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"settings": {"selection": "test", "protocol": "mlrc"}},
            "settings: selection: 'test': cannot be combined with protocol",
        ),
        ({"settings": {"selection": "tests"}}, "settings: selection: 'tests' is unknown \\(known: test, validation\\)"),
        ({"space": {"selection": ["validation", "test"]}}, "space.selection: selection cannot be searched"),
        (
            {"settings": {"selection": "test"}, "space": {"validation_share": [0.2, 0.3]}},
            "space.validation_share: nothing is held out with selection: test",
        ),
        (
            {"settings": {"selection": "test"}, "space": {"protocol": ["conventional", "mlrc"]}},
            "space.protocol: selection: 'test': cannot be combined with protocol: mlrc",
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
    found = summary(ledger, tmp_path / "journal.jsonl").plain
    assert found["selection"] == found["best"]["selection"] == found["finals"][0]["selection"] == selection
    lines = [line for line in text_of(leaderboard(ledger)).splitlines() if "classes" in line.lower()]
    assert len(lines) == 2
    assert all(("on TEST classes (selection: test)" in line) == (selection == "test") for line in lines)
    # each final run chooses its own best, as its trial did
    final = begun[-1]
    assert ("chosen on the test classes" in final["note"]) == (selection == "test")
    assert (ledger.finals[final["trial_id"]].validations == 6) == (selection == "test")


@pytest.mark.slow
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
    assert "on glyphs-small, test classes (selection: test)," in measured.out


# Searched on folds, confirmed on the whole half ------------------------------------------------------------

CONFIRMED = TPE | {"settings": {"epochs": 6, "protocol": "mlrc"}, "final_trials": 2, "final_seeds": 2}


@pytest.mark.parametrize("protocol", ["conventional", "same"])
def test_final_runs_confirm_what_folds_found(protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conductor = start(search_of(CONFIRMED, final_protocol=protocol), tmp_path)
    given: list[Work] = []
    following = conductor.next

    def recorded() -> Work | None:
        if (work := following()) is not None:
            given.append(work)
        return work

    monkeypatch.setattr(conductor, "next", recorded)
    drive(conductor)
    trials, finals = ([work for work in given if work.test == test] for test in (False, True))
    assert {work.experiment.flat()["protocol"] for work in trials} == {"mlrc"}
    assert [work.experiment.flat()["seed"] for work in finals] == [0, 1, 0, 1]
    for work in finals:
        record = conductor.ledger.finals[work.trial_id]
        best = conductor.ledger.trials[record.source or ""]
        assert best.trial_id in [trial.trial_id for trial in conductor.ledger.candidates()[:2]]
        if protocol == "same":
            assert (work.experiment.flat()["protocol"], work.stop_after) == ("mlrc", None)
            continue
        assert work.experiment.flat()["protocol"] == "conventional"
        assert (work.stop_after, work.hold_out) == (best.best_validation, False)
        assert record.note == f"retrained from trial {best.trial_id} as one model"
    resumed = start(search_of(CONFIRMED, final_protocol=protocol), tmp_path)
    assert resumed.complete and resumed.next() is None


@pytest.mark.parametrize(("method", "use"), [("ccp", "method's own"), ("triplet", "learning rate's")])
def test_a_training_that_needs_held_out_classes_keeps_them(method: str, use: str, tmp_path: Path) -> None:
    raw = CONFIRMED | {"method": method, "space": {"lr": [0.001, 0.01]}, "num_trials": 2}
    if method == "triplet":
        raw |= {"settings": {"epochs": 6, "protocol": "mlrc", "lr_schedule": "plateau"}}
    conductor = start(search_of(raw, final_protocol="conventional"), tmp_path)
    while work := conductor.next():
        conductor.report(result(work, 1, 0.5, 1))
        assert work.hold_out
    note = next(iter(conductor.ledger.finals.values())).note
    assert note is not None and note.endswith(f"as one model, held-out classes kept for the {use} use")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"epochs": 2}}, "conventional: is for searches over folds: set protocol: mlrc"),
        ({"space": {"protocol": ["mlrc", "conventional"]}, "settings": {}}, "conventional: is for searches over folds"),
        ({"final_protocol": "convetional"}, "'convetional' is unknown \\(known: conventional, same\\)"),
        ({"final_protocol": 3}, "3 should be text"),
    ],
)
def test_a_final_protocol_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^s.yaml: final_protocol: {message}"):
        search_of(CONFIRMED | {"final_protocol": "conventional"}, **change)


# Groups of classes, and images of another data set ---------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> Path:
    """A storage folder with the small glyphs, halves of their classes as data sets `other` and `third`, and a model of
    each of two methods, as it begins."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "data").mkdir()
    (folder / "data" / "glyphs-small").symlink_to(data_folder / "glyphs-small")
    store = open_dataset("glyphs-small", data_folder)
    for remainder, name in enumerate(("other", "third")):
        chosen = [row for row in range(0, len(store), 4) if store.labels[row] % 2 == remainder]
        rows = (Row(store.image_bytes(row), int(store.labels[row]) // 2, str(store.splits[row])) for row in chosen)
        made: dict[str, Any] = {"name": name, "channels": 1, "seed": 0, "settings": {}}
        write_store(folder / "data" / name, class_names=store.class_names[remainder::2], rows=rows, **made)
    for method in ("idml", "pfml"):
        experiment = resolved(data_folder, {"method": method, "dataset": "glyphs-small"})
        learner = build_learner(experiment, store, num_classes=6).double()
        save_checkpoint(folder / f"{method}.pt", model_state(experiment, store, learner))
    return folder


def test_groups_are_all_images_of_consecutive_classes(glyphs: Store) -> None:
    groups = class_groups(glyphs, [4, 2, 3])
    for rows, classes in zip(groups, ([0, 1, 2, 3], [4, 5], [6, 7, 8]), strict=True):
        assert np.array_equal(rows, np.flatnonzero(np.isin(glyphs.labels, classes)))


def test_each_group_is_evaluated_apart(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"evaluate {models}/pfml.pt --dataset other --storage {models} --class-groups 4,3"
    found = json.loads(run(capsys, f"{command} --json").out)["groups"]
    assert [group["classes"] for group in found] == ["0-3", "4-6"]
    store = open_dataset("other", models / "data")
    for group, rows in zip(found, class_groups(store, [4, 3]), strict=True):
        assert group["queries"] == len(rows)
        assert group["metrics"] == pytest.approx(evaluate_model(models / "pfml.pt", store, rows))
        low, high = group["intervals_over_queries"]["recall_at_1"]
        assert low <= group["metrics"]["recall_at_1"] <= high
        assert group["intervals_over_classes"] == {} and group["no_interval"].startswith("no interval: ")
    shown = run(capsys, command)
    assert shown.code == 0 and "another than this other" in shown.err and shown.err.count("\n") == 1
    (head,) = (line for line in shown.out.splitlines() if line.strip().startswith("metric"))
    assert head.split() == ["metric", "classes", "0-3", "classes", "4-6"]
    (row,) = (line.split() for line in shown.out.splitlines() if line.strip().startswith("map_at_r "))
    assert row[1:] == [f"{group['metrics']['map_at_r']:.4f}" for group in found]
    seen = run(capsys, f"evaluate {models}/pfml.pt --dataset glyphs-small --storage {models} --class-groups 2")
    assert seen.err == "note: the model was trained on classes of this data set: these are not new to it\n"


def test_uncertainty_tells_images_of_another_data_set(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"evaluate {models}/idml.pt --dataset other --storage {models} --out-of-distribution third"
    found = json.loads(run(capsys, f"{command} --json").out)["metrics"]
    levels = []
    for name in ("other", "third"):
        store = open_dataset(name, models / "data")
        rows = class_split(store, validation_share=0, seed=0).test
        u = embed_model(models / "idml.pt", store, rows)[1].outputs["uncertainty"]
        levels.append(u.double().square().sum(dim=1).sqrt().numpy())
    inside, outside = levels
    pairs = np.mean([(level > inside).mean() + (level == inside).mean() / 2 for level in outside])
    assert found == {"out_of_distribution/auroc": pytest.approx(pairs)}


def test_a_model_tells_the_uncertainty_of_degraded_images(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """IDML's Table 8: one model, its images degraded in more and more ways."""
    command = f"evaluate {models}/idml.pt --dataset other --storage {models}"
    store = open_dataset("other", models / "data")
    rows = class_split(store, validation_share=0, seed=0).test
    hidden = Degradation("occlusion", 0.5, 0.4)
    learner, plain = embed_model(models / "idml.pt", store, rows)
    images = augment(store.images(rows), rows, recipe="none", seed=0, epoch=EVALUATION, degradation=hidden)
    with torch.no_grad():
        level = learner.eval().network(images)["uncertainty"].double().norm(dim=1).mean().item()
    options = "--degradation occlusion --degradation-probability 0.5 --degradation-extent 0.4"
    found = json.loads(run(capsys, f"{command} {options} --json").out)
    assert found["degradation"] == {"kind": "occlusion", "probability": 0.5, "extent": 0.4}
    assert found["metrics"]["diagnostics/uncertainty_held_out"] == pytest.approx(level, rel=1e-5)
    assert level != pytest.approx(plain.outputs["uncertainty"].double().norm(dim=1).mean().item(), rel=1e-6)
    shown = run(capsys, f"{command} {options}").out
    assert "occlusion with probability 0.5" in " ".join(shown.split()) and f"{level:.4f}" in shown


def test_auroc_counts_pairs_in_order() -> None:
    assert auroc(torch.tensor([1.0, 2.0]), np.array([2.0, 3.0, 0.0])) == pytest.approx((1.5 + 2 + 0) / 6)
    for bad in ([], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="^scores: need finite numbers"):
            auroc(np.array(bad), np.array([1.0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--class-groups 4,x", "--class-groups: '4,x' should be numbers of classes such as 200,200,155"),
        ("--class-groups 4,", "--class-groups: '4,' should be numbers of classes"),
        ("--class-groups 4,1", "--class-groups: 4,1: groups of 4, 1 classes: each needs 2 at least"),
        ("--class-groups 4,-2", "--class-groups: 4,-2: groups of 4, -2 classes: each needs 2 at least"),
        ("--class-groups 4,9999", "--class-groups: 4,9999: the groups have 10003 classes, other has "),
        ("--class-groups ''", "--class-groups: empty"),
        ("--class-groups 4,4 --per-query {models}/q.csv", "--class-groups: cannot be combined with --per-query"),
        (
            "--class-groups 4,4 --out-of-distribution glyphs-small",
            "--out-of-distribution: cannot be combined with --class",
        ),
        (
            "--approximate --out-of-distribution glyphs-small",
            "--out-of-distribution: cannot be combined with --approximate",
        ),
        ("--degradation-probability 0.5", "--degradation-probability: is for degraded images"),
        ("--degradation-extent 0.5", "--degradation-extent: is for degraded"),
        ("--degradation blur --degradation-extent 2", "--degradation-extent: 2: should be a share of the sides"),
        ("--degradation blur --gallery {models}/g.html", "--degradation: cannot be combined with --gallery"),
        (
            "--degradation blur --out-of-distribution glyphs-small",
            "--out-of-distribution: cannot be combined with --degrad",
        ),
        ("--out-of-distribution other", "--out-of-distribution: other: is the data set itself; name another"),
        ("--out-of-distribution glyps-small", "unknown data set 'glyps-small'"),
        (
            "--out-of-distribution glyphs-small",
            "{models}/pfml.pt: trained by 'pfml' it has no uncertainty embedding to detect images with",
        ),
    ],
)
def test_what_cannot_be_evaluated_so_is_one_line(
    options: str, message: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, message = options.format(models=models), message.format(models=models)
    ran = run(capsys, f"evaluate {models}/pfml.pt --dataset other --storage {models} {options}")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {message}") and ran.err.count("\n") == 1
    assert not (models / "q.csv").exists()


# Classification --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> Path:
    """A storage folder with two data sets that part the images of every class, as CIFAR does."""
    folder = tmp_path_factory.mktemp("parted")
    glyphs = open_dataset("glyphs-small", data_folder)
    for first, name in enumerate(("known", "unknown")):
        chosen = [row for row in range(len(glyphs)) if glyphs.labels[row] // 6 == first]
        rows = [
            Row(glyphs.image_bytes(row), int(glyphs.labels[row]) % 6, "test" if place % 3 == 0 else "train")
            for place, row in enumerate(chosen)
        ]
        made: dict[str, Any] = {"name": name, "channels": 1, "seed": 0, "settings": {}}
        write_store(folder / "data" / name, class_names=list("abcdef"), rows=rows, **made)
    return folder


def test_classification_trains_all_classes_on_the_training_images(parted: Path) -> None:
    store = open_dataset("known", parted / "data")
    whole = image_split(store, validation_share=0.0, seed=0)
    assert (store.splits[whole.train] == "train").all() and (store.splits[whole.test] == "test").all()
    assert len(whole.train) + len(whole.test) == len(store) and not len(whole.validation)
    split = image_split(store, validation_share=0.25, seed=1)
    assert set(split.train) | set(split.validation) == set(whole.train) and not set(split.train) & set(split.validation)
    counts = np.bincount(store.labels[whole.train])
    assert np.array_equal(np.bincount(store.labels[split.validation]), np.round(counts * 0.25))
    (on_test,) = data_splits(Training(protocol="classification", selection="test"), store)
    assert np.array_equal(on_test.validation, whole.test) and np.array_equal(on_test.train, whole.train)
    few = image_split(store, validation_share=0.0, seed=0, class_subset=3)
    assert set(store.labels[few.train]) == set(store.labels[few.test]) == {0, 1, 2}
    for share, subset, message in (
        (0.9, None, "^validation_share: 0.9 holds out"),
        (0.0, 7, "^class_subset: 7: known"),
    ):
        store.splits = np.where(np.arange(len(store)) % 11 == 0, "train", "test") if share else store.splits
        with pytest.raises(InputError, match=message):
            image_split(store, validation_share=share, seed=0, class_subset=subset)
    store.splits = np.where(store.labels == 0, "train", store.splits)
    with pytest.raises(InputError, match="^protocol: 'classification': the data set known has no training and test"):
        image_split(store, validation_share=0.0, seed=0)


def test_uncertainty_of_a_classifier_tells_the_test_images_of_two_data_sets(
    parted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """IDML's Table 4, small: trained on the one set's training images, asked about both sets' test images."""
    settings = {"method": "idml", "dataset": "known", "protocol": "classification", "validation_share": 0.0}
    settings |= {"epochs": 1, "classes_per_batch": 6, "objective": "normalized_softmax", "backbone": "small_cnn"}
    (result,) = results(
        Work("0000", resolve_experiment(settings, "trial"), str(parted / "data"), str(parted / "trained"), test=True)
    )
    assert isinstance(result, Validated) and 0 < result.test["recall_at_1"] <= 1
    levels = []
    for name in ("known", "unknown"):
        store = open_dataset(name, parted / "data")
        rows = np.flatnonzero(store.splits == "test")
        outputs = embed_model(parted / "trained" / "model.pt", store, rows)[1].outputs
        levels.append(outputs["uncertainty"].double().norm(dim=1))
    command = f"evaluate {parted}/trained --dataset known --storage {parted} --out-of-distribution unknown"
    assert json.loads(run(capsys, f"{command} --json").out)["metrics"] == {
        "out_of_distribution/auroc": pytest.approx(auroc(*levels))
    }
    assert "against known, test images" in run(capsys, command).out.replace("\n", " ")


# The page of protocols -------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"
TABLES = {
    "PFML": range(1, 10),
    "IDML": range(1, 17),
    "CCP": [1, 2, "S1", "S2", "S3"],
    "Anti-Collapse": ["I", "II", "III", "IV", "V", "VI"],
}


class Resolved(BaseException):  # which no command explains
    """Everything of a command was accepted."""


def shown_commands() -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return sorted({line.split(" #")[0].strip() for line in lines if line.startswith("orchestrator ")})


@pytest.mark.usefixtures("no_ray_beside")
@pytest.mark.parametrize("command", shown_commands())
def test_every_command_of_the_page_resolves(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preset, space, settings and options are there, and go together: all but the run itself."""
    known = overview(tmp_path)
    resolved: list[Any] = []

    def start(search: Search, *_: Any, **__: Any) -> None:
        resolved.append(search)
        raise Resolved

    def find_models(name: str, *_: Any, **__: Any) -> None:
        resolved.append(name)
        raise Resolved

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("orchestrator.search.driver.start", start)
    monkeypatch.setattr("orchestrator.search.models.find_models", find_models)
    monkeypatch.setattr(orchestrator.data.catalog, "check_prepared", check_known)
    words = shlex.split(command)[1:]
    ends = SystemExit if words[0] == "presets" else Resolved
    with pytest.raises(ends) as ended:
        main(words)
    if words[0] == "presets":
        assert not ended.value.code  # type: ignore[attr-defined]
    elif words[0] == "evaluate":
        assert {words[words.index("--dataset") + 1]} <= known.keys()
        if "--out-of-distribution" in words:
            assert words[words.index("--out-of-distribution") + 1] in known
        trained = [other for other in shown_commands() if f"--name {resolved[0]} " in other]
        assert len(trained) == 1
    else:
        assert resolved[0].dataset in known


def test_every_table_of_the_papers_is_named() -> None:
    page = PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## ([\w-]+) \(.*?$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert sections.keys() == TABLES.keys()
    for paper, tables in TABLES.items():
        lists = re.findall(r"Tables? ((?:[\dIVS]+\b(?: \(.*?\))?(?:, | and )?)+)", sections[paper])
        named = {number for some in lists for number in re.findall(r"\b[\dIVS]+\b", some)}
        assert {str(table) for table in tables} <= named, paper
