"""GPUs are shared out as the search says: on a real cluster whose nodes declare GPUs that no machine has.

scheduling.py runs all of it on one cluster, in a process of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.tune import PlacementGroupFactory

from orchestrator.config.resolve import resolve_search
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError
from orchestrator.execution import ray_cluster
from orchestrator.execution.protocol import Work
from orchestrator.execution.ray_cluster import has_labels, node_labels, places, there_is
from orchestrator.execution.ray_tune import Trial

Facts = dict[str, Any]
SCRIPT = Path(__file__).parents[1] / "support" / "scheduling.py"


@pytest.mark.parametrize(
    ("nodes", "share", "room"),
    [
        ([2], 0.4, 4),  # two on each: a share lies on one GPU
        ([1, 1], 0.4, 4),
        ([8], 0.7, 8),
        ([3], 1 / 3, 9),
        ([0, 4, 1], 1, 5),
        ([1.5], 0.5, 3),
        ([0.5, 0.5], 1, 0),
    ],
)
def test_a_share_lies_on_one_gpu(monkeypatch: pytest.MonkeyPatch, nodes: list[float], share: float, room: int) -> None:
    there = [{"Alive": True, "Resources": {"CPU": 64.0, "GPU": float(gpus)}} for gpus in nodes]
    monkeypatch.setattr(ray, "nodes", lambda: there)
    assert places({"CPU": 1, "GPU": share}) == room


@pytest.mark.parametrize("order", [(2, 8, 2), (8, 2, 2), (2, 2, 8)])
def test_kinds_of_nodes_are_named_the_smallest_first(monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]) -> None:
    """In whatever order Ray tells of them."""
    there = [{"Alive": True, "Resources": {"CPU": float(cpus), "GPU": cpus / 2}} for cpus in order]
    monkeypatch.setattr(ray, "nodes", lambda: there)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 12.0, "GPU": 6.0})
    said = "12 CPU, 6 GPU on nodes with 2 CPU and 1 GPU; 8 CPU and 4 GPU"
    assert there_is({"CPU": 3, "GPU": 1}, 3) == said


LABELLED = {"own": {"market": "own", "region": "eu"}, "spot": {"market": "spot", "region": "us"}, "bare": {}}


@pytest.mark.parametrize(
    ("labels", "nodes"),
    [
        ({}, ["own", "spot", "bare"]),
        ({"market": "spot"}, ["spot"]),
        ({"market": "!spot"}, ["own", "bare"]),
        ({"market": "in(own, spot)"}, ["own", "spot"]),
        ({"market": "!in(own,spot)"}, ["bare"]),
        ({"market": "own", "region": "us"}, []),
        ({"zone": "a"}, []),
    ],
)
def test_only_nodes_with_the_labels_count(
    monkeypatch: pytest.MonkeyPatch, labels: dict[str, str], nodes: list[str]
) -> None:
    there = [{"Alive": True, "Resources": {"CPU": 2.0}, "Labels": LABELLED[name]} for name in LABELLED]
    assert [name for name, node in zip(LABELLED, there, strict=True) if has_labels(node, labels)] == nodes
    monkeypatch.setattr(ray, "nodes", lambda: there)
    assert places({"CPU": 1}, labels) == 2 * len(nodes)


def test_a_ray_without_labels_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {"method": "pfml", "space": {"lr": [1, 2]}, "algorithm": "grid"}
    search = resolve_search(raw | {"node_labels": {"market": "spot"}}, name="s", source="s")
    assert node_labels(search) == {"market": "spot"}
    monkeypatch.setattr(ray_cluster, "placement_group", lambda bundles: None)
    with pytest.raises(InputError, match=r"^node_labels: Ray 2\.\d+\.\d+ cannot choose nodes by their labels"):
        node_labels(search)
    assert node_labels(resolve_search(raw, name="s", source="s")) == {}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"GPU": 1}, "resources: GPU: 1: is given by gpus_per_trial and workers"),
        ({"special": 0}, "resources: special: 0: should be an amount of at least 0.0001"),
        ({"special": float("nan")}, "resources: special: nan: should be an amount"),
        ({"special": "many"}, "resources: special: 'many': should be an amount"),
        ({"accelerator_type": 1}, "resources: accelerator_type: 1: should be the name of a type of GPU"),
        ({"special": [1]}, "resources: special: [1]: should be a number"),
        ({"accelerator_type": ["H100"]}, "resources: accelerator_type: ['H100']: should be the name of a type of GPU"),
    ],
)
def test_resources_have_names_and_amounts(given: dict[str, Any], problem: str) -> None:
    raw = {"method": "pfml", "space": {"lr": [1, 2]}, "algorithm": "grid", "resources": given}
    with pytest.raises(InputError) as error:
        resolve_search(raw, name="s", source="s.yaml")
    assert str(error.value).startswith(f"s.yaml: {problem.replace('resources: ', 'resources.', 1)}"), str(error.value)


@pytest.mark.parametrize("selector", ["in(", "in()", "not(a)", "", "a b", "in(a"])
def test_labels_are_selected_as_ray_allows_it(selector: str) -> None:
    raw = {"method": "pfml", "space": {"lr": [1, 2]}, "algorithm": "grid"}
    with pytest.raises(InputError, match=r"s\.yaml: node_labels\.zone: .*: should be a label's value, `!VALUE`"):
        resolve_search(raw | {"node_labels": {"zone": selector}}, name="s", source="s.yaml")
    for right in ("spot", "!spot", "in(a, b_1)", "!in(a)"):
        labels = {"zone": right}
        assert resolve_search(raw | {"node_labels": labels}, name="s", source="s").node_labels == labels


def test_a_search_that_names_neither_asks_as_before() -> None:
    work = Work("0000", resolve_experiment({"method": "pfml"}, "trial"), "data", "folder", resources={"CPU": 1})
    plain = Trial.default_resource_request({"work": work})
    assert plain == PlacementGroupFactory([{"CPU": 1}])
    labelled = Trial.default_resource_request({"work": replace(work, node_labels={"market": "spot"})})
    assert labelled == PlacementGroupFactory([{"CPU": 1}], bundle_label_selector=[{"market": "spot"}]) != plain


@pytest.fixture(scope="module")
def facts(data_folder: Path) -> Iterator[Facts]:
    """What happened on the cluster."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder:  # sockets lie beneath
        (Path(folder) / "s").mkdir()
        (Path(folder) / "s" / "data").symlink_to(data_folder)
        variables = os.environ | {"RAY_TMPDIR": folder, "RAY_worker_niceness": "0"}
        variables.pop("CUDA_VISIBLE_DEVICES", None)
        done = subprocess.run(
            [sys.executable, str(SCRIPT), f"{folder}/s"],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        yield json.loads(done.stdout.splitlines()[-1])


def on_gpus(seen: list[dict[str, Any]]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """When which GPU was in use."""
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in seen:
        assert row["visible"] == ",".join(row["gpus"]), "CUDA shows a trial the GPUs that it was given"
        times[row["node"], row["visible"], row["trial"]].append(row["time"])
    used = defaultdict(list)
    for (node, gpu, _), (begin, end) in times.items():
        used[node, gpu].append((begin, end))
    return used


def at_once(spans: list[tuple[float, float]]) -> int:
    """The most that were in use at the same time."""
    return max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)


@pytest.mark.slow
def test_ray_has_room_for_as_many_as_we_count(facts: Facts) -> None:
    assert {share: row["counted"] for share, row in facts["granted"].items()} == {
        "1.0": 3,
        "0.5": 6,
        "0.4": 6,
        "0.3": 8,  # six on the two GPUs, and two, not three, beside the other: its node has two CPUs
        "0.7": 3,
    }
    assert all(row["granted"] == row["counted"] for row in facts["granted"].values())


@pytest.mark.slow
def test_what_can_never_fit_is_refused_before_anything_is_written(facts: Facts) -> None:
    larger = "name a larger cluster"
    asks = "asks for {} x ({} CPU, 1 GPU), the cluster has 12 CPU, 3 GPU"
    nodes = " on nodes with 2 CPU and 0 GPU; 2 CPU and 1 GPU; 8 CPU and 2 GPU"
    assert facts["refused"] == {
        "four": f"--workers: 4: a trial {asks.format(4, 1)}: give --workers 3 or {larger}",
        "final": f"--final-workers: 4: the final run {asks.format(4, 1)}: give --final-workers 3 or {larger}",
        "threads": f"--workers: 1: a trial {asks.format(1, 9)}{nodes}: lower threads or {larger}",
        "type": "resources: {'accelerator_type': 'A100'}: a trial asks for 1 x (1 CPU, 1 GPU, 0.001 "
        "accelerator_type:A100), the cluster has 12 CPU, 3 GPU, 0 accelerator_type:A100",
        "special": "resources: {'special': 1}: a trial asks for 2 x (1 CPU, 1 GPU, 1 special), the cluster has 12 CPU, "
        "3 GPU, 1 special",
        "labels": "node_labels: {'market': 'in(reserved, rented)'}: a trial asks for 1 x (1 CPU, 1 GPU, "
        "market=in(reserved, rented)), the cluster has 0 CPU, 0 GPU on its 0 of 3 nodes with such labels (they have "
        "market: none, own, spot)",
        "apart": f"--workers: 3: a trial {asks.format(3, 3)}{nodes}: give --workers 2 or {larger}",
    }


@pytest.mark.slow
def test_two_workers_have_a_gpu_each(facts: Facts) -> None:
    """CUDA shows a rank those of all ranks on its node; it takes its own of them."""
    assert facts["pair"]["results"] == ["Validated", "Validated"] and not facts["pair"]["wrong"]
    ranks = facts["pair"]["seen"]
    assert len(ranks) == 2 and all(len(rank["gpus"]) == 1 for rank in ranks)
    assert len({(rank["node"], *rank["gpus"]) for rank in ranks}) == 2
    for rank in ranks:
        beside = {gpu for each in ranks if each["node"] == rank["node"] for gpu in each["gpus"]}
        assert set(rank["visible"].split(",")) == beside


@pytest.mark.slow
def test_each_trial_has_a_gpu_of_its_own(facts: Facts) -> None:
    assert facts["whole"]["slots"] == 3 and not facts["whole"]["wrong"]
    used = on_gpus(facts["whole"]["seen"])
    assert all(at_once(spans) == 1 for spans in used.values())
    assert sum(len(spans) for spans in used.values()) == 3


@pytest.mark.slow
def test_two_trials_share_a_gpu(facts: Facts) -> None:
    assert not facts["half"]["wrong"]
    used = on_gpus(facts["half"]["seen"])
    assert max(at_once(spans) for spans in used.values()) == 2


@pytest.mark.slow
def test_trials_are_on_the_nodes_that_the_search_names(facts: Facts) -> None:
    own, spot = facts["nodes"]["own"], facts["nodes"]["spot"]
    for name, node, slots in (("type", own, 2), ("special", spot, 1), ("labels", spot, 1), ("ranks", own, 1)):
        assert not facts[name]["wrong"] and facts[name]["slots"] == slots, name
        assert {row["node"] for row in facts[name]["seen"]} == {node}, name
