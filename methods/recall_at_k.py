"""The recall@k surrogate: a smooth count of the positives among the k nearest, and SiMix's virtual examples.

Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022.
"""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field, field_validator
from torch import Generator, Tensor

from methods.baselines import Baseline, Measure, Metric
from methods.distances import pair_masks
from methods.ranks import Formula, RanksConfig, one_minus_recall, positive_ranks, with_queries
from methods.reductions import Reduction, objective
from orchestrator.method import Outputs


@objective
def recall_at_k_surrogate(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    ks: Sequence[int] = (1, 2, 4, 8, 16),
    k_temperature: float = 1.0,
    rank_temperature: float = 0.01,
    formula: Formula = "printed",
    reduction: Reduction = "mean",
) -> Tensor:
    """Recall@k surrogate on s: 1 - mean over rows and over the k of the smooth recall

        R_k = min(k, sum over positives p of sigma((k - rank_p) / k_temperature)) / min(k, number of positives)
        rank_p = 1 + sum over j other than p of sigma((s_qj - s_qp) / rank_temperature)

    sigma is the logistic function; j runs over positives and negatives. Rows without positives are left out. A sample
    is not in its own list; with formula="released" it is one of the j, though no p, which shifts every k by about one.
    ValueError if `ks` is empty or has a k below 1, or a temperature is not above 0, and as `with_queries`.

    Time is (positive pairs) x R; memory is linear in R and in the positive pairs (`positive_ranks`).

    Patel et al., CVPR 2022. The values of k, both temperatures, the two minima and the mean over k are the released
    code's (its first versions had k itself as k_temperature).
    """
    if not rank_temperature > 0:
        raise ValueError(f"recall_at_k_surrogate: rank_temperature must be above 0, got {rank_temperature}")
    others = with_queries(negative, formula)
    ranks = positive_ranks(matrix, positive, others, lambda gaps, _: torch.sigmoid(gaps / rank_temperature))
    queries, _, overall = ranks
    return one_minus_recall(overall, queries, positive, ks, k_temperature, reduction)


def virtual_examples(embeddings: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """SiMix: for each pair i < j of positives a virtual example a z_i + (1 - a) z_j, a uniform on [0, 1].

    embeddings (B, D), labels (B, L) padded with -1 -> the virtual examples (V, D), which are not normalised, and their
    labels (V, 2 L), those of both. Their similarities are the same mixtures of the pair's. `generator` is on the CPU.

    Patel et al., CVPR 2022; all pairs of a class, as in the released code.
    """
    positive, _ = pair_masks(labels, labels, same=True)
    first, second = positive.triu().nonzero(as_tuple=True)
    share = torch.rand(len(first), 1, generator=generator, dtype=torch.float64)
    z = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    share = share.to(z.device, z.dtype)
    mixed = share * z[first] + (1 - share) * z[second]
    return mixed, torch.cat([labels[first], labels[second]], dim=1)


class CutoffsConfig(RanksConfig):
    """That of an objective on recall at several k."""

    metric: Metric = Field("cosine", description="similarity between embeddings")
    ks: str = Field("1,2,4,8,16", description="values of k, separated by commas")
    k_temperature: float = Field(1.0, gt=0, description="temperature of the sigmoid that counts ranks up to k")

    @field_validator("ks")
    @classmethod
    def _several(cls, value: str) -> str:
        if not all(part.strip().isdecimal() and int(part) > 0 for part in value.split(",")):
            raise ValueError("should be whole numbers from 1 on, separated by commas, as in 1,2,4")
        return value

    def numbers(self) -> list[int]:
        """The values of k."""
        return [int(k) for k in self.ks.split(",")]


class RecallAtK(Baseline):
    """Recall@k surrogate: a smooth recall at several k, with SiMix's virtual examples if wanted.

    L = 1 - mean over rows and k of min(k, sum over positives p of sigmoid((k - rank_p) / k_temperature)) / min(k, P),
    rank_p = 1 + sum over j other than p of sigmoid((s_qj - s_qp) / rank_temperature), P the row's positives.

    With `simix` each pair of positives in the batch adds a virtual example between the two, as query and in the list.
    With `formula: released` a query is in its own list, which makes each rank_p larger by about one. The paper trains
    with batches of 400 (CUB), 392 (Cars196) and 4,000 (SOP), four images of a class.
    """

    name = "recall_at_k_surrogate"
    paper = "Patel et al., Recall@k Surrogate Loss with Large Batches and Similarity Mixup, CVPR 2022"
    latex = r"""
    L = 1 - \underset{\text{rows}, k}{\mathrm{mean}}\,\frac{\min\left(k, \sum_p
    \mathrm{sigmoid}((k - \mathrm{rank}_p) / \mathrm{k\_temperature})\right)}{\min(k, P)}

    \mathrm{rank}_p = 1 + \sum_{j \ne p} \mathrm{sigmoid}((s_{qj} - s_{qp}) / \mathrm{rank\_temperature})
    """
    reads = "similarity"
    function = recall_at_k_surrogate

    class Config(CutoffsConfig):
        rank_temperature: float = Field(0.01, gt=0, description="temperature of the sigmoids that make a rank")
        simix: bool = Field(False, description="add virtual examples between positives, where the batch is compared")

        def idle(self) -> dict[str, tuple[str, ...]]:
            without = {} if "batch" in self.references else {"simix": ("references",)}
            return super().idle() | without

    config: Config

    def _hyperparameters(self, labels: Tensor, rng: Generator) -> dict[str, Any]:
        hyperparameters = super()._hyperparameters(labels, rng)
        del hyperparameters["simix"]
        return hyperparameters | {"ks": self.config.numbers()}

    def compare(
        self,
        outputs: Outputs,
        labels: Tensor,
        rng: Generator,
        measure: Measure | None = None,
        reduction: Reduction = "mean",
    ) -> Tensor:
        if self.config.simix and "batch" in self.config.references:
            mixed, mixed_labels = virtual_examples(outputs["embedding"], labels, rng)
            outputs = {"embedding": torch.cat([outputs["embedding"], mixed])}
            labels = torch.cat([torch.nn.functional.pad(labels, (0, labels.shape[1]), value=-1), mixed_labels])
        return super().compare(outputs, labels, rng, measure, reduction)
