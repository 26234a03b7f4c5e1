"""A method with proxies of its own, and a training of it."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.data.splits import class_split
from orchestrator.method import Method, MethodConfig, Outputs, Task
from orchestrator.training.loop import fit

SETTINGS: dict[str, Any] = {
    "dataset": "glyphs-small",
    "embedding_dim": 8,
    "classes_per_batch": 6,
    "images_per_class": 5,
    "validate_every": "3 steps",
    "epochs": 2,
    "precision": "float64",
    "device": "cpu",
}


class Centres(Method, abstract=True):
    """Pulls embeddings to their class's centre."""

    paper = "unpublished"

    def __init__(self, config: MethodConfig, task: Task) -> None:
        super().__init__(config, task)
        self.centres = nn.Parameter(torch.randn(task.num_classes, task.embedding_dim))

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        return {"pull": (outputs["embedding"] - self.centres[labels[:, 0]]).square().sum(1).mean()}


def training_of(method: type[Method], data: Path, folder: Path | None, take: int = 99, **settings: Any) -> list[Any]:
    store = open_dataset("glyphs-small", data)
    experiment = resolve_experiment(SETTINGS | {"method": method.name} | settings, "test")
    split = class_split(store, validation_share=0.3, seed=0, class_subset=8)
    split = dataclasses.replace(split, validation=split.validation[::8])
    return [v.metrics for _, v in zip(range(take), fit(experiment, store, split, folder=folder), strict=False)]
