"""The losses on proxies whose matrix the Triton kernels do without: the same values as those of `methods.objectives`.

Each reads embeddings (B, D) and proxies (P, D) with their labels (B, L) and (P,), and a metric, cosine (s) or
squared_euclidean (s = -d^2); their other arguments are those of the objective.
"""

from typing import Any

import torch
from torch import Tensor

from methods.kernels.log_sums import Measure, log_sums


def proxy_nca(
    embeddings: Tensor,
    labels: Tensor,
    proxies: Tensor,
    proxy_labels: Tensor,
    *,
    metric: Measure,
    scale: float,
    include_positive: bool,
    **more: Any,
) -> Tensor:
    """`objectives.proxy_nca` on x = 1 - s or d^2: what does not depend on the proxy cancels in its quotient."""
    slopes = (scale, scale)
    same, other = log_sums(embeddings, proxies, labels, proxy_labels[:, None], slopes, metric, **more)
    has_own, has_other = same != -torch.inf, other != -torch.inf
    valid = has_own if include_positive else has_own & has_other
    same, other = torch.where(valid, same, 0), torch.where(valid, other, 0)
    terms = torch.logaddexp(same, other) - same if include_positive else other - same
    return torch.where(valid, terms, 0).sum() / valid.sum().clamp(min=1)


def normalized_softmax(*points: Tensor, metric: Measure, temperature: float, **more: Any) -> Tensor:
    """`objectives.normalized_softmax`: ProxyNCA's quotient with the positives below the line."""
    return proxy_nca(*points, metric=metric, scale=1 / temperature, include_positive=True, **more)


def proxy_anchor(
    embeddings: Tensor,
    labels: Tensor,
    proxies: Tensor,
    proxy_labels: Tensor,
    *,
    metric: Measure,
    alpha: float,
    margin: float,
    **more: Any,
) -> Tensor:
    """`objectives.proxy_anchor`: the proxies are the anchors."""
    slopes = (-alpha, alpha)
    same, other = log_sums(proxies, embeddings, proxy_labels[:, None], labels, slopes, metric, **more)
    zero = torch.zeros_like(same)
    attraction = torch.logaddexp(same + alpha * margin, zero)
    repulsion = torch.logaddexp(other + alpha * margin, zero)
    return attraction.sum() / (same != -torch.inf).sum().clamp(min=1) + repulsion.mean()


LOSSES = {loss.__name__: loss for loss in (proxy_nca, normalized_softmax, proxy_anchor)}
