"""What a search costs beyond its trainings: per trial, per reported validation, and as it grows.

    python benchmarks/overhead.py compare [--trials 1000] [--slots 1 8 64] [--validations 1 10] [--rounds 3]
    python benchmarks/overhead.py growth [--trials 10 100 1000 10000] [--slots 8]
    python benchmarks/overhead.py driver [--trials 10000] [--algorithm tpe] [--scheduler asha]
    python benchmarks/overhead.py afterwards [--trials 1000 10000]

The training is none: it reports made numbers (`--sleep` seconds apart) and imports no torch, so that what is left is
the search. Each measurement is a process of its own, with a cluster of its own that has a CPU for each slot:
- `search`: this package, journal, Optuna (random unless `--algorithm`), MLflow in sqlite, report and all;
- `tune`:   plain Ray Tune with the same trainable and as random points, processes reused as here, no records;
- `mlflow`: the same with Ray's own MLflow callback, into sqlite.

`compare` takes the three in turns. The cluster's start, imports and the data set's check come before the clock; the
trials' processes start in the first tenth of the trials, so what a trial costs is taken over the other nine. `growth`
gives each tenth of a search by itself, with the sampler apart, `driver` the same without Ray and MLflow, and
`afterwards` what reading such a search costs.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import ray
from orchestration import machine
from process_memory import peak_memory, resident_memory
from ray import tune

from orchestrator.execution.protocol import Result, Validated, Work
from orchestrator.execution.ray_start import ENVIRONMENT
from orchestrator.execution.ray_tune import RayRunner, Trial

METRICS = ("map_at_r", "recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8", "r_precision", "nmi", "map_at_10")
SPACE = {"margin": {"low": 0.0, "high": 0.5}, "lr": {"low": 1e-5, "high": 1e-1, "log": True}}


def made(validation: int, seed: str) -> dict[str, float]:
    """As many numbers as a validation has."""
    rng = random.Random(f"{seed} {validation}")
    numbers = {f"val/{name}": rng.random() * (1 - 0.5**validation) for name in METRICS}
    return numbers | {"train/loss": rng.random(), "train/lr": 1e-3, "epoch": float(validation)}


class NoTraining(Trial):
    """Ours without the training: setup and reports are as in a search."""

    def results_of(self, work: Work) -> Generator[Result, None, None]:
        return made_results(work)


def made_results(work: Work) -> Generator[Result, None, None]:
    """What `orchestrator.execution.worker.results` would give."""
    sleep, epochs = float(os.environ["MADE_SLEEP"]), work.experiment.flat()["epochs"]
    for validation in range(1, epochs + 1):
        time.sleep(sleep)
        metrics = made(validation, work.trial_id)
        yield Validated(work.trial_id, validation, metrics, seconds=sleep, finished=validation == epochs)


class Plain(tune.Trainable):  # type: ignore[misc]
    """The same for Tune by itself."""

    def setup(self, config: dict[str, Any]) -> None:
        self.validation = 0
        self.settings = config

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        time.sleep(float(os.environ["MADE_SLEEP"]))
        self.validation += 1
        finished = self.validation == self.settings["epochs"]
        return {**made(self.validation, str(self.settings["margin"])), "done": finished}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        pass

    def load_checkpoint(self, checkpoint: Any) -> None:
        pass


class Clock:
    """Wall time, this process's processor time and memory, from `begin` on."""

    def begin(self) -> "Clock":
        self.wall, self.used, self.memory = time.perf_counter(), time.process_time(), resident_memory() / 2**20
        return self

    def read(self) -> dict[str, float]:
        wall, used = time.perf_counter() - self.wall, time.process_time() - self.used
        return {
            "seconds": wall,
            "processor": used,
            "MiB": resident_memory() / 2**20 - self.memory,
            "peak MiB": peak_memory() / 2**20,
        }


