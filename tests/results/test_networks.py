"""The record's comparison with a pre-trained network as it comes."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import record as record_command
from record_errors import WORLDS, simulated_network
from support.made_record import DIGESTS, LEVELS, drawn_scores, filled_record
from support.output_schemas import conforms
from support.slow_intervals import closed_holm, half_width, slow_p, slow_parts

from orchestrator.cli.main import main
from orchestrator.errors import InputError
from orchestrator.evaluation.claims import SIGNIFICANT
from orchestrator.results.networks import NETWORKS, NetworkScores, read_networks, write_network
from orchestrator.results.page import results_page, task_line
from orchestrator.results.plan import Plan, read_plan
from orchestrator.results.standings import Standings, read_standings
from orchestrator.storage.provenance import git_state

SCORES_C = drawn_scores({"network": 0.09}, seeds=1)["network"][:, 0]
"""A little below the best method's, on the same classes."""


def made_network(**changes: Any) -> NetworkScores:
    means = {f"class {number}": float(score) for number, score in enumerate(SCORES_C)}
    facts: dict[str, Any] = {
        "task": "small",
        "dataset_digest": DIGESTS["glyphs-small"],
        "backbone": "small_cnn",
        "pooling": "average",
        "test": {"map_at_r": float(SCORES_C.mean()), "recall_at_1": 0.5},
        "by_class": {"map_at_r": means, "recall_at_1": dict.fromkeys(means, 0.5)},
        "command": "orchestrator evaluate small_cnn --dataset glyphs-small",
        "commit": "c" * 40,
        "machine": "cpu",
        "date": "2026-11-28",
    }
    return NetworkScores(**(facts | changes))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    record = filled_record(tmp_path_factory.mktemp("networks"))
    write_network(made_network(), record)
    return record


@pytest.fixture(scope="module")
def standings(filled: Path) -> Standings:
    return read_standings(filled)


def test_a_comparison_with_a_network_is_that_of_a_slow_computation(standings: Standings) -> None:
    """By scipy's t, leaving out one class or one seed at a time; p and interval by Holm's method over four methods."""
    apart = {method: values_CS - SCORES_C[:, None] for method, values_CS in drawn_scores(LEVELS).items()}
    parts = {method: slow_parts(apart_CS) for method, apart_CS in apart.items()}
    ps = {method: slow_p(float(apart_CS.mean()), parts[method]) for method, apart_CS in apart.items()}
    adjusted = dict(zip(ps, closed_holm(list(ps.values()), [1.0] * len(ps)), strict=True))
    outputs = {one.method: one.against_network for one in standings.outputs if one.task == "small"}
    for method, p in adjusted.items():
        said = outputs[method]
        assert said is not None and said.other == "small_cnn as it comes"
        assert said.difference == pytest.approx(apart[method].mean(), abs=1e-9)
        assert said.p == pytest.approx(ps[method], rel=1e-4) and said.adjusted_p == pytest.approx(p, rel=1e-4)
        half = half_width(parts[method], 1 - SIGNIFICANT * said.p / said.adjusted_p)
        assert (said.low, said.high) == pytest.approx((said.difference - half, said.difference + half), abs=1e-9)
        assert (said.low > 0 or said.high < 0) == (said.verdict != "not told apart") == (p < SIGNIFICANT)
    words = {name: one.verdict for name, one in outputs.items() if one is not None}
    assert words == dict.fromkeys(("proxy_anchor", "contrastive", "triplet"), "worse") | {"pfml": "not told apart"}


def test_other_comparisons_are_as_without_a_network(filled: Path, standings: Standings) -> None:
    networks = filled / NETWORKS
    networks.rename(filled / "hidden")
    try:
        plain = read_standings(filled)
    finally:
        (filled / "hidden").rename(networks)
    without = {one.name: one.model_dump(exclude={"against_network"}) for one in standings.outputs}
    assert {one.name: one.model_dump(exclude={"against_network"}) for one in plain.outputs} == without
    assert not any(one.against_network for one in plain.outputs) and plain.over == standings.over
    assert "as it comes" not in results_page(plain)
    assert not any(one.against_network for one in standings.outputs if one.task == "large")


