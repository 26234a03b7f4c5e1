"""IBC: the images of a batch exchange messages before a second classifier sees them.

Seidenschwarz et al., "Learning Intra-Batch Connections for Deep Metric Learning", ICML 2021. The formulas and defaults
are those of the authors' program; of the paper only the abstract was read.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from methods.derivatives import once
from methods.distances import full_precision, pair_masks
from methods.reductions import negative_log_ratio, reduce_sums
from orchestrator.method import Batch, InputError, Method, MethodConfig, Network, Task


def smoothed_cross_entropy(logits: Tensor, positive: Tensor, smoothing: float) -> Tensor:
    """Mean over rows of logits (B, C) of -(1 - e) log p_own - e mean over classes of log p, e the smoothing, p the
    softmax and p_own that of the row's own classes together, by the mask (B, C); rows without any are left out.

    Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016.
    """
    ratio, valid = negative_log_ratio(logits, positive, torch.ones_like(positive), 1.0)
    even = torch.where(valid, logits.logsumexp(1, keepdim=True) - logits.mean(1, keepdim=True), 0)
    return reduce_sums((1 - smoothing) * ratio + smoothing * even, valid)


@contextmanager
def drawing_from(rng: Generator, device: torch.device) -> Iterator[None]:
    """Global random numbers, as of dropout, are those of a seed that `rng` draws; their own state is put back."""
    seed = int(torch.randint(2**62, (), generator=rng))
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.manual_seed(seed)
        yield


class IBC(Method):
    """IBC: a classifier of images, and one after messages between all images of the batch.

    L = CE(W raw + w) + message_weight CE(V BN(m)),  CE the cross-entropy of logits / temperature with smoothed labels

    raw is the network's vector before it is normalised; m is what a linear map of the embedding becomes in `layers`
    steps x <- LN(h + MLP(h)), h = LN(x + A(x)). A is dot-product attention over all images of the batch and one more,
    whose logit and message are 0, with several heads; the MLP is four times as wide, with a ReLU; dropout is on the
    attention, inside the MLP and on both sums. BN is batch normalisation without a shift.

    Neither the messages nor the classifiers are used after training. Heads, layers and temperature are those of the
    released settings for CUB: 8, 2 and 1/9 for Cars196, 8, 1 and 0.6 for SOP without the second loss, 4, 1 and 0.19 for
    In-Shop. For Cars196 it joins the results of both layers, which is not here. Attention has no second derivative: the
    loss can be differentiated once.
    """

    name = "ibc"
    paper = "Seidenschwarz et al., Learning Intra-Batch Connections for Deep Metric Learning, ICML 2021"
    latex = r"L = \mathrm{CE}(W\,\mathrm{raw} + w) + \mathrm{message\_weight}\,\mathrm{CE}(V\,\mathrm{BN}(m))"
    reads_raw = True
    expected_failures: ClassVar[Mapping[str, str]] = {"permutation": "dropout is drawn in the order of the batch"}

    class Config(MethodConfig):
        layers: int = Field(1, ge=1, le=100, description="steps in which messages are exchanged")
        heads: int = Field(2, ge=1, le=1000, description="heads of the attention; they divide the embedding's size")
        dropout: float = Field(0.1, ge=0, lt=1, description="part of the numbers that dropout leaves out")
        temperature: float = Field(0.2, gt=0, description="temperature of both softmaxes")
        smoothing: float = Field(0.1, ge=0, lt=1, description="part of a label that is spread over all classes")
        message_weight: float = Field(1.0, ge=0, description="weight of the loss after the messages")

        def idle(self) -> dict[str, tuple[str, ...]]:
            return {} if self.message_weight else dict.fromkeys(("layers", "heads", "dropout"), ("message_weight",))

    config: Config

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        dim, classes = task.embedding_dim, task.num_classes
        if dim % config.heads:
            raise InputError(f"heads: {config.heads}: should divide embedding_dim, which is {dim}")
        self.direct = nn.Linear(dim, classes)
        self.first = nn.Linear(dim, dim)
        self.layers = nn.ModuleList(self._layer(dim, config) for _ in range(config.layers))
        self.gain = nn.Parameter(torch.ones(dim))
        self.second = nn.Parameter(0.001 * torch.randn(classes, dim))

    @staticmethod
    def _layer(dim: int, config: Config) -> nn.TransformerEncoderLayer:
        layer = nn.TransformerEncoderLayer(dim, config.heads, 4 * dim, config.dropout)
        attention = layer.self_attn
        attention.add_zero_attn = True
        assert attention.in_proj_weight is not None
        for weight in (*attention.in_proj_weight.detach().chunk(3), attention.out_proj.weight):
            nn.init.xavier_uniform_(weight)
        return layer

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        config, raw = self.config, network(batch.images)["raw"].to(self.gain.dtype)
        classes = torch.arange(len(self.second), device=batch.labels.device)
        positive, _ = pair_masks(batch.labels, classes, same=False)
        with full_precision(raw.device), drawing_from(rng, raw.device):
            images = self.first(self.normalize(raw))
            for layer in self.layers:
                images = layer(images)
            centred = images - images.mean(0)
            images = centred * (centred.square().mean(0) + 1e-5).rsqrt() * self.gain
            logits: dict[str, Any] = {"direct": self.direct(raw), "messages": images @ self.second.T}
        direct, messages = (
            smoothed_cross_entropy(rows / config.temperature, positive, config.smoothing) for rows in logits.values()
        )
        messages = once(messages, raw, what="ibc")
        return {"direct": direct, "messages": config.message_weight * messages}
