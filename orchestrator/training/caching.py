"""Gradient caching: a loss on more images than pass the network at once.

The network runs on a few images at a time, without keeping what its backward pass needs; the loss sees all outputs; the
network runs again for the gradients, a few images at a time. The result is the plain step's.

Source: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, RepL4NLP 2021.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from orchestrator.errors import TrainingFailed
from orchestrator.method import Outputs
from orchestrator.training.device import random_state, set_random_state


@dataclass(frozen=True)
class Part:
    """Some images that passed the network together, and the state of the random generators before it."""

    images: Tensor
    draws: list[Tensor]


class Cached:
    """The runs of the network in one call of a method's `step`.

    Args:
        size: images of this process that pass the network at once.
        again: the network, as it ran.
        device: of the images.
    """

    def __init__(self, size: int, again: Callable[[Tensor], Outputs], device: torch.device) -> None:
        self.size, self.again, self.device = size, again, device
        self.runs: list[tuple[list[Part], Outputs]] = []

    @property
    def leaves(self) -> list[Tensor]:
        """The outputs that a loss's graph ends at."""
        return [output for _, outputs in self.runs for output in outputs.values()]

    def run(self, images: Tensor, network: Callable[[Tensor], Outputs]) -> Outputs:
        """The outputs (n, ...) of n images, cut off from the network."""
        if images.requires_grad:
            raise TrainingFailed(
                "images_per_pass: the method learns what it does to the images: all must pass the network at once: "
                "leave it out"
            )
        if not torch.is_grad_enabled():
            return _together([network(part) for part in torch.split(images, self.size)])
        parts, outputs_of_parts = [], []
        for part in torch.split(images, self.size):
            parts.append(Part(part, random_state(self.device)))
            with torch.no_grad():
                outputs_of_parts.append(network(part))
        outputs = {name: output.requires_grad_() for name, output in _together(outputs_of_parts).items()}
        self.runs.append((parts, outputs))
        return outputs

    def add(self, gradients: list[Any], of: Sequence[Tensor], on_leaves: Sequence[Tensor | None]) -> None:
        """Add to `gradients`, those on the tensors `of`, what reaches them through the network from the `leaves`."""
        rest = list(on_leaves)
        after = random_state(self.device)
        for parts, outputs in self.runs:
            moved = dict(zip(outputs, rest, strict=False))
            rest = rest[len(outputs) :]
            names = [name for name, gradient in moved.items() if gradient is not None]
            first = 0
            for part in parts if names else ():
                set_random_state(part.draws, self.device)
                outputs_again = self.again(part.images)
                rows = slice(first, first + len(part.images))
                first += len(part.images)
                ends = [name for name in names if outputs_again[name].requires_grad]
                gradients_of_part = torch.autograd.grad(
                    [outputs_again[name] for name in ends],
                    of,
                    [moved[name][rows] for name in ends],  # type: ignore[index]
                    allow_unused=True,
                )
                for index, gradient in enumerate(gradients_of_part):
                    before = gradients[index]
                    if gradient is not None:
                        gradients[index] = gradient if before is None else before + gradient
        set_random_state(after, self.device)


def _together(parts: list[Outputs]) -> Outputs:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
