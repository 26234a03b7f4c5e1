"""N-pair: an anchor's positive against its negatives of all classes at once.

Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", NIPS 2016.
"""

import torch
from pydantic import Field
from torch import Tensor

from methods.baselines import Baseline, Metric, ReferencesConfig
from methods.reductions import Reduction, kept_terms, log_sum_exp, mean_of_terms, objective


@objective
def n_pair(
    matrix: Tensor, positive: Tensor, negative: Tensor, *, scale: float = 16.0, reduction: Reduction = "mean"
) -> Tensor:
    """N-pair loss on s (Q, R): the mean over positive pairs (i, p) of

        log(1 + sum over negatives n of row i of e^(scale (s_in - s_ip)))

    The paper's N-pair-mc has one pair per class, one image of it the anchor, and compares with the positives of the
    other pairs; here every image is an anchor in turn, with each of its positives, and compares with all images of
    other classes. The paper's products are of embeddings of any length, which a penalty on the squared length keeps
    small; of unit rows that penalty is constant and left out, and `scale` is the squared length that they would have
    (the paper's formula at 1). A pair in a row without negatives counts 0.

    Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NIPS 2016.
    """

    def terms(matrix: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        others = log_sum_exp(scale * matrix, negative, 1)[:, None]
        gap = others - scale * torch.where(positive, matrix, 0)
        return kept_terms(torch.logaddexp(gap, torch.zeros_like(gap)), positive)

    return mean_of_terms(terms, matrix, positive, negative, width=2, reduction=reduction)


class NPair(Baseline):
    """N-pair loss: each positive pair against all negatives of its anchor at once.

    L = mean over positive pairs (i, p) of log(1 + sum over negatives n of e^(scale (s_in - s_ip))).

    Embeddings are of unit length, so the paper's penalty on their length is left out, and `scale` stands for the
    squared length that they would have. Every image is an anchor, and all images of other classes are its
    negatives; in the paper's batches of two images per class one of them is the anchor, and the second images of the
    other classes are its negatives.
    """

    name = "n_pair"
    paper = "Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NIPS 2016"
    latex = r"L = \underset{(i, p)}{\mathrm{mean}}\,\log\left(1 + \sum_n e^{\mathrm{scale}\,(s_{in} - s_{ip})}\right)"
    reads = "similarity"
    function = n_pair

    class Config(ReferencesConfig):
        metric: Metric = Field("cosine", description="similarity between embeddings")
        scale: float = Field(16.0, gt=0, description="inverse temperature, the embeddings' squared length in the paper")
