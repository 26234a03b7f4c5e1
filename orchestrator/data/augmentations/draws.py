"""Random numbers of a given generator in code that draws from torch's global one."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

DRAWING = frozenset(
    {
        *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.bernoulli, torch.multinomial, torch.normal),
        *(torch._sample_dirichlet, Tensor.uniform_, Tensor.normal_, Tensor.random_, Tensor.bernoulli_),
    }
)
"""The functions that draw and take a generator."""


class Drawn(TorchFunctionMode):
    """Within it, and in this thread only, these functions draw from `generator`."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function in DRAWING:
            kwargs = kwargs | {"generator": self.generator}
        return function(*args, **kwargs)
