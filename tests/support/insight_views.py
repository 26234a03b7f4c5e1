"""A view of embeddings whose neighbours are known."""

from typing import Any

import numpy as np
import torch

from orchestrator.evaluation.insight import Insight, insight
from orchestrator.evaluation.metrics import evaluate_queries
from orchestrator.method import Embedded
from orchestrator.report.model_view import View

IMAGES, WIDTH = 120, 6


NAMES = [f"class {label}" for label in range(12)]


RNG = np.random.default_rng(1)


LABELS = np.sort(RNG.integers(0, 12, IMAGES))


EMBEDDINGS = np.eye(12)[LABELS][:, :WIDTH] + 0.4 * RNG.normal(size=(IMAGES, WIDTH))


ROWS = 500 + np.arange(IMAGES)[::-1].copy()  # rows of a data set, in another order than the embeddings'


def embedded(**others: torch.Tensor) -> Embedded:
    outputs = {"embedding": torch.from_numpy(EMBEDDINGS).float(), **others}
    return Embedded(outputs, torch.from_numpy(LABELS), torch.from_numpy(ROWS))


def evaluation() -> Any:
    found = evaluate_queries(EMBEDDINGS.astype(np.float32), LABELS, clustering=False)
    return type(found)(found.metrics, found.queries.set_column(0, "query", [ROWS]))


def seen(**others: torch.Tensor) -> Insight:
    return insight(evaluation(), embedded(**others), NAMES)


def view(names: list[str] = NAMES, *, uncertain: bool = True, **others: Any) -> View:
    levels = {"uncertainty": torch.from_numpy(np.abs(EMBEDDINGS[:, :2]))} if uncertain else {}

    def image(row: int) -> np.ndarray[Any, Any]:
        return np.full((30 + row % 3, 90, 3), row % 250, np.uint8)

    found = insight(evaluation(), embedded(**levels), names)
    return View("a model", ["pfml"], ["Test: good."], found, names, image, **others)


CURVES = {"uncertainty_trained": [4.0, 4.5, 5.0], "uncertainty_mixed": [4.2, 5.0, 6.0], "covering_radius": [1.0, 0.5]}
