"""The arithmetic of a network: half precision, and where a GPU rounds the factors of float32 products to TF32.

| precision    | convolutions | products of the network | losses  |
| ------------ | ------------ | ----------------------- | ------- |
| float32      | TF32         | float32                 | float32 |
| tf32         | TF32         | TF32                    | float32 |
| full_float32 | float32      | float32                 | float32 |
| bf16, fp16   | bf16, fp16   | bf16, fp16              | float32 |
| float64      | float64      | float64                 | float64 |

TF32 has float32's range and 10 bits of fraction instead of 23; sums are in float32. A CPU has none: there the first
three compute the same. Source: https://docs.pytorch.org/docs/stable/notes/cuda.html
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from orchestrator.method import Outputs

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Half precision for the network if it is the setting."""
    half = HALF.get(precision)
    return torch.autocast(device.type, dtype=half or torch.bfloat16, enabled=half is not None)


def may_round(device: torch.device) -> bool:
    """Whether it may have TF32."""
    return device.type == "cuda"


@contextlib.contextmanager
def arithmetic(precision: str, device: torch.device, *, products: bool = True) -> Iterator[None]:
    """In this block, float32 convolutions and products on a GPU are those of this precision; without `products` the
    latter are in float32, as those of losses."""
    if not may_round(device):
        yield
        return
    convolutions, matrices = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, matrices.allow_tf32
    convolutions.allow_tf32 = precision != "full_float32"
    matrices.allow_tf32 = precision == "tf32" and products
    try:
        yield
    finally:
        convolutions.allow_tf32, matrices.allow_tf32 = before


class _FromHere(torch.autograd.Function):
    """Outputs of a network as they are; in the backward pass, what comes after them has TF32 products."""

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(output.view_as(output) for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        torch.backends.cuda.matmul.allow_tf32 = True
        return gradients


def network_from_here(outputs: Outputs, precision: str) -> Outputs:
    """The outputs of a network on a GPU, which has its products in the backward pass too in TF32, if that is the
    precision, though the loss has not. The pass runs under `arithmetic` without products, which ends it."""
    tensors = tuple(outputs.values())
    if precision != "tf32" or not may_round(tensors[0].device) or not any(tensor.requires_grad for tensor in tensors):
        return outputs
    return dict(zip(outputs, _FromHere.apply(*tensors), strict=True))
