"""Batch norm whose statistics and affine parameters are frozen, which keeps nothing for the backward pass."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


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
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            factor = (variance + context.eps).rsqrt()
            factor = factor if weight is None else factor * weight
            return (gradient * factor.view(-1, *[1] * (gradient.ndim - 2)).to(gradient.dtype), *[None] * 5)
        # torch's own, which looks at no value of x: the gradient stands for it
        (found, _, _) = torch.ops.aten.native_batch_norm_backward(
            gradient, gradient, weight, mean, variance, None, None, False, context.eps, [True, False, False]
        )
        return (found, *[None] * 5)


def normalized(module: nn.modules.batchnorm._BatchNorm, x: Tensor) -> Tensor | None:
    """The result of a frozen batch norm; None if torch has to compute it, as in training or where no gradient is
    wanted."""
    parameters = [parameter for parameter in (module.weight, module.bias) if parameter is not None]
    if module.training or module.running_mean is None or any(parameter.requires_grad for parameter in parameters):
        return None
    if not (x.requires_grad and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        return None
    found: Tensor = _Normalized.apply(
        x, module.running_mean, module.running_var, module.weight, module.bias, module.eps
    )
    return found


class LeanBatchNorm2d(nn.BatchNorm2d):
    """torch's, with the same bits."""

    def forward(self, input: Tensor) -> Tensor:
        found = normalized(self, input)
        return super().forward(input) if found is None else found


def keep_less(module: nn.modules.batchnorm._BatchNorm) -> None:
    """Make torch's batch norm of images one that keeps nothing while it is frozen."""
    if type(module) is nn.BatchNorm2d:
        module.__class__ = LeanBatchNorm2d
