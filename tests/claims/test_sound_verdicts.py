"""Claims that would decide by trainings which say nothing, are others than they seem, or are not of the numbers that
are named beside them."""

import html
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.made_claims import RANKS, SMALL, TUNING, Trainings, outcome_of, problems_of, written
from support.made_claims import storage as storage

from orchestrator.claims import running
from orchestrator.claims.design import cells, training, tuning_search
from orchestrator.claims.file import read_claim
from orchestrator.claims.page import claim_command, claim_page
from orchestrator.claims.sequential import FAILS, UNDECIDED, confidence_sequence, decisions
from orchestrator.claims.shipped import find_claim, measured_verdict, shipped_claims
from orchestrator.cli.main import main
from orchestrator.errors import InputError
from orchestrator.report.learning import Judgement
from orchestrator.storage.places import CLAIM_VERDICT, Places
from orchestrator.storage.reading import read_journal

GRID = "tuning: {space: {delta: [0.15, 0.31]}, algorithm: grid}\nseeds:"


def test_seeds_without_an_effect_of_their_own_do_not_decide_later() -> None:
    """Three seeds with the same trainings, then one that differs by six points: that is one value, not four."""
    values = np.array([[0.0, 0.0, 0.0, 0.06]])
    assert decisions("superiority", values, 0.01, resolution=1 / 1920)[-1] == FAILS
    assert decisions("superiority", values, 0.01, resolution=1 / 1920, without_effect=[3])[-1] == UNDECIDED
    low, high = confidence_sequence(values, skipped=[3])
    assert np.isinf(low[0, :3]).all() and low[0, 3] < values.mean() < high[0, 3] and high[0, 3] > 0.06


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            SMALL.replace("superiority", "difference_of_differences")
            .replace("proxy_anchor: {", "pfml-changed: {")
            .replace("[proxy_anchor]", "[pfml-changed]")
            .replace("seeds:", "changed: {label_noise: 0.2}\nseeds:"),
            "line 10: arms.pfml-changed: has trainings called glyphs-small-pfml-changed, as pfml, changed, on",
        ),
        (
            SMALL.replace("[glyphs-small]", "[glyphs-small, glyphs]")
            .replace("proxy_anchor: {", "small-pfml: {")
            .replace("[proxy_anchor]", "[small-pfml]"),
            "line 10: arms.small-pfml: has trainings called glyphs-small-pfml, as pfml on glyphs-small has",
        ),
        (
            SMALL.replace("pfml: {", f"{'p' * 80}: {{").replace("arm: pfml", f"arm: {'p' * 80}"),
            "characters; at most 100 are allowed: shorten the name of the arm, or of the file",
        ),
        (
            SMALL.replace("{settings: {method: proxy_anchor}}", "{metric: test/map_at_r, settings: {method: pfml}}"),
            "line 10: arms.proxy_anchor: is the same as pfml: a comparison of them decides nothing",
        ),
        (
            SMALL.replace("superiority", "difference_of_differences")
            .replace("seeds:", "changed: {label_noise: 0.2}\nseeds:")
            .replace("{method: pfml}", "{method: pfml, label_noise: 0.2}"),
            "line 13: changed: changes nothing of pfml on glyphs-small: their settings are equal",
        ),
        (
            SMALL.replace("superiority", "difference_of_differences").replace("seeds:", "changed: {epochs: 1}\nseeds:"),
            "line 13: changed: changes nothing of pfml on glyphs-small",
        ),
        (SMALL.replace("test/map_at_r", "test/recall_at_10"), "a test on glyphs-small has recall_at_1, 2, 4 and 8"),
        (SMALL.replace("test/map_at_r", "val/recall_at_10"), "line 4: metric: 'val/recall_at_10': a validation has "),
        (SMALL.replace("test/map_at_r", "diagnostics/"), "line 4: metric: 'diagnostics/' names no metric"),
        (SMALL.replace("max: 6", "max: 6, also: [dataset]"), "seeds.also: 'dataset' is no other seed of a training"),
        (
            SMALL.replace("{epochs: 1}", "{epochs: 1, protocol: [mlrc]}").replace(
                "{method: pfml}", "{method: pfml}, test: {degradation: blur}"
            ),
            "protocol",
        ),
    ],
)
def test_what_could_not_be_told_apart_or_read_is_refused(text: str, said: str, tmp_path: Path) -> None:
    problems = problems_of(tmp_path, text)
    assert any(said in problem for problem in problems), problems


