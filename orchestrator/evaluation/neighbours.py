"""The exact nearest-neighbour search behind all metrics. The only module that imports faiss."""

import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.evaluation.gpu import RowsOnGPUs, SearchOfRows, is_broken, lacks_memory
from orchestrator.evaluation.rows import (
    CHUNK,
    ArrayLike,
    Floats,
    Integers,
    check_positive,
    check_same_width,
    checked_rows,
    parts_of,
)
from orchestrator.evaluation.ties import NO_TIES, Ties, together

faiss: Any
faiss_fault: str | None = None
"""Why there is no faiss; None if there is."""
try:
    import faiss
except ModuleNotFoundError as error:
    faiss, faiss_fault = None, "is not installed" if error.name == "faiss" else f"cannot be imported ({error})"
except Exception as error:  # the GPU wheel without its CUDA libraries, or built for another NumPy
    faiss, faiss_fault = None, f"cannot be imported ({type(error).__name__}: {' '.join(str(error).split())[:200]})"

HitTest = Callable[[Integers, Integers], NDArray[np.bool_]]
OfRows = Callable[[Floats, Floats], NDArray[np.float64]]
CHUNK_ENTRIES = 1 << 22  # bounds a chunk's queries x neighbours, hence the memory
MATRIX_ENTRIES = 1 << 23  # bounds a block of the float64 distance matrix (64 MiB)
SLACK = 32  # neighbours beyond k, to see ties across the k-th place
KMEANS_SEED = 0
APPROXIMATE_FACTOR = 3  # after an approximate search, this many times the requested neighbours are reranked
CODE_PARTS = 128  # least parts of a row that are coded separately, if it has as many dimensions
CODE_TRAINING = 1 << 15  # rows that the codes are learned from
APPROXIMATE_SAMPLE = 256  # queries on which an approximate search is compared with the exact one
MAX_ON_GPU = 2048  # neighbours that faiss can find on a GPU; beyond, torch searches in float64
SCRATCH = 1 << 28  # bytes of each GPU that faiss keeps during a search; it takes more for a moment
NOTHING = np.float32(1e30)  # distance of an empty place in an approximate search: beyond every real one


def nearest_neighbours(
    queries: ArrayLike,
    gallery: ArrayLike,
    k: int,
    *,
    exclude_self: bool = False,
    chunk: int = CHUNK,
    by_product: bool = False,
) -> tuple[NDArray[np.float64], Integers]:
    """The k nearest gallery rows of each query, exactly, by Euclidean distance; ties go to the lower index.

    Distances are computed from true differences in float64, so that near ones keep their digits. Two that agree to
    12 digits are tied: the order of summation must not separate them. Of products those are tied that agree to 12
    digits of the largest that the query could have: its norm times the largest distance of a row from the middle one.

    Args:
        queries: (Q, D), a tensor or an array.
        gallery: (G, D).
        k: neighbours per query, clipped to the gallery (less one with `exclude_self`).
        exclude_self: the gallery is the queries: query i never finds row i, but finds other copies of it.
        chunk: maximum number of queries searched at once; the result does not depend on it.
        by_product: the rows of the largest inner product instead.

    Returns:
        distances (Q, k), ascending, or the products, descending; and gallery indices (Q, k).

    Raises:
        ValueError: shapes do not fit, values are not finite, or there is no neighbour to find.
    """
    queries_QD, device = checked_rows(queries, "queries")
    gallery_GD, _ = checked_rows(gallery, "gallery")
    check_same_width(queries_QD, gallery_GD, "queries")
    check_positive(k, "k")
    check_positive(chunk, "chunk")
    if exclude_self and len(queries_QD) != len(gallery_GD):
        raise ValueError(
            f"exclude_self: query i must be gallery row i, but there are {len(queries_QD)} queries "
            f"and {len(gallery_GD)} gallery rows"
        )
    k = int(min(k, len(gallery_GD) - exclude_self))
    if k == 0:
        raise ValueError("gallery: holds one row only, and exclude_self leaves it out")
    value_QN = np.empty((len(queries_QD), k))
    neighbour_QN = np.empty((len(queries_QD), k), dtype=np.int64)
    search = (ProductSearch if by_product else NeighbourSearch)(queries_QD, gallery_GD, exclude_self, device)
    for query, found_QN, _ in search.nearest(np.arange(len(queries_QD)), k, chunk):
        neighbour_QN[query] = found_QN
        value_QN[query] = search.values(np.repeat(query, k), found_QN.ravel()).reshape(found_QN.shape)
    return value_QN, neighbour_QN


