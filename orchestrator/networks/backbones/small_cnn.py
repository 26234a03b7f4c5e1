"""A small network for the embedded data."""

from typing import TYPE_CHECKING

from orchestrator.networks.backbones.base import Architecture

if TYPE_CHECKING:
    from orchestrator.networks.backbones.network import Backbone


def small_cnn(channels: int, class_token: bool = False) -> "Backbone":
    """Three 3x3 convolutions (32, 64, 128, the first two of stride 2) with GroupNorm; trained from scratch.

    GroupNorm keeps no batch statistics, so one process and several compute the same.
    """
    from torch import nn

    from orchestrator.networks.backbones.network import Backbone

    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        # strides, not max pooling, which is several times slower on a CPU
        convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.GroupNorm(8, outputs), nn.ReLU())

    body = nn.Sequential(block(channels, 32, 2), block(32, 64, 2), block(64, 128, 1))
    half, layers = [0.5] * channels, {"blocks": r"^(\d+)"}
    return Backbone(body, feature_dim=128, channels=channels, mean=half, std=half, layers=layers)


SMALL_CNN = Architecture(
    name="small_cnn",
    about="three convolutions with GroupNorm, for the embedded data; trained from scratch",
    build=small_cnn,
)
