"""Retrieval and clustering metrics of embeddings, all from one exact nearest-neighbour search.

The only file that imports faiss. Without faiss, or for embeddings on a GPU, torch searches in float64.

Letters behind array names: Q queries, G gallery rows, N neighbours, D embedding size.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
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
}

AVERAGE_PRECISION_DEPTH = 1000
CHUNK = 2048  # queries searched at once
CHUNK_ENTRIES = 1 << 22  # bounds a chunk's queries x neighbours, hence the memory
MATRIX_ENTRIES = 1 << 23  # bounds a block of the float64 distance matrix (64 MiB)
SLACK = 32  # neighbours beyond k, among which ties over the k-th place are seen
KMEANS_SEED = 0
KMEANS_ITERATIONS = 50
SPREAD_START_ENTRIES = 10_000_000  # queries x clusters up to which k-means++ finds the first centres


def evaluate_embeddings(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    clustering: bool = True,
    chunk: int = CHUNK,
) -> dict[str, float]:
    """Retrieval and clustering metrics; `METRICS` defines each.

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

    Raises:
        ValueError: shapes or types do not fit, embeddings are not finite, or no query can be evaluated.

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

    classes, codes = np.unique(np.concatenate([labels_Q, gallery_labels_G]), return_inverse=True)
    query_codes, gallery_codes = codes[: len(labels_Q)], codes[len(labels_Q) :]
    same_class_Q = np.bincount(gallery_codes, minlength=len(classes))[query_codes] - (gallery is None)
    evaluated = np.flatnonzero(same_class_Q)
    if len(evaluated) == 0:
        raise ValueError(f"labels: none of the {len(labels_Q)} queries has a same-class item in the gallery")

    def same_class(query: Integers, neighbour: Integers) -> NDArray[np.bool_]:
        hit: NDArray[np.bool_] = query_codes[query, None] == gallery_codes[neighbour]
        return hit

    size = len(gallery_GD) - (gallery is None)
    k = int(min(max(*recall_at, same_class_Q.max(), AVERAGE_PRECISION_DEPTH), size))
    first_hit = np.full(len(labels_Q), size)
    r_precision, map_at_r, map_at_1000 = np.zeros((3, len(labels_Q)))
    search = _Search(queries_QD, gallery_GD, gallery is None, device)
    for query, neighbour_QN in search.nearest(evaluated, k, chunk, same_class):
        hit_QN = same_class(query, neighbour_QN)
        row, place = np.nonzero(hit_QN)
        hits = np.bincount(row, minlength=len(query))
        right = np.arange(len(row)) - (np.cumsum(hits) - hits)[row] + 1  # of the query's hits, the first, ...
        precision = right / (place + 1)
        relevant = same_class_Q[query]
        within_r, within_1000 = place < relevant[row], place < AVERAGE_PRECISION_DEPTH
        first_hit[query[row[right == 1]]] = place[right == 1]
        r_precision[query] = np.bincount(row, within_r, len(query)) / relevant
        map_at_r[query] = np.bincount(row, precision * within_r, len(query)) / relevant
        depth = np.minimum(relevant, AVERAGE_PRECISION_DEPTH)
        map_at_1000[query] = np.bincount(row, precision * within_1000, len(query)) / depth
    del search

    metrics = {f"recall_at_{k}": float(np.mean(first_hit[evaluated] < min(k, size))) for k in recall_at}
    metrics["r_precision"] = float(r_precision[evaluated].mean())
    metrics["map_at_r"] = float(map_at_r[evaluated].mean())
    metrics["mean_average_precision_at_1000"] = float(map_at_1000[evaluated].mean())
    if clustering:
        clusters_Q = _kmeans(queries_QD, len(np.unique(labels_Q)))
        metrics["normalized_mutual_information"] = _normalized_mutual_information(labels_Q, clusters_Q)
        metrics["clustering_f1"] = _pairwise_f1(labels_Q, clusters_Q)
    metrics["queries_left_out"] = float(len(labels_Q) - len(evaluated))
    return metrics


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

    def __init__(self, queries: Floats, gallery: Floats, exclude_self: bool, device: torch.device) -> None:
        self.queries, self.gallery, self.exclude_self, self.device = queries, gallery, exclude_self, device
        self.reachable = len(gallery) - exclude_self
        from_mean = gallery - gallery.mean(axis=0, dtype=np.float64).astype(gallery.dtype)
        self.centre = gallery[np.einsum("gd,gd->g", from_mean, from_mean).argmin()].copy()
        del from_mean
        largest = max(np.abs(part - self.centre).max() for part in _parts(gallery, queries))
        self.scale = 2.0 ** float(np.ceil(np.log2(largest))) if largest > 0 else 1.0
        self.first_copy = self._first_copies()
        self.index: Any = None
        self._exact_gallery: torch.Tensor | None = None
        if faiss is not None and device.type == "cpu":
            faiss.omp_set_num_threads(torch.get_num_threads())  # a trial keeps to its share of the processors
            self.index = faiss.IndexFlatL2(gallery.shape[1])
            for part in _parts(gallery):
                self.index.add(self._centred(part).astype(np.float32))

    def nearest(
        self, query: Integers, k: int, chunk: int, hit_test: HitTest | None = None
    ) -> Iterator[tuple[Integers, Integers]]:
        """Chunks of `query` (indices of queries) and their (chunk, k) nearest gallery rows.

        With `hit_test`, the order inside a near tie is left open where it cannot matter: among all hits or
        among all misses.
        """
        wide = min(k + SLACK, self.reachable)
        chunk = max(1, min(chunk, CHUNK_ENTRIES // wide))
        for start in range(0, len(query), chunk):
            rows = query[start : start + chunk]
            if self.index is None:
                yield rows, self._nearest_in_full_rows(rows, k, hit_test)
                continue
            squared, found = self._faiss_candidates(rows, wide)
            tolerance = self._tolerance(rows, squared, np.float32)
            unsettled = np.flatnonzero(squared[:, -1] <= squared[:, k - 1] + tolerance[:, -1])
            self._order_near_ties(rows, found, squared, tolerance, hit_test)
            if wide < self.reachable and len(unsettled):  # more may be tied with the k-th than were found
                found[unsettled, :k] = self._nearest_in_full_rows(rows[unsettled], k, hit_test)
            yield rows, found[:, :k]

    def squared_distances(self, query: Integers, neighbour: Integers) -> NDArray[np.float64]:
        """Of pairs, from true differences in float64, rounded to 12 digits. (P,), (P,) -> (P,)"""
        pairs = query * len(self.gallery) + self.first_copy[neighbour]
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

    def _faiss_candidates(self, rows: Integers, count: int) -> tuple[Floats, Integers]:
        wanted = count + self.exclude_self
        squared, found = self.index.search(self._centred(self.queries[rows]).astype(np.float32), wanted)
        if self.exclude_self:
            drop = found == rows[:, None]
            drop[~drop.any(axis=1), -1] = True  # copies of the query crowded it out
            squared, found = squared[~drop].reshape(-1, count), found[~drop].reshape(-1, count)
        return np.maximum(squared, 0, out=squared), found

    def _nearest_in_full_rows(self, rows: Integers, k: int, hit_test: HitTest | None) -> Integers:
        """The same from whole rows of the distance matrix, in float64 (no TF32 there), on the device."""
        if self._exact_gallery is None:
            self._exact_gallery = torch.from_numpy(self._centred(self.gallery)).to(self.device)
        gallery_GD = self._exact_gallery
        nearest = np.empty((len(rows), k), dtype=np.int64)
        step = max(1, MATRIX_ENTRIES // len(gallery_GD))
        norms_G = gallery_GD.square().sum(dim=1)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            queries = torch.from_numpy(self._centred(self.queries[part])).to(self.device)
            matrix_QG = torch.addmm(norms_G, queries, gallery_GD.T, alpha=-2)
            matrix_QG += queries.square().sum(dim=1, keepdim=True)
            matrix_QG.clamp_(min=0)
            if self.exclude_self:
                matrix_QG.scatter_(1, torch.from_numpy(part[:, None]).to(self.device), torch.inf)
            squared, found = matrix_QG.topk(k, largest=False)
            last = squared[:, -1:].cpu().numpy()
            limit = torch.from_numpy(last + self._tolerance(part, last, np.float64)).to(self.device)
            count = int((matrix_QG <= limit).sum(dim=1).max())
            if count > k:
                squared, found = matrix_QG.topk(count, largest=False)
            candidates, distances = found.cpu().numpy(), squared.cpu().numpy()
            tolerance = self._tolerance(part, distances, np.float64)
            self._order_near_ties(part, candidates, distances, tolerance, hit_test)
            nearest[start : start + step] = candidates[:, :k]
        return nearest

    def _order_near_ties(
        self, rows: Integers, found: Integers, squared: Floats, tolerance: Floats, hit_test: HitTest | None
    ) -> None:
        """Sorts runs of `found` whose neighbours in the list are nearer than the tolerance, in place."""
        starts = np.ones(found.shape, dtype=bool)
        np.greater(np.diff(squared, axis=1), tolerance[:, 1:], out=starts[:, 1:])
        run = np.cumsum(starts) - 1
        length = np.bincount(run)
        undecided = length > 1
        if hit_test is not None:
            hits = np.bincount(run, hit_test(rows, found).ravel())
            undecided &= (hits > 0) & (hits < length)
        at = np.flatnonzero(undecided[run])
        neighbour = found.ravel()[at]
        exact = self.squared_distances(rows[at // found.shape[1]], neighbour)
        found.ravel()[at] = neighbour[np.lexsort((neighbour, exact, run[at]))]

    def _tolerance(self, rows: Integers, squared: Floats, precision: type[np.floating]) -> Floats:
        """(Q, N) error bound of squared distances of the centred, scaled rows."""
        centred = self._centred(self.queries[rows])
        norm = np.sqrt(np.einsum("qd,qd->q", centred, centred))[:, None].astype(squared.dtype)
        error: Floats = (np.sqrt(squared) + norm) ** 2
        error *= np.finfo(precision).eps * (np.sqrt(centred.shape[1]) + 8)
        return error

    def _centred(self, rows: Floats) -> NDArray[np.float64]:
        centred: NDArray[np.float64] = np.subtract(rows, self.centre, dtype=np.float64)
        centred /= self.scale
        return centred

    def _first_copies(self) -> Integers:
        """Index of the first gallery row with the same values. (G,)"""
        rows = np.ascontiguousarray(self.gallery) + 0.0  # -0.0 becomes 0.0
        as_bytes = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
        _, first, inverse = np.unique(as_bytes, return_index=True, return_inverse=True)
        self.has_copies = len(first) < len(rows)
        copies: Integers = first[inverse]
        return copies


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
