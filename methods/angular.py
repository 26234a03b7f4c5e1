"""Angular loss: bounds the angle at the negative of the triangle that a triplet makes.

Wang et al., "Deep Metric Learning with Angular Loss", ICCV 2017.
"""

import math
from typing import Literal

from pydantic import Field
from torch import Tensor

from methods.baselines import Baseline, ComparisonConfig
from methods.reductions import Reduction, log_one_plus_sum_exp, objective, reduce_sums


@objective
def angular(
    matrix: Tensor, positive: Tensor, negative: Tensor, *, degrees: float = 40.0, reduction: Reduction = "mean"
) -> Tensor:
    """Angular loss on the similarities s (B, B) of a batch with itself: mean over positive pairs (a, p) of

        log[1 + sum over negatives n of both of e^(4 t (s_an + s_pn) - 2 (1 + t) s_ap)],  t = tan^2 degrees

    A pair without negatives counts 0. Pairs are ordered, so each counts from both sides, and is of the share of its
    anchor a. Time and memory are (positive pairs) x B. ValueError if the matrix is not square, or degrees is not
    between 0 and 90.

    Wang et al., ICCV 2017, its form for batches; the paper has one positive per anchor, the mean over several is that
    of pytorch-metric-learning, as is the default. The paper's sum with the N-pair loss is not here.
    """
    if not 0 < degrees < 90:
        raise ValueError(f"angular: degrees must be between 0 and 90, got {degrees}")
    if len(matrix) != matrix.shape[1]:
        raise ValueError(f"angular: the matrix must be that of a batch with itself, got {tuple(matrix.shape)}")
    anchors, positives = positive.nonzero(as_tuple=True)
    t = math.tan(math.radians(degrees)) ** 2
    pulled = 2 * (1 + t) * matrix[anchors, positives]
    logits = 4 * t * (matrix[anchors] + matrix[positives]) - pulled[:, None]
    pairs = log_one_plus_sum_exp(logits, negative[anchors] & negative[positives], 1)
    sums = matrix.new_zeros(len(matrix)).index_add(0, anchors, pairs)
    return reduce_sums(sums[:, None], positive.sum(1)[:, None], reduction)


class Angular(Baseline):
    """Angular loss: the angle at a negative, in the triangle with two samples of one class, is bounded.

    L = mean over positive pairs (a, p) of log[1 + sum over n of e^(4 t (s_an + s_pn) - 2 (1 + t) s_ap)],
    t = tan^2 degrees, n the negatives of both.
    """

    name = "angular"
    paper = "Wang et al., Deep Metric Learning with Angular Loss, ICCV 2017"
    latex = r"""
    L = \underset{(a, p)}{\mathrm{mean}}\,\log\left[1 + \sum_n e^{4t(s_{an} + s_{pn}) - 2(1 + t)s_{ap}}\right]

    t = \tan^2(\mathrm{degrees})
    """
    reads = "similarity"
    function = angular

    class Config(ComparisonConfig):
        references: Literal["batch"] = Field("batch", description="triangles have all corners in the batch")
        metric: Literal["cosine"] = Field("cosine", description="the bound is on products")
        degrees: float = Field(40.0, gt=0, lt=90, description="bound on the angle at the negative")
