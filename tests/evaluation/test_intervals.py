"""Intervals of measured means: what they cover, by simulation; what records of them are read as."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from orchestrator.evaluation import intervals
from orchestrator.evaluation.claims import FEWEST_CLASSES, recorded_claim, too_few
from orchestrator.evaluation.intervals import (
    class_intervals,
    interval_metrics,
    mean_interval,
    of_auroc,
    of_class_means,
    of_class_tables,
    over_queries,
)
from orchestrator.evaluation.metrics import Evaluation, auroc, evaluate_queries
from orchestrator.evaluation.verdicts import over_classes as mean_over_classes
from orchestrator.training.folds import mean_evaluation


def made(values: np.ndarray, labels: np.ndarray) -> Evaluation:
    """An evaluation of one metric with these values."""
    known = {"query": np.arange(len(labels)), "label": labels, "same_class": labels * 0 + 1, "nearest_label": labels}
    table = pa.table(known | {"recall_at_1": pa.array(values.astype(np.float64), from_pandas=True)})
    return Evaluation({"recall_at_1": float(np.nanmean(values))}, table)


def drawn(seed: int, classes: int, images: int) -> Evaluation:
    """Classes whose recall is drawn from Beta(2, 2), of mean 0.5, and queries of each."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    return made(rng.random(len(labels)) < rng.beta(2, 2, classes)[labels], labels)


@pytest.mark.parametrize("classes", [6, 25])
def test_the_interval_over_classes_covers_new_classes_and_that_over_queries_does_not(classes: int) -> None:
    """200 tests drawn with class effects: 95% must hold the mean of all classes there could be, give or take what 200
    draws may be off (three standard errors: 4.6 points)."""
    held = {"classes": 0, "queries": 0}
    for seed in range(200):
        evaluation = drawn(seed, classes, 25)
        ends = {"classes": class_intervals(evaluation), "queries": over_queries(evaluation, resamples=300)}
        for over, (low, high) in ((over, found["recall_at_1"]) for over, found in ends.items()):
            held[over] += low <= 0.5 <= high
    assert 0.95 - 0.046 <= held["classes"] / 200 <= 0.95 + 0.046
    assert held["queries"] / 200 < 0.7


def test_without_class_effects_both_say_the_same() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(200), 10)
    evaluation = made(rng.random(2000) < 0.3, labels)
    (one,), (other,) = (list(over(evaluation).values()) for over in (class_intervals, over_queries))
    assert one == pytest.approx(other, abs=0.004)


def test_equal_classes_have_student_s_interval() -> None:
    """Of classes of one size it is mean -+ t sd / sqrt(C); near 0 or 1 the side to the middle is the longer one."""
    means = np.random.default_rng(4).normal(0.5, 0.1, 12)
    found = mean_over_classes(means, np.full(12, 7.0))
    between = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert found is not None and found.ends() == pytest.approx((between.low, between.high))
    ((low, high),) = of_class_means(means[:, None], np.full(12, 7.0))
    assert (low, high) == pytest.approx((between.low, between.high), abs=0.02 * (between.high - between.low))
    near = 1 - 0.04 * np.random.default_rng(4).random(12)
    ((low, high),) = of_class_means(near[:, None], np.full(12, 7.0))
    assert near.mean() - low > 1.1 * (high - near.mean()) > 0 and high < 1


@pytest.mark.parametrize("classes", [6, 18, 60])
def test_sizes_that_go_with_difficulty_are_covered(classes: int) -> None:
    """Lognormal sizes, the large classes the hard ones: the bootstrap over classes covers 81 to 86%."""
    rng = np.random.default_rng(classes)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        z = rng.standard_normal(count)
        sizes = np.maximum(2, np.round(20 * np.exp(z)))
        odds = 0.3 - 0.7 * z + np.sqrt(0.51) * rng.standard_normal(count)
        return rng.binomial(sizes.astype(int), 1 / (1 + np.exp(-odds))) / sizes, sizes

    values, sizes = draw(400_000)
    truth = float((values * sizes).sum() / sizes.sum())
    held = plain = 0
    for _ in range(400):
        values, sizes = draw(classes)
        ((low, high),) = of_class_means(values[:, None], sizes)
        held += low <= truth <= high
        times = rng.multinomial(classes, np.full(classes, 1 / classes), 200)
        low, high = np.quantile(times @ (values * sizes) / (times @ sizes), [0.025, 0.975])
        plain += low <= truth <= high
    assert held / 400 >= 0.93 and plain / 400 < 0.9


