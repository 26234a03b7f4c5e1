"""Embeddings of a split, and all measurements on them."""

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchestrator.data.augmentations import Degradation
from orchestrator.data.pipeline import Reader, Request
from orchestrator.data.store import Store
from orchestrator.errors import InputError, TrainingFailed
from orchestrator.evaluation.claims import Ends, Over
from orchestrator.evaluation.insight import Insight, insight
from orchestrator.evaluation.intervals import of_auroc
from orchestrator.evaluation.measures import HEADLINES
from orchestrator.evaluation.measures.recall import DEFAULT_RECALL_AT, RECALL_AT
from orchestrator.evaluation.measures.search import QUERIES_LEFT_OUT
from orchestrator.evaluation.metrics import Evaluation, auroc, evaluate_queries
from orchestrator.method import Embedded, Method, Outputs
from orchestrator.storage.atomic import write_atomically
from orchestrator.storage.trial_folder import TrialPaths
from orchestrator.training.device import choose_device, own_device, subnormals_flushed
from orchestrator.training.distributed import broadcast_object, gather, on_first, rank, world_size
from orchestrator.training.features import keep_features
from orchestrator.training.feed import feed
from orchestrator.training.learner import Given, Learner, describe_value
from orchestrator.training.memory import freed_memory_kept
from orchestrator.training.model_file import BareNetwork, load_learner, save_diagnostics, save_table
from orchestrator.training.precision import arithmetic
from orchestrator.training.splits import leave_out, new_reader, rows_to_test

EVALUATION_BATCH = 256


@torch.no_grad()
def run_network(
    learner: Learner,
    store: Store,
    rows: np.ndarray[Any, Any],
    device: torch.device,
    reader: Reader | None = None,
    *,
    normalized: bool = True,
) -> Outputs:
    """The outputs (len(rows), ...) for these images in eval mode, divided among the ranks, never in half precision.

    Without a `reader` the images are used as they are in the store.
    """
    was_training = learner.training
    learner.eval()
    size = math.ceil(len(rows) / world_size())
    padded = np.resize(rows, size * world_size())
    own_rows = padded[rank() * size : (rank() + 1) * size]
    dtype = next(learner.parameters()).dtype
    blocks: list[Outputs] = []
    requests = (Request(own_rows[start : start + EVALUATION_BATCH]) for start in range(0, size, EVALUATION_BATCH))
    with arithmetic(learner.precision, device), freed_memory_kept(device.type), subnormals_flushed():
        features = learner.features if learner.features is not None and learner.features.store is store else None
        if features is not None and (kept := features.of_rows(own_rows)) is not None:
            read_out = learner.outputs_of_features if normalized else learner.network.read_out
            blocks = [read_out(block) for block in torch.split(kept, EVALUATION_BATCH)]
        else:
            for _, images, _ in feed(reader or Reader(store), requests, device, dtype=dtype):
                blocks.append(learner.outputs(images) if normalized else learner.network(images))
    learner.train(was_training)
    return {name: gather(torch.cat([block[name] for block in blocks]))[: len(rows)] for name in blocks[0]}


def embed_split(
    learner: Learner, store: Store, rows: np.ndarray[Any, Any], device: torch.device, reader: Reader | None = None
) -> Embedded:
    """The network's outputs for these images, with the data set's own labels; TrainingFailed as `retrieval_of` and
    `others_of`."""
    result = run_network(learner, store, rows, device, reader)
    ranked, others = retrieval_of(learner.method, result), others_of(learner.method, result)
    outputs = {name: output.cpu() for name, output in result.items()}
    labels = torch.from_numpy(store.labels[rows].astype(np.int64))
    return Embedded(outputs, labels, torch.from_numpy(rows), ranked, others)


def retrieval_of(method: Method, outputs: Outputs) -> tuple[Tensor, Tensor] | None:
    """What the method's `retrieval` gives for these images, on the CPU; None where it is not overridden.

    Raises TrainingFailed, in one line, unless it gives two finite matrices (N, K). Where embeddings are not finite
    either, what reads those says so.
    """
    if type(method).retrieval is Method.retrieval:
        return None

    def tensors_by_name(block: Outputs) -> Mapping[str, Tensor]:
        pair = method.retrieval(block)
        actual = f"{len(pair)} of them" if isinstance(pair, tuple | list) else f"a {type(pair).__name__}"
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(r, Tensor) for r in pair):
            raise _Wrong(f"gave {actual}, not two tensors")
        if pair[0].shape != pair[1].shape:
            shapes = " and ".join(str(tuple(rows.shape)) for rows in pair)
            raise _Wrong(f"gave shapes {shapes} for {len(block['embedding'])} images")
        return {"queries": pair[0], "items": pair[1]}

    needs = "two finite float matrices (N, K): a row of each image as a query, and one as an item"
    result = _rows_of(method, outputs, tensors_by_name, "retrieval", needs)
    return result["queries"], result["items"]


