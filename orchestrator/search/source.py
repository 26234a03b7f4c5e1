"""A trained model that is to be exported: its encoder, and images to try what was exported on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchestrator.config.training import Experiment
from orchestrator.data.pipeline import Request, as_float
from orchestrator.data.preparation import Preparation
from orchestrator.data.remarks import remarks
from orchestrator.data.store import Store
from orchestrator.errors import InputError
from orchestrator.networks.lora import merge
from orchestrator.problems import Bare, Option, Problem, suggestion
from orchestrator.storage.provenance import versions
from orchestrator.training.encoder import Encoder
from orchestrator.training.model_file import load_learner, saved_model
from orchestrator.training.splits import new_reader, rows_to_test

TOLERANCE = 1e-4
"""The largest allowed difference of an embedding's coordinate, as a share of the largest where that is above 1;
rounding causes about 1e-6."""
EXAMPLES = 8


@dataclass(frozen=True)
class ModelSource:
    """A model to be exported: the encoder in evaluation mode on the CPU, `images` to test it with (N, H, W, channels),
    their `embeddings`, the facts `about` it, its file `model`, and how an image file becomes its input."""

    encoder: Encoder
    images: Tensor
    embeddings: Tensor
    about: dict[str, Any]
    model: Path
    preparation: Preparation

    @classmethod
    def of(
        cls, model: Path, store: Store, facts: Mapping[str, Any] | None = None, *, embedding: str | None = None
    ) -> "ModelSource":
        """A saved model, tested on images of a data set as its evaluation sees them; or one of the other embeddings
        that its method offers, InputError if it has none of this name."""
        learner, experiment = load_learner(model, store)
        learner = learner.float().eval().requires_grad_(False)
        merge(learner.network)
        images = example_images(store, experiment)
        if embedding is not None:
            with torch.no_grad():
                offered = learner.method.embeddings(learner.outputs(as_float(images.permute(0, 3, 1, 2))))
            if embedding not in offered:
                hint = suggestion(embedding, offered) if offered else None
                advice = "" if offered else ": it has none but its own; leave it out"
                rule = f"{model} has no such embedding"
                raise InputError(Problem((Option("embedding"),), Bare(embedding), rule, hint, advice=advice))
        encoder = Encoder(learner, embedding).eval()
        with torch.no_grad():
            embeddings = encoder(images)
        height, width, channels = images.shape[1:]
        size = embeddings.shape[-1]
        output = f"{embedding or 'embedding'}: float32 (batch, {size}), compared by Euclidean distance"
        if encoder.ranked:
            output = (
                f"retrieval: float32 (batch, 2, {size}), each image's row as a query and its row as an item; items are "
                "ranked by the inner product of the query's first row and their second rows, the largest first"
            )
        saved = saved_model(model)
        training = experiment.training
        preparation = Preparation.of(saved, training.augmentation, training.image_size)
        about = {
            "method": experiment.method,
            "dataset": saved["experiment"]["dataset"],
            "dataset_digest": saved["dataset_digest"],
            "input": f"images: uint8 (batch, {height}, {width}, {channels}), as the evaluation of augmentation "
            f"'{experiment.training.augmentation}' sees them",
            "preprocessing": preparation.steps,
            "output": output,
            "settings": experiment.flat(),
            **({"remarks": lines} if (lines := remarks(store)) else {}),
            "versions": versions(),
        }
        return cls(encoder, images, embeddings, about | dict(facts or {}), model, preparation)


def example_images(store: Store, experiment: Experiment, count: int = EXAMPLES) -> Tensor:
    """Some test images as the evaluation sees them, but as integers: uint8 (count, H, W, channels)."""
    rows = rows_to_test(experiment.training, store)
    sample = rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]
    with new_reader(store, experiment.training) as reader:
        ((_, images),) = reader.read([Request(sample)])
    return (as_float(images) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def parity(source: ModelSource, run: Callable[[Tensor], Any]) -> float:
    """The largest difference of an embedding's coordinate, over batches of one, three and all images; as a share of
    the largest coordinate, where that is above 1."""
    differences = []
    unit = max(1.0, float(source.embeddings.abs().max()))
    for count in (1, 3, len(source.images)):
        actual = torch.as_tensor(np.asarray(run(source.images[:count])))
        if actual.shape != source.embeddings[:count].shape:
            return float("inf")
        differences.append(float((actual - source.embeddings[:count]).abs().max()) / unit)
    return max(differences)
