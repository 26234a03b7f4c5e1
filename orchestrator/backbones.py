"""Image backbones: (B, channels, H, W) in [0, 1] -> feature maps (B, feature_dim, h, w)."""

import hashlib
from collections import OrderedDict
from pathlib import Path

import torch
from torch import Tensor, nn

from orchestrator.errors import InputError, suggestion

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


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


def small_cnn(channels: int) -> Backbone:
    """Three 3x3 convolutions (32, 64, 128, the first two of stride 2) with GroupNorm; trained from scratch.

    GroupNorm keeps no batch statistics, so one process and several compute the same.
    """

    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        # strides, not max pooling, which is several times slower on a CPU
        convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.GroupNorm(8, outputs), nn.ReLU())

    body = nn.Sequential(block(channels, 32, 2), block(32, 64, 2), block(64, 128, 1))
    return Backbone(body, feature_dim=128, channels=channels, mean=[0.5] * channels, std=[0.5] * channels)


def torchvision_resnet(name: str) -> Backbone:
    """torchvision's ResNet without its classifier, with random weights."""
    from torchvision import models

    model = getattr(models, name)(weights=None)
    body = nn.Sequential(
        OrderedDict((key, module) for key, module in model.named_children() if key not in ("avgpool", "fc"))
    )
    return Backbone(body, feature_dim=model.fc.in_features, channels=3, mean=IMAGENET_MEAN, std=IMAGENET_STD)


class TimmBody(nn.Module):
    """A timm model's feature maps; one token's worth, (B, feature_dim, 1, 1), where a model has tokens and no maps."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model.forward_features(images)  # type: ignore[operator]
        if features.ndim == 4:
            return features
        pooled: Tensor = self.model.forward_head(features, pre_logits=True)  # type: ignore[operator]
        return pooled[..., None, None]


def timm_backbone(name: str) -> Backbone:
    """Any timm model by its name, with random weights."""
    import timm

    if not timm.is_model(name):
        known = timm.list_models(f"{name.split('_')[0].split('.')[0]}*") or timm.list_models()
        raise InputError(f"backbone: timm has no model '{name}'{suggestion(name, known[:500])}")
    model = timm.create_model(name, pretrained=False, num_classes=0)
    mean, std = model.pretrained_cfg["mean"], model.pretrained_cfg["std"]
    return Backbone(TimmBody(model), feature_dim=model.num_features, channels=3, mean=list(mean), std=list(std))


BACKBONES: dict[str, str] = {
    "small_cnn": "three convolutions with GroupNorm, for the embedded data; trained from scratch",
    "resnet18": "torchvision ResNet-18, 512 features, ImageNet-1k V1 weights",
    "resnet50": "torchvision ResNet-50, 2048 features, ImageNet-1k V1 weights",
}
TIMM = "timm/"
"""Prefix of a timm model's name."""


def check_backbone_name(name: str) -> None:
    """InputError for a name that is neither in BACKBONES nor begins with `timm/`."""
    if name not in BACKBONES and not name.startswith(TIMM):
        raise InputError(
            f"unknown backbone '{name}'{suggestion(name, BACKBONES)}; or {TIMM}MODEL for any model of timm"
        )


def build_backbone(name: str, *, channels: int, weights: str, sha256: str | None = None) -> Backbone:
    """The backbone called `name` for images of `channels` channels.

    `weights`: `default` (the pretrained ones, where there are any), `random`, or the path of a state-dict file, which
    must have the digest `sha256` if one is given. InputError if the weights cannot be had.
    """
    check_backbone_name(name)
    if name == "small_cnn":
        if weights not in ("default", "random"):
            raise InputError(f"weights: '{weights}' cannot be loaded into small_cnn, which trains from scratch")
        return small_cnn(channels)
    is_timm = name.startswith(TIMM)
    backbone = timm_backbone(name.removeprefix(TIMM)) if is_timm else torchvision_resnet(name)
    if weights == "default":
        state = _timm_weights(name.removeprefix(TIMM)) if is_timm else _torchvision_weights(name)
    elif weights != "random":
        state = _weights_of_file(Path(weights).expanduser(), sha256)
    if weights != "random":
        target = backbone.body.model if is_timm else backbone.body
        assert isinstance(target, nn.Module)
        _load(target, state, f"{name}, weights {weights}")
    return backbone


def _torchvision_weights(name: str) -> dict[str, Tensor]:
    from torchvision.models import get_model_weights

    # V1: the papers' weights; V2 must not be used for comparisons with them
    url = get_model_weights(name)["IMAGENET1K_V1"].url
    try:
        state: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
            url, progress=False, check_hash=True, map_location="cpu", weights_only=True
        )
    except OSError as error:
        raise _not_to_be_had(name, url, error) from None
    return state


def _timm_weights(name: str) -> dict[str, Tensor]:
    import timm

    try:
        state: dict[str, Tensor] = timm.create_model(name, pretrained=True, num_classes=0).state_dict()
    except (OSError, RuntimeError) as error:
        raise _not_to_be_had(TIMM + name, "the Hugging Face hub", error) from None
    return state


def _not_to_be_had(name: str, source: str, error: Exception) -> InputError:
    reason = str(error).splitlines()[0][:120]
    return InputError(
        f"weights: the pretrained weights of {name} could not be fetched from {source} ({reason}): "
        "give a local state-dict file (weights=/path/to/file.pth) or ask for random ones (weights=random)"
    )


def _weights_of_file(path: Path, sha256: str | None) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"weights: no file {path}: give 'default', 'random', or the path of a state-dict file")
    if sha256 is not None:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256.lower():
            raise InputError(f"weights_sha256: {path} has the digest {found}, not {sha256}: it is another file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is no state dict
        raise InputError(f"weights: {path} is not a state-dict file ({type(error).__name__})") from None
    if not isinstance(state, dict):
        raise InputError(f"weights: {path} holds a {type(state).__name__}, not a state dict")
    return state


def _load(model: nn.Module, state: dict[str, Tensor], what: str) -> None:
    """All of the model's weights must be there; a classifier that it does not have may be left over."""
    wanted = model.state_dict()
    missing = [key for key in wanted if key not in state]
    wrong = [key for key in wanted if key in state and state[key].shape != wanted[key].shape]
    if missing or wrong:
        first = f"{(missing or wrong)[0]} is {'missing' if missing else 'of another shape'}"
        raise InputError(
            f"weights: not those of {what}: {first} ({len(missing)} missing, {len(wrong)} of other shapes)"
        )
    model.load_state_dict({key: state[key] for key in wanted})
