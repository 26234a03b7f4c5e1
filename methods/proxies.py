"""Class proxies: learned points of the embedding space that stand for the classes."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.method import Task

MATRIX = 1024  # maximum number of proxies whose similarities are stored


class Proxies(nn.Module):
    """M proxies per class, drawn from a normal distribution and normalised at use.

    The optimiser's weight decay is theirs too. Their gradient is at right angles to each of them; decay shortens
    them, which makes their next steps turn them farther.

    `forward()` -> unit rows (C * M, D), class-major: the proxies of class c are rows c M to (c + 1) M - 1.
    """

    labels: Tensor

    def __init__(self, task: Task, per_class: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(task.num_classes * per_class, task.embedding_dim))
        self.register_buffer("labels", torch.arange(task.num_classes).repeat_interleave(per_class))

    def forward(self) -> Tensor:
        return F.normalize(self.weight, dim=-1)

    def similarities(self) -> dict[str, Any]:
        """`proxy_similarity` (N, N), a diagnostic: cosines of the first MATRIX proxies; nothing if there are none."""
        proxies = F.normalize(self.weight.detach()[:MATRIX].float(), dim=-1).cpu()
        return {"proxy_similarity": (proxies @ proxies.T).numpy()} if len(proxies) else {}

    def group(self, lr: float, multiplier: float) -> list[dict[str, Any]]:
        """The optimiser group at `multiplier` times the network's learning rate."""
        return [{"params": [self.weight], "lr": lr * multiplier}] if len(self.weight) else []