class Tenths:
    """The clock after each tenth of the trials."""

    def __init__(self, clock: Clock, trials: int, spent: dict[str, float]) -> None:
        self.clock, self.spent, self.trials, self.count = clock, spent, trials, 0
        self.read: list[dict[str, float]] = []

    def ended(self) -> None:
        """One trial more."""
        self.count += 1
        if self.count % max(1, self.trials // 10) == 0:
            self.read.append(self.clock.read() | {"trials": self.count, "sampler": sum(self.spent.values())})

    def all(self) -> dict[str, Any]:
        """What was read, what is left over at the end, and what a trial cost after the first tenth."""
        now, first, last = self.clock.read(), self.read[0], self.read[-1]
        each = {
            key: 1000 * (last[key] - first[key]) / max(1, last["trials"] - first["trials"])
            for key in ("seconds", "processor", "sampler")
        }
        return now | {"tenths": self.read, "each": each, "end": now["seconds"] - last["seconds"]}


def timed(kind: Any, names: tuple[str, ...], spent: dict[str, float]) -> None:
    """Have each call of these methods add its seconds to `spent`; calls within calls count once."""
    inside = threading.local()

    def wrap(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "yes", False):
                return method(*args, **kwargs)
            inside.yes, began = True, time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                inside.yes = False
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

        return call

    for name in names:
        setattr(kind, name, wrap(name, getattr(kind, name)))


def the_search(trials: int, epochs: int, slots: int, algorithm: str, scheduler: str) -> Any:
    """A search over points of ProxyAnchor, without a final run."""
    from orchestrator.config.resolve import resolve_search

    raw = {
        "method": "proxy_anchor",
        "dataset": "glyphs-small",
        "settings": {"epochs": epochs, "threads": 1, "device": "cpu"},
        "space": SPACE,
        "num_trials": trials,
        "algorithm": algorithm,
        "scheduler": scheduler if scheduler == "none" else {"name": scheduler, "grace_validations": 1},
        "max_concurrent": slots,
        "final": False,
    }
    return resolve_search(raw, name="made", source="made")


def search(trials: int, epochs: int, slots: int, folder: Path, algorithm: str, scheduler: str) -> dict[str, Any]:
    """This package, from before the first trial to after the last record."""
    from orchestrator.search import driver as searching
    from orchestrator.search import preflight
    from orchestrator.search.study import Study
    from orchestrator.search.watcher import Watcher
    from orchestrator.storage import places
    from orchestrator.tracking.address import default_tracking_uri
    from orchestrator.tracking.mlflow_store import _open_client

    spent: dict[str, float] = {}
    reported: dict[str, float] = {}
    timed(Study, ("ask", "report", "tell"), spent)

    class Watching(Watcher):
        def begin(self, *_: Any) -> None:
            self.clock = Clock().begin()
            self.tenths = Tenths(self.clock, trials, spent)

        def __call__(self, event: str, trial: Any) -> None:
            if event == "ended":
                self.tenths.ended()

    timed(searching, ("write_report",), reported)
    wanted, watcher = the_search(trials, epochs, slots, algorithm, scheduler), Watching()
    preflight.check_data(wanted, places.Places(folder))  # imports torch, draws the images
    _open_client(default_tracking_uri(folder))  # imports MLflow, makes its tables
    outcome = searching.start(wanted, RayRunner(trial=NoTraining), storage=folder, watcher=watcher)
    assert outcome.state == "done" and outcome.problem is None, (outcome.state, outcome.problem)
    return watcher.tenths.all() | {"report": sum(reported.values())}


def plain(trials: int, epochs: int, slots: int, folder: Path, callbacks: list[Any]) -> dict[str, Any]:
    """Tune by itself."""
    os.environ.update(ENVIRONMENT | {"TUNE_MAX_PENDING_TRIALS_PG": str(slots)})
    clock = Clock()
    tenths = Tenths(clock, trials, {})

    class Ends(tune.Callback):  # type: ignore[misc]
        def on_trial_complete(self, *_: Any, **__: Any) -> None:
            tenths.ended()

        def __getstate__(self) -> dict[str, Any]:
            return {}

    tuner = tune.Tuner(
        tune.with_resources(Plain, {"CPU": 1}),
        param_space={"margin": tune.uniform(0, 0.5), "lr": tune.loguniform(1e-5, 1e-1), "epochs": epochs},
        tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=slots, reuse_actors=True),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder),
            verbose=0,
            callbacks=[*callbacks, Ends()],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    clock.begin()
    results = tuner.fit()
    assert len(results) == trials and not results.errors
    return tenths.all()


