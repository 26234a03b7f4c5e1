"""Mean-field losses: each class is seen through one learned point, its mean field, in place of its samples.

Furusawa, "Mean Field Theory in Deep Metric Learning", ICLR 2024. The formulas and most defaults are those of the
author's program; the paper itself was not read. Its commands, all for the second loss, give a field_weight of 0 and a
learning rate of the fields 2,000 times the network's.
"""

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from methods.distances import cosine_similarity, pair_masks
from methods.objectives import contrastive
from methods.proxies import Proxies, ProxySettings
from orchestrator.method import Diagnostics, Embedded, Method, Outputs, Task


def mean_over_fields(penalties: Tensor) -> Tensor:
    """Mean over classes c of the sum over others c' of the squares of penalties (C, C); zero for no classes."""
    others = penalties.square()
    return (others.sum() - others.diagonal().sum()) / max(1, len(penalties))


def class_wise_multi_similarity(
    similarity: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    alpha: float = 0.01,
    beta: float = 80.0,
    base: float = 0.8,
) -> Tensor:
    """The class-wise multi-similarity loss between a batch and the mean fields of C classes, s (B, C) and its masks:

        1 / (alpha n) sum over c of log[1 + p_c] + 1 / (2 beta n) sum over c != c' of log[1 + q_cc' + q_c'c]
        p_c = mean over the samples i of c of e^(-alpha (s_ic - base))
        q_cc' = mean over the samples i of c of e^(beta (s_ic' - base)), 0 for a class without samples

    n is the number of classes in the batch. A sample of several classes counts in the means of each, and with none of
    its own classes as c'. Memory is (C, C). Furusawa, ICLR 2024, by the released code.
    """
    count, present = positive.sum(0).clamp(min=1), positive.any(0)
    pulled = torch.where(positive, -alpha * (similarity - base), -torch.inf).exp().sum(0) / count
    logits = torch.where(negative, beta * (similarity - base), -torch.inf)
    samples, classes = positive.nonzero(as_tuple=True)
    logits, none = logits[samples], similarity.new_zeros(len(count), len(count))
    # q is e^highest times what is summed, highest the largest logit but at least 0: no sum with the 1 is empty
    highest = none.scatter_reduce(0, classes[:, None].expand_as(logits), logits.detach(), "amax")
    pushed = none.index_add(0, classes, (logits - highest[classes]).exp() / count[classes, None])
    both = torch.maximum(highest, highest.T)
    one_way = pushed * (highest - both).exp()
    repulsion = both + torch.log((-both).exp() + one_way + one_way.T)
    valid = (present[:, None] | present).fill_diagonal_(False)
    repulsion = torch.where(valid, repulsion, 0).sum() / (2 * beta)
    return (torch.log1p(pulled).sum() / alpha + repulsion) / present.sum().clamp(min=1)


