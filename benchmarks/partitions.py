"""A search whose machines lose sight of each other at random moments, and what its records show at the end.

    python benchmarks/partitions.py --cuts 20 --seed 0 --output benchmarks/partitions.md

Driver and Ray's head, a node that trains, object store (moto's server, of the development group), MLflow's server and
another driver each have a network namespace of their own on one bridge, which takes root on Linux. A search of some
trials, one at a time, with final runs, is first run undisturbed, then again while links are cut for some seconds each.
Once the store is cut for longer than requests are repeated, so that the search stops and is resumed, as a user would.
Then two drivers take one search: the second while the first is seen, again while the first is cut off, and then the
first comes back. After `sync`, journal, store and MLflow are compared with each other and with the undisturbed search.
Exit code 1 if any check fails; but where two drivers had one search, a node of the first may leave a model behind.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from campaign import space
from campaign_checks import STATUS, curves
from journal_model import JournalModel
from services import until

from orchestrator.storage.buckets import find_bucket
from orchestrator.storage.journal import Journal, refresh
from orchestrator.storage.leaderboard import leaderboard_rows
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.paths import working_copy
from orchestrator.storage.trial_files import MANIFEST
from orchestrator.tracking.address import ui_environment

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.networks import Network

DRIVER, STORE, MLFLOW, RIVAL, NODE = 1, 2, 3, 4, 5
KINDS = {
    "link-driver": "the driver's link is cut",
    "link-node": "the node's link is cut",
    "link-store": "the object store's link is cut",
    "link-mlflow": "MLflow's link is cut",
    "node-lost": "kill -9 of all processes of the node",
    "node-leaves": "the node drains and its processes get SIGTERM",
}
"""What happens between machines."""
LINK_OF = {"link-driver": "the driver", "link-node": "the node", "link-store": "the store", "link-mlflow": "MLflow"}
LINKS = {"the driver": DRIVER, "the store": STORE, "MLflow": MLFLOW, "the node": NODE}
PORTS = {STORE: 5001, MLFLOW: 5000}
STORAGE = "s3://lab/runs"
LEFT = "store: no model that no manifest lists"
LEAVE_SECONDS = 30
NODE_SECONDS = 300
LONG_SECONDS = 75.0
"""Longer than a request to the store is repeated."""


@dataclass
class Partitions:
    """Five machines: servers on two of them, drivers on two, and on one a node of Ray, if it is started."""

    base: Path
    network: Network = field(default_factory=lambda: Network("part", "10.214.0", 5, routed=True))
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    driver: subprocess.Popen[bytes] | None = None
    cuts: Counter[str] = field(default_factory=Counter)
    node: subprocess.Popen[bytes] | None = None
    nodes: int = 0
    """How often the node was started."""
    cluster: list[str] = field(default_factory=list)
    """The words that name the cluster, once it is started."""
    seconds: float = 0.0
    """How long links were cut, together."""

    def environment(self, cache: str) -> dict[str, str]:
        """Of a machine with this cache."""
        left_out = ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "PYTHONDONTWRITEBYTECODE", "ORCHESTRATOR_STORAGE")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        kept |= {
            "OMP_NUM_THREADS": "1",
            "RAY_worker_niceness": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            "ORCHESTRATOR_CACHE": str(self.base / cache),
        }
        kept |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}
        kept |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.base / "token")}
        return kept | {"AWS_ENDPOINT_URL": self.address(STORE), "AWS_EC2_METADATA_DISABLED": "true"}

    def address(self, machine: int) -> str:
        return f"http://{self.network.address(machine)}:{PORTS[machine]}"

    def start(self, data: Path) -> None:
        """Network and servers, of which MLflow's answers some seconds later; `data`: the data sets of all machines."""
        self.network.build()
        bridge = ["ip", "address", "add", f"{self.network.address(254)}/24", "dev", f"{self.network.name}-bridge"]
        subprocess.run(bridge, check=True)  # the machine that looks sees all of them
        moto = ["-m", "moto.server", "-H", "0.0.0.0", "-p", str(PORTS[STORE])]
        database = f"sqlite:///{self.base}/mlflow.db"
        mlflow = ["-m", "mlflow", "server", "--host", "0.0.0.0", "--port", str(PORTS[MLFLOW]), "--workers", "1"]
        mlflow += ["--allowed-hosts", "*", "--artifacts-destination", str(self.base / "artifacts")]
        for machine, words, variables in ((STORE, moto, {}), (MLFLOW, mlflow, ui_environment(database))):
            self.servers.append(self.begin(machine, words, **variables))
        until(lambda: self.answers(STORE), 120, "the store")
        os.environ.update(self.environment("looking"))
        import boto3

        boto3.client("s3").create_bucket(Bucket="lab")
        for cache in (f"machine-{DRIVER}", f"machine-{RIVAL}", f"machine-{NODE}", "looking"):
            os.environ["ORCHESTRATOR_CACHE"] = str(self.base / cache)
            working_copy(STORAGE).mkdir(parents=True)
            (working_copy(STORAGE) / "data").symlink_to(data)

    def start_ray(self) -> None:
        """A cluster of the driver's machine, which trains nothing, and the node."""
        (self.base / "token").write_text("5ec7e7" * 8)
        (self.base / "token").chmod(0o600)
        head = ["--head", "--port=6379", "--num-cpus=0", f"--temp-dir={self.base}/r"]
        self.servers.append(self.ray_node(DRIVER, *head))
        until(lambda: self.ray_said(DRIVER, "status"), NODE_SECONDS, "Ray's head")
        self.tend()
        until(lambda: "0.0/1.0 CPU" in self.ray_said(DRIVER, "status"), NODE_SECONDS, "Ray's node")
        self.cluster = ["--address", self.ray_address]

    def ray_said(self, machine: int, *words: str) -> str:
        """What a command of Ray prints on a machine; nothing if it fails."""
        command = [*self.network.inside(machine), sys.executable, "-m", "ray.scripts.scripts", *words]
        command += ["--address", self.ray_address]
        environment = self.environment(f"machine-{machine}")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=self.base)
        return "" if done.returncode else done.stdout

    def tend(self) -> None:
        """Start the node, or start it again: Ray ends a node that was cut off for too long."""
        if self.node is None or self.node.poll() is not None:
            self.node = self.ray_node(NODE, f"--address={self.ray_address}", "--num-cpus=1")
            self.nodes += 1

    def ray_node(self, machine: int, *words: str) -> subprocess.Popen[bytes]:
        ray = [
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--disable-usage-stats",
            "--object-store-memory=100000000",
        ]
        return self.begin(machine, [*ray, f"--node-ip-address={self.network.address(machine)}", *words])

    @property
    def ray_address(self) -> str:
        return f"{self.network.address(DRIVER)}:6379"

    def answers(self, machine: int) -> bool:
        import socket

        with contextlib.suppress(OSError):
            socket.create_connection((self.network.address(machine), PORTS[machine]), timeout=1).close()
            return True
        return False

    def begin(self, machine: int, words: list[str], **variables: str) -> subprocess.Popen[bytes]:
        with open(self.base / f"machine-{machine}.txt", "ab") as log:
            return subprocess.Popen(
                [*self.network.inside(machine), sys.executable, *words],
                stdout=log,
                stderr=log,
                env=self.environment(f"machine-{machine}") | variables,
                cwd=self.base,
                start_new_session=True,
            )

    def orchestrator(self, machine: int, *words: str) -> subprocess.Popen[bytes]:
        """A command on a machine."""
        where = ["--storage", STORAGE, "--tracking-uri", self.address(MLFLOW)]
        return self.begin(machine, ["-m", "orchestrator", *words, *where])

    def search(self, settings: dict[str, Any], name: str) -> None:
        from ruamel.yaml import YAML

        YAML(typ="safe", pure=True).dump(settings, self.base / "space.yaml")
        self.driver = self.orchestrator(DRIVER, "search", str(self.base / "space.yaml"), "--name", name, *self.cluster)

    def sync(self, name: str) -> None:
        """Send to MLflow what it missed, as a user would at the end."""
        assert self.orchestrator(DRIVER, "sync", name).wait(300) == 0, self.said()

    @property
    def running(self) -> bool:
        return self.driver is not None and self.driver.poll() is None

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the store holds of a search."""
        path = working_copy(STORAGE) / "searches" / name / "journal.jsonl"
        refresh(path)
        return Journal.read(path) if path.exists() else []

    @contextlib.contextmanager
    def without(self, link: str) -> Iterator[None]:
        """Pull a machine's plug, and put it back."""
        end = f"{self.network.name}-v{LINKS[link]}"
        subprocess.run(["ip", "link", "set", end, "down"], check=True)
        began = time.monotonic()
        try:
            yield
        finally:
            subprocess.run(["ip", "link", "set", end, "up"], check=True)
            self.cuts[link] += 1
            self.seconds += time.monotonic() - began

    def cut(self, link: str, seconds: float) -> None:
        """Without it for some seconds."""
        with self.without(link):
            time.sleep(seconds)

    def node_processes(self) -> list[psutil.Process]:
        """All that runs on the node."""
        pids = subprocess.run(["ip", "netns", "pids", f"{self.network.name}{NODE}"], capture_output=True, text=True)
        processes = []
        for pid in pids.stdout.split():
            with contextlib.suppress(psutil.Error):
                processes.append(psutil.Process(int(pid)))
        return processes

    def lose_node(self) -> str:
        """It is gone, and a new one joins."""
        for process in self.node_processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        return "a new one joined"

    def leave_node(self) -> str:
        """What `orchestrator.execution.preemption` does on a machine; its own list of processes knows no namespaces."""
        words = ["drain-node", "--address", self.ray_address, "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
        words += ["--reason-message", "leaves", "--deadline-remaining-seconds", str(LEAVE_SECONDS)]
        draining, drained = self.begin(NODE, ["-m", "ray.scripts.scripts", *words]), "drained"
        try:
            draining.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            draining.kill()
            drained = "not drained in time"
        trainings = []
        for process in self.node_processes():
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline()[:1])
                if title.startswith("ray::") and not title.startswith("ray::IDLE"):
                    process.terminate()
                    trainings.append(process)
        left = psutil.wait_procs(trainings, timeout=LEAVE_SECONDS)[1]
        self.lose_node()
        return f"{drained}, {len(left)} of its trainings were left"

    def bring(self, kind: str, chance: random.Random) -> str:
        """A fault of this kind, and what came of it."""
        if kind == "node-lost":
            return self.lose_node()
        if kind == "node-leaves":
            return self.leave_node()
        seconds = chance.uniform(0.5, 8)
        self.cut(LINK_OF[kind], seconds)
        return f"cut for {seconds:.0f} s"

    def disturb(self, chance: random.Random, wait: tuple[float, float], length: tuple[float, float]) -> None:
        """Cut links at random as long as the driver runs."""
        while self.running:
            time.sleep(chance.uniform(*wait))
            if self.running:
                self.cut(chance.choice(list(LINKS)), chance.uniform(*length))

    def said(self, machine: int = DRIVER) -> str:
        return (self.base / f"machine-{machine}.txt").read_text(errors="replace")[-2000:]

    def end(self) -> None:
        self.network.remove()
        for process in [*self.servers, *filter(None, [self.driver, self.node])]:
            process.wait()


