"""Chance levels against simulation, the sets that numbers are of, and the rule of who learned nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recorded import begin

from methods.baselines import ProxyAnchor
from orchestrator.config.resolve import resolve_search
from orchestrator.config.shaping import untrained_key
from orchestrator.config.training import resolve_experiment
from orchestrator.data.measured import Measured, sizes
from orchestrator.data.splits import class_folds, class_split
from orchestrator.data.store import Store
from orchestrator.evaluation.chance import chance_levels
from orchestrator.evaluation.metrics import evaluate_embeddings
from orchestrator.execution.protocol import Failed, Validated
from orchestrator.execution.worker import results
from orchestrator.report import learning
from orchestrator.report.selection import selection_warning, unlike_text
from orchestrator.search.conductor import Conductor
from orchestrator.storage.events import parse
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.training import untrained
from orchestrator.training.loop import fit
from orchestrator.training.splits import data_splits
from orchestrator.training.untrained import find_score, measure


@pytest.mark.parametrize("apart", [False, True])
def test_chance_is_the_mean_over_random_rankings(apart: bool) -> None:
    """Embeddings that know nothing of labels rank at random: the mean of 400 such evaluations."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(7), [2, 3, 3, 6, 1, 10, 5])
    gallery = np.repeat(np.arange(6), [1, 4, 2, 6, 3, 9]) if apart else None
    recall_at = (1, 2, 8, 100)
    found: dict[str, list[float]] = {}
    for _ in range(400):
        among: dict[str, Any] = (
            {} if gallery is None else {"gallery": rng.standard_normal((len(gallery), 8)), "gallery_labels": gallery}
        )
        rows = rng.standard_normal((len(labels), 8))
        metrics = evaluate_embeddings(rows, labels, recall_at=recall_at, clustering=False, **among)
        for name, value in metrics.items():
            found.setdefault(name, []).append(value)
    if gallery is None:
        relevant, size = np.bincount(labels)[labels] - 1, len(labels) - 1
    else:
        relevant, size = np.bincount(gallery, minlength=7)[labels], len(gallery)
    levels = chance_levels(relevant, size, recall_at)
    assert levels.keys() == found.keys() - {"queries_left_out"}
    for name, level in levels.items():
        error = np.std(found[name]) / np.sqrt(400)
        assert np.mean(found[name]) == pytest.approx(level, abs=4 * error + 1e-12), name


