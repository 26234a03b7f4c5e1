"""The torch module that every backbone is."""

from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.errors import InputError
from orchestrator.networks.backbones.colours import CAFFE_MEAN, InputConvention


class Wrapped(nn.Module):
    """A body around another library's `model`, whose names the weights have."""

    model: Any

    def resize(self, size: int) -> None:
        """Prepare the model for images of size x size pixels; InputError if it cannot take them."""


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

    def resize(self, size: int) -> None:
        """Prepare the network for images of size x size pixels; InputError if it is known that it cannot take them."""
        if isinstance(self.body, Wrapped):
            self.body.resize(size)

    def freeze_patch_embedding(self) -> None:
        """Keep the layer that embeds patches as it is; InputError if the network has none."""
        patches = getattr(self.network, "patch_embed", None)
        if not isinstance(patches, nn.Module):
            raise InputError(
                "freeze_patch_embedding: true: this backbone embeds no patches, as vision transformers do: leave it out"
            )
        patches.requires_grad_(False)

    def depths(self) -> dict[nn.Parameter, int]:
        """Parameter -> its layer counted from the top, 0 for the topmost; InputError if the layers have no order."""
        from timm.models import group_parameters

        if self.layers is None:
            raise InputError("layer_decay: this backbone does not say the order of its layers: only 1.0 is possible")
        layer_of: dict[str, int] = group_parameters(self.network, self.layers, reverse=True)
        top = max(layer_of.values())
        return {parameter: top - layer_of[name] for name, parameter in self.network.named_parameters()}
