"""Claims: what a file may say, when it is decided, and that a look costs nothing."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from claim_errors import KINDS, edge, simulated, t_intervals, true, untrue
from scipy.integrate import quad
from scipy.stats import kendalltau, nct, norm, t
from support.made_claims import RANKS, SMALL, TUNING, GrowingRecall, outcome_of, problems_of, written
from support.made_claims import storage as storage
from support.made_searches import MadeSearch

from orchestrator.claims import running
from orchestrator.claims.cost import claim_seconds
from orchestrator.claims.design import Contrast, cells, claim_plan, contrasts, training, tuning_search
from orchestrator.claims.file import read_claim
from orchestrator.claims.hypothesis import BASE, CHANGED, SECOND, Claim, Hypothesis, is_share_metric
from orchestrator.claims.outputs import ClaimVerdict, Kind
from orchestrator.claims.running import run_claim
from orchestrator.claims.sequential import (
    ERROR,
    FAILS,
    HOLDS,
    PRECISION,
    UNDECIDED,
    confidence_sequence,
    decisions,
    log_evidence,
)
from orchestrator.claims.shipped import find_claim, measured_verdict, own_verdict, shipped_claims
from orchestrator.claims.verdict import (
    EndedTraining,
    claim_verdict,
    dataset_verdict,
    metric_value,
    seeds_without_effect,
    whole_verdict,
)
from orchestrator.cli.main import main
from orchestrator.config.search import Search
from orchestrator.errors import InputError
from orchestrator.evaluation.verdicts import kendall_tau
from orchestrator.execution.inline import InlineRunner
from orchestrator.report.learning import Judgement
from orchestrator.search.watcher import Watcher
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import CLAIM_RECORD, CLAIM_VERDICT, JOURNAL, Places
from orchestrator.storage.reading import read_journal
from orchestrator.storage.trial_record import TrialRecord

ROOT = Path(__file__).parents[2]
PAPERS = {
    "pfml": "PFML (",
    "idml": "IDML (",
    "ccp": "CCP (",
    "anti_collapse": "Anti-Collapse (",
    "lore": "",
}


def differences(claim: Claim) -> list[Contrast]:
    return [one for one in contrasts(claim.hypothesis) if isinstance(one, Contrast)]


# The statistics ----------------------------------------------------------------------------------------------------


def test_an_interval_is_where_the_evidence_against_its_mean_is_too_small() -> None:
    """Its ends are those means whose martingale is just 1 / error, in exact arithmetic."""
    values = np.array([0.31, 0.42, 0.55, 0.29, 0.61, 0.48, 0.37, 0.5])
    for error in (0.05, 0.01):
        low, high = confidence_sequence(values, error)
        for n in (4, 5, 8):
            here = [confidence_sequence(values, error)[end][: n - 1] for end in (0, 1)]
            if low[n - 1] > np.max(here[0]):
                assert log_evidence(values[:n], low[n - 1])[-1] == pytest.approx(-np.log(error), abs=1e-9)
            if high[n - 1] < np.min(here[1]):
                assert log_evidence(values[:n], high[n - 1])[-1] == pytest.approx(-np.log(error), abs=1e-9)
        assert np.isinf(low[1]) and np.isfinite(low[3])


def test_the_evidence_is_the_mixed_ratio_of_the_densities_of_t() -> None:
    """Its definition: the density of Student's t with mean / deviation drawn from N(0, 1 / c^2), over that without an
    effect, by numerical integration."""
    values = np.array([0.3, -0.4, 1.1, 0.8, 0.2])

    def mixed_density(effect: float, of_t: float, n: int) -> float:
        return float(nct.pdf(of_t, n - 1, np.sqrt(n) * effect) * norm.pdf(effect, 0, 1 / np.sqrt(PRECISION)))

    for n in (2, 3, 5):
        x = values[:n]
        of_t = np.sqrt(n) * x.mean() / x.std(ddof=1)
        mixed = quad(mixed_density, -20, 20, args=(of_t, n), limit=400)[0]
        assert log_evidence(x)[-1] == pytest.approx(np.log(mixed / t.pdf(of_t, n - 1)), abs=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_a_false_verdict_is_rare_however_often_it_is_looked_at(name: str) -> None:
    """At the edges of each kind, looked at after each of 20 pairs; the power is that of the page."""
    rng = np.random.default_rng(5)
    for smallest in (0.25, 4.0):
        assert simulated(rng, name, untrue(name, smallest), smallest, claims=2000, pairs=20).holds <= ERROR
        assert simulated(rng, name, edge(name, smallest), smallest, claims=2000, pairs=20).fails <= ERROR
    assert simulated(rng, name, true(name, 4.0), 4.0, claims=500, pairs=10).holds > 0.95


def test_the_rank_correlation_is_scipys() -> None:
    """With ties, over a dimension of seeds, and of entries that are all tied."""
    rng = np.random.default_rng(2)
    first, second = rng.integers(0, 6, (9, 40)).astype(float), rng.integers(0, 4, (9, 40)).astype(float)
    expected = [kendalltau(one, other).statistic for one, other in zip(first.T, second.T, strict=True)]
    np.testing.assert_allclose(kendall_tau(first, second), expected, atol=1e-12)
    assert kendall_tau(np.ones(4), np.arange(4.0)) == 0


def test_looking_at_a_t_interval_again_and_again_is_found_out() -> None:
    """The planted bug: the bound that the test above holds the product to."""
    rng = np.random.default_rng(5)
    peeking = simulated(rng, "superiority", 0.0, 0.25, claims=4000, pairs=20, intervals=t_intervals)
    assert peeking.holds > 1.5 * ERROR
    assert simulated(rng, "superiority", 0.0, 0.25, claims=4000, pairs=20).holds < 0.5 * ERROR


def test_each_kind_is_decided_by_its_own_ends() -> None:
    level = np.array([0.0, 0.01, -0.01, 0.005, -0.005, 0.0])
    expected = {
        ("superiority", 2.0): HOLDS,
        ("superiority", 0.5): FAILS,  # real, and too small to matter
        ("superiority", -2.0): FAILS,
        ("non_inferiority", -0.5): HOLDS,
        ("non_inferiority", -2.0): FAILS,
        ("equivalence", 0.5): HOLDS,
        ("equivalence", 2.0): FAILS,
        ("equivalence", -2.0): FAILS,
        ("order", 2.0): HOLDS,
    }
    for (kind, effect), decision in expected.items():
        assert decisions(kind, effect + level[None, :], 1.0)[-1] == decision, (kind, effect)  # type: ignore[arg-type]
    both = np.stack([2.0 + level, -2.0 + level])
    assert decisions("order", both, 1.0)[-1] == FAILS
    assert decisions("superiority", 2.0 + level[None, :], 1.0)[1] == UNDECIDED  # two pairs are too few


def test_a_refutation_pays_for_every_comparison_and_data_set() -> None:
    """So that a true claim of many parts is not refuted by chance in one of them."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal((4000, 8, 12)) + 1.0
    at = {datasets: (decisions("order", values, 1.0, datasets=datasets) == FAILS).any(-1).mean() for datasets in (1, 4)}
    assert at[4] < at[1] < ERROR
    uncorrected = (confidence_sequence(values)[1] < 1.0)[..., 2:].any((-1, -2)).mean()
    assert uncorrected > ERROR


