"""The losses that the papers build on and compare with."""

from typing import Any

from pydantic import Field
from torch import Tensor

from methods import objectives
from methods.proxies import Proxies
from orchestrator.method import Method, MethodConfig, Outputs, Task


class MultiSimilarity(Method):
    """Multi-similarity loss over the pairs of a batch.

    L = (1/B) sum_i { 1/alpha log[1 + sum_pos e^(-alpha (s - base))] + 1/beta log[1 + sum_neg e^(beta (s - base))] }
    over the pairs that mining keeps; s is the cosine similarity. Wang et al., CVPR 2019.
    """

    name = "multi_similarity"
    paper = "Wang et al., Multi-Similarity Loss with General Pair Weighting, CVPR 2019"

    class Config(MethodConfig):
        alpha: float = Field(2.0, gt=0, description="sharpness of the positive pairs")
        beta: float = Field(50.0, gt=0, description="sharpness of the negative pairs")
        base: float = Field(0.5, ge=-1, le=1, description="similarity offset, lambda in the paper")
        epsilon: float | None = Field(0.1, ge=0, description="mining margin; null keeps all pairs")

    config: Config

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        z = outputs["embedding"]
        positive, negative = objectives.pair_masks(labels, labels, same=True)
        similarity = objectives.cosine_similarity(z, z)
        return {"loss": objectives.multi_similarity(similarity, positive, negative, **self.config.model_dump())}


class ProxyAnchor(Method):
    """Proxy-Anchor loss: every proxy is an anchor for the whole batch.

    L = mean over proxies with positives of log[1 + sum_pos e^(-alpha (s - margin))]
      + mean over all proxies of log[1 + sum_neg e^(alpha (s + margin))]; s is the cosine of sample and proxy.
    Kim et al., CVPR 2020.
    """

    name = "proxy_anchor"
    paper = "Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020"

    class Config(MethodConfig):
        alpha: float = Field(32.0, gt=0, description="sharpness")
        margin: float = Field(0.1, ge=0, description="similarity margin")
        proxies_per_class: int = Field(1, ge=1, description="proxies per class M")
        proxy_lr_multiplier: float = Field(100.0, gt=0, description="the proxies' learning rate over the network's")

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.proxies = Proxies(task, config.proxies_per_class)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return self.proxies.group(lr, self.config.proxy_lr_multiplier)

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        positive, negative = objectives.pair_masks(labels, self.proxies.labels, same=False)
        similarity = objectives.cosine_similarity(outputs["embedding"], self.proxies())
        config = self.config
        terms = {"alpha": config.alpha, "margin": config.margin}
        return {"loss": objectives.proxy_anchor(similarity, positive, negative, **terms)}
