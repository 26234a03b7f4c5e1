"""Sharpness-aware minimisation of any objective: a training step of its own."""

import torch
from pydantic import Field
from torch import Generator, Tensor

from methods.bases import OBJECTIVES, WITHOUT_MEMORY, OverConfig, OverObjective
from orchestrator.method import Batch, Engine, Network, total


def uphill(values: list[Tensor], gradients: list[Tensor], rho: float, *, adaptive: bool = False) -> list[Tensor]:
    """The step from the values w to the steepest point near them, for gradients g of the loss.

        e = rho g / ||g||;  adaptive: e = rho |w|^2 g / || |w| g ||, products entry by entry

    The norm is over all entries together; zeros if it is zero. Foret et al., ICLR 2021, Eq. 2; adaptive: Kwon et al.,
    ASAM, ICML 2021, Eq. 8 with T_w = |w|.
    """
    scaled = [value.abs() * slope if adaptive else slope for value, slope in zip(values, gradients, strict=True)]
    size = torch.stack([part.double().square().sum() for part in scaled]).sum().sqrt()
    factor = torch.where(size > 0, rho / torch.where(size > 0, size, 1), 0)
    steps = [value.abs() * part if adaptive else part for value, part in zip(values, scaled, strict=True)]
    return [(step * factor).to(step.dtype).detach() for step in steps]


class SharpnessAware(OverObjective):
    """Sharpness-aware minimisation: the gradient of an objective at the steepest point near the parameters.

    w <- w - lr grad L(w + e),  e = rho g / ||g||,  g = grad L(w), all parameters together, proxies too; `adaptive`:
    e = rho |w|^2 g / || |w| g ||. The recorded loss is L(w). Each step costs two.
    """

    name = "sharpness_aware"
    paper = "Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021"
    latex = r"""
    w \leftarrow w - \mathrm{lr}\,\nabla L(w + e)

    e = \rho \frac{g}{\left\lVert g\right\rVert}, \quad g = \nabla L(w)

    e_{\mathrm{adaptive}} = \rho \frac{\left|w\right|^2 g}{\left\lVert \left|w\right| g\right\rVert}
    """

    class Config(
        OverConfig,
        over=OBJECTIVES,
        fixed=WITHOUT_MEMORY,
    ):
        rho: float = Field(0.05, gt=0, le=10, description="how far uphill the gradient is taken")
        adaptive: bool = Field(False, description="ASAM: distances relative to each parameter's size")

    config: Config

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        return self.base.step(batch, network, rng)

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        terms = engine.terms(batch)
        parameters, gradients = engine.parameters, engine.gradients(total(terms))
        steps = uphill(
            [value.detach() for value in parameters.values()],
            [gradients[name] for name in parameters],
            self.config.rho,
            adaptive=self.config.adaptive,
        )
        above = {name: value + step for (name, value), step in zip(parameters.items(), steps, strict=True)}
        engine.backward(total(engine.terms(batch, above)))
        engine.apply()
        return terms
