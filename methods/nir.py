"""NIR: an invertible map from each sample to noise, given its class proxy, beside a proxy-based objective.

Roth et al., "Non-isotropy Regularization for Proxy-based Deep Metric Learning", CVPR 2022.
"""

from itertools import pairwise
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from methods.baselines import ProxyAnchor, ProxyNCA
from methods.bases import WITHOUT_MEMORY, OverConfig, OverObjective
from methods.distances import full_precision, pair_masks
from orchestrator.method import Batch, Diagnostics, Embedded, InputError, Network, Task


def non_isotropy(latents: Tensor, log_determinants: Tensor, *, form: Literal["exp", "log"] = "exp") -> Tensor:
    """The regulariser: mean over pairs of e^l ("exp") or of l ("log"), l = ||u||^2 / 2 - log |det du/dz|.

    latents u (N, D) and log_determinants (N,) are a flow's results for N pairs of a sample z and its proxy; l is the
    negative logarithm of the sample's density up to a constant. An attached zero for no pairs. ValueError for another
    form.

    Roth et al., CVPR 2022; "exp" is the released code's form.
    """
    if form not in ("exp", "log"):
        raise ValueError(f'non_isotropy: form must be "exp" or "log", got {form!r}')
    likelihood = latents.square().sum(1) / 2 - log_determinants
    terms = likelihood.exp() if form == "exp" else likelihood
    return terms.sum() / max(1, len(terms))


class Coupling(nn.Module):
    """One invertible step: a fixed permutation, then each half scaled and shifted by what the other half says.

    y1 = x1 e^(s2) + t2, (s2, t2) from (x2, condition), then y2 = x2 e^(s1) + t1, (s1, t1) from (y1, condition), each s
    clamped to clamp 0.636 arctan. `forward(x (N, D), condition (N, K))` -> y (N, D), log |det dy/dx| (N,).

    Kingma and Dhariwal, Glow, NeurIPS 2018, as in the library FrEIA, which the released code uses.
    """

    order: Tensor

    def __init__(self, dim: int, condition: int, depth: int, width: int, clamp: float, seed: int) -> None:
        super().__init__()
        self.first, self.clamp = dim // 2, clamp
        self.register_buffer("order", torch.randperm(dim, generator=Generator().manual_seed(seed)))
        second = dim - self.first
        self.from_first = _layers(self.first + condition, 2 * second, depth, width)
        self.from_second = _layers(second + condition, 2 * self.first, depth, width)

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x[:, self.order].tensor_split([self.first], dim=1)
        first, of_first = self._scale(first, self.from_second(torch.cat([second, condition], dim=1)))
        second, of_second = self._scale(second, self.from_first(torch.cat([first, condition], dim=1)))
        return torch.cat([first, second], dim=1), of_first + of_second

    def _scale(self, x: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = parameters.chunk(2, dim=1)
        scale = self.clamp * 0.636 * torch.atan(scale)
        return x * scale.exp() + shift, scale.sum(1)


def _layers(size: int, results: int, depth: int, width: int) -> nn.Sequential:
    """`depth` linear layers with ReLU between them."""
    sizes = [size, *[width] * (depth - 1), results]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class NonIsotropy(OverObjective):
    """NIR: samples around a proxy are told apart by an invertible map to noise that is given the proxy.

    L = mean over samples z and their proxies p of exp(||u||^2 / 2 - log |det du/dz|) + proxy_weight L_proxy,
    u = f(z; p) with f a chain of coupling blocks, L_proxy ProxyAnchor or ProxyNCA (`objective`).

    `form: log` takes the logarithm of the first term, the negative log-likelihood itself. The flow and the form are
    those of the released code; its proxy_weight is 0.0075 on CUB, 0.01 on Cars196 and 0.3 on SOP, the flow's learning
    rate 50 times the network's 1e-5 and the proxies' 4,000 times (18 degrees a step), after an epoch of warm-up. At
    larger rates the exponential soon overflows. With such a weight the default ten epochs teach little: it is 1 here.
    The logarithm has no lower bound and did not learn on `glyphs-small` (MAP@R 0.04, below the untrained network's
    0.06): the shipped space leaves it out.
    """

    name = "nir"
    paper = "Roth et al., Non-isotropy Regularization for Proxy-based Deep Metric Learning, CVPR 2022"
    latex = r"""
    L = \underset{(z, p)}{\mathrm{mean}}\,
    \exp\left(\frac{\left\lVert u\right\rVert^2}{2} - \log\left|\det\frac{du}{dz}\right|\right)
    + \mathrm{proxy\_weight}\,L_{\mathrm{proxy}}

    u = f(z; p)
    """

    class Config(
        OverConfig,
        over={ProxyAnchor: {"proxy_init": "randn/8"}, ProxyNCA: {"metric": "cosine"}},
        fixed=WITHOUT_MEMORY,
    ):
        earlier = {"proxy_weight": 0.01}  # noqa: RUF012
        proxy_weight: float = Field(1.0, gt=0, description="weight of the proxy-based loss; 0.0075 to 0.3 as released")
        form: Literal["exp", "log"] = Field("exp", description="of the likelihood term: as released, or its logarithm")
        flow_lr_multiplier: float = Field(1.0, gt=0, description="the flow's learning rate over the network's")
        blocks: int = Field(5, ge=1, le=100, description="coupling blocks of the flow")
        depth: int = Field(8, ge=1, le=100, description="linear layers of each network in a block")
        width: int = Field(128, ge=1, le=10_000, description="width of these layers")
        clamp: float = Field(2.0, gt=0, description="bound on the logarithm of a block's scaling")

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        if task.embedding_dim < 2:
            raise InputError(f"nir: embedding_dim should be at least 2, not {task.embedding_dim}")
        size = task.embedding_dim
        settings = (config.depth, config.width, config.clamp)
        self.flow = nn.ModuleList(Coupling(size, size, *settings, seed) for seed in range(config.blocks))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        flow = {"params": list(self.flow.parameters()), "lr": lr * self.config.flow_lr_multiplier}
        return [*super().parameter_groups(lr), flow]

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        outputs = network(batch.images)
        proxies = self.base.proxies
        positive, _ = pair_masks(batch.labels, proxies.labels, same=False)
        samples, own_proxies = positive.nonzero(as_tuple=True)
        with full_precision(positive.device):
            condition = proxies()[own_proxies]
            latents = outputs["embedding"].to(condition.dtype)[samples]
            total = latents.new_zeros(len(latents))
            for block in self.flow:
                latents, log_determinant = block(latents, condition)
                total = total + log_determinant
        return {
            "non_isotropy": non_isotropy(latents, total, form=self.config.form),
            "proxy": self.config.proxy_weight * self.base.compare(outputs, batch.labels, rng),
        }

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """`proxy_diagnostics` of the last batches."""
        return self.base.diagnostics(trained, held_out)
