"""HIST: a distribution for each class, and a classifier on the hypergraph that they make of the batch.

Lim et al., "Hypergraph-Induced Semantic Tuplet Loss for Deep Metric Learning", CVPR 2022. The formulas are those of the
authors' program; the paper itself was not read. A warm-up of the method's own parameters is a setting of the training.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from methods.distances import full_precision, pair_masks
from methods.reductions import negative_log_ratio, reduce_sums
from orchestrator.method import Method, MethodConfig, Outputs, Task


def class_distances(embeddings: Tensor, means: Tensor, log_variances: Tensor) -> Tensor:
    """Squared Mahalanobis distances d_ic = sum_m (z_im - mu_cm)^2 e^(-v_cm): (B, C).

    Embeddings (B, D), means mu (C, D) and the logarithms v (C, D) of the variances along the axes. Half precision is
    promoted. By products, whose rounding may leave a distance near zero slightly below it.
    """
    dtype = torch.promote_types(torch.promote_types(embeddings.dtype, means.dtype), torch.float32)
    z, mu, precision = embeddings.to(dtype), means.to(dtype), (-log_variances.to(dtype)).exp()
    with full_precision(z.device):
        return z.square() @ precision.T - 2 * z @ (mu * precision).T + (mu.square() * precision).sum(1)


def hypergraph_mean(features: Tensor, incidence: Tensor, counted: Tensor) -> Tensor:
    """A V^(-1/2) H W E^(-1) H^T V^(-1/2) smoothing of features (B, F) over a hypergraph: (B, F).

    H is the incidence (B, C) of nodes in hyperedges, at least 0; W is 1 for the counted ones (C,) and 0 for others; V
    holds the nodes' degrees sum_c W_c H_ic, E those of the hyperedges, sum_i H_ic. A node in no counted hyperedge, and
    a hyperedge without nodes, give 0.

    Feng et al., Hypergraph Neural Networks, AAAI 2019, Eq. 11.
    """
    tiny = torch.finfo(incidence.dtype).tiny
    counted = counted.to(incidence.dtype)
    with full_precision(features.device):
        scale = (incidence @ counted).clamp(min=tiny).rsqrt()[:, None]
        weight = counted / incidence.sum(0).clamp(min=tiny)
        return scale * (incidence @ (weight[:, None] * (incidence.T @ (scale * features))))


class HIST(Method):
    """HIST: a normal distribution for each class, and classes told apart on a hypergraph of semantic tuplets.

    L = mean over i of -log softmax_c(-tau d_ic)[y_i] + tuplet_weight mean over i of -log softmax_c(o_ic)[y_i]

    d_ic is the squared Mahalanobis distance to the class's mean (of unit length) with its variances on the axes,
    e^min(6, max(0, v)). The classes in the batch are hyperedges, each a tuplet of all images: H_ic = 1 for the class's
    own images, else e^(-alpha d_ic). With G = V^(-1/2) H E^(-1) H^T V^(-1/2) over degrees V of images and E of classes,
    o = G (LeakyReLU(BatchNorm(G (z A + a))) B + b). Several classes of an image share the numerators.

    The released network is that of `layer_norm: embedding` and `head_init: kaiming`. Its hypergraph's classifier gets
    the rows before they are brought to unit length; after such a layer normalisation all have the same length, which
    BatchNorm divides out, but for that of a.
    """

    name = "hist"
    paper = "Lim et al., Hypergraph-Induced Semantic Tuplet Loss for Deep Metric Learning, CVPR 2022"
    latex = r"""
    L = \underset{i}{\mathrm{mean}}\,-\log\,\mathrm{softmax}_c(-\tau d_{ic})[y_i]
    + \mathrm{tuplet\_weight}\,\underset{i}{\mathrm{mean}}\,-\log\,\mathrm{softmax}_c(o_{ic})[y_i]

    o = G\,(\mathrm{LeakyReLU}(\mathrm{BatchNorm}(G\,(z A + a)))\,B + b)

    G = V^{-1/2} H E^{-1} H^{\top} V^{-1/2}

    H_{ic} = \begin{cases} 1 & \text{for images of the class} \\ e^{-\alpha d_{ic}} & \text{for others} \end{cases}
    """

    class Config(MethodConfig):
        earlier = {"proxy_lr_multiplier": 100.0}  # noqa: RUF012
        tau: float = Field(32.0, gt=0, description="inverse temperature of the softmax over class distributions")
        alpha: float = Field(0.9, ge=0, description="how fast images of other classes leave a class's tuplet")
        tuplet_weight: float = Field(1.0, ge=0, description="weight of the classification on the hypergraph, lambda_s")
        hidden: int = Field(512, ge=1, le=65_536, description="width of the hypergraph's hidden layer")
        proxy_lr_multiplier: float = Field(
            10.0,
            gt=0,
            description="the distributions' learning rate over the network's; the authors' is 1000, of 1e-4",
        )
        graph_lr_multiplier: float = Field(10.0, gt=0, description="the hypergraph layers' over the network's")

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        deviation = math.sqrt(2 / max(1, task.num_classes))
        self.means = nn.Parameter(deviation * torch.randn(task.num_classes, task.embedding_dim))
        self.log_variances = nn.Parameter(deviation * torch.randn(task.num_classes, task.embedding_dim))
        self.first = nn.Linear(task.embedding_dim, config.hidden)
        self.gain = nn.Parameter(torch.ones(config.hidden))
        self.shift = nn.Parameter(torch.zeros(config.hidden))
        self.second = nn.Linear(config.hidden, task.num_classes)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        graph = [*self.first.parameters(), self.gain, self.shift, *self.second.parameters()]
        return [
            {"params": [self.means, self.log_variances], "lr": lr * self.config.proxy_lr_multiplier},
            {"params": graph, "lr": lr * self.config.graph_lr_multiplier},
        ]

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        config, z = self.config, outputs["embedding"]
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        classes = torch.arange(self.task.num_classes, device=labels.device)
        positive, negative = pair_masks(labels, classes, same=False)
        distance = class_distances(z, F.normalize(self.means, dim=1), F.relu6(self.log_variances))
        proxy_terms = negative_log_ratio(distance, positive, positive | negative, -config.tau)

        (present,) = positive.any(0).nonzero(as_tuple=True)  # other classes are no hyperedges
        incidence = torch.where(positive[:, present], 1.0, (-config.alpha * distance[:, present]).exp())
        counted = torch.ones_like(present, dtype=torch.bool)
        with full_precision(z.device):
            hidden = hypergraph_mean(self.first(z), incidence, counted)
            centred = hidden - hidden.mean(0)
            hidden = centred * (centred.square().mean(0) + 1e-5).rsqrt() * self.gain + self.shift
            logits = hypergraph_mean(self.second(F.leaky_relu(hidden, 0.1)), incidence, counted)
        wrong, _ = negative_log_ratio(logits, positive, positive | negative, 1.0)
        tuplets = reduce_sums(wrong, proxy_terms[1])
        return {"distributions": reduce_sums(*proxy_terms), "tuplets": config.tuplet_weight * tuplets}
