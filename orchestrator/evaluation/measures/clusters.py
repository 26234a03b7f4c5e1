"""How well clusters agree with classes.

With n items, classes of a_i and clusters of b_j, of which n_ij are in both, H = -sum of a_i/n log(a_i/n) is the entropy
and I = sum of n_ij/n log(n n_ij / (a_i b_j)) the mutual information.
"""

from orchestrator.evaluation.measures.base import Floats, Integers, Metric

TAIL = 12.0
"""Deviations of a hypergeometric number beyond which nothing is added: what is left is below 1e-20."""
ENTRIES = 1 << 22  # bounds the terms computed at once


def normalized_mutual_information(labels: Integers, clusters: Integers) -> float:
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(labels, clusters, average_method="arithmetic"))


def adjusted_mutual_information(labels: Integers, clusters: Integers) -> float:
    """(I - E[I]) / ((H(classes) + H(clusters)) / 2 - E[I]), E[I] of clusters of the same sizes at random; 1 if both are
    one group, or each item is a group of its own. (Q,), (Q,)

    scikit-learn's `adjusted_mutual_info_score` is the same, and takes half a minute for 11,000 classes.

    Source: Vinh, Epps and Bailey, Information theoretic measures for clusterings comparison, JMLR 2010.
    """
    import numpy as np
    from sklearn.metrics import mutual_info_score

    a, b = (np.unique(groups, return_counts=True)[1] for groups in (labels, clusters))
    if len(a) == len(b) and _is_forced(a):
        return 1.0
    expected = expected_mutual_information(a, b)
    room = (entropy(a) + entropy(b)) / 2 - expected
    above = float(mutual_info_score(labels, clusters)) - expected
    return above / room if abs(room) > np.finfo(float).eps else 0.0


def _is_forced(sizes: Integers) -> bool:
    """Whether there is one grouping of so many groups only."""
    return len(sizes) in (1, int(sizes.sum()))


def entropy(sizes: Integers) -> float:
    """H of groups of these sizes."""
    import numpy as np

    share = sizes / sizes.sum()
    return float(-(share * np.log(share)).sum())


def expected_mutual_information(a: Integers, b: Integers) -> float:
    """E[I] if the clusters, of sizes b, are drawn at random: n_ij is hypergeometric. Of equal sizes one is computed."""
    import numpy as np

    n = int(a.sum())
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    (a, times_a), (b, times_b) = (np.unique(sizes, return_counts=True) for sizes in (a, b))
    a, b = (sizes.ravel() for sizes in np.meshgrid(a, b, indexing="ij"))
    times = np.outer(times_a, times_b).ravel()
    middle = a * b / n
    reach = TAIL * np.sqrt(middle) + 40
    low = np.maximum(np.maximum(1, a + b - n), np.floor(middle - reach)).astype(np.int64)
    high = np.minimum(np.minimum(a, b), np.ceil(middle + reach)).astype(np.int64)
    length = np.maximum(0, high - low + 1)
    expected = 0.0
    for part in np.array_split(np.arange(len(a)), 1 + int(length.sum()) // ENTRIES):
        pair = np.repeat(part, length[part])
        both = low[pair] + np.arange(len(pair)) - np.repeat(np.cumsum(length[part]) - length[part], length[part])
        a_P, b_P = a[pair], b[pair]
        log_p = log_factorial[a_P] + log_factorial[b_P] + log_factorial[n - a_P] + log_factorial[n - b_P]
        log_p -= log_factorial[n] + log_factorial[both] + log_factorial[a_P - both] + log_factorial[b_P - both]
        log_p -= log_factorial[n - a_P - b_P + both]
        expected += float((times[pair] * np.exp(log_p) * both / n * np.log(n * both / (a_P * b_P))).sum())
    return expected


def chance_of_mutual_information(sizes: Integers) -> float:
    """E[I] / H of random clusters of the classes' own sizes; 1 of one class."""
    return expected_mutual_information(sizes, sizes) / entropy(sizes) if len(sizes) > 1 else 1.0


def pairwise_f1(labels: Integers, clusters: Integers) -> float:
    """F1 of the pairs in one cluster against the pairs of one class; 1 if there are neither. (Q,), (Q,)"""

    import numpy as np

    def pairs(groups: Integers) -> int:
        return int(_pairs(np.unique(groups, axis=-1, return_counts=True)[1]).sum())

    both, either = pairs(np.stack([labels, clusters])), pairs(labels) + pairs(clusters)
    return 2 * both / either if either else 1.0


def chance_of_pairwise_f1(sizes: Integers) -> float:
    """The share of all pairs that are of one class: that of random clusters of the classes' own sizes."""
    pairs = float(_pairs(sizes).sum())
    return pairs / float(_pairs(sizes.sum())) if pairs else 1.0


def _pairs(sizes: Integers) -> Floats:
    return sizes * (sizes - 1) / 2


NMI = Metric(
    name="normalized_mutual_information",
    label="NMI",
    about="k-means clusters against classes; arithmetic mean of the entropies; of many small classes high by chance",
    of_paper=4,
    by_cluster=normalized_mutual_information,
    chance_of_clusters=chance_of_mutual_information,
)
AMI = Metric(
    name="adjusted_mutual_information",
    label="AMI",
    about="the same less what random clusters of these sizes have: 0 by chance, 1 at best",
    share=False,
    by_cluster=adjusted_mutual_information,
    chance_of_clusters=lambda sizes: float(_is_forced(sizes)),
)
CLUSTERING_F1 = Metric(
    name="clustering_f1",
    label="F1",
    about="k-means clusters against classes; F1 of the pairs that share a cluster",
    by_cluster=pairwise_f1,
    chance_of_clusters=chance_of_pairwise_f1,
)
