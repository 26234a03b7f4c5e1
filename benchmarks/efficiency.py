"""How few epochs a search needs to find what a full grid finds.

    python benchmarks/efficiency.py train [--file efficiency.json]     # minutes: the grid, once, by the tool itself
    python benchmarks/efficiency.py replay [--file efficiency.json] [--seeds 10] [--slots 1]

`train` searches the whole grid below on `glyphs-small` (`algorithm: grid`, no early stops) and keeps each point's
learning curve. `replay` searches the same points as a task of the tabular benchmark (docs/benchmark_tables.md). Counted
are the epochs of all trials until one of them has reported 99% of the grid's best value; the ratio is to the epochs of
the whole grid.

Who has tried all points without finding it, for it was stopped early, counts with the whole grid's epochs. `asha` is
the shipped searches' (3 validations of grace). `hasty asha`, `promotion` and `forecast` stop after one, a `late` one
after three. With several slots, each epoch takes as long as any other.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tabular
from orchestration import machine
from ruamel.yaml import YAML

from orchestrator.benchmarking import TabularCurve, TabularTask, evaluate_algorithm
from orchestrator.config.resolve import resolve_search
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger

EPOCHS = 8
GRID: dict[str, Any] = {
    "method": "pfml",
    "dataset": "glyphs-small",
    "settings": {
        "epochs": EPOCHS,
        "embedding_dim": 32,
        "classes_per_batch": 16,
        "images_per_class": 4,
        "device": "cpu",
        "threads": 1,
    },
    "space": {
        "lr": [1e-3, 3e-3, 1e-2, 3e-2],
        "delta": {"low": 0.1, "high": 0.35, "step": 0.125},
        "alpha": {"low": 1, "high": 5, "step": 2},
        "proxies_per_class": {"low": 5, "high": 15, "step": 10},
    },
    "algorithm": "grid",
    "final": False,
}
WAYS: dict[str, dict[str, Any]] = {
    **tabular.STOPPING,
    **{f"{name} + hyperband": {"algorithm": name, "scheduler": "hyperband"} for name in ("tpe", "random")},
    **{name: tabular.WAYS[name] for name in ("tpe", "random")},
    "grid": {"algorithm": "grid"},
}
SHARE = 0.99


def train(file: Path) -> None:
    """The whole grid, one trial at a time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        YAML().dump(GRID, folder / "grid.yaml")
        command = [sys.executable, "-m", "orchestrator", "search", str(folder / "grid.yaml"), "--name", "grid"]
        command += ["--storage", str(folder / "runs"), "--max-concurrent", "1"]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
        ledger = Ledger.of(Journal.read(folder / "runs" / "searches" / "grid" / "journal.jsonl"))
    trials = ledger.trials.values()
    content = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "seconds": round(sum(trial.seconds for trial in trials), 1),
        "metric": ledger.metric,
        "trials": [{"params": trial.params, "curve": [round(value, 6) for value in trial.curve]} for trial in trials],
    }
    lines = json.dumps(content).replace('{"params"', '\n{"params"')
    file.write_text(lines + "\n", encoding="utf-8")


def recorded_task(file: Path) -> TabularTask:
    """The grid as a task, with a second for each epoch."""
    trials = json.loads(file.read_text(encoding="utf-8"))["trials"]
    space = resolve_search(GRID, name="grid", source="grid").space
    curves = {
        (number, 0): TabularCurve(
            {"epoch": [1.0 + epoch for epoch in range(EPOCHS)], "val/map_at_r": trial["curve"]}, [1.0] * EPOCHS, []
        )
        for number, trial in enumerate(trials)
    }
    points = [space.point(trial["params"]) for trial in trials]
    return TabularTask("grid", GRID, points, [0], curves, planned=len(points))


def replay(file: Path, seeds: int, slots: int, ways: Iterable[str]) -> None:
    """A line per way."""
    task = recorded_task(file)
    reached = sorted(max(curve.metrics["val/map_at_r"]) for curve in task.curves.values())
    good = sum(value >= SHARE * task.best() for value in reached)
    print(
        f"grid of {len(task.points)} points, {task.epochs:.0f} epochs; best {task.best():.4f}, median "
        f"{statistics.median(reached):.4f}, worst {reached[0]:.4f}; {good} reach {SHARE:.0%} of the best; {slots} at a "
        f"time, {seeds} seeds"
    )
    for name in ways:
        changes = WAYS[name]
        outcome = evaluate_algorithm(
            task, seeds=range(1 if name == "grid" else seeds), share=SHARE, slots=slots, **changes
        )
        low, high = outcome.quartiles
        missed = f"; {outcome.missed} of {len(outcome.shares)} never found it" if outcome.missed else ""
        print(
            f"{name:23s} {outcome.median:.3f} of the grid's epochs (quartiles {low:.3f} to {high:.3f}, all "
            f"{min(outcome.shares):.3f} to {max(outcome.shares):.3f}){missed}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "replay"))
    parser.add_argument("--file", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    arguments = parser.parse_args()
    if arguments.what == "train":
        train(arguments.file)
    else:
        replay(arguments.file, arguments.seeds, arguments.slots, arguments.ways)


if __name__ == "__main__":
    main()