def others_of(method: Method, outputs: Outputs) -> dict[str, Tensor]:
    """What the method's `embeddings` gives for these images, on the CPU; TrainingFailed, in one line, unless these are
    finite matrices (N, K) with names of lower-case letters, digits and underscores."""
    if type(method).embeddings is Method.embeddings:
        return {}

    def tensors_by_name(block: Outputs) -> Mapping[str, Tensor]:
        embeddings = method.embeddings(block)
        if not isinstance(embeddings, Mapping):
            raise _Wrong(f"gave {describe_value(embeddings)}, not tensors by name")
        for name, rows in embeddings.items():
            if not (isinstance(name, str) and re.fullmatch("[a-z][a-z0-9_]*", name)):
                raise _Wrong(f"gave the name {name!r}, not one of lower-case letters, digits and underscores")
            if not isinstance(rows, Tensor):
                raise _Wrong(f"gave {describe_value(rows)} as {name!r}")
        return embeddings

    return _rows_of(method, outputs, tensors_by_name, "embeddings", "finite float matrices (N, K) by name")


class _Wrong(Exception):
    """What is wrong with what a hook gave."""


@torch.no_grad()
def _rows_of(
    method: Method, outputs: Outputs, rows_of_block: Callable[[Outputs], Mapping[str, Tensor]], hook: str, needs: str
) -> dict[str, Tensor]:
    """The rows of all images by name, on the CPU, from a hook that is given them in blocks, in eval mode."""
    was_training = method.training
    method.eval()
    parts: list[dict[str, Tensor]] = []
    for start in range(0, len(outputs["embedding"]), EVALUATION_BATCH):
        block = Given({name: output[start : start + EVALUATION_BATCH] for name, output in outputs.items()})
        try:
            block_rows = rows_of_block(block)
            _check_rows(block_rows, block["embedding"], parts[0] if parts else block_rows)
        except _Wrong as wrong:
            raise TrainingFailed(f"{method.name}: {hook}() {wrong}: it must give {needs}") from None
        parts.append(
            {name: rows.cpu() if rows.dtype.itemsize >= 4 else rows.float().cpu() for name, rows in block_rows.items()}
        )
    method.train(was_training)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _check_rows(rows_by_name: Mapping[str, Tensor], embedding: Tensor, before: Mapping[str, Tensor]) -> None:
    """_Wrong unless these are rows of as many images, with the names and widths that other images had before."""
    if rows_by_name.keys() != before.keys():
        raise _Wrong(f"gave {', '.join(before)}, and {', '.join(rows_by_name) or 'nothing'} for other images")
    for name, rows in rows_by_name.items():
        shape = tuple(rows.shape)
        if len(shape) != 2 or shape[0] != len(embedding) or not shape[1]:
            raise _Wrong(f"gave {name} of shape {shape} for {len(embedding)} images")
        if before[name].shape[1] != shape[1]:
            raise _Wrong(f"gave {before[name].shape[1]} columns, and {shape[1]} for other images")
        if not rows.is_floating_point():
            raise _Wrong(f"gave {rows.dtype}")
        finite = torch.isfinite(rows).all(dim=1)
        if not finite.all() and torch.isfinite(embedding).all():
            raise _Wrong(f"gave {int((~finite).sum())} of {len(rows)} rows that are not finite")


def validate(
    held_out: Embedded, store: Store, device: torch.device | None = None
) -> tuple[dict[str, float], Evaluation | None]:
    """`val/...`: the retrieval metrics on the classes that the training selects on; queries are searched for in the
    gallery if both exist, on the training's `device`. On rank 0 also the evaluation that the metrics come from."""
    if not torch.isfinite(held_out.outputs["embedding"]).all():
        raise TrainingFailed("the embeddings are not finite")
    evaluation_of_rank = None
    if rank() == 0:
        device = None if device is None else own_device(device)
        evaluation_of_rank = retrieval_set(held_out, store).evaluate(clustering=False, device=device)
        evaluation_of_rank = with_others(evaluation_of_rank, held_out, store, device=device)
    metrics = broadcast_object(evaluation_of_rank.metrics if evaluation_of_rank is not None else None)
    return {
        f"val/{name}": value for name, value in metrics.items() if name != QUERIES_LEFT_OUT.name
    }, evaluation_of_rank


