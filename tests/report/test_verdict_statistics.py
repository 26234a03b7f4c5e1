"""From class tables and seeds to an interval and a verdict: by definition, by simulation, and from a search's files."""

import csv
import math
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.made_pages import made, spread
from support.made_searches import MadeSearch
from support.recorded import record

from orchestrator.evaluation.excess import expected_excess
from orchestrator.evaluation.forecasts import Tail, beyond, further_rise
from orchestrator.evaluation.rising import p_rising, upper_tail
from orchestrator.evaluation.verdicts import (
    Estimate,
    crossed_estimate,
    crossed_of,
    over_seeds,
    over_seeds_of,
    p_equal,
    paid,
    summarise,
    two_sided,
)
from orchestrator.report import learning
from orchestrator.report.class_tables import ClassTable, class_table, over_both
from orchestrator.report.comparison import Comparison
from orchestrator.report.findings import Findings
from orchestrator.report.formats import format_of
from orchestrator.report.power import seeds_needed
from orchestrator.report.significance import between_confirmed, differences, how_tested
from orchestrator.search.excess import excess_of
from orchestrator.storage.events import parse
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger

rng = np.random.default_rng


def cells(seed: int, classes: int, seeds: int, of_class: float, of_seed: float, of_cell: float) -> np.ndarray:
    """Differences of two methods, (C, S), that are alike over classes and seeds."""
    draw = rng(seed)
    shift = of_class * draw.standard_normal((classes, 1)) + of_seed * draw.standard_normal((1, seeds))
    return shift + of_cell * draw.standard_normal((classes, seeds))


def test_the_error_is_that_of_the_pigeonhole_bootstrap() -> None:
    """Classes and seeds drawn independently, many times; the closed form differs by the degrees of freedom alone."""
    values, draw = cells(0, 30, 12, 0.05, 0.02, 0.04), rng(1)
    rows = draw.multinomial(30, np.full(30, 1 / 30), 40_000) / 30
    columns = draw.multinomial(12, np.full(12, 1 / 12), 40_000) / 12
    drawn = np.einsum("bc,cs,bs->b", rows, values, columns)
    m = values.mean()
    a, b = values.mean(axis=1) - m, values.mean(axis=0) - m
    rest = values - m - a[:, None] - b
    biased = (a**2).mean() / 30 + (b**2).mean() / 12 + (rest**2).mean() / 360
    assert drawn.var() == pytest.approx(biased, rel=0.03)
    found = crossed_estimate(values, np.full(values.shape, 8.0))
    parts = ((a**2).sum() / 29 / 30, 29), ((b**2).sum() / 11 / 12, 11)
    assert found is not None and found.mean == pytest.approx(m) and found.parts == pytest.approx(np.array(parts))
    assert found.error**2 == pytest.approx(biased, rel=0.1)
    half = math.sqrt(sum(stats.t.ppf(0.975, freedom) ** 2 * part for part, freedom in parts))
    assert found.ends() == pytest.approx((m - half, m + half))
    half = math.sqrt(sum(stats.t.ppf(1 - found.p / 2, freedom) ** 2 * part for part, freedom in parts))
    assert half == pytest.approx(abs(m))


@pytest.mark.parametrize("classes, seeds", [(18, 3), (18, 10), (60, 5), (100, 3)])
def test_methods_that_are_alike_are_rarely_called_different(classes: int, seeds: int) -> None:
    """Alike over the population of classes, with class deviations of 0.05: at 5% no more than 6% (and what 2,000
    draws may be off). A test that holds the classes fixed errs in a sixth of them and more."""
    values = np.array([cells(seed, classes, seeds, 0.05, 0.004, 0.03) for seed in range(2000)])
    counts = np.full((classes, seeds), 20.0)
    assert (two_sided(*crossed_of(values, counts)) < 0.05).mean() <= 0.05 + 0.01
    assert (two_sided(*over_seeds_of(values.mean(axis=1))) < 0.05).mean() > 0.15
    loud = np.array([cells(seed, classes, seeds, 0.03, 0.03, 0.02) for seed in range(4000)])  # seeds vary most
    assert (two_sided(*crossed_of(loud, counts)) < 0.05 / 6).mean() <= 0.05 / 6 + 0.004
    one = crossed_estimate(values[7], counts)
    assert one is not None and one.mean == pytest.approx(values[7].mean())


