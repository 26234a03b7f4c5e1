"""Makes the rows of the public record, and says what they cost.

    python benchmarks/record.py measure TASK --storage DIR              # core-seconds of one training of the reference
    python benchmarks/record.py cost                                    # expected core-hours, task by task
    python benchmarks/record.py record [TASK] --storage DIR [--record results] # row after row; goes on where it was
    python benchmarks/record.py reproduce ROW --storage DIR             # a row again, by its printed command
    python benchmarks/record.py network TASK --storage DIR [--record results] # the pre-trained network without training

`record` runs what a user runs: `orchestrator search` with the plan's settings (results/plan.yaml), one training at a
time without Ray, and `orchestrator results add`. Rows come cheapest task first, the reference before the others. A
search that was killed is resumed, a row that is there is left alone, one that is refused is told and left out. Two
tasks may be recorded side by side, each by its own process.
`reproduce` runs the command of the row's page into another storage, and compares the tests of all seeds.
"""

import argparse
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.report.commands import set_words
from orchestrator.report.method_costs import cost_of
from orchestrator.report.significance import tests_by_seed
from orchestrator.results.adding import row_cost
from orchestrator.results.networks import FEATURES, FORMAT, NetworkScores, classes_digest, features_of, write_network
from orchestrator.results.plan import Plan, Task, read_plan, row_name
from orchestrator.results.row import FACTS, MEASURES, ROWS, measured_as, read_facts
from orchestrator.search.models import read_search
from orchestrator.storage.places import JOURNAL, Places, has_started
from orchestrator.storage.provenance import git_state
from orchestrator.storage.reading import read_journal
from orchestrator.training.device import choose_device
from orchestrator.training.model_file import new_learner
from orchestrator.training.splits import data_splits
from orchestrator.training.untrained import measure

ONE = ["--max-concurrent", "1"]
PATIENCE = 900
"""Seconds for which the process that joins waits for a search to begin."""
ROOT = Path(__file__).parents[1]
TORCH = torch.__version__.partition("+")[0]
PROGRAM = [sys.executable, "-m", "orchestrator"]


def trainings(plan: Plan) -> int:
    """Of one row."""
    return plan.budget.num_trials + plan.seeds


def core_seconds(plan: Plan, task: Task, method: str) -> float | None:
    """Of a row, expected: a training of the reference was measured on the task, and of each method what a step costs
    beside the network's part. None where the task was not measured."""
    if task.core_seconds is None or task.steps is None:
        return None
    own, reference = (cost_of(name, 100) for name in (method, plan.reference))
    more = 0.0 if own is None or reference is None else own.seconds - reference.seconds
    return trainings(plan) * (task.core_seconds + task.steps * more)


def planned_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """Task and method of each row that can be made here, cheapest task first."""
    measured = {name: task for name, task in plan.tasks.items() if task.core_seconds is not None}
    for name in sorted(measured, key=lambda name: measured[name].core_seconds or 0.0):
        for method in plan.methods_of(name):
            yield name, method


