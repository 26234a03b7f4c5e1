"""How few epochs a search needs to find what a full grid finds.

    python benchmarks/efficiency.py train [--file efficiency.json]     # minutes: the grid, once, by the tool itself
    python benchmarks/efficiency.py replay [--file efficiency.json] [--seeds 10] [--slots 1]

`train` searches the whole grid below on `glyphs-small` (`algorithm: grid`, no early stops) and keeps each point's
learning curve. `replay` searches the same points with the real search code, journal and early stops included, by a
runner that gives out the recorded curves in place of training. Counted are the epochs of all trials until one of them
has reported 99% of the grid's best value; the ratio is to the epochs of the whole grid.

Who has tried all points without finding it, for it was stopped early, counts with the whole grid's epochs. `asha` is
the shipped searches' (3 validations of grace), `hasty asha` stops after one. With several slots, trials advance in
turns, one epoch each.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestration import machine
from ruamel.yaml import YAML

from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.execution.protocol import Result, Validated, Work
from orchestrator.search.conductor import Conductor
from orchestrator.storage.events import Event
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
ASHA = {"name": "asha", "grace_validations": 3, "reduction_factor": 3}
WAYS: dict[str, dict[str, Any]] = {
    "tpe + asha": {"algorithm": "tpe", "scheduler": ASHA},
    "tpe + hasty asha": {"algorithm": "tpe", "scheduler": ASHA | {"grace_validations": 1}},
    "tpe": {"algorithm": "tpe"},
    "random + asha": {"algorithm": "random", "scheduler": ASHA},
    "random + hasty asha": {"algorithm": "random", "scheduler": ASHA | {"grace_validations": 1}},
    "random": {"algorithm": "random"},
    "grid": {"algorithm": "grid"},
}
SHARE = 0.99
Curves = list[tuple[dict[str, Any], list[float]]]


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


def recorded(file: Path) -> Curves:
    """The grid's points and curves."""
    return [(trial["params"], trial["curve"]) for trial in json.loads(file.read_text(encoding="utf-8"))["trials"]]


class Recorded:
    """A runner that trains nothing: `slots` trials in turns, each result from its recorded curve."""

    def __init__(self, curves: Curves, slots: int, goal: float) -> None:
        self.curves = {key(params): curve for params, curve in curves}
        self.slots = slots
        self.goal = goal
        self.epochs = 0
        self.found: int | None = None
        """After how many epochs the goal was reached."""

    def results(self, work: Work, params: dict[str, Any]) -> Iterator[Result]:
        curve = self.curves[key(params)]
        for number, value in enumerate(curve, start=1):
            self.epochs += 1
            if value >= self.goal and self.found is None:
                self.found = self.epochs
            metrics = {"val/map_at_r": value, "epoch": float(number)}
            yield Validated(work.trial_id, number, metrics, seconds=1.0, finished=number == len(curve))

    def run(self, conductor: Conductor) -> None:
        running: list[Iterator[Result]] = []
        while self.found is None and not conductor.is_finished:
            while len(running) < self.slots and (work := conductor.next()) is not None:
                running.append(self.results(work, conductor.ledger.find(work.trial_id).params))
            if not running:
                return
            running = [trial for trial in running if not conductor.report(next(trial))]


def key(params: dict[str, Any]) -> str:
    return json.dumps({name: float(value) for name, value in params.items()}, sort_keys=True)


def search(curves: Curves, changes: dict[str, Any], seed: int, slots: int) -> tuple[int, bool]:
    """Epochs that a search takes, and whether it reached the goal within them."""
    wanted = resolve_search(GRID | changes | {"seed": seed, "num_trials": len(curves)}, name="replay", source="replay")
    runner = Recorded(curves, slots, SHARE * max(max(curve) for _, curve in curves))
    with tempfile.TemporaryDirectory() as name, Journal(Path(name) / "journal.jsonl") as journal:
        conductor = Conductor(
            wanted, Path(name), data=Path(name), journal=journal, events=[started(journal, wanted)], slots=slots
        )
        runner.run(conductor)
    return runner.found or runner.epochs, runner.found is not None


def started(journal: Journal, search: Search) -> Event:
    return journal.append(
        "search_started",
        name=search.name,
        search_id="replay",
        dataset=search.dataset,
        method="pfml",
        objective=search.objective.model_dump(),
        config=search.model_dump(),
        params={},
        tags={},
    )


def replay(file: Path, seeds: int, slots: int) -> None:
    """A line per way."""
    curves = recorded(file)
    whole = sum(len(curve) for _, curve in curves)
    best = max(max(curve) for _, curve in curves)
    good = sum(max(curve) >= SHARE * best for _, curve in curves)
    reached = sorted(max(curve) for _, curve in curves)
    print(
        f"grid of {len(curves)} points, {whole} epochs; best {best:.4f}, median {statistics.median(reached):.4f}, "
        f"worst {reached[0]:.4f}; {good} reach {SHARE:.0%} of the best; {slots} at a time, {seeds} seeds"
    )
    for name, changes in WAYS.items():
        runs = [search(curves, changes, seed, slots) for seed in range(1 if name == "grid" else seeds)]
        ratios = sorted(epochs / whole if found else 1.0 for epochs, found in runs)
        missed = sum(not found for _, found in runs)
        low, high = statistics.quantiles(ratios, n=4)[::2] if len(ratios) > 1 else (ratios[0], ratios[0])
        print(
            f"{name:19s} {statistics.median(ratios):.3f} of the grid's epochs (quartiles {low:.3f} to {high:.3f}, all "
            f"{ratios[0]:.3f} to {ratios[-1]:.3f})" + (f"; {missed} of {len(runs)} never found it" if missed else ""),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "replay"))
    parser.add_argument("--file", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--slots", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.what == "train":
        train(arguments.file)
    else:
        replay(arguments.file, arguments.seeds, arguments.slots)


if __name__ == "__main__":
    main()
