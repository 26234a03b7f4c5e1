"""What a search says of its settings, where the right answer is known: importances, ranges, settings without effect."""

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kruskal, spearmanr
from support.driven_studies import start as begun
from support.made_pages import PFML_SPACE, figures, made, spread

import orchestrator.report.effect
from orchestrator.config.resolve import resolve_search
from orchestrator.config.space import Parameter
from orchestrator.evaluation.rank_tests import SHUFFLES, Shuffled
from orchestrator.report.comparison import Comparison
from orchestrator.report.effect import idle, unreached_settings
from orchestrator.report.evidence import Direction, Effect, Evidence, evidence_of
from orchestrator.report.findings import Findings
from orchestrator.report.html.figures import plotted_value
from orchestrator.report.html.search_page import page
from orchestrator.report.importance import Importances, explain
from orchestrator.report.settings import Searched
from orchestrator.report.standing import Comparable
from orchestrator.storage.reading import read_journal

SHARES = {"a": 0.6, "b": 0.3, "c": 0.1, "d": 0.0, "e": 0.0}


def setting(key: str, values: Any = (0.0, 1.0)) -> Searched:
    return Searched(key, Parameter(key, key, "float", low=0.0, high=1.0), tuple(values), None, None, None)


def objective(point: dict[str, float]) -> float:
    """A line in a, a bowl in b, a line in c: their shares of the variance over the space are SHARES."""
    a, b, c = (point[key] - 0.5 for key in "abc")
    return float(0.6**0.5 * 12**0.5 * a + 0.3**0.5 * 180**0.5 * (b**2 - 1 / 12) + 0.1**0.5 * 12**0.5 * c)


Drawn = tuple[list[dict[str, float]], list[float]]


def study(trials: int, seed: int, noise: float = 0.0, effect: float = 1.0) -> Drawn:
    """Points and their values."""
    draw = np.random.default_rng(seed)
    points = [dict(zip("abcde", map(float, draw.random(5)), strict=True)) for _ in range(trials)]
    return points, [effect * objective(point) + noise * float(draw.normal()) for point in points]


def evidence(
    points: Sequence[Mapping[str, Any]], values: Sequence[float], settings: Sequence[Searched] = ()
) -> Evidence:
    """Of these trials."""
    by_id = {f"{place:04d}": point for place, point in enumerate(points)}
    ranked = dict(sorted(zip(by_id, values, strict=True), key=lambda pair: -pair[1]))
    return evidence_of(
        settings or [setting(key) for key in points[0]], Comparable(ranked, "", None), by_id, Direction(larger=True)
    )


@pytest.mark.parametrize("trials, within, above", [(12, 0.5, set()), (40, 0.35, {"a"}), (200, 0.2, {"a", "b"})])
def test_shares_are_those_of_the_objective(trials: int, within: float, above: set[str]) -> None:
    for points, values in [study(trials, seed) for seed in range(2 if trials < 200 else 1)]:
        shares = explain([setting(key) for key in "abcde"], points, values)
        assert all(abs(shares[key][0] - SHARES[key]) < within for key in SHARES)
        mattered = set(evidence(points, values).real_effects)
        assert above <= mattered and not {"d", "e"} & mattered


# Beyond chance


@pytest.mark.parametrize("trials", [12, 40])
def test_where_nothing_has_an_effect_one_is_shown_in_a_twentieth(trials: int) -> None:
    found = [evidence(*study(trials, seed, 1.0, 0.0)) for seed in range(150)]
    assert 1 <= sum(bool(one.real_effects) for one in found) <= 13  # of 150: 7.5 ± 2.7
    assert sum(min(effect.p for effect in one.effects) < 0.05 for one in found) > 20, "Holm's method corrects nothing"


