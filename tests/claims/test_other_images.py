"""Claims about tests on other images: degraded ones, another data set's, foreign ones."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from orchestrator.claims import running
from orchestrator.claims.design import claim_plan
from orchestrator.claims.file import read_claim
from orchestrator.claims.hypothesis import Arm, Claim, is_share_metric
from orchestrator.claims.other_images import DETECTION, OtherImages, run_other_test
from orchestrator.claims.running import Test, run_claim
from orchestrator.data.augmentations import Degradation
from orchestrator.data.catalog import open_dataset
from orchestrator.data.splits import class_split, rows_for_testing
from orchestrator.data.store import Row, Store, write_store
from orchestrator.errors import InputError
from orchestrator.execution.inline import InlineRunner
from orchestrator.search.models import find_models
from orchestrator.storage.journal import lock
from orchestrator.storage.opening import open_file
from orchestrator.storage.places import Places
from orchestrator.training.embed import embed_model, evaluate_and_embed
from orchestrator.training.model_file import saved_model
from orchestrator.training.trained_on import Overlap

TINY = "{epochs: 1, embedding_dim: 8, classes_per_batch: 8, images_per_class: 8, class_subset: 20, device: cpu}"
BLUR = f"""\
claim: Blurred images are more uncertain
source: nowhere
kind: superiority
metric: test/diagnostics/uncertainty_held_out
smallest_effect: 0.05
datasets: [glyphs-small]
settings: {TINY}
arms:
  blurred: {{settings: {{method: idml}}, test: {{degradation: blur, degradation_extent: 0.2}}}}
  original: {{settings: {{method: idml}}}}
arm: blurred
than: [original]
seeds: {{first: 3, max: 3}}
"""
METHODS = [*enumerate(("pfml", "proxy_anchor", "contrastive", "triplet"))]


def png(image: np.ndarray[Any, Any]) -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, "png")
    return content.getvalue()


MADE: dict[str, Any] = {"seed": 0, "settings": {}}
FOREIGN = "test: {out_of_distribution: other}"


def written(folder: Path, text: str = BLUR, name: str = "blur") -> Claim:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return read_claim(path)


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> tuple[Claim, Places, Test]:
    """The claim to its end, by real trainings."""
    folder = tmp_path_factory.mktemp("claim")
    (folder / "data").mkdir()
    (folder / "data" / "glyphs-small").symlink_to(data_folder / "glyphs-small")
    claim = written(folder)
    return claim, Places(folder), run_claim(claim, storage=folder, tuner=InlineRunner)


@pytest.fixture(scope="module")
def other(tested: tuple[Claim, Places, Test]) -> Store:
    """A data set of 24 classes. Of the 12 that are tested the first four have the pictures of classes that were trained
    on, which drawn ones do not tell; the next four have the names of such; the last four have neither."""
    claim, places, _ = tested
    store = open_dataset("glyphs-small", places.data)
    trained = [store.class_names.index(name) for name in saved_model(model_of(claim, places))["trained_on"]["classes"]]
    unseen = [label for label in range(len(store.class_names)) if label not in trained]
    pictures = [*unseen[-12:], *trained[:4], *unseen[-8:]]
    names = [f"new {number}" for number in range(24)]
    names[16:20] = [store.class_names[label] for label in trained[4:8]]
    rows = (
        Row(store.image_bytes(int(row)), label, "train" if label < 12 else "test")
        for label, source in enumerate(pictures)
        for row in np.flatnonzero(store.labels == source)[:6]
    )
    write_store(places.data / "other", name="other", class_names=names, rows=rows, channels=1, seed=0, settings={})
    return open_dataset("other", places.data)


def model_of(claim: Claim, places: Places, seed: int = 3) -> Path:
    return find_models(f"claim-{claim.key}-glyphs-small-blurred-seed{seed}", places)[0]


def test_each_model_is_trained_once_and_tested_on_both(tested: tuple[Claim, Places, Test]) -> None:
    claim, places, result = tested
    (one,) = result.verdict.datasets
    assert result.verdict.trainings == len(list((places.storage / "searches").iterdir())) == one.pairs == 3
    store = open_dataset("glyphs-small", places.data)
    rows = class_split(store, validation_share=0, seed=0, class_subset=20).test  # not all that `evaluate` would take
    blur = Degradation("blur", 1.0, 0.2)
    for place, seed in enumerate((3, 4, 5)):
        model = model_of(claim, places, seed)
        values = {
            "blurred": evaluate_and_embed(model, store, rows, "cpu", degradation=blur)[0].metrics,
            "original": evaluate_and_embed(model, store, rows, "cpu")[0].metrics,
        }
        for arm, metrics in values.items():
            assert one.values[arm][place] == pytest.approx(metrics["diagnostics/uncertainty_held_out"], rel=1e-6)
    assert one.values["blurred"] != one.values["original"]
    assert (one.classes, one.queries) == (20, len(rows))
    assert one.effects[0].effect == pytest.approx(np.mean(one.values["blurred"]) - np.mean(one.values["original"]))


def test_a_test_that_was_run_is_not_run_again(
    tested: tuple[Claim, Places, Test], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, places, result = tested
    monkeypatch.setattr(running, "run_other_test", lambda *_: pytest.fail("it was run"))
    again = run_claim(claim, storage=places.storage, tuner=InlineRunner).verdict
    assert again.datasets == result.verdict.datasets


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b'{"metrics": {}}'),
        *(b'{"metrics": {"a": %s}, "classes": 1, "queries": 1, "digests": {}}' % value for value in (b'"x"', b"NaN")),
        b'{"metrics": 1, "classes": 1, "queries": 1, "digests": {}}',
    ],
)
def test_a_record_that_is_not_whole_is_made_again(
    content: bytes, tested: tuple[Claim, Places, Test], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, places, result = tested
    records = sorted(places.claim(claim.key).glob("tested-*.json"))
    assert len(records) == 3
    before = records[1].read_bytes()
    records[1].write_bytes(content)
    again = run_claim(claim, storage=places.storage, tuner=InlineRunner).verdict
    assert again.datasets == result.verdict.datasets and json.loads(records[1].read_bytes()) == json.loads(before)


def test_another_data_set_is_tested_on_the_classes_that_are_new(
    tested: tuple[Claim, Places, Test], other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of which neither a picture nor the name was trained on: 4 of 12."""
    claim, places, _ = tested
    model, rows = model_of(claim, places), rows_for_testing(other)
    assert len(set(other.labels[rows].tolist())) == 12

    def seen(models: object, store: Store, rows: np.ndarray[Any, Any]) -> Overlap:
        return Overlap([], rows[store.labels[rows] >= 16], 24, 12)

    monkeypatch.setattr("orchestrator.training.trained_on.overlap", seen)
    result = run_other_test(OtherImages(dataset="other"), model, "glyphs-small", places)
    expected, _ = evaluate_and_embed(model, other, rows[other.labels[rows] >= 20], "cpu")
    assert (result.metrics, result.classes, result.queries) == (expected.metrics, 4, 24)
    both = run_other_test(
        OtherImages(dataset={"glyphs-small": "other"}, degradation="blur"), model, "glyphs-small", places
    )
    assert both.queries == 24 and both.metrics != result.metrics


