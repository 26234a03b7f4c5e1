"""What tracking costs a search, in time and bytes, and how soon MLflow's pages over it are there.

    python benchmarks/reviewing.py tracking [--trials 200] [--rounds 2] [--keep FOLDER]
    python benchmarks/reviewing.py pages FOLDER [--rounds 3]
    python benchmarks/reviewing.py made [--trials 2000] [--keep FOLDER]

`tracking` runs the same search of real trainings on embedded data, two at a time, all that is recorded on, in turns
with MLflow (in sqlite, as `orchestrator search` has it) and without; random points and no early stopping, so that both
train the same. It says how much longer the one with MLflow took, how much more of the processor its driver used (which
repeats where clocks do not), and what a trial weighs in the tracker's database and among its artifacts. `made` makes a
storage of trials without training, by overhead.py's real search. `pages` opens what a search links to by
`orchestrator ui` and Debian's Chromium, and gives the seconds from the address to the last of what the page is opened
for: of a browser that has never been there (cold), and of one that has (warm).
"""

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

from orchestration import machine
from services import free_port

os.environ.setdefault("OMP_NUM_THREADS", "1")

NAME = "reviewed"
EPOCHS = 3


def wanted(trials: int) -> Any:
    """PFML on the embedded glyphs, with final runs over seeds at the end."""
    from orchestrator.config.resolve import resolve_search

    raw = {
        "method": "pfml",
        "dataset": "glyphs-small",
        "settings": {"epochs": EPOCHS, "threads": 1, "device": "cpu"},
        "space": {
            "lr": {"low": 1e-4, "high": 1e-2, "log": True},
            "delta": {"low": 0.1, "high": 0.35},
            "alpha": {"low": 1.0, "high": 6.0},
            "proxies_per_class": [1, 2, 5, 10],
        },
        "num_trials": trials,
        "algorithm": "random",
        "scheduler": "none",
        "max_concurrent": 2,
        "final_seeds": 2,
    }
    return resolve_search(raw, name=NAME, source=NAME)


def recorded(storage: Path, name: str) -> tuple[Any, Any]:
    """A search's ledger, and its runs in the tracker."""
    from orchestrator.storage.cursors import recorded_runs
    from orchestrator.storage.journal import Journal
    from orchestrator.storage.ledger import Ledger

    journal = storage / "searches" / name / "journal.jsonl"
    return Ledger.of(Journal.read(journal)), recorded_runs(journal)


# What tracking costs -----------------------------------------------------------------------------------------------


def one(trials: int, storage: Path, tracked: bool) -> dict[str, float]:
    """One search, in this process: seconds from its first trial to its last, of these without the first tenth, in which
    MLflow is imported and its database made, of its trainings, to its end, and of the processor here."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from support.memory_tracking import MemoryTracker

    from orchestrator.execution.ray_tune import RayRunner
    from orchestrator.search import driver
    from orchestrator.storage.journal import Journal

    untracked = mock.patch.object(driver, "MLflowTracker", lambda path, *_: MemoryTracker(path))
    began = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr), contextlib.nullcontext() if tracked else untracked:
        outcome = driver.start(wanted(trials), RayRunner(), storage=storage)
    whole = time.perf_counter() - began
    assert outcome.state == "done" and outcome.problem is None, (outcome.state, outcome.problem)
    events = Journal.read(storage / "searches" / NAME / "journal.jsonl")
    started = [event["time"] for event in events if event["event"] == "trial_started"]
    ended = [event["time"] for event in events if event["event"] == "trial_ended"]
    trained = sum(trial.seconds for trial in outcome.ledger.everyone())
    used = resource.getrusage(resource.RUSAGE_SELF)
    processor = used.ru_utime + used.ru_stime
    loop, settled = (ended[-1] - started[0]) / 1000, (ended[-1] - ended[trials // 10]) / 1000
    return {"loop": loop, "settled": settled, "trained": trained, "whole": whole, "processor": processor}


def tracking(arguments: argparse.Namespace) -> None:
    """Both in turns, then the weights."""
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    kept = Path(arguments.keep or tempfile.mkdtemp(prefix="reviewing-"))
    for place in range(arguments.rounds):
        for tracked in (place % 2 == 0, place % 2 == 1):
            storage = kept / f"{'tracked' if tracked else 'bare'}-{place}"
            storage.mkdir(parents=True)
            words = [sys.executable, __file__, "one", str(storage), "--trials", str(arguments.trials)]
            done = subprocess.run([*words, *(["--tracked"] if tracked else [])], stdout=subprocess.PIPE, text=True)
            if done.returncode:
                raise SystemExit(done.returncode)
            found[tracked].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"  {storage.name}: {found[tracked][-1]}", file=sys.stderr, flush=True)
    told = {
        "loop": "from the first trial to the last",
        "settled": "from the end of the first tenth to the last",
        "trained": "in trainings",
        "whole": "in all",
        "processor": "of the driver's processor",
    }
    for key, what in told.items():
        with_it, without = ([run[key] for run in found[tracked]] for tracked in (True, False))
        ratio = statistics.median(a / b for a, b in zip(with_it, without, strict=True))
        each = ", ".join(f"{a:.1f} against {b:.1f}" for a, b in zip(with_it, without, strict=True))
        print(f"{arguments.trials} trials of {EPOCHS} epochs, seconds {what}: {each}; ratio {ratio:.3f}", flush=True)
    more = statistics.median(
        (a["processor"] - b["processor"]) / b["trained"] for a, b in zip(found[True], found[False], strict=True)
    )
    print(f"what the tracker adds to the driver's processor is {more:.1%} of the time in trainings", flush=True)
    weigh(kept / "tracked-0")
    if arguments.keep is None:
        shutil.rmtree(kept)


def weigh(storage: Path) -> None:
    """Bytes of the database, and of each run's artifacts."""
    from orchestrator.search.kept_files import KEPT_MODELS

    ledger, runs = recorded(storage, NAME)
    artifacts = {
        name: sum(path.stat().st_size for root in storage.rglob(run) for path in root.rglob("*") if path.is_file())
        for name, run in runs.trials.items()
    }
    best = {trial.trial_id for trial in ledger.candidates()[:KEPT_MODELS]}
    kinds = {
        "an ordinary trial": [size for name, size in artifacts.items() if name in ledger.trials and name not in best],
        "one of the best, with its model and page": [size for name, size in artifacts.items() if name in best],
        "a final run": [size for name, size in artifacts.items() if name in ledger.finals],
    }
    base = (storage / "mlflow.db").stat().st_size
    kB = 1000.0
    for kind, sizes in kinds.items():
        if sizes:
            print(f"artifacts of {kind}: {statistics.median(sizes) / kB:.1f} kB, at most {max(sizes) / kB:.1f}")
    print(f"the database: {base / kB:.0f} kB, {base / kB / len(artifacts):.1f} kB a run", flush=True)


