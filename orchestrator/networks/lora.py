"""LoRA: a backbone is trained by low-rank changes of its layers, and its own weights stay as they were loaded.

y = W x + (alpha / r) U D x, with D (r, inputs) drawn at random and U (outputs, r) zero at first

Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, Section 4.1. The same for convolutions
of 1 x 1 pixels, which are linear layers of each place.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.errors import InputError

Layers = Literal["all", "attention"]


@dataclass(frozen=True)
class LoRA:
    """The rank r; alpha, None for r; which layers: `all` linear ones and 1 x 1 convolutions of the backbone, or the
    linear ones of its attention."""

    rank: int
    alpha: float | None = None
    layers: Layers = "all"

    @property
    def scale(self) -> float:
        """alpha / r"""
        return 1.0 if self.alpha is None else self.alpha / self.rank


class AdaptedLinear(nn.Linear):
    """A linear layer with a low-rank change; its own parameters keep their names."""

    lora_down: Tensor
    lora_up: Tensor
    lora_scale: float

    def forward(self, input: Tensor) -> Tensor:
        low = self.lora_scale * F.linear(input, self.lora_down)
        return super().forward(input).add_(F.linear(low, self.lora_up))  # in place: no second output


class AdaptedConvolution(nn.Conv2d):
    """A convolution of 1 x 1 pixels with a low-rank change; its own parameters keep their names."""

    lora_down: Tensor
    lora_up: Tensor
    lora_scale: float

    def forward(self, input: Tensor) -> Tensor:
        low = self.lora_scale * F.conv2d(input, self.lora_down, stride=self.stride)
        return super().forward(input).add_(F.conv2d(low, self.lora_up))


ADAPTED: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: AdaptedLinear, nn.Conv2d: AdaptedConvolution}


def adapt(backbone: nn.Module, lora: LoRA, name: str) -> None:
    """Freeze a backbone's parameters and add the low-rank changes, which change nothing yet.

    The numbers drawn for them leave the global generator as it was. InputError if there is no such layer.
    """
    layers = [layer for path, layer in _layers(backbone) if lora.layers == "all" or "attn" in path.split(".")]
    if not layers:
        what = "linear layer or 1 x 1 convolution" if lora.layers == "all" else "linear layer of an attention"
        raise InputError(
            f"lora_rank: {lora.rank}: backbone: {name} has no {what} to adapt: take another backbone, or leave it out"
        )
    backbone.requires_grad_(False)
    before = torch.get_rng_state()
    for layer in layers:
        weight = layer.weight
        ones = (1,) * (weight.ndim - 2)
        down = torch.empty(lora.rank, weight.shape[1], *ones, dtype=weight.dtype)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        layer.__class__ = ADAPTED[type(layer)]
        layer.lora_down = nn.Parameter(down)
        layer.lora_up = nn.Parameter(torch.zeros(weight.shape[0], lora.rank, *ones, dtype=weight.dtype))
        layer.lora_scale = lora.scale
    torch.set_rng_state(before)


@torch.no_grad()
def merge(network: nn.Module) -> None:
    """Add the changes to the weights, so that plain layers are left: W <- W + (alpha / r) U D."""
    plain = {adapted: original for original, adapted in ADAPTED.items()}
    for layer in network.modules():
        if type(layer) in plain:
            changed: Any = layer
            product = changed.lora_up.flatten(1).double() @ changed.lora_down.flatten(1).double()
            changed.weight.copy_(changed.weight.double() + changed.lora_scale * product.view_as(changed.weight))
            del changed.lora_down, changed.lora_up, changed.lora_scale
            layer.__class__ = plain[type(layer)]


def _layers(backbone: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers that can be adapted, by their paths: those that are called, not only read by the module they are in,
    as the `qkv` of BEiT is."""
    for path, module in backbone.named_modules():
        for name, layer in module.named_children():
            pointwise = type(layer) is nn.Conv2d and layer.kernel_size == (1, 1) and layer.groups == 1
            if (pointwise and layer.padding == (0, 0)) or type(layer) is nn.Linear:
                if name == "qkv" and getattr(module, "q_bias", None) is not None:
                    continue
                yield f"{path}.{name}", layer
