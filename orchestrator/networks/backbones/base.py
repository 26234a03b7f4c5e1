"""What a backbone is, and what the table of backbones says of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from orchestrator.errors import InputError

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

InputConvention = Literal["default", "bgr_255", "rgb_255"]
"""How a network takes colours: as it was pretrained, or each in [0, 255] minus its mean, blue or red first."""
CAFFE_MEAN = [104 / 255, 117 / 255, 128 / 255]


class Wrapped(nn.Module):
    """A body around another library's `model`, whose names the weights have."""

    model: Any


class Backbone(nn.Module):
    """Normalises images, repeats a grey channel where colour is expected, and runs `body`.

    `layers` are patterns, as of timm's `group_matcher`, that put the parameters of `network` in order from the bottom.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, body: nn.Module, *, feature_dim: int, channels: int, mean: list[float], std: list[float], layers: Any
    ) -> None:
        super().__init__()
        self.body = body
        self.feature_dim = feature_dim
        self.channels = channels
        self.layers = layers
        self.blue_first = False
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1] == 1 and self.channels == 3:
            images = images.expand(-1, 3, -1, -1)
        if self.blue_first:
            images = images.flip(1)
        features: Tensor = self.body((images - self.mean) / self.std)
        return features

    @property
    def network(self) -> nn.Module:
        """The module whose parameters are named as in the weight files."""
        return self.body.model if isinstance(self.body, Wrapped) else self.body

    def take(self, convention: InputConvention) -> None:
        """Adopt this colour convention: (x - mean) / std becomes 255 x - 255 mean, in its channel order."""
        if convention == "default":
            return
        self.blue_first = convention == "bgr_255"
        self.mean.copy_(torch.tensor(CAFFE_MEAN).view(1, -1, 1, 1))
        self.std.fill_(1 / 255)

    def depths(self) -> dict[nn.Parameter, int]:
        """Parameter -> its layer counted from the top, 0 for the topmost; InputError if the layers have no order."""
        from timm.models import group_parameters

        if self.layers is None:
            raise InputError("layer_decay: this backbone does not say the order of its layers: only 1.0 is possible")
        layer_of: dict[str, int] = group_parameters(self.network, self.layers, reverse=True)
        top = max(layer_of.values())
        return {parameter: top - layer_of[name] for name, parameter in self.network.named_parameters()}


@dataclass(frozen=True)
class Architecture:
    """A backbone of the table.

    Attributes:
        name: as in settings.
        about: what it is, in a line.
        build: the network with random weights, for images of so many channels; `class_token`: return only that token.
        pretrained: its own weights, by name; None: it trains from scratch.
        has_tokens: it may have a class token.
        convention: how it takes colours where nothing else is asked for.
    """

    name: str
    about: str
    build: Callable[[int, bool], Backbone]
    pretrained: Callable[[], dict[str, Tensor]] | None = None
    has_tokens: bool = False
    convention: InputConvention = "default"


def no_class_token(name: str) -> InputError:
    """The error for `pooling=token` on a network that cannot do it."""
    return InputError(f"pooling: 'token' needs a class token, which {name} does not have: average, max or average+max")
