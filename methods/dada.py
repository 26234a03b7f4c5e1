"""DADA: discriminators learn to tell samples from their proxies; the embedding and the proxies learn to mislead them.

Ren et al., "Towards Improved Proxy-based Deep Metric Learning via Data-Augmented Domain Adaptation", AAAI 2024. The
formulas are those of the authors' program; the paper itself was not read.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor, nn

from methods.baselines import NormalizedSoftmax, ProxyAnchor, ProxyNCA
from methods.bases import OverConfig
from methods.distances import full_precision
from methods.proxies import optimizer_groups
from orchestrator.method import Batch, Engine, Method, Network, Task, total


class Discriminator(nn.Module):
    """Linear layers of these sizes; between them, and after the last one if wanted, normalisation by the batch's own
    mean and variance, and between them ReLU and dropout too. `forward` draws what is dropped from `rng`."""

    def __init__(self, sizes: Sequence[int], dropout: float, normalized_last: bool) -> None:
        super().__init__()
        self.dropout, self.last = dropout, len(sizes) - 2
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        normalized = sizes[1:] if normalized_last else sizes[1:-1]
        self.gains = nn.ParameterList(torch.ones(size) for size in normalized)
        self.shifts = nn.ParameterList(torch.zeros(size) for size in normalized)

    def forward(self, x: Tensor, rng: Generator) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number < len(self.gains):
                x = torch.batch_norm(x, self.gains[number], self.shifts[number], None, None, True, 0.0, 1e-5, True)
            if number < self.last:
                x = F.relu(x)
                if self.dropout:
                    mask = torch.rand(x.shape, generator=rng, device=rng.device) >= self.dropout
                    x = x * mask.to(x.device) / (1 - self.dropout)
        return x


def nuclear_discrepancy(own: Tensor, other: Tensor) -> Tensor:
    """(||softmax(own)||_* - ||softmax(other)||_*) / B of logits (B, C), || ||_* the sum of the singular values.

    These are the roots of the eigenvalues of the smaller Gram matrix, in float64, which has the digits of a float32
    matrix's singular values in a fraction of their decomposition's time. Those below rounding count as much as it does,
    without a gradient.
    """
    shares = torch.stack([own, other]).softmax(2).double()
    gram = shares @ shares.mT if shares.shape[1] <= shares.shape[2] else shares.mT @ shares
    eigenvalues = torch.linalg.eigvalsh(gram)
    rounding = eigenvalues[:, -1:].detach() * (gram.shape[1] * torch.finfo(gram.dtype).eps)
    norms = eigenvalues.clamp(min=rounding).sqrt().sum(1)
    difference: Tensor = norms[0] - norms[1]
    return (difference / max(1, len(own))).to(own.dtype)


class DADA(Method):
    """DADA: discriminators tell samples from proxies, which the embedding and the proxies make hard for them.

    L_discriminators = (1 - r) L_U + r (2 L_V - discrepancy W)
    L = proxy_weight L_proxy + weight (r (2 L_V + discrepancy W) - (1 - r) L_U)

    U tells three domains apart: L_U is the sum of its cross-entropies on the samples z, on mixtures (1 - m) z + m p
    with their proxies, and on these p. V tells the classes: L_V is its cross-entropy on z, W the difference of the
    nuclear norms of its softmax on z and on other mixtures, over B (`nuclear_discrepancy`). m is drawn from Beta(
    mix_alpha, mix_beta), once per batch and kind of mixture, which is brought to unit length. L_proxy is the objective.

    For each batch the discriminators make `discriminator_steps` steps, on embeddings that are held, then the embedding
    and the proxies make one. The released code mixes before it normalises, for which its embeddings and proxies have
    lengths of their own; here unit rows are mixed. Its network is that of `layer_norm: embedding`. Left out: its first
    epoch, in which the discriminators train alone, mixtures of samples of a class, and two sharpnesses of ProxyAnchor.
    Its learning rates are 4 (discriminators) and 330 times (proxies) the network's, r from 0.005 to 0.05, the mixtures'
    parameters 2 and 1 on Cars196; `normalized_classes` is true on CUB and In-Shop. Time is that of training the
    discriminators: with 128 samples of 512 numbers 1.7 billion multiplications a batch with 100 classes, 5.6 billion
    with 10,000, where ProxyAnchor has 20 million and 2 billion.
    """

    name = "dada"
    paper = (
        "Ren et al., Towards Improved Proxy-based Deep Metric Learning via Data-Augmented Domain Adaptation, AAAI 2024"
    )
    latex = r"""
    L_{\mathrm{discriminators}} = (1 - r)\,L_U + r\,(2 L_V - \mathrm{discrepancy}\,W)

    L = \mathrm{proxy\_weight}\,L_{\mathrm{proxy}}
    + \mathrm{weight}\,\left(r\,(2 L_V + \mathrm{discrepancy}\,W) - (1 - r)\,L_U\right)
    """
    expected_failures: ClassVar[Mapping[str, str]] = {
        "permutation": "what the discriminators drop is drawn in the order of the batch"
    }

    class Config(
        OverConfig,
        over={
            ProxyAnchor: {"proxy_init": "randn/8"},
            ProxyNCA: {"metric": "cosine"},
            NormalizedSoftmax: {"proxy_init": "randn/8"},
        },
        fixed=("references", "memory_size", "memory_start", "proxies_per_class"),
    ):
        proxy_weight: float = Field(0.0075, gt=0, description="weight of the objective on proxies")
        weight: float = Field(1.0, gt=0, description="weight of what the discriminators say, gamma")
        class_share: float = Field(0.01, ge=0, le=1, description="share r of the one that tells classes")
        discrepancy: float = Field(0.5, ge=0, description="weight of the nuclear norms")
        mix_alpha: float = Field(2.0, gt=0, description="first parameter of the mixtures' Beta distribution")
        mix_beta: float = Field(1.0, gt=0, description="second parameter of it")
        discriminator_steps: int = Field(3, ge=1, le=1000, description="steps of the discriminators per batch")
        discriminator_lr_multiplier: float = Field(4.0, gt=0, description="their learning rate over the network's")
        discriminator_weight_decay: float | None = Field(
            None, ge=0, description="their weight decay; null: the training's"
        )
        width: int = Field(512, ge=1, le=65_536, description="their first hidden layer")
        class_width: int = Field(128, ge=1, le=65_536, description="the second one, of the one that tells classes")
        normalized_classes: bool = Field(False, description="normalise its last layer by the batch too")
        dropout: float = Field(0.5, ge=0, lt=1, description="dropout in the one that tells classes")

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.base, size = config.base_objective(task), task.embedding_dim
        domains = Discriminator([size, config.width, 3], 0.0, normalized_last=True)
        classes = Discriminator(
            [size, config.width, config.class_width, task.num_classes], config.dropout, config.normalized_classes
        )
        self.discriminators = nn.ModuleDict({"domains": domains, "classes": classes})

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        config, parameters = self.config, list(self.discriminators.parameters())
        discriminators = optimizer_groups(
            parameters, lr * config.discriminator_lr_multiplier, config.discriminator_weight_decay
        )
        return [*self.base.parameter_groups(lr), *discriminators]

    def _terms(self, embeddings: Tensor, labels: Tensor, rng: Generator, *, sign: int) -> dict[str, Tensor]:
        """What the discriminators minimise (sign 1), or the embedding and the proxies (sign -1)."""
        config, proxies = self.config, self.base.proxies()[labels]
        if sign == 1:  # the proxies are held too: a gradient of theirs would be added to that of their own step
            proxies = proxies.detach()
        z = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        seed = int(torch.randint(2**62, (), generator=rng))
        shares = np.random.default_rng(seed).beta(config.mix_alpha, config.mix_beta, size=2).tolist()
        dropping = self.generator_on(rng, z.device)
        mixed = [F.normalize(torch.lerp(z, proxies, m), dim=1) for m in shares]
        unit, by_class = self.discriminators["domains"], self.discriminators["classes"]
        with full_precision(z.device):
            verdicts = [
                F.cross_entropy(unit(rows, dropping), torch.full_like(labels, domain))
                for domain, rows in enumerate((z, mixed[0], proxies))
            ]
            logits, of_mixed = by_class(z, dropping), by_class(mixed[1], dropping)
            apart = config.discrepancy * nuclear_discrepancy(logits, of_mixed)
        classes = config.class_share * (2 * F.cross_entropy(logits, labels) - sign * apart)
        return {"classes": classes, "domains": sign * (1 - config.class_share) * torch.stack(verdicts).sum()}

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        outputs, weight = network(batch.images), self.config.weight
        terms = self._terms(outputs["embedding"], batch.labels[:, 0], rng, sign=-1)
        objective = self.config.proxy_weight * self.base.compare(outputs, batch.labels, rng)
        return {"proxy": objective, **{name: weight * term for name, term in terms.items()}}

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        discriminator_names = [name for name in engine.parameters if name.startswith("method.discriminators.")]
        with torch.no_grad():
            embeddings = engine.outputs(batch.images)["embedding"]
        for _ in range(self.config.discriminator_steps):
            engine.backward(total(self._terms(embeddings, batch.labels[:, 0], engine.rng, sign=1)))
            engine.apply(only=discriminator_names)
        terms = engine.terms(batch)
        engine.backward(total(terms))
        engine.apply(only=engine.parameters.keys() - discriminator_names)
        return terms
