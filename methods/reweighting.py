"""Sample weights that help a clean batch: learned at each step through a virtual one."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from methods.baselines import Contrastive, MultiSimilarity, NormalizedSoftmax
from methods.bases import WITHOUT_MEMORY, OverConfig
from methods.distances import full_precision
from methods.row_weights import RowWeights
from orchestrator.method import Batch, Engine, Task, total


def helping(slopes: Tensor) -> Tensor:
    """Weights (B,) from the slopes (B,) of the clean loss on them: [-slope]+, brought to sum 1, or zeros. Ren et al.,
    Eq. 8 and 9."""
    weights = (-slopes).clamp(min=0)
    whole = weights.sum()
    return torch.where(whole > 0, weights / torch.where(whole > 0, whole, 1), 0)


class Reweighting(RowWeights, abstract=True):
    """Weights from a clean batch; `step` alone weighs all alike."""

    expected_failures: ClassVar[Mapping[str, str]] = {
        "caching": "it takes gradients of gradients, for which all images must pass the network at once"
    }

    class Config(
        OverConfig,
        over={NormalizedSoftmax: {"temperature": 0.1}, MultiSimilarity: {}, Contrastive: {}},
        fixed=WITHOUT_MEMORY,
    ):
        meta_share: float = Field(0.1, gt=0, lt=1, description="share of each class's images held back as clean ones")
        virtual_lr: float = Field(0.01, gt=0, description="length of the virtual step, a learning rate")

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self._weights: Tensor | None = None

    def weights(self, shares: Tensor, batch: Batch) -> Tensor:
        return torch.full_like(shares, 1 / len(shares)) if self._weights is None else self._weights.to(shares.dtype)

    def virtual(self, batch: Batch, engine: Engine, names: list[str]) -> dict[str, Tensor]:
        """These parameters after a plain gradient step on the weighed batch, with the step's graph."""
        parameters = {name: engine.parameters[name] for name in names}
        slopes = engine.gradients(total(engine.terms(batch)), parameters, create_graph=True)
        return {name: value - self.config.virtual_lr * slopes[name] for name, value in parameters.items()}


class LearningToReweight(Reweighting):
    """Learning to reweight: samples weigh as much as a step on them would help a clean batch.

    L = sum over samples i of w_i l_i, w_i = [-dM/de_i]+ over their sum, at e = 0; M is the clean batch's mean loss
    after the virtual step w <- w - virtual_lr grad sum_i e_i l_i, and l_i the image's share of the objective, by
    default a softmax over class proxies. The clean images are a share of the training's, without label noise. Each step
    costs about three. It starts slowly: samples on which a step would not help the clean batch weigh nothing, and the
    sum of the others' weights is one.
    """

    name = "learning_to_reweight"
    paper = "Ren et al., Learning to Reweight Examples for Robust Deep Learning, ICML 2018"
    latex = r"""
    L = \sum_i w_i l_i

    w_i = \frac{[-\partial M / \partial e_i]_+}{\sum_j [-\partial M / \partial e_j]_+} \quad \text{at } e = 0

    w \leftarrow w - \mathrm{virtual\_lr}\,\nabla \sum_i e_i l_i \quad \text{before } M
    """

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        assert batch.meta is not None
        weights_before = torch.zeros(
            len(batch.labels), dtype=torch.float64, device=batch.labels.device
        ).requires_grad_()
        try:
            self._weights = weights_before
            virtual = self.virtual(batch, engine, list(engine.parameters))
            self._weights = None
            clean = total(engine.terms(batch.meta, virtual))
            self._weights = helping(engine.gradients(clean, {"weights": weights_before})["weights"])
            terms = engine.terms(batch)
        finally:
            self._weights = None
        engine.backward(total(terms))
        engine.apply()
        return terms


class MetaWeightNet(Reweighting):
    """Meta-Weight-Net: a small network says from its loss how much a sample weighs, and learns it from a clean batch.

    L = mean over samples of V(l_i) l_i, V a network of one hidden layer with a sigmoid at its end, l_i the image's
    share of the objective, by default a softmax over class proxies. Before each step, V descends the clean batch's mean
    loss after the virtual step w <- w - virtual_lr grad L. The clean images are a share of the training's, without
    label noise.
    """

    name = "meta_weight_net"
    paper = "Shu et al., Meta-Weight-Net: Learning an Explicit Mapping For Sample Weighting, NeurIPS 2019"
    latex = r"""
    L = \underset{i}{\mathrm{mean}}\,V(l_i)\,l_i

    w \leftarrow w - \mathrm{virtual\_lr}\,\nabla L \quad \text{before each step of } V
    """

    class Config(Reweighting.Config):
        hidden: int = Field(100, ge=1, le=100_000, description="units of the weighing network's hidden layer")
        weigher_lr_multiplier: float = Field(
            1.0, gt=0, description="the weighing network's learning rate over the network's"
        )

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.weigher = nn.Sequential(nn.Linear(1, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 1), nn.Sigmoid())
        self._clean = False

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        group = {"params": list(self.weigher.parameters()), "lr": lr * self.config.weigher_lr_multiplier}
        return [*super().parameter_groups(lr), group]

    def weights(self, shares: Tensor, batch: Batch) -> Tensor:
        if self._clean:
            return super().weights(shares, batch)
        losses = shares.detach().to(next(self.weigher.parameters()).dtype)
        with full_precision(losses.device):
            weights: Tensor = self.weigher(losses[:, None])[:, 0] / len(shares)
        return weights.to(shares.dtype)

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        assert batch.meta is not None
        weigher_names = [name for name in engine.parameters if name.startswith("method.weigher.")]
        others = [name for name in engine.parameters if name not in weigher_names]
        virtual = self.virtual(batch, engine, others)
        self._clean = True
        try:
            clean = total(engine.terms(batch.meta, virtual))
        finally:
            self._clean = False
        for name, slope in engine.gradients(clean, {name: engine.parameters[name] for name in weigher_names}).items():
            engine.parameters[name].grad = slope
        engine.apply(weigher_names)
        terms = engine.terms(batch)
        engine.backward(total(terms))
        engine.apply(others)
        return terms
