"""A Ray cluster: started or joined, its nodes compared with this machine, what fits on it."""

import contextlib
import inspect
import json
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.config.workers import Workers, fewest, in_group, most
from orchestrator.errors import InputError
from orchestrator.execution.installed import COMPARED, difference
from orchestrator.execution.ray_private import own_node_died
from orchestrator.problems import Bare, Option, Problem, Words
from orchestrator.storage import paths
from orchestrator.storage.folder import Folder
from orchestrator.storage.provenance import versions

if TYPE_CHECKING:
    from orchestrator.config.search import Search

NO_LABELS: Mapping[str, str] = {}
OF_A_TYPE = 0.001
"""How much a worker takes of `accelerator_type:H100`, of which a node has 1: it only says where."""
NODE_SECONDS = 300.0
"""How long a node may take to get the code and answer; it may have to start its first worker."""


def node_lives(node_id: str) -> bool:
    """Whether this machine's Ray node is alive. For one that we started we see it at once; the cluster may take minutes
    to notice, while trials continue."""
    return not own_node_died() and any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())


def is_submitted_job() -> bool:
    """Whether this process is itself a job of the cluster, started with its own code (`ray job submit`)."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    return "py_modules" in job.get("runtime_env", {})


SHARED = ("name a ", Option("storage"), " that all nodes share")


def living_nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster that can run trials."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]


def check_nodes(storage: Path) -> None:
    """InputError naming the first node that does not see the storage or has other versions than this process. A node
    that dies during the check is ignored."""
    probe = f".node-probe-{uuid.uuid4().hex}"
    Folder(storage).write(probe, b"")
    here = versions(COMPARED)
    try:
        nodes = living_nodes()
        answers = [
            ray.remote(num_cpus=0, max_retries=0)(describe_node)
            .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            .remote(paths.portable(storage), probe)
            for node in nodes
        ]
        for node, answer in zip(nodes, answers, strict=True):
            option, name = (Option("address"),), f"node {node['NodeManagerAddress']}"
            try:
                there, sees = ray.get(answer, timeout=NODE_SECONDS)
            except RayError as error:
                if node["NodeID"] not in {one["NodeID"] for one in living_nodes()}:  # it died in the meantime
                    continue
                reason = " ".join(str(error).split())[:300]
                rule: Words = f"cannot run this version's code ({reason})"
                raise InputError(Problem(option, Bare(name), rule, begins_rule=True)) from None
            if not sees:
                how = ("its variables or files (AWS_*, GOOGLE_*, AZURE_*) must say how",)
                rule = (
                    f"does not see {paths.display_path(storage)}: ",
                    *(how if paths.address_of(storage) else SHARED),
                )
                raise InputError(Problem(option, Bare(name), rule, begins_rule=True))
            if (other := difference(here, there)) is not None:
                raise InputError(Problem((*option, name), rule=other))
    finally:
        Folder(storage).remove(probe)


def describe_node(storage: str, probe: str) -> tuple[dict[str, str], bool]:
    """Runs on a node: its versions, and whether it sees a file of the storage."""
    storage_visible = False
    with contextlib.suppress(OSError):
        storage_visible = Folder(paths.local(storage), patient=False).read(probe) is not None
    return versions(COMPARED), storage_visible


def placement_groups() -> set[str]:
    """The placement groups of this process's Ray job that hold or wait for resources of the cluster."""
    job = ray.get_runtime_context().get_job_id()  # the ids of all placement groups of a job end with it
    groups = {key for key, group in placement_group_table().items() if group["state"] != "REMOVED"}
    return {key for key in groups if key.endswith(job)}


