"""Which differences over seeds are real."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from orchestrator.significance import differences, holm, how_tested

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
    assert how_tested(found) == "paired t-test over 5 seeds, Holm's correction for 3 comparisons"


def test_only_common_seeds_count() -> None:
    found = differences({"a": {0: 1.0, 1: 2.0, 2: 9.0}, "b": {1: 1.0, 2: 1.5, 3: 4.0}, "c": {7: 1.0}})
    assert [(d.one, d.other, d.seeds, d.mean) for d in found] == [("a", "b", 2, pytest.approx(4.25))]


def test_what_cannot_be_tested_is_no_test() -> None:
    once = differences({"a": {0: 0.5}, "b": {0: 0.4}})
    assert math.isnan(once[0].p) and once[0].interval is None and not once[0].real
    assert how_tested(once).startswith("no test")
    equal = differences({"a": {0: 0.5, 1: 0.5}, "b": {0: 0.5, 1: 0.5}, "c": {0: 0.25, 1: 0.25}})
    assert [d.real for d in equal] == [False, True, True] and math.isnan(equal[0].adjusted)
