"""CosFace: classification by cosine with an additive margin on the own class.

Wang et al., "CosFace: Large Margin Cosine Loss for Deep Face Recognition", CVPR 2018.
"""

from pydantic import Field
from torch import Tensor, where

from methods.baselines import Baseline, Metric, ProxyConfig
from methods.proxies import ProxyInit, proxy_init
from methods.reductions import Reduction, negative_log_ratio, objective, reduce_sums


@objective
def cos_face(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    scale: float = 64.0,
    margin: float = 0.35,
    reduction: Reduction = "mean",
) -> Tensor:
    """CosFace on s (Q, R): the mean over rows of

        -log( sum_pos e^(scale (s - margin)) / [sum_pos e^(scale (s - margin)) + sum_neg e^(scale s)] )

    The paper's Eq. 4 for one positive per row, its class's weight vector of length one; several positives (label sets,
    several proxies per class) share the numerator, each with its margin. Rows without positives are left out; a row
    without negatives counts 0 if it has one positive or equal ones.

    Wang et al., CosFace: Large Margin Cosine Loss for Deep Face Recognition, CVPR 2018.
    """
    shifted = where(positive, matrix - margin, matrix)
    return reduce_sums(*negative_log_ratio(shifted, positive, positive | negative, scale), reduction)


class CosFace(Baseline):
    """CosFace: classification by cosine, in which the own class's cosine must win by a margin.

    L = mean over rows of -log( e^(scale (s_y - margin)) / (e^(scale (s_y - margin)) + sum over other proxies of
    e^(scale s)) ); s is the cosine of sample and proxy.
    """

    name = "cos_face"
    paper = "Wang et al., CosFace: Large Margin Cosine Loss for Deep Face Recognition, CVPR 2018"
    latex = r"""
    L = \underset{\text{rows}}{\mathrm{mean}}\,-\log \frac{e^{\mathrm{scale}\,(s_y - \mathrm{margin})}}
    {e^{\mathrm{scale}\,(s_y - \mathrm{margin})} + \sum_{\text{other proxies}} e^{\mathrm{scale}\,s}}
    """
    reads = "similarity"
    function = cos_face

    class Config(ProxyConfig):
        schedulable = frozenset({"scale", "margin", "proxy_lr_multiplier"})
        metric: Metric = Field("cosine", description="similarity between embeddings")
        proxy_init: ProxyInit = proxy_init("randn/100")
        proxy_lr_multiplier: float = Field(1.0, gt=0, description="the proxies' learning rate over the network's")
        scale: float = Field(64.0, gt=0, description="inverse temperature of the softmax, s in the paper")
        margin: float = Field(0.35, ge=0, le=2, description="by how much the own class's cosine is lowered")
