"""SupCon: supervised contrastive learning.

Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from methods.baselines import Baseline, Metric, ReferencesConfig
from methods.reductions import Reduction, any_of, kept_terms, log_sum_exp, mean_of_terms, objective

RELEASED_BASE = 0.07
"""The released code's `base_temperature`."""


@objective
def sup_con(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    temperature: float = 0.1,
    formula: Literal["printed", "released"] = "printed",
    reduction: Reduction = "mean",
) -> Tensor:
    """SupCon on s (Q, R): the mean over rows i with positives of

        log sum over positives and negatives a of e^(s_ia / temperature) - mean over positives p of s_ip / temperature

    This is the paper's L_out (Eq. 2), in which the mean over positives is taken outside the logarithm; the paper sums
    over rows. Rows without positives are left out; a row without negatives counts too. With formula="released" rows
    without positives count 0 in the mean, and the loss is multiplied by temperature / 0.07, as in the released code.
    ValueError for another formula.

    Khosla et al., Supervised Contrastive Learning, NeurIPS 2020.
    """
    if formula not in ("printed", "released"):
        raise ValueError(f'sup_con: formula must be "printed" or "released", got {formula!r}')

    def terms(matrix: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        logits = matrix / temperature
        mean_positive = torch.where(positive, logits, 0).sum(1) / positive.sum(1).clamp(min=1)
        sums, counts = kept_terms(log_sum_exp(logits, positive | negative, 1) - mean_positive, any_of(positive, 1))
        if formula == "printed":
            return sums, counts
        return sums * (temperature / RELEASED_BASE), torch.ones_like(counts)

    return mean_of_terms(terms, matrix, positive, negative, reduction=reduction)


class SupCon(Baseline):
    """Supervised contrastive loss: a softmax over all other images, averaged over an image's positives.

    L = mean over images i with positives of [log sum over a != i of e^(s_ia / temperature)
      - mean over positives p of s_ip / temperature].

    The paper takes two augmented views of each image; here an image is in the batch once, and its positives are the
    other images of its class. With `formula: released` images without positives count 0 in the mean, and the loss is
    multiplied by temperature / 0.07.
    """

    name = "sup_con"
    paper = "Khosla et al., Supervised Contrastive Learning, NeurIPS 2020"
    latex = r"""
    L = \underset{i}{\mathrm{mean}}\,\left[\log \sum_{a \ne i} e^{s_{ia} / \mathrm{temperature}}
    - \underset{p}{\mathrm{mean}}\,\frac{s_{ip}}{\mathrm{temperature}}\right]
    """
    reads = "similarity"
    function = sup_con

    class Config(ReferencesConfig):
        metric: Metric = Field("cosine", description="similarity between embeddings")
        temperature: float = Field(0.1, gt=0, description="temperature of the softmax")
        formula: Literal["printed", "released"] = Field(
            "printed", description="released: images without positives count 0, and the loss times temperature / 0.07"
        )
