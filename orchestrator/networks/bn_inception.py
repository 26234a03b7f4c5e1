"""Inception with batch normalisation (Inception v2) as the metric-learning papers use it, without its classifier.

Parameters are named as in the published files, `bn_inception-52deb4733.pth` and the older `bn_inception-239d2248.pth`.
Source: Ioffe and Szegedy, Batch Normalization: Accelerating Deep Network Training, ICML 2015.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.errors import InputError


class Block(NamedTuple):
    """Channels of an Inception block's branches; without `single` and `projection` it halves the image."""

    name: str
    inputs: int
    single: int
    """1x1."""
    reduce: int
    triple: int
    """1x1, then 3x3."""
    double_reduce: int
    double: int
    """1x1, then two 3x3: GoogLeNet's 5x5."""
    pool: Literal["average", "max"]
    projection: int
    """3x3 pool, average or max, then 1x1; a max pool alone where the block halves the image."""

    @property
    def halves(self) -> bool:
        """Whether the block has stride 2."""
        return self.projection == 0

    @property
    def outputs(self) -> int:
        """Channels of the block's branches together."""
        return self.single + self.triple + self.double + (self.projection or self.inputs)


BLOCKS = (
    Block("inception_3a", 192, 64, 64, 64, 64, 96, "average", 32),
    Block("inception_3b", 256, 64, 64, 96, 64, 96, "average", 64),
    Block("inception_3c", 320, 0, 128, 160, 64, 96, "max", 0),
    Block("inception_4a", 576, 224, 64, 96, 96, 128, "average", 128),
    Block("inception_4b", 576, 192, 96, 128, 96, 128, "average", 128),
    Block("inception_4c", 576, 160, 128, 160, 128, 160, "average", 128),
    Block("inception_4d", 608, 96, 128, 192, 160, 192, "average", 128),
    Block("inception_4e", 608, 0, 128, 192, 192, 256, "max", 0),
    Block("inception_5a", 1056, 352, 192, 320, 160, 224, "average", 128),
    Block("inception_5b", 1024, 352, 192, 320, 192, 224, "max", 128),
)


class BNInception(nn.Module):
    """Images (B, 3, H, W) -> feature maps (B, 1024, about H / 32, about W / 32); random weights.

    69 convolutions with bias, each followed by batch norm (eps 1e-5) and ReLU. Every max pool of stride 2 rounds up;
    average pools count their padding. H and W must be 32 k - 1 to 32 k + 6 (224, 227 and 256 are), else InputError.
    """

    def __init__(self) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        for block in BLOCKS:
            name, stride = block.name, 2 if block.halves else 1
            if block.single:
                self._add(f"{name}_1x1", block.inputs, block.single, 1)
            self._add(f"{name}_3x3_reduce", block.inputs, block.reduce, 1)
            self._add(f"{name}_3x3", block.reduce, block.triple, 3, stride=stride)
            self._add(f"{name}_double_3x3_reduce", block.inputs, block.double_reduce, 1)
            self._add(f"{name}_double_3x3_1", block.double_reduce, block.double, 3)
            self._add(f"{name}_double_3x3_2", block.double, block.double, 3, stride=stride)
            if block.projection:
                self._add(f"{name}_pool_proj", block.inputs, block.projection, 1)

    def _add(self, name: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs, eps=1e-5))

    def _unit(self, name: str, x: Tensor) -> Tensor:
        normalised: Tensor = getattr(self, f"{name}_bn")(getattr(self, name)(x))
        return normalised.relu()

    def stem(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) -> (B, 192, about H / 8, about W / 8)."""
        x = _halve(self._unit("conv1_7x7_s2", images))
        x = _halve(self._unit("conv2_3x3", self._unit("conv2_3x3_reduce", x)))
        if x.shape[2] % 4 or x.shape[3] % 4:
            # for an odd side a convolution gives the larger half and a pool the smaller, which cannot be concatenated
            height, width = images.shape[2:]
            raise InputError(
                f"backbone: bn_inception cannot take images of {height} x {width} pixels: "
                "sides must be a multiple of 32 or up to 6 pixels more, as 224, 227 or 256 are"
            )
        return x

    def block(self, block: Block, x: Tensor) -> Tensor:
        """The concatenated branches of an Inception block: (B, inputs, h, w) -> (B, outputs, ...)."""
        name = block.name
        branches = [self._unit(f"{name}_1x1", x)] if block.single else []
        branches.append(self._unit(f"{name}_3x3", self._unit(f"{name}_3x3_reduce", x)))
        double = self._unit(f"{name}_double_3x3_1", self._unit(f"{name}_double_3x3_reduce", x))
        branches.append(self._unit(f"{name}_double_3x3_2", double))
        if block.halves:
            branches.append(_halve(x))
        else:
            branches.append(self._unit(f"{name}_pool_proj", _pool(block.pool, x)))
        return torch.cat(branches, dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Feature maps; see the class."""
        x = self.stem(images)
        for block in BLOCKS:
            x = self.block(block, x)
        return x


def _halve(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=2, ceil_mode=True)


def _pool(kind: Literal["average", "max"], x: Tensor) -> Tensor:
    """3x3 pooling of stride 1; an average counts the padding. Rounding up has no effect here."""
    if kind == "max":
        return F.max_pool2d(x, 3, stride=1, padding=1, ceil_mode=True)
    return F.avg_pool2d(x, 3, stride=1, padding=1, ceil_mode=True, count_include_pad=True)
