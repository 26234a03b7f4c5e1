"""k-means."""

import numpy as np
import torch

from orchestrator.evaluation.neighbours import KMEANS_SEED, faiss
from orchestrator.evaluation.rows import Floats, Integers

KMEANS_ITERATIONS = 50
SPREAD_START_ENTRIES = 10_000_000  # queries x clusters up to which k-means++ finds the first centres


def kmeans(rows: Floats, clusters: int) -> Integers:
    """(Q,) cluster of each row by Lloyd's iterations from a seeded start, the same on every call.

    Always on the CPU: a GPU's sums differ in the last bits, a row between two centres then changes its cluster, and the
    iterations part: other clusters, other metrics.
    """
    from sklearn.cluster import KMeans, kmeans_plusplus
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # To float32 about the mean: a common offset must not cost digits.
    rows = np.ascontiguousarray(rows - rows.mean(axis=0, dtype=np.float64).astype(rows.dtype), dtype=np.float32)
    if len(rows) * clusters <= SPREAD_START_ENTRIES:
        with threadpool_limits(torch.get_num_threads()):
            centres, _ = kmeans_plusplus(rows, clusters, random_state=KMEANS_SEED)
    else:  # k-means++ would take longer than the search
        centres = rows[np.random.default_rng(KMEANS_SEED).choice(len(rows), clusters, replace=False)]
    if faiss is None:
        with threadpool_limits(1):  # scikit-learn sums in the order in which its threads finish
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