@pytest.mark.parametrize("queries", [60, 1920])
def test_counts_that_happen_to_be_equal_are_no_certainty(queries: int) -> None:
    """Recalls of two equal arms, each seed a few queries off: the t-test errs where differences do not vary."""
    for seeds in (3, 5):
        wrong = 0
        for seed in range(1500):
            apart = np.round(rng(seed).normal(0, 0.6, seeds)) / queries
            found = over_seeds(apart, 1 / queries)
            assert found is not None and not math.isnan(found.p)
            wrong += found.p < 0.05
        assert wrong / 1500 <= 0.05
    assert over_seeds(np.array([0.01, 0.01]), 1 / queries) is None


# From a search's files -------------------------------------------------------------------------------------------


def keep_table(folder: Path, trial_id: str, means: np.ndarray, counts: np.ndarray) -> float:
    """Write the table that a test keeps; its mean over queries."""
    place = folder / "trials" / trial_id / "insight"
    place.mkdir(parents=True)
    with (place / "classes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "class", "queries", "recall_at_1", "map_at_r"])
        writer.writerows(
            [[i, f"class, {i}", int(n), x, x] for i, (x, n) in enumerate(zip(means.tolist(), counts, strict=True))]
        )
    return float((means * counts).sum() / counts.sum())


def confirmed(folder: Path, apart: np.ndarray, **changes: Any) -> Ledger:
    """A search whose trials 0000 and 0001 differ by `apart` (C, S) on the classes of their tests."""
    classes, seeds = apart.shape
    counts, base = np.arange(classes) % 7 + 3.0, 0.5 + cells(9, classes, seeds, 0.05, 0.01, 0.01)
    tests = {
        source: [
            keep_table(folder, f"final-{source}-seed-{s}", base[:, s] + sign * apart[:, s] / 2, counts)
            for s in range(seeds)
        ]
        for source, sign in (("0000", 1), ("0001", -1))
    }
    ledger = made(folder, spread(3), finals=tests, **changes)
    ledger.folder = folder
    return ledger


def bold_rows(ledger: Ledger) -> list[str]:
    """The trials whose test of MAP@R is bold in the table for a paper."""
    lines = [line for line in format_of("latex").leaderboard(ledger).splitlines() if line.endswith("\\\\")]
    rows = [line.removesuffix("\\\\").split("&") for line in lines]
    return sorted(re.sub(r"[^0-9]", "", row[0]) for row in rows[1:] if "textbf" in row[-2])


def test_the_verdict_of_final_runs_is_over_classes_and_seeds(tmp_path: Path) -> None:
    """The seeds agree on these classes; that other classes would is not known. Both are said."""
    draw = rng(2)
    apart = 0.004 + 0.06 * draw.standard_normal((18, 1)) + 0.001 * draw.standard_normal((18, 4))
    apart += 0.02 - apart.mean()  # trial 0001 leads by held-out classes, 0000 by these
    ledger = confirmed(tmp_path, apart)
    (found,) = between_confirmed(ledger)
    counts = np.repeat((np.arange(18) % 7 + 3.0)[:, None], 4, axis=1)
    expected = crossed_estimate(-apart, counts)
    assert expected is not None and found.crossed is not None
    assert (found.classes, found.seeds) == (18, 4) and found.p == pytest.approx(expected.p)
    assert found.real_on_these and not found.real
    assert found.ends == pytest.approx(expected.ends(1 - 0.05 * 0.7)), "at the level of the first look"
    said = Findings.of(ledger).certainty
    assert (
        "classes and seeds do not tell them apart (paired t-test over 18 classes and 4 seeds; look 1, so that p is"
        in said
    )
    assert "On these 18 classes, over training seeds, they differ: -0.0" in said
    assert bold_rows(ledger) == ["0000", "0001"], "the table for a paper has the page's verdict"
    ledger.folder = None  # of a journal alone: the seeds' verdict, and no more is claimed
    (alone,) = between_confirmed(ledger)
    assert alone.real and alone.crossed is None
    assert bold_rows(ledger) == ["0000"]
    said = Findings.of(ledger).certainty
    assert "over seeds trial 0000 is the better one (paired t-test over 4 seeds on these classes; look 1" in said


def test_seeds_that_come_out_equal_differ_by_a_query() -> None:
    """The interval of a score is wider than over classes alone, as little as one query's weight makes it."""
    means = {str(label): value for label, value in enumerate(np.linspace(0.3, 0.7, 20))}
    few, many = (
        over_both(dict.fromkeys(range(3), ClassTable(means, dict.fromkeys(means, queries)))) for queries in (5, 10**6)
    )
    alone = crossed_estimate(np.tile(np.linspace(0.3, 0.7, 20)[:, None], 3), np.ones((20, 3)))
    assert few is not None and many is not None and alone is not None
    assert few.low < many.low - 1e-3 and few.high > many.high + 1e-3
    assert (many.low, many.high) == pytest.approx(alone.share_ends(), abs=1e-6)


def test_a_table_of_another_evaluation_is_not_used(tmp_path: Path) -> None:
    ledger = confirmed(tmp_path, np.full((6, 3), 0.02) + 0.01 * rng(0).standard_normal((6, 3)))
    run = ledger.finals["final-0000-seed-1"]
    value = run.test["map_at_r"]
    found = class_table(ledger, run, "map_at_r", value)
    assert found is not None and found.mean == pytest.approx(value) and len(found.means) == 6
    assert class_table(ledger, run, "map_at_r", value + 1e-4) is None
    assert class_table(ledger, run, "nmi", value) is None
    path = tmp_path / "trials" / run.trial_id / "insight" / "classes.csv"
    path.write_text(path.read_text().replace("class, 1", "class, 0"))  # two rows of one class
    assert class_table(ledger, run, "map_at_r", value) is None
    assert between_confirmed(ledger)[0].crossed is None


def test_searches_are_compared_over_classes_and_seeds(tmp_path: Path) -> None:
    draw = rng(5)
    alike = 0.05 * draw.standard_normal((18, 1)) + 0.002 * draw.standard_normal((18, 4)) + np.zeros((18, 4))
    for name, apart, real in (("alike", alike - alike.mean() + 0.012, False), ("apart", 0 * alike + 0.2, True)):
        folder = tmp_path / name
        ledger = confirmed(folder, apart + 0.001 * draw.standard_normal((18, 4)))
        ledgers = {}
        for label, source in (("one", "0000"), ("other", "0001")):
            finals = {key: run for key, run in ledger.finals.items() if run.source == source}
            tests = [run.test["map_at_r"] for run in finals.values()]
            best = spread(3).index(max(spread(3), key=lambda p: p["delta"]))
            part = made(folder / label, spread(3), lambda p: p["delta"], finals={f"{best:04d}": tests})
            part.folder = folder / label
            for seed, run in enumerate(finals.values()):
                table = folder / "trials" / run.trial_id
                (folder / label / "trials").mkdir(exist_ok=True)
                table.rename(folder / label / "trials" / f"final-{best:04d}-seed-{seed}")
            ledgers[label] = part
        found = Comparison.of("x", ledgers)
        assert found.differences[0].crossed is not None and found.differences[0].real is real
        assert any("paired t-test over 18 classes and 4 seeds" in line for line in found.verdict)
        assert found.verdict[0].startswith("Best configuration found: one" if real else "Not distinguishable")
        assert found.verdict[-1].startswith("Compared are the configurations")
        assert any("n these 18 classes, over training seeds, they differ" in line for line in found.verdict)
        said = Comparison.of("x", ledgers, margin=0.3 if real else 0.01).verdict[-1]
        assert f"one and other {'are' if real else 'are not known to be'} equal within 0" in said


def searched_again(folder: Path, values: np.ndarray, counts: np.ndarray) -> Ledger:
    """A search whose winner's tests have these means of classes, (C, S)."""
    best = spread(3).index(max(spread(3), key=lambda p: p["delta"]))
    tests = [
        keep_table(folder, f"final-{best:04d}-seed-{seed}", column, counts) for seed, column in enumerate(values.T)
    ]
    ledger = made(folder, spread(3), lambda p: p["delta"], finals={f"{best:04d}": tests})
    ledger.folder = folder
    return ledger


def test_methods_are_compared_over_classes_and_searches(tmp_path: Path) -> None:
    """By hand: the mean over a winner's seeds is one search's value; and the spread over searches counts."""
    draw, counts = rng(4), np.arange(18) % 7 + 3.0
    base = 0.5 + 0.05 * draw.standard_normal((18, 1))
    found = {
        (method, number): base + level + draw.normal(0, 0.02) + 0.002 * draw.standard_normal((18, 5))
        for method, level in (("one", 0.03), ("other", 0.0))
        for number in (1, 2, 3)
    }
    ledgers = {f"{m}-{n}": searched_again(tmp_path / f"{m}{n}", values, counts) for (m, n), values in found.items()}
    comparison = Comparison.of("x", ledgers, searches={f"{m}-{n}": (m, n) for m, n in found})
    apart = np.stack([(found["one", n] - found["other", n]).mean(axis=1) for n in (1, 2, 3)], axis=1)
    expected = crossed_estimate(apart, np.repeat(counts[:, None], 3, axis=1))
    (difference,) = comparison.differences
    assert expected is not None and difference.p == pytest.approx(expected.p)
    assert abs(difference.mean) == pytest.approx(abs(expected.mean))
    assert difference.over == "18 classes and 3 searches" and not difference.real
    assert comparison.verdict[0].startswith("Not distinguishable as methods: one, map_at_r 0.5")
    alone = Comparison.of("x", {name: ledgers[name] for name in ("one-1", "other-1")})  # the configurations differ
    assert alone.differences[0].real


def test_one_search_of_each_method_says_nothing_of_methods() -> None:
    """Methods that are alike; each search finds a configuration that deviates by 0.01, and by 0.03 on a class."""
    draw = rng(6)
    apart = 0.03 * draw.standard_normal((1500, 60, 1, 1)) + 0.014 * draw.standard_normal((1500, 1, 3, 1))
    apart = apart + 0.042 * draw.standard_normal((1500, 60, 3, 1)) + 0.02 * draw.standard_normal((1500, 60, 3, 3))
    counts = np.full((60, 3), 20.0)
    assert (two_sided(*crossed_of(apart.mean(axis=3), counts)) < 0.05).mean() < 0.065
    assert (two_sided(*crossed_of(apart[:, :, 0], counts)) < 0.05).mean() > 0.2


def test_the_mean_of_repeated_tests_is_over_classes_and_seeds(tmp_path: Path) -> None:
    values, counts = 0.5 + cells(3, 18, 4, 0.1, 0.01, 0.02), np.arange(18) % 7 + 3.0
    ledger = searched_again(tmp_path, values, counts)
    both = crossed_estimate(values, np.repeat(counts[:, None], 4, axis=1))
    assert both is not None
    low, high = both.share_ends()
    tested = Findings.of(ledger).tested["map_at_r"]
    assert tested.endswith(f"(95% over 18 classes and 4 seeds: {low:.4f} to {high:.4f})")
    held = 0
    for seed in range(400):
        found = crossed_estimate(0.5 + cells(seed, 18, 4, 0.1, 0.01, 0.02), np.full((18, 4), 8.0))
        assert found is not None
        low, high = found.share_ends()
        held += low <= 0.5 <= high
    assert held / 400 >= 0.93
    ledger.folder = None
    assert "(95% over 4 seeds: " in Findings.of(ledger).tested["map_at_r"]


# The best of several ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes, deviation", [(6, 0.0), (18, 0.0), (18, 0.03), (60, 0.0)])
def test_how_much_too_high_the_best_of_thirty_is(classes: int, deviation: float) -> None:
    """Trials that differ by 0.08 on a class: 0.066, 0.038 and 0.020 too high where they are alike, less where not."""
    draw, true, told = rng(0), [], []
    for _ in range(150):
        own = draw.normal(0.5, deviation, 30)
        of_class = draw.normal(0, 0.1, (classes, 1))
        values = own + of_class + draw.normal(0, 0.08, (classes, 30))
        best = int(values.mean(axis=0).argmax())
        true.append(values[:, best].mean() - own[best] - of_class.mean())
        found = expected_excess(values, np.full(classes, 20.0))
        assert found is not None and (found.trials, found.classes) == (30, classes)
        told.append(found.value)
    assert np.mean(told) == pytest.approx(np.mean(true), abs=0.2 * np.mean(true))
    if not deviation:
        assert np.mean(told) == pytest.approx({6: 0.066, 18: 0.038, 60: 0.020}[classes], abs=0.006)
    assert expected_excess(np.ones((4, 30)), np.ones(4)) is None  # too few classes
    assert expected_excess(np.ones((9, 1)), np.ones(9)) is None


def test_it_is_said_where_the_number_is_read(tmp_path: Path) -> None:
    draw, counts = rng(2), np.arange(18) % 7 + 3.0
    tables = 0.5 + 0.08 * draw.standard_normal((18, 12)) + 0.1 * draw.standard_normal((18, 1))
    values = {f"{n:04d}": keep_table(tmp_path, f"{n:04d}", column, counts) for n, column in enumerate(tables.T)}
    with MadeSearch(tmp_path) as search:
        for value in values.values():
            search.trial([value])
        search.end()
    ledger = search.ledger
    winner = ledger.winner()
    assert winner is not None and winner.best == max(values.values())
    found = excess_of(ledger, winner, lambda trial: tmp_path / "trials" / trial.trial_id)
    order = [int(trial.trial_id) for trial in ledger.ranking()]
    by_hand = expected_excess(tables[:, order], counts.astype(np.float64))
    assert found is not None and by_hand is not None and found.value == pytest.approx(by_hand.value, rel=1e-12)
    assert (found.trials, found.classes) == (12, 18)
    with Journal(tmp_path / "journal.jsonl") as journal:
        record(journal, "result", trial_id=winner.trial_id, metrics={}, excess=found.model_dump())
    ledger = search.ledger
    said = Findings.of(ledger).verdict[0]
    assert f"map_at_r {winner.best:.4f} (about {found.value:.4f} of it from being the best of 12)" in said
    assert learning.numbers_of(ledger).expected_excess == found
    path = tmp_path / "trials" / winner.trial_id / "insight" / "classes.csv"
    path.write_text(path.read_text().replace("0.", "0.1"))  # of another evaluation
    assert excess_of(ledger, winner, lambda trial: tmp_path / "trials" / trial.trial_id) is None


# Looks, equality, data sets, curves ------------------------------------------------------------------------------


def test_looking_again_is_paid_for() -> None:
    """A search whose final runs grow from 5 to 10, 20 and 30 seeds until the difference is real: without the price it
    errs in a seventh of them."""
    draws = rng(3).standard_normal((20_000, 30))
    free, priced = np.zeros(20_000, bool), np.zeros(20_000, bool)
    for look, seeds in enumerate((5, 10, 20, 30), start=1):
        p = two_sided(*over_seeds_of(draws[:, :seeds]))
        free |= p < 0.05
        priced |= np.array([paid(one, look) for one in p.tolist()]) < 0.05
    assert free.mean() > 0.13 and priced.mean() <= 0.053
    assert math.isnan(paid(math.nan, 1)) and paid(0.9, 3) == 1 and paid(0.035, 1) == pytest.approx(0.05)


def test_the_journal_knows_the_looks(tmp_path: Path) -> None:
    ledger = confirmed(tmp_path, np.full((8, 3), 0.03) + 0.01 * rng(1).standard_normal((8, 3)))
    assert ledger.looks == 1
    (once,) = between_confirmed(ledger)
    assert once.look == 1 and once.adjusted == pytest.approx(min(1, once.p / 0.7))
    end: dict[str, Any] = {"event": "search_ended", "state": "done", "time": 1, "best": None, "reason": None}
    ledger.apply(parse({"event": "search_resumed", "time": 1}))
    ledger.apply(parse(end))
    assert ledger.looks == 1  # nothing new was seen
    more = {"event": "trial_started", "trial_id": "final-0000-seed-9", "kind": "final", "params": {}, "time": 1}
    ledger.apply(parse(more | {"source": "0000", "config": {"seed": 9}}))
    ledger.apply(parse({"event": "result", "trial_id": "final-0000-seed-9", "metrics": {"test/map_at_r": 0.5}}))
    ledger.apply(parse(end))
    assert ledger.looks == 2
    (again,) = between_confirmed(ledger)
    assert again.adjusted == pytest.approx(min(1, again.p / 0.28)) and again.p == once.p
    assert how_tested([again]).endswith("; look 2, so that p is taken 3.6 times")


def test_equal_within_a_margin_is_shown_not_assumed() -> None:
    """At a true difference of the margin it is called equal in 5% at most; little data proves nothing."""
    called = {0.0: 0, 0.02: 0}
    for truth in called:
        for seed in range(1000):
            found = over_seeds(truth + 0.01 * rng(seed).standard_normal(10))
            assert found is not None
            called[truth] += p_equal(found, 0.02) < 0.05
    assert called[0.02] <= 65 and called[0.0] > 900
    vague = over_seeds(np.array([-0.05, 0.0, 0.05]))
    assert vague is not None and vague.p > 0.9 and p_equal(vague, 0.02) > 0.2
    one = over_seeds(np.array([0.001, 0.002, 0.004, 0.001]))
    assert one is not None
    expected = stats.ttest_1samp([0.001, 0.002, 0.004, 0.001], 0.005, alternative="less").pvalue
    assert p_equal(one, 0.005) == pytest.approx(expected)


@pytest.mark.parametrize("errors", [(0.0176, 0.0023), (0.0176, 0.01, 0.0023), (0.02, 0.004, 0.01, 0.007, 0.015)])
@pytest.mark.parametrize("tau", [0.0, 0.01, 0.04])
def test_a_summary_over_data_sets_covers(errors: tuple[float, ...], tau: float) -> None:
    """Differences that vary from data set to data set, however unlike their errors are."""
    held = 0
    for seed in range(600):
        draw = rng(seed)
        values = 0.02 + tau * draw.standard_normal(len(errors)) + errors * draw.standard_normal(len(errors))
        found = summarise([Estimate(y, ((e**2, 50.0),)) for y, e in zip(values.tolist(), errors, strict=True)])
        assert found is not None and (found.deviation is None) == (len(errors) < 5)
        low, high = found.estimate.ends()
        held += low <= 0.02 <= high
    assert held / 600 >= 0.93


def test_weights_by_the_errors_would_not_cover() -> None:
    """The planted bug, with Student's t all the same: the most exact of two data sets decides alone."""
    held, errors = 0, np.array([0.0176, 0.0023])
    for seed in range(600):
        draw = rng(seed)
        values = 0.02 + 0.04 * draw.standard_normal(2) + errors * draw.standard_normal(2)
        weights = 1 / errors**2
        mean = (weights * values).sum() / weights.sum()
        held += abs(mean - 0.02) <= stats.t.ppf(0.975, 1) / math.sqrt(weights.sum())
    assert held / 600 < 0.8


def test_a_summary_is_the_mean_by_hand() -> None:
    y, e = [0.05, -0.01, 0.02, 0.08, 0.03], [0.01, 0.012, 0.008, 0.02, 0.01]
    found = summarise([Estimate(a, ((b**2, 9.0),)) for a, b in zip(y, e, strict=True)])
    assert found is not None and found.deviation is not None
    assert found.estimate.mean == pytest.approx(0.034)
    assert found.estimate.error == pytest.approx(statistics.stdev(y) / math.sqrt(5))
    assert found.estimate.p == pytest.approx(stats.ttest_1samp(y, 0).pvalue)
    assert found.deviation == pytest.approx(math.sqrt(statistics.variance(y) - sum(b * b for b in e) / 5))
    alike = summarise([Estimate(0.1, ((0.01**2, 9.0),)), Estimate(0.1, ((0.02**2, 9.0),))])
    assert alike is not None and alike.estimate.error == pytest.approx(math.sqrt(0.01**2 + 0.02**2) / 2)
    assert summarise([Estimate(0.1, ((0.01, 9.0),))]) is None


def test_a_flat_curve_s_scatter_is_no_rise() -> None:
    """A last value above all before it, by more than 1%: 7% of flat curves have it."""
    draws = 0.6 + 0.01 * rng(4).standard_normal((3000, 10))
    gained = draws[:, 8:].max(axis=1) > 1.01 * draws[:, :8].max(axis=1)
    rises = np.array([p_rising(curve) < 0.05 for curve in draws.tolist()])
    assert gained.mean() > 0.06 and (gained & rises).mean() < 0.02
    truly = draws + 0.02 * np.arange(10)
    assert np.mean([p_rising(curve) < 0.05 for curve in truly.tolist()]) > 0.95
    assert p_rising([0.1, 0.2]) == 1 and p_rising([0.3, 0.2, 0.1]) == 1
    curve = [0.1, 0.5, 0.55, 0.57, 0.6, 0.64]
    for t, freedom in ((0.0, 1), (2.5, 1), (1.3, 2), (6.0, 3), (0.7, 8), (2.2, 31)):
        assert upper_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9)
    assert p_rising(curve) == pytest.approx(stats.linregress(range(4), curve[-4:], alternative="greater").pvalue)


