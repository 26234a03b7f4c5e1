"""A training over folds (Musgrave et al., "A Metric Learning Reality Check", ECCV 2020; METHODS section 8).

The training classes are cut into folds; each fold holds out its classes in turn and trains a model on the rest. The
models train in lockstep, a validation of each in turn, so that a search sees one curve: their mean.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from orchestrator.checkpoint import DIAGNOSTICS, fold_folder
from orchestrator.data.splits import Split
from orchestrator.data.store import Store
from orchestrator.distributed import rank
from orchestrator.evaluation import Evaluation
from orchestrator.loop import Validation, evaluate_and_embed, fit, keep_insight, retrieve
from orchestrator.spec import Experiment, Objective


def evaluate_folds(
    models: Sequence[Path],
    store: Store,
    rows: np.ndarray[Any, Any],
    device: str = "auto",
    *,
    keep: bool = False,
    approximate: bool = False,
) -> tuple[dict[str, float], Evaluation]:
    """The folds' models on these images: each metric's mean over the models ("separated"), and as
    `concatenated_<metric>` that of their normalised embeddings side by side, of which the evaluation is given too.
    `keep`: the methods' own arrays and tables go to each model's folder, the insight of the embeddings side by side to
    theirs."""
    metrics: list[dict[str, float]] = []
    parts: list[Tensor] = []
    for model in models:
        folder = model.parent / DIAGNOSTICS if keep else None
        found, embedded = evaluate_and_embed(model, store, rows, device, folder=folder, approximate=approximate)
        metrics.append(found.metrics)
        parts.append(F.normalize(embedded.outputs["embedding"], dim=1))
    both = replace(embedded, outputs={"embedding": torch.cat(parts, dim=1)})
    place = models[0].parent.parent
    together = retrieve(both, store, device, what=str(place), approximate=approximate)
    if keep and rank() == 0:
        keep_insight(place, together, both, store)
    separated = {name: fmean(fold[name] for fold in metrics) for name in metrics[0]}
    return separated | {f"concatenated_{name}": value for name, value in together.metrics.items()}, together


def fit_folds(
    experiment: Experiment,
    store: Store,
    splits: Sequence[Split],
    *,
    folder: Path | None = None,
    objective: Objective | None = None,
    stop_after: int | None = None,
) -> Iterator[Validation]:
    """`fit` on each split in lockstep: the mean of the folds' metrics at each validation.

    A fold that has come to its end before the others counts with its last validation. Each fold keeps its own
    checkpoint and its own best model; a training that was interrupted anywhere goes on exactly.
    """
    trainings = [
        fit(
            experiment,
            store,
            split,
            folder=fold_folder(folder, number) if folder is not None else None,
            objective=objective,
            stop_after=stop_after,
        )
        for number, split in enumerate(splits)
    ]
    latest: dict[int, Validation] = {}
    number = 0
    try:
        while not (latest and all(validation.finished for validation in latest.values())):
            seconds = 0.0
            for fold, training in enumerate(trainings):
                if fold not in latest or not latest[fold].finished:
                    latest[fold] = next(training)
                    seconds += latest[fold].seconds
            number += 1
            folds = [latest[fold] for fold in range(len(trainings))]
            names = [name for name in folds[0].metrics if all(name in fold.metrics for fold in folds)]
            yield Validation(
                number=number,
                epoch=max(fold.epoch for fold in folds),
                step=max(fold.step for fold in folds),
                metrics={name: fmean(fold.metrics[name] for fold in folds) for name in names},
                seconds=seconds,
                finished=all(fold.finished for fold in folds),
            )
    finally:
        for training in trainings:
            training.close()  # type: ignore[attr-defined]