def test_the_p_of_ranks_is_that_of_all_orders() -> None:
    """Spearman's correlation of six trials, by all 720 orders; the bowl is only ever more extreme."""
    values, results = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.1, 0.3, 0.2, 0.5, 0.4, 0.6]
    test = Shuffled(results).of_numbers(values)
    line = np.array([-5, -3, -1, 1, 3, 5]) / math.sqrt(70)
    bowl = np.array([5, -1, -4, -4, -1, 5]) / math.sqrt(84)
    ranks = line[[0, 2, 1, 4, 3, 5]]
    assert test.correlation == pytest.approx(float(spearmanr(values, results).statistic))
    orders = [max(abs(line @ order), abs(bowl @ order)) for order in map(np.array, itertools.permutations(line))]
    exact = np.mean([one >= max(abs(line @ ranks), abs(bowl @ ranks)) - 1e-9 for one in orders])
    assert test.p == pytest.approx(exact, abs=4 * math.sqrt(exact / SHUFFLES))


def test_groups_are_ordered_as_by_kruskal_and_wallis() -> None:
    draw = np.random.default_rng(0)
    for difference in (0.0, 1.0):
        labels = [place % 3 for place in range(30)]
        results = draw.normal(size=30) + difference * np.array([label == 1 for label in labels])
        test = Shuffled(results.tolist()).of_groups(labels)
        known = kruskal(*(results[np.array(labels) == group] for group in range(3))).pvalue
        assert test.p == pytest.approx(known, abs=0.03) and math.isnan(test.correlation)


def test_ties_and_equal_values_show_nothing() -> None:
    assert Shuffled([0.5, 0.5, 0.5, 0.6]).of_numbers([1, 1, 1, 2]).p == pytest.approx(0.25, abs=0.04)
    assert evidence([{"a": 0.1}, {"a": 0.9}], [0.5, 0.5]).effects == ()
    assert evidence([{"a": 0.1}, {"a": 0.1}], [0.5, 0.6]).effects == ()


def test_a_line_a_bowl_and_words_are_seen_where_they_are() -> None:
    points, values = study(40, 0)
    assert evidence(points, values).real_effects[:1] == ["a"]
    bowl = evidence(points, [-((point["b"] - 0.5) ** 2) for point in points])
    assert bowl.real_effects == ["b"] and bowl.smallest < 0.35
    low = evidence(points, [-point["c"] for point in points])
    assert low.towards("c", "low") and not low.towards("c", "high") and not low.towards("a", "low")
    words = [{"word": "xyz"[place % 3]} for place in range(12)]
    word = Searched("word", None, ("x", "y", "z"), None, None, None)
    one = evidence(words, [float(point["word"] == "y") for point in words], [word])
    assert one.real_effects == ["word"] and one.effects[0].better is None


def test_the_smallest_effect_that_is_seen_is_seen_as_often_as_it_says() -> None:
    """A line that explains this share, of normal results: the chance is 80%, of 120 searches 96 ± 4.4."""
    trials = 30
    share = Evidence(tuple(Effect(key, 1.0, 1.0, None) for key in "abcde"), trials).smallest
    found = 0
    for seed in range(120):
        points, _ = study(trials, seed)
        line = np.array([point["a"] for point in points])
        noise = np.random.default_rng(1000 + seed).normal(size=trials)
        values = math.sqrt(12 * share) * (line - 0.5) + math.sqrt(1 - share) * noise
        found += "a" in evidence(points, values.tolist()).real_effects
    assert 80 <= found <= 112


def test_what_is_said_where_nothing_is_shown() -> None:
    effects = (Effect("alpha", 0.04, 0.12, "high"), Effect("delta", 0.5, 1.0, "low"), Effect("beta", 0.9, 1.0, "low"))
    few, many = Importances(Evidence(effects, 12), {}, "too few"), Importances(Evidence(effects, 200), {}, "basis")
    assert few.answer == "12 trials are too few to tell; alpha comes nearest (p = 0.04, corrected for 3 settings 0.12)."
    assert many.answer == (
        "No effect is beyond chance; alpha comes nearest (p = 0.04, corrected for 3 settings 0.12); one that explains "
        "6% of the variance would be seen in 200 trials with a chance of 80%."
    )
    shown = Evidence((Effect("a", 0.001, 0.002, "high"), Effect("b", 0.5, 0.5, "low")), 40)
    assert Importances(shown, {"b": (0.6, 0.1), "a": (0.5, 0.1)}, "basis").answer == (
        "a (50% ± 10%, p = 0.002): basis. The other setting cannot be told from chance."
    )


