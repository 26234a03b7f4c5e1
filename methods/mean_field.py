"""Mean-field losses: each class is seen through one learned point, its mean field, in place of its samples.

Furusawa, "Mean Field Theory in Deep Metric Learning", ICLR 2024. The formulas and most defaults are those of the
author's program; the paper itself was not read. Its commands, all for the second loss, give a field_weight of 0 and a
learning rate of the fields 2,000 times the network's.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from methods.distances import cosine_similarity, full_precision, pair_masks
from methods.objectives import contrastive
from methods.proxies import Proxies, ProxySettings
from orchestrator.method import Diagnostics, Embedded, Method, Outputs, Task

Penalty = Callable[[Tensor], Tensor]
"""Of similarities of any shape, each on its own."""


def mean_over_fields(penalties: Tensor) -> Tensor:
    """Mean over classes c of the sum over others c' of the squares of penalties (C, C); zero for no classes."""
    others = penalties.square()
    return (others.sum() - others.diagonal().sum()) / max(1, len(penalties))


def penalty_of_fields(fields: Tensor, penalty: Penalty, least: float = -math.inf) -> Tensor:
    """`mean_over_fields` of penalty(s), s the products (C, C) of unit rows (C, D). Similarities up to `least` have no
    penalty.

    All C^2 / 2 products are computed, with 10,000 classes and 128 samples 39 times as many as between samples and
    classes; some at a time, in memory linear in C. The gradient is of the pairs beyond `least` only.
    """
    fields = fields.to(torch.promote_types(fields.dtype, torch.float32))
    return cast(Tensor, _OverFields.apply(fields, penalty, least))