class MeanField(Method, abstract=True):
    """What both have: a mean field of unit length for each class, and the weight of what keeps fields apart."""

    class Config(ProxySettings):
        field_weight: float = Field(0.01, ge=0, description="weight of what keeps the mean fields apart")
        proxy_lr_multiplier: float = Field(1.0, gt=0, description="the mean fields' learning rate over the network's")

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.fields = Proxies(task, 1, config.proxy_init)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return self.fields.group(lr, self.config.proxy_lr_multiplier, self.config.proxy_weight_decay)

    def similarities(self, outputs: Outputs, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Cosines of the batch and the fields (B, C), of the fields and the fields (C, C), and the masks (B, C)."""
        fields = self.fields()
        to_fields = cosine_similarity(outputs["embedding"], fields)
        return to_fields, cosine_similarity(fields, fields), *pair_masks(labels, self.fields.labels, same=False)

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """`proxy_similarity`, the cosines of the mean fields."""
        return Diagnostics(arrays=self.fields.similarities())


class MeanFieldContrastive(MeanField):
    """Mean-field contrastive loss: the contrastive loss between samples and the mean fields of the classes.

    L = mean over samples i of ([d_iy - pos_margin]+ + sum over c != y of [neg_margin - d_ic]+) + field_weight mean over
    classes c of sum over c' != c of [neg_margin - d_cc']+^2, d = 1 - cosine, d_cc' that of two mean fields.
    """

    name = "mean_field_contrastive"
    paper = "Furusawa, Mean Field Theory in Deep Metric Learning, ICLR 2024"
    latex = r"""
    L = \underset{i}{\mathrm{mean}}\,\left([d_{iy} - \mathrm{pos\_margin}]_+
    + \sum_{c \ne y} [\mathrm{neg\_margin} - d_{ic}]_+\right)
    + \mathrm{field\_weight}\,\underset{c}{\mathrm{mean}}\,\sum_{c' \ne c} [\mathrm{neg\_margin} - d_{cc'}]_+^2

    d = 1 - \mathrm{cosine}
    """

    class Config(MeanField.Config):
        pos_margin: float = Field(0.02, ge=0, le=2, description="distance below which the own field rests")
        neg_margin: float = Field(0.3, ge=0, le=2, description="distance beyond which other fields rest")

    config: Config

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        config = self.config
        to_fields, among, *masks = self.similarities(outputs, labels)
        pairs = contrastive(
            1 - to_fields, *masks, pos_margin=config.pos_margin, neg_margin=config.neg_margin, average="query"
        )
        apart = mean_over_fields((config.neg_margin - 1 + among).relu())
        return {"pairs": pairs, "fields": config.field_weight * apart}


class MeanFieldMultiSimilarity(MeanField):
    """Mean-field class-wise multi-similarity loss: as multi-similarity, between classes by way of their mean fields.

    L = 1 / (alpha n) sum over c of log[1 + p_c] + 1 / (2 beta n) sum over c != c' of log[1 + q_cc' + q_c'c]
      + field_weight mean over c of sum over c' != c of (log[1 + e^(beta (s_cc' - base))] / beta)^2

    p_c = mean over samples i of c of e^(-alpha (s_ic - base)), q_cc' = mean over samples i of c of e^(beta (s_ic' -
    base)), s_ic the cosine of a sample and a mean field, s_cc' of two fields, n the number of classes in the batch.
    """

    name = "mean_field_multi_similarity"
    paper = "Furusawa, Mean Field Theory in Deep Metric Learning, ICLR 2024"
    latex = r"""
    L = \frac{1}{\alpha n} \sum_c \log[1 + p_c] + \frac{1}{2 \beta n} \sum_{c \ne c'} \log[1 + q_{cc'} + q_{c'c}]
    + \mathrm{field\_weight}\,\underset{c}{\mathrm{mean}}\,\sum_{c' \ne c}
    \left(\frac{\log\left[1 + e^{\beta (s_{cc'} - \mathrm{base})}\right]}{\beta}\right)^2

    p_c = \underset{i \text{ of } c}{\mathrm{mean}}\,e^{-\alpha (s_{ic} - \mathrm{base})}

    q_{cc'} = \underset{i \text{ of } c}{\mathrm{mean}}\,e^{\beta (s_{ic'} - \mathrm{base})}
    """

    class Config(MeanField.Config):
        alpha: float = Field(0.01, gt=0, description="sharpness of the own class")
        beta: float = Field(80.0, gt=0, description="sharpness of other classes")
        base: float = Field(0.8, ge=-1, le=1, description="similarity offset")

    config: Config

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        config = self.config
        to_fields, among, *masks = self.similarities(outputs, labels)
        pairs = class_wise_multi_similarity(to_fields, *masks, alpha=config.alpha, beta=config.beta, base=config.base)
        apart = mean_over_fields(F.softplus(config.beta * (among - config.base)) / config.beta)
        return {"pairs": pairs, "fields": config.field_weight * apart}