def test_other_recalls_are_of_the_data_set_that_is_tested(tmp_path: Path) -> None:
    other = SMALL.replace("test/map_at_r", "test/recall_at_10").replace("[glyphs-small]", "[sop]")
    assert written(tmp_path, other)


def test_tuned_may_be_compared_with_untuned(tmp_path: Path) -> None:
    text = SMALL.replace("{method: proxy_anchor}", "{method: pfml, delta: 0.2}").replace("seeds:", GRID)
    assert written(tmp_path, text).hypothesis.tuned_arms == ["pfml"]


def test_an_arms_trainings_choose_their_epoch_as_its_search_does(
    tmp_path: Path,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "tuned.yaml").write_text("method: pfml\nobjective: val/recall_at_1\nspace: {delta: [0.15, 0.31]}\n")
    by_file = SMALL.replace("{settings: {method: pfml}}", f"{{search: {tmp_path / 'tuned.yaml'}}}")
    chosen = SMALL.replace("{epochs: 1}", "{epochs: 1, selection_metric: val/recall_at_1}").replace("seeds:", GRID)
    chosen = chosen.replace("{method: proxy_anchor}", "{method: pfml, delta: 0.2}")
    for name, text in (("file", by_file.replace("seeds:", TUNING)), ("chosen", chosen)):
        claim = written(tmp_path, text, name)
        search = tuning_search(claim, "pfml", "glyphs-small")
        assert search is not None and search.objective.metric == "val/recall_at_1"
        trainings, _, _ = outcome_of(claim, storage, monkeypatch, effect={}, stop_at=2)
        ended = read_journal(Places(storage).journal(trainings.names[1]))[1]
        assert ended.config["objective"]["metric"] == "val/recall_at_1"
    plain = next(iter(cells(written(tmp_path).hypothesis, "glyphs-small", 3)))
    assert training(written(tmp_path), plain).objective.metric == "val/map_at_r"


