"""A search on a cluster of several nodes, each with an address of its own, that ask for a token."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from ruamel.yaml import YAML
from support.networks import Network, namespaces

from orchestrator.storage.journal import Journal
from orchestrator.storage.leaderboard import leaderboard_rows
from orchestrator.storage.ledger import Ledger

PLANTED = {name: f"planted-{name.lower()}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "MY_PASSWORD")}
HEAD = "10.213.0.1"
ADDRESS = f"{HEAD}:6379"
SEARCH: dict[str, Any] = {
    "method": "far_margin",
    "dataset": "glyphs-small",
    "settings": {
        "epochs": 4,
        "embedding_dim": 8,
        "classes_per_batch": 8,
        "images_per_class": 4,
        "device": "cpu",
    },
    "space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
    "num_trials": 5,
    "max_concurrent": 1,
    "final_workers": 2,
    "seed": 2,
}
PLUGIN = '''
import torch
from orchestrator.method import Method, MethodConfig


class FarMargin(Method):
    """L = mean of (1 - cosine similarity) over positive pairs + mean of max(0, similarity) over the others."""

    name = "far_margin"
    paper = "unpublished"

    class Config(MethodConfig):
        pass

    def loss(self, outputs, labels):
        e = torch.nn.functional.normalize(outputs["embedding"], dim=1)
        same = labels[:, :1] == labels[:, :1].T
        return {"pull": ((1 - e @ e.T) * same).mean(), "push": ((e @ e.T).clamp(min=0) * ~same).mean()}
'''


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not namespaces(), reason="needs root and network namespaces"),
]


NETWORK = Network("orch", "10.213.0", 4)


@dataclass
class Nodes:
    """Machines of one network, a Ray node in each."""

    base: Path
    storage: Path
    started: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    commands: list[subprocess.Popen[str]] = field(default_factory=list)

    def tear_down(self) -> None:
        for process in self.commands:
            end(process)
        for node in [*self.started.values()]:
            end(node)
        NETWORK.remove()

    def environment(self, **more: str) -> dict[str, str]:
        left_out = ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
        kept = {key: value for key, value in os.environ.items() if key not in left_out}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.base / "token")}
        mine = {"HOME": str(self.base), "OMP_NUM_THREADS": "1", "ORCHESTRATOR_STORAGE": str(self.storage)}
        return kept | token | mine | PLANTED | more

    def ray(self, number: int, **more: str) -> None:
        """A Ray node in a namespace; the first is the head, which gives its CPUs to no trial."""
        words = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats"]
        words += [f"--node-ip-address=10.213.0.{number}", f"--num-cpus={0 if number == 1 else 1}"]
        words += ["--object-store-memory=100000000"]
        if number == 1:
            words += ["--head", "--port=6379", f"--temp-dir={self.base}", f"--dashboard-host={HEAD}"]
        else:
            words += [f"--address={ADDRESS}"]
        with open(self.base / f"node-{number}.txt", "ab") as log:
            self.started[number] = subprocess.Popen(
                [*NETWORK.inside(number), *words],
                stdout=log,
                stderr=log,
                env=self.environment(**more),
                cwd=self.base,
                start_new_session=True,
            )

    def wait_for_nodes(self, count: int) -> None:
        """Until the cluster has so many."""
        script = f"""
import ray, time
for _ in range(90):
    try:
        ray.init("{ADDRESS}", log_to_driver=False)
        break
    except ConnectionError:
        time.sleep(1)
while sum(node["Alive"] for node in ray.nodes()) < {count}:
    time.sleep(0.5)