def test_classes_weigh_by_their_queries() -> None:
    """A mean over queries stays one: resampled classes bring all of theirs."""
    labels = np.repeat(np.arange(6), [1, 1, 1, 1, 1, 995])
    evaluation = made((labels < 5).astype(float), labels)
    low, high = class_intervals(evaluation)["recall_at_1"]
    assert low == pytest.approx(0, abs=0.01) and high == 1.0 and evaluation.metrics["recall_at_1"] == 0.005


def test_few_classes_have_none() -> None:
    assert class_intervals(drawn(0, FEWEST_CLASSES - 1, 9)) == {}
    assert list(class_intervals(drawn(0, FEWEST_CLASSES, 9))) == ["recall_at_1"]
    left_out = drawn(0, FEWEST_CLASSES, 9)
    values = left_out.queries["recall_at_1"].to_numpy().copy()
    values[left_out.queries["label"].to_numpy() == 2] = np.nan  # a class without a query that can be evaluated
    assert class_intervals(made(values, left_out.queries["label"].to_numpy())) == {}


def test_bad_options_are_refused() -> None:
    for over in (class_intervals, over_queries):
        with pytest.raises(ValueError, match="confidence: need a number between 0 and 1, got 95"):
            over(drawn(0, 6, 2), confidence=95)
    with pytest.raises(ValueError, match="resamples: need whole numbers from 1, got 0"):
        over_queries(drawn(0, 6, 2), resamples=0)