def resources(search: "Search", workers: int | Workers) -> dict[str, float]:
    """The resources of each of a trial's workers: its CPU threads, and a GPU if the cluster has any (for a single
    worker, the share set by the search). InputError if it needs a GPU and there is none."""
    training = search.example().training
    each: dict[str, float] = {"CPU": training.threads}
    if training.device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1:
        each["GPU"] = 1 if in_group(workers) else search.gpus_per_trial or 1
    elif training.device == "cuda":
        raise InputError("device: 'cuda': no machine of the cluster has a GPU: use 'auto' or 'cpu', or another cluster")
    elif search.gpus_per_trial is not None and training.device == "cpu":
        raise InputError(f"gpus_per_trial: {search.gpus_per_trial:g}: device is 'cpu'; drop one of the two")
    for name, amount in search.resources.items():
        if isinstance(amount, str):
            each[f"{name}:{amount}"] = OF_A_TYPE
        else:
            each[name] = amount
    return each


def node_labels(search: "Search") -> dict[str, str]:
    """The labels of the nodes that may train. InputError if this Ray cannot choose nodes by labels."""
    if search.node_labels and "bundle_label_selector" not in inspect.signature(placement_group).parameters:
        raise InputError(f"node_labels: Ray {ray.__version__} cannot choose nodes by their labels: use a later one")
    return search.node_labels


def has_labels(node: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a node has labels, each with its `value`, another than `!value`, one of `in(value, value)` or none of
    `!in(value, value)`; as Ray reads them."""
    for label, asked in labels.items():
        several = re.fullmatch(r"!?in\((.*)\)", asked)
        values = several[1].split(",") if several else [asked.removeprefix("!")]
        there = node.get("Labels", {}).get(label) in [value.strip() for value in values]
        if there == asked.startswith("!"):
            return False
    return True


def trials_at_once(search: "Search", each: Mapping[str, float]) -> int:
    """How many trials with workers of this size fit on the cluster now, at most as many as the search allows."""
    trials, rest = divmod(places(each, search.node_labels), most(search.workers))
    fit = trials + (rest >= fewest(search.workers))  # the last one has fewer workers than the others
    return min(fit, search.max_concurrent or fit)


def places(each: Mapping[str, float], labels: Mapping[str, str] = NO_LABELS) -> int:
    """How many workers of this size fit on the cluster's nodes with these labels."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and has_labels(node, labels)]
    return sum(min(_times(amount, node.get(kind, 0), kind) for kind, amount in each.items()) for node in nodes)


def _times(amount: float, there: float, kind: str) -> int:
    """How often this much of a resource is on a node. A share of a GPU lies on one GPU: two GPUs have room for four
    shares of 0.4, not for five."""
    if kind == "GPU" and amount < 1:
        return int(there) * _times(amount, 1, "") + _times(amount, there % 1, "")
    return int(there / amount + 1e-4)  # three thirds of a GPU must count as one: Ray's unit is a ten-thousandth


def there_is(each: Mapping[str, float], workers: int, labels: Mapping[str, str] = NO_LABELS) -> str:
    """What the cluster has of these resources, in words: in all, and on each kind of node if the sums would do; or what
    its nodes with these labels have."""
    if labels:
        living = living_nodes()
        there = [node for node in living if has_labels(node, labels)]
        sums = (f"{sum(node['Resources'].get(kind, 0) for node in there):g} {kind}" for kind in each)
        values = {label: sorted({node.get("Labels", {}).get(label, "none") for node in living}) for label in labels}
        having = "; ".join(f"{label}: {', '.join(names)}" for label, names in values.items())
        return f"{', '.join(sums)} on its {len(there)} of {len(living)} nodes with such labels (they have {having})"
    total = ray.cluster_resources()
    amounts = ", ".join(f"{total.get(kind, 0):g} {kind}" for kind in each)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if len(nodes) > 1 and all(total.get(kind, 0) >= workers * amount for kind, amount in each.items()):
        kinds = sorted({tuple(node.get(kind, 0) for kind in each) for node in nodes})
        words = (" and ".join(f"{amount:g} {kind}" for kind, amount in zip(each, row, strict=True)) for row in kinds)
        amounts += f" on nodes with {'; '.join(words)}"
    return amounts
