"""Hyperbolic embeddings (Hyp-ViT): points of a Poincare ball, and a loss of their distances there.

Ermolov et al., "Hyperbolic Vision Transformers: Combining Improvements in Metric Learning", CVPR 2022.
"""

import math

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from methods.distances import euclidean_distance, pair_masks
from orchestrator.method import Method, MethodConfig, Outputs

SHORTEST = 1e-5  # tangent vectors below it are mapped as if of this length, where the map is linear
EDGE = 1 - 1e-3  # the largest norm of a point, as a share of the ball's radius
NONE = -1e30  # in place of logits that do not count; finite, so that a row without any has a gradient


def exponential_map(vectors: Tensor, curvature: float, clip_radius: float) -> Tensor:
    """Points of the Poincare ball of radius 1 / sqrt(c): x = tanh(sqrt(c) |v|) v / (sqrt(c) |v|), the exponential map
    at 0, of tangent vectors v (N, D) shortened to the clip radius r where they are longer. -> (N, D)

    A point lies 2 |v| from the centre. None lies beyond 0.999 of the ball's radius, which r = 2.3 and c = 0.1 keep away
    from (0.62).
    """
    root = math.sqrt(curvature)
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp_min(SHORTEST)
    inside = length.clamp_max(min(clip_radius, math.atanh(EDGE) / root))
    points: Tensor = torch.tanh(root * inside) / (root * length) * vectors
    return points


def hyperbolic_distance(queries: Tensor, references: Tensor, curvature: float) -> Tensor:
    """Distances between points (Q, D) and (R, D) of the Poincare ball: (Q, R).

    d = 2 / sqrt(c) arsinh(sqrt(c) |x - y| / sqrt((1 - c |x|^2) (1 - c |y|^2))), which equals the paper's
    2 / sqrt(c) artanh(sqrt(c) |-x (+) y|) with Moebius addition, and keeps the digits of near points. Where two
    coincide the distance and its gradient are zero.
    """
    q, r = (1 - curvature * rows.square().sum(1) for rows in (queries, references))
    apart = euclidean_distance(queries, references) / (q[:, None] * r).sqrt()
    root = math.sqrt(curvature)
    return torch.asinh(root * apart) * (2 / root)


def hyperboloid(points: Tensor, curvature: float) -> tuple[Tensor, Tensor]:
    """Coordinates (-x0, x) and (x0, x) on the hyperboloid x0^2 - |x|^2 = 1 of points (N, D) of the Poincare ball, both
    (N, D + 1), in float64: products of near points are nearly equal. They are -cosh(sqrt(c) d), d the distance."""
    points = points.double() * math.sqrt(curvature)
    squared = points.square().sum(1, keepdim=True)
    time, space = (1 + squared) / (1 - squared), 2 * points / (1 - squared)
    return torch.cat([-time, space], 1), torch.cat([time, space], 1)


class Hyperbolic(Method):
    """Hyp-ViT: pairwise cross-entropy of distances in hyperbolic space, which also rank what is found.

    L = mean over ordered positive pairs (i, j) of -log(e^(-d_ij / tau) / (e^(-d_ij / tau) + sum over negatives k of i
    of e^(-d_ik / tau))), d the distance in the Poincare ball of curvature -c, where the embedding lies: the exponential
    map at 0 of the network's vector, which is first shortened to the clip radius r. Ermolov et al., 2022.

    Images are ranked by the Lorentz product of their points' coordinates on the hyperboloid, -x0 y0 + x . y =
    -cosh(sqrt(c) d): its order is that of the distances. NMI, maps and diagnostics read the points of the ball.

    This is read from the released code; the paper's text was not at hand. c, r and tau are its defaults; the cosine
    that it takes in place of c of 0 is not here. With two images per class, as it trains SOP and In-Shop, the loss is
    half its sum of both directions. With more (9 on CUB and Cars) it takes two images of each class at a time, in all
    ordered pairs of places, so that a sum over k has two of each other class; here it has all of the batch, whatever
    their order. Its distances add 1e-5 to a denominator; these do not.
    """

    name = "hyperbolic"
    paper = "Ermolov et al., Hyperbolic Vision Transformers: Combining Improvements in Metric Learning, CVPR 2022"
    latex = r"""
    L = \underset{(i, j)}{\mathrm{mean}}\,-\log \frac{e^{-d_{ij} / \tau}}
    {e^{-d_{ij} / \tau} + \sum_k e^{-d_{ik} / \tau}}
    """

    class Config(MethodConfig):
        curvature: float = Field(0.1, gt=0, le=100, description="c; the ball's radius is 1 / sqrt(c)")
        clip_radius: float = Field(2.3, gt=0, description="length r to which the network's vectors are shortened")
        temperature: float = Field(0.2, gt=0, description="tau of the distances")

    config: Config

    def normalize(self, embedding: Tensor) -> Tensor:
        return exponential_map(embedding, self.config.curvature, self.config.clip_radius)

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        points = outputs["embedding"]
        logits = hyperbolic_distance(points, points, self.config.curvature) / -self.config.temperature
        positive, negative = pair_masks(labels, labels, same=True)
        others = logits.masked_fill(~negative, NONE).logsumexp(1, keepdim=True)
        pairs = F.softplus(others - logits)
        return {"loss": torch.where(positive, pairs, 0).sum() / positive.sum().clamp(min=1)}

    def retrieval(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        return hyperboloid(outputs["embedding"], self.config.curvature)
