"""Anti-Collapse: proxies kept apart by the coding rate, the volume that the embeddings span.

Jiang et al., "Anti-Collapse Loss for Deep Metric Learning Based on Coding Rate Metric", IEEE TMM 2024. The loss is
minus the coding rate of the proxies plus a weighted proxy-based loss.

Shapes: n rows, B batch size, N points, D dimensions, T text dimensions. Rows are used as given: callers pass unit
rows.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.objectives import _full_precision, cosine_similarity

BLOCK = 2**22  # distances in memory at a time in `density`


def coding_rate(x: Tensor, epsilon: float = 0.5) -> Tensor:
    """The coding rate R = 1/2 log det(I + D / (n epsilon^2) X^T X) of rows, in nats (Eq. 1).

    The number of nats that code the rows up to a distortion epsilon. Both Gram matrices, X^T X and X X^T, give the
    same determinant: the smaller one is factorised (Cholesky), in float32 or better whatever autocast says.

    Args:
        x: (n, D) unit rows, n >= 1.
        epsilon: allowed distortion, > 0.

    Returns:
        A scalar, differentiable.

    Raises:
        ValueError: if x has no row or is not a matrix, or epsilon is not positive.
    """
    if x.ndim != 2 or len(x) == 0:
        raise ValueError(f"the coding rate needs rows of shape (n, D) with n >= 1, got {tuple(x.shape)}")
    if not epsilon > 0:
        raise ValueError(f"epsilon must be a positive number, got {epsilon}")
    n, dim = x.shape
    with _full_precision(x.device):
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        gram = x.T @ x if dim < n else x @ x.T
        identity = torch.eye(len(gram), dtype=x.dtype, device=x.device)
        factor: Tensor = torch.linalg.cholesky(identity + dim / (n * epsilon**2) * gram)
        return factor.diagonal().log().sum()


def mean_coding_rate(x: Tensor, labels: Tensor, epsilon: float = 0.5) -> Tensor:
    """The coding rate of each class's rows, averaged over classes (R_intra of Table III).

    Args:
        x: (N, D) unit rows, N >= 1. labels: (N,) integers. epsilon: as in `coding_rate`.
    """
    rates = [coding_rate(x[labels == label], epsilon) for label in sorted(set(labels.tolist()))]
    if not rates:
        raise ValueError("the mean coding rate needs at least one row, got none")
    return torch.stack(rates).mean()


def density(embeddings: Tensor, labels: Tensor) -> float:
    """Mean distance of the pairs within classes divided by that of the pairs across classes (rho, Table III).

    Counts every embedding, in blocks.

    Args:
        embeddings: (N, D). labels: (N,) integers.

    Raises:
        ValueError: if there is no pair of one of the two kinds, or all pairs across classes coincide.
    """
    x = embeddings.detach().double()
    rows = max(1, BLOCK // max(1, len(x)))
    total, within = x.new_zeros(()), x.new_zeros(())
    same_pairs = 0
    for start in range(0, len(x), rows):
        block = slice(start, start + rows)
        distance = torch.cdist(x[block], x, compute_mode="donot_use_mm_for_euclid_dist")
        same = labels[block, None] == labels
        total += distance.sum()
        within += distance[same].sum()
        same_pairs += int(same.sum())
    same_pairs, other_pairs = same_pairs - len(x), len(x) ** 2 - same_pairs
    if same_pairs == 0 or other_pairs == 0:
        raise ValueError("the density needs pairs within a class and pairs across classes")
    across = (total - within).item() / other_pairs
    if across == 0:
        raise ValueError("the density is undefined: all pairs across classes coincide")
    return within.item() / same_pairs / across


def language_guidance(embeddings: Tensor, texts: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL divergence of the batch's visual similarities from those of the class names (section IV-F).

    Rows of both similarity matrices, without their diagonals, go through a softmax at `temperature`; the result is
    sum_j p_ij log(p_ij / q_ij), p language and q visual, averaged over i. The texts get no gradient.

    Args:
        embeddings: (B, D) unit rows. texts: (B, T) unit embeddings of each sample's class name.
        temperature: > 0; the paper gives none.

    Returns:
        A scalar; zero, attached to the graph, for fewer than two samples.

    Raises:
        ValueError: if temperature is not positive, or the numbers of rows differ.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be a positive number, got {temperature}")
    if len(texts) != len(embeddings):
        raise ValueError(f"texts must have a row per embedding, {len(embeddings)}, got {len(texts)}")
    size = len(embeddings)
    if size < 2:
        return torch.where(torch.tensor(False, device=embeddings.device), embeddings, 0).sum()
    others = ~torch.eye(size, dtype=torch.bool, device=embeddings.device)
    language, visual = (
        F.log_softmax(cosine_similarity(z, z)[others].view(size, size - 1) / temperature, dim=1)
        for z in (texts.detach(), embeddings)
    )
    return F.kl_div(visual, language, reduction="batchmean", log_target=True)