def measure_task(plan: Plan, name: str, storage: Path) -> int:
    """Train the reference once on a task, and print what the plan says of that."""
    task, training = plan.tasks[name], f"measured-{name}"
    words = ["train", "--method", plan.reference, "--dataset", task.dataset, "--name", training]
    words += set_words({"protocol": task.protocol, **task.settings, **plan.settings})
    if not has_started(Places(storage).search(training) / JOURNAL) and (
        code := run([*words, "--storage", str(storage)])
    ):
        return code
    events, ledger = read_journal(Places(storage).search(training) / JOURNAL)
    cost = row_cost(events, ledger, [])
    settings = next(iter(ledger.trials.values())).settings
    batch = settings["classes_per_batch"] * settings["images_per_class"]
    models = 4 if task.protocol == "mlrc" else 1
    steps = models * int(ledger.sizes["training_images"] // batch * settings["epochs"])
    print(f"    digest: {ledger.tags['dataset.digest']}\n    core_seconds: {cost.core_seconds:.0f}\n    steps: {steps}")
    return 0


def show_cost(plan: Plan) -> None:
    total = 0.0
    for name, task in plan.tasks.items():
        costs = {method: core_seconds(plan, task, method) for method in plan.methods_of(name)}
        if not costs:
            continue
        of_task = [cost for cost in costs.values() if cost is not None]
        if not of_task:
            print(f"{name}: {len(costs)} rows, not measured")
            continue
        total += sum(of_task)
        dearest = max(costs, key=lambda method: costs[method] or 0.0)
        print(
            f"{name}: {len(costs)} rows, {sum(of_task) / 3600:.1f} core-hours; a training of {plan.reference} takes "
            f"{task.core_seconds:.1f} core-seconds; the dearest row is {dearest} with {(costs[dearest] or 0) / 60:.0f} "
            "core-minutes"
        )
    print(f"together {total / 3600:.1f} core-hours, without the start of the processes")


def run(words: Sequence[str]) -> int:
    print("$ orchestrator " + shlex.join(words), flush=True)
    return subprocess.run([*PROGRAM, *words], check=False).returncode


def train(words: Sequence[str], name: str, storage: Path) -> int:
    """A search to its end, or its resume: one process drives it and one joins, which needs less memory than Ray."""
    words = [*words, "--address", "storage", "--storage", str(storage)]
    joined = ["work", str(storage), "--search", name, "--idle", str(PATIENCE)]
    print(f"$ orchestrator {shlex.join(words)} &\n$ orchestrator {shlex.join(joined)}", flush=True)
    with subprocess.Popen([*PROGRAM, *words]) as driver:
        while driver.poll() is None:  # until the driver has resumed it, a finished search takes no process
            with subprocess.Popen([*PROGRAM, *joined]) as joiner:
                while driver.poll() is None and joiner.poll() is None:
                    time.sleep(0.2)
                joiner.terminate()
            time.sleep(0.5)
    return driver.returncode


def finish(words: Sequence[str], name: str, storage: Path, seeds: int) -> int:
    """A search from these words, or what is left of it, with so many final runs; the exit status."""
    journal = Places(storage).search(name) / JOURNAL
    if not has_started(journal):
        return train([*words, *ONE], name, storage)
    ledger = read_journal(journal)[1]
    if ledger.is_complete and len(ledger.tests_of(ledger.winner())) >= seeds:
        return 0
    return train(["resume", name, "--final-seeds", str(seeds)], name, storage)


def record_rows(plan: Plan, storage: Path, record: Path, only: str | None) -> int:
    """Every row that is not there yet, or those of one task; returns how many could not be made."""
    refused = 0
    for task, method in planned_rows(plan):
        if only not in (None, task):
            continue
        name = row_name(task, method)
        folder = record / ROWS / name
        if (folder / FACTS).exists() and len(read_facts(folder).seeds) >= plan.seeds:
            continue
        code = finish(plan.search_words(task, method, plan.settings), name, storage, plan.seeds)
        if code in (130, -2, -15):
            raise SystemExit("interrupted; the same command goes on")
        if code or run(["results", "add", name, "--storage", str(storage), "--record", str(record)]):
            print(f"{name}: no row", flush=True)
            refused += 1
    return refused


def record_network(plan: Plan, name: str, storage: Path, record: Path) -> Path:
    """Measure the pre-trained network that a task's trainings begin with, as it comes, with their pooling: the features
    that their embedding layers get. Every protocol tests on the same classes, so MLRC's folds make no difference."""
    code, task = git_state(ROOT), plan.tasks[name]
    if code.get("git.dirty") != "false":
        raise SystemExit("the code was changed since its commit, so nobody can run the same: commit first")
    settings = {**task.settings, **plan.settings, "dataset": task.dataset, "protocol": "conventional"}
    experiment = resolve_experiment({**settings, "method": plan.reference}, "settings")
    store = open_dataset(task.dataset, Places(storage).data)
    score = measure(experiment, store, data_splits(experiment.training, store), on_test=True, bare=True)
    if score is None:
        raise SystemExit(f"{name}: the embeddings are not finite")
    names = {str(label): text for label, text in enumerate(store.class_names)}
    by_class = {metric: {names[label]: one for label, one in score["by_class"][metric].items()} for metric in MEASURES}
    features = features_of(task, plan.reference)
    given = {key: features[key] for key in ("pooling", *task.settings) if key in FEATURES and key != "backbone"}
    scores = NetworkScores(
        format=FORMAT,
        dataset=task.dataset,
        dataset_digest=str(store.manifest["digest"]),
        settings=features,
        dimensions=new_learner(experiment, store, data_splits(experiment.training, store)[0]).network.head.in_features,
        test={metric: score["metrics"][metric] for metric in MEASURES},
        by_class=by_class,
        command=shlex.join(
            ["orchestrator", "evaluate", str(features["backbone"]), "--dataset", task.dataset, *set_words(given)]
        ),
        commit=code["git.commit"],
        machine=f"{choose_device(experiment.training.device).type}, {platform.platform()}, torch {TORCH}",
        date=datetime.now(UTC).date().isoformat(),
        scores_digest=classes_digest(by_class),
    )
    return write_network(scores, record)


def reproduce(name: str, storage: Path, record: Path) -> int:
    """Run a row's command into a storage; returns 1 if a test differs."""
    facts = read_facts(record / ROWS / name)
    if code := finish(shlex.split(facts.command)[1:], name, storage, len(facts.seeds)):
        return code
    ledger, _ = read_search(name, storage)
    winner, furthest = ledger.winner(), 0.0
    for metric, values in facts.test.items():
        again = tests_by_seed(ledger, winner, measured_as(metric, facts.protocol))
        for seed, value in zip(facts.seeds, values, strict=True):
            furthest = max(furthest, abs(value - again[seed]))
            print(f"{metric} with seed {seed}: {value:.10f} recorded, {again[seed]:.10f} now")
    print(f"largest difference {furthest:.3g}")
    return int(furthest > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "cost", "record", "reproduce", "network"))
    parser.add_argument("name", nargs="?", metavar="TASK or ROW")
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--record", type=Path, default=Path("results"))
    options = parser.parse_args(arguments)
    plan = read_plan(options.record)
    if options.what == "cost":
        show_cost(plan)
        return 0
    if options.storage is None:
        parser.error(f"{options.what} needs --storage")
    if options.name is None and options.what != "record":
        parser.error(f"{options.what} needs a name")
    if options.what == "reproduce":
        return reproduce(options.name, options.storage, options.record)
    if options.name is not None and options.name not in plan.tasks:
        parser.error(f"{options.name!r} is no task of the plan: {', '.join(plan.tasks)}")
    if options.what == "record":
        return int(record_rows(plan, options.storage, options.record, options.name) > 0)
    if options.what == "measure":
        return measure_task(plan, options.name, options.storage)
    print(record_network(plan, options.name, options.storage, options.record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
