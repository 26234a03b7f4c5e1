"""Gradients that can be computed, but not differentiated again."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor


def differentiable_once(gradient: Tensor, *points: Tensor, what: str) -> Tensor:
    """In a backward pass: the gradient, whose own derivative by the points is a RuntimeError that names `what`.

    torch's once_differentiable refuses only where the gradient that comes in depends on something; elsewhere the second
    derivative would be zero.
    """
    if not torch.is_grad_enabled():
        return gradient
    refused: Tensor = _NoSecondDerivative.apply(gradient, what, *points)
    return refused


def once(loss: Tensor, *points: Tensor, what: str) -> Tensor:
    """The loss as it is, for one whose autograd graph knows no second derivative by the points, or a wrong one: asking
    for it is a RuntimeError that names `what`."""
    refused: Tensor = _Once.apply(loss, what, *points)
    return refused


def with_gradient(loss: Tensor, points: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    """The value of the loss, with these gradients by the points, None for zero, which are then not computed a second
    time; it can be differentiated once."""
    pairs = [(point, gradient) for point, gradient in zip(points, gradients, strict=True) if gradient is not None]
    points, known = zip(*pairs, strict=True)
    return cast(Tensor, _WithGradient.apply(loss.detach(), len(pairs), *points, *known))


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, count: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.count = count
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, on_loss: Tensor) -> tuple[Tensor | None, ...]:
        points, gradients = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        found = [differentiable_once(gradient * on_loss, *points, what="with_gradient") for gradient in gradients]
        return None, None, *found, *[None] * ctx.count


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, what: str, *points: Tensor) -> Tensor:
        ctx.save_for_backward(*points)
        ctx.what = what
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        points = ctx.saved_tensors
        return differentiable_once(gradient, *points, what=ctx.what), None, *[None] * len(points)


class _NoSecondDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, what: str, *points: Tensor) -> Tensor:
        ctx.what = what
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(f"{ctx.what} can be differentiated once")
