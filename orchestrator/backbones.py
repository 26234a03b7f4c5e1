"""Image backbones: (B, channels, H, W) in [0, 1] -> feature maps (B, feature_dim, h, w)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from orchestrator.errors import InputError, suggestion


class Backbone(nn.Module):
    """Normalises images, repeats a grey channel where colour is expected, and runs `body`."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, body: nn.Module, *, feature_dim: int, channels: int, mean: list[float], std: list[float]
    ) -> None:
        super().__init__()
        self.body = body
        self.feature_dim = feature_dim
        self.channels = channels
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1] == 1 and self.channels == 3:
            images = images.expand(-1, 3, -1, -1)
        features: Tensor = self.body((images - self.mean) / self.std)
        return features


def small_cnn(channels: int, weights: str) -> Backbone:
    """Three 3x3 convolutions (32, 64, 128, the first two of stride 2) with GroupNorm; trained from scratch.

    GroupNorm keeps no batch statistics, so one process and several compute the same.
    """
    if weights not in ("default", "random"):
        raise InputError(f"weights: '{weights}' cannot be loaded into small_cnn, which trains from scratch")

    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        # strides, not max pooling, which is several times slower on a CPU
        convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.GroupNorm(8, outputs), nn.ReLU())

    body = nn.Sequential(block(channels, 32, 2), block(32, 64, 2), block(64, 128, 1))
    return Backbone(body, feature_dim=128, channels=channels, mean=[0.5] * channels, std=[0.5] * channels)


def _resnet(name: str) -> Callable[[int, str], Backbone]:
    def build(channels: int, weights: str) -> Backbone:
        from torchvision import models

        model = getattr(models, name)(weights=None)
        feature_dim = model.fc.in_features
        if weights != "random":
            model.load_state_dict(_resnet_weights(name, weights))
        layers = (model.conv1, model.bn1, model.relu, model.maxpool)
        body = nn.Sequential(*layers, model.layer1, model.layer2, model.layer3, model.layer4)
        imagenet = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
        return Backbone(body, feature_dim=feature_dim, channels=3, **imagenet)

    build.__doc__ = f"torchvision's {name}, ImageNet-1k V1 weights unless told otherwise."
    return build


def _resnet_weights(name: str, weights: str) -> dict[str, Tensor]:
    if weights == "default":
        from torchvision.models import get_model_weights

        # V1: the papers' weights; V2 must not be used for comparisons with them
        url = get_model_weights(name)["IMAGENET1K_V1"].url
        try:
            state: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
                url, progress=False, check_hash=True, map_location="cpu", weights_only=True
            )
        except OSError as error:
            raise InputError(
                f"weights: the ImageNet weights of {name} could not be fetched from {url} ({error}): "
                f"give a local file (weights=/path/to/{Path(url).name}) or ask for random ones (weights=random)"
            ) from None
        return state
    path = Path(weights).expanduser()
    if not path.is_file():
        raise InputError(f"weights: no file {path}: give 'default', 'random', or the path of a state-dict file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is no state dict
        raise InputError(f"weights: {path} is not a state-dict file ({type(error).__name__})") from None
    return state


@dataclass(frozen=True)
class BackboneInfo:
    """A backbone by name."""

    build: Callable[[int, str], Backbone]
    summary: str


BACKBONES: dict[str, BackboneInfo] = {
    "small_cnn": BackboneInfo(small_cnn, "three convolutions with GroupNorm, for the embedded data"),
    "resnet18": BackboneInfo(_resnet("resnet18"), "torchvision ResNet-18, 512 features, ImageNet V1 weights"),
    "resnet50": BackboneInfo(_resnet("resnet50"), "torchvision ResNet-50, 2048 features, ImageNet V1 weights"),
}


def build_backbone(name: str, *, channels: int, weights: str) -> Backbone:
    """The backbone called `name` for images of `channels` channels.

    `weights`: `default` (pretrained where they exist), `random`, or the path of a state-dict file.
    """
    if name not in BACKBONES:
        raise InputError(f"backbone: unknown name '{name}'{suggestion(name, BACKBONES)}")
    return BACKBONES[name].build(channels, weights)
