"""The record's comparison with a pre-trained network as it comes."""

import json
import math
import shutil
from dataclasses import replace
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
from orchestrator.results.networks import (
    FORMAT,
    NETWORKS,
    NetworkScores,
    classes_digest,
    features_of,
    networks_beside,
    read_networks,
    write_network,
)
from orchestrator.results.page import results_page, task_line
from orchestrator.results.plan import Task, read_plan
from orchestrator.results.standings import Standings, read_standings
from orchestrator.storage.provenance import git_state

SCORES_C = drawn_scores({"network": 0.09}, seeds=1)["network"][:, 0]
"""A little below the best method's, on the same classes."""


MEANS = {f"class {number}": float(score) for number, score in enumerate(SCORES_C)}


def made_network(**changes: Any) -> NetworkScores:
    settings = {"epochs": 2, "backbone": "small_cnn", "embedding_dim": 16}
    task = Task(dataset="glyphs-small", protocol="conventional", settings=settings)
    by_class = changes.pop("by_class", {"map_at_r": MEANS, "recall_at_1": dict.fromkeys(MEANS, 0.5)})
    facts: dict[str, Any] = {
        "format": FORMAT,
        "dataset": "glyphs-small",
        "dataset_digest": DIGESTS["glyphs-small"],
        "settings": features_of(task, "proxy_anchor"),
        "dimensions": 64,
        "test": {"map_at_r": float(SCORES_C.mean()), "recall_at_1": 0.5},
        "by_class": by_class,
        "command": "orchestrator evaluate small_cnn --dataset glyphs-small",
        "commit": "c" * 40,
        "machine": "cpu",
        "date": "2026-11-28",
        "scores_digest": classes_digest(by_class),
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
    counted = "3 worse (proxy_anchor, triplet and contrastive) and 1 not told apart (pfml)."
    text = f"Compared with small_cnn as it comes, without training ({SCORES_C.mean():.4f}): {counted}"
    assert text in line
    first = standings.tasks[0]
    assert text.split(":")[0] in task_line(standings, replace(first, rows=first.rows[:1])), "also of the only row"
    assert "as it comes" not in task_line(standings, standings.tasks[1])
    page = results_page(standings)
    assert page.count("Dashed: small_cnn as it comes, without training.") == 2, "the scores, and the costs"
    for facts in (f"test map_at_r {SCORES_C.mean():.4f}", "64 features, pooling average+max", "c" * 40, "cpu"):
        assert facts in page
    assert page.count("<dt>against small_cnn as it comes</dt>") == 4 and "It has no seeds" in page
    with pytest.raises(SystemExit) as end:
        main(["results", "--record", str(filled), "--json"])
    told = json.loads(capsys.readouterr().out)
    conforms("results show", told)
    assert [(one["task"], one["dimensions"]) for one in told["networks"]] == [("small", 64)]
    with pytest.raises(SystemExit):
        main(["results", "--record", str(filled)])
    shown = " ".join(capsys.readouterr().out.split())
    assert text in shown and "4 comparisons with pre-trained networks as they come have another 5%" in shown
    assert end.value.code == 0 and sum(row["against_network"] is not None for row in told["rows"]) == 4


def other(**changes: Any) -> str:
    return made_network(**changes).model_dump_json()


def edited(**changes: Any) -> str:
    """A file that was changed by hand."""
    return json.dumps(json.loads(other()) | changes)


def by_class(map_at_r: dict[str, float]) -> dict[str, dict[str, float]]:
    return {"map_at_r": map_at_r, "recall_at_1": dict.fromkeys(map_at_r, 0.5)}


SWAPPED = dict(zip(MEANS, [*list(MEANS.values())[1:], MEANS["class 0"]], strict=True))
NAMED = "glyphs-small.small_cnn.json: "
BESIDE = "network 'glyphs-small.small_cnn' beside task 'small': "
DAMAGE = {
    "another data set": (
        other(dataset_digest="f" * 64),
        BESIDE + "is of data set ffffffffffff, the rows are of dddddddddddd",
    ),
    "other classes": (
        other(by_class=by_class({f"class {number}": 0.5 for number in range(19)})),
        BESIDE + "has map_at_r of other classes than the rows",
    ),
    "another mean": (
        other(test={"map_at_r": 0.9, "recall_at_1": 0.5}),
        BESIDE + r"its test map_at_r, 0.9000, is not the mean of its classes' scores, 0.5",
    ),
    "another mean of the second metric": (
        other(test={"map_at_r": float(SCORES_C.mean()), "recall_at_1": 0.6}),
        BESIDE + "its test recall_at_1, 0.6000, is not the mean of its classes' scores, 0.5000",
    ),
    "swapped scores": (
        edited(by_class=by_class(SWAPPED)),
        NAMED + "has other scores of classes than it was written with",
    ),
    "no number": (other(by_class=by_class(MEANS | {"class 3": math.nan})), NAMED + "is no network of this version"),
    "beyond a share": (
        other(by_class=by_class(MEANS | {"class 3": 1.5})),
        NAMED + "has a score that is not between 0 and 1",
    ),
    "another network": (
        other(settings=made_network().settings | {"backbone": "resnet50"}),
        NAMED + "is of glyphs-small.resnet50",
    ),
    "another metric": (other(by_class={"recall_at_1": MEANS}), NAMED + "has not the metrics map_at_r, recall_at_1"),
    "no settings": (other(settings={"backbone": "small_cnn"}), NAMED + "has not the settings backbone, weights"),
    "another format": (other(format=2), NAMED + "has format 2, this version reads 1"),
    "no format": (json.dumps({key: value for key, value in json.loads(other()).items() if key != "format"}), "format"),
    "no JSON": ("{", NAMED + "is no network of this version"),
    "an empty file": ("", NAMED + "is no network of this version"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_of_a_network_is_found(what: str, filled: Path, tmp_path: Path) -> None:
    text, message = DAMAGE[what]
    record = tmp_path / "results"
    shutil.copytree(filled, record)
    (record / NETWORKS / "glyphs-small.small_cnn.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_standings(record)


def test_a_network_of_other_settings_is_beside_no_task(filled: Path, tmp_path: Path) -> None:
    """Nor is a folder a network, nor a file of the system."""
    record = tmp_path / "results"
    shutil.copytree(filled, record)
    (record / NETWORKS / "glyphs-small.small_cnn.json").unlink()
    write_network(made_network(settings=made_network().settings | {"pooling": "average"}), record)
    assert not any(task.network for task in read_standings(record).tasks)
    for name in ("more", ".DS_Store", ".glyphs-small.small_cnn.json.abcd"):
        (record / NETWORKS / name).write_text("")
    (record / "rows" / ".ipynb_checkpoints").mkdir()
    assert not any(task.network for task in read_standings(record).tasks)
    (record / NETWORKS / "more.json").mkdir()
    with pytest.raises(InputError, match=r"more.json: cannot be read \(Is a directory\)"):
        read_standings(record)


def test_networks_of_several_poolings_stand_beside_each_other(filled: Path, tmp_path: Path) -> None:
    record = tmp_path / "results"
    shutil.copytree(filled, record)
    other = made_network(settings=made_network().settings | {"pooling": "average"})
    places = {write_network(other, record), write_network(made_network(), record), write_network(other, record)}
    assert len(places) == 2 and len(read_networks(record)) == 2
    assert [task.network is not None for task in read_standings(record).tasks] == [True, False]
    timm = made_network(settings=made_network().settings | {"backbone": "timm/resnet"})
    assert write_network(timm, record).name == "glyphs-small.timm-resnet.json" and len(read_networks(record)) == 3


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
    plan = read_plan(Path("results"))
    monkeypatch.setattr(record_command, "git_state", lambda folder: git_state(folder) | {"git.dirty": "false"})
    written = record_command.record_network(plan, "glyphs-small", tmp_path, tmp_path / "record")
    (scores,) = read_networks(tmp_path / "record")
    assert scores.dataset_digest == plan.tasks["glyphs-small"].digest and written.name == f"{scores.name}.json"
    assert not list(networks_beside({"x": plan.tasks["emoji-frozen"]}, {"x": []}, [scores], plan))
    capsys.readouterr()
    words = scores.command.removeprefix("orchestrator ").split()
    assert words[-2:] == ["--set", "pooling=average+max"]
    with pytest.raises(SystemExit):
        main([*words, "--storage", str(tmp_path), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {name: told["metrics"][name] for name in scores.test} == pytest.approx(scores.test, abs=1e-6)
    monkeypatch.setattr(record_command, "git_state", lambda folder: {"git.dirty": "true"})
    with pytest.raises(SystemExit, match="commit first"):
        record_command.record_network(plan, "glyphs-small", tmp_path, tmp_path / "record")
