"""A model file that a training wrote."""

from pathlib import Path
from typing import Any

from orchestrator.config.training import resolve_experiment
from orchestrator.data.store import Store
from orchestrator.training.checkpoint import save_checkpoint
from orchestrator.training.model_file import build_learner, model_state


def model_of(store: Store, path: Path, **settings: Any) -> Path:
    """A saved network with random weights."""
    experiment = resolve_experiment({"method": "proxy_anchor", "embedding_dim": 8, **settings}, "test")
    learner = build_learner(experiment, store, num_classes=5)
    save_checkpoint(path, model_state(experiment, store, learner))
    return path
