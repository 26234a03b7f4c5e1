"""A small search with a tracker, as a user begins it."""

from typing import Any

from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search

SETTINGS = {
    "method": "pfml",
    "proxies_per_class": 2,
    "dataset": "glyphs-small",
    "weights": "random",
    "embedding_dim": 16,
    "classes_per_batch": 8,
    "images_per_class": 4,
    "validate_every": "4 steps",
    "epochs": 1,
    "device": "cpu",
    "precision": "float64",
}


def small_search(name: str, **changes: Any) -> Search:
    """A few trials of a few validations; a worse one is stopped at its first."""
    fixed = {key: value for key, value in SETTINGS.items() if key not in ("method", "proxies_per_class")}
    raw = {
        "method": "pfml",
        "settings": fixed | {"epochs": 1, "validate_every": "3 steps", "precision": "float32"},
        "space": {"lr": [1e-2, 1e-5]},
        "algorithm": "grid",
        "scheduler": {"name": "asha", "grace_validations": 1, "reduction_factor": 2},
        "workers": 2,
        "max_concurrent": 1,
        "final": False,
    }
    return resolve_search(raw | changes, name=name, source="test.yaml")
