"""ArcFace: classification by cosine with an additive margin on the angle to the own class.

Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019.
"""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from methods.baselines import Baseline, ProxyConfig
from methods.proxies import ProxyInit, proxy_init
from methods.reductions import Reduction, negative_log_ratio, objective, reduce_sums


def angular_margin(cosine: Tensor, margin: float) -> Tensor:
    """cos(theta + margin) of cosines s = cos(theta), of any shape; margin in radians, from 0 to pi / 2.

    Where theta + margin > pi the cosine would rise again, so that a sample opposite its class would be pushed further
    away: there it is s - margin sin(margin), as in the authors' code (the paper does not say). It falls with the angle
    on either side, with a step down between them. By cos(theta) cos(margin) - sin(theta) sin(margin), without an arc
    cosine. The slope grows without bound towards s = 1, and times the slope of s on the sphere, sin(theta), stays
    below one; at |s| >= 1 the sine and its gradient are zero, so value and gradient are finite everywhere.
    """
    squared = (1 - cosine) * (1 + cosine)
    inside = squared > 0
    sine = torch.where(inside, torch.where(inside, squared, 1).sqrt(), 0)
    moved = math.cos(margin) * cosine - math.sin(margin) * sine
    return torch.where(cosine > -math.cos(margin), moved, cosine - margin * math.sin(margin))


@objective
def arc_face(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """ArcFace on s = cos(theta) (Q, R): the mean over rows of

        -log( sum_pos e^(scale cos(theta + margin)) / [sum_pos e^(scale cos(theta + margin)) + sum_neg e^(scale s)] )

    with `angular_margin` for cos(theta + margin). The paper's Eq. 3 for one positive per row; several positives (label
    sets, several proxies per class) share the numerator, each with its margin. Rows without positives are left out; a
    row without negatives counts 0 if it has one positive or equal ones. ValueError if the margin is not from 0 to pi/2.

    Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019.
    """
    if not 0 <= margin <= math.pi / 2:
        raise ValueError(f"arc_face: margin must be from 0 to pi / 2, got {margin}")
    with_margin = angular_margin(torch.where(positive, matrix, 0), margin)
    shifted = torch.where(positive, with_margin, matrix)
    return reduce_sums(*negative_log_ratio(shifted, positive, positive | negative, scale), reduction)


class ArcFace(Baseline):
    """ArcFace: classification by cosine, with the angle to the own class widened by a margin.

    L = mean over rows of -log( e^(scale cos(theta_y + margin)) / (e^(scale cos(theta_y + margin)) + sum over other
    proxies of e^(scale cos(theta))) ); theta is the angle between sample and proxy. Where theta_y + margin > pi,
    cos(theta_y) - margin sin(margin) is taken, as in the authors' code.

    It starts slowly: at the paper's scale and margin nearly all samples have the whole loss until their angle is below
    that to other classes by half a radian. `cos_face` is quicker.
    """

    name = "arc_face"
    paper = "Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019"
    latex = r"""
    L = \underset{\text{rows}}{\mathrm{mean}}\,-\log \frac{e^{\mathrm{scale}\,\cos(\theta_y + \mathrm{margin})}}
    {e^{\mathrm{scale}\,\cos(\theta_y + \mathrm{margin})} + \sum_{\text{other proxies}} e^{\mathrm{scale}\,\cos\theta}}
    """
    reads = "similarity"
    function = arc_face

    class Config(ProxyConfig):
        schedulable = frozenset({"scale", "margin", "proxy_lr_multiplier"})
        metric: Literal["cosine"] = Field("cosine", description="of the angle to which the margin is added")
        proxy_init: ProxyInit = proxy_init("randn/100")
        proxy_lr_multiplier: float = Field(1.0, gt=0, description="the proxies' learning rate over the network's")
        scale: float = Field(64.0, gt=0, description="inverse temperature of the softmax, s in the paper")
        margin: float = Field(0.5, ge=0, le=math.pi / 2, description="by how much the own angle is widened, in radians")