def test_ten_thousand_trials_take_no_longer_than_a_page_may() -> None:
    begun = time.process_time()
    points, values = study(10_000, 0, 1.0)
    found = evidence(points, values)
    assert found.real_effects[:1] == ["a"] and time.process_time() - begun < 6  # half a second on an idle machine


def test_the_order_of_the_trials_moves_shares_less_than_their_deviation() -> None:
    draw = np.random.default_rng(0)
    points = [dict(zip("abcde", map(float, draw.random(5)), strict=True)) for _ in range(40)]
    settings = [setting(key) for key in "abcde"]
    one = explain(settings, points, [objective(p) for p in points])
    points = points[::-1]
    other = explain(settings, points, [objective(p) for p in points])
    assert abs(one["a"][0] - other["a"][0]) < 2 * one["a"][1] and 0.02 < one["a"][1] < 0.3


def test_lists_and_words_are_explained_too() -> None:
    draw = np.random.default_rng(1)
    settings = [
        Searched(
            "word", Parameter("word", "word", "categorical", choices=("x", "y", "z")), ("x", "y", "z"), None, None, None
        ),
        Searched("list", Parameter("list", "list", "categorical", choices=(1, 10)), (1, 10), None, None, None),
        setting("a"),
    ]
    points: list[dict[str, Any]] = [
        {"word": "xyz"[draw.integers(3)], "list": (1, 10)[draw.integers(2)], "a": draw.random()} for _ in range(60)
    ]
    values = [float(p["word"] == "y") + 0.1 * p["list"] / 10 for p in points]
    found = explain(settings, points, values)
    assert next(iter(found)) == "word" and found["word"][0] > 0.5
    assert evidence(points, values, settings).real_effects == ["word", "list"]


def test_it_is_quick() -> None:
    begun = time.process_time()
    explain([setting(key) for key in "abcde"], *study(200, 0))
    assert time.process_time() - begun < 12  # two seconds on an idle machine


# Ranges


def alphas(tmp_path: Path, tried: list[float], best: float, **space: Any) -> Findings:
    """A search over alpha alone, whose objective falls with the distance from `best`."""
    raw = {"method": "pfml", "dataset": "cub200", "space": {"alpha": {"low": 0, "high": 6} | space}}
    points = [{"alpha": alpha} for alpha in tried]
    return Findings.of(made(tmp_path, points, lambda p: 0.6 - 0.05 * abs(p["alpha"] - best), raw=raw))


def test_the_ranges_of_branches_are_shown_as_one(tmp_path: Path) -> None:
    choices = {"adamw": {"lr": {"low": 0.2, "high": 0.5}}, "sgd": {"lr": {"low": 0.1, "high": 0.3}}}
    raw = {"method": "pfml", "dataset": "cub200", "space": {"optimizer": {"choices": choices}}}
    points = [{"optimizer": "adamw", "lr": 0.4}, {"optimizer": "sgd", "lr": 0.2}]
    found = Findings.of(made(tmp_path, points, lambda point: point["lr"], raw=raw))
    assert {one.key: one.range_text for one in found.searched}["lr"] == "0.1 to 0.5"


EVEN = [0.18, 0.45, 0.9, 1.1, 1.7, 2.2, 2.8, 3.3, 3.9, 4.4, 5.0, 5.7]


@pytest.mark.parametrize(
    "best, told",
    [
        (
            0.4,
            "the best 4 of 12 trials have alpha in the lowest fifth of 0 to 6, where 0 is the setting's own limit. "
            "Search alpha from 0 to 1.2, or on a logarithmic scale from above it.",
        ),
        (3.0, None),  # in the middle
        (1.7, None),  # two of the best four are beyond the lowest fifth
    ],
)
def test_the_best_that_crowd_at_a_limit_want_a_narrower_range(tmp_path: Path, best: float, told: str | None) -> None:
    found = alphas(tmp_path, EVEN, best).widen
    assert found.startswith("No: the best point lies inside every range.")
    assert found.endswith("every range.") if told is None else found.endswith(f"But a narrower one would do: {told}")


