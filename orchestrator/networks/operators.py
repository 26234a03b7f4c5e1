"""Operators of torch's inner library (`torch.ops.aten`), each with the same in public operators where it fails."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Operator:
    """`fast` on each kind of device and element type on which it ran once, on `example`'s arguments; else `plain`.

    They agree to rounding. Inner operators may move, and CUDA's may refuse what the CPU's takes.
    """

    def __init__(
        self,
        fast: Callable[..., Tensor],
        plain: Callable[..., Tensor],
        example: Callable[[torch.device, torch.dtype], tuple[Any, ...]],
    ) -> None:
        self.fast, self.plain, self.example = fast, plain, example
        self.choices: dict[tuple[str, torch.dtype], Callable[..., Tensor]] = {}

    def __call__(self, gradient: Tensor, *arguments: Any) -> Tensor:
        key = gradient.device.type, gradient.dtype
        if key not in self.choices:
            self.choices[key] = self.fast if self._runs(gradient.device, gradient.dtype) else self.plain
        return self.choices[key](gradient, *arguments)

    def _runs(self, device: torch.device, dtype: torch.dtype) -> bool:
        try:
            with torch.no_grad():
                self.fast(*self.example(device, dtype))
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, NotImplementedError, RuntimeError, TypeError):
            return False
        return True