# Pages -------------------------------------------------------------------------------------------------------------


def made(arguments: argparse.Namespace) -> None:
    """A storage of so many trials without training."""
    storage = Path(arguments.keep).absolute()
    storage.mkdir(parents=True)
    words = [sys.executable, str(Path(__file__).with_name("overhead.py")), "one", "search", str(arguments.trials)]
    began = time.perf_counter()
    subprocess.run(
        [*words, str(EPOCHS), "2", str(storage), "--scheduler", "asha"],
        env=os.environ | {"MADE_SLEEP": "0"},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    print(f"{arguments.trials} made trials in {time.perf_counter() - began:.0f} s", flush=True)


@contextlib.contextmanager
def served(storage: Path, name: str) -> Iterator[tuple[str, float]]:
    """`orchestrator ui`, its address, and its seconds until it answers."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "orchestrator", "ui", name]
    command += ["--storage", str(storage), "--port", str(free_port())]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        try:
            assert server.stderr is not None
            told = next(filter(None, (re.search(r"(http://127\.0\.0\.1:\d+)/", line) for line in server.stderr)))
            for line in server.stderr:
                if "Application startup complete" in line:
                    break
            yield told[1], time.perf_counter() - began
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, 15)


def looks(storage: Path, name: str) -> dict[str, tuple[str, Callable[[Any], None]]]:
    """What a search links to: the address of each page, and how to wait for what it is opened for."""
    from playwright.sync_api import expect

    from orchestrator.storage.places import PAGE
    from orchestrator.tracking.views import comparison_path, run_path, view_path

    ledger, runs = recorded(storage, name)
    experiment, parent, winner = str(runs.experiment_id), str(runs.parent_run_id), ledger.winner()
    assert winner is not None
    best = [runs.trials[trial.trial_id] for trial in ledger.candidates()[:10]]

    def text(wanted: str) -> Callable[[Any], None]:
        return lambda page: expect(page.get_by_text(wanted).first).to_be_visible()

    def drawing(page: Any) -> None:
        expect(page.locator("svg.main-svg").nth(2)).to_be_visible()

    def report(page: Any) -> None:
        expect(page.frame_locator("iframe").first.locator(".plot[data-drawn=yes]").first).to_be_visible()

    return {
        "leaderboard": (view_path(experiment, ledger.search_id, "table"), text("matching runs")),
        "charts": (view_path(experiment, ledger.search_id, "charts"), drawing),
        "the search's run": (run_path(experiment, parent), text(f"Best: trial {winner.trial_id}")),
        "its report in MLflow's frame": (f"#/experiments/{experiment}/runs/{parent}/artifacts/{PAGE}", report),
        "the winner's run": (run_path(experiment, runs.trials[winner.trial_id]), text("val/map_at_r")),
        "the ten best, charts": (view_path(experiment, ledger.search_id, "best"), text("Parallel Coordinates")),
        "the ten best compared": (comparison_path(experiment, best), text(f"Comparing {len(best)} Runs")),
    }


def pages(arguments: argparse.Namespace) -> None:
    """Each page several times, by a new browser each time, twice in each."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=120_000)
    storage = Path(arguments.folder).absolute()
    name = next((storage / "searches").iterdir()).name
    chromium = shutil.which("chromium")
    with served(storage, name) as (address, seconds), sync_playwright() as playwright:
        print(f"orchestrator ui: {seconds:.1f} s until it answers", flush=True)
        for what, (path, wait) in looks(storage, name).items():
            cold: list[float] = []
            warm: list[float] = []
            for _ in range(arguments.rounds):
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                context = browser.new_context(viewport={"width": 1500, "height": 1300})
                for times in (cold, warm):
                    page = context.new_page()
                    began = time.perf_counter()
                    page.goto(f"{address}/{path}")
                    wait(page)
                    times.append(time.perf_counter() - began)
                    page.close()
                browser.close()
            each = ", ".join(f"{statistics.median(times):.1f} s (at most {max(times):.1f})" for times in (cold, warm))
            print(f"{what}: cold, warm: {each}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tracking", "made", "pages", "one"))
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keep", help="a folder for the storages, which stay")
    parser.add_argument("--tracked", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "one":
        print(json.dumps(one(arguments.trials, Path(arguments.folder), arguments.tracked)))
        return
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}", flush=True)
    {"tracking": tracking, "made": made, "pages": pages}[arguments.what](arguments)


if __name__ == "__main__":
    main()