@pytest.mark.parametrize(
    "low, high, log, told",
    [
        (0.5, 5.5, False, "0.5 to 5.5. Search alpha from 4.5 to 5.5."),
        (0.05, 5.0, True, "0.05 to 5 (logarithmic). Search alpha from 1.99 to 5."),  # 0.05 * 100 ** 0.8
    ],
)
def test_the_best_that_crowd_at_the_high_end(tmp_path: Path, low: float, high: float, log: bool, told: str) -> None:
    places = [0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.84, 0.87, 0.9, 0.93]
    tried = [low * (high / low) ** place if log else low + (high - low) * place for place in places]
    found = alphas(tmp_path, tried, tried[-2], low=low, high=high, log=log).widen
    assert found.endswith(
        f"But a narrower one would do: the best 4 of 12 trials have alpha in the highest fifth of {told}"
    )


def test_a_range_by_logarithms_and_few_trials(tmp_path: Path) -> None:
    logarithmic = [float(0.001 * 6000 ** ((n + 0.5) / 12)) for n in range(12)]
    found = alphas(tmp_path / "log", logarithmic, 0.5, low=0.001, log=True)
    assert "narrower" not in found.widen  # 0.5 is high in the range by logarithms
    assert alphas(tmp_path / "few", EVEN[:8], 0.4).widen == (
        "No end of a range was reached; 8 results are too few to tell whether the best ones crowd at an end (10 are "
        "needed)."
    )
    assert alphas(tmp_path / "equal", [2.0, 3.0, 5.0], 2.5).widen.endswith(
        " Trials 0000 and 0001, the two best, tie exactly."
    )


def test_one_result_says_nothing_of_the_ranges(tmp_path: Path) -> None:
    raw = {"method": "pfml", "dataset": "cub200", "space": {"alpha": {"low": 0, "high": 6}}}
    found = Findings.of(made(tmp_path, [{"alpha": 1.0}, {"alpha": 5.9}], lambda p: 0.5, raw=raw, reason="it failed"))
    assert found.widen == "There is one result, which says nothing about the ranges."


def test_the_best_that_tie_do_not_crowd(tmp_path: Path) -> None:
    """Four of twelve equal results are not the best four."""
    raw = {"method": "pfml", "dataset": "cub200", "space": {"alpha": {"low": 0, "high": 6}}}
    found = Findings.of(made(tmp_path, [{"alpha": alpha} for alpha in EVEN], lambda p: 0.5, raw=raw)).widen
    assert found == "No: the best point lies inside every range. Trials 0000 and 0001, the two best, tie exactly."


def test_an_edge_that_can_move_is_told_as_an_edge(tmp_path: Path) -> None:
    found = alphas(tmp_path, [5.5 - alpha for alpha in EVEN[:-1]] + [5.45, 5.49], 5.49, high=5.5).widen
    assert found.startswith("Yes: alpha above 5.5") and "narrower" not in found


# Without effect