def test_the_network_is_shown_where_the_rows_are(
    filled: Path, standings: Standings, capsys: pytest.CaptureFixture[str]
) -> None:
    line = task_line(standings, standings.tasks[0])
    counted = "0 better, 3 worse (proxy_anchor, triplet, contrastive) and 1 not told apart."
    assert f"Compared with small_cnn as it comes ({SCORES_C.mean():.4f}): {counted}" in line
    assert "as it comes" not in task_line(standings, standings.tasks[1])
    page = results_page(standings)
    assert page.count('"dash":"dash"') == 1 and "Dashed: small_cnn as it comes" in page
    assert page.count("<dt>against small_cnn as it comes</dt>") == 4 and "It has no seeds" in page
    with pytest.raises(SystemExit) as end:
        main(["results", "--record", str(filled), "--json"])
    told = json.loads(capsys.readouterr().out)
    conforms("results show", told)
    assert end.value.code == 0 and sum(row["against_network"] is not None for row in told["rows"]) == 4


def write_other(scores: NetworkScores, record: Path) -> None:
    (record / NETWORKS / "small.json").write_text(scores.model_dump_json())


def write_no_json(record: Path) -> None:
    (record / NETWORKS / "small.json").write_text("{")


OTHER = {f"class {number}": 0.5 for number in range(19)}
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "another data set": (
        lambda record: write_other(made_network(dataset_digest="f" * 64), record),
        r"network of 'small': is of data set ffffffffffff, not of dddddddddddd \(row small.pfml, seed 0\)",
    ),
    "other classes": (
        lambda record: write_other(made_network(by_class={"map_at_r": OTHER}), record),
        "network of 'small': has scores of other classes",
    ),
    "another mean": (
        lambda record: write_other(made_network(test={"map_at_r": 0.9}), record),
        "has a test map_at_r of 0.9000, and is not the mean of its classes, 0.5",
    ),
    "another network": (
        lambda record: write_other(made_network(backbone="resnet50"), record),
        "small.json: is of resnet50, the task trains small_cnn",
    ),
    "another task": (
        lambda record: write_other(made_network(task="large"), record),
        "small.json: is of task large, which is not small",
    ),
    "no task": (
        lambda record: write_other(made_network(task="cars"), record),
        "small.json: is of task cars, which is not in the plan",
    ),
    "another metric": (
        lambda record: write_other(made_network(by_class={"recall_at_1": {}}), record),
        "small.json: has no map_at_r",
    ),
    "another format": (
        lambda record: write_other(made_network(format=2), record),
        "small.json: has format 2, this version reads 1",
    ),
    "no JSON": (
        write_no_json,
        "small.json: is no network of this version",
    ),
    "an unreadable file": (
        lambda record: (record / NETWORKS / "large.json").mkdir(),
        r"large.json: cannot be read \(Is a directory\)",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_of_a_network_is_found(what: str, filled: Path, tmp_path: Path) -> None:
    damage, message = DAMAGE[what]
    record = tmp_path / "results"
    shutil.copytree(filled, record)
    damage(record)
    with pytest.raises(InputError, match=message):
        read_standings(record)


@pytest.mark.parametrize("world", WORLDS[:3], ids=lambda world: world.name)
def test_methods_as_good_as_a_network_are_rarely_told_apart(world: Any) -> None:
    """In at most 5% of records any of six: of 100 more than 11 have a chance of 0.4%."""
    err, _ = simulated_network(np.random.default_rng(1), world, np.zeros(6), records=100)
    assert err <= 0.11


def test_intervals_over_classes_alone_would_tell_them_apart() -> None:
    """The planted bug: what the test above holds the comparison to."""
    err, _ = simulated_network(np.random.default_rng(1), WORLDS[1], np.zeros(6), records=30, ignoring="seeds")
    assert err > 0.5


def test_a_network_is_measured_as_the_printed_command_does(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").symlink_to(data_folder)
    plan: Plan = read_plan(Path("results"))
    monkeypatch.setattr(record_command, "git_state", lambda folder: git_state(folder) | {"git.dirty": "false"})
    record_command.record_network(plan, "glyphs-small", tmp_path, tmp_path / "record")
    scores = read_networks(tmp_path / "record", plan)["glyphs-small"]
    assert scores.dataset_digest == plan.tasks["glyphs-small"].digest
    capsys.readouterr()
    words = re.sub(r"^orchestrator ", "", scores.command).split()
    with pytest.raises(SystemExit):
        main([*words, "--storage", str(tmp_path), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {name: told["metrics"][name] for name in scores.test} == pytest.approx(scores.test, abs=1e-6)
