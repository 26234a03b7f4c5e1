"""What a user waits for: seconds, processor and memory of each command that only looks or refuses, and the stages of a
search.

    python benchmarks/startup.py [--rounds 1] [--json FILE] [--beside CHECKOUT]

Each command is a process of its own, beside two that do nothing but start Python and import torch; all take turns, and
the median over the rounds counts. The search is a small one on embedded data under Ray: the seconds after the command
at which its lines appeared. The commands look at the search of the first round. Measure on an idle machine.

`--beside` runs each command, and the search, by turns with the code of another checkout too, in this environment, and
gives ratios; each has a storage and a cache of its own. On a busy machine those of the processor count.
"""

import argparse
import json
import os
import resource
import shutil
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
PROCESSOR = "the end, in seconds of a processor"


def environment(folder: Path, checkout: Path | None) -> dict[str, str]:
    """Of a command, by the code of a checkout; None: that of this environment."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    kept["ORCHESTRATOR_CACHE"] = str(folder / "cache")
    return kept | ({"PYTHONPATH": str(checkout)} if checkout else {})


def measured(words: list[str], folder: Path, checkout: Path | None = None) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak memory (MB) of a Python process."""
    began = time.perf_counter()
    quiet = subprocess.DEVNULL
    words, variables = [sys.executable, *words], environment(folder, checkout)
    child = subprocess.Popen(words, cwd=folder, stdout=quiet, stderr=quiet, env=variables)
    _, _, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = 0  # it was waited for
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def stages(folder: Path, name: str, checkout: Path | None = None) -> dict[str, float]:
    """The seconds at which each stage of a small search ended, and those of a processor of all of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began, found = time.perf_counter(), {}
    left = dict(STAGES)
    command = [sys.executable, "-u", "-m", "orchestrator", *SEARCH.split(), "--name", name]
    pipe, variables = subprocess.PIPE, environment(folder, checkout)
    with subprocess.Popen(
        command, cwd=folder, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=variables
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            for stage, part in list(left.items()):
                if part is not None and part in line:
                    found[stage] = time.perf_counter() - began
                    del left[stage]
    if child.returncode:
        raise SystemExit(f"{SEARCH}: exit code {child.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found | {stage: time.perf_counter() - began for stage in left} | {PROCESSOR: used}


def beside(checkout: Path, rounds: int, looks: Path | None) -> None:
    """Print the ratios of this code's figures to those of another checkout, each round by turns; with `looks` without
    the search, at one that is recorded in this folder."""
    processes = YARDSTICKS | {command: ["-m", "orchestrator", *command.split()] for command in COMMANDS}
    ours: dict[str, list[tuple[float, float, float]]] = {name: [] for name in processes}
    theirs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in processes}
    searches: list[tuple[dict[str, float], dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as mine, tempfile.TemporaryDirectory() as other:
        sides = ((Path(mine), None, ours), (Path(other), checkout.resolve(), theirs))
        if looks:
            processes = {name: words for name, words in processes.items() if "torch" not in name and "dry" not in name}
            for folder, _, _ in sides:
                shutil.copytree(looks, folder / "runs" / "searches" / "looked-at")
        for folder, code, _ in sides if not looks else ():
            for command in ("methods", "search demo --dry-run"):
                measured(processes[command], folder, code)
        for number in range(rounds):
            turns = sides if number % 2 == 0 else sides[::-1]
            name = f"looked-at-{number}" if number else "looked-at"
            if not looks:
                both = {code: stages(folder, name, code) for folder, code, _ in turns}
                searches.append((both[None], both[checkout.resolve()]))
            for command, arguments in processes.items():
                for folder, code, into in turns:
                    if not number:
                        measured(arguments, folder, code)
                    into[command].append(measured(arguments, folder, code))
    print(f"{machine()}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[1]:.0f}; medians of {rounds} rounds\n")
    print("| command | processor | theirs | ratio | memory, ratio |\n|---|---|---|---|---|")
    for command in processes:
        a, b = ([statistics.median(part) for part in zip(*side[command], strict=True)] for side in (ours, theirs))
        cells = f"{a[1]:.2f} | {b[1]:.2f} | {a[1] / b[1]:.2f} | {a[2] / b[2]:.2f}"
        print(f"| `{command}` | {cells} |")
    if looks:
        return
    print(f"\n| `{SEARCH}`: until | seconds | theirs | ratio |\n|---|---|---|---|")
    for stage in [*STAGES, PROCESSOR]:
        ours_at, theirs_at = (statistics.median(pair[side][stage] for pair in searches) for side in (0, 1))
        print(f"| {stage} | {ours_at:.1f} | {theirs_at:.1f} | {ours_at / theirs_at:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=1, help="use 3 for figures that are published")
    parser.add_argument("--json", type=Path, help="the figures of each round, as a file")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="by turns with its code")
    parser.add_argument("--looks", type=Path, metavar="FOLDER", help="with --beside: at this search, and no other")
    given = parser.parse_args()
    if given.beside:
        beside(given.beside, given.rounds, given.looks)
        return
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
