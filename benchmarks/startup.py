"""What a user waits for: seconds, processor and memory of each command that only looks or refuses, and the stages of a
search.

    python benchmarks/startup.py [--rounds 1] [--json FILE]

Each command is a process of its own, beside two that do nothing but start Python and import torch; all take turns, and
the median over the rounds counts. The search is a small one on embedded data under Ray: the seconds after the command
at which its lines appeared. The commands look at the search of the first round. Measure on an idle machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestration import machine

YARDSTICKS = {"python: nothing": ["-c", "pass"], "python: import torch": ["-c", "import torch"]}
COMMANDS = (
    *("list", "status looked-at", "report looked-at", "report looked-at --json", "report looked-at --format csv"),
    *("report looked-at --format markdown", "presets", "presets pfml/cub200/resnet50", "datasets", "methods"),
    *("methods idml", "nope", "search nope", "search demo --set delta=-1", "search demo --preset nope"),
    *("train --method nope --dataset glyphs-small", "resume nope", "search demo --dry-run"),
)
SEARCH = "search demo --num-trials 2 --epochs 2"
STAGES = {
    "the first line": "",
    "the first trial": "trial 0000 started",
    "its first validation": "trial 0000 validation 1:",
    "the final run": "final run started",
    "its end": "final run done",
    "the final test": "final test:",
    "the prompt": None,
}
"""The stages of a search, and what stands in the line that ends each; None: the end of the process."""


def measured(words: list[str], folder: Path) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak memory (MB) of a Python process."""
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = 0  # it was waited for
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def stages(folder: Path, name: str) -> dict[str, float]:
    """The seconds at which each stage of a small search ended."""
    began, found = time.perf_counter(), {}
    left = dict(STAGES)
    command = [sys.executable, "-u", "-m", "orchestrator", *SEARCH.split(), "--name", name]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            for stage, part in list(left.items()):
                if part is not None and part in line:
                    found[stage] = time.perf_counter() - began
                    del left[stage]
    if child.returncode:
        raise SystemExit(f"{SEARCH}: exit code {child.returncode}")
    return found | {stage: time.perf_counter() - began for stage in left}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=1, help="use 3 for figures that are published")
    parser.add_argument("--json", type=Path, help="the figures of each round, as a file")
    given = parser.parse_args()
    processes = YARDSTICKS | {command: ["-m", "orchestrator", *command.split()] for command in COMMANDS}
    rounds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in processes}
    searches: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["ORCHESTRATOR_CACHE"] = str(folder / "cache")
        for command in ("methods", "search demo --dry-run"):  # caches, the record of methods, the data set
            measured(processes[command], folder)
        for number in range(given.rounds):
            searches.append(stages(folder, f"looked-at-{number}" if number else "looked-at"))
            if not number:
                for words in processes.values():
                    measured(words, folder)
            for name, words in processes.items():
                rounds[name].append(measured(words, folder))
    print(f"{machine()}, {datetime.now(UTC):%Y-%m-%d}; medians of {given.rounds} rounds\n")
    print("| command | seconds | processor | memory, MB |\n|---|---|---|---|")
    for name, found in rounds.items():
        seconds, processor, memory = (statistics.median(part) for part in zip(*found, strict=True))
        print(f"| `{name}` | {seconds:.2f} | {processor:.2f} | {memory:.0f} |")
    print(f"\n| `{SEARCH}`: until | seconds |\n|---|---|")
    for stage in STAGES:
        print(f"| {stage} | {statistics.median(found[stage] for found in searches):.1f} |")
    if given.json:
        record: dict[str, Any] = {"machine": machine(), "date": f"{datetime.now(UTC):%Y-%m-%d}", "commands": rounds}
        given.json.write_text(json.dumps(record | {"search": searches}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
