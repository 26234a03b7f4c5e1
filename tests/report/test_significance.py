"""Which differences over seeds are real."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from orchestrator.cli.tables import difference_line
from orchestrator.evaluation.verdicts import holm
from orchestrator.report.html.elements import difference_table
from orchestrator.report.power import POWER, Forecast, power, seeds_needed
from orchestrator.report.significance import Difference, differences, from_the_first, how_tested

CHANCES = st.floats(0, 1, allow_nan=False) | st.just(math.nan)


def slow_holm(ps: Sequence[float]) -> list[float]:
    """The smallest level at which the step-down procedure, run anew for each level, rejects a hypothesis."""
    tests = [p for p in ps if not math.isnan(p)]

    def rejected(level: float) -> set[float]:
        out: set[float] = set()
        for place, p in enumerate(sorted(tests)):
            if (len(tests) - place) * p > level:
                break
            out.add(p)
        return out

    levels = sorted({min(1.0, (len(tests) - i) * p) for i, p in enumerate(sorted(tests))} | {1.0})
    return [math.nan if math.isnan(p) else next((a for a in levels if p in rejected(a)), 1.0) for p in ps]


@given(st.lists(CHANCES, max_size=7))
def test_holm_equals_the_procedure_run_level_by_level(ps: list[float]) -> None:
    assert holm(ps) == pytest.approx(slow_holm(ps), nan_ok=True)


def test_pairs_are_tested_seed_by_seed() -> None:
    draw = np.random.default_rng(0)
    shared = draw.normal(size=5)
    values = {
        name: {seed: float(shared[seed] + shift + 0.1 * draw.normal()) for seed in range(5)}
        for name, shift in (("a", 1.0), ("b", 0.9), ("c", 0.0))
    }
    found = differences(values)
    assert [(d.one, d.other) for d in found] == list(combinations("abc", 2))
    for difference in found:
        one, other = (list(values[name].values()) for name in (difference.one, difference.other))
        expected = stats.ttest_rel(one, other)
        between = expected.confidence_interval(0.95)
        assert difference.p == pytest.approx(expected.pvalue)
        assert difference.interval is not None
        assert (difference.interval.low, difference.interval.high) == pytest.approx((between.low, between.high))
        assert difference.mean == pytest.approx(np.mean(one) - np.mean(other))
    assert [d.adjusted for d in found] == slow_holm([d.p for d in found])
    assert found[1].real and found[2].real
    assert how_tested(found) == "paired t-test over 5 seeds on these classes, Holm's correction for 3 comparisons"


def test_the_first_against_each_other_counts_all_pairs() -> None:
    """Four groups have six pairs."""
    draw = np.random.default_rng(0)
    values = {
        name: dict(enumerate(shift + draw.normal(size=9))) for name, shift in zip("abcd", (3, 2, 1, 0), strict=True)
    }
    for found, other in zip(from_the_first(values), "bcd", strict=True):
        assert found is not None and (found.one, found.other) == ("a", other)
        p = stats.ttest_rel(list(values["a"].values()), list(values[other].values())).pvalue
        assert found.adjusted == pytest.approx(min(1, 6 * p))


def test_only_common_seeds_count() -> None:
    found = differences({"a": {0: 1.0, 1: 2.0, 2: 9.0}, "b": {1: 1.0, 2: 1.5, 3: 4.0}, "c": {7: 1.0}})
    assert [(d.one, d.other, d.seeds) for d in found] == [("a", "b", 2)]
    assert found[0].mean == pytest.approx(4.25)


def test_what_cannot_be_tested_is_no_test() -> None:
    once = differences({"a": {0: 0.5}, "b": {0: 0.4}})
    assert math.isnan(once[0].p) and once[0].interval is None and not once[0].real
    assert how_tested(once).startswith("no test")
    assert (once[0].answer, once[0].output.real, once[0].output.p) == ("not tested", None, None)
    assert difference_table("d", once, "search").table.cells[0][-1].text == "not tested"
    assert difference_line(once[0]).plain.endswith(": not tested")
    twice = differences({"a": {0: 0.5, 1: 0.6}, "b": {0: 0.4, 1: 0.4}})
    assert twice[0].interval is not None and math.isnan(twice[0].p)  # a deviation of two says nothing


def test_equal_differences_are_no_certainty() -> None:
    """p = 0 once. The least spread is the weight of a query; where that is not known there is no test."""
    thrice = {"a": dict.fromkeys(range(3), 0.5), "b": dict.fromkeys(range(3), 0.5), "c": dict.fromkeys(range(3), 0.25)}
    assert [d.answer for d in differences(thrice)] == ["not tested"] * 3
    assert all(math.isnan(d.adjusted) for d in differences(thrice))
    known = differences(thrice, resolution=1 / 64)
    assert [d.answer for d in known] == ["no", "yes", "yes"]
    assert known[1].p == pytest.approx(2 * stats.t.sf(16 * math.sqrt(3), 2)) and known[0].p == 1
    one_query = differences({"a": dict.fromkeys(range(3), 0.5), "b": dict.fromkeys(range(3), 0.51)}, resolution=0.01)
    assert one_query[0].p == pytest.approx(0.2254, abs=1e-4) and not one_query[0].real


# How many seeds --------------------------------------------------------------------------------------------------


def one_of(mean: float, deviation: float, seeds: int) -> Difference:
    """A difference with exactly this mean and deviation over the seeds."""
    draw = np.random.default_rng(0).normal(size=seeds)
    apart = mean + deviation * (draw - draw.mean()) / draw.std(ddof=1)
    return differences({"a": dict(enumerate(apart)), "b": dict.fromkeys(range(seeds), 0.0)})[0]


@pytest.mark.parametrize("effect, pairs", [(1.0, 10), (0.5, 34), (0.8, 15), (0.2, 199)])
def test_pairs_for_one_test_are_those_of_the_tables(effect: float, pairs: int) -> None:
    """G*Power 3.1, paired t-test, two-sided, 5%, a power of 80%."""
    found = seeds_needed(one_of(effect, 1.0, 6), 1)
    assert found is not None and found.seeds == pairs


def simulated(methods: int, seeds: int, effect: float, searches: int = 4000) -> float:
    """How often Holm's method over all pairs finds that the first is better than the second, by `effect` deviations of
    their paired difference; the others equal the second."""
    tests = np.random.default_rng(seeds).normal(size=(searches, methods, seeds)) / math.sqrt(2)
    tests[:, 0] += effect
    one, other = np.triu_indices(methods, 1)
    apart = tests[:, one] - tests[:, other]
    t = apart.mean(axis=2) / (apart.std(axis=2, ddof=1) / math.sqrt(seeds))
    ps = 2 * stats.t.sf(np.abs(t), seeds - 1)
    ranked = np.sort(ps, axis=1) * np.arange(ps.shape[1], 0, -1)
    adjusted = np.maximum.accumulate(ranked, axis=1)
    places = (ps < ps[:, :1]).sum(axis=1)
    return float((np.take_along_axis(adjusted, places[:, None], axis=1) < 0.05).mean())


@pytest.mark.parametrize("methods, effect", [(2, 1.0), (3, 0.8), (5, 1.0), (5, 1.5)])
def test_the_promised_power_is_kept(methods: int, effect: float) -> None:
    comparisons = methods * (methods - 1) // 2
    found = seeds_needed(one_of(effect, 1.0, 6), comparisons)
    assert found is not None and found.seeds is not None
    assert POWER - 0.02 < simulated(methods, found.seeds, effect) < POWER + 0.12
    assert power(found.seeds - 1, effect, comparisons) < POWER <= power(found.seeds, effect, comparisons)
    if comparisons > 1:  # a forecast that forgets the other comparisons promises too much
        forgetful = seeds_needed(one_of(effect, 1.0, 6), 1)
        assert forgetful is not None and forgetful.seeds is not None
        assert simulated(methods, forgetful.seeds, effect) < POWER - 0.07


def test_a_forecast_tells_how_far_it_can_be_trusted() -> None:
    assert seeds_needed(one_of(1.0, 1.0, 3), 1) is None  # the deviation of three is a guess
    found = seeds_needed(one_of(1.0, 1.0, 5), 1)
    assert found == Forecast(10, 6, 67)
    assert found.text == "about 10 seeds (6 to 67, because the deviation is not known better)"
    assert Forecast(900, 300, None).text.startswith("about 900 seeds (300 to more than 1,000,")
    level = differences({"a": dict(enumerate([0.0, 1.0, 0.0, 1.0])), "b": dict(enumerate([1.0, 0.0, 1.0, 0.0]))})
    assert seeds_needed(level[0], 1) is None
    covered = 0  # the interval holds what the true deviation asks for in 95% of the cases
    for seed in range(60):
        draw = 1.0 + np.random.default_rng(seed).normal(size=5)
        apart = one_of(1.0, float(draw.std(ddof=1)), 5)
        forecast = seeds_needed(apart, 1)
        assert forecast is not None and forecast.low is not None
        covered += forecast.low <= 10 <= (forecast.high or 10**6)
    assert covered >= 54


def test_an_interval_excludes_zero_where_the_difference_is_real() -> None:
    """Corrected as p is, for comparisons and looks; uncorrected, it excludes 0 beside a p of more than 5%."""
    rng, alone = np.random.default_rng(3), 0
    for look in (1, 2, 3):
        for _ in range(30):
            values = {
                name: dict(enumerate(0.012 * place + rng.normal(0, 0.01, 5))) for place, name in enumerate("abcd")
            }
            for found in differences(values, looks=dict.fromkeys(values, look)):
                assert found.ends is not None and found.estimate is not None and found.fixed_ends is not None
                assert (found.ends[0] > 0 or found.ends[1] < 0) is found.real, found
                assert found.fixed_ends == found.ends
                low, high = found.estimate.ends()
                alone += not found.real and (low > 0 or high < 0)
    assert alone > 20
    points = from_the_first({"a": {0: 0.5, 1: 0.52, 2: 0.51}, "b": {0: 0.47, 1: 0.5, 2: 0.47}, "c": {0: 0.2}})
    assert points[0] is not None and points[0].ends is not None
    assert (points[0].ends[0] > 0) is points[0].real and points[0].times == 3
