"""vMF: classification by von Mises-Fisher distributions about the classes' mean directions.

Zhe, Chen and Yan, "Directional Statistics-Based Deep Metric Learning for Image Classification and Retrieval", Pattern
Recognition 2019. From its abstract: a loss of von Mises-Fisher distributions, and class centres that are updated
periodically instead of by gradients. Not read there, and chosen here: one concentration for all classes, how often
the centres are updated, and from which embeddings.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor

from methods.distances import cosine_similarity, pair_masks
from methods.objectives import normalized_softmax
from orchestrator.method import Batch, Method, MethodConfig, Network, Scope, Task

FIRST = 20  # images of each class that its first centre is computed from


def mean_directions(sums: Tensor, centres: Tensor) -> Tensor:
    """The unit vectors along sums (C, D) of each class's embeddings; a sum of zero leaves the centre (C, D) as it is.

    It is the maximum-likelihood estimate of the mean direction of a von Mises-Fisher distribution.
    """
    return torch.where((sums != 0).any(1, keepdim=True), F.normalize(sums, dim=1), centres)


class VMF(Method):
    """vMF: the posterior of an image's class under von Mises-Fisher distributions of one concentration.

    L = mean over images i of -log( e^(kappa mu_y . z_i) / sum over classes c of e^(kappa mu_c . z_i) )

    mu_c is the mean direction of class c's embeddings: those of some images before the first step, and every `period`
    steps those that the training has seen since the last time. A class without any keeps its centre; the normalising
    constant cancels, as kappa is the same for all classes. Several classes of an image share the numerator, and it
    counts in the mean direction of each.
    """

    name = "vmf"
    paper = (
        "Zhe et al., Directional Statistics-Based Deep Metric Learning for Image Classification and Retrieval, "
        "Pattern Recognition 2019"
    )
    latex = r"""
    L = \underset{i}{\mathrm{mean}}\,-\log \frac{e^{\kappa\,\mu_y \cdot z_i}}{\sum_c e^{\kappa\,\mu_c \cdot z_i}}
    """

    expected_failures: ClassVar[Mapping[str, str]] = {
        "without_positives": "images are pulled to the centres of their classes, which are no parameters"
    }

    class Config(MethodConfig):
        kappa: float = Field(16.0, gt=0, description="concentration of the classes, an inverse temperature")
        period: int = Field(100, ge=1, le=1_000_000_000, description="steps between updates of the classes' centres")

    config: Config
    centres: Tensor
    sums: Tensor
    steps: Tensor

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        size = task.num_classes, task.embedding_dim
        self.register_buffer("centres", F.normalize(torch.randn(size), dim=1))
        self.register_buffer("sums", torch.zeros(size))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def begin(self, scope: Scope) -> None:
        """The first centres, from embeddings of the untrained network."""
        embeddings = F.normalize(scope.class_embeddings(FIRST, scope.rng), dim=2)
        self.centres.copy_(mean_directions(embeddings.sum(1).to(self.centres), self.centres))

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        z = network(batch.images)["embedding"]
        classes = torch.arange(self.task.num_classes, device=batch.labels.device)
        positive, negative = pair_masks(batch.labels, classes, same=False)
        similarity = cosine_similarity(z, self.centres)
        loss = normalized_softmax(similarity, positive, negative, temperature=1 / self.config.kappa)
        self.sums = self.sums + cosine_similarity(positive.T.to(z.dtype), z.detach().T).to(self.sums)
        self.steps += 1
        if int(self.steps) % self.config.period == 0:
            self.centres, self.sums = mean_directions(self.sums, self.centres), torch.zeros_like(self.sums)
        return {"loss": loss}