def evaluate_model(
    model: Path, store: Store, rows: np.ndarray[Any, Any], device: str = "auto", *, folder: Path | None = None
) -> dict[str, float]:
    """The metrics of `evaluate_model_by_query` alone; same arguments and errors."""
    return evaluate_model_by_query(model, store, rows, device, folder=folder).metrics


def evaluate_model_by_query(
    model: Path,
    store: Store,
    rows: np.ndarray[Any, Any],
    device: str = "auto",
    *,
    folder: Path | None = None,
    approximate: bool = False,
) -> Evaluation:
    """All metrics of a saved model on these images; the method's arrays and tables are saved in `folder` as `test_...`.

    Rows of the data set's split `query` are searched for among the others, if it has one; otherwise each row among
    all. In the table of queries, `query` is the image's row in the data set. `images_left_out` counts photographs that
    cannot be decoded, if there are any. Raises InputError if none can be evaluated or the embeddings are not finite.
    """
    return evaluate_and_embed(model, store, rows, device, folder=folder, approximate=approximate)[0]


def evaluate_and_embed(
    model: Path | BareNetwork,
    store: Store,
    rows: np.ndarray[Any, Any],
    device: str = "auto",
    *,
    folder: Path | None = None,
    approximate: bool = False,
    degradation: Degradation | None = None,
) -> tuple[Evaluation, Embedded]:
    """As `evaluate_model_by_query`, and also the embedded images; the images are degraded if asked."""
    learner, embedded = embed_model(model, store, rows, device, degradation)
    result = retrieve(embedded, store, device, what=str(model), approximate=approximate)
    seen_of_method = learner.method.diagnostics(None, embedded)
    if folder is not None and rank() == 0:
        save_diagnostics(folder, seen_of_method, prefix="test_")
    scalars = {f"diagnostics/{name}": float(value) for name, value in seen_of_method.scalars.items()}
    if left_out := len(rows) - len(embedded.samples):
        scalars["images_left_out"] = float(left_out)
    return replace(result, metrics=result.metrics | scalars), embedded


def detect_outside(
    model: Path, inside: Store, outside: Store, device: str = "auto"
) -> tuple[dict[str, float], dict[Over, Ends | None]]:
    """`out_of_distribution/auroc`: how well the uncertainty ||u|| separates the images of another data set (they should
    have more) from those of its own; of both data sets, the images that `rows_to_test` gives. Also its intervals over
    the classes of both (None if one has too few) and over their images; see `intervals.of_auroc`.

    Raises InputError if the model has no uncertainty embedding: the output `uncertainty` (N, D) of the network, from a
    head of the method. Source: IDML's Table 4.
    """
    sides = []
    for store in (inside, outside):  # find whatever is wrong before computing anything
        learner, experiment = load_learner(model, store)
        if "uncertainty" not in learner.network.heads:
            raise InputError(
                f"{model}: trained by '{experiment.method}' it has no uncertainty embedding to detect images with; "
                "idml learns one"
            )
        sides.append((store, rows_to_test(experiment.training, store)))
    levels, labels = [], []
    for store, rows in sides:
        _, embedded = embed_model(model, store, rows, device)
        levels.append(torch.linalg.vector_norm(embedded.outputs["uncertainty"].double(), dim=1))
        labels.append(embedded.labels)
    try:
        metrics = {"out_of_distribution/auroc": auroc(*levels)}
    except ValueError as error:
        raise InputError(f"{model} on {inside.name} and {outside.name}: {error}") from None
    classes = (labels[0].numpy(), labels[1].numpy())
    return metrics, {"classes": of_auroc(levels[0], levels[1], classes), "queries": of_auroc(levels[0], levels[1])}


def embed_model(
    model: Path | BareNetwork,
    store: Store,
    rows: np.ndarray[Any, Any],
    device: str = "auto",
    degradation: Degradation | None = None,
) -> tuple[Learner, Embedded]:
    """A saved model's learner, and its outputs for these images; photographs that cannot be decoded are left out."""
    learner, experiment = load_learner(model, store)
    chosen_device = choose_device(device)
    readable = rows[~np.isin(rows, list(leave_out(store, experiment.training)))]
    with new_reader(store, experiment.training, degradation, device=chosen_device) as reader:
        keep_features(learner.to(chosen_device), experiment.training, store, reader, chosen_device)
        return learner, embed_split(learner, store, readable, chosen_device, reader)


def retrieve(
    embedded: Embedded, store: Store, device: str = "auto", *, what: str, approximate: bool = False
) -> Evaluation:
    """All metrics of these embeddings, as in `evaluate_model_by_query`; rank 0 computes them. `what` is named in
    errors."""
    return on_first(lambda: _retrieve(embedded, store, choose_device(device), what, approximate))


