"""ReLU6 that keeps one tensor for the backward pass where torch keeps two."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.networks.operators import Operator


def aten_derivative(gradient: Tensor, result: Tensor) -> Tensor:
    """The gradient where 0 < result < 6, else 0, in one pass."""
    return torch.ops.aten.hardtanh_backward(gradient, result, 0.0, 6.0)  # type: ignore[no-any-return]


def plain_derivative(gradient: Tensor, result: Tensor) -> Tensor:
    """The same in three passes."""
    return torch.where((result > 0) & (result < 6), gradient, torch.zeros_like(gradient))


def _example(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.ones(1, device=device, dtype=dtype), torch.ones(1, device=device, dtype=dtype)


DERIVATIVE = Operator(aten_derivative, plain_derivative, _example)


class _Clipped(torch.autograd.Function):
    """min(max(x, 0), 6), written over x. Its gradient passes where 0 < x < 6, which its result tells as well: so
    nothing is kept but the result, and the next layer keeps that anyway."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.mark_dirty(functional.hardtanh_(x, 0.0, 6.0))
        context.save_for_backward(x)
        return x

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (result,) = context.saved_tensors
        return DERIVATIVE(gradient, result)


class LeanReLU6(nn.ReLU6):
    """torch's, with the same bits. In place, torch copies its input for the backward pass."""

    def forward(self, input: Tensor) -> Tensor:
        if self.inplace and input.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return _Clipped.apply(input)  # type: ignore[no-any-return]
        return super().forward(input)


def keep_less(model: nn.Module) -> None:
    """Make each ReLU6 of a network a LeanReLU6."""
    for module in model.modules():
        if type(module) is nn.ReLU6:
            module.__class__ = LeanReLU6
