"""Cross-batch memory (XBM): past embeddings as further references of a pair-based loss."""

import torch
from torch import Tensor, nn


class Memory(nn.Module):
    """A queue of the last `size` embeddings, detached, with their labels and samples; part of every checkpoint.

    Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020. Rows not yet filled carry label -1.
    """

    embeddings: Tensor
    labels: Tensor
    samples: Tensor
    steps: Tensor
    next_row: Tensor

    def __init__(self, size: int, start: int, embedding_dim: int) -> None:
        super().__init__()
        self.start = start
        self.register_buffer("embeddings", torch.zeros(size, embedding_dim))
        self.register_buffer("labels", torch.full((size,), -1))
        self.register_buffer("samples", torch.full((size,), -1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("next_row", torch.zeros((), dtype=torch.long))

    def step(self) -> bool:
        """Count a training step; true if `start` plain ones came before it, so that the memory is used."""
        is_full_enough = int(self.steps) >= self.start
        self.steps += 1
        return is_full_enough

    def push(self, embeddings: Tensor, labels: Tensor, samples: Tensor) -> None:
        """Store a batch (B, D), (B,), (B,) in place of the oldest rows; of a batch larger than the queue, its end."""
        size = len(self.labels)
        embeddings, labels, samples = (part.detach()[-size:] for part in (embeddings, labels, samples))
        rows = (self.next_row + torch.arange(len(labels), device=labels.device)) % size
        # replaced, not written into: the loss just computed still needs the old rows for its gradient
        self.embeddings = self.embeddings.index_copy(0, rows, embeddings.to(self.embeddings.dtype))
        self.labels = self.labels.index_copy(0, rows, labels)
        self.samples = self.samples.index_copy(0, rows, samples)
        self.next_row = (self.next_row + len(labels)) % size

    def pair_masks(self, labels: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Masks (positive, negative), both (B, size), of a batch against the memory.

        An older copy of the sample itself, and a row not yet filled, are neither.
        """
        valid = (self.labels >= 0) & (samples[:, None] != self.samples)
        same = labels[:, None] == self.labels
        return valid & same, valid & ~same