def _retrieve(embedded: Embedded, store: Store, device: torch.device, what: str, approximate: bool) -> Evaluation:
    recall_at = RECALL_AT.get(store.name, DEFAULT_RECALL_AT)
    try:
        result = retrieval_set(embedded, store).evaluate(recall_at=recall_at, approximate=approximate, device=device)
    except ValueError as error:
        raise InputError(f"{what} on {store.name}: {error}") from None
    return with_others(result, embedded, store, approximate=approximate, device=device)


def with_others(
    evaluation: Evaluation, embedded: Embedded, store: Store, *, device: torch.device | None, approximate: bool = False
) -> Evaluation:
    """The evaluation with the headline metrics of the method's other `embeddings`, as `<name>_<metric>`."""
    metrics, queries = dict(evaluation.metrics), evaluation.queries
    for name, rows in embedded.others.items():
        other = retrieval_set(replace(embedded, outputs={"embedding": rows}, retrieval=None), store)
        one = other.evaluate(clustering=False, approximate=approximate, device=device)
        for metric in HEADLINES:
            metrics[f"{name}_{metric}"] = one.metrics[metric]
            queries = queries.append_column(f"{name}_{metric}", one.queries[metric])
    return Evaluation(metrics, queries)


@dataclass(frozen=True)
class RetrievalSet:
    """Queries, and what each is searched for among.

    Args:
        samples: (Q,) the queries' rows in the data set.
        embeddings: (Q, D) of the queries.
        labels: (Q,) their classes in the data set.
        gallery: (G, D) and `gallery_labels`: (G,); both None where each query is searched for among the others.
        by_product: rows of the queries (Q, K) and of the items (G or Q, K) that are ranked by inner product; None where
            embeddings are by distance.
    """

    samples: np.ndarray[Any, Any]
    embeddings: Tensor
    labels: Tensor
    gallery: Tensor | None = None
    gallery_labels: Tensor | None = None
    by_product: tuple[Tensor, Tensor] | None = None

    def evaluate(
        self,
        *,
        recall_at: Sequence[int] = DEFAULT_RECALL_AT,
        clustering: bool = True,
        approximate: bool = False,
        device: torch.device | None = None,
    ) -> Evaluation:
        """`evaluate_queries` of these; the column `query` holds rows of the data set."""
        result = evaluate_queries(
            self.embeddings,
            self.labels,
            gallery=self.gallery,
            gallery_labels=self.gallery_labels,
            by_product=self.by_product,
            recall_at=recall_at,
            clustering=clustering,
            approximate=approximate,
            device=device,
        )
        return replace(result, queries=result.queries.set_column(0, "query", [self.samples]))


def retrieval_set(embedded: Embedded, store: Store) -> RetrievalSet:
    """Images of the split `query` are searched for among the others; unless both exist, each image among all."""
    embeddings, labels, samples = embedded.outputs["embedding"], embedded.labels, embedded.samples.numpy()
    ranked = embedded.retrieval
    queries = torch.from_numpy(store.splits[samples] == "query")
    if not queries.any() or queries.all():
        return RetrievalSet(samples, embeddings, labels, by_product=ranked)
    return RetrievalSet(
        samples[queries.numpy()],
        embeddings[queries],
        labels[queries],
        embeddings[~queries],
        labels[~queries],
        None if ranked is None else (ranked[0][queries], ranked[1][~queries]),
    )


def look(evaluation: Evaluation, embedded: Embedded, store: Store) -> Insight:
    """The insight into an evaluation of these images, whose `query` column holds rows of the data set."""
    queries = store.splits[embedded.samples.numpy()] == "query"
    apart = queries.any() and not queries.all()
    return insight(evaluation, embedded, store.class_names, np.flatnonzero(~queries) if apart else None)


def keep_insight(folder: Path, evaluation: Evaluation, embedded: Embedded, store: Store) -> None:
    """Save the insight; a failure to compute it is reported, and does not end the training."""
    try:
        insight = look(evaluation, embedded, store)
    except Exception as error:
        warnings.warn(f"the model's confusions are not saved ({type(error).__name__}: {error})", stacklevel=2)
        return
    save_insight(folder, insight)


def save_insight(folder: Path, insight: Insight) -> None:
    """Its tables as `insight/<name>.csv`, the rest as one file beside the model."""
    for name, table in insight.tables.items():
        save_table(TrialPaths(folder).insight / f"{name}.csv", table)
    arrays: dict[str, Any] = insight.arrays
    write_atomically(TrialPaths(folder).sample, lambda file: np.savez(file, **arrays))
