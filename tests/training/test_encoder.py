"""What a network costs before its training."""

from pathlib import Path

import pytest

from orchestrator.config.training import resolve_experiment
from orchestrator.data.store import Store
from orchestrator.execution.protocol import Validated, Work
from orchestrator.execution.worker import results
from orchestrator.method import Method
from orchestrator.training.encoder import Encoder
from orchestrator.training.model_file import build_learner

SETTINGS = {"method": "proxy_anchor", "dataset": "glyphs-small", "epochs": 1, "device": "cpu"}
FLOAT = 4


def first_result(folder: Path, data: Path, **settings: object) -> Validated:
    """The first of a trial's results that is to measure its network's costs."""
    work = Work("0000", resolve_experiment(SETTINGS | settings, "test"), str(data), str(folder), costs=True)
    training = results(work)
    result = next(training)
    training.close()
    assert isinstance(result, Validated)
    return result


def test_a_network_is_measured_before_its_first_step(tmp_path: Path, data_folder: Path, glyphs: Store) -> None:
    small, large = (first_result(tmp_path / f"{d}", data_folder, embedding_dim=d) for d in (8, 512))
    assert small.number == large.number == 0 and not small.metrics
    learner = build_learner(resolve_experiment(SETTINGS | {"embedding_dim": 8}, "test"), glyphs, num_classes=10)
    rows = learner.network.head.in_features + 1
    sizes = [cost.costs["cost/megabytes"] for cost in (small, large)]
    assert sizes[1] - sizes[0] == pytest.approx((512 - 8) * rows * FLOAT / 1e6)
    parts = [*learner.network.parameters(), *learner.network.buffers()]
    assert sizes[0] == pytest.approx(sum(part.numel() * part.element_size() for part in parts) / 1e6)
    assert 0 < small.costs["cost/milliseconds"] < 1000


def test_the_proxies_count_only_where_they_are_exported(glyphs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that ranks by itself is exported whole, so that its size is no other's."""
    learner = build_learner(resolve_experiment(SETTINGS, "test"), glyphs, num_classes=10)
    alone = sum(part.numel() for part in Encoder(learner).parameters())
    monkeypatch.setattr(type(learner.method), "retrieval", lambda self, outputs: Method.retrieval(self, outputs))
    whole = sum(part.numel() for part in Encoder(learner).parameters())
    assert whole - alone == sum(part.numel() for part in learner.method.parameters()) > 0