def test_no_number_of_seeds_makes_up_for_classes() -> None:
    """Seeds lower their own part of the variance; the power that is promised is kept, by simulation."""
    draw, classes = rng(8), 60
    tables = {"a": {}, "b": {}}  # type: dict[str, dict[int, ClassTable]]
    for of_class, decided in ((0.12, True), (0.04, False)):
        shift, values = of_class * draw.standard_normal((classes, 1)), {"a": {}, "b": {}}  # type: Any, Any
        shift += 0.018 - shift.mean()
        for seed in range(5):
            apart = shift[:, 0] + (seed - 2) * 0.008 + 0.01 * draw.standard_normal(classes)
            for name, sign in (("a", 1), ("b", -1)):
                means = {str(c): 0.5 + sign * apart[c] / 2 for c in range(classes)}
                tables[name][seed] = ClassTable(means, dict.fromkeys(means, 9.0))
                values[name][seed] = tables[name][seed].mean
        (found,) = differences(values, tables)
        needed = seeds_needed(found, 1)
        assert found.crossed is not None and needed is not None and needed.classes_decide is decided
        if decided:
            assert needed.text.startswith("more test classes")
            continue
        assert needed.seeds is not None
        (v_classes, f_classes), (v_seeds, _) = found.crossed.parts
        searches, seeds = 20_000, needed.seeds
        part = v_seeds * 5 / seeds
        parts = [(part * draw.chisquare(seeds - 1, searches) / (seeds - 1), np.float64(seeds - 1))]
        parts += [(v_classes * draw.chisquare(f_classes, searches) / f_classes, np.float64(f_classes))]
        drawn = found.mean + math.sqrt(v_classes + part) * draw.standard_normal(searches)
        assert 0.77 < (two_sided(drawn, parts) < 0.05).mean() < 0.9