def test_equal_counts_are_not_certain() -> None:
    same = np.full((1, 4), 0.02)
    assert decisions("superiority", same, 0.01)[-1] == HOLDS
    assert decisions("superiority", same, 0.01, resolution=0.02)[-1] == UNDECIDED


def test_it_holds_where_it_holds_on_all_data_sets() -> None:
    words: Any = lambda *all_: whole_verdict([SimpleNamespace(verdict=one) for one in all_])  # type: ignore[misc] # noqa: E731
    assert words("holds", "holds") == "holds"
    assert words("holds", "undecided") == "undecided"
    assert words("holds", "undecided", "does not hold") == "does not hold"


# Files -------------------------------------------------------------------------------------------------------------


WRONG = {
    "kind: superiority": "kind: superiorty",
    "metric: test/map_at_r": "metrik: test/map_at_r\nmetric: test/map_at_r",
    "smallest_effect: 1": "smallest_effect: -1",
    "[glyphs-small]": "[glyphs-smal]",
    "{epochs: 1}": "{epochs: -5, seed: 3}",
    "{settings: {method: pfml}}": "{settings: {method: pfml, dleta: 3}}",
    "{settings: {method: proxy_anchor}}": "{settngs: {method: proxy_anchor}}",
    "max: 6": "max: 2",
}


