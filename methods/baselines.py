"""The losses that the papers build on and compare with: an objective over a metric between the batch and references.

One class, `Baseline`, holds what they share; each method below it names its objective, what that reads, and its
hyperparameters. Composed methods (IDML, CCP, Anti-Collapse) take any of them as their base objective (`bases.py`).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from methods import objectives
from methods.covering import mean_covering_radius
from methods.memory import Memory
from methods.pfml import proxy_diagnostics
from methods.proxies import PROXY_SETTINGS, Proxies, ProxyInit, ProxySettings, optimizer_groups, proxy_init
from methods.reductions import Reduction
from orchestrator.method import (
    Batch,
    Diagnostics,
    Embedded,
    InputError,
    Method,
    Network,
    Outputs,
    Task,
)

References = Literal["batch", "proxies", "memory", "batch+memory"]
Metric = Literal["euclidean", "squared_euclidean", "cosine"]

Measure = Callable[[Outputs, Outputs], Tensor]
"""The matrix (Q, R) between the outputs for queries and those for references."""


class ComparisonConfig(ProxySettings):
    """What an objective compares a batch with, and how."""

    references: References = Field("batch", description="what the batch is compared with; memory is XBM's")
    metric: Metric = Field("euclidean", description="distance or similarity between embeddings")
    proxies_per_class: int = Field(
        1, ge=1, le=10_000, description="proxies per class M, where the references are proxies"
    )
    proxy_lr_multiplier: float = Field(100.0, gt=0, description="learning rate of proxies (or beta) over the network's")

    def idle(self) -> dict[str, tuple[str, ...]]:
        names = () if self.references == "proxies" else ("proxies_per_class", *PROXY_SETTINGS)
        return dict.fromkeys(names, ("references",))


class ReferencesConfig(ComparisonConfig):
    """The same with XBM's memory, which all have whose references are free."""

    memory_size: int = Field(1024, ge=1, le=10_000_000, description="embeddings that XBM's memory holds")
    memory_start: int = Field(1000, ge=0, le=1_000_000_000, description="plain steps before XBM's memory is used")

    def idle(self) -> dict[str, tuple[str, ...]]:
        names = () if "memory" in self.references else ("memory_size", "memory_start")
        return super().idle() | dict.fromkeys(names, ("references",))

    def idle_within(self, steps: int) -> dict[str, tuple[str, ...]]:
        unused = "memory" in self.references and self.memory_start >= steps
        return {"memory_size": ("memory_start",)} if unused else {}