def test_pairs_are_of_one_preparation_of_the_data(
    tmp_path: Path,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome_of(claim := written(tmp_path), storage, monkeypatch, effect={}, stop_at=3)
    monkeypatch.setattr(running, "digests_of", lambda *_: {"glyphs-small": "b" * 64})
    with pytest.raises(InputError, match=r"-pfml-seed3: was trained on another glyphs-small \(digest \w{12}, now bbbb"):
        outcome_of(claim, storage, monkeypatch, effect={})


def test_an_arm_has_one_point(tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that goes on later may have another winner."""
    text = SMALL.replace("{method: proxy_anchor}", "{method: pfml, delta: 0.2}").replace("seeds:", GRID)
    claim = written(tmp_path, text)
    trainings, _, _ = outcome_of(claim, storage, monkeypatch, effect={}, stop_at=3)
    tuning = Places(storage).search(trainings.names[0])
    (tuning / "journal.jsonl").rename(tmp_path / "before.jsonl")
    tuning.rmdir()
    with pytest.raises(InputError, match=r"-seed3: was trained with delta 0.31, and its arm is tuned to delta 0.15"):
        outcome_of(claim, storage, monkeypatch, effect={}, tuned=(0.2, 0.1))


def test_a_search_without_a_winner_leaves_its_data_set_undecided(
    tmp_path: Path,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = SMALL.replace("{method: proxy_anchor}", "{method: pfml, delta: 0.2}").replace("seeds:", GRID)
    claim = written(tmp_path, text)
    trainings, result, _ = outcome_of(claim, storage, monkeypatch, effect={}, tuned=())
    (one,) = result.verdict.datasets
    assert len(trainings.names) == 1 and one.verdict == "undecided" and result.failure == one.reason
    assert one.reason.endswith("-pfml-tuning failed: no trial has a value") and result.stopped is None
    assert (storage / "claims" / claim.key / CLAIM_VERDICT).exists()


def test_an_arm_is_tuned_to_the_end_before_it_is_trained(
    tmp_path: Path,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trial that a broken GPU ended is trained again; until then nothing is chosen."""
    text = SMALL.replace("{method: proxy_anchor}", "{method: pfml, delta: 0.2}").replace("seeds:", GRID)
    trainings, result, _ = outcome_of(written(tmp_path, text), storage, monkeypatch, effect={}, retried=True)
    assert len(trainings.names) == 1 and result.fault
    assert result.stopped is not None and result.stopped.endswith("-tuning: not all of its trials have ended")


@pytest.mark.parametrize(
    ("metric", "classes", "queries"),
    [("test/map_at_r", 60, 1920), ("val/map_at_r", 18, 576), ("cost/seconds_per_epoch", None, None)],
)
def test_a_verdict_names_the_classes_of_its_metric(
    metric: str,
    classes: int | None,
    queries: int | None,
    tmp_path: Path,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = written(tmp_path, SMALL.replace("test/map_at_r", metric).replace("max: 6", "max: 3"))
    (one,) = (result := outcome_of(claim, storage, monkeypatch, effect={})[1]).verdict.datasets
    assert (one.classes, one.queries) == (classes, queries)
    assert (f"3 seeds, {classes} classes" if classes else "; 3 seeds.") in result.verdict.line
    if metric.startswith("val/"):  # the made values are equal: the interval is that of one query of the validation
        low, high = confidence_sequence(np.zeros(3), resolution=1 / 576)
        assert (one.effects[0].low, one.effects[0].high) == pytest.approx((100 * low[-1], 100 * high[-1]))


def test_a_training_that_two_metrics_read_did_not_learn_once(
    tmp_path: Path,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "judge", lambda ledger, trial: Judgement("did not learn"))
    recall = dict.fromkeys(("pfml", "proxy_anchor", "contrastive", "triplet"), 0.1)
    (one,) = outcome_of(written(tmp_path, RANKS), storage, monkeypatch, effect={}, recall=recall)[1].verdict.datasets
    assert list(one.unlearned) == list(recall)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("pfml/proxies_cost_little", [0, 1]),  # lower is claimed, by no more than a second above
        ("pfml/proxies_nearer", [0, -0.05]),
        ("ccp/alternating", [0, 0.5]),
        ("pfml/proxies_stable", [0, -2, 2]),
    ],
)
def test_the_smallest_effect_is_drawn_on_the_claimed_side(
    name: str, lines: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.claims import page

    path = shipped_claims()[name]
    verdict = measured_verdict(path, read_claim(path))
    assert verdict is not None
    plot = page._effects(verdict)
    assert plot is not None and sorted(one["x0"] for one in plot.layout["shapes"]) == sorted(lines)
    assert ("(lower is claimed)" in verdict.line) == (verdict.direction == "lower")


def test_a_printed_command_goes_on_with_this_claim(
    tmp_path: Path,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "my claims").mkdir()
    claim = written(tmp_path / "my claims")
    again = f"orchestrator claim '{claim.path}' --storage {storage}"
    assert claim_command(claim, storage) == again
    result = outcome_of(claim, storage, monkeypatch, effect={}, stop_at=1)[1]
    page = re.sub("<[^>]*>", "", claim_page(claim, result.verdict, storage))
    assert again in html.unescape(page)
    monkeypatch.setattr(running, "advance", Trainings({}, stop_at=0))
    tracker = "http://user:secret@127.0.0.1:9"
    monkeypatch.setattr("orchestrator.cli.claim.refuse_start", lambda *_, **__: None)
    with pytest.raises(SystemExit):
        main(["claim", str(claim.path), "--storage", str(storage), "--tracking-uri", tracker])
    out = capsys.readouterr().out
    assert f"{again} --tracking-uri" in out and "secret" not in out


def test_a_name_that_no_file_can_have_is_no_claim(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file, and no shipped claim"):
        find_claim("x" * 300)
    problems = problems_of(tmp_path, SMALL.replace("{method: pfml}}", f"{{}}, search: {'a' * 300}.yaml}}"))
    assert any("no such search file" in problem for problem in problems)


def test_a_stopped_claim_says_so_also_where_its_arms_do_not_differ(
    tmp_path: Path,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = SMALL.replace("{method: proxy_anchor}", "{method: pfml, alpha: 2}")
    (one,) = outcome_of(written(tmp_path, text), storage, monkeypatch, effect={}, stop_at=2)[1].verdict.datasets
    assert one.reason == "stopped after 1 pair of 6" and one.alike and one.effects[0].low is None
