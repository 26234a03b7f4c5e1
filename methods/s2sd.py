"""S2SD: wider embeddings of the same image, trained beside its own, teach it their similarities.

Roth et al., "Simultaneous Similarity-based Self-Distillation for Deep Metric Learning", ICML 2021.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator, model_validator
from torch import Generator, Tensor, nn

from methods.baselines import Baseline, Contrastive, MultiSimilarity, NormalizedSoftmax, ProxyAnchor
from methods.bases import WITHOUT_MEMORY, OverConfig
from methods.derivatives import once
from methods.distances import cosine_similarity
from orchestrator.method import Batch, Method, Network, Outputs, Task, unit

WIDEST = 2048
MULTI = MultiSimilarity.name
RELEASED_BETA = 40.0


def similarity_divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """How far the similarities of unit rows (B, D) are from those of the teacher's (B, K), which have no gradient:

        T^2 mean over i of KL(softmax_j(t_ij / T) || softmax_j(s_ij / T)),  s and t the cosines, i itself among the j

    The teacher is held, so that it can be differentiated once. ValueError if the temperature T is not above 0.

    Roth et al., ICML 2021, by the released code.
    """
    if not temperature > 0:
        raise ValueError(f"similarity_divergence: temperature must be above 0, got {temperature}")
    teacher = teacher.detach()
    student_log, teacher_log = (
        (cosine_similarity(rows, rows) / temperature).log_softmax(1) for rows in (student, teacher)
    )
    divergence = temperature**2 * (teacher_log.exp() * (teacher_log - student_log)).sum() / max(1, len(student))
    return once(divergence, student, what="similarity_divergence")


class WhileTraining(nn.Sequential):
    """Layers that are not run in evaluation, where their output has no columns: (N, 0)."""

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            return features[:, :0]
        for layer in self:
            features = layer(features)
        return features


def widths(config: "S2SD.Config", task: Task) -> list[int]:
    """The sizes of the auxiliary embeddings."""
    if config.widths is not None:
        return [int(width) for width in config.widths.split(",")]
    widest = max(WIDEST, task.embedding_dim)
    return list(dict.fromkeys(min(widest, factor * task.embedding_dim) for factor in (4, 8, 12, 16)))


class S2SD(Method):
    """S2SD: an objective on wider embeddings too, whose similarities within the batch teach the embedding.

    L = (L_0 + mean over k of L_k) / 2 + weight mean over k of D_k + features_weight D_f, L_0 the objective on the
    embedding, L_k that on the k-th auxiliary one, with proxies of its own; D = T^2 mean over images i of
    KL(softmax_j(t_ij / T) || softmax_j(s_ij / T)), s the cosines of embeddings, t those of the auxiliary ones, and for
    D_f those of the pooled features, without a gradient to t.

    An auxiliary embedding is a head of two linear layers with a ReLU between, as wide as the embedding it gives, on the
    pooled features; none is computed but in training. All this is read from the released code, and the defaults are its
    own: its 512, 1024, 1536 and 2048 stand beside an embedding of 128, as `widths` do by default. Its multi-similarity
    has beta 40, and is the mean over the images for which mining keeps pairs; with `formula: printed` it is that of
    `multi_similarity`, over the whole batch. Its sum of maximum and average pooling for the heads is the setting
    `pooling` here, which the embedding then has too.
    """

    name = "s2sd"
    paper = "Roth et al., Simultaneous Similarity-based Self-Distillation for Deep Metric Learning, ICML 2021"
    latex = r"""
    L = \frac{1}{2} \left(L_0 + \underset{k}{\mathrm{mean}}\,L_k\right)
    + \mathrm{weight}\,\underset{k}{\mathrm{mean}}\,D_k + \mathrm{features\_weight}\,D_f

    D = T^2\,\underset{i}{\mathrm{mean}}\,\mathrm{KL}\left(\mathrm{softmax}_j(t_{ij} / T)
    \,\|\, \mathrm{softmax}_j(s_{ij} / T)\right)
    """
    expected_failures: ClassVar[Mapping[str, str]] = {
        "without_positives": "the auxiliary embeddings teach the embedding without labels, and the check moves it alone"
    }

    class Config(
        OverConfig,
        over={MultiSimilarity: {"beta": RELEASED_BETA}, Contrastive: {}, NormalizedSoftmax: {}, ProxyAnchor: {}},
        fixed=WITHOUT_MEMORY,
    ):
        earlier: ClassVar[Mapping[str, Any]] = {"formula": "printed"}
        widths: str | None = Field(
            None,
            description="sizes of the auxiliary embeddings, separated by commas; null: 4, 8, 12 and 16 times the "
            f"embedding's, none above {WIDEST}",
        )
        distillation_weight: float = Field(50.0, ge=0, description="weight of what the auxiliary embeddings teach")
        distillation_temperature: float = Field(1.0, gt=0, description="temperature T of the similarities")
        formula: Literal["printed", "released"] = Field(
            "released",
            description="multi_similarity with beta 40, over the images that keep pairs; or beta 50, over the batch",
        )
        features_weight: float = Field(0.0, ge=0, description="weight of what the pooled features teach; the code's 50")
        features_start: int = Field(1000, ge=0, description="steps before the pooled features teach")

        @model_validator(mode="before")
        @classmethod
        def _apply_printed(cls, given: Any) -> Any:
            if not isinstance(given, dict) or given.get("formula") != "printed" or given.get("beta") is not None:
                return given
            default = MultiSimilarity.Config.model_fields["beta"].default
            return {**given, "beta": default} if given.get("objective", MULTI) == MULTI else given

        @field_validator("widths")
        @classmethod
        def _several(cls, value: str | None) -> str | None:
            if value and not all(part.strip().isdecimal() and 0 < int(part) <= 10**5 for part in value.split(",")):
                raise ValueError("should be whole numbers from 1 to 100000, separated by commas, as in 512,1024")
            return value or None

        def idle(self) -> dict[str, tuple[str, ...]]:
            idle = super().idle()
            if self.objective != MULTI:
                idle["formula"] = ("objective",)
            if not self.features_weight:
                idle["features_start"] = ("features_weight",)
                if not self.distillation_weight:
                    idle["distillation_temperature"] = ("distillation_weight", "features_weight")
            return idle

        def idle_within(self, steps: int) -> dict[str, tuple[str, ...]]:
            return {"features_weight": ("features_start",)} if self.features_start >= steps else {}

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.widths = widths(config, task)
        sizes = [task.embedding_dim, *self.widths]
        self.bases = nn.ModuleList(config.base_objective(replace(task, embedding_dim=size)) for size in sizes)

    def heads(self) -> nn.ModuleDict:
        """ "wide_0", "wide_1", ...: the auxiliary embeddings, not yet of unit length; "features": as they are. None has
        columns in evaluation."""
        modules: dict[str, nn.Module] = {}
        for number, width in enumerate(self.widths):
            layers = nn.Linear(self.task.feature_dim, width), nn.ReLU(), nn.Linear(width, width)
            modules[f"wide_{number}"] = WhileTraining(*layers)
        return nn.ModuleDict(modules | ({"features": WhileTraining()} if self.config.features_weight else {}))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [group for base in self.bases for group in base.parameter_groups(lr)]  # type: ignore[operator]

    def _objective(self, base: Baseline, outputs: Outputs, labels: Tensor, rng: Generator) -> Tensor:
        """The objective of one embedding, of the released code where that is another."""
        if self.config.objective != MULTI or self.config.formula == "printed":
            return base.compare(outputs, labels, rng)
        rows = base.compare(outputs, labels, rng, reduction="rows")  # above 0 exactly where mining keeps pairs
        return rows.sum() / (rows > 0).sum().clamp(min=1)

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        config, outputs = self.config, network(batch.images)
        embedding, temperature = outputs["embedding"], config.distillation_temperature
        wide = [unit(outputs[f"wide_{number}"]) for number in range(len(self.widths))]
        losses = [
            self._objective(base, {"embedding": rows}, batch.labels, rng)  # type: ignore[arg-type]
            for base, rows in zip(self.bases, [embedding, *wide], strict=True)
        ]
        taught = [similarity_divergence(embedding, rows, temperature) for rows in wide]
        terms = {
            "loss": losses[0] / 2,
            "auxiliary": torch.stack(losses[1:]).mean() / 2,
            "distillation": config.distillation_weight * torch.stack(taught).mean(),
        }
        if config.features_weight and batch.step >= config.features_start:
            features = unit(outputs["features"].detach())
            terms["features"] = config.features_weight * similarity_divergence(embedding, features, temperature)
        return terms