class Baseline(Method, abstract=True):
    """An objective over the matrix between the batch and its references.

    `reads` says whether the objective wants distances (d, d^2 or 1 - s) or similarities (s, -d or -d^2). Every field
    of the Config that `ReferencesConfig` does not have is a hyperparameter of `function`.
    """

    reads: ClassVar[Literal["distance", "similarity"]]
    function: ClassVar[Callable[..., Tensor]]
    fused: ClassVar[str | None] = None
    """The loss of `methods.kernels.proxy_losses` that is the objective on proxies."""
    Config: ClassVar[type[ComparisonConfig]] = ReferencesConfig
    config: ComparisonConfig

    def __init__(self, config: ComparisonConfig, task: Task) -> None:
        super().__init__(config, task)
        if config.references == "proxies":
            self.proxies = Proxies(task, config.proxies_per_class, config.proxy_init)
        elif isinstance(config, ReferencesConfig) and config.references != "batch":
            self.memory = Memory(config.memory_size, config.memory_start, task.embedding_dim)
        self._fused: Callable[..., Tensor] | None = None

    def use_kernels(self, kernels: str) -> None:
        """On proxies, by products or their squared distances."""
        config = self.config
        if self.fused is None:
            super().use_kernels(kernels)
            return
        if config.references != "proxies" or config.metric == "euclidean":
            raise InputError(
                f"kernels: {kernels!r}: {self.name} has them for references: proxies and metric: cosine or "
                f"squared_euclidean, not for references: {config.references} and metric: {config.metric}"
            )
        from methods.kernels.proxy_losses import LOSSES

        self._fused = LOSSES[self.fused]

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        rate, parameters = lr * self.config.proxy_lr_multiplier, list(self.parameters())
        if (decay := self.config.proxy_weight_decay) is None or self.config.references != "proxies":
            return optimizer_groups(parameters, rate, None)
        others = [one for one in parameters if one is not self.proxies.weight]
        return optimizer_groups([self.proxies.weight], rate, decay) + optimizer_groups(others, rate, None)

    def _hyperparameters(self, labels: Tensor, rng: Generator) -> dict[str, Any]:
        """What `function` takes besides a matrix and its masks, for these queries' labels (Q, L): by default the
        objective's own fields of the configuration."""
        return {key: value for key, value in self.config.model_dump().items() if key in own_fields(type(self))}

    def objective(
        self,
        matrix: Tensor,
        positive: Tensor,
        negative: Tensor,
        labels: Tensor,
        rng: Generator,
        reduction: Reduction = "mean",
    ) -> Tensor:
        """The scalar of a matrix (Q, R) and its masks; `labels` (Q, L) are the queries'. With reduction="rows" (Q,):
        each query's share, whose mean is the scalar; a TypeError of ProxyAnchor, which has none."""
        arguments = self._hyperparameters(labels, rng) | ({} if reduction == "mean" else {"reduction": reduction})
        return type(self).function(matrix, positive, negative, **arguments)

    def measure(self, queries: Outputs, references: Outputs) -> Tensor:
        """The matrix (Q, R) that the objective reads, by the configured metric on the embeddings."""
        z, r = queries["embedding"], references["embedding"]
        return self.by_metric(lambda: objectives.euclidean_distance(z, r), lambda: objectives.cosine_similarity(z, r))

    def by_metric(self, distance: Callable[[], Tensor], similarity: Callable[[], Tensor]) -> Tensor:
        """The matrix (Q, R) that the objective reads, of distances d or similarities s: d, d^2 or 1 - s, or s, -d or
        -d^2, by the configured metric. Only the one that it needs is called."""
        if self.config.metric == "cosine":
            s = similarity()
            return s if self.reads == "similarity" else 1 - s
        d = distance()
        d = d.square() if self.config.metric == "squared_euclidean" else d
        return d if self.reads == "distance" else -d

    def compare(
        self,
        outputs: Outputs,
        labels: Tensor,
        rng: Generator,
        measure: Measure | None = None,
        reduction: Reduction = "mean",
    ) -> Tensor:
        """The objective of the batch against itself or against the proxies, by `measure` or by its own metric; with
        reduction="rows" of each image (B,), as `objective`."""
        if self._fused is not None and measure is None and reduction == "mean":
            points = outputs["embedding"], labels, self.proxies(), self.proxies.labels
            return self._fused(*points, metric=self.config.metric, **self._hyperparameters(labels, rng))
        measure = measure or self.measure
        if self.config.references == "proxies":
            positive, negative = objectives.pair_masks(labels, self.proxies.labels, same=False)
            return self.objective(
                measure(outputs, {"embedding": self.proxies()}), positive, negative, labels, rng, reduction
            )
        positive, negative = objectives.pair_masks(labels, labels, same=True)
        return self.objective(measure(outputs, outputs), positive, negative, labels, rng, reduction)

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        outputs = network(batch.images)
        if "memory" not in self.config.references:
            return {"loss": self.compare(outputs, batch.labels, rng)}
        terms: dict[str, Tensor] = {}
        labels = batch.labels[:, 0]
        memory_is_used = self.memory.step()
        if not memory_is_used or self.config.references == "batch+memory":
            terms["loss"] = self.compare(outputs, batch.labels, rng)
        if memory_is_used:
            positive, negative = self.memory.pair_masks(labels, batch.samples)
            matrix = self.measure(outputs, {"embedding": self.memory.embeddings})
            terms["memory"] = self.objective(matrix, positive, negative, batch.labels, rng)
            self.memory.push(outputs["embedding"], labels, batch.samples)
        return terms

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """`proxy_diagnostics` of the last batches, on proxies; `mean_covering_radius` of held-out images, as CCP."""
        result = proxy_diagnostics(self.proxies, trained) if self.config.references == "proxies" else Diagnostics()
        if held_out is not None:
            embeddings = held_out.outputs["embedding"]
            result.scalars["mean_covering_radius"] = mean_covering_radius(embeddings, held_out.labels)
        return result


def own_fields(baseline: type[Baseline]) -> list[str]:
    """The names of an objective's own hyperparameters."""
    return [name for name in baseline.Config.model_fields if name not in ReferencesConfig.model_fields]


# On pairs and triplets -------------------------------------------------------------------------------------


