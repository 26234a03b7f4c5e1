"""How well clusters agree with classes."""

from orchestrator.evaluation.measures.base import Integers, Metric


def normalized_mutual_information(labels: Integers, clusters: Integers) -> float:
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(labels, clusters, average_method="arithmetic"))


def pairwise_f1(labels: Integers, clusters: Integers) -> float:
    """F1 of the pairs in one cluster against the pairs of one class; 1 if there are neither. (Q,), (Q,)"""

    import numpy as np

    def pairs(groups: Integers) -> int:
        _, sizes = np.unique(groups, axis=-1, return_counts=True)
        return int((sizes * (sizes - 1) // 2).sum())

    both, either = pairs(np.stack([labels, clusters])), pairs(labels) + pairs(clusters)
    return 2 * both / either if either else 1.0


NMI = Metric(
    name="normalized_mutual_information",
    label="NMI",
    about="k-means clusters against classes; arithmetic mean of the entropies",
    of_paper=4,
    by_cluster=normalized_mutual_information,
)
CLUSTERING_F1 = Metric(
    name="clustering_f1",
    label="F1",
    about="k-means clusters against classes; F1 of the pairs that share a cluster",
    by_cluster=pairwise_f1,
)
