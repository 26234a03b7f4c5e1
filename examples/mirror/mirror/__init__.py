"""A training step that runs the network twice: on the images, and on their mirror images."""

from pydantic import Field
from torch import Generator, Tensor

from methods.distances import cosine_similarity, pair_masks
from orchestrator.method import Batch, Method, MethodConfig, Network


class Mirror(Method):
    """A hinge on the similarity of images and mirror images, and a mirror image that stays close to its image.

    L = mean over positives of [upper - s_ij]+ + mean over negatives of [s_ij - lower]+ + weight mean of |z_i - m_i|^2,
    where s_ij = cos(z_i, m_j), z: embeddings of the images, m: of their mirror images.
    """

    name = "mirror"
    paper = "unpublished, an example"

    class Config(MethodConfig):
        upper: float = Field(0.9, ge=-1, le=1, description="similarity below which positives attract")
        lower: float = Field(0.3, ge=-1, le=1, description="similarity above which negatives repel")
        weight: float = Field(0.5, ge=0, description="weight of the distance to the own mirror image")

    config: Config

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        z, mirrored = network(batch.images)["embedding"], network(batch.images.flip(-1))["embedding"]
        similarity = cosine_similarity(z, mirrored)
        positive, negative = pair_masks(batch.labels, batch.labels, same=True)
        # a batch may lack either kind of pair: a sum over a count of at least one, not a mean
        pull = ((self.config.upper - similarity).relu() * positive).sum() / positive.sum().clamp(min=1)
        push = ((similarity - self.config.lower).relu() * negative).sum() / negative.sum().clamp(min=1)
        return {"pull": pull, "push": push, "mirror": self.config.weight * (z - mirrored).square().sum(1).mean()}
