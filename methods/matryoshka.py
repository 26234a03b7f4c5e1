"""Matryoshka embeddings: any objective on the prefixes of an embedding."""

from functools import partial

from pydantic import Field
from torch import Generator, Tensor

from methods.bases import OBJECTIVES, WITHOUT_MEMORY, OverConfig, OverObjective
from orchestrator.method import Batch, Network, Outputs, Task, unit


def prefixes(dim: int, smallest: int) -> list[int]:
    """Lengths D, D/2, D/4, ... down to `smallest`, rounded down; D alone if it is below that."""
    dims = [dim]
    while dims[-1] // 2 >= smallest:
        dims.append(dims[-1] // 2)
    return dims


def prefix_of(rows: Tensor, size: int) -> Tensor:
    """The first `size` entries of rows (N, D), as unit rows (N, size)."""
    return unit(rows[:, :size])


class Matryoshka(OverObjective):
    """Matryoshka representation learning: an objective on several prefixes of the embedding at once.

    L = sum over lengths m = D, D/2, D/4, ... >= smallest of L_m, the objective on the first m entries of embeddings and
    proxies, each brought to unit length. All lengths weigh the same, as in the paper's experiments; the proxies of
    the shorter ones are prefixes too (its MRL-E).
    """

    name = "matryoshka"
    paper = "Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022"
    latex = r"L = \sum_{m = D, D/2, D/4, \ldots \ge \mathrm{smallest}} L_m"

    class Config(
        OverConfig,
        over=OBJECTIVES,
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

    def embeddings(self, outputs: Outputs) -> dict[str, Tensor]:
        """`first_<m>`, the prefixes below the whole length, as unit rows (N, m)."""
        return {f"first_{size}": prefix_of(outputs["embedding"], size) for size in self.sizes[1:]}