def measure(way: str, trials: int, epochs: int, slots: int, folder: Path, arguments: argparse.Namespace) -> Any:
    """One measurement, in this process."""
    ray.init(address="local", num_cpus=slots, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            if way == "search":
                return search(trials, epochs, slots, folder, arguments.algorithm, arguments.scheduler)
            if way == "tune":
                return plain(trials, epochs, slots, folder, [])
            from ray.air.integrations.mlflow import MLflowLoggerCallback

            from orchestrator.tracking.mlflow_store import _open_client

            uri = f"sqlite:///{folder / 'mlflow.db'}"
            _open_client(uri)
            return plain(trials, epochs, slots, folder, [MLflowLoggerCallback(uri, experiment_name="tune")])
    finally:
        ray.shutdown()


def measured(way: str, trials: int, epochs: int, slots: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        words = [sys.executable, __file__, "one", way, str(trials), str(epochs), str(slots), folder]
        words += ["--algorithm", arguments.algorithm, "--scheduler", arguments.scheduler]
        environment = os.environ | {"MADE_SLEEP": str(arguments.sleep), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(arguments: argparse.Namespace) -> None:
    """The three ways in turns."""
    for slots in arguments.slots:
        for epochs in arguments.validations:
            for trials in arguments.trials:
                found: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways}
                for _ in range(arguments.rounds):
                    for way in arguments.ways:
                        found[way].append(measured(way, trials, epochs, slots, arguments))
                        run = found[way][-1]
                        print(f"  {way} {run['each']} of {run['seconds']:.1f} s", file=sys.stderr, flush=True)
                for way, runs in found.items():
                    each = [run["each"]["seconds"] for run in runs]
                    used = statistics.median(run["each"]["processor"] for run in runs)
                    peak = statistics.median(run["peak MiB"] for run in runs)
                    rest = statistics.median(run["end"] for run in runs)
                    whole = statistics.median(run["seconds"] for run in runs)
                    line = f"{trials:6d} trials of {epochs:3d}, {slots:2d} at a time, {way:7s}"
                    line += f" {statistics.median(each):7.1f} ms a trial ({min(each):.1f} to {max(each):.1f}), driver "
                    line += (
                        f"{used:5.1f} ms of processor, {peak:5.0f} MiB; {whole:6.1f} s in all, the end {rest:4.1f} s"
                    )
                    if way == "search":
                        sampler = statistics.median(run["each"]["sampler"] for run in runs)
                        line += f", of which the report {statistics.median(run['report'] for run in runs):.1f} s"
                        line += f"; sampler {sampler:.1f} ms"
                        for other in [name for name in found if name != "search"]:
                            pairs = [(a["each"], b["each"]) for a, b in zip(runs, found[other], strict=True)]
                            ratio = statistics.median(a["seconds"] / b["seconds"] for a, b in pairs)
                            bare = statistics.median((a["seconds"] - a["sampler"]) / b["seconds"] for a, b in pairs)
                            line += f"; {ratio:.2f} x {other} ({bare:.2f} without the sampler)"
                    print(line, flush=True)


def growth(arguments: argparse.Namespace) -> None:
    """One search by tenths."""
    for trials in arguments.trials:
        for slots in arguments.slots:
            epochs = arguments.validations[0]
            run = measured("search", trials, epochs, slots, arguments)
            print(f"{trials} trials of {epochs}, {slots} at a time, {arguments.algorithm}, {arguments.scheduler}:")
            show(run)
            print(
                f"  the end {run['end']:.1f} s; {run['seconds']:.1f} s in all, peak {run['peak MiB']:.0f} MiB",
                flush=True,
            )


def show(run: dict[str, Any]) -> None:
    """A line per tenth."""
    before = {"seconds": 0.0, "processor": 0.0, "trials": 0, "sampler": 0.0}
    for now in run["tenths"]:
        count = now["trials"] - before["trials"]
        each = {key: 1000 * (now[key] - before[key]) / count for key in ("seconds", "processor", "sampler")}
        print(
            f"  to {now['trials']:6d}: {each['seconds']:7.1f} ms a trial, of which the sampler {each['sampler']:6.1f}; "
            f"processor {each['processor']:6.1f} ms; {now['MiB']:6.0f} MiB more"
        )
        before = now


def conduct(trials: int, epochs: int, folder: Path, algorithm: str, scheduler: str) -> tuple[Any, dict[str, Any]]:
    """A search of which only the driver's decisions and its journal are real."""
    from orchestrator.search.conductor import Conductor
    from orchestrator.search.study import Study
    from orchestrator.storage.journal import Journal

    spent: dict[str, float] = {}
    timed(Study, ("ask", "report", "tell"), spent)
    wanted = the_search(trials, epochs, 1, algorithm, scheduler)
    path = folder / "searches" / "made" / "journal.jsonl"
    with Journal(path) as journal:
        first = journal.append(
            "search_started",
            name="made",
            search_id="made",
            dataset="glyphs-small",
            method="proxy_anchor",
            objective=wanted.objective.model_dump(),
            config=wanted.model_dump(),
            params={},
            tags={},
        )
        clock = Clock()
        tenths = Tenths(clock, trials, spent)
        conductor = Conductor(wanted, path.parent, data=folder, journal=journal, events=[first], slots=1)
        clock.begin()
        while not conductor.is_finished:
            work = conductor.next()
            assert work is not None
            for result in made_results(work):
                if conductor.report(result):
                    break
            tenths.ended()
        conductor.end()
        return conductor, tenths.all() | {"journal MiB": path.stat().st_size / 2**20}


def driver(arguments: argparse.Namespace) -> None:
    """One search by tenths, without Ray and MLflow."""
    for trials in arguments.trials:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            epochs = arguments.validations[0]
            run = conduct(trials, epochs, Path(folder), arguments.algorithm, arguments.scheduler)[1]
        print(f"{trials} trials of {epochs}, {arguments.algorithm}, {arguments.scheduler}, without Ray and MLflow:")
        show(run)
        print(f"  journal {run['journal MiB']:.1f} MiB", flush=True)


def afterwards(arguments: argparse.Namespace) -> None:
    """Seconds of the commands that read a search, and of what a resume does before its first trial; the commands' own
    imports are given by `list` on an empty storage."""
    for trials in arguments.trials:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            storage = Path(name)
            conduct(trials, arguments.validations[0], storage, arguments.algorithm, arguments.scheduler)
            journal = storage / "searches" / "made" / "journal.jsonl"
            lines = journal.read_bytes().splitlines(keepends=True)
            journal.write_bytes(b"".join(lines[:-3]))  # killed at its last trial
            page = storage / "page.html"
            commands = {
                "list": ["list"],
                "status": ["status", "made"],
                "report": ["report", "made"],
                "report --json": ["report", "made", "--json"],
                "report --html": ["report", "made", "--html", str(page)],
            }
            with tempfile.TemporaryDirectory() as empty:
                print(f"{trials} trials: {'nothing':14s} {command(['list'], Path(empty))}", flush=True)
            for label, words in commands.items():
                print(f"{trials} trials: {label:14s} {command(words, storage)}", flush=True)
            print(f"{trials} trials: the page has {page.stat().st_size / 2**20:.1f} MiB")
            from orchestrator.search.conductor import Conductor
            from orchestrator.storage.journal import Journal
            from orchestrator.storage.reading import read_journal

            clock = Clock().begin()
            with Journal(journal) as opened:
                events, _ = read_journal(journal)
                wanted = the_search(trials, arguments.validations[0], 1, arguments.algorithm, arguments.scheduler)
                again = Conductor(wanted, journal.parent, data=storage, journal=opened, events=events, slots=1)
            used = clock.read()["processor"]
            print(f"{trials} trials: resume folds {len(events)} events in {used:.1f} s", flush=True)
            assert len(again.waiting) == 1


def command(words: list[str], storage: Path) -> str:
    """Seconds of processors, clock and peak memory of one command."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ORCHESTRATOR_STORAGE": str(storage)}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    line = [sys.executable, "-m", "orchestrator", *words]
    peak = 0.0
    with subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                peak = max(peak, psutil.Process(process.pid).memory_info().rss / 2**20)
            time.sleep(0.01)
    assert process.returncode == 0, words
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{used:6.1f} s of processors, {time.perf_counter() - began:6.1f} s, {peak:5.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compare", "growth", "driver", "afterwards", "one"))
    parser.add_argument("one", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--trials", type=int, nargs="+", default=[1000])
    parser.add_argument("--slots", type=int, nargs="+", default=[8])
    parser.add_argument("--validations", type=int, nargs="+", default=[5])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--algorithm", default="random")
    parser.add_argument("--scheduler", default="none")
    parser.add_argument("--ways", nargs="+", default=["tune", "search", "mlflow"])
    parser.add_argument("--folder", type=os.path.abspath, help="where the searches lie while they run")
    arguments = parser.parse_args()
    if arguments.what == "one":
        way, *counts, folder = arguments.one
        trials, epochs, slots = (int(word) for word in counts)
        print(json.dumps(measure(way, trials, epochs, slots, Path(folder), arguments)))
        return
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}", flush=True)
    os.environ["MADE_SLEEP"] = str(arguments.sleep)
    ways = {"compare": compare, "growth": growth, "driver": driver, "afterwards": afterwards}
    ways[arguments.what](arguments)


if __name__ == "__main__":
    main()
