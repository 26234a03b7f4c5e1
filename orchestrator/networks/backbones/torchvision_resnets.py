"""torchvision's ResNets."""

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.networks.backbones.base import Architecture, not_to_be_had
from orchestrator.networks.backbones.colours import IMAGENET_MEAN, IMAGENET_STD

if TYPE_CHECKING:
    from torch import Tensor

    from orchestrator.networks.backbones.network import Backbone


def torchvision_resnet(channels: int, class_token: bool = False, *, name: str) -> "Backbone":
    """torchvision's ResNet without its classifier, with random weights."""
    from torch import nn
    from torchvision import models

    from orchestrator.networks.backbones.network import Backbone

    model = getattr(models, name)(weights=None)
    body = nn.Sequential(
        OrderedDict((key, module) for key, module in model.named_children() if key not in ("avgpool", "fc"))
    )
    layers = {"stem": r"^conv1|bn1", "blocks": r"^layer(\d+)"}
    features = model.fc.in_features
    return Backbone(body, feature_dim=features, channels=3, mean=IMAGENET_MEAN, std=IMAGENET_STD, layers=layers)


def torchvision_weights(name: str) -> "dict[str, Tensor]":
    import torch
    from torchvision.models import get_model_weights

    # V1: the papers' weights; V2 must not be used for comparisons with them
    url = get_model_weights(name)["IMAGENET1K_V1"].url
    try:
        state: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
            url, progress=False, check_hash=True, map_location="cpu", weights_only=True
        )
    except OSError as error:
        raise not_to_be_had(name, url, error) from None
    return state


def resnet(name: str, title: str, features: int) -> Architecture:
    """One of them, with the weights that papers use."""
    return Architecture(
        name=name,
        about=f"torchvision {title}, {features} features, ImageNet-1k V1 weights",
        build=partial(torchvision_resnet, name=name),
        pretrained=partial(torchvision_weights, name),
    )


RESNET18 = resnet("resnet18", "ResNet-18", 512)
RESNET50 = resnet("resnet50", "ResNet-50", 2048)
