"""Retrieval and clustering metrics of embeddings, all from one exact nearest-neighbour search.

The only file that imports faiss. Without faiss, or for embeddings on a GPU, torch searches in float64.

Letters behind array names: Q queries, G gallery rows, N neighbours, D embedding size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

faiss: Any
try:
    import faiss
except (ImportError, RuntimeError):  # RuntimeError: the GPU wheel without its CUDA libraries
    faiss = None

Floats = NDArray[np.floating]
Integers = NDArray[np.int64]
ArrayLike = torch.Tensor | np.ndarray
HitTest = Callable[[Integers, Integers], NDArray[np.bool_]]

METRICS = {
    "recall_at_<k>": "share of queries with a same-class item among the k nearest (k clipped to the gallery)",
    "r_precision": "of the R nearest, with R same-class items in the gallery, the share of the query's class",
    "map_at_r": "sum of precision@j over the right j <= R, divided by R",
    "mean_average_precision_at_1000": "sum of precision@j over the right j <= 1000, divided by min(R, 1000)",
    "normalized_mutual_information": "k-means clusters against classes; arithmetic mean of the entropies",
    "clustering_f1": "k-means clusters against classes; F1 of the pairs that share a cluster",
    "queries_left_out": "number of queries without a same-class item in the gallery; they are in no mean",
    "approximate_recall": "only where the search is approximate: share of the true neighbours that it found",
}

RECALL_AT = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30)}
"""The k of recall@k that the literature gives for a data set, by its name; for all others `DEFAULT_RECALL_AT`."""
DEFAULT_RECALL_AT = (1, 2, 4, 8)

AVERAGE_PRECISION_DEPTH = 1000
CHUNK = 2048  # queries searched at once
CHUNK_ENTRIES = 1 << 22  # bounds a chunk's queries x neighbours, hence the memory
MATRIX_ENTRIES = 1 << 23  # bounds a block of the float64 distance matrix (64 MiB)
SLACK = 32  # neighbours beyond k, among which ties over the k-th place are seen
KMEANS_SEED = 0
KMEANS_ITERATIONS = 50
SPREAD_START_ENTRIES = 10_000_000  # queries x clusters up to which k-means++ finds the first centres
APPROXIMATE_FACTOR = 3  # so many times the neighbours asked for are looked at again after an approximate search
CODE_PARTS = 128  # least parts of a row that are coded apart, where it has as many dimensions
CODE_TRAINING = 1 << 15  # rows that the codes are learned from
APPROXIMATE_SAMPLE = 256  # queries at which an approximate search is compared with the exact one
NOTHING = np.float32(1e30)  # distance of a place that an approximate search left empty: beyond every real one


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What one search found: the means, and the queries that they are means of.

    Attributes:
        metrics: name -> value, of the keys of `METRICS`.
        queries: a row per query, in order: `query` (its row), `label`, `same_class` (items of its class in the
            gallery, without itself), `nearest_label` (the class of what is nearest to it; of several wrong ones that
            are equally near, any), and a column per retrieval metric (recall is 0 or 1), null in queries that are left
            out.
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
        wanted = [("query", "count"), *((name, "mean") for name in self.names), (self.names[0], "count")]
        found = self.queries.group_by("label", use_threads=False).aggregate(wanted).sort_by("label")
        queries = found["query_count"].to_numpy()
        left_out = queries - found[f"{self.names[0]}_count"].to_numpy()
        means = {name: found[f"{name}_mean"] for name in self.names}
        return pa.table({"label": found["label"], "queries": queries, "left_out": left_out} | means)


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
    """The metrics of `evaluate_queries` alone; arguments and errors are its own."""
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
) -> Evaluation:
    """Retrieval and clustering metrics, of all queries and of each; `METRICS` defines them.

    Neighbours are exact by Euclidean distance on the embeddings as given, ties go to the lower gallery index.
    Queries that have no same-class item in the gallery are left out of every retrieval mean and counted.
    Clusters are of the queries (all of them), as many as they have distinct labels.

    Args:
        embeddings: (Q, D) queries, a tensor or an array.
        labels: (Q,) integers.
        gallery: (G, D); None searches the queries themselves, each without itself.
        gallery_labels: (G,) integers, given with `gallery` and only then.
        recall_at: the k of each `recall_at_<k>`.
        clustering: whether to run k-means for the two clustering metrics.
        chunk: most queries searched at once; the metrics do not depend on it.
        approximate: search among short codes of the gallery's rows, then the best once more by their distances (faiss,
            on the CPU), for a million items. Neighbours may be missed; how many says `approximate_recall`, measured on
            256 queries drawn at random: the share of their true neighbours, as many as the metrics look at, that were
            found.

    Raises:
        ValueError: shapes or types do not fit, embeddings are not finite, no query can be evaluated, or an
            approximate search is asked for where faiss is not installed.

    Source: R-precision and MAP@R as in Musgrave et al., A Metric Learning Reality Check, ECCV 2020.
    """
    queries_QD, device = _rows(embeddings, "embeddings")
    labels_Q = _labels(labels, "labels", "embeddings", len(queries_QD))
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels: give both or neither")
    if gallery is None or gallery_labels is None:
        gallery_GD, gallery_labels_G = queries_QD, labels_Q
    else:
        gallery_GD, _ = _rows(gallery, "gallery")
        gallery_labels_G = _labels(gallery_labels, "gallery_labels", "gallery", len(gallery_GD))
        _same_width(queries_QD, gallery_GD, "embeddings")
    for k in recall_at:
        _positive(k, "recall_at")
    _positive(chunk, "chunk")
    if approximate and faiss is None:
        raise ValueError("approximate: needs faiss, which cannot be imported here")

    classes, codes = np.unique(np.concatenate([labels_Q, gallery_labels_G]), return_inverse=True)
    codes = codes.astype(np.int32)
    query_codes, gallery_codes = codes[: len(labels_Q)], codes[len(labels_Q) :]
    same_class_Q = np.bincount(gallery_codes, minlength=len(classes))[query_codes] - (gallery is None)
    evaluated = np.flatnonzero(same_class_Q)
    if len(evaluated) == 0:
        raise ValueError(f"labels: none of the {len(labels_Q)} queries has a same-class item in the gallery")
    gallery_codes = np.append(gallery_codes, np.int32(-1))  # what neighbour -1 is: an approximate search found none

    def same_class(query: Integers, neighbour: Integers) -> NDArray[np.bool_]:
        hit: NDArray[np.bool_] = query_codes[query, None] == gallery_codes[neighbour]
        return hit

    size = len(gallery_GD) - (gallery is None)
    depth = int(min(max(*recall_at, same_class_Q.max(), AVERAGE_PRECISION_DEPTH), size))
    first_hit = np.full(len(labels_Q), size)
    nearest_code = np.full(len(labels_Q), -1)
    r_precision, map_at_r, map_at_1000 = np.zeros((3, len(labels_Q)))
    search = _Search(queries_QD, gallery_GD, gallery is None, device, approximate)
    for query, neighbour_QN in search.nearest(evaluated, depth, chunk, same_class):
        nearest_code[query] = gallery_codes[neighbour_QN[:, 0]]
        row, place = np.divmod(np.flatnonzero(same_class(query, neighbour_QN)), depth)
        hits = np.bincount(row, minlength=len(query))
        right = np.arange(len(row)) - (np.cumsum(hits) - hits)[row] + 1  # of the query's hits, the first, ...
        precision = right / (place + 1)
        relevant = same_class_Q[query]
        within_r, within_1000 = place < relevant[row], place < AVERAGE_PRECISION_DEPTH
        first_hit[query[row[right == 1]]] = place[right == 1]
        r_precision[query] = np.bincount(row, within_r, len(query)) / relevant
        map_at_r[query] = np.bincount(row, precision * within_r, len(query)) / relevant
        best = np.minimum(relevant, AVERAGE_PRECISION_DEPTH)
        map_at_1000[query] = np.bincount(row, precision * within_1000, len(query)) / best
    values = {f"recall_at_{k}": (first_hit < min(k, size)).astype(np.float64) for k in recall_at}
    values |= {"r_precision": r_precision, "map_at_r": map_at_r, "mean_average_precision_at_1000": map_at_1000}
    metrics = {name: float(value[evaluated].mean()) for name, value in values.items()}
    if approximate:
        metrics["approximate_recall"] = search.recall(evaluated, depth)
    del search

    if clustering:
        clusters_Q = _kmeans(queries_QD, len(np.unique(labels_Q)))
        metrics["normalized_mutual_information"] = _normalized_mutual_information(labels_Q, clusters_Q)
        metrics["clustering_f1"] = _pairwise_f1(labels_Q, clusters_Q)
    metrics["queries_left_out"] = float(len(labels_Q) - len(evaluated))
    known = {"query": np.arange(len(labels_Q)), "label": labels_Q, "same_class": same_class_Q}
    known["nearest_label"] = pa.array(classes[nearest_code], mask=nearest_code < 0)
    left_out = same_class_Q == 0
    return Evaluation(metrics, pa.table(known | {n: pa.array(v, mask=left_out) for n, v in values.items()}))


def nearest_neighbours(
    queries: ArrayLike, gallery: ArrayLike, k: int, *, exclude_self: bool = False, chunk: int = CHUNK
) -> tuple[NDArray[np.float64], Integers]:
    """The k nearest gallery rows of each query, exactly, by Euclidean distance; ties go to the lower index.

    Distances are taken of true differences in float64, so that near ones keep their digits. Two that agree to
    12 digits are tied: the order in which a sum is taken must not part them.

    Args:
        queries: (Q, D), a tensor or an array.
        gallery: (G, D).
        k: neighbours per query, clipped to the gallery (less one with `exclude_self`).
        exclude_self: the gallery is the queries: query i never finds row i, but finds other copies of it.
        chunk: most queries searched at once; the result does not depend on it.

    Returns:
        distances (Q, k), ascending, and gallery indices (Q, k).

    Raises:
        ValueError: shapes do not fit, values are not finite, or there is no neighbour to find.
    """
    queries_QD, device = _rows(queries, "queries")
    gallery_GD, _ = _rows(gallery, "gallery")
    _same_width(queries_QD, gallery_GD, "queries")
    _positive(k, "k")
    _positive(chunk, "chunk")
    if exclude_self and len(queries_QD) != len(gallery_GD):
        raise ValueError(
            f"exclude_self: query i must be gallery row i, but there are {len(queries_QD)} queries "
            f"and {len(gallery_GD)} gallery rows"
        )
    k = int(min(k, len(gallery_GD) - exclude_self))
    if k == 0:
        raise ValueError("gallery: holds one row only, and exclude_self leaves it out")
    distance_QN = np.empty((len(queries_QD), k))
    neighbour_QN = np.empty((len(queries_QD), k), dtype=np.int64)
    search = _Search(queries_QD, gallery_GD, exclude_self, device)
    for query, found_QN in search.nearest(np.arange(len(queries_QD)), k, chunk):
        neighbour_QN[query] = found_QN
        squared = search.squared_distances(np.repeat(query, k), found_QN.ravel())
        distance_QN[query] = np.sqrt(squared).reshape(found_QN.shape)
    return distance_QN, neighbour_QN


class _Search:
    """Candidates from a fast search, near ties among them ordered by exact distances.

    The fast search reads centred rows, scaled by a power of two: neither a large common offset nor the unit
    takes digits. The centre is a gallery row, so that integers stay integers. Two computed squared distances
    are told apart if they differ by more than eps (sqrt(D) + 8) (|q| + d)^2, several times what rounding does
    to a sum of D products of that size.
    """

    def __init__(
        self, queries: Floats, gallery: Floats, exclude_self: bool, device: torch.device, approximate: bool = False
    ) -> None:
        self.queries, self.gallery, self.exclude_self, self.device = queries, gallery, exclude_self, device
        self.approximate = approximate
        self.reachable = len(gallery) - exclude_self
        mean = gallery.mean(axis=0, dtype=np.float64).astype(gallery.dtype)
        from_mean = np.concatenate([np.einsum("gd,gd->g", part - mean, part - mean) for part in _parts(gallery)])
        self.centre = gallery[from_mean.argmin()].copy()
        largest = max(np.abs(part - self.centre).max() for part in _parts(gallery, queries))
        self.scale = 2.0 ** float(np.ceil(np.log2(largest))) if largest > 0 else 1.0
        self.index: Any = None
        if approximate or (faiss is not None and device.type == "cpu"):
            faiss.omp_set_num_threads(torch.get_num_threads())  # a trial keeps to its share of the processors
            self.index = self._codes() if approximate else faiss.IndexFlatL2(gallery.shape[1])
            for part in _parts(gallery):
                self.index.add(self._centred(part).astype(np.float32))

    def nearest(
        self, query: Integers, k: int, chunk: int, hit_test: HitTest | None = None
    ) -> Iterator[tuple[Integers, Integers]]:
        """Chunks of `query` (indices of queries) and their (chunk, k) nearest gallery rows.

        With `hit_test`, the order inside a near tie is left open where it cannot matter: among all hits or
        among all misses. An approximate search that finds too few fills up with -1.
        """
        wide = min(k + SLACK, self.reachable)
        chunk = max(1, min(chunk, CHUNK_ENTRIES // wide))
        for start in range(0, len(query), chunk):
            rows = query[start : start + chunk]
            if self.index is None:
                yield rows, self._nearest_in_full_rows(rows, k, hit_test)
                continue
            centred_QD = self._centred(self.queries[rows])
            squared, found = self._candidates(rows, centred_QD.astype(np.float32), wide)
            norm_Q1 = _norms(centred_QD)
            unsettled = np.flatnonzero(
                squared[:, -1] <= squared[:, k - 1] + self._tolerance(norm_Q1[:, 0], squared[:, -1], np.float32)
            )
            self._order_near_ties(rows, found, squared, norm_Q1, np.float32, hit_test)
            if wide < self.reachable and len(unsettled) and not self.approximate:
                # more may be tied with the k-th than were found
                found[unsettled, :k] = self._nearest_in_full_rows(rows[unsettled], k, hit_test)
            yield rows, found[:, :k]

    def recall(self, query: Integers, k: int) -> float:
        """Share of the k true neighbours that this search finds, over a sample of `query`.

        What it finds counts if it is no farther than the k-th true neighbour: ties are as good as one another.
        """
        rng = np.random.default_rng(0)
        sample = np.sort(rng.choice(query, min(len(query), APPROXIMATE_SAMPLE), replace=False))
        centred_QD = self._centred(self.queries[sample])
        queries = torch.from_numpy(centred_QD)
        nearest = torch.empty(len(sample), 0, dtype=torch.float64)
        step = MATRIX_ENTRIES // len(sample)
        for start in range(0, len(self.gallery), step):
            part_GD = self._centred(self.gallery[start : start + step])
            norms_G = torch.from_numpy(np.square(_norms(part_GD)[:, 0]))
            matrix_QG = torch.addmm(norms_G, queries, torch.from_numpy(part_GD).T, alpha=-2)
            matrix_QG += queries.square().sum(dim=1, keepdim=True)
            if self.exclude_self:
                own = np.flatnonzero((sample >= start) & (sample < start + len(part_GD)))
                matrix_QG[own, sample[own] - start] = torch.inf
            nearest = torch.cat([nearest, matrix_QG.clamp_(min=0)], dim=1)
            nearest = nearest.topk(min(k, nearest.shape[1]), largest=False).values
        limit = nearest.amax(dim=1).numpy()
        limit += self._tolerance(_norms(centred_QD)[:, 0], limit, np.float64)
        limit *= self.scale**2 * (1 + 1e-12)  # exact distances are rounded
        shares = []
        for rows, found in self.nearest(sample, k, CHUNK):
            row, place = np.nonzero(found >= 0)
            near = self.squared_distances(rows[row], found[row, place]) <= limit[np.searchsorted(sample, rows[row])]
            shares.append(np.bincount(row, near, len(rows)) / k)
        return float(np.concatenate(shares).mean())

    def squared_distances(self, query: Integers, neighbour: Integers) -> NDArray[np.float64]:
        """Of pairs, from true differences in float64, rounded to 12 digits. (P,), (P,) -> (P,)"""
        pairs = query * len(self.gallery) + self.first_copies[neighbour]
        if self.has_copies:  # one distance for all copies of a row: a collapsed network makes thousands
            pairs, back = np.unique(pairs, return_inverse=True)
        query, neighbour = np.divmod(pairs, len(self.gallery))
        squared = np.empty(len(pairs))
        step = max(1, (1 << 20) // self.gallery.shape[1])
        for start in range(0, len(pairs), step):
            part = slice(start, start + step)
            difference = self.queries[query[part]].astype(np.float64)
            difference -= self.gallery[neighbour[part]]
            squared[part] = np.einsum("pd,pd->p", difference, difference)
        mantissa, exponent = np.frexp(squared)
        squared[:] = np.ldexp(np.rint(mantissa * 2.0**40), exponent - 40)
        return squared[back] if self.has_copies else squared

    def _codes(self) -> Any:
        """An empty index that finds `APPROXIMATE_FACTOR` times the candidates by 4-bit product codes, and orders these
        by their distances; a flat one where there are too few rows to learn codes from.

        Every row is scanned: unlike inverted lists, it misses nothing of a query whose neighbours lie far apart.
        Source: Andre et al., Quicker ADC, PAMI 2021.
        """
        width = self.gallery.shape[1]
        if len(self.gallery) < 16 * APPROXIMATE_FACTOR:
            return faiss.IndexFlatL2(width)
        size = next((size for size in (4, 2) if width % size == 0 and width // size >= CODE_PARTS), 1)
        codes = faiss.IndexPQFastScan(width, width // size, 4)
        codes.pq.cp.seed, codes.pq.cp.min_points_per_centroid = KMEANS_SEED, 1
        count = min(len(self.gallery), CODE_TRAINING)
        drawn = np.sort(np.random.default_rng(KMEANS_SEED).choice(len(self.gallery), count, replace=False))
        codes.train(self._centred(self.gallery[drawn]).astype(np.float32))
        index = faiss.IndexRefineFlat(codes)
        index.k_factor = APPROXIMATE_FACTOR
        return index

    def _candidates(self, rows: Integers, centred: NDArray[np.float32], count: int) -> tuple[Floats, Integers]:
        squared, found = self.index.search(centred, count + self.exclude_self)
        if self.exclude_self:  # it goes to the first place, then off
            for row in np.flatnonzero(found[:, 0] != rows):
                place = np.flatnonzero(found[row] == rows[row])
                last = place[0] if len(place) else count  # copies of the query may crowd it out
                found[row, 1 : last + 1] = found[row, :last].copy()
                squared[row, 1 : last + 1] = squared[row, :last].copy()
            squared, found = squared[:, 1:], found[:, 1:]
        np.maximum(squared, 0, out=squared)
        if self.approximate:
            squared[found < 0] = NOTHING
        return squared, found

    def _nearest_in_full_rows(self, rows: Integers, k: int, hit_test: HitTest | None) -> Integers:
        """The same from whole rows of the distance matrix, in float64 (no TF32 there), on the device."""
        gallery_GD, norms_G = self._exact_gallery
        nearest = np.empty((len(rows), k), dtype=np.int64)
        step = max(1, MATRIX_ENTRIES // len(gallery_GD))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            centred_QD = self._centred(self.queries[part])
            norm_Q1 = _norms(centred_QD)
            queries = torch.from_numpy(centred_QD).to(self.device)
            matrix_QG = torch.addmm(norms_G, queries, gallery_GD.T, alpha=-2)
            matrix_QG += queries.square().sum(dim=1, keepdim=True)
            matrix_QG.clamp_(min=0)
            if self.exclude_self:
                matrix_QG.scatter_(1, torch.from_numpy(part[:, None]).to(self.device), torch.inf)
            squared, found = matrix_QG.topk(k, largest=False)
            last = squared[:, -1:].cpu().numpy()
            limit = torch.from_numpy(last + self._tolerance(norm_Q1, last, np.float64)).to(self.device)
            count = int((matrix_QG <= limit).sum(dim=1).max())
            if count > k:
                squared, found = matrix_QG.topk(count, largest=False)
            candidates, distances = found.cpu().numpy(), squared.cpu().numpy()
            self._order_near_ties(part, candidates, distances, norm_Q1, np.float64, hit_test)
            nearest[start : start + step] = candidates[:, :k]
        return nearest

    def _order_near_ties(
        self,
        rows: Integers,
        found: Integers,
        squared: Floats,
        norm_Q1: Floats,
        precision: type[np.floating],
        hit_test: HitTest | None,
    ) -> None:
        """Sorts runs of `found` whose neighbours in the list are nearer than the tolerance, in place."""
        if hit_test is not None:  # only rows in which a hit and a miss next to each other are too near
            hit = hit_test(rows, found)
            row, place = np.divmod(np.flatnonzero(hit[:, 1:] != hit[:, :-1]), max(1, found.shape[1] - 1))
            gap = squared[row, place + 1] - squared[row, place]
            near = np.unique(row[gap <= self._tolerance(norm_Q1[row, 0], squared[row, place + 1], precision)])
            if len(near) < len(rows):
                part = found[near]
                self._order_near_ties(rows[near], part, squared[near], norm_Q1[near], precision, hit_test)
                found[near] = part
                return
        starts = np.ones(found.shape, dtype=bool)
        tolerance = self._tolerance(norm_Q1, squared[:, 1:], precision)
        np.greater(np.diff(squared, axis=1), tolerance, out=starts[:, 1:])
        run = np.cumsum(starts) - 1
        length = np.bincount(run)
        undecided = length > 1
        if hit_test is not None:
            hits = np.bincount(run, hit_test(rows, found).ravel())
            undecided &= (hits > 0) & (hits < length)
        at = np.flatnonzero(undecided[run])
        row, place = np.divmod(at, found.shape[1])
        neighbour = found[row, place]
        exact = self.squared_distances(rows[row], neighbour)
        found[row, place] = neighbour[np.lexsort((neighbour, exact, run[at]))]

    def _tolerance(self, norm: Floats, squared: Floats, precision: type[np.floating]) -> Floats:
        """Error bound of squared distances of the centred, scaled rows; `norm` is of the query's."""
        error: Floats = (np.sqrt(squared) + norm.astype(squared.dtype)) ** 2
        error *= np.finfo(precision).eps * (np.sqrt(self.gallery.shape[1]) + 8)
        return error

    def _centred(self, rows: Floats) -> NDArray[np.float64]:
        centred: NDArray[np.float64] = np.subtract(rows, self.centre, dtype=np.float64)
        centred /= self.scale
        return centred

    @cached_property
    def _exact_gallery(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Centred rows (G, D) in float64 on the device, and their squared norms (G,)."""
        centred_GD = self._centred(self.gallery)
        parts = torch.from_numpy(centred_GD), torch.from_numpy(np.square(_norms(centred_GD)[:, 0]))
        return parts[0].to(self.device), parts[1].to(self.device)

    @cached_property
    def first_copies(self) -> Integers:
        """Index of the first gallery row with the same values. (G,)"""
        # Python's hash of bytes has 64 bits; it is another in every process, but says only where to look
        hashes = [hash(row.tobytes()) for part in _parts(self.gallery) for row in part + 0.0]  # -0.0 becomes 0.0
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        copies: Integers = first[inverse]
        (later,) = np.nonzero(copies != np.arange(len(copies)))
        for start in range(0, len(later), CHUNK):
            row = later[start : start + CHUNK]
            differ = (self.gallery[row] != self.gallery[copies[row]]).any(axis=1)
            copies[row[differ]] = row[differ]
        return copies

    @cached_property
    def has_copies(self) -> bool:
        """Whether any two gallery rows are equal."""
        return bool((self.first_copies != np.arange(len(self.gallery))).any())


def _norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.sqrt(np.einsum("qd,qd->q", rows, rows))[:, None]
    return norms


def _parts(*arrays: Floats) -> Iterator[Floats]:
    for array in arrays:
        for start in range(0, len(array), CHUNK):
            yield array[start : start + CHUNK]


def _kmeans(rows: Floats, clusters: int) -> Integers:
    """(Q,) cluster of each row by Lloyd's iterations from a seeded start, the same on every call."""
    from sklearn.cluster import KMeans, kmeans_plusplus
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # To float32 about the mean: a common offset must not take the digits.
    rows = np.ascontiguousarray(rows - rows.mean(axis=0, dtype=np.float64).astype(rows.dtype), dtype=np.float32)
    if len(rows) * clusters <= SPREAD_START_ENTRIES:
        with threadpool_limits(torch.get_num_threads()):
            centres, _ = kmeans_plusplus(rows, clusters, random_state=KMEANS_SEED)
    else:  # k-means++ would take longer than the search
        centres = rows[np.random.default_rng(KMEANS_SEED).choice(len(rows), clusters, replace=False)]
    if faiss is None:
        with threadpool_limits(1):  # scikit-learn sums in the order in which its threads end
            fit = KMeans(clusters, init=centres, n_init=1, max_iter=KMEANS_ITERATIONS, random_state=KMEANS_SEED)
            return np.asarray(fit.fit_predict(rows), dtype=np.int64)
    faiss.omp_set_num_threads(torch.get_num_threads())
    kmeans = faiss.Kmeans(
        rows.shape[1],
        clusters,
        niter=KMEANS_ITERATIONS,
        seed=KMEANS_SEED,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),  # all rows, not a sample
    )
    kmeans.train(rows, init_centroids=np.ascontiguousarray(centres))
    return np.asarray(kmeans.index.search(rows, 1)[1][:, 0], dtype=np.int64)


