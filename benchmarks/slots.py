"""What the start of many trials at once asks of the storage, the driver and the network: 1,000 slots under Ray.

    python benchmarks/slots.py [--slots 1000] [--hosts 2] [--store disk|s3] [--seconds 5]

Real are: Ray, the driver with its journal, study and tracker, and in each slot all that a trial does beside training
(`execution.worker.results`): its data set is opened, its folder looked at, checkpoint and best model written, and on
an object store kept there. Simulated are: the training, which sleeps `--seconds` and writes files of 64 kB; the slots,
which are threads of `--hosts` actors and not a process each, for which a machine would need some 500 GB; and so Tune,
which has one process per trial, is not in it (`overhead.py` measures it). S3 is moto's server on this machine.

Counted are the accesses to the storage: on a disk by Python's audit events (opens, listings, folders made, files
renamed or removed, under the storage or its data), on an object store the requests, with those that were under way at
once.
"""

import argparse
import contextlib
import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ray
from orchestration import machine

from orchestrator.config.search import Search
from orchestrator.execution.protocol import Result, TrialSource, Validated, Work
from orchestrator.execution.ray_private import patience
from orchestrator.search.watcher import Watcher
from orchestrator.storage.object_store import Bucket

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.s3 import moto

EVENTS = {
    "open": "opens",
    "os.listdir": "listings",
    "os.scandir": "listings",
    "os.mkdir": "folders made",
    "os.rename": "renames",
    "os.remove": "removals",
}
REQUESTS = ("get", "part", "size", "put", "create", "remove", "copy", "keys", "folders", "upload", "download")
WINDOW = 1.0


