"""vMF softmax: images and classes as von Mises-Fisher distributions, each with a concentration of its own.

Scott et al., "von Mises-Fisher Loss: An Exploration of Embedding Geometries for Supervised Learning", ICCV 2021. The
formulas and defaults are those of the authors' program; of the paper only the abstract was read.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor, nn

from methods.distances import cosine_similarity, full_precision, pair_masks
from methods.reductions import any_of, kept_terms, log_sum_exp, reduce_sums
from orchestrator.method import Batch, InputError, Method, MethodConfig, Network, Scope, Task, unit

POINTS = 256  # of the grid on which a distribution of angles is added up
REACH = 8  # how far it goes to both sides of the mode, in standard deviations
TINY = 1e-12


def mean_length(concentration: Tensor, dim: int) -> Tensor:
    """The length of the mean of a von Mises-Fisher distribution in `dim` dimensions, I_(dim/2)(k) / I_(dim/2-1)(k) for
    concentrations k >= 0 of any shape: the mean of the two bounds of Ruiz-Antolin and Segura, 2016."""
    half = (dim - 1) / 2
    bounds = (concentration / (half + (offset**2 + concentration.square()).sqrt()) for offset in (half, half + 1))
    return sum(bounds, torch.zeros_like(concentration)) / 2


def log_normalizer_ratio(squared: Tensor, added: Tensor, dim: int) -> Tensor:
    """log C(k) - log C(sqrt(k^2 + a)), C the normalising constant of a von Mises-Fisher distribution in `dim`
    dimensions, for `squared` k^2 and `added` a >= -k^2, of shapes that broadcast. The integral of `mean_length`."""
    half, total = (dim - 1) / 2, torch.zeros_like(squared)
    added = torch.maximum(added, -squared)
    for offset in (half, half + 1):
        before, after = ((offset**2 + value).sqrt() for value in (squared, squared + added))
        rise = added / (before + after)  # after - before, with its digits
        total = total + rise - half * torch.log1p(rise / (half + before))
    return total / 2


def angles(concentration: Tensor, levels: Tensor, dim: int) -> Tensor:
    """The angles (B, n) to the mean direction below which the shares `levels` (B, n) of von Mises-Fisher distributions
    of concentrations k (B,), k >= 0, lie: their density is sin(t)^(dim-2) e^(k cos t). In float64; the shares are right
    to 3e-4. The gradient on k is that of the angles at these levels."""
    k = concentration.double()[:, None]
    fixed = k.detach().clamp_min(TINY)
    highest = fixed / ((dim - 2) / 2 + (((dim - 2) / 2) ** 2 + fixed.square()).sqrt())  # cosine of the mode
    mode = torch.atan2(((dim - 2) * highest / fixed).sqrt(), highest)
    reach = REACH * (fixed / highest + fixed * highest).rsqrt()
    low, high = (mode - reach).clamp_min(0), (mode + reach).clamp_max(math.pi)
    grid = low + (high - low) * torch.linspace(0, 1, POINTS, dtype=k.dtype, device=k.device)
    logs = torch.xlogy(dim - 2, grid.sin()) + k * grid.cos()
    density = (logs - logs.detach().amax(1, keepdim=True)).exp()
    below = F.pad((density[:, 1:] + density[:, :-1]).cumsum(1), (1, 0))
    below = below / below[:, -1:]
    after = torch.searchsorted(below.detach(), levels.to(below)).clamp(1, POINTS - 1)
    start, end = below.gather(1, after - 1), below.gather(1, after)
    within = (levels - start) / (end - start).clamp_min(torch.finfo(below.dtype).tiny)
    return grid.gather(1, after - 1) + within * (grid[:, 1:2] - grid[:, :1])


def draws(means: Tensor, concentration: Tensor, count: int, rng: Generator) -> Tensor:
    """`count` points of unit length of the von Mises-Fisher distributions about unit rows (B, D), D >= 2, with
    concentrations (B,): (B, count, D), with gradients on both."""
    of: dict[str, Any] = {"dtype": torch.float64, "generator": rng, "device": rng.device}
    levels = torch.rand(len(means), count, **of).to(means.device)
    noise = torch.randn(len(means), count, means.shape[1], **of).to(means)
    turned = angles(concentration, levels, means.shape[1]).to(means.dtype)[:, :, None]
    across = noise - (noise * means[:, None]).sum(2, keepdim=True) * means[:, None]
    return turned.cos() * means[:, None] + turned.sin() * F.normalize(across, dim=2)


def strength(confidence: float, dim: int) -> float:
    """The standard deviation of the entries of a vector whose length is about the concentration at which a mean of
    `mean_length` this confidence is kept in `dim` dimensions."""
    return confidence / (1 - confidence**2) * (dim - 1) / math.sqrt(dim)


class VMFSoftmax(Method):
    """vMF softmax: classification by von Mises-Fisher distributions of the image and of each class.

    L = mean over images i of mean over draws z ~ vMF(mu_i, k_i) of log sum over c of C(k_c) / C(|w_c + beta z|)
      - beta A(k_i) A(k_y) mu_i . mu_y

    k_c is the length and mu_c the direction of class c's weight w_c, k_i and mu_i those of the network's vector before
    it is normalised, times a number that is fixed before the first step; C(k) is the normalising constant and A(k) the
    length of the mean, both approximated. C(k_c) / C(|w_c + beta z|) is the mean of e^(beta z . w) over class c's
    distribution. One over beta is a temperature, which is learned.

    `vmf` is another method: one concentration for all, and centres that are means. Images are ranked by the cosine of
    mu; the released code ranks ten draws of each and takes the mean (of recall at 1, what most of them say). It draws
    by rejection, with a gradient that leaves out the acceptance; here it is that of the distribution's quantiles.
    Several classes of an image share the second term. Memory is B (draws) C numbers, B images and C classes.
    """

    name = "vmf_softmax"
    paper = (
        "Scott et al., von Mises-Fisher Loss: An Exploration of Embedding Geometries for Supervised Learning, ICCV 2021"
    )
    latex = r"""
    L = \underset{i}{\mathrm{mean}}\,\left(\underset{z \sim \mathrm{vMF}(\mu_i, k_i)}{\mathrm{mean}}\,
    \log \sum_c \frac{C(k_c)}{C(\left|w_c + \beta z\right|)} - \beta\,A(k_i)\,A(k_y)\,\mu_i \cdot \mu_y\right)
    """
    reads_raw = True
    expected_failures: ClassVar[Mapping[str, str]] = {"permutation": "points are drawn in the order of the batch"}

    class Config(MethodConfig):
        draws: int = Field(10, ge=1, le=1000, description="points drawn from the distribution of each image")
        confidence: float = Field(0.7, gt=0, lt=1, description="mean length of the distributions at the start, about")
        temperature: float = Field(0.0625, gt=0, description="1 / beta at the start; the code's on Cars196 is 1")
        temperature_lr_multiplier: float = Field(10.0, gt=0, description="its learning rate over the network's")
        proxy_lr_multiplier: float = Field(
            100.0, gt=0, description="the classes' learning rate over the network's; the code's is 1, with SGD"
        )

    config: Config
    scale: Tensor

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        if task.embedding_dim < 2:
            raise InputError(f"embedding_dim: {task.embedding_dim}: vmf_softmax needs 2 at least")
        self.strength = strength(config.confidence, task.embedding_dim)
        self.weight = nn.Parameter(self.strength * torch.randn(task.num_classes, task.embedding_dim))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.temperature)))
        self.register_buffer("scale", torch.ones(()))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        rates = self.config.proxy_lr_multiplier, self.config.temperature_lr_multiplier
        pairs = zip((self.weight, self.log_temperature), rates, strict=True)
        return [{"params": [value], "lr": lr * rate, "weight_decay": 0.0} for value, rate in pairs]

    def begin(self, scope: Scope) -> None:
        """The number that gives the training images, by the untrained network, the classes' concentration."""
        size = scope.embed(None).outputs["raw"].double().abs().mean()
        self.scale.copy_(self.strength / size.clamp_min(TINY))

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        config, dim, raw = self.config, self.task.embedding_dim, network(batch.images)["raw"]
        vectors = (self.scale * raw).to(torch.promote_types(raw.dtype, torch.float32))
        mu, mu_c = (unit(rows) for rows in (vectors, self.weight))
        k, k_c = (torch.linalg.vector_norm(rows, dim=1) for rows in (vectors, self.weight))
        beta = (-self.log_temperature).exp()
        with full_precision(mu.device):
            products = draws(mu, k, config.draws, self.generator_on(rng, mu.device)) @ self.weight.T
        logits = log_normalizer_ratio(k_c.square(), beta.square() + 2 * beta * products, dim)
        logits_here = cosine_similarity(mu * mean_length(k, dim)[:, None], mu_c * mean_length(k_c, dim)[:, None])
        classes = torch.arange(len(self.weight), device=batch.labels.device)
        positive, _ = pair_masks(batch.labels, classes, same=False)
        terms = logits.logsumexp(2).mean(1) - log_sum_exp(beta * logits_here, positive, 1)
        return {"loss": reduce_sums(*kept_terms(terms, any_of(positive, 1)))}
