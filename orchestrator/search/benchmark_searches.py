"""A benchmark as it runs: its searches one after the other, then their comparison."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.search import Search, recorded_search
from orchestrator.errors import InputError, visible
from orchestrator.execution.protocol import Runner
from orchestrator.report.comparison import Comparison
from orchestrator.search.benchmark import Benchmark, benchmark_comparison, to_do
from orchestrator.search.control import between_searches
from orchestrator.search.driver import resume, start, suited_to_data
from orchestrator.search.finish import Outcome
from orchestrator.search.preflight import check_data, check_hours, warn_once
from orchestrator.search.watcher import Watcher
from orchestrator.storage import paths
from orchestrator.storage.folder import Folder
from orchestrator.storage.ledger import BENCHMARK
from orchestrator.storage.places import BENCHMARK_PAGE, BENCHMARK_RECORD, JOURNAL, Places, has_started, writable
from orchestrator.storage.reading import read_journal
from orchestrator.storage.scratch import scratch
from orchestrator.tracking.address import error_line, tracking_address
from orchestrator.tracking.projection import EXPERIMENT
from orchestrator.tracking.store import TrackingError


@dataclass(frozen=True)
class Result:
    """The result of a benchmark so far."""

    comparison: Comparison
    page: Path
    stopped: str | None
    """Why it stopped early, if it did."""
    fault: bool
    """Whether it stopped because of a fault of the machine, not on request."""


def run_methods(
    benchmark: Benchmark,
    runner: Runner,
    *,
    storage: Path,
    tracking_uri: str | None = None,
    watcher: Callable[[str, int], Watcher] = lambda label, place: Watcher(),
) -> Result:
    """Search with every method that has not used its budget yet, and compare them all. `watcher` is called for each
    search, with its label and place."""
    from orchestrator.report.html.comparison_page import write_comparison

    places = Places(writable(storage))
    searches, say = to_do(benchmark, places), warn_once()
    for search in searches.values():
        check_data(suited_to_data(search, places, say)[0], places, say)
    folder = Folder(places.benchmark(benchmark.name))
    outcome: Outcome | None = None
    stopped: str | None = None
    tags = {BENCHMARK: benchmark.name} | ({EXPERIMENT: benchmark.experiment} if benchmark.experiment else {})
    if searches:
        with scratch(), runner.ready(next(iter(searches.values())), places.storage):
            for search in searches.values():
                check_hours(search, runner)
                with runner.ready(search, places.storage):
                    pass  # check that each of them fits
            folder.write(BENCHMARK_RECORD, benchmark.model_dump_json(indent=1).encode())
            with between_searches(folder.path) as asked_to:
                for place, (label, search) in enumerate(searches.items(), start=1):
                    if asked_to() is not None or (outcome is not None and outcome.stopping):
                        stopped = "stopped before its next search"
                        break
                    outcome = advance(search, runner, places, tracking_uri, watcher(label, place), tags, say)
                    if outcome.state == "interrupted":
                        stopped = outcome.fault or outcome.ledger.reason or "interrupted"
                        break
    comparison = benchmark_comparison(benchmark, places)
    with folder.output(BENCHMARK_PAGE) as page:
        names = {label: benchmark.member(label) for label in benchmark.labels}
        write_comparison(comparison, page, places.pages_seen_from(folder.path, names))
    all_done = stopped is None and all(name in {m.label for m in comparison.members} for name in benchmark.labels)
    problem = _publish(comparison, page, places, tracking_uri if outcome is None else outcome.tracking_uri, all_done)
    if problem is not None:
        again = f"orchestrator benchmark --name {benchmark.name}{paths.in_command(places.storage)}"
        print(
            visible(f"warning: MLflow lacks the benchmark's page ({problem}); try again with: {again}"), file=sys.stderr
        )
    return Result(comparison, page, stopped, fault=outcome is not None and outcome.fault is not None)


def _publish(comparison: Comparison, page: Path, places: Places, uri: str | None, done: bool) -> str | None:
    """Show the benchmark in the tracker of its searches; what went wrong, in one line."""
    from orchestrator.report.note import benchmark_note
    from orchestrator.tracking.benchmarks import Described, publish_benchmark

    ledgers = {member.label: member.ledger for member in comparison.members}
    journals = {label: places.search(ledger.name) / JOURNAL for label, ledger in ledgers.items()}
    ended = max(ledger.ended or 0 for ledger in ledgers.values()) if done else None
    started = min(ledger.started for ledger in ledgers.values())
    described = Described(comparison.name, started, benchmark_note(comparison), page, ended)
    try:
        address = tracking_address(uri, places, next(iter(journals.values())))
        return publish_benchmark(described, places.benchmark(comparison.name), journals, address, places.artifacts)
    except (InputError, TrackingError) as error:
        return error_line(error)


def advance(
    search: Search,
    runner: Runner,
    places: Places,
    tracking_uri: str | None,
    watcher: Watcher,
    tags: Mapping[str, str],
    say: Callable[[str], None],
) -> Outcome:
    """One of several searches to its end: a new one with these tags, or one that began before."""
    if not has_started(places.search(search.name) / JOURNAL):
        return start(
            search,
            runner,
            storage=places.storage,
            tracking_uri=tracking_uri,
            watcher=watcher,
            tags=tags,
            say=say,
        )
    before = read_journal(places.search(search.name) / JOURNAL)[1].config
    more: Mapping[str, Any] = {}
    if recorded_search(before).model_dump() != search.model_dump():
        more = {"num_trials": search.num_trials, "budget": search.budget.model_dump()}
    return resume(
        search.name,
        runner,
        storage=places.storage,
        tracking_uri=tracking_uri,
        watcher=watcher,
        for_benchmark=True,
        say=say,
        **more,
    )
