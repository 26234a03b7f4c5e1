"""Trials on a cluster that declares GPUs which no machine has: all is real up to the first call of CUDA.

Run by test_scheduling.py in a process of its own. Prints what happened as JSON.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group

from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError
from orchestrator.execution import ray_train
from orchestrator.execution.protocol import Failed, Result, Validated, Work
from orchestrator.execution.ray_cluster import places
from orchestrator.execution.ray_tune import RayRunner, Trial
from orchestrator.search.driver import start

NODES: tuple[dict[str, Any], ...] = (
    {"num_cpus": 2},
    {"num_cpus": 8, "num_gpus": 2, "resources": {"accelerator_type:H100": 1}, "labels": {"market": "own"}},
    {"num_cpus": 2, "num_gpus": 1, "resources": {"special": 1}, "labels": {"market": "spot"}},
)
SHARES = (1, 0.5, 0.4, 1 / 3, 0.7)
SETTINGS = {
    "dataset": "glyphs-small",
    "weights": "random",
    "embedding_dim": 16,
    "classes_per_batch": 8,
    "images_per_class": 4,
    "validate_every": "2 steps",
    "epochs": 1,
    "precision": "float32",
}


def search(name: str, settings: dict[str, Any] | None = None, **changes: Any) -> Search:
    raw = {"method": "pfml", "settings": SETTINGS | (settings or {}), "space": {"lr": [1e-2, 1e-5]}}
    return resolve_search(raw | {"algorithm": "grid", "final": False} | changes, name=name, source="test.yaml")


def note(folder: Path, **seen: Any) -> None:
    """What a process sees."""
    gpus = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    node = ray.get_runtime_context().get_node_id()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen |= {"gpus": gpus, "node": node, "visible": visible, "time": time.time()}
    with (folder.parent / "seen.jsonl").open("a") as file:
        file.write(json.dumps(seen) + "\n")


def worker(config: Mapping[str, Any]) -> None:
    """A rank that says what it sees, and trains."""
    note(config["work"].trial_folder, trial=config["work"].trial_id)
    ray_train.train_worker(config)  # in this process it is the real one


def by_gloo() -> Any:
    """How workers find each other; NCCL, which they would take, calls CUDA."""
    return replace(own_interface(), backend="gloo")


own_interface = ray_train.own_interface


class Seen(Trial):
    """A trial that says what it sees, and trains."""

    def results_of(self, work: Work) -> Iterator[Result]:  # type: ignore[override]
        ray_train.train_worker, ray_train.own_interface = worker, by_gloo
        if work.workers == 1:
            note(work.trial_folder, trial=work.trial_id, at="begin")
        for result in super().results_of(work):
            if result.done and work.workers == 1:
                note(work.trial_folder, trial=work.trial_id, at="end")
            yield result


class Source:
    """Gives out so many trials."""

    fault: str | None = None
    stopped_by: str | None = None
    stopping = False

    def __init__(self, search: Search, works: list[Work], folder: Path, slots: int) -> None:
        self.search, self.works, self.folder, self.slots = search, works, folder, slots
        self.running: set[str] = set()
        self.lost_workers: dict[str, tuple[str, ...]] = {}
        self.results: list[Result] = []

    @property
    def is_finished(self) -> bool:
        return not self.works and not self.running

    def next(self) -> Work | None:
        if not self.works or len(self.running) >= self.slots:
            return None
        self.running.add(self.works[0].trial_id)
        return self.works.pop(0)

    def report(self, result: Result) -> bool:
        self.results.append(result)
        if result.done:
            self.running.discard(result.trial_id)
        return False

    def process_started(self, trial_id: str, now: float) -> None: ...

    def overdue(self, now: float) -> dict[str, Failed]:
        return {}

    def lost(self, end: Failed) -> None:
        raise AssertionError(end.reason)

    def report_restart(self, trial_id: str, reason: str) -> None:
        raise AssertionError(reason)


def trained(folder: Path, name: str, trials: int, **changes: Any) -> dict[str, Any]:
    """What the processes of some trials saw, and the trials' last results."""
    wanted = search(name, **changes)
    settings = wanted.example().flat() | {"device": "cpu"}
    (folder / name).mkdir(parents=True)
    works = [
        Work(
            str(n),
            resolve_experiment(settings, "trial"),
            str(folder / "data"),
            str(folder / name / str(n)),
            stop_after=1,
            workers=wanted.workers,
        )
        for n in range(trials)
    ]
    runner = RayRunner(trial=Seen)
    with runner.ready(wanted, folder) as slots:
        source = Source(wanted, [replace(work) for work in works], folder / name, slots)
        runner.run(source)
    seen = [json.loads(line) for line in (folder / name / "seen.jsonl").read_text().splitlines()]
    ended = [type(result).__name__ for result in source.results]
    wrong = [result.reason for result in source.results if not isinstance(result, Validated)]
    return {"slots": slots, "seen": seen, "results": ended, "wrong": wrong}


def granted(share: float) -> dict[str, int]:
    """How many workers with such a share we count, and how many Ray gives a place when more ask."""
    each = {"CPU": 1, "GPU": share}
    counted = places(each)
    groups = [placement_group([each]) for _ in range(counted + 2)]
    got, _ = ray.wait([group.ready() for group in groups], num_returns=counted, timeout=30)
    more, _ = ray.wait([group.ready() for group in groups], num_returns=counted + 1, timeout=0.5)
    for group in groups:
        remove_placement_group(group)
    time.sleep(0.2)
    return {"counted": counted, "granted": max(len(got), len(more))}


def refusal(folder: Path, **changes: Any) -> str:
    """Why a search is refused; it leaves no folder."""
    try:
        start(search("never", **changes), RayRunner(), storage=folder)
    except InputError as error:
        return str(error) + "".join(f" WROTE {path}" for path in (folder / "searches").glob("never/*"))
    return "it was not refused"


def main(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args=dict(NODES[0]))
    for node in NODES[1:]:
        cluster.add_node(wait=False, **node)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    facts: dict[str, Any] = {"began": time.time()}
    try:
        facts["granted"] = {f"{share:.1f}": granted(share) for share in SHARES}
        facts["refused"] = {
            "four": refusal(folder, workers=4),
            "final": refusal(folder, final=True, final_workers=4),
            "threads": refusal(folder, settings={"threads": 9}),
            "type": refusal(folder, resources={"accelerator_type": "A100"}),
            "special": refusal(folder, resources={"special": 1}, workers=2),
            "labels": refusal(folder, node_labels={"market": "in(reserved, rented)"}),
            "apart": refusal(folder, settings={"threads": 3, "images_per_class": 3}, workers=3),
        }
        facts["whole"] = trained(folder, "whole", 3)
        facts["pair"] = trained(folder, "pair", 1, workers=2)
        facts["nodes"] = {node["Labels"].get("market"): node["NodeID"] for node in ray.nodes()}
        facts["type"] = trained(folder, "type", 2, resources={"accelerator_type": "H100"})
        facts["special"] = trained(folder, "special", 1, resources={"special": 1})
        facts["labels"] = trained(folder, "labels", 1, node_labels={"market": "spot"})
        facts["ranks"] = trained(folder, "ranks", 1, node_labels={"market": "own"}, workers=2)
        facts["half"] = trained(folder, "half", 4, gpus_per_trial=0.5, max_concurrent=4)
    finally:
        ray.shutdown()
        cluster.shutdown()
    facts["seconds"] = time.time() - facts["began"]
    print(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
