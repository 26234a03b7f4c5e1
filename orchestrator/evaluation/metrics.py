"""Retrieval and clustering metrics of embeddings, all from one exact nearest-neighbour search.

Without faiss, or on a GPU for which it is not built, torch searches in float64.

Suffixes of array names: Q queries, G gallery rows, N neighbours, D embedding size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from orchestrator.evaluation.clustering import kmeans
from orchestrator.evaluation.measures import METRICS
from orchestrator.evaluation.measures.recall import DEFAULT_RECALL_AT, recall
from orchestrator.evaluation.measures.search import APPROXIMATE_RECALL, QUERIES_LEFT_OUT
from orchestrator.evaluation.neighbours import NeighbourSearch, ProductSearch, faiss
from orchestrator.evaluation.rows import (
    CHUNK,
    ArrayLike,
    Floats,
    Integers,
    check_positive,
    check_same_width,
    checked_labels,
    checked_rows,
)
from orchestrator.evaluation.ties import rank_hits


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What one search found: the means, and the queries that they are means of.

    Attributes:
        metrics: name -> value, of the table in `measures`.
        queries: a row per query, in order: `query` (its row), `label`, `same_class` (items of its class in the
            gallery, without itself), `nearest_label` (the class of its nearest item; any of several that are
            equally near), and a column per retrieval metric (recall is 0 or 1, but in a tie), null for queries that
            are left out.
    """

    metrics: dict[str, float]
    queries: pa.Table

    @property
    def names(self) -> list[str]:
        """The retrieval metrics, in order: those that have a value per query."""
        return [name for name in self.queries.column_names if name in self.metrics]

    def classes(self) -> pa.Table:
        """A row per class of the queries: `label`, `queries`, `left_out` of these, the means over the others (null
        if there are none), by ascending label."""
        aggregates = [("query", "count"), *((name, "mean") for name in self.names), (self.names[0], "count")]
        table = self.queries.group_by("label", use_threads=False).aggregate(aggregates).sort_by("label")
        queries = table["query_count"].to_numpy()
        left_out = queries - table[f"{self.names[0]}_count"].to_numpy()
        means = {name: table[f"{name}_mean"] for name in self.names}
        return pa.table({"label": table["label"], "queries": queries, "left_out": left_out} | means)


def auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """Area under the ROC curve of scores (I,) and (O,): the probability that one of `outside` is above one of
    `inside`, where a tie counts half.

    Raises:
        ValueError: a side is empty, or a score is not finite.
    """
    from sklearn.metrics import roc_auc_score

    sides = [np.asarray(scores, np.float64) for scores in (inside, outside)]
    if not all(len(scores) and np.isfinite(scores).all() for scores in sides):
        raise ValueError("scores: need finite numbers, one at least on either side")
    return float(roc_auc_score(np.repeat([0, 1], [len(scores) for scores in sides]), np.concatenate(sides)))


def evaluate_embeddings(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    recall_at: Sequence[int] = DEFAULT_RECALL_AT,
    clustering: bool = True,
    chunk: int = CHUNK,
    approximate: bool = False,
) -> dict[str, float]:
    """The metrics of `evaluate_queries` alone; same arguments and errors."""
    return evaluate_queries(
        embeddings,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        recall_at=recall_at,
        clustering=clustering,
        chunk=chunk,
        approximate=approximate,
    ).metrics