def test_all_that_is_wrong_is_said_at_once_with_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SMALL
    for right, wrong in WRONG.items():
        text = text.replace(right, wrong)
    path = tmp_path / "small.yaml"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["claim", str(path), "--storage", str(tmp_path / "s")])
    lines = [line.replace(f"error: {path}, ", "") for line in capsys.readouterr().err.strip().splitlines()]
    assert ended.value.code == 2 and not (tmp_path / "s").exists()
    assert [line for line in lines if not line.startswith("reading")] == [
        "line 3: kind: 'superiorty' is unknown (did you mean 'superiority'?)",
        "line 4: metrik: no such key of a claim (did you mean 'metric'?)",
        "line 6: smallest_effect: -1: should be above 0",
        "line 7: datasets: unknown data set 'glyphs-smal' (did you mean 'glyphs-small'?)",
        "line 8: settings.seed: belongs under seeds, the same for all arms",
        "line 8: settings: epochs: -5: should be at least 1",
        "line 10: arms.pfml.settings: dleta: no such setting of 'pfml' (did you mean 'delta'?)",
        "line 11: arms.proxy_anchor.settngs: no such key (did you mean 'settings'?)",
        "line 11: arms.proxy_anchor.settings: no method is named",
        "line 14: seeds.max: 2: should be at least 3",
    ]


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            "test/map_at_r",
            "test/map_at_rr",
            "line 4: metric: 'test/map_at_rr': no such metric (did you mean 'map_at_r'?)",
        ),
        ("test/map_at_r", "map_at_r", "line 4: metric: 'map_at_r' should be one of test/NAME, val/NAME,"),
        ("superiority", "trend", "a trend is over validations"),
        ("arm: pfml", "arm: pfmll", "line 11: arm: 'pfmll' is no arm (did you mean 'pfml'?)"),
        ("[glyphs-small]", "{glyphs-small: {epoch: 1}}", "line 6: datasets.glyphs-small: epoch: no such setting"),
        ("[glyphs-small]", "{glyphs-small: {seed: 1}}", "line 6: datasets.glyphs-small.seed: belongs under seeds"),
        (
            "[glyphs-small]",
            "{glyphs-small: {method: pfml}}",
            "datasets.glyphs-small.method: is a setting",
        ),
        (
            "[glyphs-small]",
            "{glyphs-small: {}, glyphs: {backbone: none}}",
            "datasets.glyphs: backbone: unknown",
        ),
        ("datasets: [glyphs-small]", "datasets: []", "line 6: datasets: []: name one or more"),
        ("than: [proxy_anchor]", "than: [pfml]", "line 12: than: 'pfml' is compared with itself"),
        ("than: [proxy_anchor]", "than: []", "than: this key is required: the arms that pfml is compared with"),
        ("than: [proxy_anchor]", "order: [[pfml], [proxy_anchor]]", "order: is of the kind order, not of superiority"),
        ("superiority", "difference_of_differences", "changed: this key is required: the settings whose effect"),
        ("seeds:", "changed: {label_noise: 0.2}\nseeds:", "line 13: changed: is not of the kind superiority"),
        ("seeds:", "tuning: {num_trials: 4}\nseeds:", "line 13: tuning: no arm has a search"),
        ("seeds:", "tuning: {budget: {epoch: 4}}\nseeds:", "line 13: tuning.epoch: no such key"),
        (
            "seeds:",
            "tuning: {space: {dleta: [0.1]}, num_trials: 4}\nseeds:",
            "line 13: tuning.space.dleta: no such setting",
        ),
        ("seeds:", "tuning: {space: {epochs: [1, 2]}, num_trials: 2}\nseeds:", "line 7: settings.epochs: is tuned, by"),
        (
            "seeds:",
            "tuning: {space: {lr: [0.1, 0.2]}}\nseeds:",
            "line 13: tuning: this key is required",
        ),
        (
            "seeds:",
            "tuning: {algorithm: grud}\nseeds:",
            "line 13: tuning.algorithm: 'grud': unknown (did you mean 'grid'?)",
        ),
        ("{method: pfml}}", "{method: pfml}, search: pfml}", "tuning: this key is required: num_trials or a budget"),
        ("{method: pfml}}", "{method: pfml}, search: nope}", "line 9: arms.pfml.search: unknown search 'nope'"),
        ("max: 6", "max: 6, also: [label_noise_sed]", "seeds.also: 'label_noise_sed' is no other seed of a training"),
        (
            "[glyphs-small]",
            "[glyphs-small, glyphs-small]",
            "'glyphs-small']: one is named twice",
        ),
        ("{method: proxy_anchor}", "{method: pfml}", "line 10: arms.proxy_anchor: is the same as pfml: a comparison"),
    ],
)
def test_what_its_keys_say_against_each_other_is_refused(right: str, wrong: str, said: str, tmp_path: Path) -> None:
    problems = problems_of(tmp_path, SMALL.replace(right, wrong, 1))
    assert any(said in problem for problem in problems), problems
    assert all(str(tmp_path) in problem for problem in problems)
    assert "is no arm" not in said or len(problems) == 1, "an arm that is misspelt, not missing"


def test_an_equivalence_may_be_with_nothing(tmp_path: Path) -> None:
    text = SMALL.replace("superiority", "equivalence").replace("than: [proxy_anchor]\n", "")
    text = "\n".join(line for line in text.splitlines() if "proxy_anchor" not in line)
    (alone,) = differences(written(tmp_path, text))
    assert alone.label == "pfml" and alone.weights == {("pfml", BASE): 1.0}


@pytest.mark.parametrize(
    ("metric", "share"),
    [
        ("test/recall_at_1", True),
        ("test/diagnostics/introspective_recall_at_1", True),
        ("test/diagnostics/introspective_map_at_r", True),
        ("test/diagnostics/uncertainty_held_out", False),
        ("diagnostics/agreement_held_out_jaccard", False),
        ("train/loss", False),
    ],
)
def test_which_metrics_are_shares(metric: str, share: bool) -> None:
    assert is_share_metric(metric) == share


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("second_metric: test/map_at_r\n", "", "second_metric: this key is required"),
        ("test/map_at_r", "test/recall_at_1", "line 5: second_metric: 'test/recall_at_1' is the metric itself"),
        ("test/map_at_r", "test/map_at_rr", "line 5: second_metric: 'test/map_at_rr': no such metric"),
        ("effect: 0.6", "effect: 60", "line 6: smallest_effect: 60.0: should be a rank correlation below 1"),
        ("  triplet: {settings: {method: triplet}}\n", "", "line 9: arms: should be 4 or more"),
        ("seeds:", "arm: pfml\nseeds:", "line 14: arm: a rank agreement is of all arms"),
        ("seeds:", "direction: lower\nseeds:", "line 14: direction: 'lower': is for arms; ranks agree or do not"),
        ("{settings: {method: pfml}}", "{metric: test/map_at_r, settings: {method: pfml}}", "the same two metrics"),
        ("kind: rank_agreement", "kind: superiority", "second_metric: is of the kind rank_agreement"),
    ],
)
def test_what_a_rank_agreement_may_not_say(right: str, wrong: str, said: str, tmp_path: Path) -> None:
    problems = problems_of(tmp_path, RANKS.replace(right, wrong, 1))
    assert any(said in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("norm: separate", """norm has no effect with objective="proxy_anchor\""""),
        ("introspective_test: false", "their settings are equal"),
        ("norm: separate, introspective_test: true", None),
        ("form: dis", None),
    ],
)
def test_arms_that_differ_without_effect_are_refused(setting: str, said: str | None, tmp_path: Path) -> None:
    pair = SMALL.replace("{method: pfml}", "{method: idml}").replace(
        "{method: proxy_anchor}", f"{{method: idml, {setting}}}"
    )
    if said is None:
        assert written(tmp_path, pair)
        return
    (problem,) = problems_of(tmp_path, pair)
    assert f"arms.proxy_anchor: trains as pfml does on glyphs-small: {said}" in problem


