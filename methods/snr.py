"""SNR: pairs compared by the ratio of noise to signal of their embeddings.

Yuan et al., "Signal-to-Noise Ratio: A Robust Distance Metric for Deep Metric Learning", CVPR 2019. Read with certainty:
the distance, the contrastive form and that the embeddings' mean is pulled to zero. The paper's weight of that pull and
its margins were not: the defaults are not the paper's.
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor

from methods import objectives
from methods.baselines import Baseline, ReferencesConfig
from methods.distances import euclidean_distance
from orchestrator.method import Batch, Network, Outputs

FLOOR = 1e-3  # the least spread of an anchor that is divided by; that of a unit row of mean zero is 1


def snr_distance(queries: Tensor, references: Tensor) -> Tensor:
    """d_ij = var(r_j - q_i) / var(q_i) over the entries of rows (Q, D) and (R, D): (Q, R), not symmetric.

    The query is the anchor, its variance the signal, that of the difference the noise; for unit rows of mean zero d is
    the squared Euclidean distance. Computed as the squared distance of the centred rows over the squared length of the
    centred query, which is taken to be at least 1e-3: a query whose entries are all the same has no signal, and its
    gradient is to be finite in half precision. Half precision is promoted. Where two rows coincide the distance and its
    gradients are zero.

    Yuan et al., Signal-to-Noise Ratio: A Robust Distance Metric for Deep Metric Learning, CVPR 2019.
    """
    dtype = torch.promote_types(torch.promote_types(queries.dtype, references.dtype), torch.float32)
    q, r = (rows.to(dtype) - rows.to(dtype).mean(1, keepdim=True) for rows in (queries, references))
    return euclidean_distance(q, r).square() / q.square().sum(1, keepdim=True).clamp(min=FLOOR)


def zero_mean(embeddings: Tensor) -> Tensor:
    """The mean over rows (B, D) of |sum of the entries|; at a sum of zero its gradient is zero; 0 without rows.

    Yuan et al., CVPR 2019: it keeps the embeddings' mean at zero, which the ratio of variances supposes.
    """
    embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    return embeddings.sum(1).abs().sum() / max(1, len(embeddings))


class SNR(Baseline):
    """SNR: the contrastive loss on the ratio of noise to signal, and a pull of the embeddings' mean to zero.

    L = mean over positives of [d - pos_margin]+ + mean over negatives of [neg_margin - d]+
      + zero_mean_weight (1/B) sum_i |sum_m z_im|, d_ij = var(z_j - z_i) / var(z_i) over the entries of the embeddings;
    i is the anchor.
    """

    name = "snr"
    paper = "Yuan et al., Signal-to-Noise Ratio: A Robust Distance Metric for Deep Metric Learning, CVPR 2019"
    latex = r"""
    L = \underset{\text{positives}}{\mathrm{mean}}\,[d - \mathrm{pos\_margin}]_+
    + \underset{\text{negatives}}{\mathrm{mean}}\,[\mathrm{neg\_margin} - d]_+
    + \mathrm{zero\_mean\_weight}\,\frac{1}{B} \sum_i \left|\sum_m z_{im}\right|

    d_{ij} = \frac{\mathrm{var}(z_j - z_i)}{\mathrm{var}(z_i)}
    """
    reads = "distance"
    function = objectives.contrastive

    class Config(ReferencesConfig):
        metric: Literal["squared_euclidean"] = Field(
            "squared_euclidean", description="of the centred embeddings, over the anchor's variance"
        )
        pos_margin: float = Field(0.0, ge=0, description="ratio below which positives rest")
        neg_margin: float = Field(1.0, ge=0, description="ratio beyond which negatives rest")
        average: Literal["nonzero", "all", "query"] = Field(
            "nonzero", description="what each sum is divided by: its terms above zero, all its pairs, or the queries"
        )
        zero_mean_weight: float = Field(0.005, ge=0, description="weight of the pull of the embeddings' mean to zero")

    config: Config

    def measure(self, queries: Outputs, references: Outputs) -> Tensor:
        return snr_distance(queries["embedding"], references["embedding"])

    def _hyperparameters(self, labels: Tensor, rng: Generator) -> dict[str, Any]:
        hyperparameters = super()._hyperparameters(labels, rng)
        del hyperparameters["zero_mean_weight"]
        return hyperparameters

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        outputs = network(batch.images)
        terms = super().step(batch, lambda images: outputs, rng)
        return terms | {"zero_mean": self.config.zero_mean_weight * zero_mean(outputs["embedding"])}
