"""Momentum contrast with labels: keys of a teacher, the mean of the networks so far, in a queue."""

import copy
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from methods.memory import Memory
from methods.objectives import cosine_similarity
from methods.sup_con import sup_con
from orchestrator.method import Batch, Method, MethodConfig, Network, Task


class MomentumContrast(Method):
    """Momentum contrast with labels: a softmax over the keys of a slowly moving teacher, this batch's and a queue's.

    L = mean over samples i of the mean over keys p of i's class of [log sum over keys a of e^(q_i k_a / T) - q_i k_p /
    T]; q_i is the network's embedding of one view of i, keys are the teacher's of another view. After each step of the
    network the teacher's parameters become momentum theirs + (1 - momentum) the network's. He et al. have no labels:
    their positives are i's own keys; classes as positives are SupCon's with its memory (Khosla et al., NeurIPS 2020,
    supplement). An older key of the same image is left out. The teacher is in evaluation mode; in the released code it
    is in training mode, with batches shuffled over the GPUs, and the queue holds 65,536 keys.
    """

    name = "momentum_contrast"
    paper = "He et al., Momentum Contrast for Unsupervised Visual Representation Learning, CVPR 2020"
    latex = r"""
    L = \underset{i}{\mathrm{mean}}\,\underset{p}{\mathrm{mean}}\,\left[\log \sum_a e^{q_i k_a / T}
    - \frac{q_i k_p}{T}\right]

    \text{teacher} \leftarrow \mathrm{momentum} \cdot \text{teacher} + (1 - \mathrm{momentum}) \cdot \text{network}
    """
    expected_failures: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("bf16", "fp16"), "the teacher is a network, which computes in half precision"
    )
    views = 2

    class Config(MethodConfig):
        temperature: float = Field(0.07, gt=0, description="temperature T of the softmax")
        momentum: float = Field(0.999, ge=0, lt=1, description="share of itself that the teacher keeps at each step")
        memory_size: int = Field(1024, ge=1, le=10_000_000, description="keys in the queue")

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.memory = Memory(config.memory_size, 0, task.embedding_dim)
        self._network: tuple[nn.Module, ...] = ()

    def bind(self, network: nn.Module) -> None:
        self._network = (network,)
        self.teacher = copy.deepcopy(network).requires_grad_(False)

    @torch.no_grad()
    def _keys(self, images: Tensor) -> Tensor:
        """The teacher's embeddings of the whole batch, after it has followed the network."""
        for name, value in self._network[0].state_dict().items():
            average = self.teacher.state_dict()[name]
            average.copy_(average.lerp(value, 1 - self.config.momentum) if average.is_floating_point() else value)
        keys = self.teacher.eval()(images)["embedding"]
        return self.gather(self.normalize(keys.float() if keys.dtype.itemsize < 4 else keys))

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        first, second = batch.views
        queries, labels = network(first)["embedding"], batch.labels[:, 0]
        keys = self._keys(second)
        same = labels[:, None] == labels
        positive, negative = self.memory.pair_masks(labels, batch.samples)
        similarity = cosine_similarity(queries, torch.cat([keys, self.memory.embeddings.to(keys.dtype)]))
        masks = torch.cat([same, positive], 1), torch.cat([~same, negative], 1)
        loss = sup_con(similarity, *masks, temperature=self.config.temperature)
        self.memory.push(keys, labels, batch.samples)
        return {"loss": loss}