class Contrastive(Baseline):
    """Contrastive loss.

    L = mean over positives of [d - pos_margin]+ + mean over negatives of [neg_margin - d]+.
    """

    name = "contrastive"
    paper = "Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006"
    latex = r"""
    L = \underset{\text{positives}}{\mathrm{mean}}\,[d - \mathrm{pos\_margin}]_+
    + \underset{\text{negatives}}{\mathrm{mean}}\,[\mathrm{neg\_margin} - d]_+
    """
    reads = "distance"
    function = objectives.contrastive

    class Config(ReferencesConfig):
        schedulable = frozenset({"pos_margin", "neg_margin"})
        pos_margin: float = Field(0.0, ge=0, description="distance below which positives rest")
        neg_margin: float = Field(0.5, ge=0, description="distance beyond which negatives rest")
        average: Literal["nonzero", "all", "query"] = Field(
            "nonzero", description="what each sum is divided by: its terms above zero, all its pairs, or the queries"
        )


class Triplet(Baseline):
    """Triplet loss.

    L = mean of [d_ap - d_an + margin]+ above zero, over triplets (anchor, positive, negative); semi-hard mining keeps
    the closest negative farther than the positive.
    """

    name = "triplet"
    paper = "Schroff et al., FaceNet: A Unified Embedding for Face Recognition and Clustering, CVPR 2015"
    latex = r"L = \underset{(a, p, n)}{\mathrm{mean}}\,[d_{ap} - d_{an} + \mathrm{margin}]_+ \quad \text{above zero}"
    reads = "distance"
    function = objectives.triplet

    class Config(ReferencesConfig):
        schedulable = frozenset({"margin"})
        margin: float = Field(0.1, ge=0, description="by how much negatives should be farther")
        mining: Literal["semihard", "all"] = Field("semihard", description="which triplets count")


class Margin(Baseline):
    """Margin loss with distance-weighted sampling of negatives.

    L = sum of [d - (beta - alpha)]+ over positives and [(beta + alpha) - d]+ over drawn negatives, divided by the
    number of terms above zero; a negative is drawn per positive, with weight 1/q(d), q the density of distances.
    """

    name = "margin"
    paper = "Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017"
    latex = r"""
    L = \frac{\sum_{\text{positives}} [d - (\beta - \alpha)]_+ + \sum_{\text{drawn negatives}} [(\beta + \alpha) - d]_+}
    {\text{number of terms above zero}}
    """
    expected_failures: ClassVar[Mapping[str, str]] = {"permutation": "negatives are drawn in the order of the batch"}
    reads = "distance"
    function = objectives.margin

    class Config(ReferencesConfig):
        schedulable = frozenset({"alpha"})
        metric: Literal["euclidean"] = Field("euclidean", description="the sampling is that of distances on a sphere")
        beta: float = Field(1.2, gt=0, description="boundary between positives and negatives, at the start")
        alpha: float = Field(0.2, ge=0, description="margin around the boundary")
        learn_beta: Literal["no", "one", "per_class"] = Field(
            "per_class", description="how many boundaries are learned"
        )
        phi: float | None = Field(None, gt=0, description="cap on a negative's weight; null: none")
        phi_form: Literal["relative", "printed"] = Field(
            "relative", description="what phi caps: the weight over the row's largest, or itself as IDML's Eq. 9 prints"
        )

        def idle(self) -> dict[str, tuple[str, ...]]:
            idle = super().idle()
            if self.phi is None:
                idle["phi_form"] = ("phi",)
            if idle.pop("proxy_lr_multiplier", None) and self.learn_beta == "no":
                idle["proxy_lr_multiplier"] = ("references", "learn_beta")
            return idle

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        count = {"no": 0, "one": 1, "per_class": task.num_classes}[config.learn_beta]
        if count:
            self.beta = nn.Parameter(torch.full((count,), config.beta))

    def _hyperparameters(self, labels: Tensor, rng: Generator) -> dict[str, Any]:
        config = self.config
        beta: float | Tensor = config.beta
        if config.learn_beta != "no":
            beta = self.beta[labels[:, 0]] if config.learn_beta == "per_class" else self.beta
        return {
            "dim": self.task.embedding_dim,
            "beta": beta,
            "alpha": config.alpha,
            "phi": math.inf if config.phi is None else config.phi,
            "phi_form": config.phi_form,
            "generator": rng,
        }


