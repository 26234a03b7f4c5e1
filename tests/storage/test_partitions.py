"""A search whose store, tracker and driver lose sight of each other: nothing is lost, and nothing is there twice."""

import os
import random
import sys
from pathlib import Path

import pytest
from support.networks import Network, namespaces

from orchestrator.storage.buckets import find_bucket
from orchestrator.storage.paths import working_copy

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
import partitions  # noqa: E402

SEARCH = """
import sys
from orchestrator.config.resolve import resolve_search
from orchestrator.execution.inline import InlineRunner
from orchestrator.search.driver import start
from orchestrator.storage.paths import working_copy

settings = {"epochs": 3, "validate_every": "8 steps", "embedding_dim": 4, "class_subset": 16, "classes_per_batch": 8}
settings |= {"images_per_class": 2, "device": "cpu", "threads": 1}
raw = {"method": "proxy_anchor", "dataset": "glyphs-small", "settings": settings, "space": {"lr": [1e-3, 1e-2]}}
search = resolve_search(raw | {"algorithm": "grid", "final": False}, name="x", source="test")
outcome = start(search, InlineRunner(), storage=working_copy(sys.argv[1]), tracking_uri=sys.argv[2])
sys.exit(outcome.state != "done")
"""


def plant_doubles(uri: str) -> None:
    """A second run of a trial, and a second point of a metric."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == "glyphs-small"]
    run = next(r for r in client.search_runs([experiment.experiment_id]) if "mlflow.parentRunId" in r.data.tags)
    tags = {key: run.data.tags[key] for key in ("mlflow.parentRunId", "orchestrator.trial_id")}
    second = client.create_run(experiment.experiment_id, tags=tags)
    client.set_terminated(second.info.run_id, run.info.status)
    client.log_metric(run.info.run_id, "val/map_at_r", 0.5, step=1)


@pytest.mark.slow
@pytest.mark.skipif(not namespaces(), reason="no network namespaces here")
def test_a_search_in_parts_loses_nothing(tmp_path: Path, data_folder: Path) -> None:
    """Each link is cut at random moments. What is planted then in MLflow and in the store, is detected."""
    before = dict(os.environ)
    campaign = partitions.Partitions(tmp_path, Network("ptest", "10.215.0", 5))
    try:
        campaign.start(data_folder)
        words = ["-c", SEARCH, partitions.STORAGE, campaign.address(partitions.MLFLOW)]
        campaign.driver = campaign.begin(partitions.DRIVER, words)
        campaign.disturb(random.Random(0), wait=(0.5, 2), length=(0.5, 3))
        assert campaign.driver.returncode == 0, campaign.said()
        assert campaign.cuts.total() >= 3
        campaign.sync("x")
        assert {what: fault for what, fault in partitions.check(campaign, "x") if fault} == {}
        plant_doubles(campaign.address(partitions.MLFLOW))
        faults = {what for what, fault in partitions.check(campaign, "x") if fault}
        assert {what.split(",")[0] for what in faults} == {
            "MLflow: one run per trial",
            "MLflow: one point per metric and epoch",
            "MLflow: the journal's points",
        }
        bucket, prefix = find_bucket(working_copy(partitions.STORAGE)) or pytest.fail("on a disk")
        bucket.remove([f"{prefix}/searches/x/journal/00000003.jsonl"])
        faults = {what for what, fault in partitions.check(campaign, "x") if fault} - faults
        assert faults == {"store: one object per record"}
    finally:
        campaign.end()
        os.environ.clear()
        os.environ.update(before)
