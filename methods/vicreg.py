"""VICReg: two views of each image, without labels."""

import torch
from pydantic import Field
from torch import Generator, Tensor

from methods.distances import full_precision
from orchestrator.method import Batch, Method, MethodConfig, Network


def invariance(z: Tensor, other: Tensor) -> Tensor:
    """Mean over all entries of (z - z')^2, z and z' (N, D) of two views. The release divides by N D, Eq. 5 prints N."""
    return (z - other).square().mean()


def variance(z: Tensor, target: float = 1.0, epsilon: float = 1e-4) -> Tensor:
    """Mean over dimensions of [target - sqrt(var + epsilon)]+, z (N, D), N >= 2; var divides by N - 1. Eq. 1 and 2."""
    return (target - (z.var(dim=0) + epsilon).sqrt()).relu().mean()


def covariance(z: Tensor) -> Tensor:
    """Sum of the squared covariances of different dimensions, over D; z (N, D), N >= 2, they divide by N - 1. Eq. 3
    and 4."""
    centred = z - z.mean(dim=0)
    with full_precision(z.device):
        products = centred.T @ centred / (len(z) - 1)
    return (products.square().sum() - products.diagonal().square().sum()) / z.shape[1]


class VICReg(Method):
    """VICReg: variance, invariance and covariance of two views' embeddings, without labels.

    L = invariance_weight s(z, z') + variance_weight (v(z) + v(z')) / 2 + covariance_weight (c(z) + c(z')), on
    embeddings z before they are normalised: s the mean squared difference, v the mean of [1 - standard deviation]+ of
    each dimension, c the sum of squared covariances of two dimensions over D. Weights and the factor 1/2 are the
    release's; Eq. 6 prints none. It trains the embedding itself: the paper's expander is left out.
    """

    name = "vicreg"
    paper = "Bardes, Ponce and LeCun, VICReg: Variance-Invariance-Covariance Regularization, ICLR 2022"
    latex = r"""
    L = \mathrm{invariance\_weight}\,s(z, z') + \mathrm{variance\_weight}\,\frac{v(z) + v(z')}{2}
    + \mathrm{covariance\_weight}\,(c(z) + c(z'))
    """
    sampler = "uniform"
    views = 2
    reads_raw = True

    class Config(MethodConfig):
        invariance_weight: float = Field(25.0, ge=0, description="weight of the views' difference")
        variance_weight: float = Field(25.0, ge=0, description="weight of the variance's hinge")
        covariance_weight: float = Field(1.0, ge=0, description="weight of the covariances")

    config: Config

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        config = self.config
        z, other = (network(view)["raw"] for view in batch.views)
        both = torch.stack([variance(z), variance(other)]).mean()
        return {
            "invariance": config.invariance_weight * invariance(z, other),
            "variance": config.variance_weight * both,
            "covariance": config.covariance_weight * (covariance(z) + covariance(other)),
        }