def test_a_training_that_is_read_by_two_metrics_is_one_training(tmp_path: Path) -> None:
    claim = written(tmp_path, RANKS)
    each = list(cells(claim.hypothesis, "glyphs-small", 3))
    assert len(each) == 8 and len({cell.name(claim) for cell in each}) == claim_plan(claim).trainings_of_a_pair == 4
    assert {claim.hypothesis.metric_of(cell.arm, cell.state) for cell in each} == {"test/recall_at_1", "test/map_at_r"}
    both = SMALL.replace("{settings: {method: proxy_anchor}}", "{metric: test/recall_at_1, settings: {method: pfml}}")
    claim = written(tmp_path, both)
    assert len({cell.name(claim) for cell in cells(claim.hypothesis, "glyphs-small", 3)}) == 1


def test_a_data_set_may_have_settings_of_its_own(tmp_path: Path) -> None:
    text = SMALL.replace("[glyphs-small]", "{glyphs-small: {}, glyphs: {epochs: 4, embedding_dim: 8}}")
    hypothesis = written(tmp_path, text).hypothesis
    plain, own = (hypothesis.settings_of("pfml", dataset) for dataset in hypothesis.datasets)
    assert plain == {"protocol": "conventional", "epochs": 1, "method": "pfml", "dataset": "glyphs-small"}
    assert own == plain | {"dataset": "glyphs", "epochs": 4, "embedding_dim": 8}


def test_a_changed_file_is_another_claim(tmp_path: Path) -> None:
    one, other = written(tmp_path), written(tmp_path, SMALL.replace("max: 6", "max: 7"))
    names = {cell.name(claim) for claim in (one, other) for cell in cells(claim.hypothesis, "glyphs-small", 3)}
    assert one.digest != other.digest and len(names) == 4
    tuned = SMALL.replace("{settings: {method: pfml}}", "{search: tuned.yaml}").replace("seeds:", TUNING)
    (tmp_path / "tuned.yaml").write_text("method: pfml\nspace: {delta: [0.1, 0.2]}\n")
    tuned = tuned.replace("tuned.yaml", str(tmp_path / "tuned.yaml"))
    before = written(tmp_path, tuned).digest
    (tmp_path / "tuned.yaml").write_text("method: pfml\nspace: {delta: [0.1, 0.3]}\n")
    assert written(tmp_path, tuned).digest != before  # the search is part of what was written down


def test_comparisons_are_sums_of_the_arms(tmp_path: Path) -> None:
    order = SMALL.replace("superiority", "order").replace(
        "arm: pfml\nthan: [proxy_anchor]", "order: [[pfml], [proxy_anchor]]"
    )
    order = order.replace("order: [[pfml]", "order: [[pfml, other]").replace(
        "  proxy_anchor:", "  other: {settings: {method: pfml, delta: 0.3}}\n  proxy_anchor:"
    )
    (one,) = differences(written(tmp_path, order))
    assert one.label == "mean of pfml, other - proxy_anchor"
    assert one.weights == {("pfml", BASE): 0.5, ("other", BASE): 0.5, ("proxy_anchor", BASE): -1.0}
    noise = SMALL.replace("superiority", "difference_of_differences").replace(
        "seeds: {", "changed: {label_noise: 0.2}\nseeds: {also: [label_noise_seed], "
    )
    claim = written(tmp_path, noise)
    (one,) = differences(claim)
    assert one.weights == {
        ("pfml", CHANGED): 1.0,
        ("pfml", BASE): -1.0,
        ("proxy_anchor", CHANGED): -1.0,
        ("proxy_anchor", BASE): 1.0,
    }
    settings = [training(claim, cell).settings for cell in cells(claim.hypothesis, "glyphs-small", 4)]
    assert [one.get("label_noise") for one in settings] == [None, 0.2, None, 0.2]
    assert {(one["seed"], one["label_noise_seed"], one["dataset"]) for one in settings} == {(4, 4, "glyphs-small")}


# Running -----------------------------------------------------------------------------------------------------------


def plain(verdict: ClaimVerdict) -> dict[str, Any]:
    return verdict.model_dump(exclude={"seconds", "commit", "line"})