def _normalized_mutual_information(labels: Integers, clusters: Integers) -> float:
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(labels, clusters, average_method="arithmetic"))


def _pairwise_f1(labels: Integers, clusters: Integers) -> float:
    """F1 of the pairs in one cluster against the pairs of one class; 1 if there are neither. (Q,), (Q,)"""

    def pairs(groups: Integers) -> int:
        _, sizes = np.unique(groups, axis=-1, return_counts=True)
        return int((sizes * (sizes - 1) // 2).sum())

    both, either = pairs(np.stack([labels, clusters])), pairs(labels) + pairs(clusters)
    return 2 * both / either if either else 1.0


def _rows(values: ArrayLike, name: str) -> tuple[Floats, torch.device]:
    """Rows as a float32 or float64 array, and the device on which to search them."""
    device = torch.device("cpu")
    if isinstance(values, torch.Tensor):
        if values.is_cuda:
            device = values.device
        values = values.detach().cpu()
        values = (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()
    array = np.asarray(values)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{name}: need a non-empty matrix (rows, dimensions), got shape {array.shape}")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: need real numbers, got {array.dtype}")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    bad = sum(int((~np.isfinite(part)).any(axis=1).sum()) for part in _parts(array))
    if bad:
        raise ValueError(f"{name}: {bad} of {len(array)} rows hold NaN or infinity")
    return array, device


def _labels(values: ArrayLike, name: str, rows_name: str, count: int) -> Integers:
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.shape != (count,):
        raise ValueError(f"{name}: need one per row of {rows_name}, shape ({count},), got {array.shape}")
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name}: need integers, got {array.dtype}")
    return array.astype(np.int64)


def _same_width(queries: Floats, gallery: Floats, name: str) -> None:
    if queries.shape[1] != gallery.shape[1]:
        raise ValueError(f"gallery: its rows have {gallery.shape[1]} dimensions, those of {name} {queries.shape[1]}")


def _positive(value: int, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}: need whole numbers from 1, got {value!r}")
