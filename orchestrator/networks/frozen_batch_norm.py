"""Batch norm whose statistics and affine parameters are frozen, which keeps nothing for the backward pass."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.networks.operators import Operator


def aten_derivative(gradient: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """torch's own, which looks at no input where statistics are frozen: the gradient (N, C, ...) stands for it. CUDA's
    asks for saved statistics, which it does not read."""
    unread = mean.new_empty(0)
    result: Tensor
    result, _, _ = torch.ops.aten.native_batch_norm_backward(
        gradient, gradient, weight, mean, variance, unread, unread, False, eps, [True, False, False]
    )
    return result


def plain_derivative(gradient: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """gradient * weight / sqrt(variance + eps), in the order in which torch computes it."""
    shape = -1, *[1] * (gradient.ndim - 2)
    result = gradient if weight is None else gradient * weight.view(shape)
    return (result * (1 / (variance + eps).sqrt()).view(shape)).to(gradient.dtype)


def _example(device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    statistics = torch.ones(1, device=device, dtype=torch.promote_types(dtype, torch.float32))
    return torch.ones(1, 1, 1, 1, device=device, dtype=dtype), statistics, statistics, statistics, 1e-5


DERIVATIVE = Operator(aten_derivative, plain_derivative, _example)


class _Normalized(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias. Its derivative is weight / sqrt(variance + eps), without x,
    which torch keeps all the same."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        context.save_for_backward(mean, variance, weight)
        context.eps = eps
        return functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        mean, variance, weight = context.saved_tensors
        # a gradient of this gradient is that of public operators
        derivative = plain_derivative if torch.is_grad_enabled() else DERIVATIVE
        return (derivative(gradient, mean, variance, weight, context.eps), *[None] * 5)


def normalize_frozen(module: nn.modules.batchnorm._BatchNorm, x: Tensor) -> Tensor | None:
    """The result of a frozen batch norm; None if torch has to compute it, as in training or where no gradient is
    wanted."""
    parameters = [parameter for parameter in (module.weight, module.bias) if parameter is not None]
    if module.training or module.running_mean is None or any(parameter.requires_grad for parameter in parameters):
        return None
    if not (x.requires_grad and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        return None
    result: Tensor = _Normalized.apply(
        x, module.running_mean, module.running_var, module.weight, module.bias, module.eps
    )
    return result


class LeanBatchNorm2d(nn.BatchNorm2d):
    """torch's, with the same bits."""

    def forward(self, input: Tensor) -> Tensor:
        result = normalize_frozen(self, input)
        return super().forward(input) if result is None else result


def keep_less(module: nn.modules.batchnorm._BatchNorm) -> None:
    """Make torch's batch norm of images one that keeps nothing while it is frozen."""
    if type(module) is nn.BatchNorm2d:
        module.__class__ = LeanBatchNorm2d