def test_if_all_of_it_was_trained_on_nothing_is_measured(
    tested: tuple[Claim, Places, Test], other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, places, _ = tested
    model = model_of(claim, places)
    content = saved_model(model) | {"trained_on": {"classes": other.class_names, "pictures": [], "dataset": "-"}}
    monkeypatch.setattr("orchestrator.training.model_file.saved_model", lambda _: content)
    with pytest.raises(InputError, match="no image of the test classes that are new to the model has another"):
        run_other_test(OtherImages(dataset="other"), model, "glyphs-small", places)


@pytest.mark.slow
def test_foreign_images_are_detected_by_the_uncertainty(tested: tuple[Claim, Places, Test]) -> None:
    claim, places, _ = tested
    model, inside, outside = (
        model_of(claim, places),
        *(open_dataset(n, places.data) for n in ("glyphs-small", "glyphs")),
    )
    result = run_other_test(OtherImages(out_of_distribution="glyphs"), model, "glyphs-small", places)
    levels = [
        torch.linalg.vector_norm(embed_model(model, s, rows_for_testing(s), "cpu")[1].outputs["uncertainty"], dim=1)
        for s in (inside, outside)
    ]
    above = (levels[1][:, None] > levels[0][None, :]).double().mean().item()
    assert result.metrics == {"out_of_distribution/auroc": pytest.approx(above, abs=1e-4)}
    assert (result.classes, result.queries) == (60, len(rows_for_testing(inside)))
    assert is_share_metric(DETECTION)


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        (f"{{settings: {{method: triplet}}, {FOREIGN}}}", "triplet learns no uncertainty with these settings"),
        (f"{{settings: {{method: idml, random_uncertainty: true}}, {FOREIGN}}}", "idml learns no uncertainty with"),
        (
            "{settings: {method: idml}, test: {out_of_distribution: colours}}",
            "colours has images of 3 channels, and gly",
        ),
        ("{settings: {method: idml}, test: {out_of_distribution: cifar10}}", "is not prepared"),
    ],
)
def test_what_cannot_be_tested_is_refused_before_anything_is_trained(
    arm: str, said: str, tmp_path: Path, tested: tuple[Claim, Places, Test], other: Store
) -> None:
    (tmp_path / "data").symlink_to(tested[1].data)
    if not (tmp_path / "data" / "colours").exists():
        rows = (Row(png(np.full((8, 8, 3), label, np.uint8)), label, "train") for label in range(8) for _ in range(2))
        names = list("abcdefgh")
        write_store(tmp_path / "data" / "colours", name="colours", class_names=names, rows=rows, channels=3, **MADE)
    text = BLUR.replace("metric: test/diagnostics/uncertainty_held_out", f"metric: {DETECTION}")
    text = text.replace("kind: superiority", "kind: difference_of_differences\nchanged: {label_noise: 0.2}")
    text = text.replace("test: {degradation: blur, degradation_extent: 0.2}", FOREIGN)
    text = text.replace("original: {settings: {method: idml}}", f"original: {arm}")
    with pytest.raises(InputError, match=f"arms.original.test: .*{said}"):
        run_claim(written(tmp_path, text), storage=tmp_path, tuner=InlineRunner)
    assert not (tmp_path / "searches").exists() and not (tmp_path / "claims").exists()