class _OverFields(torch.autograd.Function):
    """Computed with its gradient by blocks of rows, each with the columns from its own
    on; on a CPU of the pairs that count, as long as these are few."""

    BLOCK, BLOCK_ON_ACCELERATOR = 2**21, 2**25
    """Products at a time."""
    CROWD = 1 / 64  # a larger share of pairs that count is not listed

    @staticmethod
    def forward(ctx: Any, fields: Tensor, penalty: Penalty, least: float) -> Tensor:
        total, gradient = fields.new_zeros(()), torch.zeros_like(fields)
        on_cpu = fields.device.type == "cpu"  # elsewhere a list would be waited for
        block = _OverFields.BLOCK if on_cpu else _OverFields.BLOCK_ON_ACCELERATOR
        size = max(1, block // max(1, len(fields)))
        for start in range(0, len(fields), size):
            own, others = fields[start : start + size], fields[start:]
            with full_precision(fields.device):
                products = own @ others.T
            products.masked_fill_(torch.ones_like(products, dtype=torch.bool).tril_(), -math.inf)  # each pair once
            counted = products > least
            if on_cpu and counted.sum() <= _OverFields.CROWD * counted.numel():
                i, j = counted.nonzero(as_tuple=True)
                value, slope = _square(products[i, j], penalty)
                total += value.sum()
                gradient[start : start + size].index_add_(0, i, slope[:, None] * others[j])
                gradient[start:].index_add_(0, j, slope[:, None] * own[i])
                continue
            value, slope = _square(products, penalty)
            total += torch.where(counted, value, 0).sum()
            slope = torch.where(counted, slope, 0)
            with full_precision(fields.device):
                gradient[start : start + size].addmm_(slope, others)
                gradient[start:].addmm_(slope.T, own)
        share = 2 / max(1, len(fields))
        ctx.save_for_backward(fields, gradient.mul_(share))
        ctx.penalty = penalty
        return share * total

    @staticmethod
    def backward(ctx: Any, on_total: Tensor) -> tuple[Tensor, None, None]:
        fields, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # by plain operations, to be differentiated again
            total = mean_over_fields(ctx.penalty(cosine_similarity(fields, fields)))
            (gradient,) = torch.autograd.grad(total, fields, create_graph=True)
        return gradient * on_total, None, None


def _square(similarity: Tensor, penalty: Penalty) -> tuple[Tensor, Tensor]:
    """Squares of penalties, and their derivatives."""
    with torch.enable_grad():
        similarity = similarity.detach().requires_grad_()
        value = penalty(similarity).square()
        (slope,) = torch.autograd.grad(value.sum(), similarity)
    return value.detach(), slope


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
    its own classes as c'. Memory is (n, C). Furusawa, ICLR 2024, by the released code.
    """
    count, present = positive.sum(0).clamp(min=1), positive.any(0)
    pulled = torch.where(positive, -alpha * (similarity - base), -torch.inf).exp().sum(0) / count
    samples, classes = positive.nonzero(as_tuple=True)
    # a pair of classes without samples adds nothing: rows are the n classes that have some
    seen, rows = torch.unique(classes, return_inverse=True)
    logits = torch.where(negative[samples], beta * (similarity[samples] - base), -torch.inf)
    none = similarity.new_zeros(len(seen), len(count))
    # q is e^highest times what is summed, highest the largest logit but at least 0: no sum with the 1 is empty
    highest = none.scatter_reduce(0, rows[:, None].expand_as(logits), logits.detach(), "amax")
    pushed = none.index_add(0, rows, (logits - highest[rows]).exp() / count[classes, None])
    highest_back, pushed_back = (none.index_copy(1, seen, way[:, seen].T) for way in (highest, pushed))
    both = torch.maximum(highest, highest_back)
    sums = pushed * (highest - both).exp() + pushed_back * (highest_back - both).exp()
    repulsion = (both + torch.log((-both).exp() + sums)).scatter(1, seen[:, None], 0)
    orders = 2 - present.to(repulsion.dtype)  # of two classes with samples, each has a row
    repulsion = (repulsion @ orders).sum() / (2 * beta)
    return (torch.log1p(pulled).sum() / alpha + repulsion) / max(1, len(seen))


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

    def similarities(self, outputs: Outputs, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cosines of the batch and the fields (B, C), and the masks (B, C)."""
        to_fields = cosine_similarity(outputs["embedding"], self.fields())
        return to_fields, *pair_masks(labels, self.fields.labels, same=False)

    def apart(self, penalty: Penalty, least: float) -> Tensor:
        """What keeps the fields apart, as `penalty_of_fields`, weighted."""
        weight = self.config.field_weight
        return weight * penalty_of_fields(self.fields(), penalty, least) if weight else self.fields.weight.new_zeros(())

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """`proxy_similarity`, the cosines of the mean fields."""
        return Diagnostics(arrays=self.fields.similarities())


class MeanFieldContrastive(MeanField):
    """Mean-field contrastive loss: the contrastive loss between samples and the mean fields of the classes.

    L = mean over samples i of ([d_iy - pos_margin]+ + sum over c != y of [neg_margin - d_ic]+) + field_weight mean over
    classes c of sum over c' != c of [neg_margin - d_cc']+^2, d = 1 - cosine, d_cc' that of two mean fields. With a
    field_weight time grows with the square of the classes.
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
        to_fields, *masks = self.similarities(outputs, labels)
        pairs = contrastive(
            1 - to_fields, *masks, pos_margin=config.pos_margin, neg_margin=config.neg_margin, average="query"
        )
        apart = self.apart(lambda s: (config.neg_margin - 1 + s).relu(), 1 - config.neg_margin)
        return {"pairs": pairs, "fields": apart}


class MeanFieldMultiSimilarity(MeanField):
    """Mean-field class-wise multi-similarity loss: as multi-similarity, between classes by way of their mean fields.

    L = 1 / (alpha n) sum over c of log[1 + p_c] + 1 / (2 beta n) sum over c != c' of log[1 + q_cc' + q_c'c]
      + field_weight mean over c of sum over c' != c of (log[1 + e^(beta (s_cc' - base))] / beta)^2

    p_c = mean over samples i of c of e^(-alpha (s_ic - base)), q_cc' = mean over samples i of c of e^(beta (s_ic' -
    base)), s_ic the cosine of a sample and a mean field, s_cc' of two fields, n the number of classes in the batch.
    With a field_weight time grows with the square of the classes.
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
        to_fields, *masks = self.similarities(outputs, labels)
        pairs = class_wise_multi_similarity(to_fields, *masks, alpha=config.alpha, beta=config.beta, base=config.base)
        # below it the square of a penalty is less than rounding of one at the base
        least = config.base + math.log(torch.finfo(pairs.dtype).eps) / config.beta
        apart = self.apart(lambda s: F.softplus(config.beta * (s - config.base)) / config.beta, least)
        return {"pairs": pairs, "fields": apart}