class NeighbourSearch:
    """Candidates from a fast search, near ties among them ordered by exact distances.

    The fast search reads centred rows, scaled by a power of two, so that neither a large common offset nor the unit
    costs digits. The centre is a gallery row, so that integers stay integers. Two computed squared distances
    are distinguished if they differ by more than eps (sqrt(D) + 8) (|q| + d)^2, several times the rounding error of
    a sum of D products of that size.
    """

    by_product: ClassVar[bool] = False

    def __init__(
        self, queries: Floats, gallery: Floats, exclude_self: bool, device: torch.device, approximate: bool = False
    ) -> None:
        self.queries, self.gallery, self.exclude_self, self.device = queries, gallery, exclude_self, device
        self.approximate = approximate
        self.reachable = len(gallery) - exclude_self
        mean = gallery.mean(axis=0, dtype=np.float64).astype(gallery.dtype)
        from_mean = np.concatenate([np.einsum("gd,gd->g", part - mean, part - mean) for part in parts_of(gallery)])
        self.centre = gallery[from_mean.argmin()].copy()
        scaled = (gallery,) if self.by_product else (gallery, queries)
        largest = max(np.abs(part - self.centre).max() for part in parts_of(*scaled))
        self.scale = 2.0 ** float(np.ceil(np.log2(largest))) if largest > 0 else 1.0
        self.index: Any = None
        self.most = self.reachable + 1  # neighbours that the index can find
        if not approximate and (devices := gpus_of_faiss(device)):
            try:
                self.index = RowsOnGPUs(len(gallery), gallery.shape[1], devices, self.by_product, search_on_gpu)
                self.most = MAX_ON_GPU
            except RuntimeError as error:
                self._without_faiss(error)
        elif approximate or (faiss is not None and device.type == "cpu"):
            faiss.omp_set_num_threads(torch.get_num_threads())  # a trial uses only its share of the processors
            self.index = self._codes() if approximate else self._flat()
        if faiss is None:
            warnings.warn(without_faiss(faiss_fault), stacklevel=2)
        if self.index is not None:
            for part in parts_of(gallery):
                self.index.add(self._centre(part).astype(np.float32))

    def nearest(
        self, query: Integers, k: int, chunk: int, hit_test: HitTest | None = None
    ) -> Iterator[tuple[Integers, Integers, Ties]]:
        """Chunks of `query` (indices of queries), their (chunk, k) nearest gallery rows, and the ties among these.

        With `hit_test`, the order inside a near tie is left open where it cannot matter: among all hits or
        among all misses; without it, no ties are reported. An approximate search that finds too few fills up with -1,
        and knows only of ties among what it found.
        """
        wide = min(k + SLACK, self.reachable)
        chunk = max(1, min(chunk, CHUNK_ENTRIES // wide))
        for start in range(0, len(query), chunk):
            rows = query[start : start + chunk]
            if self.index is None or wide + self.exclude_self > self.most:
                yield rows, *self._nearest_in_full_rows(rows, k, hit_test)
                continue
            ready_QD = self._ready(self.queries[rows])
            try:
                squared, neighbours = self._candidates(rows, ready_QD.astype(np.float32), wide)
            except RuntimeError as error:
                self._without_faiss(error)
                yield rows, *self._nearest_in_full_rows(rows, k, hit_test)
                continue
            norm_Q1 = _norms(ready_QD)
            unsettled = np.flatnonzero(
                squared[:, -1] <= squared[:, k - 1] + self._tolerance(norm_Q1[:, 0], squared[:, -1], np.float32)
            )
            ties = self._order_near_ties(rows, neighbours, squared, norm_Q1, np.float32, hit_test)
            if wide < self.reachable and len(unsettled) and not self.approximate:
                # more may be tied with the k-th than were found
                neighbours[unsettled, :k], more = self._nearest_in_full_rows(rows[unsettled], k, hit_test)
                ties = together([ties.where(~np.isin(ties.row_T, unsettled)), more.of_rows(unsettled)])
            yield rows, neighbours[:, :k], ties.where(ties.first_T < k)

    def _without_faiss(self, error: RuntimeError) -> None:
        """From now on torch searches, with the same result: it needs less memory of the GPU at once, and has that which
        faiss held. Raises the error again unless it says that memory is missing."""
        if not lacks_memory(error) or is_broken(self.device):
            raise error
        self.index = None
        traceback.clear_frames(error.__traceback__)
        torch.cuda.empty_cache()
        warnings.warn(
            f"faiss does not find enough free memory on the GPU for {len(self.gallery)} rows: torch searches, which "
            "takes longer",
            stacklevel=2,
        )

    def recall(self, query: Integers, k: int) -> float:
        """Share of the k true neighbours that this search finds, over a sample of `query`.

        A neighbour counts if it is no farther than the k-th true one: ties are equivalent.
        """
        rng = np.random.default_rng(0)
        sample = np.sort(rng.choice(query, min(len(query), APPROXIMATE_SAMPLE), replace=False))
        ready_QD = self._ready(self.queries[sample])
        queries, norm_Q = torch.from_numpy(ready_QD), _norms(ready_QD)[:, 0]
        nearest = torch.empty(len(sample), 0, dtype=torch.float64)
        step = MATRIX_ENTRIES // len(sample)
        for start in range(0, len(self.gallery), step):
            part_GD = self._centre(self.gallery[start : start + step])
            norms_G = torch.from_numpy(np.square(_norms(part_GD)[:, 0]))
            matrix_QG = self._matrix(queries, torch.from_numpy(part_GD), norms_G)
            if self.exclude_self:
                places = np.flatnonzero((sample >= start) & (sample < start + len(part_GD)))
                matrix_QG[places, sample[places] - start] = torch.inf
            nearest = torch.cat([nearest, matrix_QG], dim=1)
            nearest = nearest.topk(min(k, nearest.shape[1]), largest=False).values
        limit = nearest.amax(dim=1).numpy()
        limit = self._limit(limit + self._tolerance(norm_Q, limit, np.float64), norm_Q)
        shares = []
        for rows, approximate, _ in self.nearest(sample, k, CHUNK):
            row, place = np.nonzero(approximate >= 0)
            near = self.exact(rows[row], approximate[row, place]) <= limit[np.searchsorted(sample, rows[row])]
            shares.append(np.bincount(row, near, len(rows)) / k)
        return float(np.concatenate(shares).mean())

    def values(self, query: Integers, neighbour: Integers) -> NDArray[np.float64]:
        """The distances of pairs. (P,), (P,) -> (P,)"""
        return np.sqrt(self.exact(query, neighbour))

    def exact(self, query: Integers, neighbour: Integers) -> NDArray[np.float64]:
        """What pairs are ordered by, in float64 and rounded, so that what is tied is equal. (P,), (P,) -> (P,)"""
        pairs = query * len(self.gallery) + self.first_copies[neighbour]
        if self.has_copies:  # one distance for all copies of a row: a collapsed network makes thousands
            pairs, back = np.unique(pairs, return_inverse=True)
        query, neighbour = np.divmod(pairs, len(self.gallery))
        squared = self._in_parts(self._exact, query, neighbour)
        return squared[back] if self.has_copies else squared

    def _in_parts(self, of_rows: OfRows, query: Integers, neighbour: Integers) -> NDArray[np.float64]:
        """A function of the pairs' rows, a megabyte of numbers at a time."""
        result = np.empty(len(query))
        step = max(1, (1 << 20) // self.gallery.shape[1])
        for start in range(0, len(query), step):
            part = slice(start, start + step)
            result[part] = of_rows(self.queries[query[part]], self.gallery[neighbour[part]])
        return result

    def _exact(self, queries: Floats, gallery: Floats) -> NDArray[np.float64]:
        """Squared distances from true differences, rounded to 12 digits. (P, D), (P, D) -> (P,)"""
        difference = queries.astype(np.float64)
        difference -= gallery
        squared: NDArray[np.float64] = np.einsum("pd,pd->p", difference, difference)
        mantissa, exponent = np.frexp(squared)
        squared[:] = np.ldexp(np.rint(mantissa * 2.0**40), exponent - 40)
        return squared

    def _limit(self, limit: Floats, norm_Q: Floats) -> Floats:
        """A limit of the fast search's distances as one of the exact distances, which are rounded. (Q,) -> (Q,)"""
        return limit * (self.scale**2 * (1 + 1e-12))

    def _flat(self) -> Any:
        """An empty index that compares with every row."""
        return (faiss.IndexFlatIP if self.by_product else faiss.IndexFlatL2)(self.gallery.shape[1])

    def _codes(self) -> Any:
        """An empty index that finds `APPROXIMATE_FACTOR` times the candidates by 4-bit product codes, and orders these
        by their distances; a flat one where there are too few rows to learn codes from.

        Every row is scanned: unlike inverted lists, it misses nothing for a query whose neighbours lie far apart.
        Source: Andre et al., Quicker ADC, PAMI 2021.
        """
        width = self.gallery.shape[1]
        if len(self.gallery) < 16 * APPROXIMATE_FACTOR:
            return self._flat()
        size = next((size for size in (4, 2) if width % size == 0 and width // size >= CODE_PARTS), 1)
        metric = faiss.METRIC_INNER_PRODUCT if self.by_product else faiss.METRIC_L2
        codes = faiss.IndexPQFastScan(width, width // size, 4, metric)
        codes.pq.cp.seed, codes.pq.cp.min_points_per_centroid = KMEANS_SEED, 1
        count = min(len(self.gallery), CODE_TRAINING)
        sample = np.sort(np.random.default_rng(KMEANS_SEED).choice(len(self.gallery), count, replace=False))
        codes.train(self._centre(self.gallery[sample]).astype(np.float32))
        index = faiss.IndexRefineFlat(codes)
        index.k_factor = APPROXIMATE_FACTOR
        return index

    def _candidates(self, rows: Integers, ready: NDArray[np.float32], count: int) -> tuple[Floats, Integers]:
        squared, neighbours = self.index.search(ready, count + self.exclude_self)
        if self.by_product:
            np.negative(squared, out=squared)
        if self.exclude_self:  # move it to the first place, then drop it
            for row in np.flatnonzero(neighbours[:, 0] != rows):
                place = np.flatnonzero(neighbours[row] == rows[row])
                last = place[0] if len(place) else count  # its copies, or larger products, may displace it
                neighbours[row, 1 : last + 1] = neighbours[row, :last].copy()
                squared[row, 1 : last + 1] = squared[row, :last].copy()
            squared, neighbours = squared[:, 1:], neighbours[:, 1:]
        if not self.by_product:
            np.maximum(squared, 0, out=squared)
        if self.approximate:
            squared[neighbours < 0] = NOTHING
        return squared, neighbours

    def _nearest_in_full_rows(self, rows: Integers, k: int, hit_test: HitTest | None) -> tuple[Integers, Ties]:
        """The same from whole rows of the distance matrix, in float64 (no TF32 there), on the device."""
        gallery_GD, norms_G = self._exact_gallery
        nearest, ties = np.empty((len(rows), k), dtype=np.int64), [NO_TIES]
        step = max(1, MATRIX_ENTRIES // len(gallery_GD))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            ready_QD = self._ready(self.queries[part])
            norm_Q1 = _norms(ready_QD)
            matrix_QG = self._matrix(torch.from_numpy(ready_QD).to(self.device), gallery_GD, norms_G)
            if self.exclude_self:
                matrix_QG.scatter_(1, torch.from_numpy(part[:, None]).to(self.device), torch.inf)
            squared, neighbours = matrix_QG.topk(k, largest=False)
            last = squared[:, -1:].cpu().numpy()
            limit = torch.from_numpy(last + self._tolerance(norm_Q1, last, np.float64)).to(self.device)
            count = int((matrix_QG <= limit).sum(dim=1).max())
            if count > k:
                squared, neighbours = matrix_QG.topk(count, largest=False)
            candidates, distances = neighbours.cpu().numpy(), squared.cpu().numpy()
            among = self._order_near_ties(part, candidates, distances, norm_Q1, np.float64, hit_test)
            ties.append(among.where(among.first_T < k).of_rows(np.arange(start, start + len(part))))
            nearest[start : start + step] = candidates[:, :k]
        return nearest, together(ties)

    def _order_near_ties(
        self,
        rows: Integers,
        neighbours: Integers,
        squared: Floats,
        norm_Q1: Floats,
        precision: type[np.floating],
        hit_test: HitTest | None,
    ) -> Ties:
        """Sort, in place, the runs of `found` whose neighbours in the list are nearer than the tolerance; what in them
        is tied."""
        if hit_test is not None:  # only rows in which an adjacent hit and miss are too near
            hit = hit_test(rows, neighbours)
            row, place = np.divmod(np.flatnonzero(hit[:, 1:] != hit[:, :-1]), max(1, neighbours.shape[1] - 1))
            gap = squared[row, place + 1] - squared[row, place]
            near = np.unique(row[gap <= self._tolerance(norm_Q1[row, 0], squared[row, place + 1], precision)])
            if len(near) < len(rows):
                part = neighbours[near]
                ties = self._order_near_ties(rows[near], part, squared[near], norm_Q1[near], precision, hit_test)
                neighbours[near] = part
                return ties.of_rows(near)
        starts = np.ones(neighbours.shape, dtype=bool)
        tolerance = self._tolerance(norm_Q1, squared[:, 1:], precision)
        np.greater(np.diff(squared, axis=1), tolerance, out=starts[:, 1:])
        run = np.cumsum(starts) - 1
        length = np.bincount(run)
        undecided = length > 1
        if hit_test is not None:
            hits = np.bincount(run, hit_test(rows, neighbours).ravel())
            undecided &= (hits > 0) & (hits < length)
        at = np.flatnonzero(undecided[run])
        row, place = np.divmod(at, neighbours.shape[1])
        neighbour = neighbours[row, place]
        exact = self.exact(rows[row], neighbour)
        order = np.lexsort((neighbour, exact, run[at]))
        neighbours[row, place] = neighbour = neighbour[order]
        if hit_test is None:
            return NO_TIES
        return Ties.of_sorted(row, place, run[at], exact[order], hit_test(rows[row], neighbour[:, None])[:, 0])

    def _tolerance(self, norm: Floats, squared: Floats, precision: type[np.floating]) -> Floats:
        """Error bound of squared distances of the centred, scaled rows; `norm` is of the query's."""
        error: Floats = (np.sqrt(squared) + norm.astype(squared.dtype)) ** 2
        error *= np.finfo(precision).eps * (np.sqrt(self.gallery.shape[1]) + 8)
        return error

    def _matrix(self, queries: torch.Tensor, gallery: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
        """Squared distances of queries (Q, D), ready, to centred rows (G, D) of these squared norms. -> (Q, G)"""
        matrix_QG = torch.addmm(norms, queries, gallery.T, alpha=-2)
        matrix_QG += queries.square().sum(dim=1, keepdim=True)
        return matrix_QG.clamp_(min=0)

    def _ready(self, queries: Floats) -> NDArray[np.float64]:
        """Queries as the fast search reads them."""
        return self._centre(queries)

    def _centre(self, rows: Floats) -> NDArray[np.float64]:
        centred: NDArray[np.float64] = np.subtract(rows, self.centre, dtype=np.float64)
        centred /= self.scale
        return centred

    @cached_property
    def _exact_gallery(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Centred rows (G, D) in float64 on the device, and their squared norms (G,)."""
        centred_GD = self._centre(self.gallery)
        parts = torch.from_numpy(centred_GD), torch.from_numpy(np.square(_norms(centred_GD)[:, 0]))
        return parts[0].to(self.device), parts[1].to(self.device)

    @cached_property
    def first_copies(self) -> Integers:
        """Index of the first gallery row with the same values. (G,)"""
        # Python's hash of bytes has 64 bits; it differs between processes, but only says where to look
        hashes = [hash(row.tobytes()) for part in parts_of(self.gallery) for row in part + 0.0]  # -0.0 becomes 0.0
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


class ProductSearch(NeighbourSearch):
    """The same by inner product, the largest first: what is compared is minus the product.

    Of the gallery's rows g those about the centre c are read: q g = q (g - c) + q c, and the last is equal for all.
    A power of two scales each query. Two computed products are distinguished if they differ by more than
    eps (sqrt(D) + 8) |q| max |g - c|.
    """

    by_product = True

    def values(self, query: Integers, neighbour: Integers) -> NDArray[np.float64]:
        """The products of pairs. (P,), (P,) -> (P,)"""
        return self._in_parts(lambda q, g: np.einsum("pd,pd->p", q.astype(np.float64), g), query, neighbour)

    def _exact(self, queries: Floats, gallery: Floats) -> NDArray[np.float64]:
        """Minus the products, scaled, rounded to 12 digits of |q| max |g - c|. (P, D), (P, D) -> (P,)"""
        ready = self._ready(queries)
        product: NDArray[np.float64] = np.einsum("pd,pd->p", ready, self._centre(gallery))
        step = self._step(_norms(ready)[:, 0])
        product[:] = np.rint(product / step) * -step
        return product

    def _step(self, norm: Floats) -> Any:
        return np.ldexp(1.0, np.frexp(norm * self.longest)[1] - 40)

    def _limit(self, limit: Floats, norm_Q: Floats) -> Floats:
        limit += self._step(norm_Q)
        return limit

    def _matrix(self, queries: torch.Tensor, gallery: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
        return torch.mm(queries, gallery.T).neg_()

    def _ready(self, queries: Floats) -> NDArray[np.float64]:
        rows = queries.astype(np.float64)
        scaled: NDArray[np.float64] = np.ldexp(rows, -np.frexp(np.abs(rows).max(axis=1, keepdims=True))[1])
        return scaled

    def _tolerance(self, norm: Floats, squared: Floats, precision: type[np.floating]) -> Floats:
        error: Floats = norm * (self.longest * np.finfo(precision).eps * (np.sqrt(self.gallery.shape[1]) + 8))
        return error

    @cached_property
    def longest(self) -> float:
        """The largest norm of a centred, scaled row of the gallery."""
        return max(float(_norms(self._centre(part)).max()) for part in parts_of(self.gallery))


def without_faiss(fault: str | None) -> str:
    """What to know where torch searches in its place."""
    return f"faiss {fault}: torch searches in its place, with the same results but slower (see orchestrator doctor)"


def gpus_of_faiss(device: torch.device) -> list[torch.device]:
    """Where faiss can search for it: on this GPU, on all visible ones if it has no number, on none without support."""
    if device.type != "cuda" or not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
        return []
    numbers = range(torch.cuda.device_count()) if device.index is None else [device.index]
    return [torch.device("cuda", number) for number in numbers]


def faiss_resources() -> Any:
    """faiss's scratch memory and streams, on the GPUs that it is asked to search."""
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(SCRATCH)
    resources.setPinnedMemory(0)  # for copies, which torch makes
    return resources


def search_on_gpu(by_product: bool) -> SearchOfRows:
    """A search by faiss for one thread, with scratch memory of its own."""
    resources = faiss_resources()
    return lambda queries, rows, count: faiss_on_gpu(resources, queries, rows, count, by_product)


def faiss_on_gpu(
    resources: Any, queries: torch.Tensor, rows: torch.Tensor, count: int, by_product: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` nearest of `rows`, on their GPU: squared distances (float32), ascending, or the largest products,
    descending; and indices (int64).

    The only place where faiss computes on a GPU. It is right to the rounding errors of float32.
    """
    from faiss.contrib import torch_utils  # noqa: F401  faiss's functions then take tensors, on torch's stream

    with torch.cuda.device(rows.device):
        metric = faiss.METRIC_INNER_PRODUCT if by_product else faiss.METRIC_L2
        squared, index = faiss.knn_gpu(resources, queries, rows, count, metric=metric, device=rows.device.index)
    return squared, index


def _norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.sqrt(np.einsum("qd,qd->q", rows, rows))[:, None]
    return norms