def test_what_has_no_effect_is_recorded_with_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a report imports no method; trials of older records are asked as before."""
    space = {"proxies_per_class": [0, 5], "proxy_lr_multiplier": [1.0, 2.0]}
    raw = {"method": "pfml", "dataset": "cub200", "space": space, "algorithm": "grid"}
    conductor = begun(resolve_search(raw, name="s", source="s.yaml"), tmp_path, slots=4)
    assert [conductor.next() is not None for _ in range(4)] == [True] * 4
    conductor.journal.close()
    trials = read_journal(tmp_path / "journal.jsonl")[1].trials.values()
    recorded = {trial.trial_id: trial.idle for trial in trials}
    assert recorded == {
        trial.trial_id: {"proxy_lr_multiplier": "proxies_per_class=0"} if trial.params["proxies_per_class"] == 0 else {}
        for trial in trials
    }
    assert {trial.trial_id: idle(replace(trial, idle=None)) for trial in trials} == recorded
    monkeypatch.setattr(orchestrator.report.effect, "config_class", None)
    assert {trial.trial_id: idle(trial) for trial in trials} == recorded


def test_settings_without_effect_are_told(tmp_path: Path) -> None:
    space = {"proxies_per_class": [0, 5], "proxy_lr_multiplier": {"low": 1.0, "high": 100.0}}
    raw = {"method": "pfml", "dataset": "cub200", "space": space}
    points = [{"proxies_per_class": 5 * (n % 2), "proxy_lr_multiplier": 1.0 + 8 * n} for n in range(12)]
    found = Findings.of(made(tmp_path, points, lambda p: 0.01 * p["proxy_lr_multiplier"] ** 0.5, raw=raw))
    why = "with proxies_per_class=0"
    assert found.idle == {"proxy_lr_multiplier": (6, 12, "proxies_per_class=0")}
    assert any(
        line == f"proxy_lr_multiplier had no effect in 6 of 12 trials ({why}): its values there do not matter."
        for line in found.warnings
    )
    html = page(found)
    assert html.count('<span class="idle" title="no effect with proxies_per_class=0">') == 6
    assert "no effect in 6 of 12 trials (with proxies_per_class=0)" in html


MEMORY = {
    "method": "contrastive",
    "dataset": "cub200",
    "settings": {"epochs": 2, "classes_per_batch": 8, "images_per_class": 4},
    "space": {"references": ["proxies", "memory"], "memory_size": [64, 128]},
}
SIZES = [{"references": "memory", "memory_size": size} for size in (128, 64)]
NOT_REACHED = "memory_start=1000, not reached in 42 steps"


def remembered(folder: Path, *, images: int | None, gain: float = 0.0, each: int = 1) -> Findings:
    """Trials with memories of two sizes, `each` so often, the larger better by `gain`, and one with proxies."""
    points: list[dict[str, Any]] = [*(each * SIZES), {"references": "proxies", "memory_size": 64}]
    values = {("memory", 128): 0.5 + gain, ("memory", 64): 0.5, ("proxies", 64): 0.4}
    ledger = made(folder, points, lambda p: values[p["references"], p["memory_size"]], raw=MEMORY, epochs=2)
    ledger.sizes = {} if images is None else {"training_images": images}
    return Findings.of(ledger)


@pytest.mark.parametrize(
    ("images", "gain", "why"),
    [
        (None, 0.0, "trial 0001, with 64, ties with it exactly"),  # a journal of before
        (21 * 32, 0.1, f"has no effect there (with {NOT_REACHED})"),  # whatever the numbers seem to say
        (None, 0.1, None),
        (1000 * 32, 0.1, None),
    ],
)
def test_an_edge_without_effect_is_no_advice(tmp_path: Path, images: int | None, gain: float, why: str | None) -> None:
    found = remembered(tmp_path / "one", images=images, gain=gain, each=6)
    place = "memory_size = 128 is at the high end of its range, but"
    told = [found.widen, *found.warnings, *Comparison.of("both", {"s1": found.ledger, "s2": found.ledger}).outlook]
    if why is None:
        assert found.widen == "Yes: memory_size above 128 (best: 128 in 64, 128)."
        assert sum("edge of its range" in line for line in told) == 3
        return
    assert found.widen == f"The results do not show it: {place} {why}."
    assert not any("edge of its range" in line for line in told)
    assert ("at the upper edge" in page(found)) == (why is None)


def test_a_tie_at_the_same_edge_is_an_edge(tmp_path: Path) -> None:
    tried = [0.4, 1.0, 2.0, 5.4, 5.45]
    raw = {"method": "pfml", "dataset": "cub200", "space": {"alpha": {"low": 0, "high": 5.5}}}
    found = Findings.of(made(tmp_path, [{"alpha": a} for a in tried], lambda p: min(p["alpha"], 5.4) / 10, raw=raw))
    assert found.widen == "Yes: alpha above 5.5 (best: 5.4 in 0 to 5.5)."


def test_a_memory_that_no_training_reaches_is_marked(tmp_path: Path) -> None:
    found = remembered(tmp_path, images=21 * 32)
    assert found.idle == {"memory_size": (3, 3, f'{NOT_REACHED}; or references="proxies"')}
    assert page(found).count(f'<span class="idle" title="no effect with {NOT_REACHED}">') == 2
    assert remembered(tmp_path / "old", images=None).idle == {"memory_size": (1, 3, 'references="proxies"')}


@pytest.mark.parametrize(
    ("settings", "space", "lines"),
    [
        ({}, {}, ['memory_size has no effect with references="memory", memory_start=1000: a training has 42 steps']),
        ({"memory_start": 41}, {}, []),
        ({}, {"epochs": [2, 200]}, []),  # the longest training reaches it
        ({}, {"validation_share": [0.1, 0.5]}, []),  # how long a training is is not known
        (
            {"references": "memory"},
            {"memory_start": [0, 42]},
            ["memory_size has no effect with memory_start=42: a training has 42 steps"],
        ),
    ],
)
def test_a_memory_that_no_training_reaches_is_told_before_the_search(
    settings: dict[str, Any], space: dict[str, Any], lines: list[str]
) -> None:
    space = MEMORY["space"] | space  # type: ignore[operator]
    raw = MEMORY | {
        "space": {key: value for key, value in space.items() if key not in settings},
        "settings": {k: v for k, v in MEMORY["settings"].items() if k not in space} | settings,  # type: ignore[attr-defined]
    }
    assert (
        list(unreached_settings(resolve_search({**raw, "num_trials": 3}, name="m", source="m.yaml"), 21 * 32)) == lines
    )


def test_each_objective_has_its_own_importances(tmp_path: Path) -> None:
    """delta decides the objective and alpha the recall, in the trials that trained to their end."""
    ledger = made(tmp_path, spread(60), pruned=lambda number: number % 3 == 1)
    for trial in ledger.trials.values():
        recall = math.log(trial.params["alpha"]) if trial.state == "done" else 100.0
        trial.best_metrics = trial.best_metrics | {"val/recall_at_1": recall}
    found = Findings.of(ledger)
    assert found.importances.real_effects == ["delta"]
    assert {name: other.real_effects for name, other in found.other_importances.items()} == {
        "val/recall_at_1": ["alpha"]
    }
    basis = found.other_importances["val/recall_at_1"].basis
    assert "val/recall_at_1 of the 40 trials that were not stopped early, at their best val/map_at_r" in basis
    html = page(found)
    assert "Importance of each setting for val/map_at_r" in html and "for val/recall_at_1" in html
    drawn = figures(html)
    assert drawn["importances"]["data"][0]["y"][-1] == "delta" and drawn["importances-1"]["data"][0]["y"][-1] == "alpha"


def test_two_objectives_have_two_answers(tmp_path: Path) -> None:
    raw = {"method": "pfml", "dataset": "cub200", "space": PFML_SPACE, "objectives": ["val/map_at_r", "cost/seconds"]}
    ledger = made(tmp_path, spread(40), raw=raw)
    for trial in ledger.trials.values():
        trial.second = 10.0 + trial.params["proxies_per_class"]
    said = Findings.of(ledger).what_mattered
    first, second = said.split(" cost/seconds: ")
    assert first.startswith("val/map_at_r: delta (") and second.startswith("proxies_per_class (")


def test_one_setting_alone_is_tested_too(tmp_path: Path) -> None:
    found = Findings.of(made(tmp_path, [point | {"alpha": 1.0, "proxies_per_class": 5} for point in spread(40)]))
    assert found.importances.answer == "delta (p = 0.00075)."
    assert found.other_importances == {} and "Importance of each setting" not in page(found)


def test_values_are_numbers_where_all_are() -> None:
    assert setting("a", (1, 0.5)).numeric
    assert [setting("a", values).numeric for values in [(1, "auto"), (None, 2), (0, True)]] == [False, False, False]


def test_values_are_looked_through_once_for_all_drawn_trials() -> None:
    """Each drawn trial asks whether the values are numbers; a search has as many values as trials."""

    class Values(tuple[float, ...]):
        passes = 0

        def __iter__(self) -> Iterator[float]:
            Values.passes += 1
            return super().__iter__()

    delta = replace(setting("delta"), values=Values((0.1, 0.2)))
    assert [plotted_value(delta, value) for value in (0.1, 0.2, 0.1)] == [0.1, 0.2, 0.1]
    assert Values.passes == 1
