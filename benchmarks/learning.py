"""Whether every method learns by its defaults.

    python benchmarks/learning.py [--methods a,b] [--seeds 3] [--set key=value ...] [--file learning.json] [--dry]

Each method is trained on `glyphs-small` by its defaults and those of every training (10 epochs), over seeds; beside it
stands its untrained network. Kept in the file, from which docs/methods.md has its table: MAP@R on the held-out classes
of the last epoch, before the first step, and the seconds of a training. Methods that are not named keep their rows.
"""

import argparse
import json
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from orchestration import machine

from orchestrator.config.files import read_scalar
from orchestrator.config.training import resolve_experiment
from orchestrator.plugins import installed_methods

DATASET, METRIC = "glyphs-small", "map_at_r"
FIXED: dict[str, Any] = {"dataset": DATASET, "device": "cpu", "threads": 1, "loader_threads": 1}
FILE = Path(__file__).with_name("learning.json")


class Outcome(NamedTuple):
    """One training: MAP@R before its first step and after its last epoch, and its seconds."""

    untrained: float
    trained: float
    seconds: float


def train(settings: dict[str, Any], data: Path) -> Outcome:
    """One training in this process."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.execution.worker import run_training
    from orchestrator.training.splits import data_splits
    from orchestrator.training.untrained import measure

    experiment = resolve_experiment(settings, "learning")
    store = open_dataset(DATASET, data)
    before = measure(experiment, store, data_splits(experiment.training, store))
    assert before is not None
    *_, last = validations = list(run_training(experiment, data=data, folder=None))
    seconds = sum(validation.seconds for validation in validations)
    return Outcome(before["metrics"][METRIC], last.metrics[f"val/{METRIC}"], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="", help="separated by commas; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="not the default; with --dry")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--data", type=Path, help="folder of data sets; a temporary one by default")
    parser.add_argument("--dry", action="store_true", help="print, and keep nothing")
    options = parser.parse_args()
    given = {key: read_scalar(value) for key, _, value in (text.partition("=") for text in options.set)}
    if given and not options.dry:
        parser.error("--set: is for --dry, what is kept are the defaults")
    methods = options.methods.split(",") if options.methods else sorted(installed_methods())
    with tempfile.TemporaryDirectory() as temporary:
        data = options.data or Path(temporary)
        from orchestrator.data.catalog import open_dataset

        open_dataset(DATASET, data)
        rows: dict[str, Any] = {}
        outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in methods}
        with ProcessPoolExecutor(options.processes) as pool:
            runs = {
                pool.submit(train, FIXED | {"method": name, "seed": seed} | given, data): (name, seed)
                for name in methods
                for seed in range(options.seeds)
            }
            for done in as_completed(runs):
                name, seed = runs[done]
                outcomes[name][seed] = done.result()
                if len(outcomes[name]) == options.seeds:
                    rows[name] = row = row_of([outcome for _, outcome in sorted(outcomes[name].items())])
                    print(f"{name:30} {row['trained']} untrained {row['untrained']} {row['seconds']} s", flush=True)
                    if not options.dry:
                        write(options.file, rows)


def row_of(outcomes: list[Outcome]) -> dict[str, Any]:
    """A method's row, over the seeds in order."""
    return {
        "trained": [round(outcome.trained, 4) for outcome in outcomes],
        "untrained": [round(outcome.untrained, 4) for outcome in outcomes],
        "seconds": round(statistics.mean(outcome.seconds for outcome in outcomes), 1),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
    }


def write(file: Path, rows: dict[str, Any]) -> None:
    """The rows beside those that the file has, a line each."""
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted({**before, **rows}.items())]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