@dataclass
class Accesses:
    """The accesses of this process to the storage."""

    under: tuple[str, ...]
    counts: Counter[str] = field(default_factory=Counter)
    windows: Counter[int] = field(default_factory=Counter)
    """Accesses in each second of the machine's clock."""
    now: int = 0
    most: int = 0
    """Requests that were under way at once."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    last: threading.local = field(default_factory=threading.local)
    """The path that each thread opened last."""

    def watch(self) -> None:
        """Count from here on, until the process ends."""
        sys.addaudithook(self.hear)
        for name in REQUESTS:
            setattr(Bucket, name, self.counting(name, getattr(Bucket, name)))

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        kind = EVENTS.get(event)
        if kind is None or not arguments or not isinstance(arguments[0], str | os.PathLike):
            return
        path = os.fspath(arguments[0])
        if not isinstance(path, str) or not path.startswith(self.under):
            return
        by_descriptor = event == "open" and arguments[1] is None
        again = by_descriptor and getattr(self.last, "path", None) == path  # by an opener: Python tells both
        self.last.path = path if event == "open" and not by_descriptor else None
        if not again:
            self.count(kind)

    def count(self, kind: str) -> None:
        with self.lock:
            self.counts[kind] += 1
            self.windows[int(time.time() / WINDOW)] += 1

    def counting(self, name: str, method: Any) -> Any:
        def call(bucket: Any, *words: Any, **named: Any) -> Any:
            self.count(f"request: {name}")
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
            try:
                return method(bucket, *words, **named)
            finally:
                with self.lock:
                    self.now -= 1

        return call


def made_fit(experiment: Any, store: Any, split: Any, *, folder: Path, **_: Any) -> Iterator[Any]:
    """In place of a training: a pause and its files."""
    import torch

    from orchestrator.storage.trial_folder import BEST, CHECKPOINT
    from orchestrator.training.checkpoint import save_checkpoint
    from orchestrator.training.loop import ValidationResult

    time.sleep(float(os.environ["SLOT_SECONDS"]))
    state = {"history": [{}], "weights": torch.zeros(16_000)}
    for name in (CHECKPOINT, BEST):
        save_checkpoint(folder / name, state)
    yield ValidationResult(1, 1.0, 1, {"val/map_at_r": len(split.train) / 1e6, "epoch": 1.0}, 0.1, True)


class Host:
    """Many slots in one process."""

    def __init__(self, under: tuple[str, ...]) -> None:
        import torch

        from orchestrator.execution import worker  # noqa: F401 (imported before the clock)
        from orchestrator.training import folds, loop, memory, repeatable, usage  # noqa: F401

        torch.set_num_threads(1)
        setattr(loop, "fit", made_fit)  # noqa: B010 (a function, for mypy)
        self.accesses = Accesses(under)
        self.accesses.watch()

    def train(self, work: Work) -> list[Result]:
        """All results of a trial: of the first one also that of its untrained network."""
        from orchestrator.execution.worker import results

        return list(results(work))

    def read(self) -> tuple[dict[str, int], dict[int, int], int]:
        return dict(self.accesses.counts), dict(self.accesses.windows), self.accesses.most


@dataclass
class SlotRunner:
    """A runner of trials in the slots of some actors."""

    count: int
    hosts: int
    under: tuple[str, ...]
    own_processes: bool = True
    stage: str = "starting Ray"
    actors: list[Any] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def ready(self, search: Search, storage: Path) -> Iterator[int]:
        each = -(-self.count // self.hosts)
        options = {"max_concurrency": each + 1, "num_cpus": each}
        self.actors = [ray.remote(Host).options(**options).remote(self.under) for _ in range(self.hosts)]
        ray.get([actor.read.remote() for actor in self.actors])
        yield self.count

    def resources(self, search: Search) -> dict[str, float]:
        return {"CPU": 1.0}

    def run(self, conductor: TrialSource) -> None:
        began, used = time.perf_counter(), time.process_time()
        running: dict[Any, str] = {}
        while not conductor.is_finished:
            while (work := conductor.next()) is not None:
                actor = self.actors[int(work.trial_id) % self.hosts]
                running[actor.train.remote(work)] = work.trial_id
                self.figures["until the last trial was begun, s"] = time.perf_counter() - began
            for ready in ray.wait(list(running), timeout=0.2)[0]:
                results = ray.get(ready)
                assert all(isinstance(result, Validated) for result in results), results
                self.figures.setdefault("until the first result, s", time.perf_counter() - began)
                del running[ready]
                for result in results:
                    conductor.report(result)
        self.figures["until the last result, s"] = time.perf_counter() - began
        self.figures["the driver's processor, s"] = time.process_time() - used


def measure(slots: int, hosts: int, storage: Path, under: tuple[str, ...]) -> dict[str, Any]:
    from orchestrator.config.resolve import resolve_search
    from orchestrator.search.driver import start

    raw = {
        "method": "proxy_anchor",
        "dataset": "glyphs-small",
        "settings": {"epochs": 1, "threads": 1, "device": "cpu"},
        "space": {"margin": {"low": 0.0, "high": 0.5}, "lr": {"low": 1e-5, "high": 1e-1, "log": True}},
        "num_trials": slots,
        "algorithm": "random",
        "max_concurrent": slots,
        "final": False,
    }
    search = resolve_search(raw, name="slots", source="slots.py")
    variables = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "ORCH", "SLOT"))}
    with patience():
        ray.init(
            address="local",
            num_cpus=slots + hosts,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": variables},
        )
    try:
        runner, driver = SlotRunner(slots, hosts, under), Accesses(under)
        driver.watch()
        outcome = start(search, runner, storage=storage, watcher=Watcher())
        assert outcome.state == "done", outcome
        read = ray.get([actor.read.remote() for actor in runner.actors])
    finally:
        ray.shutdown()
    counts, windows = Counter[str](), Counter[int]()
    for of_host, its_windows, _ in read:
        counts.update(of_host)
        windows.update(its_windows)
    peak = max((windows + driver.windows).values(), default=0)
    return {
        "slots": slots,
        "hosts": hosts,
        "accesses of a trial": {kind: round(count / slots, 2) for kind, count in sorted(counts.items())},
        "accesses of the driver, per trial": {
            kind: round(count / slots, 2) for kind, count in sorted(driver.counts.items())
        },
        "most accesses in a second": peak,
        "most requests at once, of a host": max((most for _, _, most in read), default=0),
        **{name: round(value, 1) for name, value in runner.figures.items()},
        "the driver's peak memory, MiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "load": round(os.getloadavg()[0]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--store", choices=("disk", "s3"), default="disk")
    parser.add_argument("--seconds", type=float, default=5.0, help="that a trial trains")
    arguments = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, {arguments.store}", flush=True)
    os.environ |= {"SLOT_SECONDS": str(arguments.seconds), "RAY_memory_monitor_refresh_ms": "0"}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        os.environ |= {"ORCHESTRATOR_CACHE": str(folder / "cache"), "RAY_worker_niceness": "0"}
        storage = folder / "runs"
        if arguments.store == "s3":
            (folder / "moto").mkdir()
            server = stack.enter_context(moto(folder / "moto"))
            os.environ |= {"AWS_ENDPOINT_URL": server.endpoint, "AWS_EC2_METADATA_DISABLED": "true"}
            os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}
            import boto3

            from orchestrator.storage.paths import working_copy

            boto3.client("s3").create_bucket(Bucket="lab")
            storage = working_copy("s3://lab/runs")
        from orchestrator.data.catalog import open_dataset
        from orchestrator.storage.places import Places

        open_dataset("glyphs-small", Places(storage).data)
        under = (str(folder / "runs"),) if arguments.store == "disk" else (str(folder / "none"),)
        print(json.dumps(measure(arguments.slots, arguments.hosts, storage, under), indent=2))


if __name__ == "__main__":
    main()