class MultiSimilarity(Baseline):
    """Multi-similarity loss.

    L = (1/B) sum_i { 1/alpha log[1 + sum_pos e^(-alpha (s - base))] + 1/beta log[1 + sum_neg e^(beta (s - base))] }
    over the pairs that mining keeps; s is the cosine similarity.
    """

    name = "multi_similarity"
    paper = "Wang et al., Multi-Similarity Loss with General Pair Weighting, CVPR 2019"
    latex = r"""
    L = \frac{1}{B} \sum_i \left\{\frac{1}{\alpha}
    \log\left[1 + \sum_{\text{pos}} e^{-\alpha (s - \mathrm{base})}\right] + \frac{1}{\beta}
    \log\left[1 + \sum_{\text{neg}} e^{\beta (s - \mathrm{base})}\right]\right\}
    """
    reads = "similarity"
    function = objectives.multi_similarity

    class Config(ReferencesConfig):
        schedulable = frozenset({"alpha", "beta", "base"})
        metric: Metric = Field("cosine", description="similarity between embeddings")
        alpha: float = Field(2.0, gt=0, description="sharpness of the positive pairs")
        beta: float = Field(50.0, gt=0, description="sharpness of the negative pairs")
        base: float = Field(0.5, ge=-2, le=1, description="similarity offset, lambda in the paper")
        epsilon: float | None = Field(0.1, ge=0, description="mining margin; null keeps all pairs")


# On proxies ------------------------------------------------------------------------------------------------


class ProxyConfig(ReferencesConfig):
    """That of an objective made for proxies."""

    references: References = Field("proxies", description="what the batch is compared with")
    proxy_lr_multiplier: float = Field(10.0, gt=0, description="the proxies' learning rate over the network's")


class ProxyNCA(Baseline):
    """ProxyNCA: neighbourhood components with class proxies in place of neighbours.

    L = mean over rows of -log( e^(-scale x(z, p_y)) / sum over other proxies of e^(-scale x(z, p)) ), x = d^2 unless
    `metric` says otherwise.
    """

    name = "proxy_nca"
    paper = "Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017"
    latex = r"""
    L = \underset{\text{rows}}{\mathrm{mean}}\,-\log \frac{e^{-\mathrm{scale}\,x(z, p_y)}}
    {\sum_{\text{other proxies}} e^{-\mathrm{scale}\,x(z, p)}}

    x = d^2 \quad \text{by default}
    """
    reads = "distance"
    function = objectives.proxy_nca
    fused = "proxy_nca"

    class Config(ProxyConfig):
        schedulable = frozenset({"scale", "proxy_lr_multiplier"})
        metric: Metric = Field("squared_euclidean", description="distance between embeddings; cosine is 1 - s")
        proxy_init: ProxyInit = proxy_init("randn/8")
        scale: float = Field(1.0, gt=0, description="inverse temperature")
        include_positive: bool = Field(False, description="put positives below the line too")


class ProxyNCAPlusPlus(ProxyNCA):
    """ProxyNCA++: proxy assignment probability at a low temperature.

    L = mean over rows of -log( e^(-scale x(z, p_y)) / sum over all proxies of e^(-scale x(z, p)) ), x = 1 - s unless
    `metric` says otherwise; scale is one over the temperature.
    """

    name = "proxy_nca_plus_plus"
    paper = "Teh et al., ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis, ECCV 2020"
    latex = r"""
    L = \underset{\text{rows}}{\mathrm{mean}}\,-\log \frac{e^{-\mathrm{scale}\,x(z, p_y)}}
    {\sum_{\text{all proxies}} e^{-\mathrm{scale}\,x(z, p)}}

    x = 1 - s \quad \text{by default}
    """

    class Config(ProxyNCA.Config):
        metric: Metric = Field("cosine", description="distance between embeddings; cosine is 1 - s")
        scale: float = Field(10.0, gt=0, description="inverse temperature")
        include_positive: bool = Field(True, description="put positives below the line too")


