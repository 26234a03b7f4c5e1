"""What orchestration costs: a search's wall time against the same trainings run bare, and against plain Ray.

    python benchmarks/orchestration.py --trials 16 --epochs 8 --runs 3

In one run of this script, in turn:
- `serial`:  the trainings one after another in one process, nothing else;
- `pool`:    the same in as many processes as the search has slots;
- `search`:  `orchestrator search`, journal, MLflow and all, from the command's start to its end;
- `ray`:     the same grid the way Ray documents it: a function trial that runs a TorchTrainer with one worker, reports
             through TuneReportCallback, and logs by Ray's MLflow callback.

All train the same points on the same data with one thread each, early stopping off. The bound of `search` is `pool`.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")


def points(trials: int) -> list[dict[str, Any]]:
    """So many points of ProxyAnchor's margin."""
    return [{"margin": round(0.01 * (1 + number), 4)} for number in range(trials)]


def settings(epochs: int) -> dict[str, Any]:
    """What all trainings share."""
    return {"method": "proxy_anchor", "dataset": "glyphs-small", "epochs": epochs, "threads": 1}


def train(work: tuple[dict[str, Any], str]) -> float:
    """One training, bare. Its seconds."""
    from orchestrator.config.training import resolve_experiment
    from orchestrator.execution.worker import run_training
    from orchestrator.training.memory import freed_memory_kept

    started = time.perf_counter()
    with freed_memory_kept("cpu"):  # as in a trial
        for _ in run_training(resolve_experiment(work[0], "benchmark"), data=work[1], folder=None):
            pass
    return time.perf_counter() - started


def serial(trials: int, epochs: int, slots: int, folder: Path, data: Path) -> None:
    """In a fresh process, so that it pays for its imports too."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(train, [(settings(epochs) | point, str(data)) for point in points(trials)], chunksize=1)


def pool(trials: int, epochs: int, slots: int, folder: Path, data: Path) -> None:
    """As many processes as slots."""
    with multiprocessing.get_context("spawn").Pool(slots) as processes:
        processes.map(train, [(settings(epochs) | point, str(data)) for point in points(trials)], chunksize=1)


def search(trials: int, epochs: int, slots: int, folder: Path, data: Path) -> None:
    """The command line, as users run it."""
    import shutil

    from ruamel.yaml import YAML

    storage = folder / "runs"
    (storage / "data").mkdir(parents=True)
    shutil.copytree(data / "glyphs-small", storage / "data" / "glyphs-small")
    space = {"margin": [point["margin"] for point in points(trials)]}
    content = settings(epochs) | {"space": space, "algorithm": "grid", "final": False}
    method, dataset = content.pop("method"), content.pop("dataset")
    fixed = {key: content.pop(key) for key in ("epochs", "threads")}
    file = folder / "grid.yaml"
    YAML().dump({"method": method, "dataset": dataset, "settings": fixed} | content, file)
    command = [sys.executable, "-m", "orchestrator", "search", str(file), "--storage", str(storage)]
    subprocess.run([*command, "--max-concurrent", str(slots)], check=True, capture_output=True, cwd=folder)


def ray_way(trials: int, epochs: int, slots: int, folder: Path, data: Path) -> None:
    """A process of its own, like `search`."""
    command = [sys.executable, __file__, "--ray-way", str(trials), str(epochs), str(slots), str(folder), str(data)]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)


def run_ray_way(trials: int, epochs: int, slots: int, folder: Path, data: Path) -> None:
    """The documented pattern, without early stopping."""
    import ray
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    def train_loop(config: dict[str, Any]) -> None:
        from orchestrator.config.training import resolve_experiment
        from orchestrator.execution.worker import run_training

        for validation in run_training(
            resolve_experiment(config["settings"], "benchmark"), data=config["data"], folder=None
        ):
            ray.train.report(validation.metrics)

    def trial(config: dict[str, Any]) -> None:
        trainer = TorchTrainer(
            train_loop,
            train_loop_config={"settings": settings(epochs) | {"margin": config["margin"]}, "data": str(data)},
            scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(
                name=f"train-{tune.get_context().get_trial_id()}",
                storage_path=str(folder / "ray"),
                callbacks=[TuneReportCallback()],
            ),
        )
        trainer.fit()

    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    tune.Tuner(
        tune.with_resources(trial, {"memory": 1}),
        param_space={"margin": tune.grid_search([point["margin"] for point in points(trials)])},
        tune_config=tune.TuneConfig(max_concurrent_trials=slots),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder / "ray"),
            verbose=0,
            callbacks=[MLflowLoggerCallback(tracking_uri=uri, experiment_name="ray")],
        ),
    ).fit()
    ray.shutdown()


WAYS: dict[str, Callable[[int, int, int, Path, Path], None]] = {
    "serial": serial,
    "pool": pool,
    "search": search,
    "ray": ray_way,
}


def main() -> None:
    """Measure, and print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--ray-way", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ray_way:
        trials, epochs, slots = (int(word) for word in arguments.ray_way[:3])
        run_ray_way(trials, epochs, slots, Path(arguments.ray_way[3]), Path(arguments.ray_way[4]))
        return
    from orchestrator.data.catalog import open_dataset

    seconds: dict[str, list[float]] = {way: [] for way in arguments.ways}
    with tempfile.TemporaryDirectory() as base:
        data = Path(base) / "data"
        open_dataset("glyphs-small", data)
        one = train((settings(arguments.epochs) | points(1)[0], str(data)))
        for number in range(arguments.runs):
            for way in arguments.ways:
                folder = Path(base) / f"{way}-{number}"
                folder.mkdir()
                started = time.perf_counter()
                WAYS[way](arguments.trials, arguments.epochs, arguments.slots, folder, data)
                seconds[way].append(time.perf_counter() - started)
                print(f"run {number + 1}: {way} {seconds[way][-1]:.1f} s", file=sys.stderr, flush=True)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    bound = medians.get("pool")
    print(f"{arguments.trials} trials of {one:.1f} s, {arguments.slots} at a time, {arguments.runs} runs, medians")
    for way, median in medians.items():
        line = f"  {way:7s} {median:7.1f} s"
        if bound and way in ("search", "ray"):
            overhead = (median - bound) * arguments.slots / arguments.trials
            line += f"   {median / bound:5.2f} x pool, {overhead:5.1f} s of a slot more per trial"
        print(line)
    record = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "seconds": seconds, "trial": one}
    print(json.dumps(vars(arguments) | record))


def machine() -> str:
    """Processor and number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