"""
        waiting = self.begin(1, "-c", script)
        deadline = time.monotonic() + 300
        while waiting.poll() is None:
            for number, node in self.started.items():
                log = self.base / f"node-{number}.txt"
                assert node.poll() is None, f"node {number} ended: {log.read_text()[-1500:]}"
            assert time.monotonic() < deadline, f"the cluster does not come to {count} nodes"
            time.sleep(0.5)
        self.finish(waiting)

    def begin(self, number: int, *words: str, **more: str) -> subprocess.Popen[str]:
        """Python on a node."""
        process = subprocess.Popen(
            [*NETWORK.inside(number), sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(**more),
            cwd=self.base,
            start_new_session=True,
        )
        self.commands.append(process)
        return process

    def orchestrator(self, number: int, *words: str, **more: str) -> subprocess.Popen[str]:
        """The command line on a node. Only there is the plugin installed."""
        more = {"PYTHONPATH": str(self.base / "plugin")} | more
        return self.begin(number, "-m", "orchestrator", *words, **more)

    def finish(self, process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
        stdout, stderr = process.communicate(timeout=600)
        assert process.returncode == code, stdout + stderr
        return stdout, stderr

    def events(self, name: str, kind: str | None = None) -> list[dict[str, Any]]:
        path = self.storage / "searches" / name / "journal.jsonl"
        events = Journal.read(path) if path.exists() else []
        return [event for event in events if kind in (None, event["event"])]

    def leaderboard(self, name: str) -> list[dict[str, Any]]:
        rows = leaderboard_rows(Ledger.of(self.events(name)))
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    def wait_for(self, name: str, validations: int, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 300
        while len(self.events(name, "validation")) < validations:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.1)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process that is ours, with all its children."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait()


def title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join([process.name(), *process.cmdline()[:1]])
    return ""


def members(process: subprocess.Popen[Any], word: str) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children(recursive=True) if word in title(child)]


@pytest.fixture(scope="module")
def nodes(data_folder: Path) -> Iterator[Nodes]:
    """A head and two nodes with a CPU each."""
    base = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # sockets lie beneath
    (base / "s").mkdir()
    (base / "s" / "data").symlink_to(data_folder)
    (base / "token").write_text("f" * 64)
    (base / "plugin" / "far_margin-1.dist-info").mkdir(parents=True)
    (base / "plugin" / "far_margin_plugin.py").write_text(PLUGIN)
    metadata = {
        "METADATA": "Metadata-Version: 2.1\nName: far-margin\nVersion: 1\n",
        "entry_points.txt": "[orchestrator.methods]\nfar = far_margin_plugin\n",
        "RECORD": "far_margin-1.dist-info/entry_points.txt,,\nfar_margin_plugin.py,,\n",
    }
    for name, text in metadata.items():
        (base / "plugin" / "far_margin-1.dist-info" / name).write_text(text)
    YAML(typ="safe", pure=True).dump(SEARCH, base / "space.yaml")
    nodes = Nodes(base, base / "s")
    try:
        NETWORK.build()
        nodes.ray(1)
        nodes.wait_for_nodes(1)
        nodes.ray(2)
        nodes.wait_for_nodes(2)
        nodes.ray(3)
        nodes.wait_for_nodes(3)
        yield nodes
    finally:
        nodes.tear_down()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def undisturbed(nodes: Nodes) -> list[dict[str, Any]]:
    """The leaderboard of the search as a submitted job, which finds the cluster by itself."""
    words = ["-m", "ray.scripts.scripts", "job", "submit", "--address", f"http://{HEAD}:8265", "--runtime-env-json"]
    variables = {"PYTHONPATH": str(nodes.base / "plugin")}
    words += [json.dumps({"env_vars": variables}), "--", sys.executable, "-m", "orchestrator"]
    words += ["search", str(nodes.base / "space.yaml"), "--name", "submitted", "--storage", str(nodes.storage)]
    stdout, _ = nodes.finish(nodes.begin(2, *words))
    assert "succeeded" in stdout
    return nodes.leaderboard("submitted")


def test_a_submitted_search_uses_the_cluster(nodes: Nodes, undisturbed: list[dict[str, Any]]) -> None:
    assert [(row["state"], row.get("reason")) for row in undisturbed] == [("done", None)] * 6
    assert undisturbed[-1]["rank"] == "final" and undisturbed[-1]["test/map_at_r"] > 0


def test_a_node_and_the_driver_die_and_nothing_is_lost(nodes: Nodes, undisturbed: list[dict[str, Any]]) -> None:
    driver = nodes.orchestrator(1, "search", "space.yaml", "--name", "mortal", "--address", ADDRESS)
    nodes.wait_for("mortal", 6, driver)
    (host,) = [number for number in (2, 3) if members(nodes.started[number], "ray::Trial")]
    (raylet,) = [child for child in members(nodes.started[host], "raylet") if child.name() == "raylet"]
    raylet.kill()
    nodes.wait_for("mortal", 10, driver)
    end(nodes.started[host])
    nodes.ray(host)

    (python,) = [p for p in [psutil.Process(driver.pid)] if p.is_running()]
    python.send_signal(signal.SIGKILL)
    assert "lost a process (killed, or its node is gone) and continues from validation" in driver.communicate()[1]
    assert Ledger.of(nodes.events("mortal")).state == "running"

    nodes.wait_for_nodes(3)  # the one that was begun again has joined
    nodes.finish(nodes.orchestrator(3, "resume", "mortal", "--address", "auto"))
    assert nodes.leaderboard("mortal") == undisturbed
    validations = [(e["trial_id"], e["validation"]) for e in nodes.events("mortal", "validation")]
    assert len(validations) == len(set(validations))


def test_the_cluster_is_left_as_it_was(nodes: Nodes, undisturbed: list[dict[str, Any]]) -> None:
    script = (
        f"import ray, time; ray.init('{ADDRESS}', log_to_driver=False)\n"
        "from ray.util import placement_group_table as table\n"
        "for _ in range(60):\n"
        "    held = [g for g in table().values() if g['state'] != 'REMOVED']\n"
        "    if not held and ray.available_resources().get('CPU') == ray.cluster_resources()['CPU']: break\n"
        "    time.sleep(1)\n"
        "print(len(held), ray.cluster_resources()['CPU'] - ray.available_resources().get('CPU', 0))"
    )
    stdout, _ = nodes.finish(nodes.begin(1, "-c", script))
    assert stdout.split()[-2:] == ["0", "0.0"]
    for number in (2, 3):
        assert not members(nodes.started[number], "ray::Trial")


def test_no_secret_is_in_the_clusters_logs(nodes: Nodes, undisturbed: list[dict[str, Any]]) -> None:
    """They last as long as it does. The secrets are in the environment of every node and driver."""
    uri = "http://me:planted-in-the-address@127.0.0.1:9"
    words = ["search", "space.yaml", "--name", "secretive", "--address", ADDRESS, "--num-trials", "1"]
    nodes.finish(nodes.orchestrator(1, *words, "--tracking-uri", uri))
    script = f"import ray; ray.init('{ADDRESS}', log_to_driver=False); print(ray._private.state.state.job_table())"
    stdout, _ = nodes.finish(nodes.begin(1, "-c", script))
    assert "orchestrator search" in stdout and "planted" not in stdout
    logs = [path for path in nodes.base.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any("Creating runtime env" in path.read_text() for path in logs if path.name == "runtime_env_agent.log")
    secrets = [value.encode() for value in [*PLANTED.values(), "planted-in-the-address"]]
    assert [path for path in logs if any(secret in path.read_bytes() for secret in secrets)] == []


def test_who_has_no_token_is_turned_away(nodes: Nodes) -> None:
    options = ["search", "space.yaml", "--name", "stranger", "--address", ADDRESS]
    _, stderr = nodes.finish(nodes.orchestrator(2, *options, RAY_AUTH_TOKEN_PATH="", RAY_AUTH_TOKEN="e" * 64), 2)
    last = stderr.strip().splitlines()[-1]  # Ray's own warning comes before
    assert last.startswith(f"error: --address: no Ray cluster to use at '{ADDRESS}'")
    assert "set RAY_AUTH_MODE=token" in last
    _, stderr = nodes.finish(nodes.orchestrator(2, *options, RAY_AUTH_MODE="disabled"), 2)
    assert stderr.strip().splitlines()[-1].startswith(f"error: --address: no Ray cluster to use at '{ADDRESS}'")
    assert "Traceback" not in stderr
    assert not nodes.events("stranger")


def test_a_node_that_joins_is_used_and_one_that_leaves_is_not_waited_for(nodes: Nodes) -> None:
    """A search without end, for as long as that takes."""
    space = {key: value for key, value in SEARCH.items() if key != "max_concurrent"}
    YAML(typ="safe", pure=True).dump(space | {"num_trials": 10_000, "final": False}, nodes.base / "elastic.yaml")
    driver = nodes.orchestrator(1, "search", "elastic.yaml", "--name", "elastic", "--address", ADDRESS)

    def wait_until(condition: Callable[[Ledger], object]) -> None:
        deadline = time.monotonic() + 300
        while not condition(Ledger.of(nodes.events("elastic"))):
            assert driver.poll() is None, driver.communicate()[1]
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.2)

    nodes.wait_for("elastic", 2, driver)
    assert len(Ledger.of(nodes.events("elastic")).running()) <= 2
    nodes.ray(4)
    wait_until(lambda ledger: len(ledger.running()) == 3)
    end(nodes.started.pop(4))
    wait_until(lambda ledger: len(ledger.running()) == 2)
    before = len(Ledger.of(nodes.events("elastic")).trials)
    wait_until(lambda ledger: len(ledger.trials) >= before + 3 and len(ledger.running()) <= 2)
    nodes.finish(nodes.orchestrator(1, "pause", "elastic"))
    nodes.finish(driver, 130)
    states = {trial.state for trial in Ledger.of(nodes.events("elastic")).trials.values()}
    assert states == {"done"}, "the trial of the node that left went on on another"


def test_a_node_with_another_version_is_named(nodes: Nodes) -> None:
    other = nodes.base / "other" / "torch-9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    nodes.ray(4, PYTHONPATH=str(other.parent))
    nodes.wait_for_nodes(4)
    _, stderr = nodes.finish(nodes.orchestrator(1, "search", "space.yaml", "--name", "odd", "--address", ADDRESS), 2)
    assert stderr.strip().splitlines()[-1].startswith("error: --address: node 10.213.0.4: torch 9.9, here 2.")
    assert not nodes.events("odd")
    end(nodes.started.pop(4))


def test_a_storage_that_the_nodes_do_not_see_is_refused(nodes: Nodes) -> None:
    """A folder that is mounted for the driver alone."""
    script = f"""
import os, runpy, subprocess, sys
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "{nodes.base}/own"], check=True)
sys.argv = ["orchestrator", "train", "--help"]
from orchestrator.cli.main import main
main(["search", "space.yaml", "--name", "alone", "--address", "{ADDRESS}", "--storage", "{nodes.base}/own"])
"""
    (nodes.base / "own").mkdir()
    (nodes.base / "alone.py").write_text(script)
    process = subprocess.Popen(
        ["ip", "netns", "exec", "orch1", "unshare", "--mount", sys.executable, str(nodes.base / "alone.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=nodes.environment(PYTHONPATH=str(nodes.base / "plugin")),
        cwd=nodes.base,
        start_new_session=True,
    )
    nodes.commands.append(process)
    _, stderr = nodes.finish(process, 2)
    assert f"does not see {nodes.base}/own: name a --storage that all nodes share" in stderr
