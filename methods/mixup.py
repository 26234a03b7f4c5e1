"""Mixup: images mixed with each other, which carry the labels of both.

Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018, as IDML uses it (Wang et al., TPAMI 2024).
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from orchestrator.method import Batch, InputError


class Mixed(NamedTuple):
    """`images`, this rank's block of lam x1 + (1 - lam) x2; `share`, lam; `labels` (B, L), those of the x2."""

    images: Tensor
    share: float
    labels: Tensor


def mix(batch: Batch, alpha: float, blocks: int, rng: Generator) -> Mixed:
    """One mixed image per image of a batch, lam drawn once from Beta(alpha, alpha).

    Raises:
        ValueError: if a process does not hold whole blocks of the batch.
    """
    labels = batch.labels
    seed = int(torch.randint(2**62, (), generator=rng))  # torch draws from Beta with its global generator only
    share = float(np.random.default_rng(seed).beta(alpha, alpha))
    partners = mixup_partners(len(labels), blocks, rng).to(labels.device)
    here, block = len(batch.images), len(labels) // blocks
    if here % block:
        raise ValueError(
            f"a worker's {here} of {len(labels)} images are not whole blocks of {block}: "
            f"batch_parts of the method must be mixup_blocks={blocks}"
        )
    mixed = share * batch.images + (1 - share) * batch.images[partners[:here]]
    return Mixed(mixed, share, labels[partners])


def check_blocks(size: int, blocks: int) -> None:
    """InputError for a batch of `size` images that cannot be cut into so many equal `blocks`."""
    if size % blocks:
        raise InputError(
            f"mixup_blocks: {blocks}: a batch of {size} images cannot be cut into so many "
            "equal parts: give a divisor of it, as many as the workers or more"
        )


def mixup_partners(size: int, blocks: int, rng: Generator) -> Tensor:
    """Each image's partner for Mixup, (size,): one permutation, the same inside each of `blocks` equal sub-blocks.

    A process that holds some whole sub-blocks of the batch, whichever they are, mixes them by the first entries.

    Raises:
        ValueError: if `size` images cannot be cut into so many blocks.
    """
    if size % blocks:
        raise ValueError(f"a batch of {size} images cannot be cut into mixup_blocks={blocks} equal blocks for Mixup")
    within = torch.randperm(size // blocks, generator=rng)
    return (torch.arange(blocks)[:, None] * len(within) + within).flatten()


def label_sets(labels: Tensor, others: Tensor) -> Tensor:
    """The labels of originals and, below them, of mixed images: (2 B, 2 L), padded with -1."""
    return torch.cat([F.pad(labels, (0, labels.shape[1]), value=-1), torch.cat([labels, others], 1)])
