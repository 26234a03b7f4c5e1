"""A training over folds (Musgrave et al., "A Metric Learning Reality Check", ECCV 2020).

The training classes are divided into folds; each fold holds out its classes in turn and trains a model on the rest. The
models train in lockstep, one validation of each in turn, so that a search sees one curve: their mean.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor

from orchestrator.config.search import Objective
from orchestrator.config.training import Experiment
from orchestrator.data.splits import Split
from orchestrator.data.store import Store
from orchestrator.evaluation.metrics import Evaluation
from orchestrator.storage.trial_folder import TrialPaths
from orchestrator.training.distributed import rank
from orchestrator.training.embed import evaluate_and_embed, keep_insight, retrieve
from orchestrator.training.loop import ValidationResult, fit


def evaluate_folds(
    models: Sequence[Path],
    store: Store,
    rows: np.ndarray[Any, Any],
    device: str = "auto",
    *,
    keep: bool = False,
    approximate: bool = False,
) -> tuple[dict[str, float], Evaluation, Evaluation]:
    """The folds' models on these images: each metric's mean over the models ("separated"), and as
    `concatenated_<metric>` that of their concatenated normalised embeddings (ranked by the sum of the models' inner
    products, where the method has a `retrieval` of its own). Also the evaluation of these, and that of
    the models' mean, in which each query has the mean of its values over the models.

    `keep`: save the methods' own arrays and tables in each model's folder, and the insight of the concatenated
    embeddings in the training's folder."""
    evaluations: list[Evaluation] = []
    parts: list[Tensor] = []
    ranked: list[tuple[Tensor, Tensor]] = []
    for model in models:
        folder = TrialPaths(model.parent).diagnostics if keep else None
        evaluation, embedded = evaluate_and_embed(model, store, rows, device, folder=folder, approximate=approximate)
        evaluations.append(evaluation)
        parts.append(F.normalize(embedded.outputs["embedding"], dim=1))
        ranked += [] if embedded.retrieval is None else [embedded.retrieval]
    both = replace(embedded, outputs={"embedding": torch.cat(parts, dim=1)})
    if ranked:
        queries, items = (torch.cat(rows, dim=1) for rows in zip(*ranked, strict=True))
        both = replace(both, retrieval=(queries, items))
    place = models[0].parent.parent
    together = retrieve(both, store, device, what=str(place), approximate=approximate)
    if keep and rank() == 0:
        keep_insight(place, together, both, store)
    separated = mean_evaluation(evaluations)
    metrics = separated.metrics | {f"concatenated_{name}": value for name, value in together.metrics.items()}
    return metrics, together, separated


def mean_evaluation(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The mean of several models' evaluations of the same queries: of each metric, and of each query's values."""
    metrics = {name: fmean(one.metrics[name] for one in evaluations) for name in evaluations[0].metrics}
    queries = evaluations[0].queries
    for name in evaluations[0].names:
        # one null for a query that is left out, the same for all models, since it depends on labels alone
        values = np.mean([one.queries[name].to_numpy() for one in evaluations], axis=0)
        queries = queries.set_column(queries.column_names.index(name), name, [pa.array(values, from_pandas=True)])
    return Evaluation(metrics, queries)


def _why(folds: Sequence[ValidationResult]) -> str | None:
    """Why the folds ended before all their epochs, if any did."""
    reasons = [fold.reason for fold in folds if fold.reason is not None]
    return f"{len(reasons)} of {len(folds)} folds: {reasons[0]}" if reasons else None


def fit_folds(
    experiment: Experiment,
    store: Store,
    splits: Sequence[Split],
    *,
    folder: Path | None = None,
    objective: Objective | None = None,
    stop_after: int | None = None,
    keep: Callable[[], None] = lambda: None,
) -> Iterator[ValidationResult]:
    """`fit` on each split in lockstep: the mean of the folds' metrics at each validation.

    A fold that ends before the others counts with its last validation. Each fold keeps its own
    checkpoint and its own best model; a training interrupted at any point resumes exactly.
    """
    trainings = [
        fit(
            experiment,
            store,
            split,
            folder=TrialPaths(folder).fold(number).folder if folder is not None else None,
            objective=objective,
            stop_after=stop_after,
            keep=keep,
        )
        for number, split in enumerate(splits)
    ]
    latest: dict[int, ValidationResult] = {}
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
            yield ValidationResult(
                number=number,
                epoch=max(fold.epoch for fold in folds),
                step=max(fold.step for fold in folds),
                metrics={name: fmean(fold.metrics[name] for fold in folds) for name in names},
                seconds=seconds,
                finished=all(fold.finished for fold in folds),
                reason=_why(folds) if all(fold.finished for fold in folds) else None,
            )
    finally:
        for training in trainings:
            training.close()  # type: ignore[attr-defined]