def test_chance_of_one_query_by_hand() -> None:
    """One right item among three: it is first, second or third, equally often."""
    found = chance_levels([1], 3, (1, 2, 5))
    assert [found[name] for name in ("recall_at_1", "r_precision", "map_at_r")] == pytest.approx([1 / 3] * 3)
    assert found["recall_at_2"] == pytest.approx(2 / 3) and found["recall_at_5"] == 1
    assert found["mean_average_precision_at_1000"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    for relevant, size in (([0], 3), ([4], 3)):
        with pytest.raises(ValueError, match="relevant: need numbers up to the gallery's 3, one above 0"):
            chance_levels(relevant, size)


def test_what_numbers_are_of(glyphs: Store) -> None:
    split = class_split(glyphs, validation_share=0.2, seed=0)
    found = sizes(glyphs, [split])
    held_out, test = Measured.read(found["validation"]), Measured.read(found["test"])
    assert held_out is not None and test is not None
    assert (held_out.classes, held_out.images, held_out.queries) == (12, 384, 384)
    assert held_out.one_query == 1 / 384 and found["training_classes"] == 60
    assert found["training_images"] == 48 * 32
    assert held_out.chance["recall_at_1"] == pytest.approx(31 / 383)
    assert test.chance["recall_at_1"] == pytest.approx(31 / 1919)
    told = unlike_text(held_out, test)
    assert told.startswith("Held-out and test values are not of equal difficulty: 12 classes with 384 images (chance: ")
    assert unlike_text(held_out, held_out) == ""
    folds = Measured.read(sizes(glyphs, class_folds(glyphs))["validation"])
    assert folds is not None and (folds.folds, folds.classes) == (4, 60)
    assert folds.chance["recall_at_1"] == pytest.approx(31 / 479)
    assert Measured.read({"classes": 3, "unknown": 1}) is None and Measured.read(None) is None


CONVENTIONAL = {"protocol": "conventional", "validation_share": 0.3}


@pytest.mark.parametrize(
    "classes, training, settings, told",
    [
        (2, 6, {}, "2 classes with 20 images, fewer than 10 classes: trials may differ by chance alone; "
         "better: --set validation_share=0.5 holds out 3 (still few: the data set has no more)"),
        (4, 12, {}, "--set protocol=mlrc holds out all 12 training classes, in 4 folds, or --set validation_share=0.5"),
        (2, 4, {"validation_share": 0.5}, "has no more classes to hold out"),
        (8, 8, {"protocol": "mlrc"}, "the data set has no more classes to hold out"),
    ],
)  # fmt: skip
def test_a_selection_on_almost_nothing_is_warned_of(
    classes: int, training: int, settings: dict[str, Any], told: str
) -> None:
    held_out = Measured(classes, 10 * classes, 10 * classes, {"map_at_r": 0.1}, 1, 0.1 / classes)
    assert told in (selection_warning(held_out, CONVENTIONAL | settings, training) or "")


def test_a_selection_on_enough_is_not() -> None:
    enough = Measured(10, 100, 100, {}, 1, 0.01)
    assert selection_warning(enough, CONVENTIONAL, 40) is None
    few = selection_warning(replace(enough, queries=99), CONVENTIONAL, 40) or ""
    assert "fewer than 100 queries" in few
    images = Measured(2, 500, 500, {}, 1, 0.002)
    assert selection_warning(images, {"protocol": "classification"}, 2) is None
    assert selection_warning(replace(enough, classes=2), CONVENTIONAL | {"selection": "test"}, 40) is None


# Who learned nothing


HELD_OUT = Measured(20, 1000, 1000, {"map_at_r": 0.02, "recall_at_1": 0.05}, 1, 0.001)
SETTINGS = {"method": "pfml", "seed": 0}


def searched(
    value: float,
    losses: tuple[float, float] = (3.0, 1.0),
    *,
    measured: bool = True,
    old: bool = False,
    untrained: float = 0.1,
) -> Any:
    """A search of one trial with this MAP@R; its untrained network has 0.10, between 0.08 and 0.12."""
    ledger = Ledger(name="s", metric="val/map_at_r", state="done", tags={"dataset.digest": "d"})
    if not old:
        ledger.sizes = {"validation": HELD_OUT.plain, "test": None, "training_classes": 100}
    trial = TrialRecord("0000", 0, "trial", {}, 0, settings=SETTINGS)
    ledger.trials["0000"] = trial
    for number, loss in enumerate(losses, start=1):
        metrics: dict[str, Any] = {"val/map_at_r": value, "train/loss": loss, "epoch": number}
        event = {"event": "validation", "trial_id": "0000", "validation": number, "metrics": metrics, "seconds": 1.0}
        ledger.apply(parse({**event, "time": 0}))
    ledger.apply(parse({"event": "trial_ended", "trial_id": "0000", "state": "done", "reason": None, "time": 0}))
    if measured:
        found = {"split": "validation", "metrics": {"map_at_r": untrained}}
        found |= {"intervals": {"map_at_r": [untrained - 0.02, min(1.0, untrained + 0.02)]}}
        found |= {"of": HELD_OUT.plain, "key": untrained_key(SETTINGS, "d")}
        ledger.apply(parse({"event": "result", "trial_id": "0000", "metrics": {}, "untrained": found, "time": 0}))
    return ledger, learning.judge(ledger, ledger.trials["0000"])


@pytest.mark.parametrize(
    "value, measured, old, verdict",
    [
        (0.3, True, False, "learned"),
        (0.11, True, False, "unsure"),  # inside of the untrained network's interval
        (0.1005, True, False, "did not learn"),  # above it by less than one query
        (0.05, True, False, "did not learn"),
        (0.023, True, False, "did not learn"),
        (0.023, False, False, "did not learn"),  # chance alone is known
        (0.05, False, False, "unknown"),
        (0.023, False, True, "unknown"),  # a record of before
    ],
)
def test_who_did_not_learn(value: float, measured: bool, old: bool, verdict: str) -> None:
    ledger, found = searched(value, measured=measured, old=old)
    assert found.verdict == verdict
    assert bool(learning.verdict_line(ledger)) == (verdict == "did not learn")


@pytest.mark.parametrize(("value", "verdict"), [(1.0, "unsure"), (0.9995, "unsure"), (0.9, "did not learn")])
def test_a_set_that_the_untrained_network_masters_cannot_tell(value: float, verdict: str) -> None:
    ledger, found = searched(value, untrained=1.0)
    assert found.verdict == verdict
    assert bool(learning.verdict_line(ledger)) == (verdict == "did not learn")


def test_a_diverged_search_says_so() -> None:
    ledger, found = searched(0.023, (3.1, 6e11))
    assert found.bad and found.diverged == "its training loss grew from 3.1 to 6e+11"
    assert learning.verdict_line(ledger) == (
        "The search did not learn: its best, trial 0000, is at map_at_r 0.0230, chance 0.0200 (a random ranking's "
        "standard error: 0.0044); its training loss grew from 3.1 to 6e+11."
    )
    assert not searched(0.3, (0.01, 0.5))[1].diverged  # a memory that fills
    late, found = searched(0.3, (3.1, 6e11))  # its best validation came before
    assert not found.bad and any("1 training diverged (0000)" in line for line in learning.warnings_of(late))


# The untrained network


def test_the_untrained_score_is_that_of_the_network_that_a_training_begins_with(glyphs: Store) -> None:
    """A training that changes nothing (learning rate 1e-30) ends where it began; measuring changes no training."""
    settings = {"method": "proxy_anchor", "dataset": "glyphs-small", "lr": 1e-30, "embedding_dim": 8}
    settings |= {"class_subset": 12, "classes_per_batch": 2, "images_per_class": 2, "validate_every": "1 steps"}
    experiment = resolve_experiment(settings, "test")
    splits = data_splits(experiment.training, glyphs)
    (last,) = fit(experiment, glyphs, splits[0], stop_after=1)
    found = measure(experiment, glyphs, splits)
    assert found is not None and found["split"] == "validation" and found["of"]["classes"] == 4
    assert found["metrics"]["map_at_r"] == pytest.approx(last.metrics["val/map_at_r"], abs=0.02)
    assert found["intervals"] == {}  # four classes are too few
    (again,) = fit(experiment, glyphs, splits[0], stop_after=1)
    assert again.metrics == last.metrics


def test_a_score_that_is_kept_is_read_or_measured_again(tmp_path: Path) -> None:
    found = {"split": "validation", "metrics": {"map_at_r": 0.1}, "intervals": {}, "of": HELD_OUT.plain}
    untrained.save_score(tmp_path, "a", found)
    assert find_score(tmp_path, "a") == found and find_score(tmp_path, "b") is None
    for damage in ("", "[]", '{"split": "validation", "metrics": {}}', '{"split": "validation", "metrics": 3}'):
        (tmp_path / untrained.FOLDER / "a.json").write_text(damage)
        assert find_score(tmp_path, "a") is None
    for part in ({"metrics": {"map_at_r": True}}, {"of": HELD_OUT.plain | {"classes": True}}):
        untrained.save_score(tmp_path, "a", found | part)  # which no journal takes
        assert find_score(tmp_path, "a") is None


def test_what_shapes_it_names_it() -> None:
    settings = {"backbone": "resnet18", "seed": 0, "lr": 0.1}
    key = untrained_key(settings, "digest")
    assert untrained_key(settings | {"lr": 0.2}, "digest") == key
    assert len({key, untrained_key(settings | {"seed": 1}, "digest"), untrained_key(settings, "other")}) == 3


def driver(folder: Path, **space: list[Any]) -> Conductor:
    """Of a search of this grid, two trials at a time."""
    raw = {"method": "proxy_anchor", "settings": {"device": "cpu"}, "space": space, "algorithm": "grid"}
    search = resolve_search({**raw, "scheduler": {"name": "none"}}, name="s", source="test.yaml")
    journal = Journal(folder / "journal.jsonl")
    first = begin(journal, search, tags={"dataset.digest": "d"})
    return Conductor(search, folder, data=folder, journal=journal, events=[first], slots=2)


def test_the_first_trial_that_can_measures_once_for_all_searches(tmp_path: Path) -> None:
    """One of two at a time; another once it has failed; none of a later search, which reads it from the storage."""
    here = driver(tmp_path / "searches" / "a", lr=[1e-4, 1e-3, 1e-2, 1e-1])
    first, second = here.next(), here.next()
    assert first is not None and second is not None and (first.untrained, second.untrained) == (True, False)
    here.report(Failed("0000", "killed"))
    third = here.next()
    assert third is not None and third.untrained
    found = {"split": "validation", "metrics": {"map_at_r": 0.1}, "intervals": {}, "of": HELD_OUT.plain}
    metrics = {"val/map_at_r": 0.05, "train/loss": 1.0, "epoch": 1.0}
    here.report(Validated("0002", 1, metrics, 1.0, finished=True, untrained=found))
    assert learning.judge(here.ledger, here.ledger.trials["0002"]).verdict == "did not learn"
    fourth = here.next()
    assert fourth is not None and not fourth.untrained
    here.journal.close()
    events = Journal.read(tmp_path / "searches" / "a" / "journal.jsonl")
    assert [event["metrics"] for event in events if "untrained" in event] == [{"untrained/val_map_at_r": 0.1}]
    assert Ledger.of(events).untrained == here.ledger.untrained  # a resumed search knows it

    later = driver(tmp_path / "searches" / "b", embedding_dim=[128, 512])
    works = [later.next(), later.next()]
    assert sorted(work.untrained for work in works if work is not None) == [False, True]  # another width is another
    assert len(later.ledger.untrained) == 1
    later.journal.close()


def test_what_the_first_trial_measured_is_kept_though_it_fails_in_its_first_step(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(ProxyAnchor, "step", step)
    here = driver(tmp_path / "searches" / "a", lr=[1e-4, 1e-3])
    first, second = here.next(), here.next()
    assert first is not None and second is not None and (first.untrained, second.untrained) == (True, False)
    settings = {"method": "proxy_anchor", "dataset": "glyphs-small", "embedding_dim": 8, "class_subset": 12}
    settings |= {"classes_per_batch": 2, "images_per_class": 2, "device": "cpu"}
    experiment = resolve_experiment(settings, "trial")
    work = replace(first, experiment=experiment, data=str(data_folder), folder=str(tmp_path / "t"))
    stopped = [here.report(result) for result in results(work)]
    trial = here.ledger.trials["0000"]
    assert stopped == [False, True] and (trial.state, trial.validations) == ("failed", 0)
    here.journal.close()
    assert len(here.ledger.untrained) == 1 == len(list((tmp_path / untrained.FOLDER).iterdir()))
    score = here.ledger.untrained[untrained_key(here.ledger.trials["0001"].settings, "d")]
    assert 0 < score["metrics"]["map_at_r"] < 1, "the trial beside it is held against it"