def test_the_interval_over_queries_is_that_of_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many queries it is the normal one: mean -+ 1.96 standard errors; blocks change nothing."""
    rng = np.random.default_rng(18)
    found = made(rng.random(1500), np.arange(1500) // 5)
    ((low, high),) = over_queries(found).values()
    values = found.queries["recall_at_1"].to_numpy()
    error = values.std() / np.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.3 * error)
    assert over_queries(found, seed=1) != over_queries(found) == {"recall_at_1": (low, high)}
    by_class = class_intervals(found)
    monkeypatch.setattr(intervals, "ENTRIES", 1)
    assert over_queries(found)["recall_at_1"] == pytest.approx((low, high), rel=1e-12)
    assert class_intervals(found)["recall_at_1"] == pytest.approx(by_class["recall_at_1"], rel=1e-12)


def test_the_mean_of_folds_has_the_interval_of_its_own_values() -> None:
    rng = np.random.default_rng(5)
    labels = np.repeat(np.arange(30), 4)
    centres = rng.standard_normal((30, 6))
    found = []
    for _ in range(2):
        rows = (centres[labels] + 0.8 * rng.standard_normal((120, 6))).astype(np.float32)
        found.append(evaluate_queries(rows, np.append(labels[:-1], 99), clustering=False))  # one query is left out
    both = mean_evaluation(found)
    assert both.metrics["map_at_r"] == pytest.approx(np.mean([one.metrics["map_at_r"] for one in found]))
    assert both.queries["map_at_r"].null_count == 1
    assert np.nanmean(both.queries["map_at_r"].to_numpy()) == pytest.approx(both.metrics["map_at_r"])
    low, high = class_intervals(both)["map_at_r"]
    assert low < both.metrics["map_at_r"] < high
    assert interval_metrics(both)["map_at_r_over_classes_low"] == low


def test_the_interval_of_a_validation_comes_from_its_tables(tmp_path: Path) -> None:
    paths, ends = [], []
    for fold in range(2):
        evaluation = drawn(fold, 8 + fold, 5)
        classes = evaluation.classes().to_pylist()
        paths.append(tmp_path / f"{fold}.csv")
        with paths[-1].open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["class", "queries", "recall_at_1"])
            writer.writerows([["name, with a comma", row["queries"], row["recall_at_1"]] for row in classes])
            writer.writerow(["none evaluated", 1, ""])
        ends.append(class_intervals(evaluation)["recall_at_1"])
        assert of_class_tables(paths[-1:], "recall_at_1") == pytest.approx(ends[-1])
    low, high = of_class_tables(paths, "recall_at_1") or (0, 0)
    assert (low, high) == pytest.approx(mean_interval(ends))
    first, second = (b - a for a, b in ends)
    assert high - low == pytest.approx(np.hypot(first, second) / 2)
    assert of_class_tables([tmp_path / "none.csv"], "recall_at_1") is None
    assert of_class_tables(paths, "map_at_r") is None


def test_an_auroc_has_intervals_over_images_and_over_classes() -> None:
    """Levels with class effects: over images it is too narrow."""
    rng = np.random.default_rng(6)
    labels = np.repeat(np.arange(12), 25)
    inside, outside = (shift + rng.normal(0, 1, 12)[labels] + rng.normal(0, 0.5, 300) for shift in (0.0, 0.6))
    value = auroc(inside, outside)
    images, classes = of_auroc(inside, outside), of_auroc(inside, outside, (labels, labels))
    assert images is not None and classes is not None
    assert classes[0] < images[0] < value < images[1] < classes[1]
    assert of_auroc(inside, outside, (labels, labels // 3)) is None
    assert of_auroc(np.zeros(5), np.ones(5)) == (1.0, 1.0)
    assert of_auroc(np.zeros(1), np.ones(1)) == (1.0, 1.0)  # nothing is drawn but the images


def test_the_interval_of_an_auroc_is_that_of_aurocs_of_drawn_images() -> None:
    """Of images drawn with replacement, one draw at a time: the share of pairs in order, a tie being half a pair; half
    the scores tie across the sides."""
    rng = np.random.default_rng(7)
    inside, outside = rng.integers(0, 6, 40) / 10, rng.integers(2, 8, 50) / 10
    won = (inside[:, None] < outside) + (inside[:, None] == outside) / 2
    assert auroc(inside, outside) == pytest.approx(won.mean())
    found = [won[np.ix_(rng.integers(40, size=40), rng.integers(50, size=50))].mean() for _ in range(4000)]
    for confidence, tails in ((0.95, (0.025, 0.975)), (0.8, (0.1, 0.9))):
        ends = of_auroc(inside, outside, confidence=confidence, resamples=4000)
        assert ends == pytest.approx(tuple(np.quantile(found, tails)), abs=0.004)


def test_few_classes_have_wider_percentiles() -> None:
    """The tail of n = 10 at 95%: Phi(-sqrt(10 / 9) * 2.262157), with t of 9 degrees of freedom from a printed table."""
    low, high = intervals._expand(10, 0.95)
    assert low == pytest.approx(stats.norm.cdf(-((10 / 9) ** 0.5) * 2.262157), rel=1e-5)
    assert low == pytest.approx(0.00855, abs=5e-6) and high == 1 - low


def test_records_read_as_what_they_were() -> None:
    """`<metric>_low` of before is over queries, and is told as no more than that."""
    old = {"map_at_r": 0.5, "map_at_r_low": 0.49, "map_at_r_high": 0.51}
    found = recorded_claim(old, "map_at_r", "conventional")
    assert found is not None and (found.over, found.low, found.high) == ("queries", 0.49, 0.51)
    assert found.text("queries") == "95% over queries: 0.4900 to 0.5100; too narrow for classes never seen"
    new = {"map_at_r": 0.5, "map_at_r_over_queries_low": 0.49, "map_at_r_over_queries_high": 0.51}
    none = recorded_claim(new, "map_at_r", "conventional", 4)
    assert none is not None and none.text("") == "no interval: 4 classes, 5 are needed"
    assert too_few(1) == "no interval: 1 class, 5 are needed"
    assert too_few(8) == "no interval: too few classes with queries, 5 are needed"  # of 8, some have one image
    new |= {"map_at_r_over_classes_low": 0.4, "map_at_r_over_classes_high": 0.6}
    found = recorded_claim(new, "map_at_r", "conventional")
    assert found is not None and found.text("50 classes") == "95% over 50 classes: 0.4000 to 0.6000"
    found = recorded_claim(new, "map_at_r", "classification")  # new images of known classes
    assert found is not None and (found.over, found.low, found.why) == ("queries", 0.49, "")
    assert recorded_claim({"map_at_r": 0.5}, "map_at_r", None) is None
