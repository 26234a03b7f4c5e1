"""Which settings the score of an untrained network depends on."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SHAPING = (
    *("protocol", "selection", "validation_share", "class_subset", "seed"),
    *("backbone", "weights", "weights_sha256", "embedding_dim", "pooling", "input_convention", "augmentation"),
    "method",
)
"""The settings that the score of an untrained network depends on, besides the data: of the split, of the network, and
the method, which says whether embeddings are normalised and draws from the same seed."""


def untrained_key(settings: Mapping[str, Any], digest: str, *, on_test: bool = False) -> str:
    """The key of a network's score before its training: a hash of the data and of what shapes it (`SHAPING`); with a
    suffix of its score on the test classes beside the one on held-out classes."""
    shaped = {name: settings.get(name) for name in SHAPING}
    for name in ("image_size", "layer_norm", "head_init"):  # scores of a time without them keep their keys
        if settings.get(name) is not None:
            shaped[name] = settings[name]
    return hashlib.sha256(json.dumps([1, digest, shaped], sort_keys=True, default=str).encode()).hexdigest()[:24] + (
        "-test" if on_test else ""
    )
