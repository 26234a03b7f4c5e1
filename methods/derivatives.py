"""Gradients that can be computed, but not differentiated again."""

from typing import Any

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