def test_a_model_that_cannot_be_tested_is_the_reason_of_no_verdict(
    tested: tuple[Claim, Places, Test], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, places, result = tested
    (record,) = places.claim(claim.key).glob("tested-*seed4*.json")
    content = record.read_bytes()
    record.unlink()

    def fail(*_: object) -> None:
        raise InputError("the embeddings are not finite")

    monkeypatch.setattr(running, "run_other_test", fail)
    (one,) = run_claim(claim, storage=places.storage, tuner=InlineRunner).verdict.datasets
    assert one.verdict == "undecided" and one.pairs == 1
    assert one.reason == f"claim-{claim.key}-glyphs-small-blurred-seed4: the embeddings are not finite"
    record.write_bytes(content)
    monkeypatch.undo()
    assert run_claim(claim, storage=places.storage, tuner=InlineRunner).verdict.datasets == result.verdict.datasets


def test_a_test_on_another_preparation_is_not_mixed_with_these(tested: tuple[Claim, Places, Test]) -> None:
    claim, places, _ = tested
    (record,) = places.claim(claim.key).glob("tested-*seed5*.json")
    content = json.loads(record.read_bytes())
    assert content["digests"].keys() == {"glyphs-small"}
    record.write_text(json.dumps(content | {"digests": {"glyphs-small": "0"}}))
    with pytest.raises(InputError, match=rf"{record.name}: was made on another glyphs-small; prepare that one"):
        run_claim(claim, storage=places.storage, tuner=InlineRunner)
    record.write_text(json.dumps(content))


def test_the_smallest_of_the_sets_counts(tested: tuple[Claim, Places, Test], other: Store) -> None:
    """The deviation of a recall is at least one query, of the arm that has the fewest."""
    claim, places, _ = tested
    arms = {"blurred": Arm(settings={"method": "idml"})}  # its trainings are there
    arms["elsewhere"] = Arm(settings={"method": "idml"}, test=OtherImages(dataset="other"))
    changes: dict[str, Any] = {"metric": "test/map_at_r", "arms": arms, "than": ["elsewhere"]}
    claim = replace(claim, hypothesis=claim.hypothesis.model_copy(update=changes))
    (one,) = run_claim(claim, storage=places.storage, tuner=InlineRunner).verdict.datasets
    assert (one.pairs, one.classes, one.queries) == (3, 8, 48)


def test_two_processes_do_not_test_a_claim_at_once(tested: tuple[Claim, Places, Test]) -> None:
    claim, places, result = tested
    with open_file(places.claim(claim.key) / running.LOCK, "wb") as file:
        assert lock(file)
        with pytest.raises(InputError, match="blur: another process tests this claim; the same command goes on after"):
            run_claim(claim, storage=places.storage, tuner=InlineRunner)
    assert run_claim(claim, storage=places.storage, tuner=InlineRunner).verdict.datasets == result.verdict.datasets


def test_its_plan_counts_each_test_once(tmp_path: Path) -> None:
    assert claim_plan(written(tmp_path)).max_tests_on_other_images == 3
    ranks = BLUR.replace("kind: superiority", "kind: rank_agreement\nsecond_metric: test/map_at_r")
    ranks = ranks.replace("arm: blurred\nthan: [original]\n", "").replace("effect: 0.05", "effect: 0.5")
    arms = "".join(f"  arm{n}: {{settings: {{method: {m}}}, test: {{degradation: blur}}}}\n" for n, m in METHODS)
    ranks = re.sub(r"  blurred:.*\n  original:.*\n", arms, ranks)
    ranks = ranks.replace("test/diagnostics/uncertainty_held_out", "test/recall_at_1")
    assert claim_plan(written(tmp_path, ranks)).max_tests_on_other_images == 12
    with pytest.raises(InputError, match="arms.arm0.test: is of metrics test/NAME, not of val/map_at_r"):
        written(tmp_path, ranks.replace("second_metric: test/", "second_metric: val/"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"{degradation: blur, degradation_extent: 0.2}": "{}"}, "give dataset, degradation or both"),
        ({"degradation: blur, ": ""}, "are of a degradation: name it"),
        ({"blur,": "blurr,"}, "arms.blurred.test.degradation: 'blurr' is unknown"),
        ({"degradation_extent: 0.2": "degradation_extent: 2"}, "degradation_extent: 2: should be at most 1"),
        ({"degradation_extent": "extent"}, "arms.blurred.test.extent: no such key"),
        ({"degradation_extent: 0.2": "dataset: glyphs-small"}, "test.dataset: 'glyphs-small': is the data set itself"),
        ({"degradation_extent: 0.2": "dataset: {glyphs: cifar10}"}, "should name one for each of glyphs-small"),
        ({"degradation_extent: 0.2": "out_of_distribution: glyphs"}, "or else out_of_distribution"),
        (
            {"degradation: blur, degradation_extent: 0.2": "out_of_distribution: glyphs"},
            f"goes with the metric {DETECTION}",
        ),
        (
            {"metric: test/diagnostics/uncertainty_held_out": f"metric: {DETECTION}"},
            f"this key is required for {DETECTION}",
        ),
        ({"metric: test/diagnostics/": "metric: diagnostics/"}, "is of metrics test/NAME, not of diagnostics/"),
        ({"seeds:": "protocol: mlrc\nseeds:"}, "tests one model of a training; protocol mlrc"),
        ({"{epochs: 1,": "{protocol: mlrc, epochs: 1,"}, "tests one model of a training; protocol mlrc"),
        ({"{degradation: blur, degradation_extent: 0.2}": ""}, "arms.blurred.test: is empty: name the images"),
        ({"{degradation: blur, degradation_extent: 0.2}": "3"}, "arms.blurred.test: 3"),
        ({"degradation_extent: 0.2": "dataset: [a]"}, "arms.blurred.test.dataset"),
        ({"degradation_extent: 0.2": "dataset: glyphs"}, "is on other classes than that of original: their difference"),
        ({"degradation_extent: 0.2": "degradation_probability: 0"}, "should be above 0"),
    ],
)
def test_what_a_test_may_not_say(changes: dict[str, str], said: str, tmp_path: Path) -> None:
    text = BLUR
    for right, wrong in changes.items():
        assert right in text
        text = text.replace(right, wrong, 1)
    with pytest.raises(InputError) as error:
        written(tmp_path, text)
    assert any(said in problem and "line " in problem for problem in error.value.problems), error.value.problems


def test_a_data_set_that_is_not_there_is_told_before_anything_is_trained(tmp_path: Path, data_folder: Path) -> None:
    (tmp_path / "data").symlink_to(data_folder)
    text = BLUR.replace("degradation: blur, degradation_extent: 0.2", "dataset: cifar10").replace(
        "diagnostics/uncertainty_held_out", "map_at_r"
    )
    text = text.replace("kind: superiority", "kind: difference_of_differences\nchanged: {label_noise: 0.2}")
    with pytest.raises(InputError, match="cifar10"):
        run_claim(written(tmp_path, text), storage=tmp_path, tuner=InlineRunner)
    assert not (tmp_path / "searches").exists() and not (tmp_path / "claims").exists()
    path = tmp_path / "other.yaml"
    path.write_text(text.replace("cifar10", "cifar1"))
    with pytest.raises(InputError, match=r"line 10: arms\.blurred\.test: unknown data set 'cifar1'"):
        read_claim(path, tmp_path)