class ProxyAnchor(Baseline):
    """Proxy-Anchor loss: every proxy is an anchor for the whole batch.

    L = mean over proxies with positives of log[1 + sum_pos e^(-alpha (s - margin))]
      + mean over all proxies of log[1 + sum_neg e^(alpha (s + margin))]; s is the cosine of sample and proxy.
    """

    name = "proxy_anchor"
    paper = "Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020"
    latex = r"""
    L = \underset{\text{proxies with positives}}{\mathrm{mean}}\,
    \log\left[1 + \sum_{\text{pos}} e^{-\alpha (s - \mathrm{margin})}\right]
    + \underset{\text{all proxies}}{\mathrm{mean}}\,
    \log\left[1 + \sum_{\text{neg}} e^{\alpha (s + \mathrm{margin})}\right]
    """
    reads = "similarity"
    function = objectives.proxy_anchor
    fused = "proxy_anchor"

    class Config(ProxyConfig):
        schedulable = frozenset({"alpha", "margin", "proxy_lr_multiplier"})
        metric: Metric = Field("cosine", description="similarity between embeddings")
        proxy_init: ProxyInit = proxy_init("kaiming_fan_out")
        alpha: float = Field(32.0, gt=0, description="sharpness")
        margin: float = Field(0.1, ge=0, description="similarity margin")


class NormalizedSoftmax(Baseline):
    """Normalised softmax: classification by cosine.

    L = mean over rows of the cross-entropy of s/temperature over all proxies; several positives share the numerator.
    """

    name = "normalized_softmax"
    paper = "Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019"
    latex = r"""
    L = \underset{\text{rows}}{\mathrm{mean}}\,-\log \frac{\sum_{\text{pos}} e^{s / \mathrm{temperature}}}
    {\sum_{\text{all proxies}} e^{s / \mathrm{temperature}}}
    """
    reads = "similarity"
    function = objectives.normalized_softmax
    fused = "normalized_softmax"

    class Config(ProxyConfig):
        schedulable = frozenset({"temperature", "proxy_lr_multiplier"})
        metric: Metric = Field("cosine", description="similarity between embeddings")
        proxy_init: ProxyInit = proxy_init("uniform")
        temperature: float = Field(0.05, gt=0, description="temperature of the softmax")


def _soft_triple(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    centres: Tensor,
    centres_per_class: int,
    tau: float,
    **hyperparameters: Any,
) -> Tensor:
    """SoftTriple with its regulariser, of unit centres (C * M, D), class-major."""
    loss = objectives.soft_triple(matrix, positive, negative, centres_per_class=centres_per_class, **hyperparameters)
    return loss + tau * objectives.centre_merging(centres, centres_per_class)


class SoftTriple(Baseline):
    """SoftTriple: a softmax over classes of several centres each, and a pull between centres of one class.

    L = mean over rows of the cross-entropy of la (S_c - margin [c = y]), S_c = sum_m softmax_m(s_cm / gamma) s_cm, plus
    tau / 2 times the mean distance of centres within classes.
    """

    name = "soft_triple"
    paper = "Qian et al., SoftTriple Loss: Deep Metric Learning Without Triplet Sampling, ICCV 2019"
    latex = r"""
    L = \underset{\text{rows}}{\mathrm{mean}}\,-\log \frac{e^{\mathrm{la}\,(S_y - \mathrm{margin})}}
    {e^{\mathrm{la}\,(S_y - \mathrm{margin})} + \sum_{c \ne y} e^{\mathrm{la}\,S_c}}
    + \frac{\tau}{2}\,\underset{c, m < m'}{\mathrm{mean}}\,\left\lVert w_{cm} - w_{cm'}\right\rVert

    S_c = \sum_m \mathrm{softmax}_m(s_{cm} / \gamma)\,s_{cm}
    """
    reads = "similarity"
    function = _soft_triple

    class Config(ComparisonConfig):
        schedulable = frozenset({"la", "gamma", "margin", "tau", "proxy_lr_multiplier"})
        references: Literal["proxies"] = Field("proxies", description="the centres of the classes")
        metric: Metric = Field("cosine", description="similarity between embeddings")
        proxies_per_class: int = Field(10, ge=1, le=10_000, description="centres per class M")
        proxy_init: ProxyInit = proxy_init("kaiming_uniform")
        proxy_lr_multiplier: float = Field(10.0, gt=0, description="the centres' learning rate over the network's")
        la: float = Field(20.0, gt=0, description="inverse temperature")
        gamma: float = Field(0.1, gt=0, description="temperature of the choice among a class's centres")
        margin: float = Field(0.01, ge=0, description="similarity margin")
        tau: float = Field(0.2, ge=0, description="weight of the pull between a class's centres")

    config: Config

    def _hyperparameters(self, labels: Tensor, rng: Generator) -> dict[str, Any]:
        centres = {"centres": self.proxies(), "centres_per_class": self.config.proxies_per_class}
        return super()._hyperparameters(labels, rng) | centres