# Forecasts


@pytest.mark.parametrize("rate", [0.5, 1.5, 4.0])
def test_a_curve_s_further_rise_is_that_of_its_own_rate(rate: float) -> None:
    """Of a curve without scatter, 1 - e^(-rate t / T): what it gains from T to 2T."""
    curve = [1 - math.exp(-rate * t / 20) for t in range(1, 21)]
    assert further_rise(curve) == pytest.approx(math.exp(-rate) - math.exp(-2 * rate), abs=0.02)
    assert further_rise(curve[::-1]) == further_rise(curve[:3]) == further_rise([0.5] * 9) == 0


def test_what_lies_beyond_an_end_is_a_line_s_or_a_parabola_s() -> None:
    places = [n / 20 for n in range(21)]
    assert beyond(places, [0.3 * x for x in places], 0.5) == pytest.approx(0.15)
    bowl = [-((x - 1.2) ** 2) for x in places]  # 0.04 below its vertex at the end; its line has a slope of 1.4
    assert beyond(places, bowl, 0.5) == pytest.approx((0.7 + 0.04) / 2)
    assert beyond(places, [-x for x in places], 0.5) == 0
    assert beyond([0.0, 1.0, 1.0], [0.1, 0.2, 0.2], 0.5) == pytest.approx(0.05)


def test_the_chance_of_a_better_result_is_what_happens() -> None:
    """Of normal results: as many again better the best in half of all cases, and by 0.1 to 0.5 about as often as is
    said; their tail is longer than the one assumed."""
    said, happened = np.zeros(3), np.zeros(3)
    for seed in range(300):
        values = rng(seed).normal(size=80)
        tail, best = Tail(values[:40].tolist()), values[:40].max()
        said += [tail.chance(best + margin, 40) / 300 for margin in (0.0, 0.1, 0.5)]
        happened += (values[40:].max() > best + np.array([0.0, 0.1, 0.5])) / 300
    assert happened[0] == pytest.approx(0.5, abs=0.09)  # three standard errors
    assert np.abs(said - happened).max() < 0.12
    assert Tail([0.5] * 9).chance(0.5, 40) == 0
    many = Tail(rng(0).normal(size=40).tolist())
    steps = np.linspace(2.2, 12.2, 1001)
    assert many.gain(2.2, 40) == pytest.approx(np.trapezoid([many.chance(x, 40) for x in steps], steps), rel=0.03)
