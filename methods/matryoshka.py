"""Matryoshka embeddings: any objective on the prefixes of an embedding."""

from functools import partial

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor

from methods.baselines import Contrastive, MultiSimilarity, NormalizedSoftmax, ProxyAnchor
from methods.bases import WITHOUT_MEMORY, OverConfig, OverObjective
from methods.circle import Circle
from methods.cos_face import CosFace
from methods.sup_con import SupCon
from orchestrator.method import Batch, Diagnostics, Embedded, Network, Outputs, Task

BLOCK = 1024


def prefixes(dim: int, smallest: int) -> list[int]:
    """Lengths D, D/2, D/4, ... down to `smallest`, rounded down; D alone if it is below that."""
    found = [dim]
    while found[-1] // 2 >= smallest:
        found.append(found[-1] // 2)
    return found


def prefix_of(rows: Tensor, size: int) -> Tensor:
    """The first `size` entries of rows (N, D), as unit rows (N, size)."""
    return F.normalize(rows[:, :size], dim=-1)


def recall_at_1(rows: Tensor, labels: Tensor) -> float:
    """The share of unit rows (N, D) whose nearest other row has their label (N,), among those that have such a row."""
    right = []
    for start in range(0, len(rows), BLOCK):
        own = torch.arange(start, min(start + BLOCK, len(rows)))
        products = rows[own] @ rows.T
        products[torch.arange(len(own)), own] = -torch.inf
        right.append(labels[products.argmax(1)] == labels[own])
    _, index, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    found = torch.cat(right)[counts[index] > 1]
    return float(found.double().mean()) if len(found) else 0.0


class Matryoshka(OverObjective):
    """Matryoshka representation learning: an objective on several prefixes of the embedding at once.

    L = sum over lengths m = D, D/2, D/4, ... >= smallest of L_m, the objective on the first m entries of embeddings and
    proxies, each brought to unit length. All lengths weigh the same, as in the paper's experiments; the proxies of
    the shorter ones are prefixes too (its MRL-E).
    """

    name = "matryoshka"
    paper = "Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022"

    class Config(
        OverConfig,
        over={
            ProxyAnchor: {},
            MultiSimilarity: {"references": "batch"},
            NormalizedSoftmax: {},
            Contrastive: {"references": "batch"},
            Circle: {"references": "batch"},
            SupCon: {"references": "batch"},
            CosFace: {},
        },
        fixed=WITHOUT_MEMORY,
    ):
        smallest: int = Field(8, ge=1, le=1_000_000, description="the shortest prefix, at least")

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.sizes = prefixes(task.embedding_dim, config.smallest)

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        outputs = network(batch.images)
        return {
            f"first_{size}": self.base.compare(outputs, batch.labels, rng, partial(self._measure, size))
            for size in self.sizes
        }

    def _measure(self, size: int, queries: Outputs, references: Outputs) -> Tensor:
        cut: tuple[Outputs, ...] = tuple({"embedding": prefix_of(x["embedding"], size)} for x in (queries, references))
        return self.base.measure(*cut)

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """`recall_at_1_of_first_<m>` of the held-out images, for each length."""
        if held_out is None:
            return Diagnostics()
        rows, labels = held_out.outputs["embedding"], held_out.labels
        found = {f"recall_at_1_of_first_{size}": recall_at_1(prefix_of(rows, size), labels) for size in self.sizes}
        return Diagnostics(scalars=found)