def test_a_clear_claim_ends_early_and_a_close_one_at_its_budget(
    tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = written(tmp_path)
    trainings, result, lines = outcome_of(claim, storage, monkeypatch, effect={"pfml": 0.1})
    (one,) = result.verdict.datasets
    assert result.verdict.verdict == one.verdict == "holds" and 3 <= one.pairs < 6
    assert len(trainings.names) == 2 * one.pairs and all(trainings.recorded)
    assert one.effects[0].low is not None and one.effects[0].low > 0 and 8 < one.effects[0].effect < 12  # points
    assert one.classes == 60 and f"{one.pairs} seeds, 60 classes" in result.verdict.line
    assert "holds" in result.verdict.line and "points of map_at_r" in result.verdict.line
    assert result.verdict.seconds == 20.0 * 2 * one.pairs
    record = json.loads((storage / "claims" / claim.key / CLAIM_RECORD).read_text())
    assert record["digest"] == claim.digest and record["file"] == SMALL
    html = result.page.read_text()
    assert claim.digest in html and "pfml - proxy_anchor" in html and "kind: superiority" in html
    assert any("after pair 3: pfml - proxy_anchor" in line for line in lines)
    again, repeated, lines = outcome_of(claim, storage, monkeypatch, effect={})
    assert not [line for line in lines if "after pair" in line], "they were told before"
    assert again.names == [] and plain(repeated.verdict) == plain(result.verdict)
    close = written(tmp_path, SMALL.replace("effect: 1\n", "effect: 0.1\n"), "close")
    trainings, result, _ = outcome_of(close, storage, monkeypatch, effect={"pfml": 0.0005})
    (one,) = result.verdict.datasets
    assert (one.verdict, one.reason, one.pairs, len(trainings.names)) == ("undecided", "at this budget", 6, 12)
    assert one.effects[0].low is not None and "it is undecided at this budget: pfml" in result.verdict.line


def test_arms_are_tuned_first_with_the_same_budget(
    tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then each is trained as its search found it."""
    text = SMALL.replace("{settings: {method: pfml}}", "{search: pfml, settings: {alpha: 2}}").replace("seeds:", TUNING)
    claim = written(tmp_path, text)
    trainings, result, lines = outcome_of(claim, storage, monkeypatch, effect={"pfml": 0.1})
    assert lines[0] == "glyphs-small: tunes pfml" and trainings.names[0].endswith("-pfml-tuning")
    search = read_journal(Places(storage).journal(trainings.names[0]))[1]
    assert (search.config["num_trials"], search.config["final"], search.config["settings"]["epochs"]) == (2, False, 1)
    settings = read_journal(Places(storage).journal(trainings.names[1]))[1].config["settings"]
    assert (settings["method"], settings["delta"], settings["alpha"], settings["seed"]) == ("pfml", 0.31, 2, 3)
    assert result.verdict.searches == 1 and " and 1 search, " in result.verdict.line
    assert result.verdict.seconds == 20.0 * result.verdict.trainings + 20.0


def test_the_time_of_an_arm_is_that_of_a_point_of_its_search(
    tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its method is named by its search alone."""
    timed: dict[str, Search] = {}

    def timing(search: Search, *_: Any, **__: Any) -> Any:
        timed[search.name] = search
        return SimpleNamespace(cost=SimpleNamespace(seconds_per_trial=10.0, seconds_of_all_trials=20.0))

    monkeypatch.setattr("orchestrator.claims.cost.plan", timing)
    claim = written(tmp_path, SMALL.replace("{settings: {method: pfml}}", "{search: pfml}").replace("seeds:", TUNING))
    assert claim_seconds(claim, storage, lambda line: None) == 6 * (10 + 10) + 20
    first = next(name for name in timed if name.endswith("-pfml-seed3"))
    assert timed[first].settings["method"] == "pfml" and "delta" in timed[first].settings


def test_arms_without_a_search_are_tuned_over_the_claims_space(
    tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each over what it does not give itself; one that gives all is not tuned."""
    grid = "tuning: {space: {delta: [0.15, 0.31], alpha: [1, 2]}, algorithm: grid}\nseeds:"
    text = SMALL.replace("{method: pfml}", "{method: pfml, alpha: 2}").replace("seeds:", grid)
    text = text.replace("{method: proxy_anchor}", "{method: pfml, delta: 0.2, alpha: 1}")
    claim = written(tmp_path, text)
    assert claim_plan(claim).searches == 1
    search = tuning_search(claim, "pfml", "glyphs-small")
    assert search is not None and search.algorithm == "grid" and search.space.size() == 2
    assert tuning_search(claim, "proxy_anchor", "glyphs-small") is None
    trainings, result, _ = outcome_of(claim, storage, monkeypatch, effect={})
    assert trainings.names[0].endswith("-pfml-tuning") and result.verdict.searches == 1
    settings = [read_journal(Places(storage).journal(name))[1].config["settings"] for name in trainings.names[1:3]]
    assert [(one["delta"], one["alpha"]) for one in settings] == [(0.31, 2), (0.2, 1)]
    assert result.verdict.datasets[0].tuned == {"pfml": {"delta": 0.31}} and "delta 0.31" in result.page.read_text()


@pytest.mark.parametrize("learns", [True, False])
def test_an_arm_that_did_not_learn_is_named_where_the_verdict_is_read(
    learns: bool, tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(ledger: Ledger, trial: TrialRecord) -> Judgement:
        return Judgement("learned" if learns or trial.settings["method"] != "pfml" else "did not learn")

    monkeypatch.setattr(running, "judge", judge)
    _, result, _ = outcome_of(written(tmp_path, SMALL.replace("max: 6", "max: 3")), storage, monkeypatch, effect={})
    (one,) = result.verdict.datasets
    assert one.unlearned == ({} if learns else {"pfml": 3})
    said = "not shown to have learned: pfml with 3 of 3 seeds"
    assert (said in result.verdict.line) != learns


@pytest.mark.parametrize("kind", ["superiority", "equivalence"])
def test_trainings_that_are_the_same_decide_nothing(
    kind: str, tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a setting that never comes into play: no difference of 0 is sure, and the verdict's line says why."""
    result = outcome_of(written(tmp_path, twins(kind)), storage, monkeypatch, effect={})[1]
    (one,) = result.verdict.datasets
    assert (one.verdict, one.pairs, one.effects[0].effect) == ("undecided", 4, 0)
    assert one.reason == "what its arms differ in had no effect" and one.reason in result.verdict.line
    assert one.alike == {"pfml and far": 4}
    assert "; the same test in every digit: pfml and far with 4 of 4 seeds." in result.verdict.line


def test_trainings_are_two_where_one_metric_differs(
    tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall = GrowingRecall(0.2)  # another one for each training
    result = outcome_of(written(tmp_path, twins("equivalence")), storage, monkeypatch, effect={}, recall=recall)[1]
    (one,) = result.verdict.datasets
    assert (one.verdict, one.pairs, one.effects[0].effect, one.alike) == ("holds", 3, 0, {})


def twins(kind: str) -> str:
    """The file of a claim whose made trainings do not depend on what its arms differ in."""
    text = SMALL.replace(
        "proxy_anchor: {settings: {method: proxy_anchor}}", "far: {settings: {method: pfml, alpha: 2}}"
    )
    return text.replace("[proxy_anchor]", "[far]").replace("superiority", kind).replace("max: 6", "max: 4")


def test_a_comparison_is_without_effect_until_one_side_has_a_training_of_its_own() -> None:
    def trainings(**columns: str) -> dict[tuple[str, str], list[EndedTraining]]:
        return {
            (arm, BASE): [
                EndedTraining(f"{arm}{seed}", 0.5, {"map_at_r": ord(test)}, True) for seed, test in enumerate(tests)
            ]
            for arm, tests in columns.items()
        }

    two = Contrast("a - b", {("a", BASE): 1.0, ("b", BASE): -1.0})
    assert seeds_without_effect(two, trainings(a="xyz", b="xyz")) == 3
    assert seeds_without_effect(two, trainings(a="xyz", b="xzz")) == 1
    assert seeds_without_effect(two, trainings(a="xyz", b="yyz")) == 0
    three = Contrast("a - mean of b, c", {("a", BASE): 1.0, ("b", BASE): -0.5, ("c", BASE): -0.5})
    assert seeds_without_effect(three, trainings(a="xyz", b="xzz", c="yyz")) == 0
    assert seeds_without_effect(three, trainings(a="xyz", b="xyz", c="xzz")) == 1
    other = {("a", BASE): [EndedTraining("a", 0.5, {"map_at_r": 1.0}, True)]}
    other |= {("b", BASE): [EndedTraining("b", 0.6, {"map_at_r": 1.0}, True)]}
    assert seeds_without_effect(two, other) == 0, "a diagnostic of two trainings may differ where their tests do not"
    alone = Contrast("a", {("a", BASE): 1.0})
    assert seeds_without_effect(alone, trainings(a="xxx")) == 0


def test_one_comparison_without_effect_leaves_the_others_to_fail(
    tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = twins("superiority").replace("arm: pfml", "  triplet: {settings: {method: triplet}}\narm: pfml")
    claim = written(tmp_path, text.replace("[far]", "[far, triplet]"))
    (one,) = outcome_of(claim, storage, monkeypatch, effect={"triplet": 0.1})[1].verdict.datasets
    assert (one.verdict, one.reason, one.alike) == ("does not hold", "", {"pfml and far": one.pairs})
    claim = written(tmp_path, text.replace("[far]", "[far, triplet]"), "ahead")
    (one,) = outcome_of(claim, storage, monkeypatch, effect={"triplet": -0.1})[1].verdict.datasets
    assert (one.verdict, one.reason) == ("undecided", "what its arms differ in had no effect")


def test_the_ranks_of_two_metrics_are_compared(tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MAP@R ranks four methods, recall@1 as it does or the other way round; each is trained once with each seed."""
    quality = {"pfml": 0.4, "proxy_anchor": 0.3, "contrastive": 0.2, "triplet": 0.1}
    for sign, word in ((1, "holds"), (-1, "does not hold")):
        claim = written(tmp_path, RANKS.replace("effect: 0.6", "effect: 0.2"), f"ranks{sign}")
        recall = {method: sign * of for method, of in quality.items()}
        trainings, result, _ = outcome_of(claim, storage, monkeypatch, effect=quality, recall=recall)
        (one,) = result.verdict.datasets
        assert one.verdict == word and one.effects[0].effect == pytest.approx(sign)
        assert len(trainings.names) == result.verdict.trainings == 4 * one.pairs
        assert list(one.values) == [name for method in quality for name in (method, f"{method}, second metric")]
        assert f"tau over 4 arms {sign:+.3g}" in result.verdict.line
        assert result.verdict.unit == "of the ranks by recall_at_1 and map_at_r"
        assert not one.alike, "two metrics of one training are no two trainings"


def test_an_interrupted_claim_comes_to_the_same_verdict(
    tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = written(tmp_path)
    _, first, _ = outcome_of(claim, storage, monkeypatch, effect={"pfml": 0.1}, stop_at=0)
    assert first.verdict.datasets[0].reason == "stopped after 0 pairs of 6"
    _, first, _ = outcome_of(claim, storage, monkeypatch, effect={"pfml": 0.1}, stop_at=3)
    assert first.stopped == "stopped here" and first.verdict.verdict == "undecided"
    assert first.verdict.datasets[0].reason == "stopped after 1 pair of 6"
    _, second, _ = outcome_of(claim, storage, monkeypatch, effect={"pfml": 0.1})
    places = Places(tmp_path / "other")
    places.storage.mkdir()
    places.data.symlink_to(storage / "data")
    _, whole, _ = outcome_of(claim, places.storage, monkeypatch, effect={"pfml": 0.1})
    assert plain(second.verdict) == plain(whole.verdict)
    assert own_verdict(claim, Places(storage)) == second.verdict
    assert own_verdict(written(tmp_path, SMALL + "note: changed\n"), Places(storage)) is None


def test_a_stop_that_comes_too_late_for_a_training_ends_the_claim(
    tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training ends as if nothing had been asked; the next one does not begin."""
    trainings, result, _ = outcome_of(written(tmp_path), storage, monkeypatch, effect={"pfml": 0.1}, late_stop_at=3)
    assert len(trainings.names) == 3 and result.stopped == "stopped before its next training"
    assert result.verdict.verdict == "undecided" and not result.fault


def test_a_signal_as_a_training_ends_is_not_lost(tmp_path: Path, storage: Path) -> None:
    """The same with a real training, whose last record the signal follows."""

    class Interrupting(Watcher):
        def __call__(self, event: str, trial: TrialRecord) -> None:
            if event == "ended":
                os.kill(os.getpid(), signal.SIGINT)

    tiny = "{epochs: 1, embedding_dim: 8, classes_per_batch: 8, images_per_class: 2}"
    claim = written(tmp_path, SMALL.replace("{epochs: 1}", tiny))
    result = run_claim(claim, storage=storage, tuner=InlineRunner, watcher=lambda name: Interrupting())
    assert result.stopped == "stopped before its next training" and result.verdict.trainings == 1


def test_a_failed_training_is_told_as_the_end_of_its_arm(
    tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = "{epochs: 1, embedding_dim: 8, classes_per_batch: 8, images_per_class: 2}"
    text = SMALL.replace("{epochs: 1}", tiny).replace("{method: pfml}", "{method: pfml, lr: 1.0e+30}")
    (tmp_path / "small.yaml").write_text(text)
    (tmp_path / "data").symlink_to(data_folder)
    with pytest.raises(SystemExit, match="1"):
        main(["claim", str(tmp_path / "small.yaml"), "--storage", str(tmp_path)])
    out = capsys.readouterr().out
    assert re.search(r"On glyphs-small it is undecided \(.*not finite.*\): no effect yet; 0 seeds", out)
    assert "it is not trained again; change its arm, which makes another claim" in out


def test_another_file_under_its_record_is_refused(
    tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = written(tmp_path)
    folder = storage / "claims" / claim.key
    folder.mkdir(parents=True)
    (folder / CLAIM_RECORD).write_text(json.dumps({"digest": "0" * 64}))
    with pytest.raises(InputError, match="records another claim"):
        outcome_of(claim, storage, monkeypatch, effect={})
    (folder / CLAIM_RECORD).write_text("{")
    with pytest.raises(InputError, match="is no record of a claim"):
        outcome_of(claim, storage, monkeypatch, effect={})


def test_a_trend_is_the_slope_over_all_validations(tmp_path: Path) -> None:
    trend = SMALL.replace("superiority", "trend").replace("test/map_at_r", "diagnostics/rate")
    claim = written(
        tmp_path,
        trend.replace("than: [proxy_anchor]", "direction: lower").replace(
            "  proxy_anchor: {settings: {method: proxy_anchor}}\n", ""
        ),
    )
    search = training(claim, next(cells(claim.hypothesis, "glyphs-small", 3)))
    (tmp_path / "made").mkdir()
    with MadeSearch(tmp_path / "made", search) as made:
        made.trial([0.1, 0.2, 0.3, 0.4], beside={"diagnostics/rate": [5.0, 4.5, 3.0, 2.5]}, seed=3)
        made.end()
    events, ledger = read_journal(tmp_path / "made" / JOURNAL)
    assert metric_value(claim.hypothesis.metric, "trend", events, ledger) == pytest.approx(
        np.polyfit(range(4), [5, 4.5, 3, 2.5], 1)[0] * 3
    )
    verdict = dataset_verdict(claim.hypothesis, "glyphs-small", {("pfml", BASE): [-2.7, -2.6, -2.75, -2.7]})
    assert verdict.verdict == "holds" and verdict.effects[0].high is not None and verdict.effects[0].high < 0
    with pytest.raises(InputError, match=re.escape("metric: diagnostics/rat: not recorded by two validations")):
        metric_value("diagnostics/rat", "trend", events, ledger)


# What is shipped ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_claims())
def test_a_shipped_claim_is_sound_and_names_its_place(name: str) -> None:
    path = shipped_claims()[name]
    claim = read_claim(path)
    paper = name.partition("/")[0]
    assert claim.hypothesis.source.startswith(PAPERS[paper])
    assert re.search(r"Table|Figure|Section|Eq\.|lore", claim.hypothesis.source), claim.hypothesis.source
    for state in claim.hypothesis.states:
        for arm in claim.hypothesis.trained_arms:
            if arm in claim.hypothesis.tuned_arms:
                search = tuning_search(claim, arm, next(iter(claim.hypothesis.datasets)))
                assert search is not None and search.num_trials == claim.hypothesis.tuning.num_trials
                continue
            for dataset in claim.hypothesis.datasets:
                assert "method" in claim.hypothesis.settings_of(arm, dataset, state)
    names = list(claim.hypothesis.datasets)
    assert names == ["glyphs-small", "emoji"] or (paper == "ccp" and names == ["emoji", "icons"])
    for dataset in {*names} - {"glyphs-small"}:
        pretrained = claim.hypothesis.settings | claim.hypothesis.datasets[dataset]
        is_frozen = pretrained.get("warmup_epochs", 0) >= pretrained["epochs"]
        assert pretrained["backbone"] == "efficientnet_lite0" and ("is frozen" in claim.hypothesis.note) == is_frozen
    verdict = measured_verdict(path, claim)
    kept = path.with_suffix(".json")
    assert (verdict is not None) == kept.exists(), f"{kept} is of another file: run the claim again, or remove it"


def test_a_shipped_verdict_follows_from_its_values() -> None:
    """Recomputed from the numbers that stand beside it."""
    measured = [(read_claim(path), verdict) for path, verdict in kept_verdicts()]
    for claim, verdict in measured:
        states = {"": BASE, CHANGED: CHANGED, SECOND: SECOND}
        for one in verdict.datasets:
            keys = {name.partition(", ")[::2]: column for name, column in one.values.items()}
            values = {(arm, states[state]): column for (arm, state), column in keys.items()}
            repeated = dataset_verdict(claim.hypothesis, one.dataset, values, classes=one.classes, queries=one.queries)
            assert (
                repeated.model_copy(
                    update={
                        "effects": one.effects,
                        "unlearned": one.unlearned,
                        "alike": one.alike,
                        "tuned": one.tuned,
                    }
                )
                == one
            )
            for again, effect in zip(repeated.effects, one.effects, strict=True):
                assert again.model_dump(exclude={"comparison"}) == pytest.approx(
                    effect.model_dump(exclude={"comparison"})
                )
        assert verdict.verdict == whole_verdict(verdict.datasets)


def test_the_pages_table_is_what_the_files_say() -> None:
    page = (ROOT / "docs" / "claims.md").read_text("utf-8")
    script = runpy.run_path(str(ROOT / "docs" / "write_claims_table.py"))
    assert page == script["with_table"](page), "docs/claims.md: make claims-table"


def kept_verdicts() -> list[tuple[Path, ClaimVerdict]]:
    found = [(path, measured_verdict(path, read_claim(path))) for path in shipped_claims().values()]
    return [(path, verdict) for path, verdict in found if verdict is not None]


def test_the_list_says_what_was_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A claim that was run in the storage has that verdict."""
    claim = read_claim(shipped_claims()["pfml/alpha_order"])
    verdict = claim_verdict(claim, [], trainings=0, searches=0, seconds=0.0, commit=None)
    folder = tmp_path / "claims" / claim.key
    folder.mkdir(parents=True)
    (folder / CLAIM_VERDICT).write_text(verdict.model_dump_json())
    with pytest.raises(SystemExit):
        main(["claim", "--list", "--json", "--storage", str(tmp_path)])
    listed = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert [one["name"] for one in listed] == list(shipped_claims())
    measured = {path.stem for path, _ in kept_verdicts()} | {"alpha_order"}
    assert {one["name"].partition("/")[2] for one in listed if one["verdict"] is not None} == measured
    with pytest.raises(SystemExit):
        main(["claim", "--list", "--storage", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    for one in listed:
        (line,) = [line for line in lines if line.split()[:1] == [one["name"]]]
        assert ("not run" if one["verdict"] is None else one["verdict"]["verdict"]) in line
    assert any(line.startswith(f"{len(listed)} claims: ") for line in lines)
    with pytest.raises(SystemExit):
        main(["claim", "pfml/alpha_order", "--list", "--storage", str(tmp_path)])
    assert capsys.readouterr().out.startswith(verdict.line)
    assert (
        find_claim("pfml/label_noise")
        == find_claim("claims/pfml/label_noise.yaml")
        == shipped_claims()["pfml/label_noise"]
    )
    with pytest.raises(InputError, match="did you mean 'pfml/label_noise'"):
        find_claim("pfml/label_nose")


def test_the_file_and_the_kinds_of_the_page_are_right(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "claims.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert written(tmp_path, text).hypothesis.kind == "difference_of_differences"
    described = re.findall(r"^\| `(\w+)` \| [^|]* \| [^|]* \| [^|]* \|$", page, re.MULTILINE)
    assert described == list(get_args(Kind))
    keys = {key for cell in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, re.MULTILINE) for key in cell.split(", ")}
    assert {f"`{key}`" for key in Hypothesis.model_fields} <= keys


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_claim_that_is_killed_twice_comes_to_the_same_verdict(tmp_path: Path, data_folder: Path) -> None:
    """From nothing to its verdict: kill -9 in the middle of two trainings, and the same command again."""
    tiny = "{epochs: 1, embedding_dim: 8, classes_per_batch: 8, images_per_class: 2}"
    (tmp_path / "small.yaml").write_text(SMALL.replace("max: 6", "max: 3").replace("{epochs: 1}", tiny))
    words = [sys.executable, "-m", "orchestrator", "claim", str(tmp_path / "small.yaml"), "--json", "--storage"]
    verdicts = []
    for name, kills in (("calm", ()), ("disturbed", (2, 5))):
        storage = tmp_path / name
        storage.mkdir()
        (storage / "data").symlink_to(data_folder)
        for trainings in kills:
            driver = subprocess.Popen(
                [*words, str(storage)], cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL
            )
            deadline = time.monotonic() + 900
            while len(list(storage.glob("searches/claim-*/journal.jsonl"))) < trainings and driver.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert driver.poll() is None, "it ended before it was killed"
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            journals = list(storage.glob("searches/claim-*/journal.jsonl"))
            assert (
                len(journals) >= trainings and '"search_ended"' not in max(journals, key=os.path.getmtime).read_text()
            )
        done = subprocess.run([*words, str(storage)], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        verdicts.append(ClaimVerdict.model_validate_json(done.stdout.strip().splitlines()[-1]))
    assert plain(verdicts[0]) == plain(verdicts[1])
    assert verdicts[0].datasets[0].pairs == 3 and verdicts[0].trainings == 6
