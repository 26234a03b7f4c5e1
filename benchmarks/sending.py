"""What a search sends to its cluster: the bytes of each trial, and its code, which every node is to get once.

    python benchmarks/sending.py [--trials 20] [--nodes 2] [--ballast MB]

A cluster of a head without CPUs and `--nodes` of one CPU each is started on this machine; the search joins it by its
address, as it does any cluster, so that its code travels. The trials train nothing. Counted are the bytes that the
driver serializes (arguments of actors and tasks, and what it puts into the object store), the classes and functions
that it exports, and the packages that each node's agent unpacks, from Ray's log. `--ballast` sends so much with each
trial, to see that it is counted.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestration import machine
from ray._private import worker as ray_worker
from ray._private.serialization import SerializationContext
from ray.cluster_utils import Cluster

from orchestrator.config.resolve import resolve_search
from orchestrator.execution.protocol import Result, Validated, Work
from orchestrator.execution.ray_private import patience
from orchestrator.execution.ray_tune import RayRunner, Trial

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.scheduling import Source

VALIDATIONS = 3


def without_training() -> type[Trial]:
    """Of a class within a function Ray sends the code, not the name."""

    class NoTraining(Trial):
        def results_of(self, work: Work) -> Generator[Result, None, None]:
            for number in range(1, VALIDATIONS + 1):
                yield Validated(work.trial_id, number, {"val/map_at_r": 0.1}, finished=number == VALIDATIONS)

    return NoTraining


@dataclass
class Sent:
    """What the driver sent so far."""

    bytes: int = 0
    values: int = 0
    exports: int = 0
    exported_bytes: int = 0

    def watch(self) -> Callable[[], None]:
        """Count from here on; gives what ends that."""
        serialize = SerializationContext.serialize

        def counting(context: Any, value: Any) -> Any:
            serialized = serialize(context, value)
            self.bytes += serialized.total_bytes
            self.values += 1
            return serialized

        setattr(SerializationContext, "serialize", counting)  # noqa: B010 (a method, for mypy)
        return lambda: setattr(SerializationContext, "serialize", serialize)

    def watch_exports(self) -> None:
        """Count what goes into the cluster's table of functions, after `ray.init`."""
        client, sent = ray_worker.global_worker.gcs_client, self

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return getattr(client, name)

            def internal_kv_put(self, key: bytes, value: bytes, *rest: Any, **named: Any) -> Any:
                sent.exports += 1
                sent.exported_bytes += len(value)
                return client.internal_kv_put(key, value, *rest, **named)

        ray_worker.global_worker.gcs_client = Counting()


@dataclass
class Counted(Source):
    """Notes what was sent when each trial begins."""

    sent: Sent
    seen: list[Sent] = field(default_factory=list)

    def next(self) -> Work | None:
        if work := super().next():
            self.seen.append(replace(self.sent))
        return work


def unpacked(session: Path) -> dict[str, Any]:
    """How often the agent of each node unpacked the code, and how often it gave it to a process from there."""
    logs = [path.read_text(errors="replace") for path in sorted((session / "logs").glob("runtime_env_agent*.log"))]
    packages = {package for log in logs for package in re.findall(r"gcs://_ray_pkg_\w+\.zip", log)}
    return {
        "packages of code": len(packages),
        "times that each node unpacked them": [log.count("Successfully created runtime env") for log in logs],
        "times that each node had them": [log.count("Runtime env already created successfully") for log in logs],
    }


def measure(trials: int, nodes: int, ballast: int, folder: Path) -> dict[str, Any]:
    settings = {"method": "proxy_anchor", "dataset": "glyphs-small", "settings": {"device": "cpu", "threads": 1}}
    raw = settings | {"space": {"lr": {"low": 1e-4, "high": 1e-2}}, "num_trials": trials, "final": False}
    search = resolve_search(raw, name="sent", source="sending.py")
    os.environ |= {"RAY_memory_monitor_refresh_ms": "0"}
    with patience():
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        for _ in range(nodes):
            cluster.add_node(wait=False, num_cpus=1)
        cluster.wait_for_nodes(timeout=300)
    sent, runner = Sent(), RayRunner(address=cluster.address, trial=without_training())
    end = sent.watch()
    try:
        with runner.ready(search, folder) as slots:
            sent.watch_exports()
            works = [
                Work(f"{n:04d}", search.example(), str(folder / "data"), str(folder / f"{n:04d}"), workers=1)
                for n in range(trials)
            ]
            if ballast:
                works = [replace(work, objective={"ballast": "x" * (ballast << 20)}) for work in works]
            source = Counted.__new__(Counted)
            Source.__init__(source, search, works, folder, slots)
            source.sent, source.seen = sent, []
            before = replace(sent)
            runner.run(source)
            session = Path(ray_worker.global_worker.node.get_session_dir_path())
            after = replace(sent)
    finally:
        end()
        cluster.shutdown()
    first = source.seen[slots]  # until here each process gets its first trial
    later = trials - slots
    return {
        "trials": trials,
        "nodes": nodes,
        "bytes before the first trial": before.bytes,
        "bytes of a trial, first of its process": round((first.bytes - source.seen[0].bytes) / slots),
        "bytes of a trial after that": round((after.bytes - first.bytes) / later),
        "values of a trial after that": round((after.values - first.values) / later, 1),
        "exports": after.exports,
        "exported bytes": after.exported_bytes,
        "exports after each process's first trial": after.exports - first.exports,
        **unpacked(session),
        "results": len([one for one in source.results if one.done]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ballast", type=int, default=0, metavar="MB")
    arguments = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(arguments.trials, arguments.nodes, arguments.ballast, Path(folder)), indent=2))


if __name__ == "__main__":
    main()