def evaluate_queries(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    recall_at: Sequence[int] = DEFAULT_RECALL_AT,
    clustering: bool = True,
    chunk: int = CHUNK,
    approximate: bool = False,
    device: torch.device | None = None,
    by_product: tuple[ArrayLike, ArrayLike] | None = None,
) -> Evaluation:
    """Retrieval and clustering metrics, of all queries and of each; `measures` defines them.

    Neighbours are exact by Euclidean distance on the embeddings as given; with `by_product` they are those of the
    largest inner product, and the embeddings are only clustered. Items of the query's class that are tied with others
    count in expectation over the orders of the tied ones (`evaluation.ties`): of a collapsed network, whose embeddings
    are all equal, each metric is at its chance level.
    Queries that have no same-class item in the gallery are left out of every retrieval mean and counted.
    Clusters are of the queries (all of them), as many as they have distinct labels.

    Args:
        embeddings: (Q, D) queries, a tensor or an array.
        labels: (Q,) integers.
        gallery: (G, D); None searches the queries themselves, each without itself.
        gallery_labels: (G,) integers, given with `gallery` and only then.
        recall_at: the k of each `recall_at_<k>`.
        clustering: whether to run k-means for the two clustering metrics.
        chunk: maximum number of queries searched at once; the metrics do not depend on it.
        approximate: search among short codes of the gallery's rows, then rerank the best by their distances (faiss,
            on the CPU), for a million items. Neighbours may be missed: `approximate_recall`, measured on 256 queries
            drawn at random, is the share of their true neighbours, as many as the metrics use, that were found.
        device: where to search; by default where `embeddings` are; `cuda` without a number: on all visible GPUs. The
            metrics do not depend on it.
        by_product: a row of each query, (Q, K), and a row of each item of the gallery, (G, K), or without one (Q, K).

    Raises:
        ValueError: shapes or types do not fit, embeddings are not finite, no query can be evaluated, or an
            approximate search is asked for where faiss is not installed.
    """
    queries_QD, own_device = checked_rows(embeddings, "embeddings")
    labels_Q = checked_labels(labels, "labels", "embeddings", len(queries_QD))
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels: give both or neither")
    if gallery is None or gallery_labels is None:
        gallery_GD, gallery_labels_G = queries_QD, labels_Q
    else:
        gallery_GD, _ = checked_rows(gallery, "gallery")
        gallery_labels_G = checked_labels(gallery_labels, "gallery_labels", "gallery", len(gallery_GD))
        check_same_width(queries_QD, gallery_GD, "embeddings")
    if by_product is None:
        kind, compared = NeighbourSearch, (queries_QD, gallery_GD)
    else:
        kind, compared = ProductSearch, _products(*by_product, len(queries_QD), len(gallery_GD))
    for k in recall_at:
        check_positive(k, "recall_at")
    check_positive(chunk, "chunk")
    if approximate and faiss is None:
        raise ValueError("approximate: needs faiss, which cannot be imported here")

    classes, codes = np.unique(np.concatenate([labels_Q, gallery_labels_G]), return_inverse=True)
    codes = codes.astype(np.int32)
    query_codes, gallery_codes = codes[: len(labels_Q)], codes[len(labels_Q) :]
    same_class_Q = np.bincount(gallery_codes, minlength=len(classes))[query_codes] - (gallery is None)
    evaluated = np.flatnonzero(same_class_Q)
    if len(evaluated) == 0:
        raise ValueError(f"labels: none of the {len(labels_Q)} queries has a same-class item in the gallery")
    gallery_codes = np.append(gallery_codes, np.int32(-1))  # for neighbour -1: an approximate search found none

    def same_class(query: Integers, neighbour: Integers) -> NDArray[np.bool_]:
        hit: NDArray[np.bool_] = query_codes[query, None] == gallery_codes[neighbour]
        return hit

    size = len(gallery_GD) - (gallery is None)
    chosen_metrics = [*map(recall, recall_at), *METRICS]
    depth = int(min(max(same_class_Q.max(), *(metric.depth for metric in chosen_metrics)), size))
    nearest_code = np.full(len(labels_Q), -1)
    values = {metric.name: np.zeros(len(labels_Q)) for metric in chosen_metrics if metric.by_query}
    search = kind(*compared, gallery is None, device or own_device, approximate)
    for query, neighbour_QN, ties in search.nearest(evaluated, depth, chunk, same_class):
        nearest_code[query] = gallery_codes[neighbour_QN[:, 0]]
        neighbours = rank_hits(same_class(query, neighbour_QN), ties, same_class_Q[query], size)
        for metric in chosen_metrics:
            if metric.by_query is not None:
                values[metric.name][query] = metric.by_query(neighbours)
    metrics = {name: float(value[evaluated].mean()) for name, value in values.items()}
    if approximate:
        metrics[APPROXIMATE_RECALL.name] = search.recall(evaluated, depth)
    del search

    if clustering:
        clusters_Q = kmeans(queries_QD, len(np.unique(labels_Q)))
        metrics |= {
            metric.name: metric.by_cluster(labels_Q, clusters_Q) for metric in chosen_metrics if metric.by_cluster
        }
    metrics[QUERIES_LEFT_OUT.name] = float(len(labels_Q) - len(evaluated))
    columns = {"query": np.arange(len(labels_Q)), "label": labels_Q, "same_class": same_class_Q}
    columns["nearest_label"] = pa.array(classes[nearest_code], mask=nearest_code < 0)
    left_out = same_class_Q == 0
    return Evaluation(metrics, pa.table(columns | {n: pa.array(v, mask=left_out) for n, v in values.items()}))


def _products(queries: ArrayLike, gallery: ArrayLike, *counts: int) -> tuple[Floats, Floats]:
    """The checked rows of the queries and of the gallery, as many as there are of each."""
    names = "by_product: queries", "by_product: gallery"
    rows = [checked_rows(raw_rows, name)[0] for raw_rows, name in zip((queries, gallery), names, strict=True)]
    for array, name, count in zip(rows, names, counts, strict=True):
        if len(array) != count:
            raise ValueError(f"{name}: need a row for each of {count} embeddings, got {len(array)}")
    check_same_width(rows[0], rows[1], names[0])
    return rows[0], rows[1]
