"""A moving average of the network's weights, for validations, tests and saved models."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from orchestrator.training.distributed import as_on_first
from orchestrator.training.learner import Learner


class Average:
    """The exponential moving average of a network's parameters and buffers; with decay None there is none, and its
    place is taken by the network itself.

    w_mean <- decay * w_mean + (1 - decay) * w

    after each step of the optimiser, from the weights before the first one on. The method's own parameters are not
    averaged.
    """

    def __init__(self, learner: Learner, decay: float | None) -> None:
        self.learner, self.decay = learner, decay
        self._update: Any = get_ema_multi_avg_fn(0.0 if decay is None else decay)  # type: ignore[no-untyped-call]
        self._means: dict[Tensor, Tensor] = {}

    def begin(self) -> None:
        """The average of the weights that the network has now."""
        if self.decay is not None:
            network = self.learner.network
            trained = (weight for weight in network.parameters() if weight.requires_grad)
            averaged = [weight for weight in (*trained, *network.buffers()) if weight.is_floating_point()]
            self._means = {weight: weight.detach().clone() for weight in averaged}

    def update(self) -> None:
        """Once after each step of the optimiser."""
        by_kind: dict[Any, list[tuple[Tensor, Tensor]]] = {}  # as torch's function takes them
        for weight, mean in self._means.items():
            by_kind.setdefault((weight.device, weight.dtype), []).append((mean, weight.detach()))
        for pairs in by_kind.values():
            means, weights = zip(*pairs, strict=True)
            self._update(list(means), list(weights), 0)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the network has its averaged weights."""
        buffers = self.learner.network.buffers()  # with live batch norm every process has seen other images
        as_on_first(self._means[buffer] for buffer in buffers if buffer in self._means)
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def weights(self) -> dict[str, Tensor]:
        """The learner's state dict, with the network's averages."""
        whole = self.learner.state_dict(keep_vars=True)
        return {name: self._means.get(weight, weight).detach() for name, weight in whole.items()}

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint keeps beside `weights`: what they are the averages of."""
        if self.decay is None:
            return None
        whole = self.learner.state_dict(keep_vars=True)
        return {name: weight.detach() for name, weight in whole.items() if weight in self._means}

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from a `state`, where the learner has `weights`."""
        self.begin()
        if state is not None:
            self.learner.load_state_dict(state, strict=False)

    @torch.no_grad()
    def _exchange(self) -> None:
        for weight, mean in self._means.items():
            copy = weight.clone()
            weight.copy_(mean)
            mean.copy_(copy)
