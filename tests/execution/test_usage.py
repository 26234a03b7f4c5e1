"""What a training takes of its machine: measured, recorded with each validation, shown by MLflow as system metrics."""

import mmap
import time
from pathlib import Path

import torch
from support.memory_tracking import MemoryTracker
from support.recorded import record

from orchestrator.storage.journal import Journal
from orchestrator.training.usage import MEGABYTE, Usage


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_it_is_that_since_the_last_question() -> None:
    began = time.monotonic()
    usage = Usage(torch.device("cpu"))
    spin(0.3)
    found, passed = usage.since(), time.monotonic() - began
    assert abs(found["cpu_utilization_percentage"] * passed / 100 - 0.3) < 0.1
    assert found.keys() == {"cpu_utilization_percentage", "memory_usage_megabytes"}
    time.sleep(0.3)
    assert usage.since()["cpu_utilization_percentage"] < 35  # the 0.3 seconds above do not count again


def test_memory_that_is_written_to_counts() -> None:
    usage = Usage(torch.device("cpu"))
    before = usage.since()["memory_usage_megabytes"]
    with mmap.mmap(-1, 64 * MEGABYTE) as fresh:  # not what an earlier test has freed
        for place in range(0, len(fresh), mmap.PAGESIZE):
            fresh[place] = 1
        assert 55 < usage.since()["memory_usage_megabytes"] - before < 75


def test_mlflow_shows_it_as_system_metrics(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    record(journal, "search_started")
    record(journal, "trial_started", trial_id="0000")
    system = {"cpu_utilization_percentage": 97.5, "memory_usage_megabytes": 512.0}
    record(journal, "validation", trial_id="0000", validation=1, metrics={"epoch": 1.0}, system=system)
    tracker = MemoryTracker(journal.path)
    tracker.notify()
    (run,) = (run for run in tracker.runs.values() if run["tags"].get("orchestrator.trial_id") == "0000")
    shown = {key: [value for _, _, value in points] for key, points in run["metrics"].items()}
    assert {key: shown[key] for key in shown if not key.startswith("param/")} == {
        "epoch": [1.0],
        "system/cpu_utilization_percentage": [97.5],
        "system/memory_usage_megabytes": [512.0],
    }