def check(partitions: Partitions, name: str) -> Iterator[tuple[str, str]]:
    """What must hold of a search's records, and what does not."""
    from mlflow.tracking import MlflowClient

    events = partitions.events(name)
    ledger = Ledger.of(events)
    yield "the journal is accepted by the written model", "; ".join(JournalModel.of(events).broken[:3])
    states = Counter(trial.state for trial in ledger.everyone())
    yield "the journal is whole, and the search is done", "" if ledger.state == "done" else ledger.state
    yield "no trial failed or was left", "" if not states - Counter(done=10**6, pruned=10**6) else str(states)
    validations = Counter((e["trial_id"], e["validation"]) for e in events if e["event"] == "validation")
    yield "each validation once", str([key for key, count in validations.items() if count > 1] or "")

    bucket, prefix = find_bucket(working_copy(STORAGE) / "searches" / name) or (None, "")
    assert bucket is not None
    keys = [key.removeprefix(f"{prefix}/") for key in bucket.keys(f"{prefix}/")]
    records = [key for key in keys if re.fullmatch(r"journal/\d+\.jsonl", key)]
    yield "store: one object per record", "" if len(records) == len(events) else f"{len(records)} of {len(events)}"
    lost, listed = [], set()
    for trial in ledger.everyone():
        manifest = json.loads(bucket.get(f"{prefix}/trials/{trial.trial_id}/{MANIFEST}") or b'{"files": {}}')
        for entry in manifest["files"].values():
            key = f"trials/{trial.trial_id}/{entry['object']}"
            listed.add(key)
            lost += [] if bucket.size(f"{prefix}/{key}") == entry["size"] else [key]
    yield "store: what a trial's manifest lists is there", str(lost[:2] or "")
    left = [key for key in keys if re.fullmatch(r"trials/.*\.pt\.\w+\.\d+", key) and key not in listed]
    yield LEFT, str(left[:2] or "")

    client = MlflowClient(tracking_uri=partitions.address(MLFLOW))
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = {run.info.run_id: run for run in client.search_runs(experiments, max_results=1000)}
    (parent,) = [run for run in runs.values() if run.info.run_name == name]
    members = [run for run in runs.values() if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    of = {run.info.run_id: run.data.tags["orchestrator.trial_id"] for run in members}
    wanted = sorted(trial.trial_id for trial in ledger.everyone())
    yield "MLflow: one run per trial, and the search's own", "" if sorted(of.values()) == wanted else str(of)
    here = {
        (trial, step, key): value
        for (trial, step), metrics in curves(events).items()
        for key, value in metrics.items()
        if key.startswith(("val/", "train/"))
    }
    points = [
        ((of[run.info.run_id], point.step, key), point.value)
        for run in members
        for key in run.data.metrics
        if key.startswith(("val/", "train/"))
        for point in client.get_metric_history(run.info.run_id, key)
    ]
    repeated = [key for key, count in Counter(key for key, _ in points).items() if count > 1]
    yield "MLflow: one point per metric and epoch", str(repeated[:2] or "")
    yield (
        "MLflow: the journal's points, to the last bit",
        "" if dict(points) == here else f"{len(points)} of {len(here)}",
    )
    statuses = {trial.trial_id: STATUS[trial.state] for trial in ledger.everyone()}
    wrong = [of[run.info.run_id] for run in members if statuses.get(of[run.info.run_id]) != run.info.status]
    yield "MLflow: statuses right", str(wrong or "") if parent.info.status == "FINISHED" else parent.info.status


def rows(partitions: Partitions, name: str) -> list[dict[str, Any]]:
    """A search's leaderboard without what is a matter of luck."""
    return [
        {key: value for key, value in row.items() if key != "seconds"}
        for row in leaderboard_rows(Ledger.of(partitions.events(name)))
    ]


def cut_off(partitions: Partitions, settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Two drivers of one search: what must hold, and what does not."""

    def validations() -> int:
        return sum(event["event"] == "validation" for event in partitions.events("two"))

    partitions.search(settings, "two")
    until(lambda: validations() >= 2 or not partitions.running, 600, "the first driver")
    code = partitions.orchestrator(RIVAL, "resume", "two").wait(300)
    refused = code == 2 and "the search is running" in partitions.said(RIVAL)
    yield "a second driver is refused", "" if refused else f"exit code {code}"
    with partitions.without("the driver"):
        before = validations()
        rival = partitions.orchestrator(RIVAL, "resume", "two")
        until(lambda: validations() >= before + 2 or rival.poll() is not None, 300, "the second driver")
    assert partitions.driver is not None
    end = time.monotonic() + 600
    while partitions.running and time.monotonic() < end:
        partitions.tend()
        time.sleep(1)
    code = partitions.driver.returncode
    stopped = code != 0 and ("another process" in partitions.said() or "no connection" in partitions.said())
    yield "the first, cut off, stops when it is back", "" if stopped else f"exit code {code}"
    code = rival.wait(1800)
    yield "the second, which took over, ends the search", "" if code == 0 else f"exit code {code}"


def run(arguments: argparse.Namespace, base: Path) -> int:
    """Calm search, disturbed search, two drivers, checks, table."""
    from orchestrator.data.catalog import open_dataset

    open_dataset("glyphs-small", base / "data")
    settings = space(arguments.trials, 1) | {"final_workers": 1, "final_trials": 1, "max_restarts": 1000}
    faults: dict[str, list[str]] = {kind: [] for kind in arguments.kinds}
    chance, partitions, resumed = random.Random(arguments.seed), Partitions(base), 0
    try:
        partitions.start(base / "data")
        partitions.start_ray()
        began = time.monotonic()
        partitions.search(settings, "calm")
        until(lambda: not partitions.running, 1800, "the undisturbed search")
        calm_seconds = time.monotonic() - began
        if not partitions.events("calm"):
            raise SystemExit(partitions.said())
        began, long_cut = time.monotonic(), False
        partitions.search(settings, "cut")
        while partitions.driver is not None:
            if not partitions.running:
                if partitions.driver.returncode == 0 or resumed == 20:
                    break
                resumed += 1
                if partitions.events("cut"):
                    partitions.driver = partitions.orchestrator(DRIVER, "resume", "cut", *partitions.cluster)
                else:  # a link was cut before its first record
                    partitions.search(settings, "cut")
            time.sleep(chance.uniform(1, 6))
            partitions.tend()
            if not partitions.running or sum(map(len, faults.values())) >= arguments.cuts:
                continue
            if not long_cut and sum(map(len, faults.values())) >= arguments.cuts // 2:
                partitions.cut("the store", LONG_SECONDS)
                long_cut = True
                faults.setdefault("link-store", []).append(f"cut for {LONG_SECONDS:.0f} s")
            else:
                kind = min(faults, key=lambda kind: (len(faults[kind]), chance.random()))
                faults[kind].append(partitions.bring(kind, chance))
                print(f"{sum(map(len, faults.values())):3d} {kind} {faults[kind][-1]}", file=sys.stderr, flush=True)
        seconds = time.monotonic() - began
        partitions.sync("cut")
        checks = list(check(partitions, "cut"))
        same = rows(partitions, "calm") == rows(partitions, "cut")
        checks.append(("the leaderboard of the undisturbed search", "" if same else "differs"))
        if not arguments.json:
            checks += cut_off(partitions, settings)
            partitions.sync("two")
            checks += [(f"of two drivers: {what}", fault) for what, fault in check(partitions, "two")]
            same = rows(partitions, "calm") == rows(partitions, "two")
            checks.append(("of two drivers: the leaderboard of the undisturbed search", "" if same else "differs"))
        events = len(partitions.events("cut"))
    finally:
        partitions.end()
    notes = (
        f"{events} records, undisturbed in {calm_seconds:.0f} s, with its faults in {seconds:.0f} s, resumed {resumed} "
        f"times; the node was started {partitions.nodes} times"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"faults": faults, "checks": checks, "notes": notes}), encoding="utf-8")
    lines = [
        "# Partitions",
        "",
        f"`python benchmarks/partitions.py --cuts {arguments.cuts} --trials {arguments.trials} "
        f"--seed {arguments.seed}`, "
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores.",
        "",
        f"{partitions.cuts.total()} cuts ({', '.join(f'{n} of {link}' for link, n in partitions.cuts.items())}; "
        f"{partitions.seconds:.0f} s together, one of {LONG_SECONDS:.0f} s) in a search of {events} records that took "
        f"{seconds:.0f} s, and {calm_seconds:.0f} s undisturbed; resumed {resumed} times. "
        f"The node was started {partitions.nodes} times: Ray ends one that is cut off for long.",
        "",
        "| what must hold | |",
        "| --- | --- |",
        *(f"| {what} | {fault or 'yes'} |" for what, fault in checks),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    return int(any(fault for what, fault in checks if what != f"of two drivers: {LEFT}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(LINK_OF))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--json", type=Path, help="write the result there, without that of two drivers")
    with tempfile.TemporaryDirectory(prefix="parts-", ignore_cleanup_errors=True) as folder:
        return run(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    sys.exit(main())
